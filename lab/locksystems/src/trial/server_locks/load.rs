//! A client's work: takes and releases locks, and reads and writes two words under each lock.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::ops::AddAssign;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_locks::word::{Claimant, Mode};
use lotus_locks::{Counts, NotHeld, Wait};
use rand::Rng;

use super::super::Referee;
use crate::locker::Locker;

/// Node of the memory that locks protect.
pub const MEMORY: NodeId = NodeId(0);
/// Region of the protected memory.
pub const REGION: RegionId = RegionId(0);
/// Bytes of a lock's two words.
const STRIDE: u64 = 16;

/// Shape of a load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// Machines with lanes that take locks.
    pub machines: u16,
    /// Lanes of each machine that take locks.
    pub lanes: u16,
    /// Clients of each lane.
    pub clients: u16,
    /// Racks with a switch each, where switches grant the locks.
    pub racks: u16,
    /// Number of locks.
    pub locks: u64,
    /// Requests of each client.
    pub rounds: u32,
    /// Share of requests that read.
    pub shared: f64,
    /// Share of requests that do not wait.
    pub refusing: f64,
    /// Share of requests that wait for a short time.
    pub hurried: f64,
    /// Share of requests that are dropped after a short time.
    pub dropped: f64,
    /// The longest short wait.
    pub hurry: Duration,
    /// The longest hold of a lock, besides the verbs.
    pub hold: Duration,
    /// The longest time between two requests.
    pub think: Duration,
    /// Bound of the time between a deadline and its refusal.
    pub late: Duration,
    /// Time after which a patient request counts as stuck.
    pub patience: Duration,
    /// Whether a machine may be cut off from the memory.
    pub may_be_cut_off: bool,
}

impl Plan {
    /// Four machines with two lanes of two clients each, and two locks; half of the requests read,
    /// and every request waits.
    pub const SMALL: Self = Self {
        machines: 4,
        lanes: 2,
        clients: 2,
        racks: 1,
        locks: 2,
        rounds: 40,
        shared: 0.5,
        refusing: 0.0,
        hurried: 0.0,
        dropped: 0.0,
        hurry: Duration::from_micros(20),
        hold: Duration::from_micros(5),
        think: Duration::from_micros(5),
        late: Duration::from_micros(20),
        patience: Duration::from_millis(200),
        may_be_cut_off: false,
    };

    /// Uses all kinds of requests.
    #[must_use]
    pub const fn mixed(self) -> Self {
        Self { refusing: 0.2, hurried: 0.2, dropped: 0.2, ..self }
    }
}

/// Report of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Number of acquisitions.
    pub entered: u64,
    /// Number of requests that got no lock.
    pub refused: u64,
    /// The longest time between a deadline and its refusal.
    pub late: Duration,
    /// Counts of the lane's locker.
    pub counts: Counts,
}

impl AddAssign for Done {
    fn add_assign(&mut self, other: Self) {
        self.entered += other.entered;
        self.refused += other.refused;
        self.late = self.late.max(other.late);
        self.counts += other.counts;
    }
}

/// Locks lost for all clients together with the keeper.
#[derive(Debug, Default)]
pub struct LostLocks(Mutex<BTreeSet<u64>>);

impl LostLocks {
    /// Records the loss of locks.
    pub fn lose(&self, locks: impl IntoIterator<Item = u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(locks);
    }

    /// Whether a lock is lost.
    pub fn is_lost(&self, lock: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&lock)
    }

    /// Whether no lock is lost.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// A client.
pub struct LockUser<L> {
    /// The lane's locker.
    pub locker: L,
    /// The lane, for access to the protected memory.
    pub lane: Lane,
    /// The machine's life, for the judges.
    pub life: Claimant,
    /// The judges.
    pub referee: Arc<Referee>,
    /// Lost locks.
    pub lost_locks: Arc<LostLocks>,
    /// The client's load.
    pub plan: Plan,
    /// The client's random stream.
    pub rng: SmallRng,
}

