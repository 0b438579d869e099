//! What each lane of a load on locks does: its clients, and the audit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::{Batch, Completed, Lane};
use lotus_fabric::rpc::Service;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_fabric::verbs::VerbError;
use lotus_locks::local::{Access, Held as _};
use lotus_locks::{Client, Identity, Limits, LockSystem as _, Member, Mode, NotHeld, Roster, Wait};
use rand::Rng;

use super::{LockLoad, LockTally, LongReads, OBJECT, Shared, Times, offset_of_data};

/// Service by which lanes tell one another of resets.
const SERVICE: Service = Service(0);
/// Locks that the audit reads in one batch.
const AUDITED: u64 = 256;
/// Time after which a lane looks again whether the run has failed.
const LOOK: Duration = Duration::from_millis(10);
/// Findings that are told one by one.
const MAX_FINDINGS: usize = 10;

/// What a client is about to do.
struct Intent {
    lock: u64,
    mode: Mode,
    terms: u16,
    /// Time for which it holds the lock beside its verbs.
    stays: Duration,
    /// Whether it fails, and releases nothing.
    fails: bool,
}

impl Intent {
    fn draw<F>(shared: &Shared<F>, rng: &mut SmallRng) -> Self {
        let LockLoad { read_ratio, update_ratio, habits, .. } = &shared.load;
        let mut is_one_of = |share: f64| share > 0.0 && rng.random_bool(share);
        let (is_long, reads) = (is_one_of(habits.long_reads.share), is_one_of(*read_ratio));
        let fails = is_one_of(habits.failing);
        let mode = if reads || is_long {
            Mode::Shared
        } else if is_one_of(*update_ratio) {
            Mode::Update
        } else {
            Mode::Exclusive
        };
        let LongReads { time, terms, .. } = habits.long_reads;
        let (stays, terms) = if is_long { (time, terms.max(1)) } else { (Duration::ZERO, 1) };
        Self { lock: shared.chooser.draw(rng), mode, terms, stays, fails }
    }
}

/// Time from one moment to a later one, in nanoseconds.
fn nanos(from: Nanos, to: Nanos) -> u64 {
    to.0.saturating_sub(from.0)
}

/// A lane.
pub(super) struct Seat<A, F> {
    lane: Lane,
    client: A,
    shared: Arc<Shared<F>>,
    roster: Roster,
    /// Number of the lane among all that have clients.
    index: usize,
}

