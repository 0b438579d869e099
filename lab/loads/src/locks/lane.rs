//! Work of each lane of a load on locks: the lane's clients, and the audit.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::lane::Lane;
use lotus_locks::{Limits, LockSystem as _, Mode, NotHeld, Wait};
use lotus_locksystems::local::{Access, Held as _};
use rand::Rng;

use super::operation::{Operation, post};
use super::{LockLoad, LockTally, LongReads, Shared};
use crate::lanes::{Findings, LaneClient, Load, Mark, Work, offset_of_data};

/// Number of locks that the audit reads in one batch.
const AUDITED: u64 = 256;
/// The next operation of a client.
pub(super) struct Intent {
    pub(super) lock: u64,
    pub(super) mode: Mode,
    terms: u16,
    /// Time for which the client holds the lock beside its verbs.
    pub(super) stays: Duration,
    /// Whether the client fails, and does not release the lock.
    fails: bool,
}

impl Intent {
    /// Draws the next intent of a client, `elapsed` after the first request.
    pub(super) fn draw(shared: &Shared, elapsed: Duration, rng: &mut SmallRng) -> Self {
        let LockLoad { count, hot, read_ratio, update_ratio, behaviour, .. } = &shared.load;
        let mut is_one_of = |share: f64| share > 0.0 && rng.random_bool(share);
        let (is_long, reads) = (is_one_of(behaviour.long_reads.share), is_one_of(*read_ratio));
        let fails = is_one_of(behaviour.failing);
        let mode = if reads || is_long {
            Mode::Shared
        } else if is_one_of(*update_ratio) {
            Mode::Update
        } else {
            Mode::Exclusive
        };
        let LongReads { time, terms, .. } = behaviour.long_reads;
        let (stays, terms) = if is_long { (time, terms.max(1)) } else { (Duration::ZERO, 1) };
        let lock = match hot {
            None => shared.chooser.draw(rng),
            Some(hot) => hot.draw(*count, elapsed, rng),
        };
        Self { lock, mode, terms, stays, fails }
    }
}

/// A lane that uses locks.
pub(super) struct Locking<A: Access> {
    context: LaneClient<A>,
    shared: Arc<Shared>,
}

impl Load for Arc<Shared> {
    type Tally = LockTally;
    type Work<A: Access> = Locking<A>;

    fn work<A: Access>(&self, context: LaneClient<A>) -> Locking<A> {
        Locking::new(context, Self::clone(self))
    }
}

impl<A: Access> Work for Locking<A> {
    type Access = A;
    type Tally = LockTally;
    type Failed = NotHeld;

    fn context(&self) -> &LaneClient<A> {
        &self.context
    }

    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<LockTally>) -> Result<(), NotHeld> {
        self.use_one(rng, tally).await?;
        let think = self.shared.load.behaviour.think;
        if !think.is_zero() {
            self.context.executor().sleep(think).await;
        }
        Ok(())
    }

    fn mark(self: &Rc<Self>, mark: Mark, tally: &mut LockTally) {
        match mark {
            Mark::Begin => expel_the_lost(self, &self.shared),
            Mark::From | Mark::To => {}
            Mark::End => tally.put_together(),
        }
    }
}

/// Removes the lost node from the membership at the configured time, if this is the first lane.
pub(super) fn expel_the_lost<W: Work>(work: &Rc<W>, shared: &Shared) {
    let load = &shared.load;
    let expelled = load.lost_node().zip(load.loses).filter(|_| work.context().is_first());
    if let Some((lost, after)) = expelled {
        let work = Rc::clone(work);
        let time = work.context().times().begins.after(after);
        work.context().executor().clone().spawn(async move {
            work.context().executor().sleep_until(time).await;
            work.context().run_context().roster().settle(lost);
        });
    }
}

impl<A: Access> Locking<A> {
    pub(super) fn new(context: LaneClient<A>, shared: Arc<Shared>) -> Self {
        Self { context, shared }
    }

    /// Takes one lock, uses the protected data, and releases the lock.
    async fn use_one(&self, rng: &mut SmallRng, tally: &RefCell<LockTally>) -> Result<(), NotHeld> {
        let (shared, load) = (&*self.shared, &self.shared.load);
        let executor = self.context.executor();
        let began = executor.now();
        let elapsed = began.since(self.context.times().begins);
        let Intent { lock, mode: wanted, terms, stays, fails } = Intent::draw(shared, elapsed, rng);
        let counts = began >= self.context.times().counts_from;
        let arrival = shared.ledger.as_ref().map(|ledger| ledger.request(lock));
        let noted = shared.ledger.as_ref().zip(arrival);
        let until = load.patience.map_or(Nanos::NEVER, |patience| began.after(patience));
        let limits = Limits { wait: Wait::Until(until), terms };
        let mut hold =
            match self.context.client().acquire(shared.space.object(lock), wanted, limits).await {
                Ok(hold) => hold,
                Err(why) => {
                    let tally = &mut *tally.borrow_mut();
                    return shared.tally_refusal(tally, lock, arrival, counts, why);
                }
            };
        let held = executor.now();
        let mode = self.mode(&hold);
        let is_leased =
            mode == Mode::Shared && self.context.client().client().system().has_leases();
        let fairness = noted.map(|(ledger, arrival)| match is_leased {
            true => ledger.enter_leased(lock, arrival),
            false => ledger.enter(lock, mode, wanted, arrival),
        });
        if !stays.is_zero() {
            executor.sleep(stays).await;
        }
        // A client without work under the lock leaves at once.
        let uses = load.section > 0 || wanted == Mode::Update;
        let used = if uses { self.use_lock(lock, &mut hold, wanted).await } else { Ok(()) };
        if let Some((ledger, _)) = noted {
            if !is_leased {
                ledger.leave(lock, self.mode(&hold));
            } else if ledger.was_written(lock) && self.context.client().is_valid(&hold) {
                // A lease that is valid now was valid all the time.
                ledger.clash();
            }
        }
        used?;
        if fails {
            self.context.client().forget(hold);
            tally.borrow_mut().failed += u64::from(counts);
            return Ok(());
        }
        let leaves = if uses || !stays.is_zero() { executor.now() } else { held };
        let released = self.context.client().release(hold).await;
        let ended = executor.now();
        self.context.tick(began, ended);
        let operation = Operation { lock, wanted, began, held, leaves, ended };
        shared.tally(&mut tally.borrow_mut(), &operation, counts, fairness, released)
    }