impl<L: Locker> LockUser<L> {
    fn span(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.random_range(0..=most.as_nanos() as u64))
    }

    async fn sleep(&mut self, most: Duration) {
        let span = self.span(most);
        self.lane.executor().sleep(span).await;
    }

    /// Runs all rounds, unless the machine is expelled. `Done::counts` stays empty: the locker has
    /// the counts.
    pub async fn run(mut self) -> Done {
        let mut done = Done::default();
        for _ in 0..self.plan.rounds {
            self.sleep(self.plan.think).await;
            let lock = self.rng.random_range(0..self.plan.locks);
            match self.round(lock, &mut done).await {
                Ok(true) => done.entered += 1,
                Ok(false) => done.refused += 1,
                Err(NotHeld::Expelled) => break,
                Err(_) => done.refused += 1,
            }
        }
        done
    }

    /// Makes one request. Returns whether the lock was held.
    async fn round(&mut self, lock: u64, done: &mut Done) -> Result<bool, NotHeld> {
        let is_reader = self.rng.random_bool(self.plan.shared);
        let mode = if is_reader { Mode::Shared } else { Mode::Exclusive };
        let Plan { refusing, hurried, dropped, hurry, patience, late, .. } = self.plan;
        let kind = self.rng.random::<f64>();
        let timer = self.lane.executor().clone();
        if self.lost_locks.is_lost(lock) {
            return Ok(false);
        }
        if kind < dropped {
            let span = self.span(hurry);
            let until = timer.now().after(span);
            let locker = self.locker.clone();
            let acquiring = locker.acquire(lock, mode, Wait::Until(Nanos::NEVER));
            return match before(acquiring, timer.sleep_until(until)).await {
                Some(outcome) => self.outcome(lock, mode, outcome).await,
                None => Ok(false),
            };
        }
        let (wait, deadline) = if kind < dropped + refusing {
            (Wait::No, None)
        } else if kind < dropped + refusing + hurried {
            let until = timer.now().after(self.span(hurry));
            (Wait::Until(until), Some(until))
        } else {
            (Wait::Until(timer.now().after(patience)), None)
        };
        let outcome = self.locker.acquire(lock, mode, wait).await;
        if let Some(deadline) = deadline {
            let after = timer.now().since(deadline);
            done.late = done.late.max(after);
            if after > late {
                let complaint = format!("lock {lock}: it returns {after:?} after its deadline");
                self.referee.violate(complaint);
            }
        }
        let is_stuck = deadline.is_none() && outcome.as_ref().err() == Some(&NotHeld::TimedOut);
        if is_stuck && !self.is_excused(lock) {
            self.referee.violate(format!("lock {lock}: {:?} waits for {patience:?}", self.life));
        }
        self.outcome(lock, mode, outcome).await
    }

    /// Whether a lock may be out of reach: the machine is expelled, or the lock's keeper is lost.
    fn is_excused(&self, lock: u64) -> bool {
        self.referee.is_out(self.life) || self.lost_locks.is_lost(lock)
    }

    async fn outcome(
        &mut self,
        lock: u64,
        mode: Mode,
        outcome: Result<L::Held, NotHeld>,
    ) -> Result<bool, NotHeld> {
        let held = match outcome {
            Ok(held) => held,
            Err(why @ (NotHeld::Conflict | NotHeld::TimedOut)) => return Err(why),
            Err(why) => {
                if !self.is_excused(lock) {
                    self.referee
                        .violate(format!("lock {lock}: {:?} is told that {why}", self.life));
                }
                return Err(why);
            }
        };
        self.use_lock(lock, mode).await;
        if self.rng.random_bool(0.5) {
            drop(held);
        } else if let Err(why) = self.locker.release(held).await
            && !self.is_excused(lock)
        {
            self.referee.violate(format!("lock {lock}: its release says that {why}"));
        }
        Ok(true)
    }

    /// Reads or writes the words under a lock, which shows a second holder.
    pub async fn use_lock(&mut self, lock: u64, mode: Mode) {
        self.referee.enter(lock, self.life, mode);
        let is_torn = self.touch(lock, mode).await.is_none();
        if is_torn && !self.plan.may_be_cut_off {
            self.referee.violate(format!("lock {lock}: {:?} cannot reach the memory", self.life));
        }
        self.sleep(self.plan.hold).await;
        self.referee.leave(lock, self.life, mode, is_torn);
    }

    /// Reads the words; `None` if the node can no longer reach the memory.
    async fn read(&self, lock: u64) -> Option<[u64; 2]> {
        let mut batch = self.lane.batch();
        let buffer = batch.read(RemoteAddr::new(MEMORY, REGION, lock * STRIDE), 16);
        let done = batch.post().await.ok()?;
        Some([done.words(buffer)[0], done.words(buffer)[1]])
    }

    async fn write(&self, lock: u64, offset: u64, value: u64) -> Option<()> {
        let mut batch = self.lane.batch();
        batch.write_word(RemoteAddr::new(MEMORY, REGION, lock * STRIDE + offset), value);
        batch.post().await.ok().map(|_| ())
    }

    /// Reads the words; a writer then writes both in order.
    async fn touch(&mut self, lock: u64, mode: Mode) -> Option<()> {
        let words = self.read(lock).await?;
        self.referee.judge(lock, self.life, words);
        if mode != Mode::Shared {
            let value = words[0].max(words[1]) + 1;
            self.write(lock, 0, value).await?;
            self.sleep(self.plan.hold / 2).await;
            self.write(lock, 8, value).await?;
            self.referee.wrote(lock, self.life, value);
        }
        Some(())
    }
}

/// Output of the first future; `None` if `other` ends before.
pub async fn before<T>(
    first: impl Future<Output = T>,
    other: impl Future<Output = ()>,
) -> Option<T> {
    let (mut first, mut other) = (pin!(first), pin!(other));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => other.as_mut().poll(context).map(|()| None),
    })
    .await
}
