//! An agent: the holders and waiters of one lock (FissLock §5.1). Pure data and decisions; the
//! machine's pool sends the resulting packets.

use std::collections::{BTreeSet, VecDeque};

use lotus_locks::word::Mode;

use super::packet::{Carried, MAX_WAITERS, Participant, Queued};
use super::rules::Preference;

/// Outcome of a request at the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The task holds the lock, beside other readers.
    Joins,
    /// The task waits.
    Waits,
    /// The queue is full.
    Full,
}

/// Next owner of a lock whose last holder has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextOwner {
    /// The lock has holders, or grants are in flight.
    Stays,
    /// The lock has no waiters.
    Free,
    /// The first waiter, and the agent sent to the waiter's machine.
    Moves(Queued, Carried),
}

/// Holders and waiters of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agent {
    /// Mode of the lock.
    pub mode: Mode,
    /// Mode of the lock at the switch. At home, the switch may have the lock as exclusive while
    /// readers hold it.
    pub at_switch: Mode,
    /// Number of the switch's shared grants counted since the agent arrived.
    pub incarnation: u8,
    /// Tasks holding the lock.
    pub holders: BTreeSet<Participant>,
    /// Waiting tasks, in queue order.
    pub queue: VecDeque<Queued>,
    /// Tasks that released the lock before the agent heard of their grants.
    pub early: BTreeSet<Participant>,
    /// The switch was told that readers starve a writer.
    pub starving: bool,
    /// Incarnation at which the switch refused to let the agent go, because shared grants are in
    /// flight.
    pub refused_at: Option<u8>,
}

impl Agent {
    /// Creates the agent carried by a grant, with its first holder.
    pub fn arrived(carried: Carried, holder: Participant) -> Self {
        Self {
            mode: carried.mode,
            at_switch: carried.mode,
            incarnation: carried.incarnation,
            holders: BTreeSet::from([holder]),
            queue: carried.waiters.into(),
            early: BTreeSet::new(),
            starving: false,
            refused_at: None,
        }
    }

    /// Returns whether a writer waits.
    pub fn has_writer(&self) -> bool {
        self.queue.iter().any(|waiter| waiter.mode != Mode::Shared)
    }

    /// Admits a request not granted by the switch, or made on the agent's machine.
    pub fn ask(&mut self, who: Participant, mode: Mode, preference: Preference) -> Admission {
        let is_closed = self.starving || (preference == Preference::Writers && self.has_writer());
        if mode == Mode::Shared && self.mode == Mode::Shared && !is_closed {
            self.holders.insert(who);
            return Admission::Joins;
        }
        if self.queue.len() >= MAX_WAITERS {
            return Admission::Full;
        }
        self.queue.push_back(Queued { who, mode });
        Admission::Waits
    }

    /// Returns whether no task holds the lock or waits, and the switch does not grant it: every
    /// request comes to the agent.
    pub fn is_resting(&self) -> bool {
        self.is_unheld() && self.queue.is_empty()
    }

    /// Returns whether no task holds the lock, and the switch does not grant it.
    fn is_unheld(&self) -> bool {
        let is_granted = self.at_switch == Mode::Shared || !self.early.is_empty();
        !is_granted && self.holders.is_empty()
    }

    /// Gives a lock that is not held to a task, at home.
    pub fn take(&mut self, who: Participant, mode: Mode) {
        (self.mode, self.starving) = (mode, false);
        self.holders.insert(who);
    }

    /// Gives the lock to the first waiter, of whichever machine, and to the readers sharing with
    /// that waiter. Used at home, when the last holder has left. Without waiters, the agent rests.
    /// Returns the new holders.
    pub fn stay(&mut self, preference: Preference) -> Vec<Participant> {
        if !self.is_unheld() {
            return Vec::new();
        }
        let Some(first) = self.queue.pop_front() else {
            (self.mode, self.starving) = (Mode::Exclusive, false);
            return Vec::new();
        };
        self.take(first.who, first.mode);
        let mut holders = vec![first.who];
        holders.extend(self.share(preference));
        holders
    }

    /// Counts a shared grant of the switch.
    pub fn count(&mut self, who: Participant) {
        self.incarnation = self.incarnation.wrapping_add(1);
        if !self.early.remove(&who) {
            self.holders.insert(who);
        }
    }

    /// Removes a holder. A task that is not a holder has been granted the lock by the switch, and
    /// the agent is about to hear of the grant: the release is remembered. The agent cannot move
    /// before the grant arrives, because the agent's incarnation differs from the switch's.
    pub fn release(&mut self, who: Participant) {
        if !self.holders.remove(&who) {
            self.early.insert(who);
        }
    }

