//! A lock of a node: state and queue of local clients, over plain values.
//!
//! ```text
//! free -> asking -> held -> leaving -> free
//!           ^         |        |
//!           |         v        v
//!           +------ (a waiter is called: it asks)
//! ```
//!
//! While the lock is asked for, held or given up, the node has one request at the memory node, and
//! further clients wait locally (I305). The request belongs to the node: if the asking client gives
//! up, the lock goes to the next waiter of its mode.

use std::task::Waker;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::NotHeld;
use lotus_locks::word::{Mode, earlier};
use lotus_sabotage::{Rule, broken};

use super::policy::{Policy, QueuedRequest, Share, Situation};

/// Number of joining readers between two checks for a waiting remote writer (I308).
const JOINS: u32 = 16;
/// Time after which a joining reader checks anyhow.
const LOOK: std::time::Duration = std::time::Duration::from_micros(20);

/// Name of a request, unique in its node.
pub type Ticket = u64;

/// Place of a lock that the node holds: a lane, and the lane's number for the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// The lane that acquired and gives up the lock.
    pub lane: u16,
    /// The lane's number for the lock.
    pub key: u32,
}

/// Immediate answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The client asks the memory node, on behalf of its node.
    Asks,
    /// The client holds the lock beside other readers; now and then a joining reader checks for a
    /// waiting remote writer.
    Joins {
        /// Whether this reader checks.
        looks: bool,
    },
    /// The client waits for its [`WaiterState`].
    Waits {
        /// Whether the client reads the times of remote waiters meanwhile.
        prefetches: bool,
    },
    /// The client is refused because it does not wait.
    Refused,
}

/// State of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaiterState {
    /// Still waiting.
    Waits,
    /// Holds the lock.
    Holds,
    /// Asks the memory node, on behalf of its node.
    Asks,
    /// The node's request has failed.
    Failed(NotHeld),
}

/// Consequences of an event.
#[derive(Debug, Default)]
pub struct LockEffects {
    /// Tasks whose states have changed; to be woken without the table's mutex.
    pub wakes: Vec<Waker>,
    /// Home of the lock if it must be given up: `LocalTable::released` follows.
    pub gives_up: Option<Home>,
    /// Whether the asking client holds the lock.
    pub is_asker: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NodeState {
    /// The node has no request at the memory node.
    Free,
    /// A waiter was told to ask, and has not asked yet.
    Called,
    /// The node has asked for the lock in this mode.
    Asking(Mode),
    Held(Mode, Home),
    /// The node is giving the lock up.
    Leaving(Mode),
}

#[derive(Debug)]
struct QueuedClient {
    ticket: Ticket,
    wish: QueuedRequest,
    waiter_state: WaiterState,
    waker: Option<Waker>,
}

/// A lock of a node. See the module's documentation.
#[derive(Debug)]
pub(super) struct LocalLock {
    pub(super) at: RemoteAddr,
    state: NodeState,
    /// The asking client, as long as it waits.
    asker: Option<Ticket>,
    holders: u32,
    /// See [`Situation`].
    given: u32,
    is_closed: bool,
    remote: Option<u16>,
    /// Readers that joined since the last check, and the time of the check.
    joins: u32,
    looked: Nanos,
    is_prefetching: bool,
    waiters: Vec<QueuedClient>,
}

impl LocalLock {
    /// Returns a lock that no client of the node uses.
    pub(super) const fn new(at: RemoteAddr) -> Self {
        Self {
            at,
            state: NodeState::Free,
            asker: None,
            holders: 0,
            given: 0,
            is_closed: false,
            remote: None,
            joins: 0,
            looked: Nanos(0),
            is_prefetching: false,
            waiters: Vec::new(),
        }
    }

    /// Whether no client of the node uses the lock.
    pub(super) const fn is_unused(&self) -> bool {
        matches!(self.state, NodeState::Free) && self.waiters.is_empty()
    }

    const fn situation(&self, held: Mode) -> Situation {
        Situation { held, is_closed: self.is_closed, given: self.given, remote: self.remote }
    }

    fn is_awaited(&self, mode: Option<Mode>) -> bool {
        let waits = |waiting: &QueuedClient| {
            waiting.waiter_state == WaiterState::Waits
                && mode.is_none_or(|mode| waiting.wish.mode == mode)
        };
        self.waiters.iter().any(waits)
    }

