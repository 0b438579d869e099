//! Queues of the lock table: who is served, when and in what order.
#![cfg(not(lotus_loom))]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locktable::LockMode::{Read, Write};
use lotus_locktable::{
    Grant, LockKey, LockMode, LockOrWait, LockRequest, LockTable, LockTableConfig,
    MAX_WAITING_PER_STRIPE, Refusal, Release, WaitOutcome, Waiter,
};

const ROW: LockKey = LockKey::row(TableId(1), Key(7 << 12));
const OTHER: LockKey = LockKey::row(TableId(1), Key(8 << 12));

fn txn(number: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), number as u16, 1)
}

/// Outcomes in the order in which they came.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<(TxnId, WaitOutcome)>>);

impl Waiter for Log {
    fn settled(&self, txn: TxnId, _name: LockKey, outcome: WaitOutcome) {
        self.0.lock().expect("no panic").push((txn, outcome));
    }
}

struct World {
    table: LockTable,
    log: Arc<Log>,
}

impl World {
    fn new(config: LockTableConfig) -> Self {
        Self { table: LockTable::new(config).expect("valid"), log: Arc::default() }
    }

    fn ask(&self, number: u64, name: LockKey, mode: LockMode, since: u64) -> Answer {
        let waiter = Arc::clone(&self.log) as Arc<dyn Waiter>;
        let request = LockRequest { name, mode };
        self.table.lock_or_wait(txn(number), request, Nanos(since), &waiter)
    }

    /// Numbers of the transactions whose wait ended with a grant since the last call.
    fn granted(&self) -> Vec<u64> {
        let settled = std::mem::take(&mut *self.log.0.lock().expect("no panic"));
        settled
            .into_iter()
            .map(|(txn, outcome)| {
                assert_eq!(outcome, WaitOutcome::Granted, "{txn:?}");
                u64::from(txn.slot())
            })
            .collect()
    }
}

type Answer = Result<LockOrWait, Refusal>;
const TAKEN: Answer = Ok(LockOrWait::Granted(Grant::Acquired));
const WAITS: Answer = Ok(LockOrWait::Waits);

fn world() -> World {
    World::new(LockTableConfig::with_bytes(1 << 16))
}

/// One hot row and 64 transactions that want to write it: each is served once, in order.
#[test]
fn sixty_four_waiters_of_one_row_are_served_once_and_in_order() {
    let world = world();
    assert_eq!(world.ask(100, ROW, Write, 0), TAKEN);
    for number in 0..64 {
        assert_eq!(world.ask(number, ROW, Write, number), WAITS);
    }
    assert_eq!(world.table.waiting(), 64);
    let (mut holder, mut timeline) = (100, Vec::new());
    while world.table.held() > 0 {
        assert!(world.table.is_write_locked(&ROW));
        assert_eq!(world.table.unlock(txn(holder), &ROW), Release::Released);
        let next = world.granted();
        assert!(next.len() <= 1, "one writer at a time: {next:?}");
        let Some(next) = next.first() else { break };
        holder = *next;
        timeline.push(holder);
    }
    assert_eq!(timeline, (0..64).collect::<Vec<_>>());
    assert_eq!((world.table.held(), world.table.waiting()), (0, 0));
}

#[test]
fn the_oldest_is_served_first_whenever_it_came() {
    let world = world();
    assert_eq!(world.ask(9, ROW, Write, 0), TAKEN);
    for (number, since) in [(1, 50), (2, 20), (3, 50), (4, 10)] {
        assert_eq!(world.ask(number, ROW, Write, since), WAITS);
    }
    let mut order = vec![9];
    while world.table.unlock(txn(order[order.len() - 1]), &ROW) == Release::Released {
        order.extend(world.granted());
        if world.table.held() == 0 {
            break;
        }
    }
    assert_eq!(order, [9, 4, 2, 1, 3]);
}

