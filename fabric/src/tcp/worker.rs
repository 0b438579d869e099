//! One thread that serves: its connections, from the first byte to the last.
//!
//! The thread sleeps until a socket is ready (or polls, [`Waiting`]), takes in what has come on
//! each, carries out every whole frame where it lies, and sends the answers in one piece. It never
//! waits for one connection: a peer that does not read its answers is not read from either, and is
//! closed when that lasts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slab::Slab;

use super::Waiting;
use super::control;
use super::handshake::{Greeter, Hello, Purpose, Refusal, push_frame, push_refusal};
use super::limits::{GUEST_WORDS, INPUT_WORDS, OUTPUT_WORDS};
use super::serve::{Served, push_failure};
use super::socket::{self, BELL, Fill, Input, Interest, Output, Ready, Tag};
use super::stream::{self, Caller, Stream};
use super::target::{FenceOrder, Order, Post, Shared, Visitor};
use super::wire::{self, Kind, MAX_FRAME_WORDS, WireError};
use crate::env::Nanos;
use crate::ids::{Endpoint, Epoch};
use crate::verbs::VerbError;

/// Tags of listeners begin here; smaller ones are connections.
const LISTENERS: Tag = 1 << 32;
/// How often connections are looked at that may be too slow.
const TICK: Duration = Duration::from_millis(100);
/// The longest sleep when nothing is to be looked at.
const IDLE: Duration = Duration::from_secs(10);
/// Connections accepted before others get their turn.
const ACCEPTS: usize = 32;
/// Reads from one connection before others get their turn.
const READS: usize = 4;

/// See the module's essay.
pub(super) struct Worker {
    post: Post,
    /// The system had no socket to give; listeners are not watched until the next tick.
    deaf: bool,
    connections: Slab<Connection>,
    /// Which connection serves a lane, by the place of the node that it reaches.
    lanes: BTreeMap<(usize, Endpoint), usize>,
    guests: usize,
    /// Connections with answers that wait to be read.
    stuck: usize,
    next_tick: Nanos,
    serials: u32,
}

struct Connection {
    /// The node at this end.
    shared: Arc<Shared>,
    stream: Stream,
    role: Role,
    input: Input,
    output: Output,
    interest: Interest,
    /// A guest: since it came. Others: since answers wait.
    since: Nanos,
    /// Tells connections apart that had the same place.
    serial: u32,
}

enum Role {
    Guest(Greeter),
    Lane(LaneState),
    /// The request's frame has been taken, its answer not yet given.
    Control {
        busy: bool,
    },
}

struct LaneState {
    from: Endpoint,
    epoch: Epoch,
    session: u64,
    number: u64,
    standing: Standing,
}

/// Whether verbs of a lane's connection may take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Good,
    /// Fenced, and not yet told so.
    Fenced,
    /// A verb was refused: nothing behind it may take effect, whatever it is.
    Broken,
}

/// What becomes of a connection after its turn.
enum Verdict {
    Keep,
    Close,
    /// A guest asks for something.
    Asks(Hello),
}

impl Worker {
    pub(super) fn new(post: Post) -> io::Result<Self> {
        for (place, listener) in post.listeners.iter().enumerate() {
            post.watch.add(listener, LISTENERS + place as Tag, Interest::READ)?;
        }
        Ok(Self {
            post,
            deaf: false,
            connections: Slab::new(),
            lanes: BTreeMap::new(),
            guests: 0,
            stuck: 0,
            next_tick: Nanos(0),
            serials: 0,
        })
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) {
        let mut ready = Ready::new();
        let mut look_until = Nanos(0);
        loop {
            let timeout = match self.post.waiting {
                Waiting::Busy => Duration::ZERO,
                Waiting::Blocking { spin } if spin.is_zero() => self.patience(),
                Waiting::Blocking { spin } => {
                    let now = self.post.env.now();
                    if !ready.is_empty() {
                        look_until = now.after(spin);
                    }
                    if now < look_until { Duration::ZERO } else { self.patience() }
                }
            };
            self.post.watch.wait(&mut ready, timeout);
            for event in &ready {
                match event.data.u64() {
                    BELL => self.post.watch.silence(),
                    tag if tag >= LISTENERS => self.accept((tag - LISTENERS) as usize),
                    tag => self.turn(tag as usize),
                }
            }
            if !self.take_orders() {
                return;
            }
            if self.guests + self.stuck > 0 || self.deaf {
                self.tick();
            }
        }
    }

