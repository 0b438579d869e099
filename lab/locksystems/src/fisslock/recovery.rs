//! Recovery from lost machines and from a lost switch (FissLock §5.3).
//!
//! S1: every surviving machine stops and reports ([`super::AgentPool::report`]). S2: [`restore`]
//! computes the state of every lock from the reports. S3: the switch is rewritten from the locks'
//! [`metadata`] ([`super::Decider::recover`]), and every pool resumes with the locks that concern
//! the machine ([`concerning`], [`super::AgentPool::recover`]), in a new epoch: packets of earlier
//! epochs are dropped.
//!
//! Locks of dead machines end only when the switch filters the dead machines' packets, and when no
//! action of a dead holder under a lock can take effect any more. The caller ensures the latter.

use std::collections::{BTreeMap, BTreeSet};

use lotus_locks::word::Mode;

use super::agent::Agent;
use super::decider::Metadata;
use super::packet::{Participant, Queued};

/// Whether a request was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granted {
    /// The task holds the lock.
    Holds,
    /// The task waits for the lock.
    Waits,
}

/// An agent on a machine. The lock's holders are reported by the tasks themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedAgent {
    /// Waiting tasks, in queue order.
    pub queue: Vec<Queued>,
    /// The agent was about to leave, and may have left: the machine has no acknowledgement.
    pub leaves: bool,
}

/// State of a surviving machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineReport {
    /// The machine.
    pub machine: u8,
    /// The machine's agents, by lock.
    pub agents: Vec<(u32, HostedAgent)>,
    /// Locks held or awaited by the machine's tasks.
    pub requests: Vec<(u32, Participant, Mode, Granted)>,
}

/// A lock with at least one holder, after a recovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Mode in which the lock is held.
    pub mode: Mode,
    /// Machine of the agent.
    pub agent_at: u8,
    /// Tasks holding the lock. Some may have been waiters before the recovery.
    pub holders: BTreeSet<Participant>,
    /// Waiting tasks, in queue order.
    pub waiters: Vec<Queued>,
}

impl Restored {
    /// Returns the lock's state in the switch.
    pub fn metadata(&self) -> Metadata {
        Metadata {
            held: true,
            shared: self.mode == Mode::Shared,
            machine: self.agent_at,
            ..Metadata::default()
        }
    }

    /// Returns the lock's agent.
    pub fn agent(&self) -> Agent {
        Agent {
            mode: self.mode,
            at_switch: self.mode,
            incarnation: 0,
            holders: self.holders.clone(),
            queue: self.waiters.iter().copied().collect(),
            early: BTreeSet::new(),
            starving: false,
            refused_at: None,
        }
    }
}

/// Computes the state of every lock from the reports of every surviving machine. Locks missing in
/// the result are free.
///
/// Holders are the surviving tasks with a grant. The agent stays where it was if that machine
/// survives; otherwise the agent is recreated at the first holder's machine. Waiters are in the
/// order of the agent's queue, then by machine and task. A lock with waiters and without a holder
/// is granted to the first waiter, and to the adjacent readers if the first waiter is a reader.
pub fn restore(reports: &[MachineReport]) -> BTreeMap<u32, Restored> {
    let mut hosts: BTreeMap<u32, (u8, &HostedAgent)> = BTreeMap::new();
    for report in reports {
        for (lock, hosted) in &report.agents {
            let host = hosts.entry(*lock).or_insert((report.machine, hosted));
            // An agent that has arrived is newer than the copy still marked as leaving elsewhere.
            if host.1.leaves && !hosted.leaves {
                *host = (report.machine, hosted);
            }
        }
    }
    let mut requests: BTreeMap<u32, Vec<(Participant, Mode, Granted)>> = BTreeMap::new();
    for report in reports {
        for &(lock, who, mode, granted) in &report.requests {
            requests.entry(lock).or_default().push((who, mode, granted));
        }
    }
    requests
        .into_iter()
        .map(|(lock, requests)| (lock, restored(&requests, hosts.get(&lock).copied())))
        .collect()
}

/// Returns the state of restored locks in the switch.
pub fn metadata(locks: &BTreeMap<u32, Restored>) -> BTreeMap<u32, Metadata> {
    locks.iter().map(|(&lock, restored)| (lock, restored.metadata())).collect()
}

/// Returns the restored locks that concern a machine: locks whose agents the machine hosts,
/// complete, and other locks held by the machine's tasks, with these holders only.
pub fn concerning(machine: u8, locks: &BTreeMap<u32, Restored>) -> BTreeMap<u32, Restored> {
    let own = |restored: &Restored| {
        if restored.agent_at == machine {
            return Some(restored.clone());
        }
        let holders = restored.holders.iter().filter(|who| who.machine == machine);
        let holders: BTreeSet<_> = holders.copied().collect();
        let (mode, agent_at) = (restored.mode, restored.agent_at);
        let is_there = !holders.is_empty();
        is_there.then(|| Restored { mode, agent_at, holders, waiters: Vec::new() })
    };
    locks.iter().filter_map(|(&lock, restored)| Some((lock, own(restored)?))).collect()
}

