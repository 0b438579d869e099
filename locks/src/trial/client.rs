//! What each client of a trial does, and what its audit looks at.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::verbs::VerbError;
use rand::Rng;

use super::{LaneReport, Referee, Settings, words_of};
use crate::client::{Client, Hold, Limits, Roster, Wait};
use crate::contract::{LockSpace, LockSystem, Member, NotHeld, Peers};
use crate::word::Mode;

/// A lane's place in a trial.
pub(super) struct Seat<S: LockSystem> {
    pub(super) client: Client<S>,
    pub(super) lane: Lane,
    pub(super) member: Member,
    pub(super) roster: Roster,
    pub(super) space: LockSpace,
    pub(super) referee: Arc<Referee>,
    pub(super) settings: Settings,
}

/// Runs the clients of a lane to their ends.
pub(super) async fn run<S: LockSystem>(seat: Seat<S>) -> LaneReport {
    let executor = seat.lane.executor().clone();
    let clients = seat.settings.clients;
    let seat = Rc::new(seat);
    let report = Rc::new(Cell::new(LaneReport::default()));
    let running = Rc::new(Cell::new(clients));
    for client in 0..clients {
        let (seat, report, running) = (Rc::clone(&seat), Rc::clone(&report), Rc::clone(&running));
        executor.spawn(async move {
            let stream = u64::from(seat.member.node.0) << 32
                | u64::from(seat.lane.at().lane.0) << 16
                | u64::from(client);
            let mut rng = seat
                .lane
                .executor()
                .env()
                .rng(stream ^ u64::from(seat.member.life.incarnation()) << 48);
            for _ in 0..seat.settings.rounds {
                if seat.round(&mut rng, &report).await == Err(NotHeld::Expelled) {
                    break;
                }
            }
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        executor.sleep(Duration::from_micros(50)).await;
    }
    seat.client.quiet().await;
    LaneReport { counts: seat.client.counts(), ..report.get() }
}

/// A random time up to `most`.
fn up_to(most: Duration, rng: &mut SmallRng) -> Duration {
    rng.random_range(Duration::ZERO..=most)
}

impl<S: LockSystem> Seat<S> {
    async fn round(&self, rng: &mut SmallRng, report: &Cell<LaneReport>) -> Result<(), NotHeld> {
        let settings = &self.settings;
        let executor = self.lane.executor();
        executor.sleep(up_to(settings.think, rng)).await;
        let lock = rng.random_range(0..settings.locks);
        let shared = rng.random_bool(settings.shared);
        let wanted = if shared { Mode::Shared } else { Mode::Exclusive };
        let kind: f64 = rng.random();
        let hurry = up_to(settings.hurry, rng);
        let terms = rng.random_range(1..=settings.terms);
        let deadline = executor.now().after(hurry);
        let wait = if kind < settings.refusing {
            Wait::No
        } else if kind < settings.refusing + settings.hurried {
            Wait::Until(deadline)
        } else {
            Wait::Until(Nanos::NEVER)
        };
        let is_dropped = kind > 1.0 - settings.dropped;
        let asked = self.client.acquire(self.space.object(lock), wanted, Limits { wait, terms });
        let hold = match is_dropped {
            true => match within(&self.lane, hurry, asked).await {
                Some(hold) => hold,
                None => return Ok(()),
            },
            false => asked.await,
        };
        let hold = match hold {
            Ok(hold) => hold,
            Err(why) => {
                let mut now = report.get();
                now.refused += 1;
                if why == NotHeld::TimedOut {
                    now.late = now.late.max(executor.now().since(deadline));
                }
                report.set(now);
                self.expect(lock, matches!(why, NotHeld::TimedOut | NotHeld::Conflict), why);
                return Err(why);
            }
        };
        self.use_lock(lock, &hold, wanted, up_to(settings.hold, rng)).await;
        let released = self.client.release(hold).await;
        let mut now = report.get();
        now.lost += u64::from(released == Err(NotHeld::Reset));
        report.set(now);
        released.inspect_err(|why| self.expect(lock, false, *why))
    }

    /// Judges an error, where nothing but the request may be its reason.
    fn expect(&self, lock: u64, is_expected: bool, why: NotHeld) {
        if self.settings.is_calm && !is_expected {
            self.referee.violate(format!("lock {lock}, without any fault: {why}"));
        }
    }

    /// Uses what a lock protects.
    async fn use_lock(&self, lock: u64, hold: &Hold<S>, wanted: Mode, time: Duration) {
        let (referee, life, mode) = (&self.referee, self.member.life, hold.mode());
        referee.enter(lock, life, mode);
        let left = Left { referee, lock, life, mode, tears: Cell::new(false) };
        let words = words_of(hold.at());
        let Some(before) = self.read(words).await else { return };
        referee.judge(lock, life, before);
        self.lane.executor().sleep(time).await;
        if wanted == Mode::Shared {
            let Some(after) = self.read(words).await else { return };
            if after != before {
                referee.judge(lock, life, after);
                let changed = format!("lock {lock}: {before:?} became {after:?} under a reader");
                if self.client.is_valid(hold) {
                    referee.violate(changed);
                }
            }
            return;
        }
        let value = before[0].max(before[1]) + 1;
        left.tears.set(true);
        for word in [words, words.plus(8)] {
            let mut batch = self.lane.batch();
            batch.write_word(word, value);
            if batch.post().await.is_err() {
                return self.settle(word.node()).await;
            }
        }
        left.tears.set(false);
        referee.wrote(lock, life, value);
    }

    /// Returns when no write of this lane can land any more: the lock must not be released before.
    async fn settle(&self, node: NodeId) {
        while self.lane.reconnect(node).await == Err(VerbError::Unreachable) {
            self.lane.executor().sleep(Duration::from_micros(100)).await;
        }
    }

    async fn read(&self, words: RemoteAddr) -> Option<[u64; 2]> {
        let mut batch = self.lane.batch();
        let buffer = batch.read(words, 16);
        let done = batch.post().await.ok()?;
        done.words(buffer).try_into().ok()
    }
}

/// Tells the referee that a client gives up its lock, however it ends.
struct Left<'a> {
    referee: &'a Referee,
    lock: u64,
    life: crate::word::Claimant,
    mode: Mode,
    /// Whether it ends between its two writes.
    tears: Cell<bool>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.referee.leave(self.lock, self.life, self.mode, self.tears.get());
    }
}