impl<A: Access, F: Fn() -> A::System + Send + Sync + 'static> Seat<A, F> {
    pub(super) fn open(
        executor: &mut Executor,
        fabric: &dyn Fabric,
        member: Member,
        lane: u16,
        roster: Roster,
        table: A::Table,
        shared: Arc<Shared<F>>,
    ) -> Result<Self, FabricError> {
        let index = usize::from(member.node.0 - 1) * usize::from(shared.load.threads);
        let index = index + usize::from(lane);
        let identity = Identity { member, peers: Rc::new(roster.clone()), service: SERVICE };
        let (client, lane) = Client::open((shared.make)(), executor, fabric, lane, identity)?;
        let client = A::of(client, table);
        client.keep_time(shared.clocks);
        Ok(Self { lane, client, shared, roster, index })
    }

    pub(super) fn client(&self) -> A {
        self.client.clone()
    }

    /// Whether something outside of the run has made it worthless. Then nothing is waited for: a
    /// client may ask for ever what nobody answers.
    fn has_failed(&self) -> bool {
        self.shared.progress.failure().is_some()
    }

    /// Whether the lane asks for no further lock: see [`Self::has_failed`] and
    /// [`Progress::ending_after`].
    ///
    /// [`Progress::ending_after`]: crate::drive::progress::Progress::ending_after
    fn is_over(&self) -> bool {
        self.has_failed() || self.shared.progress.is_complete(self.index)
    }

    /// The node that this lane has to take off the membership, and when.
    fn is_to_expel(&self) -> Option<(NodeId, Duration)> {
        let load = &self.shared.load;
        load.lost_node().zip(load.loses).filter(|_| self.index == 0)
    }

    /// Waits for a time, or until the run is over.
    async fn wait_until(&self, time: Nanos) {
        let executor = self.lane.executor();
        while executor.now() < time && !self.is_over() {
            executor.sleep_until(time.min(executor.now().after(LOOK))).await;
        }
    }

    /// Runs the lane's clients until the time is over, or the run has failed.
    pub(super) async fn run(self) -> LockTally {
        let executor = self.lane.executor().clone();
        let Times { begins, counts_from, ends } = self.shared.times;
        let clients = self.shared.load.coroutines;
        let seat = Rc::new(self);
        let tally = Rc::new(RefCell::new(LockTally::default()));
        let (running, is_quiet) = (Rc::new(Cell::new(clients)), Rc::new(Cell::new(false)));
        seat.wait_until(begins).await;
        if let Some((lost, after)) = seat.is_to_expel() {
            let seat = Rc::clone(&seat);
            executor.spawn(async move {
                seat.lane.executor().sleep_until(begins.after(after)).await;
                seat.roster.settle(lost);
            });
        }
        for number in 0..clients {
            let (seat, tally) = (Rc::clone(&seat), Rc::clone(&tally));
            let (running, is_quiet) = (Rc::clone(&running), Rc::clone(&is_quiet));
            executor.spawn(async move {
                seat.run_client(number, &tally).await;
                running.set(running.get() - 1);
                if running.get() == 0 {
                    // The last one sees to it that the lane has nothing outstanding.
                    seat.client.client().quiet().await;
                    is_quiet.set(true);
                }
            });
        }
        seat.wait_until(counts_from).await;
        let looks = || {
            let client = &seat.client;
            (client.client().counts(), seat.lane.counters(), client.transfers())
        };
        let before = looks();
        seat.wait_until(ends).await;
        let after = looks();
        while !is_quiet.get() && !seat.has_failed() {
            executor.sleep(Duration::from_micros(20)).await;
        }
        let mut tally = tally.take();
        for of_kind in [&tally.reader_ns, &tally.writer_ns] {
            tally.operation_ns.add(of_kind).expect("histograms of the same bounds add up");
        }
        tally.counts = after.0 - before.0;
        tally.verbs = after.1 - &before.1;
        tally.transfers = after.2 - before.2;
        tally
    }

    /// Runs one client until the time is over.
    async fn run_client(&self, number: u16, tally: &RefCell<LockTally>) {
        let at = self.lane.at();
        let stream = [at.node.0, at.lane.0, number].into_iter();
        let stream = stream.fold(0, |stream, part| stream << 16 | u64::from(part));
        let mut rng = self.lane.executor().env().rng(stream);
        let think = self.shared.load.habits.think;
        while self.lane.executor().now() < self.shared.times.ends && !self.is_over() {
            if let Err(why) = self.operate(&mut rng, tally).await {
                tally.borrow_mut().ended = Some(why);
                break;
            }
            if !think.is_zero() {
                self.lane.executor().sleep(think).await;
            }
        }
    }

    /// Takes one lock, uses what it protects, and releases it.
    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<LockTally>) -> Result<(), NotHeld> {
        let (shared, load) = (&*self.shared, &self.shared.load);
        let executor = self.lane.executor();
        let Intent { lock, mode: wanted, terms, stays, fails } = Intent::draw(shared, rng);
        let began = executor.now();
        let counts = began >= shared.times.counts_from;
        let arrival = shared.ledger.as_ref().map(|ledger| ledger.request(lock));
        let noted = shared.ledger.as_ref().zip(arrival);
        let until = load.patience.map_or(Nanos::NEVER, |patience| began.after(patience));
        let limits = Limits { wait: Wait::Until(until), terms };
        let mut hold = match self.client.acquire(shared.space.object(lock), wanted, limits).await {
            Ok(hold) => hold,
            Err(why) => {
                let tally = &mut *tally.borrow_mut();
                if let Some((ledger, arrival)) = noted {
                    tally.fairness = tally.fairness.max(ledger.give_up(lock, arrival));
                }
                return match why {
                    NotHeld::TimedOut | NotHeld::Reset => {
                        tally.refused += u64::from(counts);
                        Ok(())
                    }
                    other => Err(other),
                };
            }
        };
        let held = executor.now();
        let mode = self.mode(&hold);
        let is_leased = mode == Mode::Shared && self.client.client().system().has_leases();
        let fairness = noted.map(|(ledger, arrival)| match is_leased {
            true => ledger.enter_leased(lock, arrival),
            false => ledger.enter(lock, mode, wanted, arrival),
        });
        if !stays.is_zero() {
            executor.sleep(stays).await;
        }
        // Who does nothing inside leaves at once.
        let uses = load.section > 0 || wanted == Mode::Update;
        let used = if uses { self.use_lock(lock, &mut hold, wanted).await } else { Ok(()) };
        if let Some((ledger, _)) = noted {
            if !is_leased {
                ledger.leave(lock, self.mode(&hold));
            } else if ledger.was_written(lock) && self.client.is_valid(&hold) {
                // A lease that lasts now has lasted all the time.
                ledger.clash();
            }
        }
        used?;
        if fails {
            self.client.forget(hold);
            tally.borrow_mut().failed += u64::from(counts);
            return Ok(());
        }
        let leaves = if uses || !stays.is_zero() { executor.now() } else { held };
        let released = self.client.release(hold).await;
        let ended = executor.now();
        shared.progress.tick(self.index, ended.0, true);
        let tally = &mut *tally.borrow_mut();
        tally.fairness = tally.fairness.max(fairness.unwrap_or_default());
        let was_lost = released == Err(NotHeld::Reset);
        if counts && was_lost {
            tally.refused += 1;
        } else if counts {
            let acquire_ns = nanos(began, held);
            tally.operations += 1;
            tally.acquire_ns.saturating_record(acquire_ns);
            tally.released.record(nanos(leaves, ended));
            let (acquire, of_kind) = match wanted {
                Mode::Shared => (&mut tally.reader_acquire, &mut tally.reader_ns),
                _ => (&mut tally.writer_acquire, &mut tally.writer_ns),
            };
            acquire.record(acquire_ns);
            of_kind.saturating_record(nanos(began, ended));
            if shared.hottest == Some(lock) {
                tally.hottest_ns.saturating_record(acquire_ns);
            }
        }
        if was_lost { Ok(()) } else { released }
    }

    /// Mode in which a lock is held, as others have to respect it.
    fn mode(&self, hold: &A::Held) -> Mode {
        match hold.mode() {
            Mode::Update if !self.client.client().system().promises().upgrades => Mode::Exclusive,
            mode => mode,
        }
    }

    /// The verbs for whose sake the lock is taken.
    async fn use_lock(&self, lock: u64, hold: &mut A::Held, wanted: Mode) -> Result<(), NotHeld> {
        let (load, system) = (&self.shared.load, self.client.client().system());
        let data = hold.at().plus(offset_of_data(system));
        let reads = match wanted {
            Mode::Shared => load.section,
            Mode::Update => load.section / 2,
            Mode::Exclusive => 0,
        };
        for _ in 0..reads {
            let mut batch = self.lane.batch();
            let words = batch.read(data, load.object_bytes as usize);
            let done = self.post(batch).await?;
            if let Some(ledger) = self.shared.ledger.as_ref().filter(|_| self.is_valid(hold)) {
                ledger.read(lock, done.words(words));
            }
        }
        if wanted == Mode::Update && !self.upgrade(lock, hold).await? {
            return Ok(());
        }
        let writes = load.section - reads;
        // Without verbs inside, nothing shows which writer was the last.
        let ledger = self.shared.ledger.as_ref().filter(|_| writes > 0);
        let value = ledger.map(|ledger| ledger.next_value(lock));
        for _ in 0..writes {
            let mut batch = self.lane.batch();
            let buffer = batch.stage(load.object_bytes as usize);
            batch.words_mut(buffer).fill(value.unwrap_or(1));
            batch.write(data, buffer);
            self.post(batch).await?;
        }
        Ok(())
    }

    /// Upgrades a lock, unless it is being reset.
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

    async fn post(&self, batch: Batch) -> Result<Completed, NotHeld> {
        batch.post().await.map_err(|failed| match failed.first().error {
            VerbError::Revoked => NotHeld::Expelled,
            _ => NotHeld::Unavailable,
        })
    }

    /// Whether a holder may rely on its lock still: without leases it may until its release.
    fn is_valid(&self, hold: &A::Held) -> bool {
        !self.client.client().system().has_leases() || self.client.is_valid(hold)
    }

    /// Looks at every lock, and at what it protects; returns what is wrong, or a sentence if they
    /// cannot be read.
    pub(super) async fn audit(self) -> Result<Vec<String>, String> {
        let (shared, mut findings) = (&*self.shared, Vec::new());
        let mut wrong = 0_u64;
        for first in (0..shared.load.count).step_by(AUDITED as usize) {
            let locks = first..shared.load.count.min(first + AUDITED);
            let mut batch = self.lane.batch();
            let offset = offset_of_data(self.client.client().system());
            let buffers: Vec<_> = locks
                .map(|lock| {
                    let object = shared.space.object(lock);
                    let words = batch.read(object, OBJECT as usize);
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
                let is_free = self.client.client().system().is_unused([head, claim]);
                if is_free && value == written {
                    continue;
                }
                wrong += 1;
                if findings.len() < MAX_FINDINGS {
                    let found = format!("lock {lock}: {head:#x}, {claim:#x}");
                    findings.push(format!("{found}; {value} was written, {written} should be"));
                }
            }
        }
        if wrong > MAX_FINDINGS as u64 {
            findings.push(format!("and {} more", wrong - MAX_FINDINGS as u64));
        }
        Ok(findings)
    }
}
