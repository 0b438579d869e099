//! The lock table under every interleaving of a few threads, up to three preemptions.
//!
//! `RUSTFLAGS="--cfg lotus_loom" cargo test -p lotus-locktable --test loom`
//!
//! The locks protect two words that are read and written without any ordering of their own.
//! Wherever a lock fails to exclude or to make visible, the model finds a run in which they differ
//! or lose an increment.
#![cfg(lotus_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locktable::{
    Grant, LockKey, LockOrWait, LockRequest, LockTable, LockTableConfig, Refusal, Release,
    WaitOutcome, Waiter,
};

const ROW: LockKey = LockKey::row(TableId(1), Key(7 << 12));
const OTHER: LockKey = LockKey::row(TableId(1), Key(8 << 12));

fn txn(slot: u16) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), slot, 1)
}

struct World {
    table: LockTable,
    data: [AtomicU32; 2],
}

impl World {
    fn read(&self) -> u32 {
        let [one, other] = [0, 1].map(|index: usize| self.data[index].load(Relaxed));
        assert_eq!(one, other, "a writer was seen at work");
        one
    }

    fn increment(&self) {
        let next = self.read() + 1;
        self.data.iter().for_each(|word| word.store(next, Relaxed));
    }

    /// Increments under a write lock, if it is granted.
    fn try_increment(&self, slot: u16) -> Result<Grant, Refusal> {
        let grant = self.table.try_lock(txn(slot), LockRequest::write(ROW))?;
        self.increment();
        assert_eq!(self.table.unlock(txn(slot), &ROW), Release::Released);
        Ok(grant)
    }
}

/// Explores `test` over a table of one bucket, so that everything meets in one stripe.
fn explore(test: impl Fn(Arc<World>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let table = LockTable::new(LockTableConfig::with_bytes(64)).expect("valid");
        let data = [0, 0].map(AtomicU32::new);
        test(Arc::new(World { table, data }));
    });
}

fn spawn<T: 'static>(
    world: &Arc<World>,
    work: impl FnOnce(&World) -> T + 'static,
) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || work(&world))
}

#[test]
fn h5_two_writers_of_one_key_exclude_each_other() {
    explore(|world| {
        let writers = [1, 2].map(|slot| spawn(&world, move |world| world.try_increment(slot)));
        let grants = writers.map(|writer| writer.join().expect("no panic").is_ok());
        assert!(grants.contains(&true), "one of two is always granted");
        assert_eq!(world.read(), grants.iter().map(|granted| u32::from(*granted)).sum());
        assert_eq!(world.table.held(), 0);
    });
}

#[test]
fn h5_a_slot_freed_meanwhile_does_not_split_a_key() {
    explore(|world| {
        // The key lies behind another key's slot, which is freed while two writers look.
        for name in [OTHER, ROW] {
            assert!(world.table.try_lock(txn(0), LockRequest::write(name)).is_ok());
        }
        let freer = spawn(&world, |world| world.table.unlock_all(txn(0), &[OTHER, ROW]));
        let writers = [1, 2].map(|slot| spawn(&world, move |world| world.try_increment(slot)));
        freer.join().expect("no panic");
        let grants = writers.map(|writer| writer.join().expect("no panic").is_ok());
        assert_eq!(world.read(), grants.iter().map(|granted| u32::from(*granted)).sum());
    });
}

#[test]
fn h6_readers_never_join_a_writer() {
    explore(|world| {
        let readers = [1, 2].map(|slot| {
            spawn(&world, move |world| {
                world.table.try_lock(txn(slot), LockRequest::read(ROW))?;
                let seen = world.read();
                world.table.unlock(txn(slot), &ROW);
                Ok::<_, Refusal>(seen)
            })
        });
        let writer = spawn(&world, |world| world.try_increment(3));
        let written = writer.join().expect("no panic").is_ok();
        for reader in readers {
            if let Ok(seen) = reader.join().expect("no panic") {
                assert!(seen <= u32::from(written));
            }
        }
        assert_eq!(world.table.held(), 0);
    });
}

#[test]
fn h7_of_two_upgrading_readers_at_most_one_succeeds() {
    explore(|world| {
        let upgrade = |world: &World, slot| {
            world.table.try_lock(txn(slot), LockRequest::read(ROW))?;
            let grant = world.table.try_lock(txn(slot), LockRequest::write(ROW));
            if grant.is_ok() {
                world.increment();
            }
            world.table.unlock(txn(slot), &ROW);
            grant
        };
        let upgraders = [1, 2].map(|slot| spawn(&world, move |world| upgrade(world, slot)));
        let grants = upgraders.map(|upgrader| upgrader.join().expect("no panic"));
        let upgraded = grants.iter().filter(|grant| **grant == Ok(Grant::Upgraded)).count();
        assert_eq!(world.read() as usize, upgraded);
        assert_eq!(world.table.held(), 0);
    });
}