/// Computes a lock from its requests and, if the agent survives, the agent with its machine.
fn restored(
    requests: &[(Participant, Mode, Granted)],
    host: Option<(u8, &HostedAgent)>,
) -> Restored {
    let place = |who: Participant| {
        let mut queue = host.iter().flat_map(|(_, hosted)| hosted.queue.iter());
        (queue.position(|queued| queued.who == who).unwrap_or(usize::MAX), who)
    };
    let (held, waiting): (Vec<_>, Vec<_>) =
        requests.iter().partition(|(_, _, granted)| *granted == Granted::Holds);
    let mut waiters: Vec<_> = waiting.iter().map(|&(who, mode, _)| Queued { who, mode }).collect();
    waiters.sort_by_key(|waiter| place(waiter.who));

    let mode = held.first().map_or_else(|| waiters[0].mode, |&(_, mode, _)| mode);
    let mut holders: BTreeSet<_> = held.iter().map(|(who, _, _)| *who).collect();
    let first = holders.first().copied().unwrap_or_else(|| waiters[0].who);
    if holders.is_empty() {
        let is_granted = |waiter: &Queued| waiter.mode == Mode::Shared;
        let readers = waiters.iter().take_while(|waiter| is_granted(waiter)).count();
        holders.extend(waiters.drain(..readers.max(1)).map(|waiter| waiter.who));
    }
    let agent_at = host.map_or(first.machine, |(machine, _)| machine);
    Restored { mode, agent_at, holders, waiters }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use Granted::{Holds, Waits};
    use Mode::{Exclusive, Shared};

    fn who(machine: u8, task: u32) -> Participant {
        Participant { machine, task, nonce: 1 }
    }

    fn queue(queue: &[Participant]) -> Vec<Queued> {
        queue.iter().map(|&who| Queued { who, mode: Exclusive }).collect()
    }

    fn report(machine: u8, requests: &[(u32, Mode, Granted)]) -> MachineReport {
        let of = |&(task, mode, granted)| (0, who(machine, task), mode, granted);
        MachineReport { machine, agents: Vec::new(), requests: requests.iter().map(of).collect() }
    }

    fn waiters(restored: &Restored) -> Vec<Participant> {
        restored.waiters.iter().map(|waiter| waiter.who).collect()
    }

    #[test]
    fn holders_are_kept_and_waiters_stay_in_the_order_of_the_queue() {
        let mut first = report(1, &[(1, Exclusive, Holds), (2, Exclusive, Waits)]);
        let second = report(2, &[(1, Exclusive, Waits), (2, Shared, Waits)]);
        let queue = queue(&[who(2, 1), who(7, 1), who(1, 2)]);
        first.agents = vec![(0, HostedAgent { queue, leaves: false })];
        let restored = &restore(&[first, second])[&0];
        assert_eq!(restored.mode, Exclusive);
        assert_eq!(restored.agent_at, 1, "where it was");
        assert_eq!(restored.holders, BTreeSet::from([who(1, 1)]));
        assert_eq!(waiters(restored), [who(2, 1), who(1, 2), who(2, 2)], "none of the dead");
        let expected = Metadata { held: true, machine: 1, ..Metadata::default() };
        assert_eq!(restored.metadata(), expected);
    }

    #[test]
    fn an_agent_of_the_dead_is_made_again_at_the_first_holder() {
        let first = report(3, &[(8, Shared, Holds), (9, Exclusive, Waits)]);
        let second = report(2, &[(1, Shared, Holds), (2, Shared, Waits)]);
        let restored = &restore(&[first, second])[&0];
        assert_eq!((restored.agent_at, restored.mode), (2, Shared));
        assert_eq!(restored.holders, BTreeSet::from([who(2, 1), who(3, 8)]));
        assert_eq!(waiters(restored), [who(2, 2), who(3, 9)], "by machine and task");
        assert_eq!(restored.agent().incarnation, restored.metadata().incarnation);
    }

    #[test]
    fn a_lock_that_only_the_dead_held_is_granted_to_the_first_waiters() {
        let first = report(3, &[(8, Shared, Waits), (9, Exclusive, Waits)]);
        let second = report(2, &[(1, Shared, Waits)]);
        let restored = &restore(&[first, second])[&0];
        assert_eq!((restored.agent_at, restored.mode), (2, Shared));
        assert_eq!(restored.holders, BTreeSet::from([who(2, 1), who(3, 8)]));
        assert_eq!(waiters(restored), [who(3, 9)]);
        assert!(restore(&[report(1, &[])]).is_empty(), "and is free if none waits");
    }

    #[test]
    fn an_agent_that_has_arrived_is_newer_than_the_one_that_left() {
        let mut first = report(1, &[(2, Exclusive, Waits)]);
        let mut second = report(2, &[(1, Exclusive, Holds), (2, Exclusive, Waits)]);
        let left = HostedAgent { queue: queue(&[who(1, 2), who(2, 1)]), leaves: true };
        first.agents = vec![(0, left)];
        let arrived = HostedAgent { queue: queue(&[who(2, 2), who(1, 2)]), leaves: false };
        second.agents = vec![(0, arrived)];
        let restored = &restore(&[first, second])[&0];
        assert_eq!(restored.agent_at, 2);
        assert_eq!(waiters(restored), [who(2, 2), who(1, 2)]);
    }

    #[test]
    fn a_machine_is_told_of_its_agents_and_of_its_holders() {
        let first = report(1, &[(1, Shared, Holds), (2, Exclusive, Waits)]);
        let second = report(2, &[(1, Shared, Holds), (2, Exclusive, Waits)]);
        let third = report(3, &[(1, Exclusive, Waits)]);
        let locks = restore(&[first, second, third]);
        assert_eq!(concerning(1, &locks), locks, "the agent is there");
        let told = &concerning(2, &locks)[&0];
        assert_eq!((told.mode, told.agent_at), (Shared, 1));
        assert_eq!(told.holders, BTreeSet::from([who(2, 1)]));
        assert_eq!(told.waiters, [], "the agent knows of them");
        assert!(concerning(3, &locks).is_empty(), "it only waits");
        assert_eq!(metadata(&locks)[&0], locks[&0].metadata());
    }
}
