//! A client's connection to one server: sends requests and matches each answer to its request.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use slab::Slab;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};

use crate::config::Config;
use crate::error::ConnectError;
use lotus_protocol::link::{self, Bounds, MinimumProgress, Outbox, Receiver};
use lotus_protocol::messages::{self, ANSWER_BYTES, Directory, Garbage, Op};
use lotus_protocol::stream::{HandshakeError, Stream};

/// Request number for messages whose answer is ignored.
const UNASKED: u32 = u32::MAX;
/// Interval of the check for requests past their deadline. Requests are many and time-outs rare, so
/// one timer serves a whole connection.
const LOOK: Duration = Duration::from_millis(100);

/// A connection. It lives as long as its loop runs, until either side closes the connection.
#[derive(Debug)]
pub(crate) struct Connection {
    outbox: Outbox,
    /// Waiters by request number; `None` once the connection is lost. A number is free again when
    /// its answer has arrived, wanted or not.
    waiting: Mutex<Option<Slab<Waiter>>>,
    /// One permit per request that the server allows in flight.
    permits: Semaphore,
    /// Longest request that the server takes, in bytes.
    request_bytes: usize,
}

/// A caller that waits for an answer.
#[derive(Debug)]
struct Waiter {
    /// `None` once the deadline has passed.
    sender: Option<oneshot::Sender<Vec<u8>>>,
    until: Nanos,
}

/// Reason for a missing answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unanswered {
    /// The connection was lost, or time ran out, before the request was queued.
    NotSent,
    /// The request is longer than servers take, with this number of bytes, and was not sent: the
    /// server would end the connection, and with it all other requests.
    TooLong(usize),
    /// The connection was lost after the request was queued.
    Lost,
    /// The deadline passed after the request was queued.
    Late,
}

