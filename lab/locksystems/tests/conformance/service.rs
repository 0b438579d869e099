//! Locks of transactions: many at once, in order, without deadlock.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSystem, MemoryLocks, Recovery};
use lotus_locksystems::systems::{Choice, Kind};
use lotus_locktable::{HeldLocks, LockError, LockKey, LockRequest, LockService};
use rand::Rng;

use super::lane::{Place, lock, on_lane};

const PATIENCE: Duration = Duration::from_millis(5);
/// Number of lock objects; a name with a larger key shares that of another.
const OBJECTS: u64 = 16;
/// Bytes between two objects.
const STRIDE: u64 = 128;

fn name(key: u64) -> LockKey {
    LockKey::row(TableId(1), Key(key))
}

fn write(key: u64) -> LockRequest {
    LockRequest::write(name(key))
}

fn attempt(number: u64) -> HeldLocks {
    let mut held = HeldLocks::default();
    held.begin(TxnId::new(Incarnation::new(1).expect("fits"), 0, number));
    held
}

fn service<S: LockSystem>(place: &Place<S>) -> MemoryLocks<S> {
    let object_of = |name: &LockKey, _| lock().plus(name.key.0 % OBJECTS * STRIDE);
    MemoryLocks::new(place.client.clone(), place.lane.clone(), Rc::new(object_of))
}

/// What a test does with the locks of each system.
trait Test: Copy + Send + 'static {
    fn run<S: LockSystem>(self, place: Rc<Place<S>>) -> impl Future<Output = ()>;
}

struct With<T: Test>(T);

impl<T: Test> Visitor for With<T> {
    type Output = ();

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) {
        on_lane(make, move |place| self.0.run(place));
    }
}

fn with_all(test: impl Test) {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.check(Recovery::Fenced).is_ok()) {
        Choice::of(kind).visit(With(test));
    }
}

#[derive(Clone, Copy)]
struct KeepsNothingAbove;

impl Test for KeepsNothingAbove {
    async fn run<S: LockSystem>(self, place: Rc<Place<S>>) {
        let locks = Rc::new(service(&place));
        let mut first = attempt(0);
        locks.acquire(&mut first, 0, &[write(1)], PATIENCE).await.expect("it is free");
        let outcome = Rc::new(Cell::new(None));
        let (waits, ended) = (Rc::clone(&locks), Rc::clone(&outcome));
        place.timer.spawn(async move {
            let mut held = attempt(1);
            let wanted = [write(3), write(1), write(0)];
            ended.set(Some(waits.acquire(&mut held, 0, &wanted, PATIENCE).await));
            waits.release(&mut held);
        });
        place.sleep(100).await;
        let mut passes = attempt(2);
        locks.acquire(&mut passes, 0, &[write(3)], PATIENCE).await.expect("it is left free");
        assert_eq!(outcome.get(), None, "it waits for lock 1, and has lock 0");
        // Above what it holds it would wait, below it is refused.
        let below = locks.acquire(&mut passes, 1, &[write(0)], PATIENCE).await;
        assert_eq!(below, Err(LockError::Conflict(name(0))));
        place.sleep(6000).await;
        assert_eq!(outcome.get(), Some(Err(LockError::WaitedTooLong(name(1)))));
        locks.release(&mut passes);
        locks.release(&mut first);
        assert!(first.is_empty());
        place.client.quiet().await;
        let mut all: Vec<_> = (0..4).map(write).collect();
        all.reverse();
        locks.acquire(&mut first, 0, &all, PATIENCE).await.expect("all are free");
        locks.release(&mut first);
        place.client.quiet().await;
    }
}

#[test]
fn nothing_is_kept_above_a_lock_that_is_waited_for() {
    with_all(KeepsNothingAbove);
}

/// Regression: with ShiftLock and no masked atomics the first verb of an acquisition only tells
/// what the word was; so each of many free locks was waited for, and all behind it were given up.
#[derive(Clone, Copy)]
struct TakesFreeOnesTogether;

impl Test for TakesFreeOnesTogether {
    async fn run<S: LockSystem>(self, place: Rc<Place<S>>) {
        let locks = service(&place);
        let all: Vec<_> = (0..OBJECTS).map(write).collect();
        for number in 0..3 {
            let mut held = attempt(number);
            locks.acquire(&mut held, 0, &all, PATIENCE).await.expect("all are free");
            locks.release(&mut held);
            place.client.quiet().await;
        }
        let counts = place.client.counts();
        assert_eq!((counts.ghosts, counts.acquired), (0, 3 * OBJECTS), "{counts:?}");
    }
}

#[test]
fn many_free_locks_are_taken_together() {
    with_all(TakesFreeOnesTogether);
}

#[derive(Clone, Copy)]
struct SharesObjects;

