//! Locks that the clients of a node share before asking the memory node (DecLock §5): a combinator
//! over any lock system.
//!
//! # What it is
//! A node has a table of locks wanted or held by its clients on any lane. The first client asks the
//! memory node on behalf of the node; the other clients wait locally. When the last local holder
//! leaves, a [`Policy`] decides whether the lock stays for the node's next client or is given up.
//! So a queue at the memory node has as many entries as there are nodes, and passing a lock to a
//! client of the same node takes no verb and no message to another node.
//!
//! # What it is not
//! The combinator knows nothing of words. A node's lock at the memory node is one use of the lock
//! by one of the node's lanes, the *home*, with all services of [`client`](lotus_locks::Client):
//! ghosts, resets, lost answers, lost memory. The home lane gives up the lock when told.
//!
//! # Holders
//! A client may release a lock only after the answers to its own verbs: the next holder may be on
//! another lane, whose verbs are not ordered behind the first lane's verbs. For a dropped holder,
//! the lane waits for the answers.
//!
//! # Failures
//! The clients of a node live and die with the node. A request may end, be dropped or panic at any
//! time, and leaves its queue place; the node's own request goes on for other clients, or ends as a
//! ghost. A reset waits until the node has given up the lock, which happens as soon as its holders
//! have left: meanwhile no reader joins, and no local client is next.
//!
//! `policy`: the decisions; `lock`: one lock of a node; `table`: a node's locks, and messages
//! between lanes; `clock`: times; `futures`: the users' holds and futures; `inner`: a lane's part;
//! `access`: shared and unshared locks behind one interface.

mod access;
mod clock;
mod futures;
mod inner;
mod lock;
mod policy;
mod primitive;
mod table;

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::word::Mode;
use lotus_locks::{Client, Limits, LockSystem, NotHeld, Wait};

pub use access::{Access, Held};
pub use clock::{Clock, Counters, synchronise};
pub use futures::{LocalAcquiring, LocalHold, LocalReleasing};
use futures::{LocalRequest, Progress};
pub use inner::Transfers;
use inner::{Inner, class};
pub use lock::{Answer, Home, LockEffects, Ticket, WaiterState};
pub use policy::{Policy, QueuedRequest, Share, Situation, UnknownPolicy, Unshared};
pub use table::LocalTable;

/// Bits of a ticket below the lane number.
const COUNT_BITS: u32 = 48;

/// A lane's client of locks shared with the node's other lanes. Cheap to clone.
///
/// Keep one clone for as long as the node is a member: the client gives up locks that other lanes
/// have left.
pub struct LocalClient<S: LockSystem> {
    inner: Rc<Inner<S>>,
}

impl<S: LockSystem> Clone for LocalClient<S> {
    fn clone(&self) -> Self {
        Self { inner: Rc::clone(&self.inner) }
    }
}

impl<S: LockSystem> LocalClient<S> {
    /// Returns a lane's client of the locks in `table`, shared by all lanes of the node in the
    /// present life. `client` is the lane's own client.
    ///
    /// # Panics
    /// If the table has fewer lanes.
    pub fn new(client: Client<S>, table: Arc<LocalTable>) -> Self {
        let inner = Rc::new(Inner::new(client, table));
        let weak = Rc::downgrade(&inner);
        let keeper =
            inner.client.executor().spawn(std::future::poll_fn(move |task| match weak.upgrade() {
                None => Poll::Ready(()),
                Some(inner) => {
                    Inner::keep(&inner, task.waker());
                    Poll::Pending
                }
            }));
        inner.client.watch(keeper);
        Self { inner }
    }

    /// The lane's client for requests to the memory node.
    pub fn client(&self) -> &Client<S> {
        &self.inner.client
    }

    /// The node's table of locks.
    pub fn table(&self) -> &LocalTable {
        &self.inner.table
    }

    /// Transfers to clients of this lane since it began.
    pub fn transfers(&self) -> Transfers {
        self.inner.transfers.get()
    }

    /// Acquires a lock. Posts the first verb at once, if one is needed.
    pub fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> LocalAcquiring<S> {
        let inner = &self.inner;
        let shares = inner.client.system().guarantees().shares;
        let mode = if shares { class(mode) } else { Mode::Exclusive };
        let number = inner.requests.get() + 1;
        inner.requests.set(number);
        let uses_times = inner.table.policy().uses_times();
        let time = if uses_times { inner.table.clock().time(self.now()) } else { 0 };
        let ticket = u64::from(inner.lane) << COUNT_BITS | number;
        let asked = LocalRequest { at, mode, terms: limits.terms, ticket, time };
        let state = self.begin(asked, limits.wait);
        LocalAcquiring { inner: Rc::clone(inner), asked, wait: limits.wait, state, timer: None }
    }

    fn now(&self) -> Nanos {
        self.inner.client.executor().now()
    }

    fn begin(&self, asked: LocalRequest, wait: Wait) -> Progress<S> {
        let inner = &self.inner;
        if inner.client.is_expelled() || inner.table.is_expelled() {
            return Progress::Refused(NotHeld::Expelled);
        }
        let LocalRequest { at, mode, ticket, time, .. } = asked;
        let wish = QueuedRequest { mode, time };
        match inner.table.request(at, ticket, wish, wait != Wait::No, || self.now()) {
            Answer::Asks if inner.holds_unasked(asked) => Progress::Holds(mode),
            Answer::Asks => Progress::Asks(inner.ask(asked)),
            Answer::Joins { looks } => {
                inner.count_local();
                if looks {
                    Inner::look(inner, at);
                }
                Progress::Holds(mode)
            }
            Answer::Waits { prefetches } => {
                if prefetches {
                    Inner::prefetch(inner, at);
                }
                Progress::Waits
            }
            Answer::Refused => Progress::Refused(NotHeld::Conflict),
        }
    }

    /// Whether a holder may rely on its lock, as far as the lane knows; see [`Client::is_valid`].
    pub fn is_valid(&self, hold: &LocalHold<S>) -> bool {
        self.inner.client.is_in_use(hold.at()) && !self.inner.table.is_expelled()
    }

    /// Releases a lock. The holder's own verbs must be answered before.
    pub fn release(&self, hold: LocalHold<S>) -> LocalReleasing<S> {
        hold.release()
    }
}