    /// Mode of a held lock as other clients have to respect it.
    fn mode(&self, hold: &A::Held) -> Mode {
        match hold.mode() {
            Mode::Update if !self.context.client().client().system().guarantees().upgrades => {
                Mode::Exclusive
            }
            mode => mode,
        }
    }

    /// Posts the verbs for which the lock is taken.
    async fn use_lock(&self, lock: u64, hold: &mut A::Held, wanted: Mode) -> Result<(), NotHeld> {
        let (load, system) = (&self.shared.load, self.context.client().client().system());
        let data = hold.at().plus(offset_of_data(system));
        let reads = match wanted {
            Mode::Shared => load.section,
            Mode::Update => load.section / 2,
            Mode::Exclusive => 0,
        };
        for _ in 0..reads {
            let mut batch = self.context.lane().batch();
            let words = batch.read(data, load.object_bytes as usize);
            let done = post(batch).await?;
            if let Some(ledger) = self.shared.ledger.as_ref().filter(|_| self.is_valid(hold)) {
                ledger.read(lock, done.words(words));
            }
        }
        if wanted == Mode::Update && !self.upgrade(lock, hold).await? {
            return Ok(());
        }
        let writes = load.section - reads;
        // Without verbs under the lock, no word shows which writer was the last.
        let ledger = self.shared.ledger.as_ref().filter(|_| writes > 0);
        let value = ledger.map(|ledger| ledger.next_value(lock));
        for _ in 0..writes {
            let mut batch = self.context.lane().batch();
            let buffer = batch.stage(load.object_bytes as usize);
            batch.words_mut(buffer).fill(value.unwrap_or(1));
            batch.write(data, buffer);
            post(batch).await?;
        }
        Ok(())
    }

    /// Upgrades a lock; returns false if the lock is being reset.
    async fn upgrade(&self, lock: u64, hold: &mut A::Held) -> Result<bool, NotHeld> {
        let before = self.mode(hold);
        match hold.upgrade(Wait::Until(Nanos::NEVER)).await {
            Ok(()) => {}
            Err(NotHeld::Reset) => return Ok(false),
            Err(why) => return Err(why),
        }
        if let Some(ledger) = self.shared.ledger.as_ref().filter(|_| before == Mode::Update) {
            ledger.upgrade(lock);
        }
        Ok(true)
    }

    /// Whether a holder may still rely on its lock. Without leases, a lock is valid until its
    /// release.
    fn is_valid(&self, hold: &A::Held) -> bool {
        !self.context.client().client().system().has_leases()
            || self.context.client().is_valid(hold)
    }

    /// Audits every lock and the data that it protects; returns findings, or a sentence if the
    /// locks cannot be read.
    pub(super) async fn audit(self) -> Result<Vec<String>, String> {
        let system = self.context.client().client().system();
        let offset = offset_of_data(system);
        let is_free = |words| system.is_unused(words);
        audit(self.context.lane(), &self.shared, offset, is_free).await
    }
}

/// Audits the words of every lock, and the protected data, which lies `offset` bytes further.
pub(super) async fn audit(
    lane: &Lane,
    shared: &Shared,
    offset: u64,
    is_free: impl Fn([u64; 2]) -> bool,
) -> Result<Vec<String>, String> {
    let mut findings = Findings::default();
    for first in (0..shared.load.count).step_by(AUDITED as usize) {
        let locks = first..shared.load.count.min(first + AUDITED);
        let mut batch = lane.batch();
        let buffers: Vec<_> = locks
            .map(|lock| {
                let object = shared.space.object(lock);
                let words = batch.read(object, 16);
                (lock, words, batch.read(object.plus(offset), 8))
            })
            .collect();
        let done = batch.post().await;
        let done = done.map_err(|error| format!("the locks cannot be read: {error}"))?;
        for (lock, words, data) in buffers {
            let [head, claim] = *done.words(words) else { unreachable!("two words") };
            let value = done.words(data)[0];
            let ledger = shared.ledger.as_ref();
            let written = ledger.map_or(value, |ledger| ledger.written(lock));
            if is_free([head, claim]) && value == written {
                continue;
            }
            findings.add(|| {
                let found = format!("lock {lock}: {head:#x}, {claim:#x}");
                format!("{found}; {value} was written, {written} should be")
            });
        }
    }
    Ok(findings.told())
}
