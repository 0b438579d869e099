//! Holes of the published protocol: each test does the same with a published rule, which violates
//! what a lock promises, and with the rule that closes the hole.

use lotus_locks::Mode::{Exclusive, Shared};
use lotus_locksystems::fisslock::Rules;
use lotus_locksystems::fisslock::decider::Metadata;
use lotus_locksystems::fisslock::packet::Kind;
use lotus_locksystems::fisslock::rules::Numbering;

use super::table::Table;

/// The rules that close all holes but those that a RELEASE which frees the lock leads to.
const FREEING: Rules = Rules { withdraws: false, ..Rules::CLOSED };

/// All that holds the lock releases it, and time passes: whether it is free then.
fn is_free_again(table: &mut Table) -> bool {
    for _ in 0..20 {
        while let Some((&(lock, machine, task), _)) = table.inside.iter().next() {
            table.release(machine, task, lock);
        }
        table.recover_losses();
    }
    table.decider.lock(0) == Metadata::default()
}

/// (a) A grant of an earlier attempt arrives while the task waits in its next one.
fn late_grant(rules: Rules) -> Table {
    let mut table = Table::small(3, rules);
    table.ask(1, 5, 0, Exclusive);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    let late = table.take(|flying| flying.reaches(1, Kind::Grant));
    table.give_up(1, 5, 0);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.settle();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    late.into_iter().for_each(|flying| table.deliver(flying));
    table.recover_losses();
    table
}

#[test]
fn a_late_grant_is_not_taken_for_that_of_the_next_attempt() {
    let table = late_grant(Rules { nonces: false, ..FREEING });
    assert_eq!(table.violations, ["lock 0: 1.5 (Exclusive) beside 2.6 (Exclusive)"]);
    for rules in [FREEING, Rules::CLOSED] {
        let mut table = late_grant(rules);
        assert!(table.violations.is_empty());
        assert!(is_free_again(&mut table));
    }
}

/// (b) Two tasks of one machine ask at once, and one gives up before the grant of the other
/// arrives.
fn overlap(rules: Rules) -> Table {
    let mut table = Table::small(3, rules);
    table.ask(1, 5, 0, Exclusive);
    table.ask(1, 6, 0, Exclusive);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    let late = table.take(|flying| flying.to == Some(1));
    table.give_up(1, 6, 0);
    table.settle();
    table.ask(2, 7, 0, Exclusive);
    table.settle();
    late.into_iter().for_each(|flying| table.deliver(flying));
    table.settle();
    table
}

#[test]
fn a_release_frees_no_lock_that_another_task_of_the_machine_is_granted() {
    let table = overlap(Rules { one_request: false, ..FREEING });
    assert_eq!(table.violations, ["lock 0: 1.5 (Exclusive) beside 2.7 (Exclusive)"]);
    for rules in [FREEING, Rules::CLOSED] {
        let mut table = overlap(rules);
        assert!(table.violations.is_empty() && table.holds(1, 5, 0), "{:?}", table.inside);
        assert!(is_free_again(&mut table));
    }
}

/// One request a machine does not suffice while a RELEASE frees a lock: the agent may be on its way
/// with a grant of the queue, and others' requests in it.
fn agent_under_way(rules: Rules) -> Table {
    let mut table = Table::small(4, rules);
    for (machine, mode) in [(1, Exclusive), (2, Exclusive), (3, Exclusive)] {
        table.ask(machine, 5, 0, mode);
        table.settle();
    }
    table.release(1, 5, 0);
    table.deliver_where(|flying| flying.leaves(Kind::Grant));
    let late = table.take(|flying| flying.reaches(2, Kind::Grant));
    table.give_up(2, 5, 0);
    table.settle();
    late.into_iter().for_each(|flying| table.deliver(flying));
    table.recover_losses();
    table
}

#[test]
fn a_release_frees_no_lock_whose_agent_is_on_its_way() {
    let table = agent_under_way(FREEING);
    assert!(!table.holds(3, 5, 0), "the queue is lost with its agent");
    let mut table = agent_under_way(Rules::CLOSED);
    assert!(table.holds(3, 5, 0));
    assert!(is_free_again(&mut table));
}

/// (c) A request is overtaken by another one of its machine.
fn overtaken(numbering: Numbering) -> Table {
    let mut table = Table::new(
        3,
        2,
        Rules { numbering, replays: numbering == Numbering::InOrder, ..Rules::CLOSED },
        lotus_locksystems::fisslock::Preference::Readers,
    );
    table.ask(1, 5, 0, Exclusive);
    let overtaken = table.take(|flying| flying.leaves(Kind::Acquire));
    table.ask(1, 6, 1, Exclusive);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    overtaken.into_iter().for_each(|flying| table.deliver(flying));
    table.settle();
    table.recover_losses();
    table
}