    fn patience(&self) -> Duration {
        if self.guests + self.stuck > 0 || self.deaf { TICK } else { IDLE }
    }

    /// Closes connections that have been too slow.
    fn tick(&mut self) {
        let now = self.post.env.now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now.after(TICK);
        if std::mem::take(&mut self.deaf) {
            self.listen();
        }
        let limits = &self.post.limits;
        let is_late = |connection: &Connection| match connection.role {
            Role::Guest(_) => now.since(connection.since) > limits.handshake,
            _ => !connection.output.is_empty() && now.since(connection.since) > limits.unread,
        };
        let late = self.connections.iter().filter(|(_, connection)| is_late(connection));
        let late: Vec<usize> = late.map(|(key, _)| key).collect();
        for key in late {
            let Connection { role, shared, .. } = &self.connections[key];
            match role {
                Role::Guest(_) => shared.counting.too_slow_to_greet.add(1),
                _ => shared.counting.too_slow_to_read.add(1),
            }
            self.close(key);
        }
    }

    fn listen(&mut self) {
        for (place, listener) in self.post.listeners.iter().enumerate() {
            // Fails for those that are watched already; one that cannot be is tried again.
            let _ = self.post.watch.remove(listener);
            let tag = LISTENERS + place as Tag;
            self.deaf |= self.post.watch.add(listener, tag, Interest::READ).is_err();
        }
    }

    fn accept(&mut self, place: usize) {
        for _ in 0..ACCEPTS {
            let listener = &self.post.listeners[place];
            match listener.accept() {
                Ok((stream, _)) => self.greet(place, stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Out of files or memory. The connection stays in the listener's queue, which
                    // would call at once again.
                    self.post.nodes[place].counting.accept_errors.add(1);
                    self.deaf = self.post.watch.remove(listener).is_ok();
                    return;
                }
            }
        }
    }

    fn greet(&mut self, place: usize, socket: TcpStream) {
        let shared = Arc::clone(&self.post.nodes[place]);
        shared.counting.accepted.add(1);
        if self.guests >= self.post.limits.guests {
            shared.counting.turned_away.add(1);
            return;
        }
        if socket::prepare(&socket, self.post.limits.silence).is_err() {
            return;
        }
        let Ok(stream) = Stream::incoming(socket, &shared.security, Caller::Node) else { return };
        let (role, now) = (Role::Guest(Greeter::default()), self.post.env.now());
        if self.add(shared, stream, role, GUEST_WORDS, now).is_some() {
            self.guests += 1;
        }
    }