    /// Handles a new request. `waits` says whether the request may wait.
    pub(super) fn request(
        &mut self,
        policy: Policy,
        ticket: Ticket,
        wish: QueuedRequest,
        waits: bool,
        now: impl FnOnce() -> Nanos,
    ) -> Answer {
        if self.state == NodeState::Free {
            (self.state, self.asker) = (NodeState::Asking(wish.mode), Some(ticket));
            return Answer::Asks;
        }
        if let NodeState::Held(held, _) = self.state
            && wish.mode == Mode::Shared
            && policy.joins(self.situation(held), wish.time)
            && !self.is_awaited(None)
        {
            self.holders += 1;
            self.given += 1;
            self.joins += 1;
            return Answer::Joins { looks: self.looks(now()) };
        }
        if !waits {
            return Answer::Refused;
        }
        self.waiters.push(QueuedClient {
            ticket,
            wish,
            waiter_state: WaiterState::Waits,
            waker: None,
        });
        let is_held = matches!(self.state, NodeState::Held(..));
        let prefetches = policy.uses_times() && is_held && !self.is_prefetching;
        self.is_prefetching |= prefetches;
        Answer::Waits { prefetches }
    }

    fn looks(&mut self, now: Nanos) -> bool {
        let looks = self.joins >= JOINS || now.since(self.looked) >= LOOK;
        if looks {
            (self.joins, self.looked) = (0, now);
        }
        looks
    }

    /// Returns a waiter's state; a final state is returned once.
    pub(super) fn waiter_state(&mut self, ticket: Ticket, waker: &Waker) -> WaiterState {
        let index = self.waiters.iter().position(|waiting| waiting.ticket == ticket);
        let Some(index) = index else { unreachable!("a waiter is there until it is told") };
        let waiting = &mut self.waiters[index];
        match waiting.waiter_state {
            WaiterState::Waits => match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                None => waiting.waker = Some(waker.clone()),
            },
            WaiterState::Asks => {
                (self.state, self.asker) = (NodeState::Asking(waiting.wish.mode), Some(ticket));
                self.waiters.remove(index);
                return WaiterState::Asks;
            }
            WaiterState::Holds | WaiterState::Failed(_) => {
                return self.waiters.remove(index).waiter_state;
            }
        }
        WaiterState::Waits
    }

    /// Removes a waiter that gives up. Returns the waiter's previous state: a holder must leave the
    /// lock.
    pub(super) fn cancel(&mut self, policy: Policy, ticket: Ticket) -> (WaiterState, LockEffects) {
        let index = self.waiters.iter().position(|waiting| waiting.ticket == ticket);
        let Some(index) = index else { return (WaiterState::Waits, LockEffects::default()) };
        let waiter_state = self.waiters.remove(index).waiter_state;
        let outcome = match waiter_state {
            WaiterState::Asks => self.call(policy, None),
            WaiterState::Waits | WaiterState::Holds | WaiterState::Failed(_) => {
                LockEffects::default()
            }
        };
        (waiter_state, outcome)
    }

    /// Handles that the asking client gives up. Returns whether the request goes on nevertheless:
    /// for another waiter of the same mode, or because the request cannot leave its queue place
    /// (I306).
    pub(super) fn desert(&mut self, policy: Policy, can_leave: bool) -> (bool, LockEffects) {
        self.asker = None;
        let NodeState::Asking(mode) = self.state else { return (true, LockEffects::default()) };
        if !can_leave || self.is_awaited(Some(mode)) {
            return (true, LockEffects::default());
        }
        (false, self.call(policy, None))
    }

    /// Records the node's acquisition of the lock in mode `mode`, at `home`. `remote` is the time
    /// of the earliest waiter of another node, if known.
    pub(super) fn won(
        &mut self,
        policy: Policy,
        mode: Mode,
        home: Home,
        remote: Option<u16>,
        now: Nanos,
    ) -> LockEffects {
        self.state = NodeState::Held(mode, home);
        (self.given, self.is_closed, self.remote) = (0, false, remote);
        (self.joins, self.looked) = (0, now);
        let is_asker = self.asker.take().is_some();
        self.holders = u32::from(is_asker);
        let mut wakes = Vec::new();
        if mode == Mode::Shared || !is_asker {
            self.hand_out(policy, mode, &mut wakes);
        }
        let gives_up = (self.holders == 0).then(|| self.give_up(mode, home));
        LockEffects { wakes, gives_up, is_asker }
    }

