//! A client's connection, from handshake to end.
//!
//! The server's thread carries out the handshake. Then the connection moves to a coordinator; the
//! coordinator's thread reads the connection, runs the transactions and writes the answers: a
//! request meets no second thread, unless all workers of the coordinator are busy. Such requests go
//! to the coordinators in turn. A connection within TLS stays on the server's thread: encryption
//! and decryption would hold up a coordinator's transactions.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lotus::TableId;
use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Handle, Socket};
use lotus_protocol::frame::Incoming;
use lotus_protocol::handshake::{Greeting, HANDSHAKE_BYTES, Refusal, ServerHandshake, greet};
use lotus_protocol::link::{self, Bounds, End, MinimumProgress, Receiver, Wire};
use lotus_protocol::messages::{
    self, Bytes, Call, Failure, Garbage, Op, Scan, ScarceResource, Step, decode,
};
use lotus_protocol::stream::Stream;
use lotus_security::{Key, NO_TLS, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::calls;
use crate::interactive::{self, Open};
use crate::node::NodeServer;
use crate::numbered::Numbered;
use crate::retries::{First, Retries};
use crate::scans;
use crate::table_admin::TableChange;
use crate::ticket::{Peer, Ticket};
use crate::worker::{Identity, Request, Work, WorkerTask};

/// Most turns of a busy coordinator for which answers are gathered before they leave together:
/// about the time to serve two dozen requests.
const GATHERING_TURNS: u32 = 32;

/// Reason for not admitting a client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Turned {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the handshake took too long")]
    Slow,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
}

impl Turned {
    /// Whether this side refused the client.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            // An error that TLS reports about a certificate.
            Self::Broken(error) => error.kind() == io::ErrorKind::InvalidData,
            Self::Slow => false,
        }
    }

    /// Returns the kind of refusal; the log has at most one line per kind and minute.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Refused(Refusal::Garbage) => "garbage",
            Self::Refused(Refusal::Version { .. } | Refusal::Versions { .. }) => "version",
            Self::Refused(Refusal::Full) => "full",
            Self::Refused(Refusal::Leaving) => "leaving",
            _ => "trust",
        }
    }
}

/// Admits a client, or tells the client why not; `room` returns the reason if there is no place.
pub(crate) async fn admit(
    node: &NodeServer,
    stream: &mut Stream,
    origin: Origin,
    key: Option<&Key>,
    room: impl Fn() -> Result<(), Refusal>,
) -> Result<Incoming, Turned> {
    let mut incoming = Incoming::new(HANDSHAKE_BYTES);
    let shaken = tokio::time::timeout(
        node.limits.greeting,
        shake_hands(node, stream, &mut incoming, origin, key, room),
    );
    match shaken.await {
        Ok(Ok(())) => Ok(incoming),
        Ok(Err(Turned::Refused(refusal))) => {
            let mut out = Vec::new();
            greet(&mut out, &Greeting::Refused(refusal.as_told()));
            // The socket's buffer has room for so short a message; otherwise the client is not
            // told.
            let _ = stream.try_write(&out);
            Err(refusal.into())
        }
        Ok(Err(Turned::Broken(error))) if error.kind() == NO_TLS => {
            let mut out = Vec::new();
            greet(&mut out, &Greeting::Refused(Refusal::Security));
            let _ = stream.try_write_plainly(&out);
            Err(Refusal::Security.into())
        }
        Ok(Err(turned)) => Err(turned),
        Err(_) => Err(Turned::Slow),
    }
}

