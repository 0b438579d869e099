//! What a table answers, request by request.

use lotus_locks::Mode::{self, Exclusive, Shared, Update};
use lotus_locks::word::Claimant;
use lotus_locksystems::servers::{Answer, Ask, Asker, LockTable, Order, RequestName};

const LOCK: u64 = 7;

fn attempt(node: u8, number: u64) -> RequestName {
    let asker = Asker::new(Claimant::new(node, 1), 0, 0);
    RequestName { asker, number, lock: LOCK }
}

/// Answers to a request, by the nodes that they are for.
fn ask(table: &mut LockTable, of: RequestName, ask: Ask) -> Vec<(u8, Answer)> {
    let mut said = Vec::new();
    table.ask(of, ask, |to, answer| said.push((to.asker.life().node(), answer)));
    said
}

fn acquire(table: &mut LockTable, node: u8, mode: Mode) -> Answer {
    let said = ask(table, attempt(node, 1), Ask::Acquire { mode, waits: true });
    assert_eq!((said.len(), said[0].0), (1, node), "one is answered, who asks");
    said[0].1
}

/// Nodes that have the lock when one has left.
fn leave(table: &mut LockTable, node: u8) -> Vec<u8> {
    let said = ask(table, attempt(node, 1), Ask::Leave);
    assert_eq!(said[0], (node, Answer::Left));
    said[1..]
        .iter()
        .map(|(to, answer)| (*answer == Answer::Granted).then_some(*to))
        .collect::<Option<_>>()
        .expect("others are granted the lock")
}

#[test]
fn readers_share_and_all_others_wait_in_their_order() {
    let mut table = LockTable::new(Order::Arrival);
    assert_eq!(acquire(&mut table, 0, Shared), Answer::Granted);
    assert_eq!(acquire(&mut table, 1, Shared), Answer::Granted);
    for (node, mode) in [(2, Exclusive), (3, Shared), (4, Shared), (5, Update), (6, Shared)] {
        assert_eq!(acquire(&mut table, node, mode), Answer::Queued, "{node}");
    }
    assert_eq!(leave(&mut table, 0), [0; 0]);
    assert_eq!(leave(&mut table, 1), [2]);
    assert_eq!(leave(&mut table, 2), [3, 4]);
    assert_eq!(leave(&mut table, 4), [0; 0]);
    assert_eq!(leave(&mut table, 3), [5]);
    assert_eq!(leave(&mut table, 5), [6]);
    assert_eq!((leave(&mut table, 6), table.used()), (vec![], 0));
}

#[test]
fn a_waiter_that_leaves_lets_the_next_ones_in() {
    let mut table = LockTable::new(Order::Arrival);
    for (node, mode) in [(0, Shared), (1, Exclusive), (2, Shared), (3, Shared)] {
        acquire(&mut table, node, mode);
    }
    assert_eq!(leave(&mut table, 1), [2, 3]);
}

#[test]
fn without_a_queue_who_cannot_have_the_lock_is_refused() {
    let mut table = LockTable::new(Order::NoQueue);
    assert_eq!(acquire(&mut table, 0, Shared), Answer::Granted);
    assert_eq!(acquire(&mut table, 1, Exclusive), Answer::Refused);
    assert_eq!(acquire(&mut table, 1, Exclusive), Answer::Refused, "the same request again");
    assert_eq!(acquire(&mut table, 2, Shared), Answer::Granted);
    assert_eq!((leave(&mut table, 0), leave(&mut table, 2)), (vec![], vec![]));
    // The refused request has ended, and another one of its slot begins.
    let again = Ask::Acquire { mode: Exclusive, waits: true };
    assert_eq!(ask(&mut table, attempt(1, 2), again), [(1, Answer::Granted)]);
}

#[test]
fn a_request_that_does_not_wait_is_refused_behind_others() {
    let mut table = LockTable::new(Order::Arrival);
    acquire(&mut table, 0, Shared);
    acquire(&mut table, 1, Exclusive);
    let hurried = Ask::Acquire { mode: Shared, waits: false };
    assert_eq!(ask(&mut table, attempt(2, 1), hurried), [(2, Answer::Refused)]);
    assert_eq!(leave(&mut table, 0), [1]);
    assert_eq!((leave(&mut table, 1), table.used()), (vec![], 0));
}

