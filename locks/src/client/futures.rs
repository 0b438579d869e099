//! Futures and holds of a lane's users: acquisitions, locks, releases.
//!
//! Acquisitions, locks and releases contain a [`Guard`], which leaves the run behind when dropped.
//! The futures are hand-written: the states of nested async functions would cost more than the work
//! after an answer. Rare work is still done by a boxed async function.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{Batch, BatchResult};

use super::ghosts::{self, Ghost};
use super::run::{DriveEnd, Run};
use super::{Core, Wait};
use crate::contract::{LockSystem, NotHeld};
use crate::word::Mode;

/// A run that goes on in the background when it is dropped.
pub(super) struct Guard<S: LockSystem> {
    core: Rc<Core<S>>,
    /// `None` once the run has ended, or was left behind.
    run: Option<Box<Run<S>>>,
    /// Whether the run is an acquisition, which a drop has to give up.
    acquires: bool,
}

const TAKEN: &str = "a run is taken last";

impl<S: LockSystem> Guard<S> {
    /// Creates a guard of an acquisition.
    #[inline]
    pub(super) fn new(core: &Rc<Core<S>>, run: Box<Run<S>>) -> Self {
        Self { core: Rc::clone(core), run: Some(run), acquires: true }
    }

    fn get(&self) -> &Run<S> {
        self.run.as_ref().expect(TAKEN)
    }

    /// Posts the batch that has the first verb, and nothing else.
    #[inline]
    pub(super) fn post(&mut self, batch: Batch) {
        let run = self.run.as_mut().expect(TAKEN);
        run.posted(&self.core, batch.post());
    }

    /// Keeps the ended run for reuse.
    #[inline]
    fn keep_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.core.spare.borrow_mut().push(run);
        }
    }
}

impl<S: LockSystem> Drop for Guard<S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            ghosts::linger(Rc::clone(&self.core), run, self.acquires);
        }
    }
}

/// The drive of a guarded run.
struct Drive<S: LockSystem> {
    /// `None` while `seldom` has the guard, or if there is no guard.
    guard: Option<Guard<S>>,
    /// See [`Run::poll`].
    until: Nanos,
    seldom: Option<Seldom<S>>,
}

/// Rare work. Returns the guarded run, and the end of its drive if the work has ended the drive.
type Seldom<S> = Pin<Box<dyn Future<Output = (Option<Guard<S>>, Option<DriveEnd>)>>>;

impl<S: LockSystem> Drive<S> {
    #[inline]
    fn new(guard: Guard<S>, until: Nanos) -> Self {
        Self { guard: Some(guard), until, seldom: None }
    }

    #[inline(always)]
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<DriveEnd> {
        loop {
            if let Some(guard) = &mut self.guard {
                let run = guard.run.as_mut().expect(TAKEN);
                match ready!(run.poll(&guard.core, self.until, task)) {
                    Some(turn) => return Poll::Ready(turn),
                    None => self.go_on_seldom(),
                }
            }
            if let Some(turn) = ready!(self.poll_seldom(task)) {
                return Poll::Ready(turn);
            }
        }
    }

    #[cold]
    fn go_on_seldom(&mut self) {
        let until = self.until;
        let Some(mut guard) = self.guard.take() else { return };
        self.seldom = Some(Box::pin(async move {
            let run = guard.run.as_mut().expect(TAKEN);
            let turn = run.drive(&guard.core, until).await;
            (Some(guard), Some(turn))
        }));
    }

    #[cold]
    fn poll_seldom(&mut self, task: &mut Context<'_>) -> Poll<Option<DriveEnd>> {
        let seldom = self.seldom.as_mut().expect("it has not ended");
        let (guard, turn) = ready!(seldom.as_mut().poll(task));
        (self.guard, self.seldom) = (guard, None);
        Poll::Ready(turn)
    }

    /// Keeps the ended run for reuse.
    #[inline]
    fn keep_run(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.keep_run();
        }
    }
}

/// An acquisition whose first verb is in a batch.
///
/// Dropped without [`Client::finish`], the acquisition is given up like a request at its deadline.
/// In a system that counts its users, the lock then has to be reset, because the verb's answer is
/// lost. Do not drop the acquisition before its batch, if the batch is posted afterwards.
///
/// [`Client::finish`]: super::Client::finish
pub struct Begun<S: LockSystem>(pub(super) First<S>);

/// Beginning of an acquisition.
pub(super) enum First<S: LockSystem> {
    Run(Guard<S>),
    /// The lane has a ghost at the lock. The request takes the ghost's place, or waits for its end.
    Ghost(Behind<S>),
}

