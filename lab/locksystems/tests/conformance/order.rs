//! Locks that promise an order are granted in that of the requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lotus_locks::systems::Visitor;
use lotus_locks::{Limits, LockSystem, Mode, Recovery};
use lotus_locksystems::systems::{Choice, Kind};

use super::lane::{lock, on_lane};

const CLIENTS: usize = 16;

/// Has clients ask one after another while the first holds the lock; the order in which they hold
/// it, or `None` if the system promises none.
struct InOrder;

impl Visitor for InOrder {
    type Output = Option<Vec<usize>>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        if !make().guarantees().in_order {
            return None;
        }
        Some(on_lane(make, |place| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            for number in 0..CLIENTS {
                let (client, order) = (place.client.clone(), Rc::clone(&order));
                let clock = place.timer.clone();
                place.timer.spawn(async move {
                    let hold = client.acquire(lock(), Mode::Exclusive, Limits::PATIENT).await;
                    let hold = hold.expect("nothing fails");
                    order.borrow_mut().push(number);
                    // The first holds it until all have asked.
                    let waits = if number == 0 { 10 * CLIENTS as u64 } else { 1 };
                    clock.sleep(Duration::from_micros(waits)).await;
                    client.release(hold).await.expect("nothing fails");
                });
                place.sleep(7).await;
            }
            place.client.quiet().await;
            order.take()
        }))
    }
}

#[test]
fn queues_are_served_in_order() {
    for recovery in [Recovery::Fenced, Recovery::Paper] {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.check(recovery).is_ok()) {
            let order = Choice { recovery, entries: 16, ..Choice::of(kind) }.visit(InOrder);
            let promised = matches!(
                kind,
                Kind::Dslr | Kind::DslrPlus | Kind::DslrU | Kind::Mcs | Kind::Declock
            );
            assert_eq!(order, promised.then(|| (0..CLIENTS).collect()), "{kind} {recovery:?}");
        }
    }
}
