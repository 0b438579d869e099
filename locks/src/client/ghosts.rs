//! Ghosts: uses that have not ended, but have no waiting user. A ghost takes its turn and releases
//! at once, or is adopted by a later request for the lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::RemoteAddr;
use lotus_sabotage::{Rule, broken};

use super::Core;
use super::run::{DriveEnd, Run};
use crate::contract::{LockSystem, NotHeld};
use crate::word::Mode;

/// Bounds of the time after which a ghost tries to reach a memory node again.
const UNREACHABLE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A use without a waiting user.
pub(super) struct Ghost<S: LockSystem> {
    at: RemoteAddr,
    mode: Mode,
    is_adopted: Cell<bool>,
    has_ended: Cell<bool>,
    /// The use, once it holds the lock for its adopter.
    held: RefCell<Option<Box<Run<S>>>>,
    waiting: RefCell<Vec<TaskId>>,
}

/// The ghosts of a lane.
pub(super) struct Ghosts<S: LockSystem> {
    list: RefCell<Vec<Rc<Ghost<S>>>>,
}

impl<S: LockSystem> Default for Ghosts<S> {
    fn default() -> Self {
        Self { list: RefCell::default() }
    }
}

impl<S: LockSystem> Ghosts<S> {
    /// Returns a ghost at the lock that has no adopter.
    pub(super) fn find(&self, at: RemoteAddr) -> Option<Rc<Ghost<S>>> {
        let list = self.list.borrow();
        list.iter().find(|ghost| ghost.at == at && !ghost.is_adopted.get()).map(Rc::clone)
    }

    fn remove(&self, ended: &Rc<Ghost<S>>) {
        self.list.borrow_mut().retain(|ghost| !Rc::ptr_eq(ghost, ended));
    }
}

/// Drives on a use without a waiting user, so that its place in a queue takes its turn (I296).
pub(super) fn linger<S: LockSystem>(core: Rc<Core<S>>, mut run: Box<Run<S>>, acquires: bool) {
    if acquires && broken(Rule::GhostsTakeTheirTurns) {
        return core.free(run.slot, run.at);
    }
    let executor = core.lane.executor().clone();
    let ghost = acquires.then(|| {
        run.is_ghost = true;
        core.counts.borrow_mut().ghosts += 1;
        let ghost = Rc::new(Ghost {
            at: run.at,
            mode: run.mode,
            is_adopted: Cell::new(false),
            has_ended: Cell::new(false),
            held: RefCell::new(None),
            waiting: RefCell::default(),
        });
        core.ghosts.list.borrow_mut().push(Rc::clone(&ghost));
        ghost
    });
    let timer = executor.clone();
    executor.spawn(async move {
        let mut pause = UNREACHABLE.0;
        loop {
            let turn = match run.drive(&core, Nanos(0)).await {
                DriveEnd::Held if ghost.as_ref().is_some_and(|ghost| ghost.is_adopted.get()) => {
                    break;
                }
                DriveEnd::Stopped(NotHeld::Unavailable) => {
                    timer.sleep(pause).await;
                    pause = (pause * 2).min(UNREACHABLE.1);
                    None
                }
                DriveEnd::Held | DriveEnd::Stopped(_) => run.leave(&core),
                gone @ DriveEnd::Gone(_) => Some(gone),
            };
            if let Some(DriveEnd::Gone(_)) = turn {
                break;
            }
        }
        let Some(ghost) = ghost else { return };
        core.ghosts.remove(&ghost);
        ghost.has_ended.set(true);
        if run.is_held() {
            *ghost.held.borrow_mut() = Some(run);
        }
        ghost.waiting.take().into_iter().for_each(|task| timer.wake(task));
    });
}

/// Keeps a ghost adopted while its adopter waits, and lets go when dropped.
struct Adoption<S: LockSystem> {
    core: Rc<Core<S>>,
    ghost: Rc<Ghost<S>>,
}

impl<S: LockSystem> Drop for Adoption<S> {
    fn drop(&mut self) {
        self.ghost.is_adopted.set(false);
        if let Some(mut run) = self.ghost.held.take() {
            run.is_ghost = false;
            // The lock was handed over, and no adopter is left to take it.
            linger(Rc::clone(&self.core), run, true);
        }
    }
}

impl<S: LockSystem> Ghost<S> {
    /// Waits for the ghost's turn, and takes the ghost over; or, if the ghost's mode is weaker,
    /// waits for its end. `None` if the ghost has ended without a lock for the caller.
    pub(super) async fn take_over(
        self: Rc<Self>,
        core: &Rc<Core<S>>,
        mode: Mode,
        until: Nanos,
    ) -> Result<Option<Box<Run<S>>>, NotHeld> {
        let executor = core.lane.executor();
        let adopts = self.mode >= mode;
        let adoption = adopts.then(|| {
            self.is_adopted.set(true);
            Adoption { core: Rc::clone(core), ghost: Rc::clone(&self) }
        });
        while !self.has_ended.get() {
            if executor.now() >= until {
                return Err(NotHeld::TimedOut);
            }
            self.waiting.borrow_mut().push(executor.current());
            if until != Nanos::NEVER {
                executor.wake_at(until, executor.current());
            }
            executor.suspend().await;
        }
        // A lock held by the ghost is for the adopter.
        let held = adoption.and_then(|_| self.held.take());
        Ok(held.map(|mut run| {
            run.is_ghost = false;
            core.counts.borrow_mut().acquired += 1;
            run
        }))
    }
}
