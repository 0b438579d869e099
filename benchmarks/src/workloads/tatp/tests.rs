//! TATP on the reference engine: the mix, each transaction, and audits that can fail.

use rand::SeedableRng;

use super::*;
use crate::contract::config::LoadConfig;
use crate::contract::deployment::RowSource;
use crate::drive::harness::{Options, Outcome};
use crate::end_to_end::{bench, options};
use crate::engines::reference::{Faults, Reference};

#[test]
fn the_mix_adds_up_and_matches_the_names() {
    let mut drawn = [0; MIX.len()];
    (0..100).for_each(|percent| drawn[kind_of(percent) as usize] += 1);
    for (at, (kind, percent)) in MIX.into_iter().enumerate() {
        assert_eq!(format!("{kind:?}"), Tatp::TRANSACTIONS[at]);
        assert_eq!((kind as usize, drawn[at]), (at, percent));
    }
}

#[test]
fn parameters_are_in_range_and_subscribers_unequally_popular() {
    for (subscribers, spread) in [(1, 65_535), (1_000_000, 65_535), (1 << 20, 1_048_575)] {
        let tatp = Tatp::new(subscribers, 1);
        assert_eq!(tatp.spread, spread);
        let mut rng = SmallRng::seed_from_u64(2);
        let mut set_bits = 0;
        for _ in 0..20_000 {
            let r = tatp.draw(&mut rng);
            assert!((1..=subscribers).contains(&r.s_id.into()), "{r:?}");
            assert!((1..=4).contains(&r.row_type) && (1..=24).contains(&r.end_time), "{r:?}");
            assert!(START_TIMES.contains(&r.start_time) && r.data < NUMBERS, "{r:?}");
            set_bits += ((r.s_id - 1) & 0xFFF).count_ones();
        }
        // OR of two random numbers: three bits in four are set.
        let share = f64::from(set_bits) / (20_000.0 * 12.0);
        assert!(subscribers == 1 || (share - 0.75).abs() < 0.02, "{subscribers}: {share}");
    }
}

fn run(subscribers: u64, secs: f64, faults: Faults) -> Outcome {
    let load = LoadConfig { secs, warmup_secs: 0.0, ..options().load };
    let options = Options { load, ..options() };
    bench(Tatp::new(subscribers, 1), &options, faults).1.expect("it runs")
}

#[test]
fn every_transaction_succeeds_and_fails_as_it_should() {
    for (subscribers, secs) in [(1, 0.002), (7, 0.002), (20_000, 0.02)] {
        let outcome = run(subscribers, secs, Faults::default());
        let audit = outcome.audit.expect("asked for");
        assert!(audit.passed, "{subscribers} subscribers: {audit:#?}");
        for (kind, counts) in Tatp::TRANSACTIONS.iter().zip(&outcome.tally.by_transaction) {
            let missed = counts.aborted[AbortReason::Logic.index()];
            let never_misses = ["GetSubscriberData", "UpdateLocation"].contains(kind);
            assert!(subscribers < 1_000 || counts.committed > 0, "{kind} never committed");
            assert!(!never_misses || missed == 0, "{kind} missed {missed} times");
            assert!(never_misses || subscribers < 1_000 || missed > 0, "{kind} never missed");
        }
    }
}

#[test]
fn lost_writes_and_unknown_outcomes_show_in_the_number_of_call_forwardings() {
    let lost = run(50, 0.02, Faults { lose_every: 10, ..Faults::default() });
    let verdict = lost.audit.expect("asked for").verdict();
    let expected = "audit FAILED: the number of call forwardings (";
    assert!(verdict.starts_with(expected), "{verdict}");
    let unknown = run(50, 0.02, Faults { unknown_every: 20, ..Faults::default() });
    assert!(unknown.tally.total().unknown > 0);
    let audit = unknown.audit.expect("asked for");
    assert!(audit.passed, "{audit:?}");
}

/// Names of the checks that fail when `damage` has changed the loaded rows of a table.
fn failing(
    table: usize,
    damage: impl Fn(u64, &mut PrimaryKey, &mut Vec<u8>) + Sync,
) -> Vec<String> {
    let mut tatp = Tatp::new(40, 1);
    let mut deployment = Reference::new(1, 1, Faults::default());
    let specs = tatp.tables(&ClusterConfig::default());
    let create = |spec| deployment.create_table(spec).expect("the reference takes any");
    let ids: Vec<_> = specs.into_iter().map(create).collect();
    tatp.attach(&ids);
    for (at, id) in ids.into_iter().enumerate() {
        let row: &RowSource<'_> = &|number, value| {
            let mut key = tatp.row(at, number, value);
            if at == table {
                damage(number, &mut key, value);
            }
            key
        };
        deployment.load(id, tatp.rows(at), row).expect("the reference takes any");
    }
    let checks = tatp.audit(&mut deployment, &Effects::default()).expect("it can be read");
    let failing = checks.into_iter().filter(|check| !check.passed);
    failing.map(|check| check.name).collect()
}

/// A change to row 3 of a table, and the check that must fail for it.
type Case = (usize, fn(&mut PrimaryKey, &mut Vec<u8>), &'static str);

#[test]
fn every_check_of_the_audit_can_fail() {
    assert_eq!(failing(SUBSCRIBER, |_, _, _| ()), [""; 0]);
    let subscriber = "every subscriber is who it was but for bit_1 and vlr_location";
    let facility = "every special facility is as loaded but for data_a";
    let forwarding = "every call forwarding has its special facility";
    let cases: &[Case] = &[
        (SUBSCRIBER, |_, value| value[30] ^= 1, subscriber),
        (SUBSCRIBER, |_, value| value[23] ^= 2, subscriber),
        (SUBSCRIBER, |key, _| *key = 41.into(), subscriber),
        (ACCESS_INFO, |_, value| value[9] ^= 1, "access information is as loaded"),
        (SPECIAL_FACILITY, |_, value| value[Facility::ACTIVE] ^= 1, facility),
        (SPECIAL_FACILITY, |_, value| value.truncate(3), facility),
        (CALL_FORWARDING, |key, _| *key = forwarding_key(7, 5, 8), forwarding),
        (CALL_FORWARDING, |key, _| *key = forwarding_key(41, 1, 8), forwarding),
        (CALL_FORWARDING, |key, _| *key = forwarding_key(7, 1, 9), forwarding),
        (CALL_FORWARDING, |_, value| value[0] = 25, forwarding),
        (CALL_FORWARDING, |_, value| value[3] = b'x', forwarding),
        (BY_NUMBER, |_, value| value[7] ^= 1, "every number leads to its subscriber"),
    ];
    for (at, &(table, damage, name)) in cases.iter().enumerate() {
        let failing = failing(table, |row, key, value| {
            if row == 3 {
                damage(key, value)
            }
        });
        assert_eq!(failing, [name], "case {at}");
    }
    // Changes that transactions may make.
    assert_eq!(failing(SUBSCRIBER, |_, _, value| value[Subscriber::BITS.start] ^= 1), [""; 0]);
    assert_eq!(failing(SUBSCRIBER, |_, _, value| value[Subscriber::VLR.start] ^= 9), [""; 0]);
    assert_eq!(failing(SPECIAL_FACILITY, |_, _, value| value[Facility::DATA_A] ^= 9), [""; 0]);
    // A lost row.
    let lost = failing(CALL_FORWARDING, |_, key, _| *key = typed_key(1, 1));
    assert!(lost.contains(&"the number of call forwardings".to_owned()), "{lost:?}");
}
