//! RedLock on real servers: a lane's connections to them.
//!
//! # What it is
//! One connection of a lane to each server, on sockets of the lane's executor, so that no command
//! keeps other tasks of the lane waiting. Commands that tasks send in one turn go out together, and
//! a server answers them in their order.
//!
//! # Servers that are lost
//! A server is lost that ends the connection, answers what no server of RedLock answers, or answers
//! nothing for [`Times::patience`]. All its commands without an answer, and those that come later,
//! are answered by [`RedisReply::Lost`]. A connection is tried again when the server
//! [counts again](Times::counts_again).
//!
//! # Servers that have restarted
//! A Redis that restarts may have lost its keys. RedLock's authors leave it down for as long as
//! keys live; here clients see to that. Each connection begins with the question for how long the
//! server has been up, and no command goes out before the answer. Until that is [long
//! enough](Times::counts_when_up) the server is lost, also to clients that are new to it. The
//! exception is the life in which the first clients of a [new prefix](super::Prefix::New) have
//! found it: no key of theirs was lost before.
//!
//! Not covered, here as in the published algorithm, are keys that a server has lost without a
//! restart: `FLUSHALL`, or a fail-over behind one address to a server that has been up for long.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Handle, Socket, TaskId};

use super::client::{RedisLink, Replies};
use super::redis::{Command, CommandName};
use super::remote::RedisServers;
use super::resp::{self, ServerLife, Verb};
use super::rules::{RedisReply, Times, majority};

/// Room for replies: many of them, each of a few bytes.
const REPLIES_BYTES: usize = 16 << 10;
/// Longest reply; a sentence of an error.
const MAX_REPLY_BYTES: usize = 4 << 10;
/// Most commands of a connection that are not answered. A lane has fewer, unless the server is far
/// behind; then it counts as lost.
const MAX_UNANSWERED: usize = 16 << 10;
/// Time for which a silent server is waited for once more when its time is over: for answers that
/// have come while this thread stood still.
const GRACE: Duration = Duration::from_millis(20);
/// Least time between two tries to connect to a server that was lost.
const TRIES: Duration = Duration::from_millis(100);

/// A lane's connections to real servers.
pub struct SocketLink {
    executor: Handle,
    prefix: Arc<str>,
    replies: Replies,
    ways: Rc<[Way]>,
}

/// The way to one server. A task of its own reads and writes the connection.
struct Way {
    address: SocketAddr,
    traffic: RefCell<Traffic>,
    /// Reason why the server is lost, while it is.
    lost: RefCell<Option<String>>,
    task: Cell<Option<TaskId>>,
    /// Time from which the server counts, if it is lost because it has restarted.
    counts: Cell<Option<Nanos>>,
    /// Whether the lane needs it no more.
    is_over: Cell<bool>,
}

/// Commands on their way.
#[derive(Default)]
struct Traffic {
    /// Bytes that are not written yet.
    out: Vec<u8>,
    /// Commands that are held back until it is known that the server counts.
    held: Vec<u8>,
    /// Whether that is known of this connection.
    counts: bool,
    /// Commands without an answer, in their order.
    unanswered: VecDeque<Awaited>,
    /// Time of the last answer, or since which there is a command without one.
    silent_since: Nanos,
    /// Time at which the silence was found too long.
    suspect_since: Option<Nanos>,
}

/// What a server has not answered yet.
#[derive(Clone, Copy)]
enum Awaited {
    /// The question for how long it has been up.
    Life,
    /// A command.
    Command(CommandName, Verb),
}

impl SocketLink {
    /// Begins to connect a lane of `executor` to the servers. `loses` is told, in a sentence, when
    /// so many of them are lost that no lock can be had.
    pub fn open(
        servers: &RedisServers,
        executor: &Handle,
        times: Times,
        replies: Replies,
        loses: impl Fn(String) + 'static,
    ) -> Box<dyn RedisLink> {
        let way = |address: &SocketAddr| Way {
            address: *address,
            traffic: RefCell::default(),
            lost: RefCell::default(),
            task: Cell::default(),
            counts: Cell::default(),
            is_over: Cell::default(),
        };
        let ways: Rc<[Way]> = servers.addresses.iter().map(way).collect();
        let loses: Rc<dyn Fn(String)> = Rc::new(loses);
        for (server, way) in ways.iter().enumerate() {
            let attendant = Attendant {
                executor: executor.clone(),
                times,
                replies: replies.clone(),
                servers: servers.clone(),
                ways: Rc::clone(&ways),
                server,
                loses: Rc::clone(&loses),
            };
            way.task.set(Some(executor.spawn(async move { attendant.attend().await })));
        }
        let (executor, prefix) = (executor.clone(), Arc::clone(&servers.prefix));
        Box::new(Self { executor, prefix, replies, ways })
    }
}

