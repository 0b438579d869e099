//! Locks in words of memory nodes as the locks of transactions.
//!
//! The lock names of a transaction are mapped to lock objects. Two names of one object are one
//! lock, taken in the stronger mode. The first verbs of all locks of an acquisition share one
//! batch.
//!
//! # Waiting in order
//! If some locks are not granted at once, the acquisition waits for the lowest of them and keeps no
//! lock above it: granted locks are released, queued requests are left to ghosts. So a waiting
//! transaction holds only locks below the awaited lock, and deadlocks are impossible. A later
//! acquisition of the same attempt waits only above the highest held lock; below, the acquisition
//! is refused.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::lane::{BatchResult, Lane};
use lotus_locktable::{HeldLocks, LockError, LockKey, LockMode, LockRequest, LockService};

use lotus_points::point;

use crate::client::{Acquiring, Begun, Client, Hold, Leaving, Limits, Wait};
use crate::contract::{LockSystem, NotHeld};
use crate::word::Mode;

/// Finds the object of a lock from the hash of its name.
pub type ObjectOf = Rc<dyn Fn(&LockKey, u64) -> RemoteAddr>;

/// Lock service of one coordinator. See the module's documentation.
pub struct MemoryLocks<S: LockSystem> {
    client: Client<S>,
    lane: Lane,
    object_of: ObjectOf,
    spare: Rc<Spare<S>>,
    held: Rc<HeldOn>,
}

/// Number of held locks per memory node, by node number.
#[derive(Default)]
struct HeldOn(RefCell<Vec<usize>>);

impl HeldOn {
    fn of(&self, memory: NodeId) -> usize {
        self.0.borrow().get(usize::from(memory.0)).copied().unwrap_or(0)
    }

    #[inline]
    fn one_more(&self, memory: NodeId) {
        let (counts, memory) = (&mut *self.0.borrow_mut(), usize::from(memory.0));
        if counts.len() <= memory {
            counts.resize(memory + 1, 0);
        }
        counts[memory] += 1;
    }

    #[inline]
    fn one_less(&self, memory: NodeId) {
        self.0.borrow_mut()[usize::from(memory.0)] -= 1;
    }
}

/// Lists of ended operations, kept for reuse.
struct Spare<S: LockSystem> {
    lacking: RefCell<Vec<Vec<Lacking>>>,
    begun: RefCell<Vec<Vec<Begun<S>>>>,
    leaving: RefCell<Vec<Vec<Leaving<S>>>>,
}

impl<S: LockSystem> Default for Spare<S> {
    fn default() -> Self {
        Self { lacking: RefCell::default(), begun: RefCell::default(), leaving: RefCell::default() }
    }
}

/// Returns an empty list, from `spare` if possible.
fn take<T>(spare: &RefCell<Vec<Vec<T>>>) -> Vec<T> {
    spare.borrow_mut().pop().unwrap_or_default()
}

/// Keeps a list for reuse. A list that is lost with a dropped acquisition is allocated anew.
fn give_back<T>(spare: &RefCell<Vec<Vec<T>>>, mut list: Vec<T>) {
    list.clear();
    spare.borrow_mut().push(list);
}

/// A lock that an acquisition lacks.
#[derive(Clone, Copy)]
struct Lacking {
    at: RemoteAddr,
    mode: Mode,
    name: LockKey,
}

impl<S: LockSystem> MemoryLocks<S> {
    /// Creates the service over the objects that `object_of` names, with the client of `lane`.
    pub fn new(client: Client<S>, lane: Lane, object_of: ObjectOf) -> Self {
        Self { client, lane, object_of, spare: Rc::default(), held: Rc::default() }
    }

    /// The lane's lock client.
    pub fn client(&self) -> &Client<S> {
        &self.client
    }

    /// Whether an attempt may rely on its locks. See [`Client::is_valid`].
    pub fn are_valid(&self, held: &HeldLocks) -> bool {
        held.kept::<Hold<S>>().iter().all(|hold| self.client.is_valid(hold))
    }

    /// Ends all uses of a memory node that has lost its memory, except for attempts with locks on
    /// the node. The locks of these attempts are no longer [valid](Self::are_valid). See
    /// [`Client::abandon_beside`].
    ///
    /// # Errors
    /// See [`Client::abandon`].
    pub fn abandon(&self, memory: NodeId) -> impl Future<Output = Result<(), NotHeld>> + use<S> {
        let held = Rc::clone(&self.held);
        self.client.abandon_beside(memory, move || held.of(memory))
    }

    /// Records a lock that an attempt holds.
    #[inline]
    fn keep(&self, held: &mut HeldLocks, hold: Hold<S>) {
        self.held.one_more(hold.at().node());
        held.keep(hold);
    }

    /// Returns the time at which `timeout` has passed.
    pub fn deadline(&self, timeout: Duration) -> Nanos {
        self.lane.executor().now().after(timeout)
    }

