//! Timestamps from one node that serves the cluster by RPC (LOTUS §5, "timestamp service").
//!
//! # What it is
//! [`OracleServer`] answers requests from one source of timestamps; [`OracleClient`] asks on behalf
//! of all coroutines of one coordinator. Coroutines that ask while a request is under way share the
//! *next* request: a timestamp issued before a coroutine asked might be less than other timestamps
//! issued before the call (H18), so a coroutine never joins a request that was already sent.
//! Transactions that share a timestamp hold no lock in common, so their order does not matter.
//! Versions of one row still differ, because the second writer asks after the first writer has
//! unlocked.
//!
//! # When another node takes over
//! Server and client each know only their part: a server that may not issue timestamps yet keeps
//! its askers waiting; a client that is turned to another node ([`OracleClient::turn_to`]) ignores
//! answers of the old node from then on, even answers already on the way. The engine decides which
//! node serves when.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Handle, TaskId};
use lotus_fabric::ids::{Endpoint, Incarnation, NodeId};
use lotus_fabric::rpc::{
    Reply, Responder, RetryPolicy, Rpc, RpcError, Service, Slowest, least_tolerance,
};
use lotus_sabotage::{Rule, broken};

use crate::timestamp::Timestamp;

/// RPC service under which an oracle answers.
pub const TIMESTAMP_SERVICE: Service = Service(2);

/// Longest interval between tries of a request; the first interval follows from the slowest recent
/// answer.
const RETRY_AT_MOST: Duration = Duration::from_millis(20);
/// Number of tries at the longest interval.
const TRIES_AT_MOST: u32 = 50;
/// Shortest time after which an answer counts as late, unless the cluster has a short lease.
const LEAST_TOLERANCE: Duration = Duration::from_micros(250);
/// Interval at which a server checks whether it may answer waiting requests.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// A coordinator that asks for a timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Address of the coordinator.
    pub at: Endpoint,
    /// Life of the coordinator's node.
    pub life: Incarnation,
}

/// Answer of the source of timestamps to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OracleAnswer {
    /// A timestamp later than every timestamp issued before, on any lane.
    Issued(Timestamp),
    /// No timestamp can be issued yet; the asker waits, or asks again.
    NotYet,
    /// The asker gets no timestamp from this node.
    Refused,
}

/// A request without an answer yet.
struct Waiting {
    responder: Responder,
    asker: Asker,
}

/// Serving side, for one coordinator.
#[derive(Debug)]
pub struct OracleServer;

impl OracleServer {
    /// Answers requests on `rpc` with timestamps from `next`, which gets the asker and the physical
    /// time.
    pub fn serve(rpc: &Rpc, next: impl Fn(Asker, Nanos) -> OracleAnswer + Clone + 'static) {
        let executor = rpc.lane().executor().clone();
        let waiting = Rc::new(RefCell::new(Vec::<Waiting>::new()));
        rpc.serve(
            TIMESTAMP_SERVICE,
            Box::new(move |responder, request| {
                let life = request.try_into().ok().map(u16::from_le_bytes);
                // A request without a life is malformed, and is ignored.
                let Some(life) = life.and_then(Incarnation::new) else { return };
                let asker = Asker { at: responder.from(), life };
                let Some(waits) = answer(Waiting { responder, asker }, &next, executor.now())
                else {
                    return;
                };
                let mut queue = waiting.borrow_mut();
                let unattended = queue.is_empty();
                // A client has one request under way, so it has given up the older request.
                queue.retain(|older| older.asker.at != asker.at);
                queue.push(waits);
                if unattended {
                    let waiting = Rc::clone(&waiting);
                    executor.spawn(attend(executor.clone(), waiting, next.clone()));
                }
            }),
        );
    }
}

/// Answers a request, or returns a request that has to wait.
fn answer(
    request: Waiting,
    next: &impl Fn(Asker, Nanos) -> OracleAnswer,
    now: Nanos,
) -> Option<Waiting> {
    match next(request.asker, now) {
        OracleAnswer::Issued(timestamp) => {
            request.responder.respond(&timestamp.raw().to_le_bytes())
        }
        OracleAnswer::Refused => request.responder.respond(&[]),
        OracleAnswer::NotYet => return Some(request),
    }
    None
}

/// Answers waiting requests as soon as allowed, or drops them: their askers ask again.
async fn attend(
    executor: Handle,
    waiting: Rc<RefCell<Vec<Waiting>>>,
    next: impl Fn(Asker, Nanos) -> OracleAnswer,
) {
    let give_up = executor.now().after(RETRY_AT_MOST);
    while executor.now() < give_up {
        executor.sleep(LOOK_AGAIN).await;
        for request in waiting.take() {
            let waits = answer(request, &next, executor.now());
            waiting.borrow_mut().extend(waits);
        }
        if waiting.borrow().is_empty() {
            return;
        }
    }
    waiting.borrow_mut().clear();
}

/// Asking side, shared by the coroutines of one coordinator.
#[derive(Clone)]
pub struct OracleClient {
    core: Rc<OracleCore>,
}

struct OracleCore {
    rpc: Rpc,
    /// Life of the node that asks.
    life: Incarnation,
    /// Coordinator to ask.
    oracle: Cell<Endpoint>,
    /// Task that waits for the oracle's answer.
    asking: Cell<Option<TaskId>>,
    /// Number of requests sent.
    sent: Cell<u64>,
    in_flight: Cell<bool>,
    /// Number of the last completed request, and its answer.
    ended: Cell<(u64, Result<Timestamp, RpcError>)>,
    /// Latest timestamp received.
    latest: Cell<Timestamp>,
    slowest: Cell<Slowest>,
    /// Shortest time after which an answer counts as late.
    least_tolerance: Duration,
    waiting: RefCell<Vec<TaskId>>,
}