async fn shake_hands(
    node: &NodeServer,
    stream: &mut Stream,
    incoming: &mut Incoming,
    origin: Origin,
    key: Option<&Key>,
    room: impl Fn() -> Result<(), Refusal>,
) -> Result<(), Turned> {
    let mut handshake = ServerHandshake::default();
    let mut out = Vec::new();
    loop {
        // An oversized frame is no hello of this protocol.
        if let Some(frame) = incoming.take_frame().map_err(|_| Refusal::Garbage)? {
            let admitted = handshake.step(frame, key, &mut out)?;
            if admitted {
                room()?;
                greet(&mut out, &Greeting::Welcome(node.directory(origin)));
            }
            stream.write_all(&out).await?;
            out.clear();
            if admitted {
                return Ok(());
            }
        } else if stream.read_buf(incoming.space(HANDSHAKE_BYTES)).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// Origin of a client. The origin decides the compute nodes' addresses in the directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Network(SocketAddr),
    /// The door for clients of this host.
    ThisHost,
}

impl Origin {
    /// Returns the source under which guests are counted.
    pub(crate) fn source(self) -> Source {
        match self {
            Self::Network(address) => Source::from(address.ip()),
            Self::ThisHost => Source::ThisHost,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::ThisHost => f.write_str("this host"),
        }
    }
}

/// An admitted client, on the way to the serving coordinator.
pub(crate) struct AdmittedClient {
    pub(crate) stream: OwnedFd,
    /// Bytes that the client has sent already.
    pub(crate) incoming: Incoming,
    pub(crate) registration: ClientRegistration,
}

/// A client's entry in the list of connected clients. Dropping the entry closes the connection.
pub(crate) struct ClientRegistration {
    node: Arc<NodeServer>,
    peer: Arc<Peer>,
    number: u64,
    client: Origin,
}

impl ClientRegistration {
    /// Registers a client; `number` is unique to the connection, `home` is the client's
    /// coordinator.
    pub(crate) fn enter(node: &Arc<NodeServer>, number: u64, client: Origin, home: usize) -> Self {
        let peer = Arc::new(Peer::new(&node.budgets[home], node.limits.held_bytes));
        node.enter(number, &peer);
        add(&node.connection_counters.admitted);
        Self { node: Arc::clone(node), peer, number, client }
    }
}

impl Drop for ClientRegistration {
    fn drop(&mut self) {
        self.peer.outbox.close();
        self.node.leave(self.number);
    }
}

/// Serves a client to its end, as a task of coordinator `home`.
pub(crate) async fn attend(newcomer: AdmittedClient, home: usize, executor: Handle) {
    let AdmittedClient { stream, incoming, registration } = newcomer;
    match executor.adopt(stream) {
        Ok(socket) => {
            serve(&mut CoordinatorWire { socket, waited: 0 }, incoming, &registration, home).await
        }
        Err(error) => {
            let ClientRegistration { node, client, .. } = &registration;
            tracing::warn!(node = node.index, %client, %error, "cannot serve a client");
        }
    }
}

/// Serves a client to its end; its requests go to coordinator `home` as long as `home` has idle
/// workers.
pub(crate) async fn serve(
    wire: &mut impl Wire,
    mut incoming: Incoming,
    ClientRegistration { node, peer, client, .. }: &ClientRegistration,
    home: usize,
) {
    let bounds = Bounds {
        frame_bytes: node.limits.request_bytes,
        patience: MinimumProgress {
            interval: node.limits.write_patience,
            bytes: node.limits.progress_bytes,
        },
    };
    let queued = (0..node.queues.len()).map(|_| Vec::new()).collect();
    let mut dispatcher = RequestDispatcher {
        node,
        peer,
        home,
        queued,
        arrived: None,
        idle_here: None,
        next: home,
        origin: *client,
        open: Numbered::new(),
        retries: Arc::default(),
    };
    // Dropping the dispatcher ends the open transactions.
    let end = link::run(wire, &peer.outbox, &mut incoming, &mut dispatcher, bounds).await;
    note_end(node, &end, *client);
}

/// A connection served by a coordinator's task.
struct CoordinatorWire {
    socket: Socket,
    /// Turns for which answers have been gathered.
    waited: u32,
}

impl Wire for CoordinatorWire {
    type Timer = Pin<Box<dyn Future<Output = ()>>>;

    fn poll_read(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.socket.poll_read(into)
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_write(bytes)
    }

    /// Waits while the coordinator has other work, for [`GATHERING_TURNS`] at most.
    fn poll_gathered(&mut self, _: &mut Context<'_>) -> Poll<()> {
        let executor = self.socket.executor();
        if self.waited >= GATHERING_TURNS || !executor.has_company() {
            self.waited = 0;
            return Poll::Ready(());
        }
        self.waited += 1;
        executor.wake(executor.current());
        Poll::Pending
    }

    fn timer(&self, time: Duration) -> Self::Timer {
        Box::pin(self.socket.executor().sleep(time))
    }
}

/// Takes in a client's requests and hands them on.
struct RequestDispatcher<'n> {
    node: &'n Arc<NodeServer>,
    peer: &'n Arc<Peer>,
    /// The coordinator of this thread; within TLS, the coordinator that gets requests first.
    home: usize,
    /// Requests received together, by coordinator.
    queued: Vec<Vec<WorkerTask>>,
    /// Arrival of the first of these requests.
    arrived: Option<Nanos>,
    /// Idle workers of `home` at the arrival of the first request, less the requests given to them
    /// since.
    idle_here: Option<usize>,
    /// The coordinator that got the last request in turn.
    next: usize,
    origin: Origin,
    /// Interactive transactions and scans, by the client's numbers.
    open: Numbered<Open>,
    /// Refused locks of the client's transactions, for their next attempts.
    retries: Arc<Retries>,
}