/// A request behind a ghost.
pub(super) struct Behind<S: LockSystem> {
    pub(super) client: super::Client<S>,
    pub(super) ghost: Rc<Ghost<S>>,
    pub(super) at: RemoteAddr,
    pub(super) mode: Mode,
    pub(super) terms: u16,
}

impl<S: LockSystem> Behind<S> {
    /// Waits for the ghost: takes it over, or begins a request when the ghost has ended.
    async fn take_over(self, wait: Wait) -> Result<Guard<S>, NotHeld> {
        let (client, core) = (&self.client, &self.client.core);
        let mut ghost = self.ghost;
        loop {
            let taken = ghost.take_over(core, self.mode, wait.until()).await;
            if let Some(run) = taken.map_err(|why| core.refusal(why, wait))? {
                return Ok(Guard::new(core, run));
            }
            match core.ghosts.find(self.at) {
                Some(next) => ghost = next,
                None => break,
            }
        }
        let mut batch = core.lane.batch();
        let mut guard = client.start(&mut batch, self.at, self.mode, self.terms)?;
        guard.post(batch);
        Ok(guard)
    }
}

/// An acquisition under way. If dropped, the request is given up as at its deadline.
///
/// # Errors
/// [`NotHeld`].
#[must_use = "dropped, the acquisition is given up"]
pub struct Acquiring<S: LockSystem> {
    drive: Drive<S>,
    wait: Wait,
}

impl<S: LockSystem> Acquiring<S> {
    #[inline]
    pub(super) fn new(first: Result<First<S>, NotHeld>, wait: Wait) -> Self {
        let drive = match first {
            Ok(First::Run(guard)) => Drive::new(guard, wait.until()),
            first => Self::without_run(first, wait),
        };
        Self { drive, wait }
    }

    #[cold]
    fn without_run(first: Result<First<S>, NotHeld>, wait: Wait) -> Drive<S> {
        let seldom: Seldom<S> = Box::pin(async move {
            let guard = match first {
                Ok(First::Run(guard)) => Ok(guard),
                Ok(First::Ghost(behind)) => behind.take_over(wait).await,
                Err(why) => Err(why),
            };
            match guard {
                Ok(guard) => (Some(guard), None),
                Err(why) => (None, Some(DriveEnd::Gone(Err(why)))),
            }
        });
        Drive { guard: None, until: wait.until(), seldom: Some(seldom) }
    }

    /// Notes the time of the request, for systems that keep the time. No effect where the request
    /// takes over a ghost.
    pub fn stamped(mut self, time: u16) -> Self {
        if let Some(guard) = &mut self.drive.guard {
            guard.run.as_mut().expect(TAKEN).stamp(&guard.core, time);
        }
        self
    }

    /// Whether the acquisition has found the lock taken, or waits for rare work.
    pub fn is_waiting(&self) -> bool {
        self.drive.guard.as_ref().is_none_or(|guard| guard.get().has_waited())
    }

    /// Whether the acquisition has found the lock taken, and has no place in a queue.
    pub fn can_leave(&self) -> bool {
        let guard = self.drive.guard.as_ref();
        guard.is_some_and(|guard| guard.get().has_waited() && guard.get().can_leave(&guard.core))
    }

    /// Takes the answer of the first verb from its completed batch.
    pub(super) fn answered(&mut self, result: &BatchResult) {
        if let Some(guard) = &mut self.drive.guard {
            guard.run.as_mut().expect(TAKEN).answered(&guard.core, result.as_ref().ok());
        }
    }
}

impl<S: LockSystem> Future for Acquiring<S> {
    type Output = Result<Hold<S>, NotHeld>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Poll::Ready(match ready!(this.drive.poll(task)) {
            DriveEnd::Held => {
                let mut guard = this.drive.guard.take().expect("it has what is held");
                guard.acquires = false;
                Ok(Hold { guard })
            }
            DriveEnd::Gone(result) => {
                this.drive.keep_run();
                Err(result.expect_err("an acquisition does not end well without being held"))
            }
            DriveEnd::Stopped(why) => {
                let guard = this.drive.guard.take();
                Err(guard.map_or(why, |guard| guard.core.refusal(why, this.wait)))
            }
        })
    }
}

/// A held lock, released on drop.
pub struct Hold<S: LockSystem> {
    guard: Guard<S>,
}

impl<S: LockSystem> Hold<S> {
    /// The lock.
    pub fn at(&self) -> RemoteAddr {
        self.guard.get().at
    }

    /// Mode in which the lock is held; stronger than requested if an earlier request for that mode
    /// was still under way.
    pub fn mode(&self) -> Mode {
        self.guard.get().mode
    }

    /// See [`LockSystem::next_time`].
    pub fn next_time(&self) -> Option<u16> {
        self.guard.get().next_time(&self.guard.core)
    }

