//! The nine workflows of FissLock, Fig. 5.

use lotus_locks::Mode::{Exclusive, Shared};
use lotus_locksystems::fisslock::decider::Metadata;
use lotus_locksystems::fisslock::packet::{Kind, MAX_WAITERS};
use lotus_locksystems::fisslock::pool::TaskNotice;
use lotus_locksystems::fisslock::{Preference, Rules};

use super::table::Table;

fn table() -> Table {
    Table::small(3, Rules::CLOSED)
}

/// All that holds a lock releases it, and nothing is left.
fn drain(mut table: Table) {
    while let Some((&(lock, machine, task), _)) = table.inside.iter().next() {
        table.release(machine, task, lock);
        table.settle();
    }
    table.pass(1_000_000);
    table.settle();
    assert!(table.is_idle() && table.violations.is_empty(), "{:?}", table.violations);
    assert_eq!(table.decider.lock(0), Metadata::default());
}

#[test]
fn workflow_1_a_free_lock_is_granted_by_the_switch_with_an_empty_agent() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    assert_eq!(table.deliver_where(|flying| flying.leaves(Kind::Acquire)), 1);
    assert_eq!(table.wire.len(), 1, "one grant, and no other machine is asked");
    assert_eq!(table.deliver_where(|flying| flying.reaches(1, Kind::Grant)), 1);
    assert!(table.holds(1, 5, 0) && table.pools[1].agent(0).is_some());
    drain(table);
}

#[test]
fn workflow_2_a_shared_lock_is_granted_by_the_switch_and_the_agent_is_told() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Shared);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    assert_eq!(table.deliver_where(|flying| flying.reaches(2, Kind::Grant)), 1);
    assert!(table.holds(2, 6, 0), "before the agent knows");
    assert_eq!(table.deliver_where(|flying| flying.reaches(1, Kind::Acquire)), 1);
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.holders.len()), Some(2));
    assert!(table.pools[2].agent(0).is_none());
    drain(table);
}

#[test]
fn workflow_3_a_request_that_is_not_granted_waits_at_the_agent() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.settle();
    assert!(!table.holds(2, 6, 0));
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.queue.len()), Some(1));
    table.release(1, 5, 0);
    table.settle();
    assert!(table.holds(2, 6, 0));
    drain(table);
}

#[test]
fn workflow_4_the_agents_machine_grants_locally() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(1, 6, 0, Shared);
    assert!(table.holds(1, 6, 0) && table.wire.is_empty(), "without a packet");
    drain(table);
}

#[test]
fn workflow_5_the_agents_machine_queues_locally() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    table.ask(1, 6, 0, Exclusive);
    assert!(!table.holds(1, 6, 0) && table.wire.is_empty(), "without a packet");
    table.release(1, 5, 0);
    table.settle();
    assert!(table.holds(1, 6, 0), "its grant has passed through the switch");
    assert_eq!(table.count(Kind::Grant), 1);
    drain(table);
}

#[test]
fn workflow_6_a_local_release_leaves_other_holders() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(1, 6, 0, Shared);
    table.release(1, 5, 0);
    assert!(table.wire.is_empty(), "without a packet");
    drain(table);
}

#[test]
fn workflow_7_the_last_release_frees_the_lock() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    table.release(1, 5, 0);
    assert_eq!(table.deliver_where(|flying| flying.leaves(Kind::Free)), 1);
    assert_eq!(table.decider.lock(0), Metadata::default());
    table.settle();
    assert!(table.is_idle());
}

#[test]
fn workflow_8_the_last_release_moves_the_agent_to_the_next_waiter() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    for machine in [2, 0] {
        table.ask(machine, 6, 0, Shared);
        table.settle();
    }
    table.release(1, 5, 0);
    assert_eq!(table.deliver_where(|flying| flying.leaves(Kind::Grant)), 1);
    let lock = table.decider.lock(0);
    assert!(lock.held && lock.shared && lock.machine == 2);
    assert_eq!(table.deliver_where(|flying| flying.reaches(2, Kind::Grant)), 1);
    assert!(table.holds(2, 6, 0) && table.pools[1].agent(0).is_none());
    table.settle();
    assert!(table.holds(0, 6, 0), "a shared grantee grants the other shared waiters");
    drain(table);
}

#[test]
fn workflow_9_a_release_without_the_agent_goes_through_the_switch() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Shared);
    table.settle();
    table.release(2, 6, 0);
    assert_eq!(table.deliver_where(|flying| flying.leaves(Kind::Release)), 1);
    assert_eq!(table.deliver_where(|flying| flying.reaches(1, Kind::Release)), 1);
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.holders.len()), Some(1));
    drain(table);
}

#[test]
fn a_writer_keeps_readers_out_if_writers_are_preferred() {
    let mut table = Table::new(3, 1, Rules::CLOSED, Preference::Writers);
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.ask(0, 7, 0, Shared);
    table.settle();
    assert!(!table.holds(0, 7, 0));
    table.release(1, 5, 0);
    table.settle();
    assert!(table.holds(2, 6, 0) && !table.holds(0, 7, 0));
    drain(table);
}

