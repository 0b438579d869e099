//! The server of a bank: balances by number, which clients get and put by messages.
//!
//! One core serves one request after another, and each request costs a fixed time, as in a store
//! with one thread. A request may arrive twice: the requests of a client are numbered, and a change
//! that is older than the client's last change is not carried out again. Changes of an expelled
//! node are not carried out either: other clients may have the node's locks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Responder, RetryPolicy, Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};

/// RPC service of the bank; locks have the lower service numbers.
const SERVICE: Service = Service(5);
/// Retries of a request without an answer; the network loses next to no messages.
const PATIENCE: RetryPolicy = RetryPolicy {
    retry_after: Duration::from_millis(200),
    retry_at_most: Duration::from_secs(2),
    tries: 8,
};

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// Reads a balance.
    Get,
    /// Sets a balance to this value.
    Put(i64),
}

/// A request of a client, with its number among the requests of that client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) client: u64,
    pub(super) number: u64,
    pub(super) account: u64,
    pub(super) ask: Ask,
}

impl Request {
    const BYTES: usize = 33;

    fn encode(self) -> [u8; Self::BYTES] {
        let (kind, value) = match self.ask {
            Ask::Get => (0, 0),
            Ask::Put(value) => (1, value),
        };
        let mut bytes = [kind; Self::BYTES];
        let words = [self.client, self.number, self.account, value as u64];
        for (bytes, word) in bytes[1..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let bytes = bytes[1 + 8 * at..].first_chunk().expect("four words follow");
            u64::from_le_bytes(*bytes)
        };
        let ask = match bytes[0] {
            0 => Ask::Get,
            1 => Ask::Put(word(3) as i64),
            _ => return None,
        };
        Some(Self { client: word(0), number: word(1), account: word(2), ask })
    }
}

/// Balances, and the number of each client's last change.
#[derive(Default)]
pub(super) struct Balances {
    balances: Vec<i64>,
    changed: HashMap<u64, u64>,
    /// Requests carried out.
    pub(super) requests: u64,
}

impl Balances {
    /// Carries out a request and returns the balance afterwards. `None` if the account does not
    /// exist.
    fn serve(&mut self, request: Request) -> Option<i64> {
        let balance = self.balances.get_mut(request.account as usize)?;
        self.requests += 1;
        if let Ask::Put(value) = request.ask {
            let last = self.changed.entry(request.client).or_default();
            if request.number > *last {
                *last = request.number;
                *balance = value;
            }
        }
        Some(*balance)
    }

    /// Whether a change was carried out, provided that the client has made no later change.
    pub(super) fn has(&self, client: u64, number: u64) -> bool {
        self.changed.get(&client).is_some_and(|last| *last >= number)
    }

    pub(super) fn sum(&self) -> i128 {
        self.balances.iter().map(|balance| i128::from(*balance)).sum()
    }
}

/// State shared by the core of the server and the audit.
pub(super) struct Store {
    balances: Mutex<Balances>,
    /// The node that the run loses; its changes are no longer carried out once `fenced` is set.
    lost: Option<NodeId>,
    fenced: AtomicBool,
    /// Time to serve a request.
    cost: Duration,
}