    fn add(
        &mut self,
        shared: Arc<Shared>,
        stream: Stream,
        role: Role,
        input_words: usize,
        since: Nanos,
    ) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        // Without a watch it could not be served; closing it tells the other side so.
        self.post.watch.add(&stream, key as Tag, Interest::READ).ok()?;
        self.serials = self.serials.wrapping_add(1);
        let input = Input::new(input_words);
        let (output, interest, serial) = (Output::default(), Interest::READ, self.serials);
        entry.insert(Connection { shared, stream, role, input, output, interest, since, serial });
        Some(key)
    }

    fn close(&mut self, key: usize) {
        let connection = self.forget(key);
        if let Role::Lane(lane) = &connection.role {
            let name = (connection.shared.place, lane.from);
            if self.lanes.get(&name) == Some(&key) {
                self.lanes.remove(&name);
            }
        }
        if !matches!(connection.role, Role::Guest(_)) {
            connection.shared.admitted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a connection out; dropping it closes the socket.
    fn forget(&mut self, key: usize) -> Connection {
        let connection = self.connections.remove(key);
        self.guests -= usize::from(matches!(connection.role, Role::Guest(_)));
        self.stuck -= usize::from(connection.interest.write);
        connection
    }

    /// Takes in what has come on a connection, and answers.
    fn turn(&mut self, key: usize) {
        // Its place may be empty by now: closed earlier in the same round.
        let Some(connection) = self.connections.get_mut(key) else { return };
        let was_stuck = connection.interest.write;
        let verdict = connection.turn(key).unwrap_or_else(|error| connection.give_up(&error));
        let kept = match verdict {
            Verdict::Keep => connection.watch_on(key, &self.post).is_ok(),
            Verdict::Close => false,
            Verdict::Asks(hello) => return self.admit(key, hello),
        };
        let is_stuck = connection.interest.write;
        self.stuck = self.stuck + usize::from(is_stuck) - usize::from(was_stuck);
        if !kept {
            self.close(key);
        }
    }

    /// Gives a guest what it asks for.
    fn admit(&mut self, key: usize, hello: Hello) {
        let Connection { shared, mut stream, mut output, .. } = self.forget(key);
        if let Some(refusal) = refusal(&shared, &hello) {
            return refuse(&shared, &mut stream, refusal);
        }
        if self.post.watch.remove(&stream).is_err() {
            return;
        }
        if hello.purpose == Purpose::Verbs {
            let worker = shared.worker_of(hello.from);
            return match worker == self.post.index {
                true => self.serve(shared, stream, hello),
                false => shared.tell(worker, Order::Serve(shared.place, stream, hello)),
            };
        }
        push_frame(&mut output.words, Kind::Welcome, 0, &[]);
        // A few bytes into an empty socket: what does not fit now never will.
        if output.flush(&mut stream).is_err() || !output.is_empty() {
            return;
        }
        shared.counting.admitted.add(1);
        if hello.purpose == Purpose::Messages {
            shared.visit(hello.to.lane, Visitor { from: hello.from, stream });
        } else {
            let role = Role::Control { busy: false };
            let admitted = Arc::clone(&shared);
            if self.add(shared, stream, role, GUEST_WORDS, Nanos(0)).is_some() {
                admitted.admitted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Serves a lane from now on, in place of any older connection that it has.
    fn serve(&mut self, shared: Arc<Shared>, mut stream: Stream, hello: Hello) {
        // Here, on the thread that a fence asks: it either sees this connection or came before.
        if shared.is_fenced(hello.from.node, hello.epoch) {
            return refuse(&shared, &mut stream, Refusal::Fenced);
        }
        let name = (shared.place, hello.from);
        let older = self.lanes.get(&name).copied();
        if let Some(older) = older {
            let Role::Lane(lane) = &self.connections[older].role else { unreachable!() };
            if lane.session == hello.session && lane.number >= hello.number
                || lane.epoch > hello.epoch
            {
                return refuse(&shared, &mut stream, Refusal::Stale);
            }
            // From here on nothing of it can take effect: what it has received and what is still
            // on its way goes with the socket (H22).
            shared.counting.replaced.add(1);
            self.close(older);
        }
        let Hello { from, epoch, session, number, .. } = hello;
        let standing = Standing::Good;
        let lane = LaneState { from, epoch, session, number, standing };
        shared.counting.admitted.add(1);
        shared.admitted.fetch_add(1, Ordering::Relaxed);
        let admitted = Arc::clone(&shared);
        let Some(key) = self.add(shared, stream, Role::Lane(lane), INPUT_WORDS, Nanos(0)) else {
            admitted.admitted.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        self.lanes.insert(name, key);
        push_frame(&mut self.connections[key].output.words, Kind::Welcome, 0, &[]);
        self.turn(key);
    }

    /// Does what other workers ask. Whether to go on.
    fn take_orders(&mut self) -> bool {
        while let Ok(order) = self.post.orders.try_recv() {
            match order {
                Order::Serve(place, stream, hello) => {
                    self.serve(Arc::clone(&self.post.nodes[place]), stream, hello);
                }
                Order::Fence(order) => self.fence(order),
                Order::Fenced(order) => self.fenced(&order),
                Order::Stop => return false,
            }
        }
        true
    }

    /// From now on refuses what connections of the expelled node bring. No frame is half-way: this
    /// thread carries them out whole.
    fn fence(&mut self, order: Arc<FenceOrder>) {
        for (_, connection) in &mut self.connections {
            let Role::Lane(lane) = &mut connection.role else { continue };
            let expelled = connection.shared.place == order.place
                && lane.from.node == order.expelled
                && lane.epoch < order.epoch;
            if expelled && lane.standing == Standing::Good {
                lane.standing = Standing::Fenced;
            }
        }
        Arc::clone(&self.post.nodes[order.place]).acknowledge(order);
    }

    /// Answers whoever asked for a fence that is complete.
    fn fenced(&mut self, order: &FenceOrder) {
        let (key, serial) = control::asker(order.asker);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.serial != serial {
            return;
        }
        if let Role::Control { busy } = &mut connection.role {
            *busy = false;
            control::push_done(&mut connection.output.words, &Ok(()));
            self.turn(key);
        }
    }
}

/// Why a node does not give a guest what it asks for.
fn refusal(shared: &Shared, hello: &Hello) -> Option<Refusal> {
    if hello.to.node != shared.node || !shared.knows(hello.from.node) {
        return Some(Refusal::Node);
    }
    match hello.purpose {
        Purpose::Messages => (!shared.is_open(hello.to.lane)).then_some(Refusal::NoLane),
        Purpose::Verbs | Purpose::Control => {
            let admitted = shared.admitted.load(Ordering::Relaxed);
            (admitted >= shared.limits.connections).then_some(Refusal::Full)
        }
    }
}

/// Tells a connection that it is not admitted, and closes it.
fn refuse(shared: &Shared, stream: &mut impl Write, refusal: Refusal) {
    shared.counting.refused.add(1);
    let mut output = Output::default();
    push_refusal(&mut output.words, refusal);
    // Whoever does not get it sees the connection closed.
    let _ = output.flush(stream);
}

impl Connection {
    fn turn(&mut self, key: usize) -> io::Result<Verdict> {
        let mut reads = 0;
        while reads < READS || self.stream.hides_input() {
            reads += 1;
            let fill = self.input.fill(&mut self.stream)?;
            loop {
                let verdict = self.step(key);
                self.output.flush(&mut self.stream)?;
                if !matches!(verdict, Verdict::Keep) {
                    return Ok(verdict);
                }
                // There was no room for the answers, and now there is.
                if !self.output.is_empty() || !self.has_request() {
                    break;
                }
            }
            if fill == Fill::Closed {
                return Ok(Verdict::Close);
            }
            if fill != Fill::Full || !self.output.is_empty() {
                break;
            }
        }
        Ok(Verdict::Keep)
    }

    /// Says why nothing more can be read or written, where somebody is there to be told.
    fn give_up(&mut self, error: &io::Error) -> Verdict {
        match error.kind() {
            // TLS has told whoever it did not let in.
            io::ErrorKind::InvalidData => self.shared.counting.refused.add(1),
            stream::NO_TLS => refuse(&self.shared, &mut self.stream.socket(), Refusal::Security),
            _ => {}
        }
        Verdict::Close
    }

    /// Takes what it can of what has come.
    fn step(&mut self, key: usize) -> Verdict {
        let step = match &mut self.role {
            Role::Guest(_) => return self.greet(),
            Role::Lane(_) => self.carry_out(),
            Role::Control { .. } => self.control(key),
        };
        match step {
            Ok(()) => Verdict::Keep,
            Err(_no_frame) => {
                self.shared.counting.garbage.add(1);
                Verdict::Close
            }
        }
    }

    /// Whether a whole request waits that could be taken if there were room for its answer.
    fn has_request(&self) -> bool {
        match self.role {
            Role::Guest(_) | Role::Control { busy: true } => false,
            _ => matches!(wire::decode(self.input.words()), Ok(Some(_))),
        }
    }

    /// Carries out verbs as long as there is room for their answers.
    fn carry_out(&mut self) -> Result<(), WireError> {
        let Self { role: Role::Lane(lane), shared, input, output, .. } = self else {
            unreachable!()
        };
        if lane.standing == Standing::Good {
            shared.regions.prefetch(input.words());
        }
        let (mut taken, mut frames) = (0, 0);
        while output.len() + MAX_FRAME_WORDS <= OUTPUT_WORDS {
            let Some(frame) = wire::decode(&input.words()[taken..])? else { break };
            if frame.header.kind != Kind::Verbs {
                return Err(WireError::Unexpected);
            }
            taken += frame.words();
            frames += 1;
            match lane.standing {
                Standing::Good => {
                    if shared.regions.execute(&frame, &mut output.words)? == Served::UpTo {
                        lane.standing = Standing::Broken;
                    }
                }
                Standing::Fenced => {
                    push_failure(&mut output.words, 0, VerbError::Revoked);
                    lane.standing = Standing::Broken;
                }
                Standing::Broken => {}
            }
        }
        input.take(taken);
        shared.counting.frames.add(frames);
        Ok(())
    }

    fn greet(&mut self) -> Verdict {
        let Self { role: Role::Guest(greeter), shared, input, output, .. } = self else {
            unreachable!()
        };
        let refusal = loop {
            let frame = match wire::decode(input.words()) {
                Ok(Some(frame)) => frame,
                // A frame that does not fit is none of a handshake.
                Ok(None) if input.words().len() < GUEST_WORDS => return Verdict::Keep,
                Ok(None) | Err(_) => break Refusal::Garbage,
            };
            let words = frame.words();
            let step = greeter.step(&frame, shared.security.key(), &mut output.words);
            input.take(words);
            match step {
                Ok(None) => {}
                // Nothing may follow before the welcome.
                Ok(Some(_)) if !input.is_empty() => break Refusal::Garbage,
                Ok(Some(hello)) => return Verdict::Asks(hello),
                Err(refusal) => break refusal,
            }
        };
        let counting = &shared.counting;
        if refusal == Refusal::Garbage { &counting.garbage } else { &counting.refused }.add(1);
        push_refusal(&mut output.words, refusal);
        Verdict::Close
    }

    /// Answers control requests, one after the other.
    fn control(&mut self, key: usize) -> Result<(), WireError> {
        let Self { role: Role::Control { busy }, shared, input, output, serial, .. } = self else {
            unreachable!()
        };
        while !*busy && output.is_empty() {
            let Some(frame) = wire::decode(input.words())? else { break };
            let words = frame.words();
            match control::answer(&frame, shared, control::ask(key, *serial))? {
                Some(done) => control::push_done(&mut output.words, &done),
                None => *busy = true,
            }
            input.take(words);
        }
        Ok(())
    }

    /// Has the socket watched for what can be done next.
    fn watch_on(&mut self, key: usize, post: &Post) -> io::Result<()> {
        let write = !self.output.is_empty();
        // Not read from while it does not read.
        let interest = Interest { read: !write, write };
        if interest == self.interest {
            return Ok(());
        }
        if write {
            self.since = post.env.now();
        }
        self.interest = interest;
        post.watch.change(&self.stream, key as Tag, interest)
    }
}
