//! After the faults have healed, every client makes progress.

use std::collections::BTreeMap;

use lotus_benchmarks::history::{Attempt, History, Status};

use crate::verdict::Violation;

/// Name of the property.
pub const PROGRESS: &str = "every client makes progress once the faults have healed";

/// Clients that made `ATTEMPTS` attempts after `healed_ns`, on the clients' clock, in vain.
pub fn violations(history: &History, healed_ns: u64) -> Vec<Violation> {
    judge(history.attempts().map(|(attempt, _)| attempt), healed_ns)
}

fn judge<'a>(attempts: impl Iterator<Item = &'a Attempt>, healed_ns: u64) -> Vec<Violation> {
    // By client: attempts that began after that, and whether one that ended after it succeeded.
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
