//! A lane's part in the locks of its node: locks acquired on behalf of all lanes, and background
//! tasks.

use std::cell::{Cell, RefCell};
use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::word::Mode;
use lotus_locks::{Acquiring, Client, Hold, Limits, LockSystem, NotHeld, Releasing};
use lotus_sabotage::{Rule, broken};

use super::futures::LocalRequest;
use super::lock::{Home, LockEffects};
use super::table::LocalTable;

/// Number of a lane's acquisitions by source: from the node, or from the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfers {
    /// Clients that took over a lock held by the node, or joined the readers.
    pub local: u64,
    /// Clients with requests to the memory node.
    pub remote: u64,
}

impl std::ops::AddAssign for Transfers {
    fn add_assign(&mut self, other: Self) {
        self.local += other.local;
        self.remote += other.remote;
    }
}

impl std::ops::Sub for Transfers {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { local: self.local - earlier.local, remote: self.remote - earlier.remote }
    }
}

/// Key of a lock that was never acquired at the memory node: used only if a rule is broken.
const NOWHERE: u32 = u32::MAX;

pub(super) struct Inner<S: LockSystem> {
    pub(super) client: Client<S>,
    pub(super) table: Arc<LocalTable>,
    pub(super) lane: u16,
    /// Locks acquired by this lane for the node.
    holds: RefCell<Holds<S>>,
    pub(super) transfers: Cell<Transfers>,
    /// Number of requests so far.
    pub(super) requests: Cell<u64>,
}

/// Holds by number.
struct Holds<S: LockSystem> {
    slots: Vec<Option<Hold<S>>>,
    free: Vec<u32>,
}

impl<S: LockSystem> Holds<S> {
    fn insert(&mut self, hold: Hold<S>) -> u32 {
        if let Some(key) = self.free.pop() {
            self.slots[key as usize] = Some(hold);
            return key;
        }
        self.slots.push(Some(hold));
        self.slots.len() as u32 - 1
    }

    fn take(&mut self, key: u32) -> Option<Hold<S>> {
        self.free.push(key);
        self.slots[key as usize].take()
    }
}

/// Mode in which the clients of a node share a lock.
pub(super) const fn class(mode: Mode) -> Mode {
    match mode {
        Mode::Shared => Mode::Shared,
        Mode::Update | Mode::Exclusive => Mode::Exclusive,
    }
}

impl<S: LockSystem> Inner<S> {
    pub(super) fn new(client: Client<S>, table: Arc<LocalTable>) -> Self {
        let lane = client.lane_number();
        assert!(
            usize::from(lane) < table.lanes(),
            "a node has the lanes that its table was made for"
        );
        let holds = RefCell::new(Holds { slots: Vec::new(), free: Vec::new() });
        let (transfers, requests) = (Cell::default(), Cell::default());
        Self { client, table, lane, holds, transfers, requests }
    }

    pub(super) fn count_local(&self) {
        let now = self.transfers.get();
        self.transfers.set(Transfers { local: now.local + 1, ..now });
    }

    /// Asks the memory node for a lock, without a deadline.
    pub(super) fn ask(&self, asked: LocalRequest) -> Acquiring<S> {
        let LocalRequest { at, mode, terms, time, .. } = asked;
        let acquiring = self.client.acquire(at, mode, Limits { terms, ..Limits::PATIENT });
        match self.table.policy().uses_times() {
            true => acquiring.stamped(time),
            false => acquiring,
        }
    }

    /// Handles the answer to the node's request. Returns the mode in which the asking client holds
    /// the lock.
    pub(super) fn answered(
        self: &Rc<Self>,
        at: RemoteAddr,
        result: Result<Hold<S>, NotHeld>,
    ) -> Option<Mode> {
        let hold = match result {
            Ok(hold) => hold,
            Err(why) => {
                self.note(Err(why));
                self.table.lost(at, why);
                return None;
            }
        };
        let (mode, remote) = (class(hold.mode()), hold.next_time());
        let key = self.holds.borrow_mut().insert(hold);
        self.won(at, mode, key, remote).then_some(mode)
    }

    fn won(self: &Rc<Self>, at: RemoteAddr, mode: Mode, key: u32, remote: Option<u16>) -> bool {
        let now = match mode {
            Mode::Shared => self.client.executor().now(),
            _ => Nanos(0),
        };
        let home = Home { lane: self.lane, key };
        let LockEffects { gives_up, is_asker, .. } = self.table.won(at, mode, home, remote, now);
        if self.client.is_wanted(at) {
            self.table.close(at);
        }
        if is_asker {
            let now = self.transfers.get();
            self.transfers.set(Transfers { remote: now.remote + 1, ..now });
        }
        if let Some(hold) = gives_up.and_then(|home| self.at_home(at, home)) {
            Self::give_up(self, hold);
        }
        is_asker
    }

