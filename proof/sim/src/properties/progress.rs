//! After the faults have healed, every client makes progress, and no client waits for a lock until
//! its deadline.

use std::collections::BTreeMap;

use lotus_benchmarks::history::{Attempt, History, Status};

use crate::verdict::Violation;

/// Name of the property.
pub const PROGRESS: &str = "every client makes progress once the faults have healed";

/// Clients with `ATTEMPTS` or more attempts after `healed_ns`, on the clients' clock, all in vain.
/// The last faults of the storm are no longer felt then: a transaction that holds its locks until
/// its time limit starves others by right.
pub fn violations(history: &History, healed_ns: u64) -> Vec<Violation> {
    judge(history.attempts().map(|(attempt, _)| attempt), healed_ns)
}

/// Name of the property.
pub const WAITS: &str = "no transaction waits until its deadline once the faults have healed";

/// Attempts that began after `healed_ns` and failed after `longest_ns` or more, the time limit of
/// an acquisition of locks.
pub fn waits(history: &History, healed_ns: u64, longest_ns: u64) -> Vec<Violation> {
    judge_waits(history.attempts().map(|(attempt, _)| attempt), healed_ns, longest_ns)
}

fn judge_waits<'a>(
    attempts: impl Iterator<Item = &'a Attempt>,
    healed_ns: u64,
    longest_ns: u64,
) -> Vec<Violation> {
    let vain = |attempt: &&Attempt| {
        attempt.status == Status::Fail
            && attempt.start_ns > healed_ns
            && attempt.end_ns.saturating_sub(attempt.start_ns) >= longest_ns
    };
    let vain: Vec<_> = attempts.filter(vain).collect();
    vain.first().map_or_else(Vec::new, |first| {
        let took_us = (first.end_ns - first.start_ns) / 1_000;
        let client = first.session;
        let detail = format!("{} attempts; one of client {client} took {took_us} us", vain.len());
        vec![Violation { property: WAITS.to_owned(), detail }]
    })
}

fn judge<'a>(attempts: impl Iterator<Item = &'a Attempt>, healed_ns: u64) -> Vec<Violation> {
    // By client: attempts begun after `healed_ns`, and whether an attempt ended after it with
    // success.
    let mut clients: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    for attempt in attempts {
        let (tried, succeeded) = clients.entry(attempt.session).or_default();
        *tried += u64::from(attempt.start_ns > healed_ns);
        *succeeded |= attempt.end_ns > healed_ns && attempt.status == Status::Ok;
    }
    let starved: Vec<_> = clients
        .iter()
        .filter(|(_, (tried, succeeded))| *tried >= ATTEMPTS && !succeeded)
        .map(|(client, (tried, _))| format!("client {client} failed {tried} times"))
        .collect();
    starved.first().map_or_else(Vec::new, |first| {
        let detail = format!("{} of {} clients starved; {first}", starved.len(), clients.len());
        vec![Violation { property: PROGRESS.to_owned(), detail }]
    })
}

/// Number of attempts that a client may fail in a row by mere bad luck.
const ATTEMPTS: u64 = 64;
