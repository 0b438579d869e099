//! Locks of TATP: subscribers, rows of access information and special facilities have a lock each.
//! Call forwardings have fewer locks than rows, and share locks by a hash.

use lotus_benchmarks::tatp::{
    ACCESS_INFO, SPECIAL_FACILITY, SUBSCRIBER, Tatp, TatpProfile, TatpRequest,
};
use lotus_benchmarks::workload::{Workload as _, mix};
use rand::rngs::SmallRng;

use super::{Transaction, WantedLock};

/// Largest number of call forwardings of a subscriber, which determines the number of their locks.
const FORWARDINGS: u64 = 4;
/// Types of special facilities, from 1.
const FACILITIES: std::ops::RangeInclusive<u8> = 1..=4;

/// TATP as locks.
#[derive(Clone, Debug)]
pub struct TatpTrace {
    tatp: Tatp,
    /// First locks of access information, facilities and forwardings.
    access_info: u64,
    facilities: u64,
    forwardings: u64,
    locks: u64,
}

impl TatpTrace {
    /// Names of the types of transactions, in the order of [`Transaction::kind`].
    pub const KINDS: &'static [&'static str] = Tatp::TRANSACTIONS;
    /// Largest number of subscribers.
    pub const MAX_SUBSCRIBERS: u64 = 1 << 23;
    /// The published number of forwardings that share a lock, on average (public code of FissLock).
    pub const FORWARDINGS_A_LOCK: u64 = 5;

    /// A registry of `subscribers` subscribers; forwardings have four locks for each `factor` of
    /// the subscribers.
    ///
    /// # Panics
    /// If there are no subscribers, or more than [`Self::MAX_SUBSCRIBERS`], or the factor is 0.
    pub fn new(subscribers: u64, factor: u64, seed: u64) -> Self {
        assert!(subscribers <= Self::MAX_SUBSCRIBERS, "{subscribers} subscribers");
        let tatp = Tatp::new(subscribers, seed);
        let rows = |table| tatp.population().rows(table);
        let access_info = rows(SUBSCRIBER);
        let facilities = access_info + rows(ACCESS_INFO);
        let forwardings = facilities + rows(SPECIAL_FACILITY);
        let locks = forwardings + (subscribers * FORWARDINGS / factor).max(1);
        Self { tatp, access_info, facilities, forwardings, locks }
    }

    /// See [`super::Trace::locks`].
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Draws a transaction that finds at least one row: transactions that find no row take no lock,
    /// and are drawn again.
    pub(super) fn draw(&self, rng: &mut SmallRng) -> Transaction {
        loop {
            let request = self.tatp.draw(rng);
            let wants = self.wants(&request);
            if !wants.is_empty() {
                return Transaction::new(request.kind as usize, wants);
            }
        }
    }

    /// Locks of the rows that a request finds. An inserted row is locked, and a row to be deleted
    /// is locked if it existed at the beginning.
    fn wants(&self, request: &TatpRequest) -> Vec<WantedLock> {
        let &TatpRequest { kind, s_id, row_type, start_time, .. } = request;
        let s_id = u64::from(s_id);
        let subscriber = s_id - 1;
        let facility = |kind| self.tatp.population().row_of(SPECIAL_FACILITY, s_id, kind);
        let (own, at) = (facility(row_type), |row| self.facilities + row);
        let starts = |row, last| self.tatp.population().starts(row, last);
        let forwarding = |start| self.forwarding(s_id, row_type, start);
        let is_there = |row| starts(row, start_time).any(|start| start == start_time);
        match kind {
            TatpProfile::GetSubscriberData => vec![WantedLock::read(subscriber)],
            TatpProfile::GetNewDestination => {
                let Some(row) = own else { return Vec::new() };
                let to = starts(row, start_time).map(|start| WantedLock::read(forwarding(start)));
                std::iter::once(WantedLock::read(at(row))).chain(to).collect()
            }
            TatpProfile::GetAccessData => {
                let row = self.tatp.population().row_of(ACCESS_INFO, s_id, row_type);
                row.map(|row| WantedLock::read(self.access_info + row)).into_iter().collect()
            }
            TatpProfile::UpdateSubscriberData => {
                let facility = own.map(|row| WantedLock::write(at(row)));
                std::iter::once(WantedLock::write(subscriber)).chain(facility).collect()
            }
            TatpProfile::UpdateLocation => vec![WantedLock::write(subscriber)],
            TatpProfile::InsertCallForwarding => {
                let all = FACILITIES.filter_map(facility).map(|row| WantedLock::read(at(row)));
                let new = own.filter(|row| !is_there(*row));
                let new = new.map(|_| WantedLock::write(forwarding(start_time)));
                std::iter::once(WantedLock::read(subscriber)).chain(all).chain(new).collect()
            }
            TatpProfile::DeleteCallForwarding => {
                let old = own.filter(|row| is_there(*row));
                let old = old.map(|_| WantedLock::write(forwarding(start_time)));
                std::iter::once(WantedLock::read(subscriber)).chain(old).collect()
            }
        }
    }

    /// Lock of a forwarding.
    fn forwarding(&self, s_id: u64, sf_type: u8, start: u8) -> u64 {
        let name = s_id << 16 | u64::from(sf_type) << 8 | u64::from(start);
        self.forwardings + mix(name) % (self.locks - self.forwardings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_locks::Mode;
    use rand::SeedableRng;

    const DRAWS: usize = 100_000;

    fn published() -> TatpTrace {
        TatpTrace::new(100_000, TatpTrace::FORWARDINGS_A_LOCK, 1)
    }

    fn draws(trace: &TatpTrace) -> Vec<Transaction> {
        let mut rng = SmallRng::seed_from_u64(1);
        (0..DRAWS).map(|_| trace.draw(&mut rng)).collect()
    }

    /// The published trace drew the number of rows of each subscriber, which comes to 236 more.
    #[test]
    fn there_are_as_many_locks_as_published() {
        assert_eq!(published().locks(), 680_000);
        assert!((680_236_f64 / 680_000.0 - 1.0).abs() < 0.001);
    }

    #[test]
    fn most_requests_read_as_published() {
        let all = draws(&published());
        let wants = || all.iter().flat_map(|transaction| &transaction.wants);
        let readers = wants().filter(|want| want.mode == Mode::Shared).count();
        let share = 100.0 * readers as f64 / wants().count() as f64;
        assert!((share - 80.6).abs() < 0.5, "{share} % of the requests read");
        assert!(wants().all(|want| want.lock < published().locks()));
    }

    #[test]
    fn each_type_locks_the_tables_that_it_uses() {
        let trace = published();
        let mut counts = [0; TatpTrace::KINDS.len()];
        for Transaction { kind, wants } in draws(&trace) {
            counts[kind] += 1;
            let is_in = |want: &WantedLock, first, end| (first..end).contains(&want.lock);
            let within = |first, end| wants.iter().filter(|want| is_in(want, first, end)).count();
            let (subscribers, infos) =
                (within(0, trace.access_info), within(trace.access_info, trace.facilities));
            let facilities = within(trace.facilities, trace.forwardings);
            let forwardings = within(trace.forwardings, trace.locks);
            let writes = wants.iter().filter(|want| want.mode == Mode::Exclusive).count();
            let found = [subscribers, infos, facilities, forwardings, writes];
            let fits = match kind {
                0 => found == [1, 0, 0, 0, 0],
                1 => matches!(found, [0, 0, 1, 0..=3, 0]),
                2 => found == [0, 1, 0, 0, 0],
                3 => matches!(found, [1, 0, 0, 0, 1] | [1, 0, 1, 0, 2]),
                4 => found == [1, 0, 0, 0, 1],
                5 => matches!(found, [1, 0, 1..=4, 0, 0] | [1, 0, 1..=4, 1, 1]),
                _ => matches!(found, [1, 0, 0, 0, 0] | [1, 0, 0, 1, 1]),
            };
            assert!(fits, "{}: {wants:?}", TatpTrace::KINDS[kind]);
        }
        // Three eighths of the rows of access information and of the facilities do not exist.
        let all = 100.0 - (35.0 + 10.0) * 0.375;
        for (kind, percent) in [35.0, 6.25, 21.875, 2.0, 14.0, 2.0, 2.0].into_iter().enumerate() {
            let (share, expected) = (f64::from(counts[kind]) / DRAWS as f64, percent / all);
            assert!((share - expected).abs() < 0.005, "type {kind}: {share}, not {expected}");
        }
    }

    #[test]
    fn some_subscribers_are_more_popular() {
        let mut counts = vec![0; 100_000];
        for transaction in draws(&published()).iter().filter(|one| one.kind == 0) {
            counts[transaction.wants[0].lock as usize] += 1;
        }
        let of_all: u32 = counts.iter().sum();
        let most = counts.iter().max().copied().expect("there are some");
        assert!(most > 10 * of_all / 100_000, "{most} of {of_all}");
    }

    #[test]
    fn the_smallest_registry_has_locks_for_all_rows() {
        let trace = TatpTrace::new(1, 5, 1);
        assert!(draws(&trace).iter().flat_map(|one| &one.wants).all(|w| w.lock < trace.locks()));
    }
}
