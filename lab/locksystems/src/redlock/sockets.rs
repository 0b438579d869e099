//! RedLock on real servers: a lane's connections.
//!
//! # What it is
//! One connection of a lane to each server, on sockets of the lane's executor, so that commands do
//! not block the lane's tasks. Commands sent in the same turn go out together, and a server answers
//! in order.
//!
//! # Servers that are lost
//! A server counts as lost if it ends the connection, sends an answer that does not belong to
//! RedLock, or answers nothing for [`Times::patience`]. [`RedisReply::Lost`] answers the unanswered
//! and later commands to this server. The connection is tried again when the server [counts
//! again](Times::counts_again).
//!
//! # Servers that have restarted
//! A Redis that restarts may have lost its keys. RedLock's authors leave the server down for as
//! long as keys live; here the clients ensure the delay. A connection begins with a question for
//! the server's uptime, and no command goes out before the answer. Until the server has been up for
//! [long enough](Times::counts_when_up) it counts as lost, also to new clients. The exception is
//! the life in which the first clients of a [new prefix](super::Prefix::New) have found the server:
//! no earlier life lost a key of the prefix.
//!
//! Not covered, here as in the published algorithm, are keys lost without a restart: `FLUSHALL`, or
//! a fail-over behind one address to a server that has been up for long.

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

/// Room for replies: many replies of a few bytes.
const REPLIES_BYTES: usize = 16 << 10;
/// Longest reply: an error sentence.
const MAX_REPLY_BYTES: usize = 4 << 10;
/// Most unanswered commands of a connection. A lane has fewer, unless the server is far behind; the
/// server then counts as lost.
const MAX_UNANSWERED: usize = 16 << 10;
/// Extra wait for a server whose patience has ended: for answers that arrived while the thread
/// stood still.
const GRACE: Duration = Duration::from_millis(20);
/// Least time between two attempts to connect to a lost server.
const TRIES: Duration = Duration::from_millis(100);

/// A lane's connections to real servers.
pub struct SocketLink {
    executor: Handle,
    prefix: Arc<str>,
    replies: Replies,
    connections: Rc<[RedisConnection]>,
}

/// The connection to a server. A dedicated task reads and writes it.
struct RedisConnection {
    address: SocketAddr,
    traffic: RefCell<Traffic>,
    /// Reason of the loss, while the server is lost.
    lost: RefCell<Option<String>>,
    task: Cell<Option<TaskId>>,
    /// Time from which a restarted server counts.
    counts: Cell<Option<Nanos>>,
    /// Whether the lane no longer needs the connection.
    is_over: Cell<bool>,
}

/// Commands under way.
#[derive(Default)]
struct Traffic {
    /// Bytes not written yet.
    out: Vec<u8>,
    /// Commands held back until the server is known to count.
    held: Vec<u8>,
    /// Whether the server is known to count on this connection.
    counts: bool,
    /// Unanswered commands, in order.
    unanswered: VecDeque<Awaited>,
    /// Time of the last answer, or the time since which a command is unanswered.
    silent_since: Nanos,
    /// Time at which the patience ended.
    suspect_since: Option<Nanos>,
}

/// A command that the server has not answered yet.
#[derive(Clone, Copy)]
enum Awaited {
    /// The question for the server's uptime.
    Life,
    /// A command of a client.
    Command(CommandName, Verb),
}

impl SocketLink {
    /// Begins to connect a lane of `executor` to the servers. `loses` is called with a sentence
    /// when too many servers are lost for any lock.
    pub fn open(
        servers: &RedisServers,
        executor: &Handle,
        times: Times,
        replies: Replies,
        loses: impl Fn(String) + 'static,
    ) -> Box<dyn RedisLink> {
        let connection = |address: &SocketAddr| RedisConnection {
            address: *address,
            traffic: RefCell::default(),
            lost: RefCell::default(),
            task: Cell::default(),
            counts: Cell::default(),
            is_over: Cell::default(),
        };
        let connections: Rc<[RedisConnection]> = servers.addresses.iter().map(connection).collect();
        let loses: Rc<dyn Fn(String)> = Rc::new(loses);
        for (server, connection) in connections.iter().enumerate() {
            let task = ConnectionTask {
                executor: executor.clone(),
                times,
                replies: replies.clone(),
                servers: servers.clone(),
                connections: Rc::clone(&connections),
                server,
                loses: Rc::clone(&loses),
            };
            connection.task.set(Some(executor.spawn(async move { task.attend().await })));
        }
        let (executor, prefix) = (executor.clone(), Arc::clone(&servers.prefix));
        Box::new(Self { executor, prefix, replies, connections })
    }
}

impl RedisLink for SocketLink {
    fn servers(&self) -> usize {
        self.connections.len()
    }

    /// A connection loses nothing unless the whole connection is lost, and its loss is known.
    fn is_lossy(&self) -> bool {
        false
    }

    fn send(&self, server: usize, name: CommandName, command: Command) {
        let connection = &self.connections[server];
        if connection.lost.borrow().is_some() {
            self.replies.hear(server, name, RedisReply::Lost);
            return;
        }
        let traffic = &mut *connection.traffic.borrow_mut();
        let out = if traffic.counts { &mut traffic.out } else { &mut traffic.held };
        resp::push_command(out, &self.prefix, command);
        traffic.ask(Awaited::Command(name, Verb::of(command)), || self.executor.now());
        if let Some(task) = connection.task.get() {
            self.executor.wake(task);
        }
    }
}

