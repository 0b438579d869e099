//! Locks in words of memory nodes as the locks of transactions.
//!
//! A transaction's names are mapped to lock objects; two names of one object are one lock, in the
//! stronger mode. The first verbs of all locks of an acquisition share one batch.
//!
//! # Waiting in order
//! If some locks are not granted at once, the lowest of those is waited for, and no lock above it
//! is kept meanwhile: granted ones are released, queued ones are left to ghosts. So a transaction
//! that waits holds only locks below the one that it waits for, and there is no deadlock. A later
//! acquisition of the same attempt waits only above the highest lock that is held; below, it is
//! refused.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{BatchResult, Lane};
use lotus_locktable::{HeldLocks, LockError, LockMode, LockName, LockRequest, LockService};

use crate::client::{Acquiring, Begun, Client, Hold, Limits, Releasing, Wait};
use crate::contract::{LockSystem, NotHeld};
use crate::word::Mode;

/// Finds the object of a lock from the hash of its name.
pub type ObjectOf = Rc<dyn Fn(&LockName, u64) -> RemoteAddr>;

/// Lock service of one coordinator. See the module's documentation.
pub struct MemoryLocks<S: LockSystem> {
    client: Client<S>,
    lane: Lane,
    object_of: ObjectOf,
}

/// A lock that an acquisition lacks.
#[derive(Clone, Copy)]
struct Lacking {
    at: RemoteAddr,
    mode: Mode,
    name: LockName,
}

impl<S: LockSystem> MemoryLocks<S> {
    /// Service over the objects that `object_of` names, by the client of `lane`.
    pub fn new(client: Client<S>, lane: Lane, object_of: ObjectOf) -> Self {
        Self { client, lane, object_of }
    }

    /// The lane's use of the locks.
    pub fn client(&self) -> &Client<S> {
        &self.client
    }

    fn lacking(&self, held: &HeldLocks, wanted: &[LockRequest]) -> Result<Vec<Lacking>, LockError> {
        let shares = self.client.system().promises().shares;
        let mut lacking = Vec::with_capacity(wanted.len());
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
                // Others may hold it to read as well, and want the same.
                Some(_) => return Err(LockError::Conflict(*name)),
            }
        }
        lacking
            .sort_unstable_by(|one, other| one.at.cmp(&other.at).then(other.mode.cmp(&one.mode)));
        lacking.dedup_by_key(|lacking| lacking.at);
        Ok(lacking)
    }

    /// Takes a lock that is not to share a batch.
    async fn take_one(
        &self,
        held: &mut HeldLocks,
        lacking: Lacking,
        wait: Wait,
    ) -> Result<(), LockError> {
        let limits = Limits { wait, terms: 1 };
        let acquiring = self.client.acquire(lacking.at, lacking.mode, limits);
        let hold = unless_abandoned(held, acquiring).await;
        held.keep(hold.map_err(|why| error(why, lacking.name))?);
        Ok(())
    }

    /// Takes the first of these locks, and those behind it up to one that has to be waited for,
    /// and that one. Returns how many.
    async fn take_some(
        &self,
        held: &mut HeldLocks,
        lacking: &[Lacking],
        wait: impl Fn(&Lacking) -> Wait,
    ) -> Result<usize, LockError> {
        let mut batch = self.lane.batch();
        let mut begun = Vec::with_capacity(lacking.len());
        for Lacking { at, mode, name } in lacking {
            match self.client.begin(&mut batch, *at, *mode, 1) {
                Ok(one) => begun.push(one),
                Err(why) if begun.is_empty() => return Err(error(why, *name)),
                // The next call begins with it.
                Err(_) => break,
            }
        }
        let result = batch.post().await;
        let mut begun = begun.into_iter();
        let mut taken = 0;
        while let Some(one) = begun.next() {
            let lacking = &lacking[taken];
            taken += 1;
            let mut acquiring = self.client.finish(one, &result, wait(lacking));
            let now = match poll_now(&mut acquiring) {
                Poll::Ready(Ok(hold)) => {
                    held.keep(hold);
                    continue;
                }
                now => now,
            };
            self.give_up(begun, &result);
            let hold = match now {
                Poll::Ready(hold) => hold,
                Poll::Pending => unless_abandoned(held, acquiring).await,
            };
            held.keep(hold.map_err(|why| error(why, lacking.name))?);
            break;
        }
        Ok(taken)
    }

    /// Gives up what a batch has begun: releases what it was granted, and leaves the rest to
    /// ghosts.
    fn give_up(&self, begun: impl Iterator<Item = Begun<S>>, result: &BatchResult) {
        let granted = begun.filter_map(|one| {
            match poll_now(&mut self.client.finish(one, result, Wait::No)) {
                Poll::Ready(Ok(hold)) => Some(hold),
                Poll::Ready(Err(_)) | Poll::Pending => None,
            }
        });
        self.release_all(granted);
    }

    fn release_all(&self, holds: impl Iterator<Item = Hold<S>>) {
        let releases: Vec<Releasing<S>> = holds.map(|hold| self.client.release(hold)).collect();
        if releases.is_empty() {
            return;
        }
        // Not awaited by the caller: the verbs follow everything that this lane posted before.
        self.lane.executor().spawn(async move {
            for release in releases {
                // A lock that is taken away before is one that is not fenced.
                let _ = release.await;
            }
        });
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
        let deadline = self.lane.executor().now().after(timeout);
        let lacking = self.lacking(held, wanted)?;
        let highest = held.kept::<Hold<S>>().iter().map(Hold::at).max();
        let wait = |lacking: &Lacking| match highest.is_some_and(|highest| lacking.at < highest) {
            true => Wait::No,
            false => Wait::Until(deadline),
        };
        if let [one] = lacking[..] {
            return self.take_one(held, one, wait(&one)).await;
        }
        let mut lacking = &lacking[..];
        while !lacking.is_empty() {
            let taken = self.take_some(held, lacking, wait).await?;
            lacking = &lacking[taken..];
        }
        Ok(())
    }

    fn release(&self, held: &mut HeldLocks) {
        self.release_all(held.take_kept::<Hold<S>>());
    }
}

/// The result of an acquisition, if it needs nothing to be waited for.
fn poll_now<S: LockSystem>(acquiring: &mut Acquiring<S>) -> Poll<Result<Hold<S>, NotHeld>> {
    Pin::new(acquiring).poll(&mut Context::from_waker(std::task::Waker::noop()))
}

/// The result of an acquisition, unless its attempt is abandoned before.
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

const fn error(why: NotHeld, name: LockName) -> LockError {
    match why {
        NotHeld::Conflict | NotHeld::Reset | NotHeld::Unsupported => LockError::Conflict(name),
        NotHeld::TimedOut => LockError::WaitedTooLong(name),
        NotHeld::Unavailable => LockError::TimedOut,
        NotHeld::Expelled => LockError::Expelled,
        NotHeld::TooMany => LockError::Full(name),
    }
}