/// Each waiting writer is passed ten times, and no more while it waits; a reader passes none that
/// is not behind readers.
#[test]
fn readers_pass_a_writer_so_many_times_and_no_more() {
    let mut table = LockTable::new(Order::ReadersPass(10));
    assert_eq!(acquire(&mut table, 0, Shared), Answer::Granted);
    assert_eq!(acquire(&mut table, 1, Exclusive), Answer::Queued);
    for node in 2..7 {
        assert_eq!(acquire(&mut table, node, Shared), Answer::Granted, "{node}");
    }
    assert_eq!(acquire(&mut table, 20, Exclusive), Answer::Queued);
    for node in 7..12 {
        assert_eq!(acquire(&mut table, node, Shared), Answer::Granted, "{node}");
    }
    assert_eq!(acquire(&mut table, 12, Shared), Answer::Queued, "the eleventh");
    (2..12).for_each(|node| assert_eq!(leave(&mut table, node), [0; 0]));
    assert_eq!(leave(&mut table, 0), [1]);
    assert_eq!(acquire(&mut table, 13, Shared), Answer::Queued, "a writer holds it");
    assert_eq!(leave(&mut table, 1), [20]);
    assert_eq!(leave(&mut table, 20), [12, 13]);
}

#[test]
fn what_comes_twice_or_late_changes_nothing() {
    let mut table = LockTable::new(Order::Arrival);
    let writes = Ask::Acquire { mode: Exclusive, waits: true };
    assert_eq!(acquire(&mut table, 0, Exclusive), Answer::Granted);
    assert_eq!(acquire(&mut table, 0, Exclusive), Answer::Granted);
    assert_eq!(acquire(&mut table, 1, Exclusive), Answer::Queued);
    assert_eq!(acquire(&mut table, 1, Exclusive), Answer::Queued);
    assert_eq!(table.queue_len(LOCK), 2);
    assert_eq!(leave(&mut table, 0), [1]);
    assert_eq!(leave(&mut table, 0), [0; 0]);
    assert_eq!(ask(&mut table, attempt(0, 1), writes), [], "it has left");
    // A leave that overtakes what it ends.
    assert_eq!(ask(&mut table, attempt(0, 2), Ask::Leave), [(0, Answer::Left)]);
    assert_eq!(ask(&mut table, attempt(0, 2), writes), []);
    assert_eq!(ask(&mut table, attempt(0, 3), writes), [(0, Answer::Queued)]);
    assert_eq!(ask(&mut table, attempt(0, 1), Ask::Leave), [(0, Answer::Left)]);
    assert_eq!(leave(&mut table, 1), [0]);
}

#[test]
fn an_expelled_node_has_nothing_and_asks_for_nothing() {
    let mut table = LockTable::new(Order::Arrival);
    let of = |node, life, slot| {
        let asker = Asker::new(Claimant::new(node, life), 3, slot);
        RequestName { asker, number: 1, lock: LOCK }
    };
    let writes = Ask::Acquire { mode: Exclusive, waits: true };
    for (node, slot) in [(5, 0), (5, 1), (6, 0), (5, 2)] {
        ask(&mut table, of(node, 4, slot), writes);
    }
    assert_eq!(table.lives(), [Claimant::new(5, 4), Claimant::new(6, 4)]);
    let mut granted = Vec::new();
    table.expel(Claimant::new(5, 4), |to, answer| granted.push((to, answer)));
    assert_eq!(granted, [(of(6, 4, 0), Answer::Granted)], "nobody else, also not for a moment");
    assert_eq!(table.queue_len(LOCK), 1);
    for late in [of(5, 4, 0), of(5, 3, 9)] {
        assert!(!table.is_new(late));
        assert_eq!(ask(&mut table, late, writes), [(5, Answer::Expelled)]);
        assert_eq!(ask(&mut table, late, Ask::Leave), [(5, Answer::Expelled)]);
    }
    assert!(table.is_new(of(5, 5, 0)));
    assert_eq!(ask(&mut table, of(5, 5, 0), writes), [(5, Answer::Queued)]);
}