    fn add_lacking(
        &self,
        held: &HeldLocks,
        wanted: &[LockRequest],
        lacking: &mut Vec<Lacking>,
    ) -> Result<(), LockError> {
        let shares = self.client.system().guarantees().shares;
        for LockRequest { name, mode } in wanted {
            let at = (self.object_of)(name, name.hash());
            let mode = match mode {
                LockMode::Read if shares => Mode::Shared,
                LockMode::Read | LockMode::Write => Mode::Exclusive,
            };
            let held = held.kept::<Hold<S>>().iter().find(|hold| hold.at() == at);
            match held {
                None => lacking.push(Lacking { at, mode, name: *name }),
                Some(hold) if hold.mode() >= mode => {}
                // Other readers may hold the lock too, and want the same upgrade.
                Some(_) => return Err(LockError::Conflict(*name)),
            }
        }
        lacking
            .sort_unstable_by(|one, other| one.at.cmp(&other.at).then(other.mode.cmp(&one.mode)));
        lacking.dedup_by_key(|lacking| lacking.at);
        Ok(())
    }

    /// Takes a single lock, without sharing a batch.
    async fn take_one(
        &self,
        held: &mut HeldLocks,
        lacking: Lacking,
        wait: Wait,
    ) -> Result<(), LockError> {
        let limits = Limits { wait, terms: 1 };
        let acquiring = self.client.acquire(lacking.at, lacking.mode, limits);
        let hold = unless_abandoned(held, acquiring).await;
        self.keep(held, hold.map_err(|why| error(why, lacking.name))?);
        Ok(())
    }

    /// Takes locks in order, up to and including the first lock that has to be waited for. Returns
    /// the number of locks taken.
    async fn take_some(
        &self,
        held: &mut HeldLocks,
        lacking: &[Lacking],
        wait: impl Fn(&Lacking) -> Wait,
    ) -> Result<usize, LockError> {
        let mut batch = self.lane.batch();
        let mut begun = take(&self.spare.begun);
        for Lacking { at, mode, name } in lacking {
            match self.client.begin(&mut batch, *at, *mode, 1) {
                Ok(one) => begun.push(one),
                Err(why) if begun.is_empty() => return Err(error(why, *name)),
                // The next call begins with this lock.
                Err(_) => break,
            }
        }
        let posted = batch.post();
        point!(self.lane.at().node.0, LockPosted, if !begun.is_empty());
        let result = posted.await;
        let mut taken = 0;
        let mut waiting = None;
        let mut rest = begun.drain(..);
        for one in &mut rest {
            let lacking = &lacking[taken];
            taken += 1;
            let mut acquiring = self.client.finish(one, &result, wait(lacking));
            match poll_now(&mut acquiring) {
                Poll::Ready(Ok(hold)) => self.keep(held, hold),
                now => {
                    waiting = Some(PolledAcquisition { acquiring, now });
                    break;
                }
            }
        }
        if waiting.as_ref().is_some_and(PolledAcquisition::is_open) {
            let more = (&mut rest).zip(&lacking[taken..]);
            let more = more.map(|(one, lacking)| {
                PolledAcquisition::of(self.client.finish(one, &result, wait(lacking)))
            });
            let mut tried = Vec::from_iter(waiting.take().into_iter().chain(more));
            decide(&mut tried).await;
            taken -= 1;
            waiting = self.sort_out(held, tried, &mut taken);
        }
        self.give_up(rest, &result);
        give_back(&self.spare.begun, begun);
        if let Some(PolledAcquisition { acquiring, now }) = waiting {
            let hold = match now {
                Poll::Ready(hold) => hold,
                Poll::Pending => unless_abandoned(held, acquiring).await,
            };
            self.keep(held, hold.map_err(|why| error(why, lacking[taken - 1].name))?);
        }
        Ok(taken)
    }

    /// Keeps the granted locks before the first acquisition that was not granted, returns this
    /// acquisition, and gives up the acquisitions behind it. Adds the number of acquisitions up to
    /// and including the returned one to `taken`.
    fn sort_out(
        &self,
        held: &mut HeldLocks,
        tried: Vec<PolledAcquisition<S>>,
        taken: &mut usize,
    ) -> Option<PolledAcquisition<S>> {
        let mut tried = tried.into_iter();
        let waiting = tried.find_map(|PolledAcquisition { acquiring, now }| {
            *taken += 1;
            match now {
                Poll::Ready(Ok(hold)) => {
                    self.keep(held, hold);
                    None
                }
                now => Some(PolledAcquisition { acquiring, now }),
            }
        });
        self.release_all(tried.filter_map(|PolledAcquisition { now, .. }| match now {
            Poll::Ready(hold) => hold.ok(),
            Poll::Pending => None,
        }));
        waiting
    }