impl Drop for SocketLink {
    fn drop(&mut self) {
        for connection in &*self.connections {
            connection.is_over.set(true);
            if let Some(task) = connection.task.get() {
                self.executor.wake(task);
            }
        }
    }
}

impl Traffic {
    /// Records an outgoing command.
    fn ask(&mut self, asked: Awaited, now: impl FnOnce() -> Nanos) {
        if self.unanswered.is_empty() {
            self.silent_since = now();
            self.suspect_since = None;
        }
        self.unanswered.push_back(asked);
    }
}

/// The task of a connection.
struct ConnectionTask {
    executor: Handle,
    times: Times,
    replies: Replies,
    servers: RedisServers,
    connections: Rc<[RedisConnection]>,
    server: usize,
    loses: Rc<dyn Fn(String)>,
}

impl ConnectionTask {
    fn connection(&self) -> &RedisConnection {
        &self.connections[self.server]
    }

    /// Keeps a connection to the server for as long as the lane needs it.
    async fn attend(&self) {
        while !self.connection().is_over.get() {
            let Some(why) = self.serve().await else { return };
            self.lose(why);
            let now = self.executor.now();
            let counts = self.connection().counts.take();
            let again = counts.unwrap_or_else(|| self.times.counts_again(now));
            let again = again.max(now.after(TRIES));
            while self.executor.now() < again && !self.connection().is_over.get() {
                let look = self.executor.now().after(TRIES).min(again);
                self.executor.sleep_until(look).await;
            }
        }
    }

    /// Connects, and carries commands and replies until the server is lost. Returns the reason, or
    /// `None` if the lane no longer needs the connection.
    async fn serve(&self) -> Option<String> {
        {
            let traffic = &mut *self.connection().traffic.borrow_mut();
            traffic.counts = false;
            resp::push_info(&mut traffic.out);
            // Commands wait for the answer to this question.
            traffic.unanswered.push_front(Awaited::Life);
            traffic.silent_since = self.executor.now();
            traffic.suspect_since = None;
        }
        let mut socket = match self.executor.connect(self.connection().address) {
            Ok(socket) => socket,
            Err(error) => return Some(error.to_string()),
        };
        let (mut came, mut armed) = (Vec::with_capacity(REPLIES_BYTES), None);
        std::future::poll_fn(|_| {
            if self.connection().is_over.get() {
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

    /// Writes as much as the socket takes.
    fn write(&self, socket: &mut Socket) -> Result<(), String> {
        let traffic = &mut *self.connection().traffic.borrow_mut();
        while !traffic.out.is_empty() {
            match socket.poll_write(&traffic.out) {
                Poll::Ready(Ok(count)) => drop(traffic.out.drain(..count)),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Reads arrived replies.
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

    /// Delivers complete replies.
    fn take(&self, came: &mut Vec<u8>) -> Result<(), String> {
        let mut taken = 0;
        while let Some((reply, length)) = resp::take_reply(&came[taken..])? {
            taken += length;
            let asked = {
                let traffic = &mut *self.connection().traffic.borrow_mut();
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

    /// Lets the server count, unless it may have lost keys before its present life.
    fn begin(&self, life: &ServerLife) -> Result<(), String> {
        let (connection, now) = (self.connection(), self.executor.now());
        let counts = self.times.counts_when_up(now, life.uptime);
        if now < counts && !self.servers.has_all_keys(self.server, life) {
            connection.counts.set(Some(counts));
            let secs = life.uptime.as_secs();
            return Err(format!("it has been up for {secs} s, and may have lost keys before"));
        }
        connection.lost.take();
        let traffic = &mut *connection.traffic.borrow_mut();
        traffic.counts = true;
        let held = std::mem::take(&mut traffic.held);
        traffic.out.extend(held);
        // The commands are written in the next turn.
        self.executor.wake(self.executor.current());
        Ok(())
    }

    /// Checks whether the server has been silent for too long. `armed` is the time of the timer for
    /// the next check.
    fn watch(&self, armed: &mut Option<Nanos>) -> Result<(), String> {
        let traffic = &mut *self.connection().traffic.borrow_mut();
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
        // A timer that fires too early checks again.
        if armed.is_none_or(|at| at <= now || at > due) {
            *armed = Some(due);
            self.executor.wake_at(due, self.executor.current());
        }
        Ok(())
    }

    /// Answers all commands under way with [`RedisReply::Lost`], and later commands likewise.
    fn lose(&self, why: String) {
        let connection = self.connection();
        self.servers.note_lost(self.server);
        connection.lost.replace(Some(why));
        let unanswered = {
            let traffic = &mut *connection.traffic.borrow_mut();
            traffic.out.clear();
            traffic.held.clear();
            std::mem::take(&mut traffic.unanswered)
        };
        for asked in unanswered {
            if let Awaited::Command(name, _) = asked {
                self.replies.hear(self.server, name, RedisReply::Lost);
            }
        }
        let lost = |connection: &RedisConnection| {
            let why = connection.lost.borrow();
            why.as_ref().map(|why| format!("{} is lost ({why})", connection.address))
        };
        let lost: Vec<_> = self.connections.iter().filter_map(lost).collect();
        if self.connections.len() - lost.len() < majority(self.connections.len()) {
            let lost = lost.join(", ");
            (self.loses)(format!("no majority of redis is left, so no lock is held: {lost}"));
        }
    }
}
