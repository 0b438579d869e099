//! What clients saw, judged by the checker: nothing wrong of an engine whose faults are mended, and
//! the anomalies that its publication does not exclude, of the engine as published.

use lotus_baselines::{
    CommitSteps, Engine, Faults, FordOptions, Known, Options, Primaries, Records,
};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::Outcome;
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::{Critical, Scale, Tpcc};
use lotus_benchmarks::ycsb::Ycsb;
use lotus_checker::{History, Options as Check, RealTime, Report, check};

use crate::support::{Case, On, assert_sound};

fn judged(outcome: &Outcome) -> Report {
    let mut text = Vec::new();
    let history = outcome.history.as_ref().expect("it was asked for");
    history.write(&mut text).expect("memory takes everything");
    let history = History::read(text.as_slice()).expect("it is a history");
    check(&history, &Check { real_time: RealTime::Enforced, ..Check::default() })
}

fn assert_clean(outcome: &Outcome, what: &str) {
    assert_sound(outcome, what);
    let report = judged(outcome);
    assert!(report.is_clean(), "{what}: {:?}", report.violations.first().map(ToString::to_string));
}

fn bank(accounts: u64) -> SmallBank {
    SmallBank::new(accounts, 0, 0.0, 1)
}

#[test]
fn motor_is_serializable_in_simulation_under_contention() {
    for seed in 1..=6 {
        let case = Case { seed, ..Case::of(Engine::Motor) };
        assert_clean(&case.run(bank(12)), &format!("smallbank, seed {seed}"));
        assert_clean(&case.run(Kvs::new(16, 0.5, 0.9)), &format!("kvs, seed {seed}"));
    }
}

#[test]
fn motor_keeps_snapshots_with_any_number_of_versions() {
    for versions in [2, 3, 5, 8] {
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let case = Case { versions, isolation, ..Case::of(Engine::Motor) };
            assert_clean(&case.run(bank(20)), &format!("{versions} versions"));
        }
    }
}

#[test]
fn motor_inserts_and_deletes_rows() {
    for options in [
        Options::default(),
        Options { primaries: Primaries::ByBucket, ..Options::default() },
        Options { known: Known::Loaded, ..Options::default() },
    ] {
        for versions in [2, 4] {
            let case = Case { options, versions, ..Case::of(Engine::Motor) };
            assert_clean(&case.run(Tatp::new(10, 1)), &format!("{options:?}"));
        }
    }
}

#[test]
fn motor_is_serializable_on_threads() {
    let case = Case { on: On::Threads, secs: 0.5, ..Case::of(Engine::Motor) };
    assert_clean(&case.run(bank(30)), "smallbank");
    assert_clean(&case.run(Tatp::new(10, 1)), "tatp");
    let large = Ycsb::new(lotus_benchmarks::ycsb::Mix::A, 50, 1_000, 0.9, false);
    assert_clean(&case.run(large), "ycsb");
}

/// Motor with full records, and with full records, a log and a visible step.
fn steps_to_lotus() -> [Options; 2] {
    let full = Options { records: Records::Full, ..Options::default() };
    [full, Options { commit: CommitSteps::LogAndVisible, ..full }]
}

#[test]
fn the_steps_to_lotus_are_serializable_in_simulation_under_contention() {
    for options in steps_to_lotus() {
        for seed in 1..=6 {
            let case = Case { options, seed, ..Case::of(Engine::Motor) };
            assert_clean(&case.run(bank(12)), &format!("smallbank, {options:?}, seed {seed}"));
            let kvs = Kvs::new(16, 0.5, 0.9);
            assert_clean(&case.run(kvs), &format!("kvs, {options:?}, seed {seed}"));
        }
    }
}

#[test]
fn the_steps_to_lotus_keep_snapshots_with_any_number_of_versions() {
    for options in steps_to_lotus() {
        for versions in [2, 3, 8] {
            for isolation in [Isolation::Snapshot, Isolation::Serializable] {
                let case = Case { options, versions, isolation, ..Case::of(Engine::Motor) };
                assert_clean(&case.run(bank(20)), &format!("{options:?}, {versions} versions"));
            }
        }
    }
}

#[test]
fn the_steps_to_lotus_insert_and_delete_rows() {
    for step in steps_to_lotus() {
        for options in [
            step,
            Options { primaries: Primaries::ByBucket, ..step },
            Options { known: Known::Loaded, ..step },
        ] {
            for versions in [2, 4] {
                let case = Case { options, versions, ..Case::of(Engine::Motor) };
                assert_clean(&case.run(Tatp::new(10, 1)), &format!("{options:?}"));
            }
        }
    }
}

