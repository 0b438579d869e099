//! Named scenarios: a scenario provokes one hazard of `docs/fault-tolerance.md`; its name begins
//! with the hazard.
//!
//! The scenarios are files beside the sources, and part of the program. Seeds vary the parts that a
//! scenario leaves open; the conditions of its hazard are always present.

use crate::scenario::format::Scenario;

macro_rules! files {
    ($($name:literal)*) => {
        /// Names and texts.
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml"))),)*];
    };
}

files! {
    "h1-snapshots-meet-commits"
    "h2-clocks-drift"
    "h2-expelled-before-a-memory-node-joins"
    "h2-made-ready-while-somebody-is-out"
    "h2-nodes-die"
    "h2-nodes-return"
    "h2-nodes-return-at-once"
    "h2-restarts"
    "h3-half-visible"
    "h3-primaries-come-last"
    "h3-primary-and-coordinator-die"
    "h4-locks-of-the-dead"
    "h4-nodes-start"
    "h4-locks-are-lost"
    "h5-one-name-one-slot"
    "h6-readers-beside-writers"
    "h7-full-lock-buckets"
    "h7-locks-that-wait"
    "h7-read-then-write"
    "h7-writers-of-one-leaf"
    "h8-late-requests-of-the-dead"
    "h8-messages-of-a-former-life"
    "h9-late-lock-requests"
    "h9-trees-of-former-lives"
    "h10-lost-ends"
    "h10-owners-out-of-reach"
    "h10-a-path-is-cut"
    "h10-owners-pause"
    "h10-waits-of-callers-that-go-away"
    "h11-caches-beside-writers"
    "h11-remembered-nodes-of-trees"
    "h12-half-written"
    "h13-older-versions"
    "h13-overwritten-versions"
    "h13-first-slabs"
    "h13-floors-of-the-returned"
    "h13-full-memory"
    "h13-full-memory-and-nodes-die"
    "h13-rows-beside-their-cells"
    "h13-snapshot-files"
    "h13-snapshot-nodes-die"
    "h13-snapshots-of-trees"
    "h13-slabs-without-an-answer"
    "h13-tables-come-and-go"
    "h13-tables-of-the-dead"
    "h14-torn-words"
    "h14-torn-cells-and-records"
    "h14-longest-records"
    "h15-some-replicas"
    "h15-memory-node-dies-during-recovery"
    "h16-many-log-slots"
    "h17-recoverers-die"
    "h17-recoverers-restart"
    "h18-delayed-timestamps"
    "h18-fresh-snapshots"
    "h18-oracles-die"
    "h18-oracles-restart"
    "h18-oracles-return"
    "h18-writers-behind"
    "h19-shards-move"
    "h19-shards-move-from-those-that-wait"
    "h19-shards-move-and-nodes-die"
    "h19-shards-move-by-lost-messages"
    "h19-stragglers-commit"
    "h19-shards-come-back"
    "h19-hot-shards-are-shared"
    "h19-one-shard-too-hot"
    "h19-balancers-die"
    "h19-memory-node-dies-while-shards-move"
    "h20-rows-of-the-dead"
    "h20-purged-rows"
    "h20-rows-that-come-and-go"
    "h20-crowded-index-buckets"
    "h20-outgrown-index"
    "h20-ranges-beside-inserts"
    "h20-trees-of-the-dead"
    "h20-queues-of-the-dead"
    "h21-memory-out-of-reach"
    "h21-bodies-that-do-not-end"
    "h21-callers-go-away"
    "h22-stragglers"
    "h23-told-by-one-who-is-out"
    "h23-memory-node-dies"
    "h23-first-memory-node-dies"
    "h23-backups-die-in-pairs"
    "h23-memory-nodes-die-in-turn"
    "h23-memory-node-returns"
    "h23-memory-node-made-anew"
    "h23-first-memory-node-made-anew"
    "h23-the-filled-is-the-last"
    "h23-who-fills-dies"
    "h23-the-filled-dies"
    "h23-filled-beside-writers"
    "h23-outgrown-index-is-filled"
    "h23-some-still-read-it"
    "h23-one-way-is-cut"
    "h23-inserts-go-on"
    "h24-flushed-yet-done"
}

/// Names of all scenarios, by hazard.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// All scenarios, by hazard.
pub fn all() -> impl Iterator<Item = Scenario> {
    FILES.iter().map(|(name, text)| parse(name, text))
}

/// The scenario with the name `name`; `None` if it does not exist.
pub fn find(name: &str) -> Option<Scenario> {
    let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text))
}

/// The scenario in an embedded file.
///
/// # Panics
/// Never: a test reads all embedded files.
fn parse(name: &str, text: &str) -> Scenario {
    Scenario::parse(name, text.as_bytes()).expect("the files are sound")
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;
    use std::sync::Mutex;
    use std::thread::available_parallelism;

    use super::*;
    use crate::Hazard;
    use crate::campaigns::campaign::campaign;
    use crate::drive::run::{Budget, run};

    #[test]
    fn every_scenario_bears_the_name_of_its_file_and_of_a_hazard_and_tells_its_story() {
        for (name, scenario) in names().zip(all()) {
            assert_eq!(scenario.name, name);
            assert!(!scenario.story.is_empty(), "{name}");
            let number = name.strip_prefix('h').and_then(|rest| rest.split('-').next());
            let hazard = number.and_then(|number| format!("H{number}").parse::<Hazard>().ok());
            assert_eq!(scenario.hazards.first().copied(), hazard, "{name}");
            assert_eq!(find(name), Some(scenario));
        }
        assert_eq!(find("h0-nothing"), None);
    }

    #[test]
    fn scenarios_that_ask_for_snapshots_take_some() {
        for scenario in all().filter(|scenario| scenario.cluster.snapshots_us > 0) {
            let outcome = run(&scenario, 0, Budget::default(), None).expect("it can be run");
            assert!(outcome.figures.snapshots >= 3, "{}: {:?}", scenario.name, outcome.figures);
        }
    }

    #[test]
    fn scenarios_with_bodies_that_do_not_end_see_their_time_up() {
        for scenario in all().filter(|scenario| scenario.cluster.endless_us > 0) {
            let outcome = run(&scenario, 0, Budget::default(), None).expect("it can be run");
            assert!(outcome.figures.overdue >= 10, "{}: {:?}", scenario.name, outcome.figures);
        }
    }

    #[test]
    fn scenarios_that_drop_tables_give_their_memory_back() {
        for scenario in all().filter(|scenario| scenario.cluster.drops_us > 0) {
            let outcome = run(&scenario, 0, Budget::default(), None).expect("it can be run");
            assert!(outcome.figures.dropped >= 2, "{}: {:?}", scenario.name, outcome.figures);
        }
    }

    /// One run each, on all cores; campaigns run many seeds of them.
    #[test]
    fn every_scenario_gets_something_done_and_is_clean() {
        let scenarios: Vec<Scenario> = all().collect();
        let idle = Mutex::new(Vec::new());
        let summary = campaign(
            0..scenarios.len() as u64,
            |seed| scenarios[seed as usize].clone(),
            available_parallelism().map_or(1, NonZero::get),
            Budget::default(),
            |seed, outcome| {
                if outcome.figures.committed == 0 {
                    idle.lock().expect("nobody panics").push(&scenarios[seed as usize].name);
                }
                true
            },
        );
        let summary = summary.expect("they can be run");
        assert!(summary.failures.is_empty(), "{:?}", summary.failures);
        assert_eq!(summary.runs, scenarios.len() as u64);
        assert_eq!(*idle.lock().expect("nobody panics"), [""; 0]);
    }
}
