//! Locks that the clients of one node share before they ask the memory node for them (DecLock §5):
//! a combinator over any lock system.
//!
//! # What it is
//! A node has a table of the locks that its clients, on whichever lane, want or hold. The first one
//! asks the memory node, on behalf of all; the others wait at their node. When the last local
//! holder leaves, a [`Policy`] decides whether the lock stays at the node for the next of its
//! clients, or is given up. So a queue at the memory node has as many entries as there are nodes,
//! and handing a lock to a neighbour takes no verb and no message to another node.
//!
//! # What it is not
//! It knows nothing of words. What a node has at the memory node is one use of the lock by one of
//! its lanes, its *home*, with all that [`client`](lotus_locks::Client) does for it: ghosts, resets, lost
//! answers, lost memory. A lane that is told to give the lock up does so.
//!
//! # Holders
//! A client that releases a lock has to have the answers of its own verbs: the next holder may be
//! on another lane, which follows nothing of this one. A holder that is dropped has none, so its
//! lane waits for them in its place.
//!
//! # Failures
//! The clients of a node live and die with it. A request that ends, is dropped or panics leaves its
//! place at any time; what its node has under way goes on for others, or ends as a ghost. A reset
//! waits until the node has given the lock up, which it does as soon as its holders have left: no
//! reader joins, and no neighbour is next.
//!
//! `policy`: the decisions; `lock`: one lock of a node; `table`: all of them, and what lanes tell
//! one another; `clock`: times; `futures`: what users hold; `inner`: a lane's part; `access`: locks
//! that are shared so, or not.

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
pub use lock::{Answer, Fate, Home, Sequel, Ticket};
pub use policy::{Policy, Share, Situation, UnknownPolicy, Unshared, Wish};
pub use table::LocalTable;

/// Bits of a ticket below the lane's number.
const COUNT_BITS: u32 = 48;

/// A lane's use of locks that it shares with the other lanes of its node. Cheap to clone.
///
/// One clone has to be kept for as long as the node is a member: it gives up locks that other lanes
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
    /// The locks of `table`, which all lanes of the node share in its present life, by the client
    /// of one of the lanes.
    ///
    /// # Panics
    /// If the table was made for fewer lanes.
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

    /// The lane's client, by which the node asks the memory node.
    pub fn client(&self) -> &Client<S> {
        &self.inner.client
    }

    /// The locks of the node.
    pub fn table(&self) -> &LocalTable {
        &self.inner.table
    }

    /// Transfers to clients of this lane since it began.
    pub fn transfers(&self) -> Transfers {
        self.inner.transfers.get()
    }

    /// Acquires a lock. The first verb is posted at once, if there is one.
    pub fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> LocalAcquiring<S> {
        let inner = &self.inner;
        let shares = inner.client.system().promises().shares;
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
        let wish = Wish { mode, time };
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

    /// Whether a holder may rely on its lock, as far as its lane knows; see [`Client::is_valid`].
    pub fn is_valid(&self, hold: &LocalHold<S>) -> bool {
        self.inner.client.is_in_use(hold.at()) && !self.inner.table.is_expelled()
    }

    /// Releases a lock. The holder's own verbs have to be answered before.
    pub fn release(&self, hold: LocalHold<S>) -> LocalReleasing<S> {
        hold.release()
    }
}