impl Test for SharesObjects {
    async fn run<S: LockSystem>(self, place: Rc<Place<S>>) {
        let locks = service(&place);
        let (mut held, mut other) = (attempt(0), attempt(1));
        // Two names of one object, in the stronger mode.
        let wanted = [LockRequest::read(name(1)), write(1 + OBJECTS)];
        locks.acquire(&mut held, 0, &wanted, PATIENCE).await.expect("it is free");
        assert_eq!(place.client.outstanding(), 1);
        locks.acquire(&mut held, 1, &[write(1)], PATIENCE).await.expect("it has it");
        locks.release(&mut held);
        place.client.quiet().await;
        // A lock that is held to read is not upgraded.
        let reads = [LockRequest::read(name(1))];
        locks.acquire(&mut held, 0, &reads, PATIENCE).await.expect("it is free");
        let shares = place.client.system().guarantees().shares;
        let upgraded = locks.acquire(&mut held, 1, &[write(1)], PATIENCE).await;
        assert_eq!(upgraded, if shares { Err(LockError::Conflict(name(1))) } else { Ok(()) });
        let read = locks.acquire(&mut other, 0, &reads, PATIENCE).await;
        assert_eq!(read.is_ok(), shares, "{read:?}");
        locks.release(&mut held);
        locks.release(&mut other);
        place.client.quiet().await;
    }
}

#[test]
fn two_names_of_one_object_are_one_lock() {
    with_all(SharesObjects);
}

#[derive(Clone, Copy)]
struct Contends;

/// Transactions that hold each lock.
type Holders = Rc<RefCell<[u32; OBJECTS as usize]>>;

impl Contends {
    const TRANSACTIONS: u64 = 12;
    const ROUNDS: u32 = 20;
    /// Locks that they share.
    const LOCKS: u64 = 5;

    async fn contend<S: LockSystem>(
        place: &Place<S>,
        locks: &MemoryLocks<S>,
        number: u64,
        holders: &Holders,
    ) {
        let mut rng = place.timer.env().rng(number);
        for _ in 0..Self::ROUNDS {
            let mut held = attempt(number);
            let keys: Vec<u64> = (0..3).map(|_| rng.random_range(0..Self::LOCKS)).collect();
            let wanted: Vec<_> = keys.iter().copied().map(write).collect();
            locks.acquire(&mut held, 0, &wanted, Duration::from_secs(1)).await.expect("in order");
            for key in 0..Self::LOCKS {
                if keys.contains(&key) {
                    holders.borrow_mut()[key as usize] += 1;
                }
            }
            assert!(holders.borrow().iter().all(|holders| *holders <= 1), "{holders:?}");
            place.sleep(rng.random_range(0..5)).await;
            for key in 0..Self::LOCKS {
                if keys.contains(&key) {
                    holders.borrow_mut()[key as usize] -= 1;
                }
            }
            locks.release(&mut held);
        }
    }
}

impl Test for Contends {
    async fn run<S: LockSystem>(self, place: Rc<Place<S>>) {
        let locks = Rc::new(service(&place));
        let (holders, left) = (Holders::default(), Rc::new(Cell::new(Self::TRANSACTIONS)));
        for number in 0..Self::TRANSACTIONS {
            let (locks, holders, left) = (Rc::clone(&locks), Rc::clone(&holders), Rc::clone(&left));
            let here = Rc::clone(&place);
            place.timer.spawn(async move {
                Self::contend(&here, &locks, number, &holders).await;
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            place.sleep(50).await;
        }
        place.client.quiet().await;
    }
}

#[test]
fn transactions_that_want_several_locks_all_get_them() {
    with_all(Contends);
}

#[derive(Clone, Copy)]
struct Abandoned;

impl Test for Abandoned {
    async fn run<S: LockSystem>(self, place: Rc<Place<S>>) {
        let locks = service(&place);
        let (mut first, mut held) = (attempt(0), attempt(1));
        locks.acquire(&mut first, 0, &[write(1)], PATIENCE).await.expect("it is free");
        let flag = held.abandonment();
        let (timer, task) = (place.timer.clone(), place.timer.current());
        place.timer.spawn(async move {
            timer.sleep(Duration::from_micros(50)).await;
            flag.set(true);
            timer.wake(task);
        });
        let begun = place.timer.now();
        let outcome = locks.acquire(&mut held, 0, &[write(0), write(1)], PATIENCE).await;
        assert_eq!(outcome, Err(LockError::TimedOut));
        assert!(place.timer.now().since(begun) < Duration::from_micros(60));
        locks.release(&mut held);
        locks.release(&mut first);
        place.client.quiet().await;
    }
}

#[test]
fn an_attempt_that_is_abandoned_waits_no_more() {
    with_all(Abandoned);
}