impl OracleClient {
    /// Creates a client that asks the coordinator of `oracle` with the same number as `rpc`'s own,
    /// on behalf of this life of its node. The shorter the cluster's lease, the earlier the client
    /// retries.
    pub fn new(rpc: Rpc, oracle: NodeId, life: Incarnation, lease: Option<Duration>) -> Self {
        let oracle = Endpoint { node: oracle, lane: rpc.lane().at().lane };
        let core = OracleCore {
            rpc,
            life,
            oracle: Cell::new(oracle),
            asking: Cell::new(None),
            sent: Cell::new(0),
            in_flight: Cell::new(false),
            ended: Cell::new((0, Ok(Timestamp::ZERO))),
            latest: Cell::new(Timestamp::ZERO),
            slowest: Cell::default(),
            least_tolerance: lease.map_or(LEAST_TOLERANCE, least_tolerance).min(LEAST_TOLERANCE),
            waiting: RefCell::default(),
        };
        Self { core: Rc::new(core) }
    }

    /// Asks `oracle` from now on, and ignores answers of other nodes, even to earlier requests
    /// (I132). Returns whether the oracle has changed.
    pub fn turn_to(&self, oracle: NodeId) -> bool {
        let core = &*self.core;
        let before = core.oracle.get();
        if before.node == oracle {
            return false;
        }
        core.oracle.set(Endpoint { node: oracle, ..before });
        if let Some(task) = core.asking.take() {
            core.rpc.lane().executor().wake(task);
        }
        true
    }

    /// Latest timestamp received: every timestamp requested from now on is later.
    pub fn latest(&self) -> Timestamp {
        self.core.latest.get()
    }

    /// Draws a timestamp later than every timestamp issued before this call, on any node.
    ///
    /// # Errors
    /// [`RpcError::TimedOut`] if the oracle does not answer, or refuses this life.
    pub async fn timestamp(&self) -> Result<Timestamp, RpcError> {
        let core = &*self.core;
        // Number of the next request to be sent.
        let mut mine = core.sent.get() + 1;
        if broken(Rule::RequestsAreNotJoined) && core.in_flight.get() {
            mine -= 1;
        }
        loop {
            let (number, answer) = core.ended.get();
            if number >= mine {
                return answer;
            }
            if core.in_flight.get() {
                core.waiting.borrow_mut().push(core.rpc.lane().executor().current());
                core.rpc.lane().executor().suspend().await;
            } else {
                OracleRequest::send(core).answer().await;
            }
        }
    }
}

/// The request under way. Dropping the request (with the transaction that sent it) makes room for
/// the next request.
struct OracleRequest<'a> {
    core: &'a OracleCore,
    number: u64,
    outcome: Result<Timestamp, RpcError>,
}

impl<'a> OracleRequest<'a> {
    fn send(core: &'a OracleCore) -> Self {
        core.in_flight.set(true);
        core.sent.set(core.sent.get() + 1);
        Self { core, number: core.sent.get(), outcome: Err(RpcError::TimedOut) }
    }

    async fn answer(mut self) {
        let core = self.core;
        // Repeats until an answer comes from the current oracle.
        let reply = loop {
            if let Some(reply) = Self::ask(core, core.oracle.get()).await {
                break reply;
            }
        };
        self.outcome = reply.and_then(|reply| {
            let bytes = reply.first_chunk::<8>().filter(|_| reply.len() == 8);
            let timestamp = bytes.and_then(|bytes| Timestamp::new(u64::from_le_bytes(*bytes)));
            // A reply without a timestamp counts as a missing reply.
            timestamp.ok_or(RpcError::TimedOut)
        });
    }

    /// Returns the reply of `oracle`; `None` if the client is turned to another node meanwhile.
    async fn ask(core: &OracleCore, oracle: Endpoint) -> Option<Result<Reply, RpcError>> {
        let request = core.life.raw().to_le_bytes();
        let patience = core.patience();
        let mut call = pin!(core.rpc.call(oracle, TIMESTAMP_SERVICE, &request, patience));
        core.asking.set(Some(core.rpc.lane().executor().current()));
        let reply = poll_fn(|cx| match core.oracle.get() == oracle {
            true => call.as_mut().poll(cx).map(Some),
            false => Poll::Ready(None),
        });
        let reply = reply.await;
        if let Some(Ok(reply)) = &reply {
            core.hear(reply.sent());
        }
        reply
    }
}

impl OracleCore {
    /// Retry policy of a request sent now: about a second in total. The slowest recent answer
    /// decides when an answer is late (I184).
    fn patience(&self) -> RetryPolicy {
        let retry_after = self.slowest.get().tolerance(self.least_tolerance).min(RETRY_AT_MOST);
        let shorter = RETRY_AT_MOST.as_nanos() / retry_after.as_nanos().max(1);
        let tries = TRIES_AT_MOST + shorter.ilog2();
        RetryPolicy { retry_after, retry_at_most: RETRY_AT_MOST, tries }
    }

    /// Records an answer to a request that was last sent at `sent`.
    fn hear(&self, sent: Nanos) {
        let mut slowest = self.slowest.get();
        slowest.note(self.rpc.lane().executor().now().since(sent));
        self.slowest.set(slowest);
    }
}

impl Drop for OracleRequest<'_> {
    fn drop(&mut self) {
        self.core.in_flight.set(false);
        self.core.asking.set(None);
        self.core.ended.set((self.number, self.outcome));
        let latest = self.core.latest.get().max(self.outcome.unwrap_or_default());
        self.core.latest.set(latest);
        let executor = self.core.rpc.lane().executor();
        self.core.waiting.borrow_mut().drain(..).for_each(|task| executor.wake(task));
    }
}