#[test]
fn the_steps_to_lotus_are_serializable_on_threads() {
    for options in steps_to_lotus() {
        let case = Case { options, on: On::Threads, secs: 0.5, ..Case::of(Engine::Motor) };
        assert_clean(&case.run(bank(30)), "smallbank");
        assert_clean(&case.run(Tatp::new(10, 1)), "tatp");
        let large = Ycsb::new(lotus_benchmarks::ycsb::Mix::A, 50, 1_000, 0.9, false);
        assert_clean(&case.run(large), "ycsb");
    }
}

#[test]
fn the_steps_to_lotus_run_tpcc() {
    for options in steps_to_lotus() {
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let case = Case { options, isolation, secs: 0.01, ..Case::of(Engine::Motor) };
            let scale = Scale { warehouses: 1, customers: 20, items: 100 };
            let tpcc = Tpcc::new(scale, Critical::Warehouse, 1);
            assert_clean(&case.run(tpcc), &format!("{options:?}, {isolation:?}"));
        }
    }
}

/// Readers of the engine as published take an INVISIBLE version for none, and may so see one row of
/// a commit and miss another.
#[test]
fn the_steps_to_lotus_as_published_are_not_serializable() {
    for options in steps_to_lotus() {
        let options = Options { faults: Faults::AsPublished, ..options };
        let cases = (1..=10).map(|seed| Case { options, seed, ..Case::of(Engine::Motor) });
        let anomalies = cases.filter(|case| !judged(&case.run(bank(12))).is_clean()).count();
        assert!(anomalies > 0, "{options:?}: no anomaly in ten runs");
    }
}

/// Regression: a NewOrder asks for an item that there is not. The search for it in a table with a
/// slot for each item and no more went round for ever.
#[test]
fn both_run_tpcc() {
    for engine in [Engine::Motor, Engine::Ford] {
        let case = Case { secs: 0.01, ..Case::of(engine) };
        let scale = Scale { warehouses: 1, customers: 20, items: 100 };
        let tpcc = Tpcc::new(scale, Critical::Warehouse, 1);
        assert_clean(&case.run(tpcc), &format!("{engine:?}"));
    }
}

#[test]
fn ford_is_serializable_in_simulation_under_contention() {
    for seed in 1..=6 {
        let case = Case { seed, ..Case::of(Engine::Ford) };
        assert_clean(&case.run(bank(12)), &format!("smallbank, seed {seed}"));
        assert_clean(&case.run(Kvs::new(16, 0.5, 0.9)), &format!("kvs, seed {seed}"));
    }
}

#[test]
fn ford_inserts_and_deletes_rows() {
    let ford = FordOptions { item_bytes: 720, flush: true };
    for options in [
        Options::default(),
        Options { primaries: Primaries::ByBucket, ..Options::default() },
        Options { known: Known::Loaded, ..Options::default() },
        Options { ford, ..Options::default() },
    ] {
        let case = Case { options, ..Case::of(Engine::Ford) };
        assert_clean(&case.run(Tatp::new(10, 1)), &format!("{options:?}"));
    }
}

#[test]
fn ford_is_serializable_on_threads() {
    let case = Case { on: On::Threads, secs: 0.5, ..Case::of(Engine::Ford) };
    assert_clean(&case.run(bank(30)), "smallbank");
    assert_clean(&case.run(Tatp::new(10, 1)), "tatp");
}

/// Its validation compares versions alone: two transactions may each miss the other's write.
#[test]
fn ford_as_published_is_not_serializable() {
    assert!(anomalies_as_published(Engine::Ford) > 0, "no anomaly in ten runs");
}

/// Runs of an engine as published, of ten, with a history that is not serializable.
fn anomalies_as_published(engine: Engine) -> usize {
    let options = Options { faults: Faults::AsPublished, ..Options::default() };
    let cases = (1..=10).map(|seed| Case { options, seed, ..Case::of(engine) });
    cases.filter(|case| !judged(&case.run(bank(12))).is_clean()).count()
}

/// Its validation heeds no locks, and its readers do not either, so that a history with a few hot
/// rows is not serializable.
#[test]
fn motor_as_published_is_not_serializable() {
    assert!(anomalies_as_published(Engine::Motor) > 0, "no anomaly in ten runs");
}