    /// Removes a waiter. Returns whether the task was waiting.
    pub fn withdraw(&mut self, who: Participant) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiter| waiter.who != who);
        self.queue.len() < before
    }

    /// Removes a task, as published: from the queue or from the holders; a task in neither is
    /// remembered.
    pub fn release_published(&mut self, who: Participant) {
        if !self.withdraw(who) {
            self.release(who);
        }
    }

    /// Returns the waiting readers with whom a shared holder shares the lock: every waiting reader,
    /// or only the readers in front of the first writer if writers are preferred. The readers
    /// become holders.
    pub fn share(&mut self, preference: Preference) -> Vec<Participant> {
        if self.mode != Mode::Shared {
            return Vec::new();
        }
        let mut shared = Vec::new();
        let mut left = VecDeque::new();
        for waiter in self.queue.drain(..) {
            let is_behind = preference == Preference::Writers && !left.is_empty();
            if waiter.mode == Mode::Shared && !is_behind {
                shared.push(waiter.who);
            } else {
                left.push_back(waiter);
            }
        }
        self.queue = left;
        self.holders.extend(&shared);
        shared
    }

    /// Returns the next owner. The agent is unchanged, because the switch may refuse the change.
    pub fn next(&self) -> NextOwner {
        let is_refused =
            self.at_switch == Mode::Shared && self.refused_at == Some(self.incarnation);
        if !self.holders.is_empty() || !self.early.is_empty() || is_refused {
            return NextOwner::Stays;
        }
        let mut waiters = self.queue.iter().copied();
        match waiters.next() {
            None => NextOwner::Free,
            Some(first) => {
                let waiters = waiters.collect();
                NextOwner::Moves(first, Carried { mode: first.mode, incarnation: 0, waiters })
            }
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    fn task(task: u32) -> Participant {
        Participant { machine: 1, task, nonce: 0 }
    }

    fn agent(mode: Mode, waiting: &[Mode]) -> Agent {
        let queued =
            |(number, mode): (usize, &Mode)| Queued { who: task(number as u32), mode: *mode };
        let waiters = waiting.iter().enumerate().map(queued).collect();
        Agent::arrived(Carried { mode, incarnation: 0, waiters }, task(100))
    }

    #[test]
    fn readers_join_readers_unless_a_writer_is_preferred() {
        use Mode::{Exclusive, Shared};
        let table = [
            (Shared, vec![], Shared, Preference::Readers, Admission::Joins),
            (Shared, vec![Exclusive], Shared, Preference::Readers, Admission::Joins),
            (Shared, vec![Exclusive], Shared, Preference::Writers, Admission::Waits),
            (Shared, vec![], Exclusive, Preference::Readers, Admission::Waits),
            (Exclusive, vec![], Shared, Preference::Readers, Admission::Waits),
            (Exclusive, vec![Shared; MAX_WAITERS], Shared, Preference::Readers, Admission::Full),
        ];
        for (mode, waiting, wanted, preference, expected) in table {
            let mut agent = agent(mode, &waiting);
            assert_eq!(agent.ask(task(999), wanted, preference), expected);
            assert_eq!(agent.holders.contains(&task(999)), expected == Admission::Joins);
        }
        let mut starved = Agent { starving: true, ..agent(Shared, &[Exclusive]) };
        assert_eq!(starved.ask(task(999), Shared, Preference::Readers), Admission::Waits);
    }

    #[test]
    fn a_release_that_overtakes_its_grant_is_remembered() {
        let mut agent = agent(Mode::Shared, &[]);
        agent.release(task(1));
        agent.release(task(100));
        assert_eq!(agent.next(), NextOwner::Stays, "a grant is under way");
        agent.count(task(1));
        assert_eq!((agent.incarnation, agent.next()), (1, NextOwner::Free));
    }

    #[test]
    fn a_reader_shares_with_readers_that_wait() {
        use Mode::{Exclusive, Shared};
        let waiting = [Shared, Exclusive, Shared];
        let table = [(Preference::Readers, vec![0, 2], 1), (Preference::Writers, vec![0], 2)];
        for (preference, expected, left) in table {
            let mut agent = agent(Shared, &waiting);
            let shared: Vec<_> = agent.share(preference).iter().map(|who| who.task).collect();
            assert_eq!((shared, agent.queue.len()), (expected, left));
        }
        assert_eq!(agent(Exclusive, &waiting).share(Preference::Readers), []);
    }

    #[test]
    fn the_first_waiter_comes_next() {
        let mut agent = agent(Mode::Exclusive, &[Mode::Shared, Mode::Exclusive]);
        assert_eq!(agent.next(), NextOwner::Stays);
        agent.release(task(100));
        let NextOwner::Moves(first, carried) = agent.next() else { panic!("a waiter") };
        assert_eq!((first.who, carried.mode, carried.waiters.len()), (task(0), Mode::Shared, 1));
        assert_eq!(agent.queue.len(), 2, "the switch may refuse it");
        assert!(agent.withdraw(task(1)) && !agent.withdraw(task(1)));
    }

    #[test]
    fn an_agent_that_was_refused_waits_for_a_grant() {
        let mut agent = agent(Mode::Shared, &[]);
        agent.release(task(100));
        agent.refused_at = Some(0);
        assert_eq!(agent.next(), NextOwner::Stays);
        agent.count(task(1));
        agent.release(task(1));
        assert_eq!(agent.next(), NextOwner::Free);
    }
}