    /// Holds a lock without having asked for it. Returns whether the rule against this is broken.
    pub(super) fn holds_unasked(self: &Rc<Self>, asked: LocalRequest) -> bool {
        broken(Rule::ElectsHoldRemotely) && self.won(asked.at, asked.mode, NOWHERE, None)
    }

    /// Makes a client leave a lock. Returns the node's hold if this lane must give it up.
    pub(super) fn left(&self, at: RemoteAddr) -> Option<Hold<S>> {
        self.table.leave(at).and_then(|home| self.at_home(at, home))
    }

    /// Returns the hold to give up if it belongs to this lane; otherwise tells the home lane.
    fn at_home(&self, at: RemoteAddr, home: Home) -> Option<Hold<S>> {
        if home.key == NOWHERE {
            self.table.released(at);
            return None;
        }
        if home.lane == self.lane {
            return self.holds.borrow_mut().take(home.key);
        }
        self.table.order(home);
        None
    }

    /// Makes a client leave a lock, without waiting for the result.
    pub(super) fn leave(this: &Rc<Self>, at: RemoteAddr) {
        if let Some(hold) = this.left(at) {
            Self::give_up(this, hold);
        }
    }

    /// Handles a dropped holder, perhaps with verbs under way. The holder leaves the lock when its
    /// verbs are over, as the next holder may be on another connection.
    pub(super) fn leave_later(this: &Rc<Self>, at: RemoteAddr) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            inner.client.settle(at).await;
            Self::leave(&inner, at);
        });
    }

    /// Gives up a lock of the node in the background.
    fn give_up(this: &Rc<Self>, hold: Hold<S>) {
        let at = hold.at();
        Self::end_release(this, at, this.client.release(hold));
    }

    /// Completes a release in the background.
    pub(super) fn end_release(this: &Rc<Self>, at: RemoteAddr, releasing: Releasing<S>) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            let result = releasing.await;
            inner.released(at, result);
        });
    }

    /// Records that the node has given a lock up.
    pub(super) fn released(&self, at: RemoteAddr, result: Result<(), NotHeld>) {
        self.note(result);
        self.table.released(at);
    }

    fn note(&self, result: Result<(), NotHeld>) {
        if result == Err(NotHeld::Expelled) {
            self.table.expel();
        }
    }

    /// Continues a request on behalf of the node, for any of its clients.
    pub(super) fn carry_on(this: &Rc<Self>, at: RemoteAddr, mut acquiring: Acquiring<S>) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            let result = std::future::poll_fn(|task| match Pin::new(&mut acquiring).poll(task) {
                Poll::Pending if acquiring.can_leave() && !inner.table.desert(at, true) => {
                    Poll::Ready(None)
                }
                polled => polled.map(Some),
            });
            if let Some(result) = result.await {
                inner.answered(at, result);
            }
        });
    }

    /// Checks whether a remote writer waits for a lock that readers of this node hold; then no
    /// further reader joins (I308).
    pub(super) fn look(this: &Rc<Self>, at: RemoteAddr) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            let head = inner.client.look_at(at).await;
            if head.is_some_and(|head| inner.client.system().may_have_writer(head)) {
                inner.table.close(at);
            }
        });
    }

    /// Reads the times of remote waiters.
    pub(super) fn prefetch(this: &Rc<Self>, at: RemoteAddr) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            let read = inner.client.read_queue(at).await;
            let (system, node) = (inner.client.system(), inner.client.node_number());
            let time = read.and_then(|(head, entries)| system.earliest(head, &entries, node));
            inner.table.note(at, time);
        });
    }

    /// Gives up locks on other lanes' orders, and closes locks that are being reset or whose memory
    /// node was abandoned (I307).
    pub(super) fn keep(this: &Rc<Self>, waker: &Waker) {
        for key in this.table.orders(this.lane, waker) {
            let hold = this.holds.borrow_mut().take(key);
            hold.into_iter().for_each(|hold| Self::give_up(this, hold));
        }
        let holds = this.holds.borrow();
        let wanted = holds.slots.iter().flatten().map(Hold::at);
        wanted.filter(|at| this.client.is_wanted(*at)).for_each(|at| this.table.close(at));
    }
}