/// Readers come and go without a pause: the writer would never find the row free.
#[test]
fn readers_do_not_overtake_a_writer_and_are_served_together_behind_it() {
    let world = world();
    assert_eq!(world.ask(1, ROW, Read, 1), TAKEN);
    assert_eq!(world.ask(2, ROW, Write, 2), WAITS);
    assert_eq!(world.ask(3, ROW, Read, 3), WAITS);
    assert_eq!(world.ask(4, ROW, Read, 4), WAITS);
    let request = LockRequest::read(ROW);
    assert_eq!(
        world.table.try_lock(txn(5), request),
        Err(Refusal::Conflict),
        "nor who cannot wait"
    );
    world.table.unlock(txn(1), &ROW);
    assert_eq!(world.granted(), [2]);
    world.table.unlock(txn(2), &ROW);
    assert_eq!(world.granted(), [3, 4]);
    // Who is older than all that wait, and compatible, does not wait at all.
    assert_eq!(world.ask(6, ROW, Write, 6), WAITS);
    assert_eq!(world.ask(7, ROW, Read, 5), TAKEN);
    assert_eq!(world.granted(), [0; 0]);
}

#[test]
fn who_stops_waiting_lets_those_behind_go_on() {
    let world = world();
    assert_eq!(world.ask(1, ROW, Read, 1), TAKEN);
    assert_eq!(world.ask(2, ROW, Write, 2), WAITS);
    assert_eq!(world.ask(3, ROW, Read, 3), WAITS);
    assert!(!world.table.stop_waiting(txn(3), &OTHER));
    assert!(world.table.stop_waiting(txn(2), &ROW));
    assert!(!world.table.stop_waiting(txn(2), &ROW), "it is gone");
    assert_eq!(world.granted(), [3]);
    assert_eq!(world.table.held(), 2);
}

/// Two readers that both want to write would wait for each other.
#[test]
fn an_upgrade_does_not_wait() {
    let world = world();
    for number in [1, 2] {
        assert_eq!(world.ask(number, ROW, Read, 1), TAKEN);
    }
    assert_eq!(world.ask(1, ROW, Write, 1), Err(Refusal::Conflict));
    world.table.unlock(txn(2), &ROW);
    assert_eq!(world.ask(3, ROW, Write, 1), WAITS);
    // A sole reader is upgraded although others wait: they could not be served before it ends.
    assert_eq!(world.ask(1, ROW, Write, 1), Ok(LockOrWait::Granted(Grant::Upgraded)));
    world.table.unlock(txn(1), &ROW);
    assert_eq!(world.granted(), [3]);
}

/// The order in which transactions may wait is one of names: a name that only looks the same as one
/// that is held could be anywhere in it.
#[test]
fn nobody_waits_for_a_name_that_only_looks_the_same() {
    let world = World::new(LockTableConfig { bytes: 64, fingerprint_bits: 1 });
    assert_eq!(world.ask(1, ROW, Write, 1), TAKEN);
    assert_eq!(world.ask(2, OTHER, Write, 1), Err(Refusal::Conflict));
    // One transaction holds both names, and releases that which is waited for.
    assert_eq!(world.ask(1, OTHER, Write, 1), TAKEN);
    assert_eq!(world.ask(2, OTHER, Write, 1), WAITS);
    world.table.unlock(txn(1), &OTHER);
    let settled = std::mem::take(&mut *world.log.0.lock().expect("no panic"));
    assert_eq!(settled, [(txn(2), WaitOutcome::Refused)]);
    assert_eq!((world.table.held(), world.table.waiting()), (1, 0));
    world.table.unlock(txn(1), &ROW);
    assert_eq!((world.table.held(), world.table.unsound_slots()), (0, 0));
}

#[test]
fn dismissed_requests_are_told_and_those_behind_go_on() {
    let world = world();
    assert_eq!(world.ask(1, ROW, Read, 1), TAKEN);
    assert_eq!(world.ask(1, OTHER, Write, 1), TAKEN);
    assert_eq!(world.ask(2, ROW, Write, 2), WAITS);
    assert_eq!(world.ask(3, ROW, Read, 3), WAITS);
    assert_eq!(world.ask(4, OTHER, Write, 4), WAITS);
    let dismissed = world.table.dismiss(WaitOutcome::Moved, |txn, _| txn.slot() == 2);
    let settled = std::mem::take(&mut *world.log.0.lock().expect("no panic"));
    let expected = [(txn(3), WaitOutcome::Granted), (txn(2), WaitOutcome::Moved)];
    assert_eq!((dismissed, &settled[..]), (1, &expected[..]));
    assert_eq!(world.table.dismiss(WaitOutcome::Closed, |_, name| *name == OTHER), 1);
    assert_eq!(world.table.waiting(), 0);
}