impl Receiver for RequestDispatcher<'_> {
    fn receive(&mut self, frame: &[u8]) -> Result<(), Garbage> {
        let (number, message) = messages::split(frame)?;
        let op = decode(message)?;
        if let Op::Abandon { txn } = op {
            // The client expects no answer.
            self.open.end(txn);
            return Ok(());
        }
        let ticket = Ticket::new(self.peer, number, frame.len());
        match op {
            Op::Call(call) => self.call(ticket, &call),
            Op::Outcome { id, timeout_us } => match self.node.check(None) {
                Ok(()) => self.queue(ticket, Work::Outcome(id), timeout_us),
                Err(failure) => ticket.fail(failure),
            },
            Op::Step(step) => self.step(ticket, &step, message),
            Op::Directory => {
                let (thread, client) = (self.choose_coordinator(), self.origin);
                self.queued[thread].push(WorkerTask::Tell { ticket, client });
            }
            Op::CreateTable { table, timeout_us } => {
                self.ask_table_admin(ticket, TableChange::Create(table.spec()), timeout_us);
            }
            Op::DropTable { name, table, timeout_us } => {
                let change = TableChange::Drop { name: name.to_owned(), table: table.map(TableId) };
                self.ask_table_admin(ticket, change, timeout_us);
            }
            Op::Scan(scan) => self.scan(ticket, &scan, message),
            Op::Abandon { .. } => {}
        }
        Ok(())
    }

    fn received(&mut self) {
        for (queue, requests) in self.node.queues.iter().zip(&mut self.queued) {
            if !requests.is_empty() {
                queue.push_all(requests);
            }
        }
        (self.arrived, self.idle_here) = (None, None);
    }

    /// True while the requests in flight outnumber the waiting answers, so half of the answers
    /// travel together.
    fn has_more_coming(&self, waiting: usize) -> bool {
        self.peer.in_flight() > waiting
    }

    fn is_ready(&self) -> bool {
        self.peer.in_flight() < self.node.limits.in_flight && self.peer.may_ask()
    }
}

