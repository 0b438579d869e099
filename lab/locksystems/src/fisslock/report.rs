//! Byte encoding of the machines' reports for a recovery, and of the recovery's results.
//!
//! | report | bytes |
//! |---|---|
//! | machine | 1 |
//! | agents: number; for each: lock, 1 if leaving else 0, waiters | 4; 4, 1, a list |
//! | requests: number; for each: lock, 1 if holding else 0, task with mode | 4; 4, 1, 8 |
//!
//! | locks | bytes |
//! |---|---|
//! | number; for each: lock, agent's machine, mode, holders, waiters | 4; 4, 1, 1, two lists |
//!
//! | state of the switch | bytes |
//! |---|---|
//! | lost machines: number; for each: machine | 1; 1 |
//! | held locks, up to the end; for each: lock, agent's machine, mode | 4, 1, 1 |
//!
//! A list is a count of 4 bytes followed by 8 bytes for each task: mode (1 shared), machine, nonce,
//! task. Numbers are little-endian.

use std::collections::BTreeMap;

use lotus_locks::word::Mode;

use super::decider::Metadata;
use super::packet::{Participant, Queued};
use super::recovery::{Granted, HostedAgent, MachineReport, Restored};

/// Locks by number, as restored by a recovery.
pub type Locks = BTreeMap<u32, Restored>;

/// Encodes a report.
pub fn encode_report(report: &MachineReport) -> Vec<u8> {
    let mut bytes = vec![report.machine];
    put_number(&mut bytes, report.agents.len());
    for (lock, hosted) in &report.agents {
        bytes.extend(lock.to_le_bytes());
        bytes.push(u8::from(hosted.leaves));
        put_list(&mut bytes, &hosted.queue);
    }
    put_number(&mut bytes, report.requests.len());
    for &(lock, who, mode, granted) in &report.requests {
        bytes.extend(lock.to_le_bytes());
        bytes.push(u8::from(granted == Granted::Holds));
        put_task(&mut bytes, Queued { who, mode });
    }
    bytes
}

/// Decodes a report; `None` for malformed bytes.
pub fn decode_report(bytes: &[u8]) -> Option<MachineReport> {
    let mut rest = bytes;
    let [machine] = take(&mut rest)?;
    let agents = (0..number(&mut rest)?).map(|_| {
        let (lock, leaves) = (number(&mut rest)?, bit(&mut rest)?);
        Some((lock, HostedAgent { queue: list(&mut rest)?, leaves }))
    });
    let agents = agents.collect::<Option<_>>()?;
    let requests = (0..number(&mut rest)?).map(|_| {
        let (lock, holds, Queued { who, mode }) =
            (number(&mut rest)?, bit(&mut rest)?, task(&mut rest)?);
        Some((lock, who, mode, if holds { Granted::Holds } else { Granted::Waits }))
    });
    let requests = requests.collect::<Option<_>>()?;
    rest.is_empty().then_some(MachineReport { machine, agents, requests })
}

/// Encodes locks.
pub fn encode_locks(locks: &Locks) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_number(&mut bytes, locks.len());
    for (lock, restored) in locks {
        let mode = restored.mode;
        bytes.extend(lock.to_le_bytes());
        bytes.extend([restored.agent_at, u8::from(mode == Mode::Shared)]);
        let holders: Vec<_> = restored.holders.iter().map(|&who| Queued { who, mode }).collect();
        put_list(&mut bytes, &holders);
        put_list(&mut bytes, &restored.waiters);
    }
    bytes
}

/// Decodes locks; `None` for malformed bytes.
pub fn decode_locks(bytes: &[u8]) -> Option<Locks> {
    let mut rest = bytes;
    let mut locks = Locks::new();
    for _ in 0..number(&mut rest)? {
        let (lock, [agent_at]) = (number(&mut rest)?, take(&mut rest)?);
        let mode = if bit(&mut rest)? { Mode::Shared } else { Mode::Exclusive };
        let (holders, waiters) = (list(&mut rest)?, list(&mut rest)?);
        let holders = holders.into_iter().map(|holder| holder.who).collect();
        locks.insert(lock, Restored { mode, agent_at, holders, waiters });
    }
    rest.is_empty().then_some(locks)
}

/// Maximum number of bytes of a switch's state.
pub const fn switch_bytes(locks: u32) -> usize {
    1 + u8::MAX as usize + HELD_BYTES * locks as usize
}

/// Bytes of a held lock, in the state of a switch.
const HELD_BYTES: usize = 6;

/// Encodes a switch's state after a recovery: the `dead` machines, at most 255, and the held locks.
pub fn encode_switch(dead: &[u8], locks: &BTreeMap<u32, Metadata>) -> Vec<u8> {
    let mut bytes = vec![dead.len() as u8];
    bytes.extend(dead);
    for (lock, state) in locks {
        bytes.extend(lock.to_le_bytes());
        bytes.extend([state.machine, u8::from(state.shared)]);
    }
    bytes
}

