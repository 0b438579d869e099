//! An agent: holders and waiters of one lock (FissLock §5.1). Pure data and decisions; the pool of
//! its machine sends what they ask for.

use std::collections::{BTreeSet, VecDeque};

use lotus_locks::word::Mode;

use super::packet::{Carried, MAX_WAITERS, Participant, Queued};
use super::rules::Preference;

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It holds the lock, beside other readers.
    Joins,
    /// It waits.
    Waits,
    /// The queue is full.
    Full,
}

/// Next owner of a lock without holders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextOwner {
    /// There are holders, or some are under way.
    Stays,
    /// There are no waiters.
    Free,
    /// The first waiter, and the agent that goes to its machine.
    Moves(Queued, Carried),
}

/// Holders and waiters of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agent {
    /// Mode of the lock.
    pub mode: Mode,
    /// Mode of the lock at the switch. At home it may be exclusive while readers hold the lock.
    pub at_switch: Mode,
    /// Shared grants of the switch that have been counted, since the agent came.
    pub incarnation: u8,
    /// Tasks that hold the lock.
    pub holders: BTreeSet<Participant>,
    /// Tasks that wait, the first first.
    pub queue: VecDeque<Queued>,
    /// Tasks that have released the lock before the agent heard of their grants.
    pub early: BTreeSet<Participant>,
    /// The switch was told that readers starve a writer.
    pub starving: bool,
    /// The incarnation at which the switch refused to let the agent go: shared grants are under
    /// way.
    pub refused_at: Option<u8>,
}

impl Agent {
    /// The agent that came with a grant, and its first holder.
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

    /// Whether a writer waits.
    pub fn has_writer(&self) -> bool {
        self.queue.iter().any(|waiter| waiter.mode != Mode::Shared)
    }

    /// A request that the switch has not granted, or that was made on the agent's machine.
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

    /// Whether no task holds the lock or waits for it, and the switch grants it to none: all
    /// requests come to the agent.
    pub fn is_resting(&self) -> bool {
        self.is_unheld() && self.queue.is_empty()
    }

    /// Whether no task holds the lock, and the switch grants it to none.
    fn is_unheld(&self) -> bool {
        let is_granted = self.at_switch == Mode::Shared || !self.early.is_empty();
        !is_granted && self.holders.is_empty()
    }

    /// At home: a lock that is not held is given to a task.
    pub fn take(&mut self, who: Participant, mode: Mode) {
        (self.mode, self.starving) = (mode, false);
        self.holders.insert(who);
    }

    /// At home, when the last holder has left: gives the lock to the first waiter, of whichever
    /// machine, and to the readers that share it. Without waiters, the agent rests. Returns the new
    /// holders.
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

    /// A shared grant of the switch.
    pub fn count(&mut self, who: Participant) {
        self.incarnation = self.incarnation.wrapping_add(1);
        if !self.early.remove(&who) {
            self.holders.insert(who);
        }
    }

    /// A holder leaves. One that is none has been granted the lock by the switch, which the agent
    /// is about to hear: it is remembered. The agent cannot move before that, because its
    /// incarnation differs from the switch's.
    pub fn release(&mut self, who: Participant) {
        if !self.holders.remove(&who) {
            self.early.insert(who);
        }
    }

    /// A waiter leaves: whether it was one.
    pub fn withdraw(&mut self, who: Participant) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiter| waiter.who != who);
        self.queue.len() < before
    }

    /// A task leaves, as published: out of the holders or out of the queue; else it is remembered.
    pub fn release_published(&mut self, who: Participant) {
        if !self.withdraw(who) {
            self.release(who);
        }
    }

    /// Readers that a shared holder shares the lock with: all that wait, or those in front of the
    /// first writer if writers are preferred. They are holders from then on.
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

    /// The next owner. The agent is unchanged, because the switch may refuse it.
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