/// Result of `future`, unless it takes longer than `time`; then it is dropped.
async fn within<T>(lane: &Lane, time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let executor = lane.executor();
    let until = executor.now().after(time);
    let mut future = pin!(future);
    let mut is_armed = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(result) = future.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if executor.now() >= until {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut is_armed, true) {
            executor.wake_at(until, executor.current());
        }
        Poll::Pending
    })
    .await
}

/// Writes the word with which each lock begins.
pub(super) async fn prepare<S: LockSystem>(seat: &Seat<S>) {
    for lock in 0..seat.settings.locks {
        let mut written = false;
        while !written {
            let mut batch = seat.lane.batch();
            batch.write_word(seat.space.object(lock), seat.settings.first_word);
            written = batch.post().await.is_ok();
            if !written {
                seat.settle(seat.settings.memory).await;
            }
        }
    }
}

/// Takes each lock once, and looks at what it protects and at what it leaves.
pub(super) async fn audit<S: LockSystem>(seat: &Seat<S>, patience: Duration) {
    let until = seat.lane.executor().now().after(patience);
    for lock in 0..seat.settings.locks {
        if let Err(why) = seat.audit(lock, until).await {
            seat.referee.violate(format!("lock {lock} in the end: {why}"));
        }
    }
}

impl<S: LockSystem> Seat<S> {
    /// Takes a lock, as often as the memory node does not answer.
    async fn audit(&self, lock: u64, until: Nanos) -> Result<(), String> {
        let object = self.space.object(lock);
        let executor = self.lane.executor();
        let hold = loop {
            let limits = Limits { wait: Wait::Until(until), terms: 1 };
            match self.client.acquire(object, Mode::Exclusive, limits).await {
                Ok(hold) => break hold,
                Err(NotHeld::Unavailable) if executor.now() < until => {}
                Err(why) => return Err(why.to_string()),
            }
        };
        self.use_lock(lock, &hold, Mode::Exclusive, Duration::ZERO).await;
        let released = self.client.release(hold).await;
        released.map_err(|why| why.to_string())?;
        self.client.quiet().await;
        loop {
            let words = self.read(object).await;
            if let Some([head, claim]) = words {
                // Another node may be about to end its claim. One that was lost between its claim
                // and its mark, or after it has freed the head, leaves it to the next resetter.
                let claimant = crate::word::Claim::of(claim).by();
                let is_claimed = claimant.is_some_and(|life| !self.roster.is_settled(life));
                if self.client.system().is_free(head) && !is_claimed {
                    return Ok(());
                }
            }
            if executor.now() >= until {
                return Err(format!("it is {words:x?}"));
            }
            self.settle(object.node()).await;
        }
    }
}
