//! What becomes of a lock that is upgraded, step by step.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use lotus_fabric::env::Nanos;
use lotus_locks::systems::Visitor;
use lotus_locks::{Hold, Limits, LockSystem, Mode, NotHeld, Wait};
use lotus_locksystems::systems::{Choice, DslrU, Kind};

use super::lane::{Place, lock, on_lane};

const FOR_EVER: Wait = Wait::Until(Nanos::NEVER);

async fn hold<S: LockSystem>(place: &Place<S>, mode: Mode) -> Hold<S> {
    place.client.acquire(lock(), mode, Limits::PATIENT).await.expect("nothing fails")
}

/// Readers that were there are inside beside an update lock. All who come later wait for it, and
/// have their turns in the order in which they came.
#[test]
fn whoever_comes_after_an_update_lock_waits_for_it() {
    let order = on_lane(DslrU::published, |place| async move {
        let order = Rc::new(RefCell::new(vec!["reader"]));
        let reader = hold(&place, Mode::Shared).await;
        let mut update = hold(&place, Mode::Update).await;
        order.borrow_mut().push("update beside it");
        for (name, mode) in [
            ("late reader", Mode::Shared),
            ("second update", Mode::Update),
            ("writer", Mode::Exclusive),
        ] {
            let (here, order) = (Rc::clone(&place), Rc::clone(&order));
            place.timer.spawn(async move {
                let mut held = hold(&here, mode).await;
                order.borrow_mut().push(name);
                if mode == Mode::Update {
                    held.upgrade(FOR_EVER).await.expect("the reader leaves");
                    order.borrow_mut().push("second upgrade");
                }
                here.sleep(20).await;
                order.borrow_mut().push("end");
                here.client.release(held).await.expect("nothing fails");
            });
            place.sleep(7).await;
        }
        place.sleep(50).await;
        assert_eq!(update.mode(), Mode::Update);
        let (here, leaves) = (Rc::clone(&place), Rc::clone(&order));
        place.timer.spawn(async move {
            here.sleep(30).await;
            leaves.borrow_mut().push("reader leaves");
            here.client.release(reader).await.expect("nothing fails");
        });
        update.upgrade(FOR_EVER).await.expect("the reader leaves");
        assert_eq!(update.mode(), Mode::Exclusive);
        order.borrow_mut().push("upgrade");
        place.sleep(50).await;
        order.borrow_mut().push("release");
        place.client.release(update).await.expect("nothing fails");
        place.client.quiet().await;
        assert!(place.client.system().is_free(place.head().await));
        order.take()
    });
    let [first @ .., _, _, _, _, _, _, _] = order.as_slice() else { panic!("{order:?}") };
    let expected = ["reader", "update beside it", "reader leaves", "upgrade", "release"];
    assert_eq!(first, expected, "{order:?}");
    // The reader and the second update lock are inside together.
    assert_eq!(order[5..7], ["late reader", "second update"], "{order:?}");
    assert_eq!(order[7..], ["end", "second upgrade", "end", "writer", "end"], "{order:?}");
}

/// Waits that end, or are dropped at any moment, leave the lock held as before.
#[test]
fn an_upgrade_that_is_given_up_leaves_the_lock_with_its_holder() {
    let moments = on_lane(DslrU::published, |place| async move {
        let mut moments = 0;
        for micros in 0..30 {
            let reader = hold(&place, Mode::Shared).await;
            let mut update = hold(&place, Mode::Update).await;
            assert_eq!(update.upgrade(Wait::No).await, Err(NotHeld::Conflict));
            let deadline = place.after(micros);
            let late = update.upgrade(Wait::Until(deadline)).await;
            assert_eq!(late, Err(NotHeld::TimedOut));
            assert!(place.timer.now() <= deadline.after(std::time::Duration::from_micros(10)));
            let dropped_at = place.after(micros);
            let dropped = {
                let mut upgrade = pin!(update.upgrade(FOR_EVER));
                poll_fn(|context| {
                    let ended = upgrade.as_mut().poll(context).is_ready();
                    place.timer.wake_at(dropped_at, place.timer.current());
                    let is_over = place.timer.now() >= dropped_at;
                    if ended || is_over { Poll::Ready(!ended) } else { Poll::Pending }
                })
                .await
            };
            assert!(dropped, "the reader is there");
            assert_eq!((update.mode(), place.client.outstanding()), (Mode::Update, 2));
            if micros % 2 == 0 {
                place.client.release(reader).await.expect("nothing fails");
                update.upgrade(FOR_EVER).await.expect("it is alone");
                assert_eq!(update.mode(), Mode::Exclusive);
                place.client.release(update).await.expect("nothing fails");
            } else {
                place.client.release(update).await.expect("nothing fails");
                place.client.release(reader).await.expect("nothing fails");
            }
            assert_eq!(place.client.outstanding(), 0, "no ghost");
            assert!(place.client.system().is_free(place.head().await));
            moments += 1;
        }
        assert_eq!(place.client.counts().ghosts, 0);
        moments
    });
    assert_eq!(moments, 30);
}

/// Alone, it costs nothing to upgrade.
#[test]
fn an_upgrade_without_readers_needs_no_verb() {
    on_lane(DslrU::published, |place| async move {
        let mut update = hold(&place, Mode::Update).await;
        let before = place.timer.now();
        update.upgrade(Wait::No).await.expect("it is alone");
        assert_eq!((update.mode(), place.timer.now()), (Mode::Exclusive, before));
        update.upgrade(Wait::No).await.expect("it is exclusive already");
        place.client.release(update).await.expect("nothing fails");
    });
}

/// What becomes of upgrades in all modes, in a lock of any system.
struct InAllModes;

impl Visitor for InAllModes {
    type Output = ();

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) {
        on_lane(make, |place| async move {
            for (mode, expected) in [
                (Mode::Shared, Err(NotHeld::Unsupported)),
                (Mode::Update, Ok(())),
                (Mode::Exclusive, Ok(())),
            ] {
                let mut held = hold(&place, mode).await;
                assert_eq!(held.upgrade(Wait::No).await, expected, "{mode:?}");
                let kept = if expected.is_ok() { Mode::Exclusive } else { mode };
                assert_eq!(held.mode(), kept);
                place.client.release(held).await.expect("nothing fails");
            }
            assert!(place.client.system().is_free(place.head().await));
        });
    }
}

#[test]
fn every_system_has_update_locks() {
    Kind::ALL.into_iter().for_each(|kind| Choice::of(kind).visit(InAllModes));
}
