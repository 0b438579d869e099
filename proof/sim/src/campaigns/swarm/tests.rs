//! Every seed draws something else that can be run, and enough of each kind.

use lotus_benchmarks::AbortReason;

use super::*;
use crate::drive::run::{Budget, run};

#[test]
fn every_seed_has_a_scenario_of_its_own_that_can_be_run() {
    for seed in 0..500 {
        let one = scenario(seed);
        assert_eq!(one.check(), Ok(()), "{one:?}");
        assert_eq!(one, scenario(seed));
        assert_ne!(one.to_toml(), scenario(seed + 1).to_toml());
        let again = Scenario::parse("again", one.to_toml().as_bytes()).expect("it is a file");
        assert_eq!(again.to_toml(), one.to_toml());
    }
}

#[test]
fn every_seed_can_be_run_with_locks_of_any_kind() {
    use Locks::{Cas, Declock, Dslr, Lotus, ShiftLock};
    for locks in [Lotus, Cas, Dslr, ShiftLock, Declock] {
        let (mut losses, mut drawn) = (0, 0);
        for seed in 0..200 {
            let one = with_locks(seed, locks);
            assert_eq!((one.check(), one.cluster.locks), (Ok(()), locks), "{one:?}");
            losses += u32::from(one.cluster.lease_us > 0);
            if scenario(seed).cluster.locks == locks {
                drawn += 1;
                assert_eq!(one, scenario(seed), "{locks:?}, seed {seed}");
            }
        }
        assert!(losses >= 80 && drawn >= 5, "{locks:?}: {losses} {drawn}");
    }
}

#[test]
fn nodes_of_both_kinds_come_back() {
    let (mut compute, mut memory, mut again, mut both) = (0, 0, 0, 0);
    for one in (0..500).map(scenario) {
        let restarts = one.schedule.iter().filter_map(|entry| match entry.fault {
            Fault::Restart { node } => Some(node),
            _ => None,
        });
        let (of_memory, of_compute): (Vec<_>, Vec<_>) =
            restarts.partition(|node| *node < one.first_compute_node());
        let twice = |node: &&NodeId| of_memory.iter().filter(|other| other == node).count() > 1;
        compute += usize::from(!of_compute.is_empty());
        memory += usize::from(!of_memory.is_empty());
        again += usize::from(of_memory.iter().any(|node| twice(&node)));
        both += usize::from(!of_memory.is_empty() && !of_compute.is_empty());
    }
    assert!(
        compute >= 40 && memory >= 50 && again >= 10 && both >= 5,
        "{compute} {memory} {again} {both}"
    );
}

#[test]
fn memory_fills_in_about_a_tenth_of_the_seeds_among_the_other_faults() {
    let fills = |one: &Scenario| one.cluster.group_slabs < Topology::default().group_slabs;
    let (mut all, mut crashes, mut cuts, mut lost) = (0, 0, 0, 0);
    for one in (0..1000).map(scenario).filter(fills) {
        all += 1;
        let has = |of: &dyn Fn(&Fault) -> bool| {
            u32::from(one.schedule.iter().any(|entry| of(&entry.fault)))
        };
        let is_memory = |node: &NodeId| *node < one.first_compute_node();
        let dies = |node: &NodeId| !is_memory(node);
        crashes += has(&|it| matches!(it, Fault::Crash { node, .. } if dies(node)));
        lost += has(&|it| matches!(it, Fault::Crash { node, .. } if is_memory(node)));
        cuts += has(&|it| matches!(it, Fault::Cut { .. } | Fault::Isolate { .. }));
    }
    assert!((80..=120).contains(&all), "{all}");
    assert!(crashes >= 10 && lost >= 10 && cuts >= 10, "{crashes} {lost} {cuts}");
}

#[test]
fn inserts_fill_the_memory_where_it_is_drawn_that_they_do() {
    let (mut all, mut full) = (0, 0);
    for seed in 0..17 {
        let Some(scenario) = with_full_memory(seed) else { continue };
        let outcome = run(&scenario, seed, Budget::default(), None).expect("it can be run");
        assert_eq!(outcome.violations, [], "seed {seed}");
        all += 1;
        full += u32::from(outcome.figures.aborted[AbortReason::MemoryFull.index()] > 0);
    }
    assert!(all >= 10 && 3 * full >= 2 * all, "{full} of {all}");
}

#[test]
fn snapshots_are_taken_beside_trees_drops_and_losses() {
    let is_ordered = |one: &Scenario| {
        let Workload::Tpcc { ordered, .. } = one.workload else {
            return matches!(one.workload, Workload::Bins { .. });
        };
        ordered
    };
    let drops = |one: &Scenario| one.cluster.drops_us > 0;
    let loses = |one: &Scenario| {
        let crashes = |entry: &Scheduled| matches!(entry.fault, Fault::Crash { .. });
        one.schedule.iter().any(crashes)
    };
    let kinds: [&dyn Fn(&Scenario) -> bool; 3] = [&is_ordered, &drops, &loses];
    let takes = |seed: &u64| scenario(*seed).cluster.snapshots_us > 0;
    let seeds: Vec<u64> = (0..500).filter(takes).collect();
    for kind in kinds {
        let of_kind = seeds.iter().filter(|seed| kind(&scenario(**seed)));
        let (count, mut taken) = (of_kind.clone().count(), 0);
        assert!(count >= 15, "{count} of {} seeds", seeds.len());
        for seed in of_kind.take(3) {
            let outcome = run(&scenario(*seed), *seed, Budget::default(), None);
            let outcome = outcome.expect("it can be run");
            assert_eq!(outcome.violations, [], "seed {seed}");
            taken += outcome.figures.snapshots;
        }
        assert!(taken > 0, "none of the first three seeds has taken a snapshot");
    }
}

#[test]
fn losses_of_memory_nodes_keep_the_other_faults_and_a_distant_authority() {
    let loses_memory = |one: &Scenario| {
        one.schedule.iter().any(|entry| match entry.fault {
            Fault::Crash { node, .. } => node < one.first_compute_node(),
            _ => false,
        })
    };
    let (mut all, mut others, mut distant) = (0, [0; 4], 0);
    for one in (0..500).map(scenario).filter(loses_memory) {
        all += 1;
        let has = |of: &dyn Fn(&Fault) -> bool| one.schedule.iter().any(|it| of(&it.fault));
        let kinds: [&dyn Fn(&Fault) -> bool; 4] = [
            &|fault| matches!(fault, Fault::Cut { .. }),
            &|fault| matches!(fault, Fault::Stall { .. }),
            &|fault| matches!(fault, Fault::SlowNic { .. } | Fault::SlowCores { .. }),
            &|fault| matches!(fault, Fault::ClockJump { .. } | Fault::Pause { .. }),
        ];
        for (count, kind) in others.iter_mut().zip(kinds) {
            *count += u32::from(has(kind));
        }
        distant += u32::from(!one.authority.is_none());
    }
    assert!(
        all >= 60 && distant >= 30 && others.iter().all(|count| *count >= 4),
        "{all} {distant} {others:?}"
    );
}