#[test]
fn a_starving_writer_has_readers_wait_after_100_microseconds() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.ask(0, 7, 0, Shared);
    table.settle();
    assert!(table.holds(0, 7, 0), "readers are preferred");
    table.pass(100_000);
    table.settle();
    assert_eq!(table.count(Kind::Starve), 1);
    table.ask(0, 8, 0, Shared);
    table.ask(1, 9, 0, Shared);
    table.settle();
    assert!(!table.holds(0, 8, 0) && !table.holds(1, 9, 0), "at the switch and at the agent");
    table.release(1, 5, 0);
    table.release(0, 7, 0);
    table.settle();
    assert!(table.holds(2, 6, 0));
    drain(table);
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.settle();
    table.give_up(2, 6, 0);
    table.settle();
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.queue.len()), Some(0));
    assert!(table.pools[2].is_idle(), "and is told that it has");
    drain(table);
}

#[test]
fn a_stale_grant_is_answered_by_release() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.settle();
    table.ask(2, 6, 0, Shared);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    table.give_up(2, 6, 0);
    table.settle();
    assert!(!table.holds(2, 6, 0));
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.holders.len()), Some(1));
    drain(table);
}

#[test]
fn a_request_for_an_absent_agent_is_sent_back_16_times_then_queued_then_refused() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    table.ask(2, 6, 0, Exclusive);
    table.settle();
    table.release(1, 5, 0);
    table.deliver_where(|flying| flying.leaves(Kind::Grant));
    let late = table.take(|flying| flying.reaches(2, Kind::Grant));
    let before = table.count(Kind::Acquire);
    table.ask(0, 7, 0, Exclusive);
    table.settle();
    assert_eq!(table.count(Kind::Acquire) - before, 1 + 16);
    table.told.clear();
    for (passed, told) in [(999_999, vec![]), (1, vec![(0, TaskNotice::Refused(0, 7))])] {
        table.now += passed;
        table.with(2, |pool, now, out| pool.tick(now, out));
        table.settle();
        assert_eq!(table.told, told);
    }
    late.into_iter().for_each(|flying| table.deliver(flying));
    table.settle();
    assert!(table.holds(2, 6, 0));
    drain(table);
}

#[test]
fn a_request_that_is_queued_for_an_agent_is_served_when_it_arrives() {
    let mut table = table();
    table.ask(1, 5, 0, Shared);
    table.deliver_where(|flying| flying.leaves(Kind::Acquire));
    let late = table.take(|flying| flying.reaches(1, Kind::Grant));
    table.ask(2, 6, 0, Shared);
    table.ask(0, 7, 0, Exclusive);
    table.settle();
    assert!(table.holds(2, 6, 0) && table.inside.len() == 1);
    late.into_iter().for_each(|flying| table.deliver(flying));
    table.settle();
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.holders.len()), Some(2));
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.queue.len()), Some(1));
    drain(table);
}

#[test]
fn a_full_queue_refuses() {
    let mut table = table();
    for task in 0..=501 {
        table.ask(1, task, 0, Exclusive);
        table.settle();
    }
    assert_eq!(table.told.last(), Some(&(1, TaskNotice::Refused(0, 501))));
    assert_eq!(table.pools[1].agent(0).map(|agent| agent.queue.len()), Some(500));
    table.ask(2, 9, 0, Shared);
    table.settle();
    assert_eq!(table.told.last(), Some(&(2, TaskNotice::Refused(0, 9))));
    drain(table);
}

#[test]
fn a_machine_has_one_request_of_a_lock_at_the_switch() {
    let mut table = table();
    table.ask(1, 5, 0, Exclusive);
    table.settle();
    let before = table.count(Kind::Acquire);
    for task in 0..5 {
        table.ask(2, task, 0, Shared);
    }
    table.settle();
    assert_eq!(table.count(Kind::Acquire) - before, 1);
    table.release(1, 5, 0);
    table.settle();
    assert_eq!(table.inside.len(), 5, "the others ask the agent, which has come");
    drain(table);
}

/// Tasks that wait on their machines have no bound, and all wait at the agent after a recovery.
#[test]
fn a_recovery_refuses_those_for_whom_the_queue_has_no_room() {
    let mut table = Table::small(4, Rules::CLOSED);
    table.ask(1, 0, 0, Exclusive);
    table.settle();
    for (machine, task) in (1..3).flat_map(|machine| (1..401).map(move |task| (machine, task))) {
        table.ask(machine, task, 0, Exclusive);
    }
    table.settle();
    table.recover(3);
    table.settle();
    let refused = |told: &(u8, TaskNotice)| matches!(told, (_, TaskNotice::Refused(..)));
    assert_eq!(table.told.iter().filter(|told| refused(told)).count(), 800 - MAX_WAITERS);
    let queue = table.pools[1].agent(0).map(|agent| agent.queue.len());
    assert_eq!(queue, Some(MAX_WAITERS));
    drain(table);
}