impl Connection {
    /// Connects and takes the directory from the server's greeting.
    pub(crate) async fn open(
        address: &str,
        config: &Config,
        env: &Env,
    ) -> Result<(Arc<Self>, Directory), ConnectError> {
        let opening = Stream::open(address, &config.security);
        let opened = tokio::time::timeout(config.connect_timeout, opening);
        let (mut stream, mut incoming, directory) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(HandshakeError::Refused(refusal))) => {
                return Err(ConnectError::Refused { address: address.to_owned(), refusal });
            }
            // TLS reports errors as `InvalidData`; the handshake inside TLS does not.
            Ok(Err(HandshakeError::Broken(error)))
                if error.kind() == io::ErrorKind::InvalidData =>
            {
                return Err(ConnectError::Untrusted { address: address.to_owned(), error });
            }
            Ok(Err(HandshakeError::Broken(error))) => {
                return Err(ConnectError::Unreachable { address: address.to_owned(), error });
            }
            Err(_) => {
                let error = io::ErrorKind::TimedOut.into();
                return Err(ConnectError::Unreachable { address: address.to_owned(), error });
            }
        };
        let connection = Arc::new(Self {
            outbox: Outbox::default(),
            waiting: Mutex::new(Some(Slab::new())),
            permits: Semaphore::new(directory.in_flight.max(1) as usize),
            request_bytes: config.request_bytes,
        });
        let patience = MinimumProgress::of(config.write_patience);
        let bounds = Bounds { frame_bytes: ANSWER_BYTES, patience };
        tokio::spawn(Arc::clone(&connection).give_up(env.clone()));
        let served = Arc::clone(&connection);
        tokio::spawn(async move {
            let guard = LoseOnDrop(served);
            let mut answers = Answers(&guard.0);
            let outbox = &guard.0.outbox;
            // The reason is dropped: waiting callers learn only that the connection is lost.
            link::run(&mut stream, outbox, &mut incoming, &mut answers, bounds).await;
        });
        Ok((connection, *directory))
    }

    /// Sends a request and returns its answer, a message to be decoded. Waits until `until`, and at
    /// most [`LOOK`] longer. `op` builds the request at the time of sending, possibly after a wait
    /// for a permit, so that the time limit in the request is accurate.
    pub(crate) async fn ask<'o>(
        &self,
        op: impl FnOnce() -> Op<'o>,
        env: &Env,
        until: Nanos,
    ) -> Result<Vec<u8>, Unanswered> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(TryAcquireError::Closed) => return Err(Unanswered::NotSent),
            Err(TryAcquireError::NoPermits) => {
                let patience = until.since(env.now());
                let acquired = tokio::time::timeout(patience, self.permits.acquire()).await;
                acquired.ok().and_then(Result::ok).ok_or(Unanswered::NotSent)?
            }
        };
        let op = op();
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { sender: Some(sender), until };
        let number = match &mut *self.lock() {
            Some(waiting) => waiting.insert(waiter) as u32,
            None => return Err(Unanswered::NotSent),
        };
        if let Some(bytes) = self.send(number, &op)? {
            // No answer will come.
            self.lock().as_mut().and_then(|waiting| waiting.try_remove(number as usize));
            return Err(Unanswered::TooLong(bytes));
        }
        // `Answers::receive` returns the permit with the answer.
        permit.forget();
        let mut begun = Begun { connection: self, number: begun_by(&op) };
        let answer = answer.await;
        if answer.is_ok() {
            // From now on the caller ends the transaction or scan.
            begun.number = None;
        }
        let lost = |_| if env.now() < until { Unanswered::Lost } else { Unanswered::Late };
        answer.map_err(lost)
    }

    /// Queues a request; returns its size instead if the request is longer than the server takes.
    fn send(&self, number: u32, op: &Op<'_>) -> Result<Option<usize>, Unanswered> {
        let mut too_long = None;
        let pushed = self.outbox.push(|out| {
            let before = out.len();
            messages::send(out, number, op);
            let bytes = out.len() - before;
            if bytes > self.request_bytes {
                out.truncate(before);
                too_long = Some(bytes);
            }
        });
        pushed.map(|()| too_long).map_err(|_| Unanswered::NotSent)
    }

    /// Sends a request and ignores its answer.
    pub(crate) fn tell(&self, op: &Op<'_>) {
        // If the connection is lost, the server notices without this message.
        let _ = self.outbox.push(|out| messages::send(out, UNASKED, op));
    }

    /// Writes the queued messages, then closes the connection.
    pub(crate) fn close(&self) {
        self.outbox.close();
    }

    /// Whether the connection is lost, so that every request fails.
    pub(crate) fn is_lost(&self) -> bool {
        self.permits.is_closed()
    }

    /// Fails requests past their deadline, until the connection is lost.
    async fn give_up(self: Arc<Self>, env: Env) {
        while !self.is_lost() {
            tokio::time::sleep(LOOK).await;
            let now = env.now();
            let mut waiting = self.lock();
            let all = waiting.iter_mut().flat_map(Slab::iter_mut);
            all.filter(|(_, waiter)| waiter.until <= now).for_each(|(_, late)| late.sender = None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Slab<Waiter>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of the transaction or scan that a request begins.
const fn begun_by(op: &Op<'_>) -> Option<u32> {
    match op {
        Op::Step(step) if step.begin.is_some() => Some(step.txn),
        Op::Scan(scan) if scan.begin => Some(scan.scan),
        _ => None,
    }
}

/// Guard of a request that begins a transaction or a scan. If the caller goes away before the
/// answer, no other code knows of the transaction or scan: the server would keep its locks, or its
/// snapshot, until the limit for idle clients.
struct Begun<'c> {
    connection: &'c Connection,
    number: Option<u32>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(txn) = self.number {
            self.connection.tell(&Op::Abandon { txn });
        }
    }
}

/// Hands every answer to its waiter.
struct Answers<'c>(&'c Connection);

impl Receiver for Answers<'_> {
    fn receive(&mut self, frame: &[u8]) -> Result<(), Garbage> {
        let (number, message) = messages::split(frame)?;
        if number == UNASKED {
            return Ok(());
        }
        let waiter = self.0.lock().as_mut().and_then(|all| all.try_remove(number as usize));
        self.0.permits.add_permits(1);
        // The caller may have stopped waiting.
        if let Some(sender) = waiter.ok_or(Garbage)?.sender {
            let _ = sender.send(message.to_vec());
        }
        Ok(())
    }
}

/// Fails all waiting requests when the connection's loop ends, for any reason.
struct LoseOnDrop(Arc<Connection>);

impl Drop for LoseOnDrop {
    fn drop(&mut self) {
        self.0.permits.close();
        self.0.outbox.close();
        drop(self.0.lock().take());
    }
}