/// Decodes the dead machines and the held locks; `None` for malformed bytes.
pub fn decode_switch(bytes: &[u8]) -> Option<(Vec<u8>, BTreeMap<u32, Metadata>)> {
    let (dead, rest) = bytes.split_first()?;
    let (dead, mut rest) = rest.split_at_checked(usize::from(*dead))?;
    let mut locks = BTreeMap::new();
    while !rest.is_empty() {
        let (lock, [machine]) = (number(&mut rest)?, take(&mut rest)?);
        let (held, shared) = (true, bit(&mut rest)?);
        locks.insert(lock, Metadata { held, shared, machine, ..Metadata::default() });
    }
    Some((dead.to_vec(), locks))
}

fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend((number as u32).to_le_bytes());
}

fn put_task(bytes: &mut Vec<u8>, queued: Queued) {
    bytes.extend([u8::from(queued.mode == Mode::Shared), queued.who.machine]);
    bytes.extend(queued.who.nonce.to_le_bytes());
    bytes.extend(queued.who.task.to_le_bytes());
}

fn put_list(bytes: &mut Vec<u8>, list: &[Queued]) {
    put_number(bytes, list.len());
    list.iter().for_each(|queued| put_task(bytes, *queued));
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

fn bit(rest: &mut &[u8]) -> Option<bool> {
    match take(rest)? {
        [0] => Some(false),
        [1] => Some(true),
        [_] => None,
    }
}

fn task(rest: &mut &[u8]) -> Option<Queued> {
    let mode = if bit(rest)? { Mode::Shared } else { Mode::Exclusive };
    let ([machine], nonce) = (take(rest)?, u16::from_le_bytes(take(rest)?));
    Some(Queued { who: Participant { machine, task: number(rest)?, nonce }, mode })
}

/// Decodes a list. The vector grows with the tasks decoded, not with the announced number.
fn list(rest: &mut &[u8]) -> Option<Vec<Queued>> {
    let mut all = Vec::new();
    for _ in 0..number(rest)? {
        all.push(task(rest)?);
    }
    Some(all)
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fisslock::recovery::metadata;

    fn who(machine: u8, task: u32) -> Participant {
        Participant { machine, task, nonce: 0x1234 }
    }

    fn small_report() -> MachineReport {
        let queued = Queued { who: who(9, 70_000), mode: Mode::Shared };
        MachineReport {
            machine: 3,
            agents: vec![
                (7, HostedAgent { queue: vec![queued, queued], leaves: true }),
                (8, HostedAgent { queue: Vec::new(), leaves: false }),
            ],
            requests: vec![
                (7, who(3, 1), Mode::Exclusive, Granted::Holds),
                (9, who(3, 2), Mode::Shared, Granted::Waits),
            ],
        }
    }

    fn small_locks() -> Locks {
        let restored = Restored {
            mode: Mode::Shared,
            agent_at: 200,
            holders: BTreeSet::from([who(1, 2), who(2, 1)]),
            waiters: vec![Queued { who: who(3, 4), mode: Mode::Exclusive }],
        };
        Locks::from([(5, restored.clone()), (1_000_000, restored)])
    }

    #[test]
    fn reports_and_locks_are_read_as_they_were_written() {
        assert_eq!(decode_report(&encode_report(&small_report())), Some(small_report()));
        assert_eq!(decode_locks(&encode_locks(&small_locks())), Some(small_locks()));
        assert_eq!(decode_locks(&encode_locks(&Locks::new())), Some(Locks::new()));
    }

    #[test]
    fn the_state_of_a_switch_is_read_as_it_was_written() {
        let (dead, locks) = (vec![3, 200], metadata(&small_locks()));
        let bytes = encode_switch(&dead, &locks);
        assert_eq!(bytes.len(), 3 + HELD_BYTES * locks.len());
        assert_eq!(decode_switch(&bytes), Some((dead, locks)));
        assert_eq!(decode_switch(&[0]), Some((Vec::new(), BTreeMap::new())));
        for end in (0..bytes.len()).filter(|end| end % HELD_BYTES != 3) {
            assert_eq!(decode_switch(&bytes[..end]), None, "{end} bytes");
        }
        let marked = [&bytes[..bytes.len() - 1], &[2]].concat();
        assert_eq!(decode_switch(&marked), None, "the mode");
    }

    #[test]
    fn garbage_is_refused() {
        let (report, locks) = (encode_report(&small_report()), encode_locks(&small_locks()));
        for end in 0..report.len() {
            assert_eq!(decode_report(&report[..end]), None, "{end} bytes");
        }
        for end in 0..locks.len() {
            assert_eq!(decode_locks(&locks[..end]), None, "{end} bytes");
        }
        assert_eq!(decode_report(&[&report[..], &[0]].concat()), None);
        assert_eq!(decode_locks(&[&locks[..], &[0]].concat()), None);
        let flagged = |at: usize| {
            let mut bytes = report.clone();
            bytes[at] = 2;
            decode_report(&bytes)
        };
        assert_eq!(flagged(9), None, "leaves");
        assert_eq!(flagged(14), None, "the mode of a waiter");
        assert_eq!(decode_locks(&[255; 4]), None, "more than there are");
    }
}