    /// Grants a lock held in this mode to waiters: to one writer, or to readers.
    fn hand_out(&mut self, policy: Policy, mode: Mode, wakes: &mut Vec<Waker>) {
        for index in 0..self.waiters.len() {
            let QueuedClient { wish, waiter_state, .. } = self.waiters[index];
            if waiter_state != WaiterState::Waits {
                continue;
            }
            let takes = match mode {
                Mode::Shared => {
                    let now = self.situation(mode);
                    match policy.shares(now, self.holders > 0, wish) {
                        Share::Takes => true,
                        Share::Passed => false,
                        Share::Ends => return,
                    }
                }
                _ => wish.mode == mode && self.holders == 0,
            };
            if takes {
                // The first waiter replaces the client that asked.
                self.given += u32::from(self.holders > 0);
                self.holders += 1;
                self.waiters[index].waiter_state = WaiterState::Holds;
                wakes.extend(self.waiters[index].waker.take());
            }
        }
    }

    const fn give_up(&mut self, mode: Mode, home: Home) -> Home {
        self.state = NodeState::Leaving(mode);
        home
    }

    /// Handles a failure of the node's request. A failure that concerns every client ends all
    /// waiting requests; otherwise the next client asks.
    pub(super) fn lost(&mut self, policy: Policy, why: NotHeld) -> LockEffects {
        self.asker = None;
        if !matches!(why, NotHeld::Unavailable | NotHeld::Expelled) {
            return self.call(policy, None);
        }
        self.state = NodeState::Free;
        let mut wakes = Vec::new();
        for waiting in
            self.waiters.iter_mut().filter(|waiting| waiting.waiter_state == WaiterState::Waits)
        {
            waiting.waiter_state = WaiterState::Failed(why);
            wakes.extend(waiting.waker.take());
        }
        LockEffects { wakes, ..LockEffects::default() }
    }

    /// Removes a holder.
    pub(super) fn leave(&mut self, policy: Policy) -> LockEffects {
        let is_broken = broken(Rule::LastSiblingsRelease);
        assert!(self.holders > 0 || is_broken, "a lock is left by its holders");
        self.holders = self.holders.saturating_sub(1);
        let mut outcome = LockEffects::default();
        let NodeState::Held(mode, home) = self.state else {
            // I305: clients hold a lock only while their node does.
            assert!(is_broken, "a node has the lock of its clients");
            return outcome;
        };
        if self.holders > 0 && !is_broken {
            return outcome;
        }
        let first = self.waiters.iter().find(|waiting| waiting.waiter_state == WaiterState::Waits);
        if first.is_some_and(|first| policy.keeps(self.situation(mode), first.wish)) {
            self.given += 1;
            self.hand_out(policy, mode, &mut outcome.wakes);
        } else {
            outcome.gives_up = Some(self.give_up(mode, home));
        }
        outcome
    }

    /// Records that the node has given the lock up.
    pub(super) fn released(&mut self, policy: Policy) -> LockEffects {
        let NodeState::Leaving(mode) = self.state else { unreachable!("it is being given up") };
        (self.remote, self.is_closed) = (None, false);
        self.call(policy, Some(mode))
    }

    /// Makes the next waiter ask, if there is one; the node had the lock before in mode `left`.
    fn call(&mut self, policy: Policy, left: Option<Mode>) -> LockEffects {
        self.state = NodeState::Free;
        let waits = self
            .waiters
            .iter()
            .enumerate()
            .filter(|(_, one)| one.waiter_state == WaiterState::Waits);
        let (indexes, wishes): (Vec<usize>, Vec<QueuedRequest>) =
            waits.map(|(index, waiting)| (index, waiting.wish)).unzip();
        let mut outcome = LockEffects::default();
        if let Some(next) = policy.elects(left, &wishes) {
            self.state = NodeState::Called;
            let waiting = &mut self.waiters[indexes[next]];
            waiting.waiter_state = WaiterState::Asks;
            outcome.wakes.extend(waiting.waker.take());
        }
        outcome
    }

    /// Lets no more readers join, and gives the lock up when its holders have left (I307).
    pub(super) const fn close(&mut self) {
        if matches!(self.state, NodeState::Held(..)) {
            self.is_closed = true;
        }
    }

    /// Records the time of remote waiters that the queue at the memory node showed.
    pub(super) fn note(&mut self, remote: Option<u16>) {
        self.is_prefetching = false;
        if let (NodeState::Held(..), Some(time)) = (self.state, remote) {
            self.remote = Some(self.remote.map_or(time, |known| earlier(known, time)));
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests;
