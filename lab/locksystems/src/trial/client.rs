//! The clients of a trial, and the audit.

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
use lotus_locks::word::Mode;
use lotus_locks::{Limits, LockSpace, LockSystem, Member, NotHeld, Peers, Roster, Wait};
use rand::Rng;

use super::{LaneReport, Losses, Referee, Settings, offset_of_words};
use crate::local::{Access, Held as _};

/// Pause of a client after an answer that the memory node is unavailable.
const UNAVAILABLE: Duration = Duration::from_micros(200);

/// A lane's state in a trial.
pub(super) struct LaneContext<A> {
    pub(super) client: A,
    pub(super) lane: Lane,
    pub(super) member: Member,
    pub(super) roster: Roster,
    pub(super) space: LockSpace,
    pub(super) referee: Arc<Referee>,
    pub(super) losses: Arc<Losses>,
    pub(super) settings: Settings,
}

/// Runs the clients of a lane to their ends.
pub(super) async fn run<A: Access>(context: LaneContext<A>) -> LaneReport {
    let executor = context.lane.executor().clone();
    let clients = context.settings.clients;
    let context = Rc::new(context);
    let report = Rc::new(Cell::new(LaneReport::default()));
    let running = Rc::new(Cell::new(clients));
    for client in 0..clients {
        let (context, report, running) =
            (Rc::clone(&context), Rc::clone(&report), Rc::clone(&running));
        executor.spawn(async move {
            let stream = u64::from(context.member.node.0) << 32
                | u64::from(context.lane.at().lane.0) << 16
                | u64::from(client);
            let mut rng = context
                .lane
                .executor()
                .env()
                .rng(stream ^ u64::from(context.member.life.incarnation()) << 48);
            let mut left = context.settings.rounds;
            while left > 0 {
                match context.round(&mut rng, &report).await {
                    Err(NotHeld::Expelled) => break,
                    // The round is repeated when the memory node is back.
                    Err(NotHeld::Unavailable) => {
                        context.lane.executor().sleep(UNAVAILABLE).await;
                    }
                    _ => left -= 1,
                }
            }
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        executor.sleep(Duration::from_micros(50)).await;
    }
    let client = context.client.client();
    client.quiet().await;
    LaneReport { counts: client.counts(), transfers: context.client.transfers(), ..report.get() }
}

/// A random time up to `most`.
fn up_to(most: Duration, rng: &mut SmallRng) -> Duration {
    rng.random_range(Duration::ZERO..=most)
}

/// How a request waits.
#[derive(Clone, Copy)]
enum Manner {
    Refused,
    Hurried(Duration),
    Dropped(Duration),
    Patient,
}

impl Manner {
    fn drawn(settings: &Settings, rng: &mut SmallRng) -> Self {
        let kind: f64 = rng.random();
        let hurry = up_to(settings.hurry, rng);
        if kind < settings.refusing {
            Self::Refused
        } else if kind < settings.refusing + settings.hurried {
            Self::Hurried(hurry)
        } else if kind > 1.0 - settings.dropped {
            Self::Dropped(hurry)
        } else {
            Self::Patient
        }
    }

    fn wait(self, now: Nanos) -> Wait {
        match self {
            Self::Refused => Wait::No,
            Self::Hurried(hurry) => Wait::Until(now.after(hurry)),
            Self::Dropped(_) | Self::Patient => Wait::Until(Nanos::NEVER),
        }
    }
}

/// Steps of a client with a lock.
struct Plan {
    wanted: Mode,
    /// Time for which the holder only reads.
    hold: Duration,
    /// Attempts to upgrade an update lock, in order.
    upgrades: Vec<Manner>,
}

impl Plan {
    fn drawn(settings: &Settings, rng: &mut SmallRng) -> Self {
        let wanted = if rng.random_bool(settings.shared) {
            Mode::Shared
        } else if settings.updates > 0.0 && rng.random_bool(settings.updates) {
            Mode::Update
        } else {
            Mode::Exclusive
        };
        // Some clients leave without an attempt.
        let tries = if wanted == Mode::Update { rng.random_range(0..=3) } else { 0 };
        let upgrades = (0..tries).map(|_| Manner::drawn(settings, rng)).collect();
        Self { wanted, hold: Duration::ZERO, upgrades }
    }
}

impl<A: Access> LaneContext<A> {
    async fn round(&self, rng: &mut SmallRng, report: &Cell<LaneReport>) -> Result<(), NotHeld> {
        let settings = &self.settings;
        let executor = self.lane.executor();
        executor.sleep(up_to(settings.think, rng)).await;
        let lock = rng.random_range(0..settings.locks);
        let mut plan = Plan::drawn(settings, rng);
        let manner = Manner::drawn(settings, rng);
        let terms = rng.random_range(1..=settings.terms);
        let wait = manner.wait(executor.now());
        let limits = Limits { wait, terms };
        let asked = self.client.acquire(self.space.object(lock), plan.wanted, limits);
        let mut hold = match self.patiently(manner, asked).await {
            None => return Ok(()),
            Some(Ok(hold)) => hold,
            Some(Err(why)) => {
                self.refused(lock, why, wait, report);
                return Err(why);
            }
        };
        plan.hold = up_to(settings.hold, rng);
        self.use_lock(lock, &mut hold, plan, report).await;
        let released = self.client.release(hold).await;
        let mut now = report.get();
        now.lost += u64::from(released == Err(NotHeld::Reset));
        report.set(now);
        released.inspect_err(|why| self.expect(lock, false, *why))
    }

    /// Awaits a request; `None` for a dropped request.
    async fn patiently<T>(&self, manner: Manner, request: impl Future<Output = T>) -> Option<T> {
        match manner {
            Manner::Dropped(hurry) => within(&self.lane, hurry, request).await,
            _ => Some(request.await),
        }
    }

    /// Records a refused request.
    fn refused(&self, lock: u64, why: NotHeld, wait: Wait, report: &Cell<LaneReport>) {
        let mut now = report.get();
        now.refused += 1;
        if let (NotHeld::TimedOut, Wait::Until(deadline)) = (why, wait) {
            now.late = now.late.max(self.lane.executor().now().since(deadline));
        }
        report.set(now);
        self.expect(lock, matches!(why, NotHeld::TimedOut | NotHeld::Conflict), why);
    }

    /// Judges an error; in a calm trial only the request itself may be the reason.
    fn expect(&self, lock: u64, is_expected: bool, why: NotHeld) {
        let is_expected = is_expected || self.settings.may_reset && why == NotHeld::Reset;
        if self.settings.is_calm && !is_expected {
            self.referee.violate(format!("lock {lock}, without any fault: {why}"));
        }
    }

    /// Reads and writes the words that a lock protects.
    async fn use_lock(&self, lock: u64, hold: &mut A::Held, plan: Plan, report: &Cell<LaneReport>) {
        let (referee, life) = (&self.referee, self.member.life);
        let mode = match hold.mode() {
            Mode::Update if !self.client.client().system().guarantees().upgrades => Mode::Exclusive,
            mode => mode,
        };
        if mode == Mode::Shared && self.client.client().system().has_leases() {
            return self.read_leased(lock, hold, plan).await;
        }
        referee.enter(lock, life, mode);
        let left = Left { referee, lock, life, mode: Cell::new(mode), tears: Cell::new(false) };
        let words = hold.at().plus(offset_of_words(self.client.client().system()));
        let Some(before) = self.read(words).await else { return };
        referee.judge(lock, life, before);
        self.lane.executor().sleep(plan.hold).await;
        let writes = match plan.wanted {
            Mode::Shared => false,
            Mode::Update => self.upgrade(lock, hold, &plan.upgrades, report).await,
            Mode::Exclusive => true,
        };
        if writes && left.mode.get() == Mode::Update {
            referee.upgrade(lock, life);
            left.mode.set(Mode::Exclusive);
        }
        if plan.wanted != Mode::Exclusive {
            let Some(after) = self.read(words).await else { return };
            if after != before {
                referee.judge(lock, life, after);
                let changed = format!("lock {lock}: {before:?} became {after:?} under a reader");
                if self.client.is_valid(hold) {
                    referee.violate(changed);
                }
            }
        }
        if writes {
            self.write(lock, words, before[0].max(before[1]) + 1, &left).await;
        }
    }

    /// Reads a lock's words under a lease, and trusts them only if the lease is still valid
    /// afterwards.
    async fn read_leased(&self, lock: u64, hold: &A::Held, plan: Plan) {
        let (referee, life) = (&self.referee, self.member.life);
        let began = referee.begin_leased(lock);
        let _left = LeftLeased { referee, lock };
        let words = hold.at().plus(offset_of_words(self.client.client().system()));
        let Some(before) = self.read(words).await else { return };
        self.lane.executor().sleep(plan.hold).await;
        let Some(after) = self.read(words).await else { return };
        // The complaint is computed before the validity check: in the other order, the lease might
        // end in between.
        let complaint = referee.complaint(lock, life, after);
        let was_written = referee.was_written_since(lock, life, began);
        if !self.client.is_valid(hold) {
            return;
        }
        complaint.into_iter().for_each(|complaint| referee.violate(complaint));
        if was_written {
            referee.violate(format!("lock {lock}: {life:?} reads it beside a writer"));
        }
        if before != after {
            referee.violate(format!("lock {lock}: {before:?} became {after:?} under a reader"));
        }
    }

    /// Tries to make an update lock exclusive.
    async fn upgrade(
        &self,
        lock: u64,
        hold: &mut A::Held,
        tries: &[Manner],
        report: &Cell<LaneReport>,
    ) -> bool {
        for manner in tries {
            let wait = manner.wait(self.lane.executor().now());
            match self.patiently(*manner, hold.upgrade(wait)).await {
                Some(Ok(())) => return true,
                Some(Err(why)) => self.refused(lock, why, wait, report),
                None => {}
            }
        }
        false
    }

    /// Writes both words.
    async fn write(&self, lock: u64, words: RemoteAddr, value: u64, left: &Left<'_>) {
        left.tears.set(true);
        for word in [words, words.plus(8)] {
            let mut batch = self.lane.batch();
            batch.write_word(word, value);
            if batch.post().await.is_err() {
                return self.settle(word.node()).await;
            }
        }
        left.tears.set(false);
        self.referee.wrote(lock, self.member.life, value);
    }

    /// Waits until no write of the lane can land any more: the lock must not be released before.
    async fn settle(&self, node: NodeId) {
        let is_unreachable = async || {
            let reconnected = self.lane.reconnect(node).await;
            // Writes to lost memory are lost as well.
            reconnected == Err(VerbError::Unreachable) && !self.losses.is_on()
        };
        while is_unreachable().await {
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

/// Tells the referee that a client gives up its lock, however the use ends.
struct Left<'a> {
    referee: &'a Referee,
    lock: u64,
    life: lotus_locks::word::Claimant,
    mode: Cell<Mode>,
    /// Whether the use ends between the two writes.
    tears: Cell<bool>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.referee.leave(self.lock, self.life, self.mode.get(), self.tears.get());
    }
}

/// Tells the referee that a leased read is over, however it ends.
struct LeftLeased<'a> {
    referee: &'a Referee,
    lock: u64,
}

impl Drop for LeftLeased<'_> {
    fn drop(&mut self) {
        self.referee.end_leased(self.lock);
    }
}

/// Result of `future`; `None` if it takes longer than `time`, and `future` is dropped.
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

/// Writes the initial word of each lock.
pub(super) async fn prepare<A: Access>(context: &LaneContext<A>) {
    for lock in 0..context.settings.locks {
        let mut written = false;
        while !written {
            let mut batch = context.lane.batch();
            let object = context.space.object(lock);
            let is_second = A::System::TWO_WORDS || A::System::WIDE;
            let word = if is_second { object.plus(8) } else { object };
            batch.write_word(word, context.settings.first_word);
            written = batch.post().await.is_ok();
            if !written {
                context.settle(context.settings.memory).await;
            }
        }
    }
}

/// Takes each lock once, and checks the lock's words and the state after its release.
pub(super) async fn audit<A: Access>(context: &LaneContext<A>) {
    let until = context.lane.executor().now().after(context.settings.audit);
    for lock in 0..context.settings.locks {
        if let Err(why) = context.audit(lock, until).await {
            context.referee.violate(format!("lock {lock} in the end: {why}"));
        }
    }
}

impl<A: Access> LaneContext<A> {
    /// Takes a lock, trying again whenever the memory node does not answer.
    async fn audit(&self, lock: u64, until: Nanos) -> Result<(), String> {
        let object = self.space.object(lock);
        let executor = self.lane.executor();
        let mut hold = loop {
            let limits = Limits { wait: Wait::Until(until), terms: 1 };
            match self.client.acquire(object, Mode::Exclusive, limits).await {
                Ok(hold) => break hold,
                Err(NotHeld::Unavailable) if executor.now() < until => {}
                Err(why) => return Err(why.to_string()),
            }
        };
        let wanted = Mode::Exclusive;
        let plan = Plan { wanted, hold: Duration::ZERO, upgrades: Vec::new() };
        self.use_lock(lock, &mut hold, plan, &Cell::default()).await;
        let released = self.client.release(hold).await;
        released.map_err(|why| why.to_string())?;
        self.client.client().quiet().await;
        loop {
            let words = self.read(object).await;
            if let Some(words @ [_, claim]) = words {
                // Another node may be about to end its claim. A node lost between its claim and its
                // mark, or after freeing the head, leaves the claim to the next resetter.
                let system = self.client.client().system();
                let claimant = system.head().and_then(|_| lotus_locks::word::Claim::of(claim).by());
                let is_claimed = claimant.is_some_and(|life| !self.roster.is_settled(life));
                if system.is_unused(words) && !is_claimed {
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
