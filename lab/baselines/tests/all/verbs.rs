//! Verbs of a transaction, beside those that Motor's own program was counted to make.

use lotus_baselines::{CommitSteps, Deltas, Engine, FordOptions, Known, Options, Records};
use lotus_benchmarks::harness::Outcome;
use lotus_benchmarks::smallbank::SmallBank;

use crate::support::{Case, assert_sound};

/// Verbs for each transaction that was tried.
fn per_attempt(outcome: &Outcome) -> [f64; 3] {
    let tally = &outcome.tally;
    let aborted: u64 = tally.by_transaction.iter().flat_map(|counts| counts.aborted).sum();
    let attempts = (tally.all_committed + aborted) as f64;
    let traffic = outcome.traffic;
    [traffic.compare_and_swaps, traffic.reads, traffic.writes].map(|verbs| verbs as f64 / attempts)
}

/// A transaction of SmallBank writes 1.40 rows and only reads 0.45, of which 0.15 are read again
/// for validation: 1.40 compare-and-swaps, 3.85 READs, and 12 WRITEs for each written row.
#[test]
fn a_transaction_of_smallbank_has_the_verbs_of_motor() {
    let (known, deltas) = (Known::Loaded, Deltas::Loaded);
    let options = Options { known, deltas, ..Options::default() };
    let case = Case { options, coroutines: 1, secs: 0.2, ..Case::of(Engine::Motor) };
    let outcome = case.run(SmallBank::new(2_000, 0, 0.0, 1));
    assert_sound(&outcome, "smallbank");
    let [swaps, reads, writes] = per_attempt(&outcome);
    assert!((swaps / 1.40 - 1.0).abs() < 0.02, "{swaps} compare-and-swaps");
    assert!((reads / 3.85 - 1.0).abs() < 0.02, "{reads} READs");
    let expected = writes_of_smallbank(&outcome, 12.0, 0.0);
    assert!((writes / expected - 1.0).abs() < 0.02, "{writes} WRITEs, not {expected}");
}

/// Motor with full records writes 3 x 3 times for each row: record, cell, lock. With a log and a
/// visible step it is 3 x 4 times, and a log entry on each of 3 nodes. Nothing else differs.
#[test]
fn the_steps_to_lotus_have_the_verbs_of_theirs() {
    let full = Options { known: Known::Loaded, records: Records::Full, ..Options::default() };
    let logged = Options { commit: CommitSteps::LogAndVisible, ..full };
    for (options, of_row, of_commit) in [(full, 9.0, 0.0), (logged, 12.0, 3.0)] {
        let case = Case { options, coroutines: 1, secs: 0.2, ..Case::of(Engine::Motor) };
        let outcome = case.run(SmallBank::new(2_000, 0, 0.0, 1));
        assert_sound(&outcome, "smallbank");
        let [swaps, reads, writes] = per_attempt(&outcome);
        assert!((swaps / 1.40 - 1.0).abs() < 0.02, "{swaps} compare-and-swaps");
        assert!((reads / 3.85 - 1.0).abs() < 0.02, "{reads} READs");
        let expected = writes_of_smallbank(&outcome, of_row, of_commit);
        assert!((writes / expected - 1.0).abs() < 0.02, "{writes} WRITEs, not {expected}");
    }
}

/// WRITEs for each transaction that was tried, where a row that is written takes so many and the
/// lock of a transaction that rolls back takes one; a commit that writes takes `of_commit` more.
fn writes_of_smallbank(outcome: &Outcome, of_row: f64, of_commit: f64) -> f64 {
    const WRITTEN: [f64; 6] = [3.0, 0.0, 1.0, 2.0, 1.0, 1.0];
    let (mut writes, mut attempts) = (0.0, 0.0);
    for (counts, rows) in outcome.tally.by_transaction.iter().zip(WRITTEN) {
        let aborted = counts.aborted.iter().sum::<u64>() as f64;
        writes += rows * (counts.committed as f64 * of_row + aborted);
        writes += if rows > 0.0 { counts.committed as f64 * of_commit } else { 0.0 };
        attempts += counts.committed as f64 + aborted;
    }
    writes / attempts
}

/// A transaction of SmallBank that writes 1.40 rows reads 1.85, and 0.45 of them again; it writes
/// each row to three copies by three WRITEs, and a log entry to three nodes. With a flush it reads
/// from two backups more.
#[test]
fn a_transaction_of_smallbank_has_the_verbs_of_ford() {
    for flush in [false, true] {
        let ford = FordOptions { flush, ..FordOptions::default() };
        let options = Options { known: Known::Loaded, ford, ..Options::default() };
        let case = Case { options, coroutines: 1, secs: 0.2, ..Case::of(Engine::Ford) };
        let outcome = case.run(SmallBank::new(2_000, 0, 0.0, 1));
        assert_sound(&outcome, "smallbank");
        let [swaps, reads, writes] = per_attempt(&outcome);
        let expected = if flush { 2.30 + 1.70 } else { 2.30 };
        assert!((swaps / 1.40 - 1.0).abs() < 0.02, "{swaps} compare-and-swaps");
        assert!((reads / expected - 1.0).abs() < 0.10, "{reads} READs");
        assert!((writes / 15.15 - 1.0).abs() < 0.10, "{writes} WRITEs");
    }
}