impl RequestDispatcher<'_> {
    fn call(&mut self, ticket: Ticket, call: &Call<'_>) {
        if let Err(failure) = self.node.check(call.shard) {
            return ticket.fail(failure);
        }
        let Some(stored) = self.node.registry.find(call.procedure) else {
            return ticket.fail(Failure::UnknownProcedure);
        };
        let Bytes(arguments) = call.arguments;
        // A read-only call needs no record.
        let id = call.id.filter(|_| stored.kind != messages::Kind::ReadOnly);
        let identity = id
            .map(|id| Identity { id, fingerprint: calls::fingerprint(call.procedure, arguments) });
        let stored = Arc::clone(stored);
        let work = Work::Call { stored, arguments: arguments.into(), identity };
        self.queue(ticket, work, call.timeout_us);
    }

    fn ask_table_admin(&mut self, ticket: Ticket, change: TableChange, timeout_us: u32) {
        let table_admin =
            self.node.table_admin.as_ref().filter(|table_admin| table_admin.may(&change));
        let Some(table_admin) = table_admin else { return ticket.fail(change.forbidden()) };
        if let Err(failure) = self.node.check(None).and_then(|()| self.node.check_memory()) {
            return ticket.fail(failure);
        }
        let deadline = self.deadline(self.node.env.now(), timeout_us);
        table_admin.carry_out(ticket, change, deadline);
    }

    /// Returns the deadline for the answer to a request received at `arrived`.
    fn deadline(&self, arrived: Nanos, timeout_us: u32) -> Nanos {
        let timeout = Duration::from_micros(u64::from(timeout_us));
        arrived.after(timeout.min(self.node.limits.longest_call))
    }

    fn queue(&mut self, ticket: Ticket, work: Work, timeout_us: u32) {
        let arrived = *self.arrived.get_or_insert_with(|| self.node.env.now());
        let deadline = self.deadline(arrived, timeout_us);
        let thread = self.choose_coordinator();
        self.queued[thread].push(WorkerTask::Serve(Request { ticket, work, arrived, deadline }));
    }

    fn step(&mut self, ticket: Ticket, step: &Step<'_>, message: &[u8]) {
        let Some(begin) = step.begin else {
            match self.open.get(step.txn) {
                Some(open) => open.step(ticket, message),
                None => ticket.fail(Failure::NoTransaction),
            }
            return;
        };
        if let Err(failure) = self.node.check(begin.shard) {
            return ticket.fail(failure);
        }
        let Some(place) = self.node.take_place(self.home) else {
            return ticket.fail(Failure::Busy(ScarceResource::Transactions));
        };
        let retry = self.retries.begin(First::of(step.txn, message));
        let open = interactive::begin(self.node, place, begin.kind, retry);
        open.step(ticket, message);
        // If the number is in use, the earlier transaction with the number ends.
        self.open.begin(step.txn, open, Open::standing);
    }

    /// Hands a request for a page to its scan; the request may begin the scan.
    fn scan(&mut self, ticket: Ticket, scan: &Scan<'_>, message: &[u8]) {
        if !scan.begin {
            match self.open.get(scan.scan) {
                Some(open) => open.step(ticket, message),
                None => ticket.fail(Failure::NoTransaction),
            }
            return;
        }
        if let Err(failure) = self.node.check(None) {
            return ticket.fail(failure);
        }
        let Some(place) = self.node.take_place(self.home) else {
            return ticket.fail(Failure::Busy(ScarceResource::Transactions));
        };
        let open = scans::begin(self.node, place);
        open.step(ticket, message);
        self.open.begin(scan.scan, open, Open::standing);
    }

    /// Returns the coordinator for the next request: `home` while `home` has idle workers, because
    /// the hand-over then costs nothing; otherwise the coordinators in turn.
    fn choose_coordinator(&mut self) -> usize {
        let (node, home) = (self.node, self.home);
        if self.queued.len() == 1 {
            return home;
        }
        let idle = self.idle_here.get_or_insert_with(|| node.queues[home].idle());
        if let Some(left) = idle.checked_sub(1) {
            *idle = left;
            return home;
        }
        self.next = (self.next + 1) % self.queued.len();
        self.next
    }
}

/// Counts and logs a connection's end.
fn note_end(node: &NodeServer, end: &End, client: Origin) {
    match end {
        End::Garbage(_) | End::Oversized(_) | End::SlowReader(_) | End::SlowSender(_) => {
            add(&node.connection_counters.misbehaved);
            if let Some(kept_back) = node.complaints.may_say("misbehaved", node.env.now()) {
                let node = node.index;
                tracing::warn!(node, %client, %end, kept_back, "closed a client's connection");
            }
        }
        _ => tracing::debug!(node = node.index, %client, %end, "a client's connection has ended"),
    }
}

/// Counts and logs a client that was not admitted.
pub(crate) fn note_turned(node: &NodeServer, turned: &Turned, client: Origin) {
    let index = node.index;
    if !turned.is_refusal() {
        tracing::debug!(node = index, %client, %turned, "a client was not let in");
        return;
    }
    add(&node.connection_counters.refused);
    if let Some(kept_back) = node.complaints.may_say(turned.kind(), node.env.now()) {
        tracing::warn!(node = index, %client, %turned, kept_back, "a client was not let in");
    }
}

/// Adds one.
pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_protocol::frame::HEADER_BYTES;
    use lotus_protocol::handshake::ClientHandshake;

    /// Bytes of a hello before the version.
    const MAGIC_BYTES: usize = 8;

    /// Clients of another version once had the line of wrong keys, which was then not written.
    #[test]
    fn clients_of_another_version_have_a_log_line_of_their_own() {
        let mut hello = Vec::new();
        let _guest = ClientHandshake::start(None, &mut hello).unwrap();
        hello[HEADER_BYTES + MAGIC_BYTES] ^= 1;
        let refused =
            ServerHandshake::default().step(&hello[HEADER_BYTES..], None, &mut Vec::new());
        let other = Turned::Refused(refused.unwrap_err());
        assert_eq!(other.kind(), "version", "{other}");
        assert_eq!(Turned::Refused(Refusal::Proof).kind(), "trust");
    }
}
