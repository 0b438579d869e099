//! Delivery of passages to fault injectors, and the outcome for the passing tasks.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use crate::FaultPoint;

/// A node at a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    /// The point, which names the action just completed.
    pub point: FaultPoint,
    /// The node of the action.
    pub node: u16,
    /// Index of the piece within the step, from 0.
    pub index: usize,
    /// Number of pieces.
    pub count: usize,
    /// A second node involved in the step, if there is exactly one.
    pub peer: Option<u16>,
}

/// Outcome for the task that passes a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassageOutcome {
    /// The task goes on.
    Go,
    /// The task stops for a while with the node, and continues from this point.
    Pause,
    /// The task never goes on: the node has ended.
    Halt,
}

/// Receives passages, and strikes at a chosen passage.
pub trait FaultInjector {
    /// Whether to strike at this passage.
    fn meets(&mut self, passage: &Passage) -> bool;

    /// Strikes the injector's target, and decides the outcome for the passing task.
    fn strike(&mut self, passage: &Passage) -> PassageOutcome;
}

thread_local! {
    static HERE: RefCell<Option<Box<dyn FaultInjector>>> = const { RefCell::new(None) };
    static CUT: Cell<Option<Passage>> = const { Cell::new(None) };
}

static EVERYWHERE: OnceLock<Mutex<Box<dyn FaultInjector + Send>>> = OnceLock::new();

/// Installs the fault injector of this process, for the life of the process. Later calls have no
/// effect.
pub fn install(injector: impl FaultInjector + Send + 'static) {
    let _ = EVERYWHERE.set(Mutex::new(Box::new(injector)));
}

/// Installs the fault injector of this thread, until the guard is dropped.
pub fn strikes_on_this_thread(injector: impl FaultInjector + 'static) -> Guard {
    HERE.set(Some(Box::new(injector)));
    CUT.set(None);
    Guard { thread: PhantomData }
}

/// Whether a batch of this thread may be [cut](crate::cut!): whether a fault injector is installed.
pub fn may_cut() -> bool {
    HERE.with_borrow(Option::is_some) || EVERYWHERE.get().is_some()
}

/// Keeps a thread's fault injector installed.
#[must_use = "nobody is struck once the guard is gone"]
#[derive(Debug)]
pub struct Guard {
    /// Keeps the guard on its thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        HERE.take();
        CUT.set(None);
    }
}

/// Answer of the thread's fault injector, or otherwise of the process's, if there is one.
fn ask<T>(question: impl FnOnce(&mut dyn FaultInjector) -> T) -> Option<T> {
    HERE.with_borrow_mut(|here| match (here, EVERYWHERE.get()) {
        (Some(injector), _) => Some(question(&mut **injector)),
        (None, Some(injector)) => {
            Some(question(&mut **injector.lock().unwrap_or_else(PoisonError::into_inner)))
        }
        (None, None) => None,
    })
}

/// Expansion of [`point!`](crate::point!).
pub fn pass(passage: Passage) -> PassageFuture {
    PassageFuture::of(pass_here(passage))
}

/// Expansion of [`point_here!`](crate::point_here!).
pub fn pass_here(passage: Passage) -> PassageOutcome {
    let outcome = ask(|injector| match injector.meets(&passage) {
        true => injector.strike(&passage),
        false => PassageOutcome::Go,
    });
    outcome.unwrap_or(PassageOutcome::Go)
}

/// Expansion of [`cut!`](crate::cut!).
pub fn to_cut(passage: Passage) -> bool {
    let cut = ask(|injector| injector.meets(&passage)).unwrap_or(false);
    if cut {
        CUT.set(Some(passage));
    }
    cut
}

/// Part of [`posted!`](crate::posted!): takes the passage at which the new batch was cut.
pub fn take_cut() -> Option<Passage> {
    CUT.take()
}

