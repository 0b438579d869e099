//! A thread of a target: serves connections from the first byte to the last.
//!
//! The thread sleeps until a socket is ready (or polls, [`Waiting`]), receives from each ready
//! socket, carries out every whole frame in place, and sends the answers together. The thread never
//! waits for a single connection: the worker stops reading from a peer that does not read its
//! answers, and disconnects the peer after a time-out.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slab::Slab;

use crate::backends::tcp::config::Waiting;
use crate::backends::tcp::handshake::{
    Hello, Purpose, Refusal, TargetHandshake, push_frame, push_refusal,
};
use crate::backends::tcp::limits::{GUEST_WORDS, INPUT_WORDS, OUTPUT_WORDS};
use crate::backends::tcp::server::control;
use crate::backends::tcp::server::serve::{Served, push_failure};
use crate::backends::tcp::server::target::{
    FenceOrder, MessageConnection, Order, Post, TargetNode,
};
use crate::backends::tcp::socket::{self, BELL, Fill, Input, Interest, Output, Ready, Tag};
use crate::backends::tcp::wire::{self, FrameKind, MAX_FRAME_WORDS, WireError};
use crate::contract::ids::{Endpoint, Epoch};
use crate::contract::verbs::VerbError;
use crate::run::env::Nanos;
use lotus_security::{Caller, Guests, NO_TLS, PlaceDecision, Rules, Source, Stream};

/// First tag of listeners; smaller tags are connections.
const LISTENERS: Tag = 1 << 32;
/// Interval of the checks for slow connections.
const TICK: Duration = Duration::from_millis(100);
/// Longest sleep when no connection can be late.
const IDLE: Duration = Duration::from_secs(10);
/// Time for which a peer that has begun to speak keeps its place against new guests.
const SPEAKING: Duration = Duration::from_secs(1);
/// Connections accepted in a row before other sockets get a turn.
const ACCEPTS: usize = 32;
/// Reads in a row from one connection before other sockets get a turn.
const READS: usize = 4;

/// A thread that serves the nodes of a process.
pub(crate) struct Worker {
    post: Post,
    /// Whether accepting failed for lack of files or memory. Listeners are not watched until the
    /// next tick.
    deaf: bool,
    connections: Slab<Connection>,
    /// Key of each lane's connection, by the index of the target node and the lane.
    lanes: BTreeMap<(usize, Endpoint), usize>,
    guests: Guests<usize>,
    /// Number of connections with unsent answers.
    stuck: usize,
    next_tick: Nanos,
    serials: u32,
}

struct Connection {
    /// The node at this end.
    shared: Arc<TargetNode>,
    stream: Stream,
    role: Role,
    input: Input,
    output: Output,
    interest: Interest,
    /// Guest: time of accepting. Other roles: time since which answers are unsent.
    since: Nanos,
    /// Distinguishes successive connections with the same key.
    serial: u32,
}

enum Role {
    Guest(TargetHandshake),
    Lane(LaneState),
    /// `busy` while a request has been taken and not yet answered.
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

/// State of a lane's connection: whether its verbs may take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Good,
    /// Fenced; the lane has not been notified yet.
    Fenced,
    /// A verb was refused: no later verb may take effect.
    Broken,
}

/// Decision about a connection after its turn.
enum NextTurn {
    Keep,
    Close,
    /// A guest has completed the handshake with this request.
    Asks(Hello),
}

impl Worker {
    pub(crate) fn new(post: Post) -> io::Result<Self> {
        for (place, listener) in post.listeners.iter().enumerate() {
            post.watch.add(listener, LISTENERS + place as Tag, Interest::READ)?;
        }
        let guests = Guests::new(Rules::of(post.limits.guests));
        Ok(Self {
            post,
            deaf: false,
            connections: Slab::new(),
            lanes: BTreeMap::new(),
            guests,
            stuck: 0,
            next_tick: Nanos(0),
            serials: 0,
        })
    }