#[test]
fn a_request_that_was_overtaken_is_not_granted_without_a_mark() {
    let mut table = overtaken(Numbering::Largest);
    assert!(table.holds(1, 5, 0) && !table.decider.lock(0).held, "granted, and not marked");
    table.ask(2, 7, 0, Exclusive);
    table.settle();
    assert_eq!(table.violations, ["lock 0: 2.7 (Exclusive) beside 1.5 (Exclusive)"]);

    let mut table = overtaken(Numbering::InOrder);
    assert!(table.holds(1, 5, 0) && table.decider.lock(0).held);
    table.ask(2, 7, 0, Exclusive);
    table.settle();
    assert!(table.violations.is_empty() && is_free_again(&mut table));
}

/// The public code has no numbers: a request comes twice, the second time after the release.
fn repeated(numbering: Numbering) -> Table {
    let mut table = Table::small(3, Rules { numbering, ..Rules::CLOSED });
    table.ask(1, 5, 0, Exclusive);
    let again = table.wire[0].clone();
    table.settle();
    table.release(1, 5, 0);
    table.settle();
    table.deliver(again);
    table.recover_losses();
    table.ask(2, 6, 0, Exclusive);
    table.recover_losses();
    table
}

#[test]
fn a_repeated_request_does_not_take_the_lock_for_no_task() {
    let table = repeated(Numbering::Ignored);
    assert!(!table.holds(2, 6, 0) && table.decider.lock(0).held && table.inside.is_empty());
    let mut table = repeated(Numbering::InOrder);
    assert!(table.holds(2, 6, 0) && is_free_again(&mut table));
}

#[test]
fn the_first_shared_request_counts_at_the_agent_too() {
    for (first_counts, is_free) in [(false, false), (true, true)] {
        let mut table = Table::small(3, Rules { first_counts, ..Rules::CLOSED });
        table.ask(1, 5, 0, Shared);
        table.settle();
        assert_eq!(is_free_again(&mut table), is_free);
    }
}

/// (e) Tasks of eight machines have 256 shared grants, as many as an origin's window admits, while
/// the agent does not hear of them; its only holder leaves, and a writer asks.
fn many_readers(rules: Rules) -> Table {
    let mut table = Table::small(10, rules);
    table.ask(1, 5, 0, Shared);
    table.settle();
    for machine in 2..10 {
        for task in 0..32 {
            table.ask(machine, task, 0, Shared);
        }
        table.deliver_where(|flying| flying.leaves(Kind::Acquire));
        table.deliver_where(|flying| flying.reaches(machine, Kind::Grant));
    }
    let late = table.take(|flying| flying.reaches(1, Kind::Acquire));
    table.release(1, 5, 0);
    table.settle();
    table.ask(0, 7, 0, Exclusive);
    table.settle();
    late.into_iter().for_each(|flying| table.deliver(flying));
    table
}

#[test]
fn the_incarnation_does_not_come_round() {
    let table = many_readers(Rules { one_request: false, ..Rules::CLOSED });
    assert_eq!(table.violations.len(), 256, "a writer beside as many readers");
    let mut table = many_readers(Rules::CLOSED);
    assert!(table.violations.is_empty() && !table.holds(0, 7, 0));
    assert!(is_free_again(&mut table));
}

/// (f) FREE meets a shared grant at the switch, which refuses it.
fn refused_free(rules: Rules) -> Table {
    let mut table = Table::small(3, rules);
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.release(1, 5, 0);
    table.ask(2, 6, 0, Shared);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    table.settle();
    table
}

#[test]
fn an_agent_is_kept_until_the_switch_has_freed_the_lock() {
    let mut table = refused_free(Rules { keeps_freed: false, ..Rules::CLOSED });
    assert!(table.holds(2, 6, 0));
    assert!(!is_free_again(&mut table), "a lock without an agent");
    let mut table = refused_free(Rules::CLOSED);
    assert!(table.holds(2, 6, 0) && is_free_again(&mut table));
}

/// The word to the agent of a grant that the switch has made is lost.
fn lost_word(rules: Rules) -> Table {
    let mut table = Table::small(3, rules);
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Shared);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    assert_eq!(table.take(|flying| flying.reaches(1, Kind::Acquire)).len(), 1);
    table.recover_losses();
    table
}

#[test]
fn the_switch_repeats_its_word_to_the_agent() {
    let mut table = lost_word(Rules { replays: false, ..Rules::CLOSED });
    assert!(table.holds(2, 6, 0));
    assert!(!is_free_again(&mut table), "the agent has not counted the grant");
    let mut table = lost_word(Rules::CLOSED);
    assert!(table.holds(2, 6, 0) && is_free_again(&mut table));
}
