//! Regression tests: bugs that simulation has found, each with the scenario and seed that found it.

use lotus_benchmarks::AbortReason;
use lotus_sim::Outcome;
use lotus_sim::run::{Budget, run};
use lotus_sim::swarm;
use lotus_sim::{Scenario, Violation};

/// Runs the scenario of a file in `tests/regressions`, with at most `events` events.
fn replay(name: &str, text: &str, seed: u64, events: u64) -> Outcome {
    let scenario = Scenario::parse(name, text.as_bytes()).expect("it is a scenario");
    let budget = Budget { events, ..Budget::default() };
    run(&scenario, seed, budget, None).expect("it can be run")
}

const NOTHING: [Violation; 0] = [];

/// The task that repeats ends of locks slept until the next repeat was due, and could not be woken:
/// an end that came meanwhile waited for 20 ms, and its locks with it. This needed no fault, only
/// an end that travelled with a lock request and was not acknowledged yet.
#[test]
fn a_fresh_end_of_locks_is_sent_while_an_older_one_waits_for_its_repeat() {
    let text = include_str!("regressions/fresh-end.toml");
    assert_eq!(replay("fresh-end", text, 22, 1_000_000).violations, NOTHING);
}

/// The same, where the owner's core is slow.
#[test]
fn a_fresh_end_of_locks_reaches_a_slow_owner() {
    let text = include_str!("regressions/slow-owner.toml");
    assert_eq!(replay("slow-owner", text, 129, 1_000_000).violations, NOTHING);
}

/// Every attempt that failed on a memory node out of reach left behind a task that repeated the
/// release of its spin locks: after seconds of that, thousands of them kept the cores busy.
#[test]
fn releases_that_failed_do_not_pile_up_as_tasks() {
    let text = include_str!("regressions/overdue-releases.toml");
    assert_eq!(replay("overdue-releases", text, 327, 6_000_000).violations, NOTHING);
}

/// The caller was told of a commit once it was visible on all backups. Where a group had only its
/// primary left, that promised nothing: the node was fenced before its version was visible at all.
#[test]
fn nobody_is_told_of_a_commit_that_no_copy_shows() {
    let text = include_str!("regressions/sole-copy.toml");
    assert_eq!(replay("sole-copy", text, 1059, 1_000_000).violations, NOTHING);
}

/// A node paused while the others gave up a memory node, and was expelled. When it went on, its
/// commit retried that memory node for ever: it was not told that the memory node was lost, and did
/// not check whether its own node was expelled.
#[test]
fn who_is_out_does_not_wait_for_a_memory_node_that_was_left_meanwhile() {
    let text = include_str!("regressions/fenced-meanwhile.toml");
    assert_eq!(replay("fenced-meanwhile", text, 0, 1_000_000).violations, NOTHING);
}

/// The oracle died; a node that had asked it for a commit timestamp paused for so long that it was
/// expelled. It never turned to the successor, and asked the dead one for ever.
#[test]
fn who_is_out_does_not_ask_a_dead_oracle_for_ever() {
    let text = include_str!("regressions/oracle-gone-too.toml");
    assert_eq!(replay("oracle-gone-too", text, 1, 2_000_000).violations, NOTHING);
}

/// A coordinator that had asked a compute node for locks waited for the whole time-out, a second by
/// default, although all nodes knew long before that the owner had been expelled.
#[test]
fn nobody_waits_for_the_answer_of_an_owner_that_is_out() {
    let text = include_str!("regressions/owners-gone.toml");
    let outcome = replay("owners-gone", text, 0, 1_000_000);
    assert_eq!(outcome.violations, NOTHING);
    // A quarter of that if they wait.
    assert!(outcome.figures.committed > 1_800, "{}", outcome.figures.committed);
}

/// A node died, was started again, and died again, with the last client's request under way. The
/// code that waited for its calls waited for ever, and the run never ended.
#[test]
fn a_run_is_over_when_the_last_client_is_gone() {
    let text = include_str!("regressions/last-client-lost.toml");
    let outcome = replay("last-client-lost", text, 0, 1_000_000);
    assert_eq!(outcome.violations, NOTHING);
    assert!(outcome.figures.committed > 100, "{}", outcome.figures.committed);
}