    /// Serves until the order to stop.
    pub(crate) fn run(mut self) {
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
            if self.guests.len() + self.stuck > 0 || self.deaf {
                self.tick();
            }
        }
    }

    fn patience(&self) -> Duration {
        if self.guests.len() + self.stuck > 0 || self.deaf { TICK } else { IDLE }
    }

    /// Closes connections that exceeded a time-out.
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
            // Removing fails for unwatched listeners. A listener that cannot be added is tried
            // again at the next tick.
            let _ = self.post.watch.remove(listener);
            let tag = LISTENERS + place as Tag;
            self.deaf |= self.post.watch.add(listener, tag, Interest::READ).is_err();
        }
    }

    fn accept(&mut self, place: usize) {
        for _ in 0..ACCEPTS {
            let listener = &self.post.listeners[place];
            match listener.accept() {
                Ok((stream, address)) => self.greet(place, stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Out of files or memory. The connection stays in the listener's queue, and
                    // would wake this thread again at once.
                    self.post.nodes[place].counting.accept_errors.add(1);
                    self.deaf = self.post.watch.remove(listener).is_ok();
                    return;
                }
            }
        }
    }

    fn greet(&mut self, place: usize, socket: TcpStream, address: SocketAddr) {
        let shared = Arc::clone(&self.post.nodes[place]);
        shared.counting.accepted.add(1);
        let (source, now) = (Source::from(address.ip()), self.post.env.now());
        match self.guests.place(source, now.since(Nanos(0))) {
            PlaceDecision::Free => {}
            PlaceDecision::Instead(other) => {
                shared.counting.turned_away.add(1);
                self.close(other);
            }
            // The peer tries again.
            PlaceDecision::Wait(_) => return shared.counting.turned_away.add(1),
        }
        if socket::prepare(&socket, self.post.limits.silence).is_err() {
            return;
        }
        let Ok(stream) = Stream::incoming(socket, &shared.security, Caller::Node) else { return };
        let role = Role::Guest(TargetHandshake::default());
        if let Some(key) = self.add(shared, stream, role, GUEST_WORDS, now) {
            self.guests.enter(key, source, now.since(Nanos(0)));
        }
    }

    fn add(
        &mut self,
        shared: Arc<TargetNode>,
        stream: Stream,
        role: Role,
        input_words: usize,
        since: Nanos,
    ) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        // An unwatched connection could not be served; closing the connection tells the peer.
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

    /// Removes a connection; dropping the connection closes the socket.
    fn forget(&mut self, key: usize) -> Connection {
        let connection = self.connections.remove(key);
        self.guests.leave(key);
        self.stuck -= usize::from(connection.interest.write);
        connection
    }

    /// Receives from a connection, and answers.
    fn turn(&mut self, key: usize) {
        // The key may be vacant, if the connection was closed earlier in the round.
        let Some(connection) = self.connections.get_mut(key) else { return };
        if matches!(connection.role, Role::Guest(_)) {
            let now = self.post.env.now();
            self.guests.keep(key, now.after(SPEAKING).since(Nanos(0)));
        }
        let was_stuck = connection.interest.write;
        let verdict = connection.turn(key).unwrap_or_else(|error| connection.give_up(&error));
        let kept = match verdict {
            NextTurn::Keep => connection.watch_on(key, &self.post).is_ok(),
            NextTurn::Close => false,
            NextTurn::Asks(hello) => return self.admit(key, hello),
        };
        let is_stuck = connection.interest.write;
        self.stuck = self.stuck + usize::from(is_stuck) - usize::from(was_stuck);
        if !kept {
            self.close(key);
        }
    }

    /// Admits a guest for the purpose in the hello, or refuses the guest.
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
        push_frame(&mut output.words, FrameKind::Welcome, 0, &[]);
        // A few bytes into an empty socket: bytes that do not fit now never will.
        if output.flush(&mut stream).is_err() || !output.is_empty() {
            return;
        }
        shared.counting.admitted.add(1);
        if hello.purpose == Purpose::Messages {
            shared.visit(hello.to.lane, MessageConnection { from: hello.from, stream });
        } else {
            let role = Role::Control { busy: false };
            let admitted = Arc::clone(&shared);
            if self.add(shared, stream, role, GUEST_WORDS, Nanos(0)).is_some() {
                admitted.admitted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Serves a lane from now on, and closes the lane's older connection, if any.
    fn serve(&mut self, shared: Arc<TargetNode>, mut stream: Stream, hello: Hello) {
        // Checked on the thread that acknowledges fences: a fence either sees the connection or was
        // raised before the check.
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
            // From here on no verb of the older connection can take effect: frames received and
            // frames in transit are dropped with the socket (H22).
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
        push_frame(&mut self.connections[key].output.words, FrameKind::Welcome, 0, &[]);
        self.turn(key);
    }

    /// Carries out other workers' orders. Returns false for the order to stop.
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

    /// Refuses verbs of the expelled node's connections from now on. No frame is half executed: the
    /// thread carries out whole frames.
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

    /// Answers the control connection that asked for a fence, once the fence is complete.
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

/// Reason to refuse a guest's hello, if any.
fn refusal(shared: &TargetNode, hello: &Hello) -> Option<Refusal> {
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

/// Sends a refusal; dropping the stream closes the connection.
fn refuse(shared: &TargetNode, stream: &mut impl Write, refusal: Refusal) {
    shared.counting.refused.add(1);
    let mut output = Output::default();
    push_refusal(&mut output.words, refusal);
    // If the refusal does not arrive, the peer sees the connection closed.
    let _ = output.flush(stream);
}

impl Connection {
    fn turn(&mut self, key: usize) -> io::Result<NextTurn> {
        let mut reads = 0;
        while reads < READS || self.stream.hides_input() {
            reads += 1;
            let fill = self.input.fill(&mut self.stream)?;
            loop {
                let verdict = self.step(key);
                self.output.flush(&mut self.stream)?;
                if !matches!(verdict, NextTurn::Keep) {
                    return Ok(verdict);
                }
                // Repeats only if the flush has made room for further answers.
                if !self.output.is_empty() || !self.has_request() {
                    break;
                }
            }
            if fill == Fill::Closed {
                return Ok(NextTurn::Close);
            }
            if fill != Fill::Full || !self.output.is_empty() {
                break;
            }
        }
        Ok(NextTurn::Keep)
    }

    /// Counts a failed connection, and sends the reason if the peer can still receive.
    fn give_up(&mut self, error: &io::Error) -> NextTurn {
        match error.kind() {
            // TLS has told the peer about the refusal.
            io::ErrorKind::InvalidData => self.shared.counting.refused.add(1),
            NO_TLS => refuse(&self.shared, &mut self.stream.socket(), Refusal::Security),
            _ => {}
        }
        NextTurn::Close
    }

    /// Processes received frames as far as possible.
    fn step(&mut self, key: usize) -> NextTurn {
        let step = match &mut self.role {
            Role::Guest(_) => return self.greet(),
            Role::Lane(_) => self.carry_out(),
            Role::Control { .. } => self.control(key),
        };
        match step {
            Ok(()) => NextTurn::Keep,
            Err(_no_frame) => {
                self.shared.counting.garbage.add(1);
                NextTurn::Close
            }
        }
    }

    /// Whether a whole request waits, held up only by lack of room for the answer.
    fn has_request(&self) -> bool {
        match self.role {
            Role::Guest(_) | Role::Control { busy: true } => false,
            _ => matches!(wire::decode(self.input.words()), Ok(Some(_))),
        }
    }

    /// Carries out verbs while there is room for answers.
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
            if frame.header.kind != FrameKind::Verbs {
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

    fn greet(&mut self) -> NextTurn {
        let Self { role: Role::Guest(handshake), shared, input, output, .. } = self else {
            unreachable!()
        };
        let refusal = loop {
            let frame = match wire::decode(input.words()) {
                Ok(Some(frame)) => frame,
                // A frame too long for the guest's buffer is not part of a handshake.
                Ok(None) if input.words().len() < GUEST_WORDS => return NextTurn::Keep,
                Ok(None) | Err(_) => break Refusal::Garbage,
            };
            let words = frame.words();
            let step = handshake.step(&frame, shared.security.key(), &mut output.words);
            input.take(words);
            match step {
                Ok(None) => {}
                // A guest must send nothing before the welcome.
                Ok(Some(_)) if !input.is_empty() => break Refusal::Garbage,
                Ok(Some(hello)) => return NextTurn::Asks(hello),
                Err(refusal) => break refusal,
            }
        };
        let counting = &shared.counting;
        if refusal == Refusal::Garbage { &counting.garbage } else { &counting.refused }.add(1);
        push_refusal(&mut output.words, refusal);
        NextTurn::Close
    }

    /// Answers control requests in sequence.
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

    /// Watches the socket for the next possible operation.
    fn watch_on(&mut self, key: usize, post: &Post) -> io::Result<()> {
        let write = !self.output.is_empty();
        // No reads from a peer that does not read its answers.
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