#[test]
fn a_full_queue_refuses() {
    let world = world();
    assert_eq!(world.ask(0, ROW, Write, 0), TAKEN);
    for number in 1..=MAX_WAITING_PER_STRIPE as u64 {
        let waiter = Arc::clone(&world.log) as Arc<dyn Waiter>;
        let id = TxnId::new(Incarnation::new(1).expect("fits"), 1, number);
        let asked = world.table.lock_or_wait(id, LockRequest::write(ROW), Nanos(number), &waiter);
        assert_eq!(asked, WAITS);
    }
    assert_eq!(world.ask(2, ROW, Write, 0), Err(Refusal::QueueFull));
    assert_eq!(world.table.dismiss(WaitOutcome::Closed, |_, _| true), MAX_WAITING_PER_STRIPE);
}

/// A write lock that passes from one transaction to the next is never seen free of change.
#[test]
fn h11_a_lock_that_passes_to_the_next_is_noticed() {
    let world = world();
    assert_eq!(world.ask(1, ROW, Read, 1), TAKEN);
    assert_eq!(world.ask(2, ROW, Write, 2), WAITS);
    let watch = world.table.watch(&ROW);
    assert!(world.table.unwritten_since(&ROW, watch));
    world.table.unlock(txn(1), &ROW);
    assert!(world.table.is_write_locked(&ROW));
    world.table.unlock(txn(2), &ROW);
    assert!(!world.table.unwritten_since(&ROW, watch));
}

/// Threads take two rows in order and wait for each. The locks protect counters that are changed
/// without any order of their own, and every thread comes to its end.
#[test]
fn threads_that_wait_in_order_exclude_each_other_and_all_end() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2_000;
    /// Tells the thread of a transaction.
    #[derive(Debug)]
    struct Unpark(BTreeMap<u16, Mutex<Option<std::thread::Thread>>>);
    impl Waiter for Unpark {
        fn settled(&self, txn: TxnId, _name: LockKey, outcome: WaitOutcome) {
            assert_eq!(outcome, WaitOutcome::Granted);
            let waiting = self.0[&txn.slot()].lock().expect("no panic").take();
            waiting.expect("it has registered").unpark();
        }
    }
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let table = LockTable::new(LockTableConfig::with_bytes(64)).expect("valid");
    let waiter = Unpark((0..THREADS as u16).map(|slot| (slot, Mutex::new(None))).collect());
    let waiter = Arc::new(waiter);
    let counters = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (table, counters, waiter) = (&table, &counters, Arc::clone(&waiter));
            scope.spawn(move || {
                let id = txn(number);
                for round in 0..ROUNDS {
                    for name in [ROW, OTHER] {
                        let place = &waiter.0[&(number as u16)];
                        *place.lock().expect("no panic") = Some(std::thread::current());
                        let told = Arc::clone(&waiter) as Arc<dyn Waiter>;
                        let request = LockRequest::write(name);
                        match table.lock_or_wait(id, request, Nanos(round), &told) {
                            Ok(LockOrWait::Granted(_)) => {
                                place.lock().expect("no panic").take();
                            }
                            Ok(LockOrWait::Waits) => {
                                while place.lock().expect("no panic").is_some() {
                                    std::thread::park();
                                }
                            }
                            Err(refusal) => panic!("{refusal}"),
                        }
                    }
                    for counter in counters {
                        counter.store(counter.load(Relaxed) + 1, Relaxed);
                    }
                    table.unlock_all(id, &[ROW, OTHER]);
                }
            });
        }
    });
    assert_eq!(counters.map(AtomicU64::into_inner), [THREADS * ROUNDS; 2]);
    assert_eq!((table.held(), table.waiting(), table.unsound_slots()), (0, 0, 0));
}