/// An answer that granted locks was late. Its owner had not waited: it had asked the attempt to
/// give up, taken the locks back, and given the shard to the attempt's own node. The attempt read
/// on as if it still held the row's lock, while a third node wrote the row; what it read was
/// cached, and the next writer there trusted the cache.
#[test]
fn what_is_read_under_a_lock_that_was_taken_back_is_not_cached() {
    let text = include_str!("../scenarios/h8-messages-of-a-former-life.toml");
    for seed in [190, 338] {
        assert_eq!(replay("taken-back", text, seed, 1_000_000).violations, NOTHING, "{seed}");
    }
}

/// Coordinators that needed a dead owner of locks waited for its answer until it was expelled, a
/// lease later, and soon all of them did.
#[test]
fn nobody_waits_for_an_owner_that_is_silent_until_it_is_expelled() {
    let text = include_str!("regressions/owners-silent.toml");
    let outcome = replay("owners-silent", text, 0, 2_000_000);
    assert_eq!(outcome.violations, NOTHING);
    assert!(outcome.figures.aborted[AbortReason::Suspected.index()] > 0);
    // 6,923 if they wait.
    assert!(outcome.figures.committed > 7_500, "{}", outcome.figures.committed);
}

/// A returned memory node had not been filled when the other one with its rows was lost: each piece
/// took a timestamp of the oracle, and messages were lost and late. The rows had no whole copy any
/// more, and clients asked for them until the run was stopped. The time to fill a node is
/// unpredictable there, so the other one is now lost only once all rows have a copy elsewhere.
#[test]
fn where_messages_are_lost_the_next_memory_node_is_lost_when_the_last_one_is_filled() {
    let text = include_str!("regressions/lost-in-turn.toml");
    assert_eq!(replay("lost-in-turn", text, 5723, 2_000_000).violations, NOTHING);
}

/// A coordinator was taking a slab when a memory node got back its place as primary. It raised the
/// cursor of the copy that had stood in, and took the slab by the other cursor: the index's slab.
#[test]
fn a_slab_is_taken_by_the_cursor_that_was_raised() {
    let text = include_str!("regressions/slab-taken-twice.toml");
    assert_eq!(replay("slab-taken-twice", text, 15, 1_000_000).violations, NOTHING);
}

/// A copy was given the slab directory as soon as it had joined, while another coordinator still
/// entered a slab by the previous placement.
#[test]
fn a_copy_gets_the_directory_when_all_write_there() {
    let text = include_str!("regressions/slab-taken-twice.toml");
    for seed in [49, 53, 59, 97, 201] {
        assert_eq!(replay("directory", text, seed, 1_000_000).violations, NOTHING, "{seed}");
    }
}

/// The node that filled a copy waited for the primary, to read the slab directory there. The
/// primary was lost and returned before it looked again: the directory was that of the empty
/// memory.
#[test]
fn a_copy_does_not_get_the_directory_of_a_primary_that_has_returned() {
    let text = include_str!("regressions/header-from-an-empty-copy.toml");
    for seed in [5, 7] {
        assert_eq!(replay("header", text, seed, 1_000_000).violations, NOTHING, "{seed}");
    }
}

/// A compute node died while it was restarted, so its coordinators did not run. It was still
/// counted as serving: work was sent there, and came back as from a node that takes no part.
#[test]
fn a_node_that_dies_while_it_is_started_again_is_not_sent_work() {
    let text = include_str!("regressions/down-again.toml");
    assert_eq!(replay("down-again", text, 4903, 1_000_000).violations, NOTHING);
}

/// A memory node that was whole again got back its place as primary while a deleted row was purged.
/// Its copy was zeroed neither with the old placement's primaries nor with the new one's backups,
/// and a transaction that inserted the row again wrote around what was left.
#[test]
fn a_row_is_purged_on_every_copy_when_a_memory_node_has_its_place_again() {
    let text = include_str!("regressions/purged-by-two-placements.toml");
    assert_eq!(replay("purged", text, 21404, 1_000_000).violations, NOTHING);
}

/// Rows that could not be purged together were tried a few at a time, and between two tries the
/// coordinator counted as idle: the audit ran into the next purge.
#[test]
fn a_cluster_has_not_settled_while_rows_are_purged() {
    let text = include_str!("regressions/settled-while-purging.toml");
    assert_eq!(replay("settled", text, 20923, 1_000_000).violations, NOTHING);
}

/// A compute node that serves no timestamps yet was asked for some, and was restarted while it kept
/// the asker waiting. The waiting task kept its lane as well, and the next life had none.
#[test]
fn a_node_that_keeps_somebody_waiting_can_be_started_again() {
    let text = include_str!("regressions/keeps-its-lane.toml");
    assert_eq!(replay("keeps-its-lane", text, 24153, 1_000_000).violations, NOTHING);
}

