//! A lane's part in the locks of its node: the ones that it has asked for and holds for all lanes,
//! and what it does for them in the background.

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
use super::lock::{Home, Sequel};
use super::table::LocalTable;

/// Number of acquisitions of a lane that took the lock from their node, or from the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfers {
    /// Clients that were handed a lock that their node held, or joined its readers.
    pub local: u64,
    /// Clients that asked the memory node.
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

/// Number of a lock that the memory node knows nothing of: only if a rule is broken.
const NOWHERE: u32 = u32::MAX;

pub(super) struct Inner<S: LockSystem> {
    pub(super) client: Client<S>,
    pub(super) table: Arc<LocalTable>,
    pub(super) lane: u16,
    /// Locks that this lane has asked for, and the node holds.
    holds: RefCell<Holds<S>>,
    pub(super) transfers: Cell<Transfers>,
    /// Number of requests so far.
    pub(super) requests: Cell<u64>,
}

/// Holds, by their numbers.
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

/// The mode of a lock as the clients of a node share it.
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

    /// Asks the memory node for a lock, for as long as it takes.
    pub(super) fn ask(&self, asked: LocalRequest) -> Acquiring<S> {
        let LocalRequest { at, mode, terms, time, .. } = asked;
        let acquiring = self.client.acquire(at, mode, Limits { terms, ..Limits::PATIENT });
        match self.table.policy().uses_times() {
            true => acquiring.stamped(time),
            false => acquiring,
        }
    }

    /// Notes what the node was answered. Returns the mode in which the client that has asked holds
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
        let Sequel { gives_up, is_asker, .. } = self.table.won(at, mode, home, remote, now);
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

    /// Holds a lock without having asked for it. Returns whether the rule against that is broken.
    pub(super) fn holds_unasked(self: &Rc<Self>, asked: LocalRequest) -> bool {
        broken(Rule::ElectsHoldRemotely) && self.won(asked.at, asked.mode, NOWHERE, None)
    }

    /// A client leaves a lock. Returns the node's, if it is to be given up by this lane.
    pub(super) fn left(&self, at: RemoteAddr) -> Option<Hold<S>> {
        self.table.leave(at).and_then(|home| self.at_home(at, home))
    }

    /// The lock that is to be given up, if it is this lane's; else its lane is told.
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

    /// A client leaves a lock, and does not wait for what comes of it.
    pub(super) fn leave(this: &Rc<Self>, at: RemoteAddr) {
        if let Some(hold) = this.left(at) {
            Self::give_up(this, hold);
        }
    }

    /// A holder was dropped, perhaps with verbs under way: its lock is left when those are over, as
    /// the next holder may be on another connection.
    pub(super) fn leave_later(this: &Rc<Self>, at: RemoteAddr) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            inner.client.settle(at).await;
            Self::leave(&inner, at);
        });
    }

    /// Gives a lock of the node up in the background.
    fn give_up(this: &Rc<Self>, hold: Hold<S>) {
        let at = hold.at();
        Self::end_release(this, at, this.client.release(hold));
    }

    /// Ends a release in the background.
    pub(super) fn end_release(this: &Rc<Self>, at: RemoteAddr, releasing: Releasing<S>) {
        let inner = Rc::clone(this);
        this.client.executor().spawn(async move {
            let result = releasing.await;
            inner.released(at, result);
        });
    }

    /// Notes that the node has given a lock up.
    pub(super) fn released(&self, at: RemoteAddr, result: Result<(), NotHeld>) {
        self.note(result);
        self.table.released(at);
    }

    fn note(&self, result: Result<(), NotHeld>) {
        if result == Err(NotHeld::Expelled) {
            self.table.expel();
        }
    }

    /// Goes on to ask for a lock on behalf of the node, for whichever of its clients.
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

    /// Looks whether a remote writer waits for a lock that readers of this node hold.
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

    /// Does what other lanes ask for, and gives up soon what is wanted elsewhere.
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