impl RedisLink for SocketLink {
    fn servers(&self) -> usize {
        self.ways.len()
    }

    /// A connection loses nothing unless all of it is lost, and that is known.
    fn is_lossy(&self) -> bool {
        false
    }

    fn send(&self, server: usize, name: CommandName, command: Command) {
        let way = &self.ways[server];
        if way.lost.borrow().is_some() {
            self.replies.hear(server, name, RedisReply::Lost);
            return;
        }
        let traffic = &mut *way.traffic.borrow_mut();
        let out = if traffic.counts { &mut traffic.out } else { &mut traffic.held };
        resp::push_command(out, &self.prefix, command);
        traffic.ask(Awaited::Command(name, Verb::of(command)), || self.executor.now());
        if let Some(task) = way.task.get() {
            self.executor.wake(task);
        }
    }
}

impl Drop for SocketLink {
    fn drop(&mut self) {
        for way in &*self.ways {
            way.is_over.set(true);
            if let Some(task) = way.task.get() {
                self.executor.wake(task);
            }
        }
    }
}

impl Traffic {
    /// Notes a command that is on its way.
    fn ask(&mut self, asked: Awaited, now: impl FnOnce() -> Nanos) {
        if self.unanswered.is_empty() {
            self.silent_since = now();
            self.suspect_since = None;
        }
        self.unanswered.push_back(asked);
    }
}

/// The task of a way.
struct Attendant {
    executor: Handle,
    times: Times,
    replies: Replies,
    servers: RedisServers,
    ways: Rc<[Way]>,
    server: usize,
    loses: Rc<dyn Fn(String)>,
}

impl Attendant {
    fn way(&self) -> &Way {
        &self.ways[self.server]
    }

    /// Keeps a connection to the server for as long as the lane needs it.
    async fn attend(&self) {
        while !self.way().is_over.get() {
            let Some(why) = self.serve().await else { return };
            self.lose(why);
            let now = self.executor.now();
            let counts = self.way().counts.take();
            let again = counts.unwrap_or_else(|| self.times.counts_again(now));
            let again = again.max(now.after(TRIES));
            while self.executor.now() < again && !self.way().is_over.get() {
                let look = self.executor.now().after(TRIES).min(again);
                self.executor.sleep_until(look).await;
            }
        }
    }

    /// Connects, and carries commands and replies until the server is lost: for which reason, or
    /// `None` if the lane needs it no more.
    async fn serve(&self) -> Option<String> {
        {
            let traffic = &mut *self.way().traffic.borrow_mut();
            traffic.counts = false;
            resp::push_info(&mut traffic.out);
            // Commands wait until it is answered.
            traffic.unanswered.push_front(Awaited::Life);
            traffic.silent_since = self.executor.now();
            traffic.suspect_since = None;
        }
        let mut socket = match self.executor.connect(self.way().address) {
            Ok(socket) => socket,
            Err(error) => return Some(error.to_string()),
        };
        let (mut came, mut armed) = (Vec::with_capacity(REPLIES_BYTES), None);
        std::future::poll_fn(|_| {
            if self.way().is_over.get() {
                return Poll::Ready(None);
            }
            let turned = self.write(&mut socket).and_then(|()| self.read(&mut socket, &mut came));
            match turned.and_then(|()| self.watch(&mut armed)) {
                Ok(()) => Poll::Pending,
                Err(why) => Poll::Ready(Some(why)),
            }
        })
        .await
    }

