//! What a client does: it takes and releases locks, and reads and writes two words under each.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_locks::trial::Referee;
use lotus_locks::word::Claimant;
use lotus_locks::{Locker, Mode, NotHeld, Wait};
use rand::Rng;

pub const MEMORY: NodeId = NodeId(0);
pub const REGION: RegionId = RegionId(0);
/// Bytes of a lock's two words.
pub const STRIDE: u64 = 16;

/// Shape of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub machines: u16,
    /// Lanes of each machine that take locks, and clients of each lane.
    pub lanes: u16,
    pub clients: u16,
    pub locks: u64,
    /// Requests of each client.
    pub rounds: u32,
    /// Share of requests that read.
    pub shared: f64,
    /// Shares of requests that do not wait, that wait for a short time, and that are dropped.
    pub refusing: f64,
    pub hurried: f64,
    pub dropped: f64,
    /// Longest short time, time that a lock is held, and time between two requests.
    pub hurry: Duration,
    pub hold: Duration,
    pub think: Duration,
    /// Longest time between a deadline and the refusal.
    pub late: Duration,
    /// Time after which a request that waits for as long as it takes counts as stuck.
    pub patience: Duration,
    /// Whether a machine may be cut off from the memory and the switch.
    pub may_be_cut_off: bool,
}

impl Plan {
    /// Four machines of two lanes with two clients each, and two locks; half of the requests read,
    /// and all of them wait.
    pub const SMALL: Self = Self {
        machines: 4,
        lanes: 2,
        clients: 2,
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

    /// All kinds of requests.
    pub const fn mixed(self) -> Self {
        Self { refusing: 0.2, hurried: 0.2, dropped: 0.2, ..self }
    }
}

/// What a lane reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub entered: u64,
    pub refused: u64,
}

/// One client.
pub struct Seat<L> {
    pub locker: L,
    pub lane: Lane,
    pub life: Claimant,
    pub referee: Arc<Referee>,
    pub plan: Plan,
    pub rng: SmallRng,
}

impl<L: Locker> Seat<L> {
    fn span(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.random_range(0..=most.as_nanos() as u64))
    }

    async fn sleep(&mut self, most: Duration) {
        let span = self.span(most);
        self.lane.executor().sleep(span).await;
    }

    /// Does all rounds.
    pub async fn run(mut self) -> Done {
        let mut done = Done::default();
        for _ in 0..self.plan.rounds {
            self.sleep(self.plan.think).await;
            match self.round().await {
                true => done.entered += 1,
                false => done.refused += 1,
            }
        }
        done
    }

    /// One request: whether the lock was held.
    async fn round(&mut self) -> bool {
        let lock = self.rng.random_range(0..self.plan.locks);
        let is_reader = self.rng.random_bool(self.plan.shared);
        let mode = if is_reader { Mode::Shared } else { Mode::Exclusive };
        let Plan { refusing, hurried, dropped, hurry, patience, late, .. } = self.plan;
        let kind = self.rng.random::<f64>();
        let timer = self.lane.executor().clone();
        if kind < dropped {
            let span = self.span(hurry);
            let until = timer.now().after(span);
            let locker = self.locker.clone();
            let acquiring = locker.acquire(lock, mode, Wait::Until(Nanos::NEVER));
            let Some(held) = before(acquiring, timer.sleep_until(until)).await else {
                return false;
            };
            return self.outcome(lock, mode, held).await;
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
        if let Some(deadline) = deadline
            && timer.now().since(deadline) > late
        {
            let late = timer.now().since(deadline);
            self.referee.violate(format!("lock {lock}: it returns {late:?} after its deadline"));
        }
        let is_stuck = deadline.is_none() && outcome.as_ref().err() == Some(&NotHeld::TimedOut);
        if is_stuck && !self.plan.may_be_cut_off {
            self.referee.violate(format!("lock {lock}: {:?} waits for {patience:?}", self.life));
        }
        self.outcome(lock, mode, outcome).await
    }

    async fn outcome(&mut self, lock: u64, mode: Mode, outcome: Result<L::Held, NotHeld>) -> bool {
        let Ok(held) = outcome else { return false };
        self.use_lock(lock, mode).await;
        if self.rng.random_bool(0.5) {
            drop(held);
        } else if let Err(why) = self.locker.release(held).await {
            self.referee.violate(format!("lock {lock}: its release says {why}"));
        }
        true
    }

    /// Does under a lock what shows if it is another's as well.
    pub async fn use_lock(&mut self, lock: u64, mode: Mode) {
        self.referee.enter(lock, self.life, mode);
        let is_torn = self.touch(lock, mode).await.is_none();
        if is_torn && !self.plan.may_be_cut_off {
            self.referee.violate(format!("lock {lock}: {:?} cannot reach the memory", self.life));
        }
        self.sleep(self.plan.hold).await;
        self.referee.leave(lock, self.life, mode, is_torn);
    }

    /// The words; none for a node that cannot reach the memory any more.
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

    /// Reads the words, and a writer writes them, one after the other.
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

/// What the first future comes to, unless the other one ends before.
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
