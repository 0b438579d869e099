//! Timestamps from one node that serves all others by RPC (LOTUS §5, "timestamp service").
//!
//! # What it is
//! [`OracleServer`] answers requests from one source of timestamps; [`OracleClient`] asks on
//! behalf of all coroutines of one coordinator. Requests that arrive while one is under way share
//! the *next* one: a timestamp that was perhaps issued before a coroutine asked would not be at
//! least everything issued before (H18), so nobody joins a request that was already sent.
//! Transactions that share a timestamp hold no lock in common, so their order does not matter;
//! versions of one row still differ, because the second writer asks after the first unlocked.
//!
//! # What it is not
//! Replicated. An oracle that fails over needs a persisted bound and a lease, which come with
//! recovery; here the node that serves is fixed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{Endpoint, NodeId};
use lotus_fabric::rpc::{Patience, Rpc, RpcError, Service};
use lotus_sabotage::{Rule, broken};

use crate::timestamp::Timestamp;

/// The RPC service under which an oracle answers.
pub const TIMESTAMP_SERVICE: Service = Service(2);

const PATIENCE: Patience = Patience { retry_after: Duration::from_millis(20), tries: 50 };

/// The serving side.
#[derive(Debug)]
pub struct OracleServer;

impl OracleServer {
    /// Answers requests on `rpc` from `next`, which is given the physical time and returns a
    /// timestamp later than every one before, on whichever lane it was issued.
    pub fn serve(rpc: &Rpc, mut next: impl FnMut(Nanos) -> Timestamp + 'static) {
        let executor = rpc.lane().executor().clone();
        rpc.serve(
            TIMESTAMP_SERVICE,
            Box::new(move |responder, _| {
                responder.respond(&next(executor.now()).raw().to_le_bytes());
            }),
        );
    }
}

/// The asking side, shared by the coroutines of one coordinator.
#[derive(Clone)]
pub struct OracleClient {
    core: Rc<Core>,
}

struct Core {
    rpc: Rpc,
    oracle: Endpoint,
    /// How many requests have been sent.
    sent: Cell<u64>,
    in_flight: Cell<bool>,
    /// The last request that ended, and its answer.
    ended: Cell<(u64, Result<Timestamp, RpcError>)>,
    /// The latest answer.
    latest: Cell<Timestamp>,
    waiting: RefCell<Vec<TaskId>>,
}

impl OracleClient {
    /// Asks the coordinator of `oracle` that has the same number as `rpc`'s own.
    pub fn new(rpc: Rpc, oracle: NodeId) -> Self {
        let oracle = Endpoint { node: oracle, lane: rpc.lane().at().lane };
        let core = Core {
            rpc,
            oracle,
            sent: Cell::new(0),
            in_flight: Cell::new(false),
            ended: Cell::new((0, Ok(Timestamp::ZERO))),
            latest: Cell::new(Timestamp::ZERO),
            waiting: RefCell::default(),
        };
        Self { core: Rc::new(core) }
    }

    /// The latest timestamp that was received: all that are asked for from now on are later.
    pub fn latest(&self) -> Timestamp {
        self.core.latest.get()
    }

    /// A timestamp later than every one issued before this call, by anybody.
    ///
    /// # Errors
    /// [`RpcError::TimedOut`] if the oracle does not answer.
    pub async fn timestamp(&self) -> Result<Timestamp, RpcError> {
        let core = &*self.core;
        // The first request that is sent from now on.
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
                Request::send(core).answer().await;
            }
        }
    }
}

/// The request under way. Dropping it (with the transaction that sent it) makes room for the next.
struct Request<'a> {
    core: &'a Core,
    number: u64,
    outcome: Result<Timestamp, RpcError>,
}

impl<'a> Request<'a> {
    fn send(core: &'a Core) -> Self {
        core.in_flight.set(true);
        core.sent.set(core.sent.get() + 1);
        Self { core, number: core.sent.get(), outcome: Err(RpcError::TimedOut) }
    }

    async fn answer(mut self) {
        let core = self.core;
        let reply = core.rpc.call(core.oracle, TIMESTAMP_SERVICE, &[], PATIENCE).await;
        self.outcome = reply.and_then(|reply| {
            let bytes = reply.first_chunk::<8>().filter(|_| reply.len() == 8);
            let timestamp = bytes.and_then(|bytes| Timestamp::new(u64::from_le_bytes(*bytes)));
            // A reply that is no timestamp is as good as none.
            timestamp.ok_or(RpcError::TimedOut)
        });
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.core.in_flight.set(false);
        self.core.ended.set((self.number, self.outcome));
        let latest = self.core.latest.get().max(self.outcome.unwrap_or_default());
        self.core.latest.set(latest);
        let executor = self.core.rpc.lane().executor();
        self.core.waiting.borrow_mut().drain(..).for_each(|task| executor.wake(task));
    }
}