/// A thread that sees a key free without the mutex sees what its last writer did.
#[test]
fn h11_a_slot_seen_free_shows_what_was_written_under_it() {
    explore(|world| {
        assert!(world.table.try_lock(txn(1), LockRequest::write(ROW)).is_ok());
        let writer = spawn(&world, |world| {
            world.increment();
            world.table.unlock(txn(1), &ROW);
        });
        let observer = spawn(&world, |world| {
            if !world.table.is_write_locked(&ROW) {
                assert_eq!(world.read(), 1);
            }
        });
        writer.join().expect("no panic");
        observer.join().expect("no panic");
    });
}

/// A set that fails half-way leaves nothing that would block another transaction for good.
#[test]
fn two_crossing_sets_leave_nothing_behind() {
    explore(|world| {
        let both = [LockRequest::write(ROW), LockRequest::write(OTHER)];
        let sets = [(1, [both[1], both[0]]), (2, both)];
        let takers = sets.map(|(slot, set)| {
            spawn(&world, move |world| {
                if world.table.try_lock_set(txn(slot), &set).is_ok() {
                    world.increment();
                    world.table.unlock_set(txn(slot), &set);
                }
            })
        });
        takers.into_iter().for_each(|taker| taker.join().expect("no panic"));
        assert_eq!(world.table.held(), 0);
        assert_eq!(world.table.try_lock_set(txn(3), &both), Ok(()));
    });
}

/// Outcomes that a waiting transaction was told.
#[derive(Debug, Default)]
struct OutcomeLog(std::sync::Mutex<Vec<WaitOutcome>>);

impl Waiter for OutcomeLog {
    fn settled(&self, _txn: TxnId, _name: LockKey, outcome: WaitOutcome) {
        self.0.lock().expect("no panic").push(outcome);
    }
}

impl OutcomeLog {
    fn is_granted(&self) -> bool {
        let told = self.0.lock().expect("no panic");
        assert!(told.len() <= 1, "it is told once: {told:?}");
        told.first() == Some(&WaitOutcome::Granted)
    }
}

/// Asks for the row; returns whether it was granted at once.
fn ask(world: &World, slot: u16, told: &std::sync::Arc<OutcomeLog>) -> bool {
    let waiter = std::sync::Arc::clone(told) as std::sync::Arc<dyn Waiter>;
    let answer = world.table.lock_or_wait(txn(slot), LockRequest::write(ROW), Nanos(1), &waiter);
    match answer.expect("it may wait") {
        LockOrWait::Granted(_) => true,
        LockOrWait::Waits => false,
    }
}

/// A release and a request that may wait: the request is granted at once or by the release, and
/// sees what the holder did.
#[test]
fn a_released_lock_reaches_the_request_that_waits() {
    explore(|world| {
        assert!(world.table.try_lock(txn(1), LockRequest::write(ROW)).is_ok());
        let told = std::sync::Arc::new(OutcomeLog::default());
        let holder = spawn(&world, |world| {
            world.increment();
            world.table.unlock(txn(1), &ROW);
        });
        let waiter = std::sync::Arc::clone(&told);
        let asker = spawn(&world, move |world| {
            let at_once = ask(world, 2, &waiter);
            if at_once {
                world.increment();
                world.table.unlock(txn(2), &ROW);
            }
            at_once
        });
        holder.join().expect("no panic");
        if !asker.join().expect("no panic") {
            assert!(told.is_granted() && world.table.holds(txn(2), &ROW));
            world.increment();
            world.table.unlock(txn(2), &ROW);
        }
        assert_eq!((world.read(), world.table.held(), world.table.waiting()), (2, 0, 0));
    });
}

/// A request that stops waiting while the lock is released holds it, and knows, or never does.
#[test]
fn a_request_that_stops_waiting_holds_the_lock_or_never_will() {
    explore(|world| {
        assert!(world.table.try_lock(txn(1), LockRequest::write(ROW)).is_ok());
        let told = std::sync::Arc::new(OutcomeLog::default());
        assert!(!ask(&world, 2, &told));
        let holder = spawn(&world, |world| {
            world.table.unlock(txn(1), &ROW);
        });
        let stopped = spawn(&world, |world| world.table.stop_waiting(txn(2), &ROW));
        holder.join().expect("no panic");
        let stopped = stopped.join().expect("no panic");
        assert_eq!(stopped, !told.is_granted());
        assert_eq!(world.table.held(), usize::from(!stopped));
        assert_eq!(world.table.waiting(), 0);
    });
}