/// Part of [`posted!`](crate::posted!): strikes after the batch has been carried out.
pub fn strike(passage: Passage) -> PassageFuture {
    PassageFuture::of(ask(|injector| injector.strike(&passage)).unwrap_or(PassageOutcome::Go))
}

/// Resolves when the task may go on.
#[must_use = "a task that does not wait goes on"]
#[derive(Debug)]
pub struct PassageFuture(PassageOutcome);

impl PassageFuture {
    fn of(outcome: PassageOutcome) -> Self {
        Self(outcome)
    }
}

impl Future for PassageFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.0 {
            PassageOutcome::Go => Poll::Ready(()),
            PassageOutcome::Pause => {
                // The node runs its next turn after the pause.
                self.0 = PassageOutcome::Go;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            PassageOutcome::Halt => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;
    use crate::{cut, point, point_here, posted};

    /// A fault injector for one piece of one point.
    struct At(FaultPoint, usize, PassageOutcome, Rc<Cell<u32>>);

    impl FaultInjector for At {
        fn meets(&mut self, passage: &Passage) -> bool {
            passage.point == self.0 && passage.index == self.1
        }

        fn strike(&mut self, _: &Passage) -> PassageOutcome {
            self.3.set(self.3.get() + 1);
            self.2
        }
    }

    fn at(point: FaultPoint, index: usize, outcome: PassageOutcome) -> (Guard, Rc<Cell<u32>>) {
        let struck = Rc::new(Cell::new(0));
        (strikes_on_this_thread(At(point, index, outcome, Rc::clone(&struck))), struck)
    }

    /// Polls `work` up to `times` times; returns whether it has ended.
    fn polled(times: usize, work: impl Future<Output = ()>) -> bool {
        let mut work = Box::pin(work);
        let mut cx = Context::from_waker(Waker::noop());
        (0..times).any(|_| work.as_mut().poll(&mut cx).is_ready())
    }

    #[test]
    fn whoever_is_struck_stops_right_there() {
        for (outcome, polls, gets_on) in [
            (PassageOutcome::Go, 1, true),
            (PassageOutcome::Pause, 1, false),
            (PassageOutcome::Pause, 2, true),
        ] {
            let (_guard, struck) = at(FaultPoint::Read, 0, outcome);
            let passes = async {
                point!(1, Begin);
                point!(1, Read);
            };
            assert_eq!((polled(polls, passes), struck.get()), (gets_on, 1), "{outcome:?}");
        }
        let (_guard, struck) = at(FaultPoint::Read, 0, PassageOutcome::Halt);
        let beyond = Cell::new(false);
        let passes = async {
            point!(1, Read);
            beyond.set(true);
        };
        assert!(!polled(9, passes) && !beyond.get());
        assert_eq!(struck.get(), 1);
    }

    /// Posts three pieces; after a cut, posts all of them again.
    async fn post(pieces: &RefCell<Vec<Vec<usize>>>) {
        loop {
            let mut batch = Vec::new();
            for index in 0..3 {
                batch.push(index);
                if cut!(7, Repair, index, 3) {
                    break;
                }
            }
            let sent = async { pieces.borrow_mut().push(batch) };
            posted!(sent);
            return;
        }
    }

    #[test]
    fn a_batch_that_is_cut_is_carried_out_before_anybody_is_struck() {
        let pieces = RefCell::default();
        let (guard, struck) = at(FaultPoint::Repair, 1, PassageOutcome::Halt);
        assert!(!polled(9, post(&pieces)));
        assert_eq!((pieces.take(), struck.get()), (vec![vec![0, 1]], 1));
        drop(guard);
        assert!(polled(1, post(&pieces)));
        assert_eq!(pieces.take(), [[0, 1, 2]]);
    }

    #[test]
    fn nobody_is_struck_once_the_guard_is_gone() {
        let (guard, struck) = at(FaultPoint::Answer, 0, PassageOutcome::Go);
        point_here!(1, Answer);
        drop(guard);
        point_here!(1, Answer);
        assert_eq!(struck.get(), 1);
    }
}
