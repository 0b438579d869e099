//! Agents that rest at home (FissLock-Local, FissLock §7.4), step by step.

use lotus_locks::Mode::{Exclusive, Shared};
use lotus_locksystems::fisslock::packet::Kind;
use lotus_locksystems::fisslock::{Homes, Preference, Rules};

use super::table::Table;

/// Three machines; machine 1 is the home of the only lock it is asked for here.
fn table() -> Table {
    let homes = Homes::Blocks { locks: 3, machines: 3 };
    Table::with_homes(3, 3, Rules::CLOSED, Preference::Readers, homes)
}

const LOCK: u32 = 1;

/// A table with an agent that rests.
fn resting() -> Table {
    let mut table = table();
    table.ask(1, 5, LOCK, Shared);
    table.settle();
    table.release(1, 5, LOCK);
    table.settle();
    assert!(table.pools[1].agent(LOCK).is_some_and(|agent| agent.is_resting()));
    assert!(table.is_idle() && table.decider.lock(LOCK).held);
    table
}

#[test]
fn at_home_no_packet_is_needed_once_the_agent_is_there() {
    let mut table = resting();
    for mode in [Exclusive, Shared, Exclusive] {
        table.ask(1, 6, LOCK, mode);
        assert!(table.holds(1, 6, LOCK) && table.wire.is_empty());
        table.ask(1, 7, LOCK, mode);
        assert_eq!(table.holds(1, 7, LOCK), mode == Shared, "readers share");
        table.release(1, 6, LOCK);
        assert!(table.holds(1, 7, LOCK), "the next waiter has it at once");
        table.release(1, 7, LOCK);
        assert!(table.wire.is_empty());
    }
    assert_eq!(table.count(Kind::Acquire), 1);
}

#[test]
fn another_machine_holds_the_lock_and_the_agent_stays() {
    let mut table = resting();
    for mode in [Exclusive, Shared] {
        table.ask(2, 8, LOCK, mode);
        table.settle();
        assert!(table.holds(2, 8, LOCK) && table.pools[1].agent(LOCK).is_some());
        table.ask(1, 5, LOCK, Exclusive);
        assert!(!table.holds(1, 5, LOCK));
        table.release(2, 8, LOCK);
        table.settle();
        assert!(table.holds(1, 5, LOCK));
        table.release(1, 5, LOCK);
        assert!(table.pools[1].agent(LOCK).is_some_and(|agent| agent.is_resting()));
    }
}

#[test]
fn an_agent_rests_only_at_home() {
    let mut table = table();
    table.ask(2, 8, LOCK, Exclusive);
    table.settle();
    assert!(table.pools[2].agent(LOCK).is_some(), "the first to ask has it");
    table.ask(1, 5, LOCK, Shared);
    table.settle();
    table.release(2, 8, LOCK);
    table.settle();
    assert!(table.holds(1, 5, LOCK) && table.pools[2].agent(LOCK).is_none());
    table.release(1, 5, LOCK);
    assert!(table.pools[1].agent(LOCK).is_some_and(|agent| agent.is_resting()));
}

#[test]
fn the_switch_lets_no_reader_in_beside_a_writer_at_home() {
    let mut table = resting();
    table.ask(1, 6, LOCK, Shared);
    table.ask(2, 8, LOCK, Shared);
    table.settle();
    assert!(table.holds(2, 8, LOCK), "the agent shares with another machine");
    table.release(1, 6, LOCK);
    table.ask(1, 7, LOCK, Exclusive);
    table.ask(0, 9, LOCK, Shared);
    table.settle();
    assert!(table.violations.is_empty(), "{:?}", table.violations);
    assert!(!table.holds(1, 7, LOCK));
    for (machine, task) in [(2, 8), (0, 9), (1, 7)] {
        if table.holds(machine, task, LOCK) {
            table.release(machine, task, LOCK);
            table.settle();
        }
    }
    assert!(table.violations.is_empty() && table.is_idle(), "{:?}", table.violations);
}

/// A recovery frees locks that are not used; the next request brings the agent back.
#[test]
fn a_recovery_forgets_agents_that_rest() {
    let mut table = resting();
    table.recover(0);
    assert!(!table.decider.lock(LOCK).held && table.pools[1].agent(LOCK).is_none());
    table.ask(2, 8, LOCK, Exclusive);
    table.settle();
    assert!(table.holds(2, 8, LOCK));
    table.release(2, 8, LOCK);
    table.settle();
    assert!(table.is_idle() && table.violations.is_empty());
}