    /// Makes an update lock exclusive for writing: waits for the readers that came before the
    /// holder. Returns at once where update locks are exclusive, or the lock already is.
    ///
    /// The lock stays held however the upgrade ends, also if the future is dropped. After an error,
    /// the lock keeps its previous mode: the holder may read on, try again, or release the lock.
    ///
    /// # Errors
    /// [`NotHeld::Conflict`] and `TimedOut` if there are still readers. `Reset` if the lock is
    /// being reset: the reset waits until this holder releases the lock. `Unavailable` and
    /// `Expelled` as for an acquisition. [`NotHeld::Unsupported`] for a lock that is held to read.
    pub async fn upgrade(&mut self, wait: Wait) -> Result<(), NotHeld> {
        let Guard { core, run, .. } = &mut self.guard;
        let run = run.as_mut().expect(TAKEN);
        match run.mode {
            Mode::Shared => return Err(NotHeld::Unsupported),
            Mode::Exclusive => return Ok(()),
            Mode::Update if core.system.guarantees().upgrades => {}
            Mode::Update => {
                run.mode = Mode::Exclusive;
                return Ok(());
            }
        }
        run.upgrade(core, wait.until()).await.map_err(|why| core.refusal(why, wait))
    }

    /// See [`LockSystem::holds_until`].
    pub(super) fn holds_until(&self) -> Nanos {
        self.guard.get().holds_until(&self.guard.core)
    }

    /// Whether the lock's memory node was abandoned since.
    pub(super) fn is_abandoned(&self) -> bool {
        self.guard.get().is_abandoned(&self.guard.core)
    }

    /// See [`super::Client::forget`].
    pub(super) fn forget(mut self) {
        if let Some(run) = self.guard.run.take() {
            self.guard.core.free(run.slot, run.at);
        }
    }

    /// Posts the first verb of the release.
    #[inline]
    pub(super) fn release(mut self) -> Releasing<S> {
        let core = &self.guard.core;
        let turn = self.guard.run.as_mut().expect(TAKEN).leave(core);
        self.released(turn)
    }

    /// Adds the first verb of the release to `batch`.
    #[inline]
    pub(super) fn release_in(mut self, batch: &mut Batch) -> Leaving<S> {
        let core = &self.guard.core;
        let turn = self.guard.run.as_mut().expect(TAKEN).leave_in(core, batch);
        Leaving(self.released(turn))
    }

    #[inline(always)]
    fn released(mut self, turn: Option<DriveEnd>) -> Releasing<S> {
        let ended = match turn {
            None => None,
            Some(DriveEnd::Gone(result)) => {
                self.guard.keep_run();
                Some(result)
            }
            Some(DriveEnd::Held | DriveEnd::Stopped(_)) => unreachable!("it is being released"),
        };
        Releasing { drive: Drive::new(self.guard, Nanos::NEVER), ended }
    }
}

/// A release whose first verb is in a batch.
///
/// Dropped without [`Client::finish_release`], the release goes on; in a system that counts its
/// users with a reset of the lock, because the verb's answer is lost. Do not drop the release
/// before its batch is posted.
///
/// [`Client::finish_release`]: super::Client::finish_release
pub struct Leaving<S: LockSystem>(Releasing<S>);

impl<S: LockSystem> Leaving<S> {
    /// Takes the answer of the first verb from its completed batch.
    pub(super) fn answered(self, result: &BatchResult) -> Releasing<S> {
        let mut releasing = self.0;
        if let Some(guard) = &mut releasing.drive.guard
            && let Some(run) = &mut guard.run
        {
            run.answered(&guard.core, result.as_ref().ok());
        }
        releasing
    }
}

/// A release under way.
///
/// # Errors
/// [`NotHeld::Reset`] if the lock was taken away before, which happens only without fencing;
/// `Unavailable` or `Expelled` if the outcome is unknown.
#[must_use = "dropped, it goes on, and nobody learns whether the lock was lost before"]
pub struct Releasing<S: LockSystem> {
    drive: Drive<S>,
    /// Result of the release, if it is ready without waiting.
    ended: Option<Result<(), NotHeld>>,
}

impl<S: LockSystem> Future for Releasing<S> {
    type Output = Result<(), NotHeld>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(result) = this.ended {
            return Poll::Ready(result);
        }
        Poll::Ready(match ready!(this.drive.poll(task)) {
            DriveEnd::Gone(result) => {
                this.drive.keep_run();
                result
            }
            DriveEnd::Stopped(why) => {
                this.drive.guard = None;
                Err(why)
            }
            DriveEnd::Held => unreachable!("it is being released"),
        })
    }
}