/// Two memory nodes came back together, while shards found heirs: the second one's copy of the
/// ownership words was out of date, and all nodes raised its words at once. Their beats waited
/// behind these swaps for a lease, and it was lost again, in a life from before that loss.
#[test]
fn a_memory_node_is_not_lost_for_the_swaps_that_it_is_given() {
    let text = include_str!("regressions/beats-behind-swaps.toml");
    assert_eq!(replay("beats-behind-swaps", text, 32257, 1_000_000).violations, NOTHING);
}

/// The only shard moved between nodes every millisecond, and each new owner began to fill it anew.
/// The time for that is unpredictable, so the other memory node is lost only once there is a copy.
#[test]
fn where_shards_move_the_next_memory_node_is_lost_when_the_last_one_is_filled() {
    let text = include_str!("regressions/filled-where-shards-move.toml");
    assert_eq!(replay("shards-move", text, 34175, 1_000_000).violations, NOTHING);
}

/// Requests to the oracle were repeated after a constant 20 ms: one that was lost shortly before
/// the calm was not repeated during it, and all clients of its coordinator waited for the answer.
#[test]
fn timestamps_are_asked_for_again_before_the_calm_is_over() {
    let text = include_str!("regressions/timestamps-asked-again.toml");
    assert_eq!(replay("timestamps-asked-again", text, 42961, 1_000_000).violations, NOTHING);
}

/// A node that was to return announced its beat, and its request to be admitted was lost. When it
/// was admitted, with the same beat, the others had seen that beat unchanged for a lease: it was
/// expelled at once.
#[test]
fn a_life_is_not_suspected_for_its_silence_before_it_was_taken_in() {
    let text = include_str!("regressions/announced-before.toml");
    assert_eq!(replay("announced-before", text, 4, 1_000_000).violations, NOTHING);
}

/// The last clients ended with their compute node before a memory node was to come back, and the
/// remaining faults of the storm happened only while there were clients.
#[test]
fn a_memory_node_comes_back_though_all_clients_have_ended() {
    let text = include_str!("regressions/back-after-clients.toml");
    let outcome = replay("back-after-clients", text, 5787, 1_000_000);
    assert_eq!(outcome.violations, NOTHING);
    assert_eq!(outcome.figures.memory_filled, 1);
}

/// A message to each of two owners was lost, and the next one to either was due 20 ms later, 40
/// leases: until then their coordinators suspected each other, long after messages got through
/// again.
#[test]
fn owners_are_heard_again_when_messages_get_through() {
    let text = include_str!("regressions/heard-again.toml");
    assert_eq!(replay("heard-again", text, 6585, 1_000_000).violations, NOTHING);
}

/// A verb that was held up in the last moments of the storm timed out a millisecond later. Others
/// waited for the locks of its transaction until their deadline, which was taken for a fault of
/// their own.
#[test]
fn a_verb_that_the_storm_held_up_is_felt_after_it() {
    let text = include_str!("regressions/late-verb.toml");
    assert_eq!(replay("late-verb", text, 6047, 1_000_000).violations, NOTHING);
}

/// A transaction that never ended held its locks until its time limit, a tenth of a second after
/// the storm. A client that had failed in vain until then got no further request, and was taken for
/// one that starves.
#[test]
fn locks_held_until_a_time_limit_starve_nobody() {
    let text = include_str!("regressions/held-until-its-limit.toml");
    assert_eq!(replay("held-until-its-limit", text, 9272, 1_000_000).violations, NOTHING);
}

/// Two primary keys of one 64-bit name were told apart by the later one being refused, in every
/// operation, and keys of one name could be written down. No simulation saw it, since names of all
/// bits never meet.
#[test]
fn rows_of_one_name_are_rows_like_any_others() {
    const SEEDS: usize = 12;
    let scenarios = (0..).map(|seed| (seed, swarm::scenario(seed)));
    let of_few_names = scenarios.filter(|(_, scenario)| scenario.cluster.name_bits < u64::BITS);
    for (seed, scenario) in of_few_names.take(SEEDS) {
        let outcome = run(&scenario, seed, Budget::default(), None).expect("it can be run");
        assert_eq!(outcome.violations, NOTHING, "seed {seed}");
    }
}