    /// Writes what the socket takes.
    fn write(&self, socket: &mut Socket) -> Result<(), String> {
        let traffic = &mut *self.way().traffic.borrow_mut();
        while !traffic.out.is_empty() {
            match socket.poll_write(&traffic.out) {
                Poll::Ready(Ok(count)) => drop(traffic.out.drain(..count)),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Takes in the replies that have come.
    fn read(&self, socket: &mut Socket, came: &mut Vec<u8>) -> Result<(), String> {
        loop {
            match socket.poll_read(came) {
                Poll::Ready(Ok(0)) => return Err("it has ended the connection".to_owned()),
                Poll::Ready(Ok(_)) => self.take(came)?,
                Poll::Ready(Err(error)) => return Err(error.to_string()),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Hands in all replies that are complete.
    fn take(&self, came: &mut Vec<u8>) -> Result<(), String> {
        let mut taken = 0;
        while let Some((reply, length)) = resp::take_reply(&came[taken..])? {
            taken += length;
            let asked = {
                let traffic = &mut *self.way().traffic.borrow_mut();
                traffic.silent_since = self.executor.recent();
                traffic.suspect_since = None;
                traffic.unanswered.pop_front()
            };
            match asked {
                Some(Awaited::Command(name, verb)) => {
                    let understood = resp::understand(verb, &reply);
                    let reply = understood.as_ref().map_or(RedisReply::Lost, |reply| *reply);
                    self.replies.hear(self.server, name, reply);
                    understood?;
                }
                Some(Awaited::Life) => self.begin(&resp::life(&reply)?)?,
                None => return Err("it answers what nobody has asked".to_owned()),
            }
        }
        came.drain(..taken);
        match came.len() > MAX_REPLY_BYTES {
            true => Err("its answer has no end".to_owned()),
            false => Ok(()),
        }
    }

    /// Lets the server count, unless it may have lost keys before this life of it.
    fn begin(&self, life: &ServerLife) -> Result<(), String> {
        let (way, now) = (self.way(), self.executor.now());
        let counts = self.times.counts_when_up(now, life.uptime);
        if now < counts && !self.servers.has_all_keys(self.server, life) {
            way.counts.set(Some(counts));
            let secs = life.uptime.as_secs();
            return Err(format!("it has been up for {secs} s, and may have lost keys before"));
        }
        way.lost.take();
        let traffic = &mut *way.traffic.borrow_mut();
        traffic.counts = true;
        let held = std::mem::take(&mut traffic.held);
        traffic.out.extend(held);
        // They are written in the next turn.
        self.executor.wake(self.executor.current());
        Ok(())
    }

    /// Finds out whether the server is silent for too long. `armed` is the time of the timer that
    /// looks again.
    fn watch(&self, armed: &mut Option<Nanos>) -> Result<(), String> {
        let traffic = &mut *self.way().traffic.borrow_mut();
        if traffic.unanswered.is_empty() {
            return Ok(());
        }
        if traffic.unanswered.len() > MAX_UNANSWERED {
            return Err(format!("{} commands have no answer", traffic.unanswered.len()));
        }
        let now = self.executor.now();
        let mut due = match traffic.suspect_since {
            None => traffic.silent_since.after(self.times.patience),
            Some(since) => since.after(GRACE),
        };
        if now >= due {
            if traffic.suspect_since.is_some() {
                return Err(format!("it has been silent for {:?}", self.times.patience));
            }
            traffic.suspect_since = Some(now);
            due = now.after(GRACE);
        }
        // A timer that is too early looks again.
        if armed.is_none_or(|at| at <= now || at > due) {
            *armed = Some(due);
            self.executor.wake_at(due, self.executor.current());
        }
        Ok(())
    }

    /// Answers all commands on their way, and those to come, in the server's stead.
    fn lose(&self, why: String) {
        let way = self.way();
        self.servers.note_lost(self.server);
        way.lost.replace(Some(why));
        let unanswered = {
            let traffic = &mut *way.traffic.borrow_mut();
            traffic.out.clear();
            traffic.held.clear();
            std::mem::take(&mut traffic.unanswered)
        };
        for asked in unanswered {
            if let Awaited::Command(name, _) = asked {
                self.replies.hear(self.server, name, RedisReply::Lost);
            }
        }
        let lost = |way: &Way| {
            let why = way.lost.borrow();
            why.as_ref().map(|why| format!("{} is lost ({why})", way.address))
        };
        let lost: Vec<_> = self.ways.iter().filter_map(lost).collect();
        if self.ways.len() - lost.len() < majority(self.ways.len()) {
            let lost = lost.join(", ");
            (self.loses)(format!("no majority of redis is left, so no lock is held: {lost}"));
        }
    }
}