    /// Gives up the acquisitions that a batch has begun: releases the granted locks, and leaves the
    /// rest to ghosts.
    fn give_up(&self, begun: impl Iterator<Item = Begun<S>>, result: &BatchResult) {
        let granted = begun.filter_map(|one| {
            match poll_now(&mut self.client.finish(one, result, Wait::No)) {
                Poll::Ready(Ok(hold)) => Some(hold),
                Poll::Ready(Err(_)) | Poll::Pending => None,
            }
        });
        self.release_all(granted);
    }

    /// Releases locks. Consecutive locks of one memory node share a batch.
    fn release_all(&self, holds: impl Iterator<Item = Hold<S>>) {
        let mut holds = holds.peekable();
        while let Some(memory) = holds.peek().map(|hold| hold.at().node()) {
            let mut batch = self.lane.batch();
            let mut leaving = take(&self.spare.leaving);
            while let Some(hold) = holds.next_if(|hold| hold.at().node() == memory) {
                leaving.push(self.client.begin_release(&mut batch, hold));
            }
            // Not awaited by the caller: the verbs follow all earlier verbs of the lane.
            let posted = batch.post();
            let (client, spare) = (self.client.clone(), Rc::clone(&self.spare));
            self.lane.executor().spawn(async move {
                let result = posted.await;
                for one in leaving.drain(..) {
                    // A release that is not over by now goes on in the background.
                    let _ = poll_now(&mut client.finish_release(one, &result));
                }
                give_back(&spare.leaving, leaving);
            });
        }
    }
}

impl<S: LockSystem> LockService for MemoryLocks<S> {
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        _round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        let deadline = self.deadline(timeout);
        let mut list = take(&self.spare.lacking);
        self.add_lacking(held, wanted, &mut list)?;
        let highest = held.kept::<Hold<S>>().iter().map(Hold::at).max();
        let wait = |lacking: &Lacking| match highest.is_some_and(|highest| lacking.at < highest) {
            true => Wait::No,
            false => Wait::Until(deadline),
        };
        if let [one] = list[..] {
            give_back(&self.spare.lacking, list);
            return self.take_one(held, one, wait(&one)).await;
        }
        let mut lacking = &list[..];
        while !lacking.is_empty() {
            let taken = self.take_some(held, lacking, wait).await?;
            lacking = &lacking[taken..];
        }
        give_back(&self.spare.lacking, list);
        Ok(())
    }

    fn release(&self, held: &mut HeldLocks) {
        let holds = held.take_kept::<Hold<S>>();
        self.release_all(holds.inspect(|hold| self.held.one_less(hold.at().node())));
    }
}

/// An acquisition and its progress so far.
struct PolledAcquisition<S: LockSystem> {
    acquiring: Acquiring<S>,
    now: Poll<Result<Hold<S>, NotHeld>>,
}

impl<S: LockSystem> PolledAcquisition<S> {
    /// Polls the acquisition once, to post its next verb.
    fn of(mut acquiring: Acquiring<S>) -> Self {
        let now = poll_now(&mut acquiring);
        Self { acquiring, now }
    }

    /// Whether the answer of a verb still decides if the lock has to be waited for.
    fn is_open(&self) -> bool {
        self.now.is_pending() && !self.acquiring.is_waiting()
    }
}

/// Awaits the answers of verbs until the service knows for each lock whether to wait: in some
/// systems the first verb tells only the previous value of the word (ShiftLock without masked
/// atomics).
async fn decide<S: LockSystem>(tried: &mut [PolledAcquisition<S>]) {
    for one in tried {
        std::future::poll_fn(|task| {
            if one.is_open() {
                one.now = Pin::new(&mut one.acquiring).poll(task);
            }
            if one.is_open() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

/// Returns the result of an acquisition or a release, if it is ready without waiting.
fn poll_now<F: Future + Unpin>(going: &mut F) -> Poll<F::Output> {
    Pin::new(going).poll(&mut Context::from_waker(std::task::Waker::noop()))
}

/// Returns the result of an acquisition, unless its attempt is abandoned before.
async fn unless_abandoned<S: LockSystem>(
    held: &HeldLocks,
    mut acquiring: Acquiring<S>,
) -> Result<Hold<S>, NotHeld> {
    std::future::poll_fn(|context| match Pin::new(&mut acquiring).poll(context) {
        Poll::Pending if held.is_abandoned() => Poll::Ready(Err(NotHeld::Unavailable)),
        polled => polled,
    })
    .await
}

const fn error(why: NotHeld, name: LockKey) -> LockError {
    match why {
        NotHeld::Conflict | NotHeld::Reset | NotHeld::Unsupported => LockError::Conflict(name),
        NotHeld::TimedOut => LockError::WaitedTooLong(name),
        NotHeld::Unavailable => LockError::TimedOut,
        NotHeld::Expelled => LockError::Expelled,
        NotHeld::TooMany => LockError::Full(name),
    }
}
