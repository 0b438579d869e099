//! What becomes of locks whose memory node is abandoned, step by step.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lotus_fabric::env::Nanos;
use lotus_locks::systems::Visitor;
use lotus_locks::{Limits, LockSystem, Mode, NotHeld, Recovery, Wait};
use lotus_locksystems::systems::{Choice, Kind};

use super::lane::{lock, on_lane};

/// Abandons the memory node while the lock is held, waited for, and left to a ghost.
struct Abandons;

impl Visitor for Abandons {
    type Output = ();

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) {
        on_lane(make, |place| async move {
            let acquire = |wait| {
                let limits = Limits { wait, terms: 1 };
                place.client.acquire(lock(), Mode::Exclusive, limits)
            };
            let hold = acquire(Wait::Until(Nanos::NEVER)).await.expect("nothing fails");
            // Where there are queues, a ghost.
            let late = acquire(Wait::Until(place.after(10))).await;
            assert_eq!(late.map(|_| ()), Err(NotHeld::TimedOut));
            let waited = Rc::new(RefCell::new(None));
            let (here, result) = (Rc::clone(&place), Rc::clone(&waited));
            place.timer.spawn(async move {
                let asked = here.client.acquire(lock(), Mode::Exclusive, Limits::PATIENT).await;
                *result.borrow_mut() = Some(asked.map(|_| ()));
            });
            place.sleep(30).await;
            assert!(place.client.is_valid(&hold));
            let is_abandoned = Rc::new(Cell::new(None));
            let (here, ended) = (Rc::clone(&place), Rc::clone(&is_abandoned));
            place.timer.spawn(async move {
                ended.set(Some(here.client.abandon(lock().node()).await));
            });
            place.sleep(100).await;
            // Who waits is refused at once; who holds the lock is waited for.
            assert_eq!(*waited.borrow(), Some(Err(NotHeld::Unavailable)));
            assert_eq!(place.client.outstanding(), 1, "the holder");
            assert!(!place.client.is_valid(&hold));
            assert_eq!(is_abandoned.get(), None);
            let refused = acquire(Wait::Until(Nanos::NEVER)).await;
            assert_eq!(refused.map(|_| ()), Err(NotHeld::Unavailable));
            // The release posts nothing: the word stays as it is.
            let before = place.head().await;
            assert_eq!(place.client.release(hold).await, Err(NotHeld::Unavailable));
            assert_eq!(place.head().await, before);
            place.sleep(100).await;
            assert_eq!(is_abandoned.get(), Some(Ok(())));
            place.zero().await;
            place.client.resume(lock().node(), 1);
            let hold = acquire(Wait::Until(Nanos::NEVER)).await.expect("it is free");
            place.client.release(hold).await.expect("nothing fails");
            place.client.quiet().await;
            assert!(place.client.system().is_free(place.head().await));
        });
    }
}

#[test]
fn all_uses_of_an_abandoned_lock_end() {
    for recovery in [Recovery::Fenced, Recovery::Paper] {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.check(recovery).is_ok()) {
            Choice { recovery, ..Choice::of(kind) }.visit(Abandons);
        }
    }
}

/// Abandons the memory node without waiting for the holder, which releases its lock when another
/// has that lock of the next memory.
struct AbandonsHolders;

impl Visitor for AbandonsHolders {
    type Output = ();

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) {
        on_lane(make, |place| async move {
            let acquire = || place.client.acquire(lock(), Mode::Exclusive, Limits::PATIENT);
            let (memory, late) = (lock().node(), acquire().await.expect("nothing fails"));
            place.client.abandon_beside(memory, || 1).await.expect("nothing fails");
            assert!(!place.client.is_valid(&late));
            place.zero().await;
            place.client.resume(memory, 1);
            assert!(!place.client.is_valid(&late), "its lock was of the memory before");
            let hold = acquire().await.expect("it is free");
            assert!(place.client.is_valid(&hold));
            let before = place.head().await;
            assert_eq!(place.client.release(late).await, Err(NotHeld::Unavailable));
            assert_eq!(place.head().await, before);
            place.client.release(hold).await.expect("nothing fails");
            place.client.quiet().await;
            assert!(place.client.system().is_free(place.head().await));
        });
    }
}

#[test]
fn a_holder_that_is_not_waited_for_releases_nothing_of_the_next_memory() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.check(Recovery::Fenced).is_ok()) {
        Choice::of(kind).visit(AbandonsHolders);
    }
}