impl Store {
    pub(super) fn new(balances: Vec<i64>, lost: Option<NodeId>, cost: Duration) -> Arc<Self> {
        let balances = Mutex::new(Balances { balances, ..Balances::default() });
        Arc::new(Self { balances, lost, fenced: AtomicBool::new(false), cost })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Balances> {
        self.balances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses all further requests of the lost node.
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    fn refuses(&self, node: NodeId) -> bool {
        self.lost == Some(node) && self.fenced.load(Ordering::Acquire)
    }

    fn answer(&self, responder: Responder, request: Request) {
        if self.refuses(responder.from().node) {
            return;
        }
        let balance = self.lock().serve(request);
        if let Some(balance) = balance {
            responder.respond(&balance.to_le_bytes());
        }
    }
}

/// Address of the server's lane.
const fn address(node: NodeId) -> Endpoint {
    Endpoint { node, lane: LaneId(0) }
}

/// Opens the lane of the server on its core. The lane serves until it is dropped.
pub(super) fn open(
    executor: &mut Executor,
    fabric: &dyn Fabric,
    node: NodeId,
    store: Arc<Store>,
) -> Result<Rpc, FabricError> {
    let at = address(node);
    let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    let (rpc, handle) = (Rpc::new(lane), executor.handle().clone());
    let free_at = Cell::new(Nanos(0));
    let handler = move |responder: Responder, bytes: &[u8]| {
        let Some(request) = Request::decode(bytes) else { return };
        if store.cost.is_zero() {
            return store.answer(responder, request);
        }
        let ends = free_at.get().max(handle.now()).after(store.cost);
        free_at.set(ends);
        let (store, executor) = (Arc::clone(&store), handle.clone());
        handle.spawn(async move {
            executor.sleep_until(ends).await;
            store.answer(responder, request);
        });
    };
    rpc.serve(SERVICE, Box::new(handler));
    Ok(rpc)
}

/// A lane's client side of the server.
pub(super) struct BankClient {
    rpc: Rpc,
    server: NodeId,
    /// Client names that are not in use, each with the number of its last request.
    free: RefCell<Vec<Named>>,
    /// Number of names given so far.
    named: Cell<u64>,
}

/// A client's name, with the number of the client's last request.
#[derive(Clone, Copy, Debug)]
struct Named {
    client: u64,
    last: u64,
}

/// A client of the server.
pub(super) struct Customer {
    bank_client: Rc<BankClient>,
    named: Named,
}

impl BankClient {
    pub(super) fn new(rpc: Rpc, server: NodeId) -> Rc<Self> {
        Rc::new(Self { rpc, server, free: RefCell::default(), named: Cell::new(0) })
    }

    /// Returns a client under a name of its own.
    pub(super) fn customer(self: &Rc<Self>) -> Customer {
        let free = self.free.borrow_mut().pop();
        let named = free.unwrap_or_else(|| {
            let Endpoint { node, lane } = self.rpc.lane().at();
            let number = self.named.replace(self.named.get() + 1);
            let client = u64::from(node.0) << 48 | u64::from(lane.0) << 32 | number;
            Named { client, last: 0 }
        });
        Customer { bank_client: Rc::clone(self), named }
    }
}

impl Customer {
    /// Returns the client's name and the number of its next request.
    pub(super) const fn next(&self) -> (u64, u64) {
        (self.named.client, self.named.last + 1)
    }

    /// Asks the server; returns the balance.
    ///
    /// # Errors
    /// A sentence if the server does not answer. Whether a change was made is then unknown.
    pub(super) async fn ask(&mut self, account: u64, ask: Ask) -> Result<i64, String> {
        self.named.last += 1;
        let Named { client, last: number } = self.named;
        let request = Request { client, number, account, ask }.encode();
        let BankClient { rpc, server, .. } = &*self.bank_client;
        let reply = rpc.call(address(*server), SERVICE, &request, PATIENCE).await;
        let reply = reply.map_err(|error| format!("the bank does not answer: {error}"))?;
        let bytes = reply.first_chunk().ok_or("the bank answers what is no balance")?;
        Ok(i64::from_le_bytes(*bytes))
    }
}

impl Drop for Customer {
    fn drop(&mut self) {
        self.bank_client.free.borrow_mut().push(self.named);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        for ask in [Ask::Get, Ask::Put(-7), Ask::Put(i64::MAX)] {
            let request = Request { client: 1 << 60, number: 2, account: 3, ask };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        assert_eq!(Request::decode(&[0; 32]), None);
        assert_eq!(Request::decode(&[2; Request::BYTES]), None);
    }

    #[test]
    fn a_change_that_comes_late_is_not_carried_out() {
        let mut store = Balances { balances: vec![10, 20], ..Balances::default() };
        let put = |client, number, account, value| Request {
            client,
            number,
            account,
            ask: Ask::Put(value),
        };
        assert_eq!(store.serve(put(1, 1, 0, 11)), Some(11));
        assert_eq!(store.serve(put(2, 1, 0, 12)), Some(12));
        assert_eq!(store.serve(put(1, 1, 0, 11)), Some(12), "it came twice");
        assert_eq!(store.serve(put(1, 3, 1, 5)), Some(5));
        assert_eq!(store.serve(put(1, 2, 1, 6)), Some(5), "it came late");
        assert_eq!(store.serve(put(1, 4, 2, 6)), None, "there is no such account");
        assert!(store.has(1, 3) && !store.has(1, 4) && !store.has(3, 1));
        assert_eq!(store.sum(), 12 + 5);
    }
}
