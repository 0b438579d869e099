//! A lane's use of locks.
//!
//! * `futures`: the futures and holds of users.
//! * `run`: one use of a lock, carried out; `slots`: the outstanding uses of a lane.
//! * `notices`: notices between uses of locks.
//! * `ghosts`: uses without a waiting user.
//! * `members`, `resetter`: the two parts in a reset; `wire`: their messages.
//! * `keeper`: recovery of locks as published; `homes`: lanes that count readers for a writer.
//! * `connections`: repair of a connection after a verb without an answer.
//! * `abandoned`: loss of a memory node's memory.
//! * `sharing`: support for locks that the clients of a node share.
//! * `roster`: a membership for benchmarks, tests and simulation.

mod abandoned;
mod connections;
mod futures;
mod ghosts;
mod homes;
mod keeper;
mod members;
mod notices;
mod resetter;
mod roster;
mod run;
mod sharing;
mod slots;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::{Executor, TaskId};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RemoteAddr};
use lotus_fabric::lane::{Batch, BatchResult, Lane};
use lotus_fabric::masked::MaskedSwap;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_fabric::verbs::{Buffer, VerbError};

use crate::contract::{Backoff, Counts, LockSystem, Member, NotHeld, Peers, Request, Verb, Waiter};
use crate::word::Mode;
use connections::Connections;
pub use futures::{Acquiring, Begun, Hold, Leaving, Releasing};
use futures::{Behind, First, Guard};
use ghosts::Ghosts;
use homes::Homes;
use keeper::Watches;
use members::PendingReset;
use notices::Notices;
pub use roster::Roster;
use run::Run;
use slots::Slots;
use wire::Message;

/// Offset of the entries of a lock object, behind head and claim.
const ENTRIES: u64 = 16;
/// Time after which a waiter asks whether it waits for a lost node; also the time between such
/// questions.
const STALL: Duration = Duration::from_millis(50);
/// Time until an unresponsive memory node is asked again.
const UNREACHABLE: Duration = Duration::from_millis(1);

/// A lane's place among the users of locks.
pub struct Identity {
    /// The node, as a member.
    pub member: Member,
    /// The membership.
    pub peers: Rc<dyn Peers>,
    /// Number of the service by which lanes exchange messages about resets, and notices of their
    /// uses of locks.
    pub service: Service,
}

/// Behaviour of a request when another request holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The request is refused.
    No,
    /// The request waits until this time.
    Until(Nanos),
}

impl Wait {
    const fn until(self) -> Nanos {
        match self {
            Self::No => Nanos(0),
            Self::Until(until) => until,
        }
    }
}

/// Options of a request, beside the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Behaviour when another request holds the lock.
    pub wait: Wait,
    /// See [`Request::terms`].
    pub terms: u16,
}

impl Limits {
    /// Waits without limit, with a lease of one term.
    pub const PATIENT: Self = Self { wait: Wait::Until(Nanos::NEVER), terms: 1 };
}

/// A lane's use of the locks of one system. Cheap to clone.
///
/// Keep one clone for as long as the node is a member: the client answers nodes that reset locks.
pub struct Client<S: LockSystem> {
    core: Rc<Core<S>>,
}

impl<S: LockSystem> Clone for Client<S> {
    fn clone(&self) -> Self {
        Self { core: Rc::clone(&self.core) }
    }
}

struct Core<S: LockSystem> {
    system: S,
    lane: Lane,
    rpc: Rpc,
    me: Member,
    peers: Rc<dyn Peers>,
    service: Service,
    slots: RefCell<Slots>,
    connections: Rc<Connections>,
    ghosts: Ghosts<S>,
    notices: RefCell<Notices>,
    watches: RefCell<Watches>,
    homes: RefCell<Homes>,
    luck: RefCell<BackoffState>,
    counts: RefCell<Counts>,
    /// Locks being reset by this node or another, as far as the lane was told.
    told: RefCell<BTreeMap<RemoteAddr, PendingReset>>,
    /// Shut locks: the lane adds nothing to a shut lock until a reset. The value is the generation
    /// in which the lock was full; without a generation, the lock is shut as long as its head is
    /// marked.
    shut: RefCell<BTreeMap<RemoteAddr, Option<u64>>>,
    /// Locks being reset by this lane.
    resetting: RefCell<BTreeSet<RemoteAddr>>,
    is_expelled: Cell<bool>,
    /// See [`STALL`].
    stall: Cell<Duration>,
    /// Memory nodes whose locks are not to be used for now.
    abandoned: RefCell<BTreeSet<NodeId>>,
    /// Lives of memory nodes that were abandoned before.
    lives: RefCell<BTreeMap<NodeId, u32>>,
    /// Whether this lane was told of a reset, or has abandoned a memory node.
    is_interrupted: Cell<bool>,
    /// Task that is woken when `is_interrupted` becomes true, if a task watches.
    watcher: Cell<Option<TaskId>>,
    /// Ended runs, kept for reuse.
    spare: RefCell<Spare<S>>,
}

/// State of waiting that all requests of a lane share.
struct BackoffState {
    rng: SmallRng,
    backoff: Backoff,
}

/// Boxed, because moves would copy the runs otherwise.
type Spare<S> = Vec<Box<Run<S>>>;

/// Error: a reset is given up, because this node has been expelled, or has abandoned the memory
/// node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GivenUp;

/// Adds a verb on a word to a batch.
#[inline(always)]
fn add_verb<S: LockSystem>(batch: &mut Batch, word: RemoteAddr, verb: Verb) -> Buffer {
    match verb {
        Verb::Read => batch.read(word, 8),
        Verb::Add(summand) => batch.fetch_and_add(word, summand),
        Verb::Swap { expected, new } => batch.compare_and_swap(word, expected, new),
        Verb::Exchange { mask, new } => {
            let swap = MaskedSwap { compare: 0, compare_mask: 0, swap: new, swap_mask: mask };
            batch.masked_compare_and_swap(word, swap)
        }
        Verb::SwapPart { expected, new } => {
            let swap = MaskedSwap {
                compare: expected,
                compare_mask: S::COMPARED,
                swap: new,
                swap_mask: S::REPLACED,
            };
            batch.masked_compare_and_swap(word, swap)
        }
        Verb::Write { .. } | Verb::ReadQueue(_) | Verb::AddAndRead(..) | Verb::Wide => {
            unreachable!("{verb:?} is on more than a word")
        }
    }
}

impl<S: LockSystem> Core<S> {
    /// See [`Connections::settle`].
    async fn mend(&self, node: NodeId, used: u64) -> Result<(), VerbError> {
        let mended = self.connections.settle(&self.lane, node, used).await;
        if mended == Err(VerbError::Revoked) {
            self.is_expelled.set(true);
        }
        mended
    }

    /// Carries out a verb on a word. `None` if the verb had no answer: it has taken effect or never
    /// will.
    async fn verb(&self, word: RemoteAddr, verb: Verb) -> Result<Option<u64>, GivenUp> {
        if self.has_abandoned(word.node()) {
            return Err(GivenUp);
        }
        let used = self.connections.current(word.node());
        let mut batch = self.lane.batch();
        let buffer = add_verb::<S>(&mut batch, word, verb);
        if let Ok(done) = batch.post().await {
            return Ok(Some(done.words(buffer)[0]));
        }
        self.settle(word.node(), used).await?;
        Ok(None)
    }

    /// Returns once no verb posted on connection `used` can take effect any more.
    async fn settle(&self, node: NodeId, used: u64) -> Result<(), GivenUp> {
        loop {
            match self.mend(node, used).await {
                Ok(()) => return Ok(()),
                Err(VerbError::Revoked) => return Err(GivenUp),
                Err(_) if self.has_abandoned(node) => return Err(GivenUp),
                Err(_) => self.lane.executor().sleep(UNREACHABLE).await,
            }
        }
    }

    /// Reads a word, with as many tries as needed.
    async fn read(&self, word: RemoteAddr) -> Result<u64, GivenUp> {
        loop {
            if let Some(found) = self.verb(word, Verb::Read).await? {
                return Ok(found);
            }
        }
    }

    /// Reads the head of a lock once.
    async fn read_head(&self, at: RemoteAddr) -> Result<u64, NotHeld> {
        let used = self.connections.current(at.node());
        let mut batch = self.lane.batch();
        let buffer = batch.read(at, 8);
        match batch.post().await {
            Ok(done) => Ok(done.words(buffer)[0]),
            Err(_) => match self.mend(at.node(), used).await {
                Err(VerbError::Revoked) => Err(NotHeld::Expelled),
                Ok(()) | Err(_) => Err(NotHeld::Unavailable),
            },
        }
    }

    fn is_resetting(&self, word: u64) -> bool {
        self.system.head().is_some_and(|head| head.is_resetting(word))
    }

    /// Returns the reason of a refusal, counted.
    #[cold]
    fn refusal(&self, why: NotHeld, wait: Wait) -> NotHeld {
        let why = match (wait, why) {
            (Wait::No, NotHeld::TimedOut) => NotHeld::Conflict,
            (_, why) => why,
        };
        self.counts.borrow_mut().timed_out += u64::from(why == NotHeld::TimedOut);
        why
    }

    /// Frees the slot of a use that has ended.
    #[inline]
    fn free(&self, slot: u16, at: RemoteAddr) {
        if S::TELLS {
            self.close(slot);
        }
        if S::KEEPS {
            self.watches.borrow_mut().forget(slot);
        }
        self.slots.borrow_mut().free(slot);
        self.wake_answer(at);
    }
}

impl<S: LockSystem> Client<S> {
    /// Opens a lane of a member, for locks alone, and creates a client of `system`'s locks on the
    /// lane.
    ///
    /// # Errors
    /// The fabric refuses the lane, for instance because it is open.
    ///
    /// # Panics
    /// See [`Self::new`].
    pub fn open(
        system: S,
        executor: &mut Executor,
        fabric: &dyn Fabric,
        lane: u16,
        identity: Identity,
    ) -> Result<(Self, Lane), FabricError> {
        let Member { node, life, .. } = identity.member;
        let at = Endpoint { node, lane: LaneId(lane) };
        let waker = executor.handle().waker();
        let transport = fabric.open_lane(at, Epoch(life.incarnation()), waker)?;
        let lane = Lane::new(at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        Ok((Self::new(system, Rpc::new(lane.clone()), identity), lane))
    }

    /// The lane's messages. The client has one service; the lane's owner may have more.
    pub fn rpc(&self) -> &Rpc {
        &self.core.rpc
    }

    /// Creates a client of `system`'s locks on the lane of `rpc`.
    ///
    /// # Panics
    /// If the lane's number is beyond [`Waiter::LANES`], or the system's locks are of 16 bytes and
    /// the fabric has no atomics on 16 bytes ([`LockSystem::WIDE`]).
    pub fn new(mut system: S, rpc: Rpc, identity: Identity) -> Self {
        let lane = rpc.lane().clone();
        assert!(lane.at().lane.0 < Waiter::LANES, "a node has fewer lanes that use locks");
        let is_wide = lane.capabilities().wide_atomics;
        assert!(is_wide || !S::WIDE, "locks of 16 bytes need atomics on as many");
        system.fit(&lane.capabilities());
        let Identity { member, peers, service } = identity;
        let stream = u64::from(lane.at().node.0) << 16 | u64::from(lane.at().lane.0);
        let core = Core {
            luck: RefCell::new(BackoffState {
                rng: lane.executor().env().rng(stream),
                backoff: Backoff::new(system.pacing()),
            }),
            system,
            lane,
            rpc,
            me: member,
            peers,
            service,
            slots: RefCell::default(),
            connections: Rc::default(),
            ghosts: Ghosts::default(),
            notices: RefCell::default(),
            watches: RefCell::default(),
            homes: RefCell::default(),
            counts: RefCell::default(),
            told: RefCell::default(),
            shut: RefCell::default(),
            resetting: RefCell::default(),
            is_expelled: Cell::new(false),
            stall: Cell::new(STALL),
            abandoned: RefCell::default(),
            lives: RefCell::default(),
            is_interrupted: Cell::new(false),
            watcher: Cell::default(),
            spare: RefCell::default(),
        };
        let client = Self { core: Rc::new(core) };
        client.listen();
        client
    }

    fn listen(&self) {
        let (rpc, service) = (&self.core.rpc, self.core.service);
        let core = Rc::downgrade(&self.core);
        let weak = core.clone();
        let request = move |responder, bytes: &[u8]| {
            let Some((message, at, number)) = wire::decode(bytes) else { return };
            let Some(core) = core.upgrade() else { return };
            match message {
                Message::Finish if core.me.life.incarnation() == number => {
                    members::tell(&core, at, responder);
                }
                Message::Suspected => core.keep(at, number, Some(responder)),
                Message::Finish | Message::Stalled | Message::Doubted | Message::Full => {}
            }
        };
        rpc.serve(service, Box::new(request));
        let notice = move |from, bytes: &[u8]| {
            if S::TELLS
                && let Some((letter, is_answer)) = wire::decode_letter(bytes)
            {
                return weak.upgrade().into_iter().for_each(|core| {
                    core.hear(from, &letter, is_answer);
                });
            }
            let Some((why, at, number)) = wire::decode(bytes) else { return };
            if why != Message::Finish {
                weak.upgrade().into_iter().for_each(|core| core.begin_reset(why, at, number));
            }
        };
        rpc.hear(service, Box::new(notice));
    }

    /// The lock system.
    pub fn system(&self) -> &S {
        &self.core.system
    }

    /// Sets the time after which a waiter asks whether it waits for a lost node. The question costs
    /// a READ and little else. 50 ms unless set.
    pub fn stalls_after(&self, time: Duration) {
        self.core.stall.set(time);
    }

    /// Counts since the lane began.
    pub fn counts(&self) -> Counts {
        *self.core.counts.borrow()
    }

    /// Number of uses that have not ended: held locks, requests, releases and ghosts.
    pub fn outstanding(&self) -> usize {
        self.core.slots.borrow().count()
    }

    /// Whether no use, notice or reset of the lane is outstanding.
    pub fn is_quiet(&self) -> bool {
        let core = &self.core;
        self.outstanding() == 0
            && core.resetting.borrow().is_empty()
            && core.notices.borrow().is_quiet()
    }

    /// Waits until the lane [is quiet](Self::is_quiet).
    pub async fn quiet(&self) {
        while !self.is_quiet() {
            self.core.lane.executor().sleep(Duration::from_micros(10)).await;
        }
    }

    /// Begins an acquisition: adds its first verb to `batch`. The first verbs of several locks can
    /// share a round trip. The caller posts the batch, and passes its result to [`Self::finish`].
    ///
    /// # Errors
    /// [`NotHeld::TooMany`], [`NotHeld::Expelled`], and [`NotHeld::Unavailable`] for an abandoned
    /// memory node.
    pub fn begin(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        mode: Mode,
        terms: u16,
    ) -> Result<Begun<S>, NotHeld> {
        self.first(batch, at, mode, terms).map(Begun)
    }

    #[inline]
    fn first(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        mode: Mode,
        terms: u16,
    ) -> Result<First<S>, NotHeld> {
        match self.core.ghosts.find(at) {
            None => self.start(batch, at, mode, terms).map(First::Run),
            Some(ghost) => {
                Ok(First::Ghost(Behind { client: self.clone(), ghost, at, mode, terms }))
            }
        }
    }

    #[inline]
    fn start(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        mode: Mode,
        terms: u16,
    ) -> Result<Guard<S>, NotHeld> {
        let core = &self.core;
        if core.is_expelled.get() {
            return Err(NotHeld::Expelled);
        }
        if core.is_interrupted.get() && core.has_abandoned(at.node()) {
            return Err(NotHeld::Unavailable);
        }
        let slot = core.slots.borrow_mut().take(at).ok_or(NotHeld::TooMany)?;
        let who = Waiter::new(core.me.life.node(), core.lane.at().lane.0, slot);
        let terms = terms.max(1);
        let state = core.system.start(Request { mode, who, life: core.me.life, terms });
        let spare = core.spare.borrow_mut().pop();
        let mut run = match spare {
            Some(mut spare) => {
                spare.renew(at, slot, state, mode);
                spare
            }
            None => Box::new(Run::new(at, slot, state, mode)),
        };
        run.begin(core, batch);
        Ok(Guard::new(core, run))
    }

    /// Ends an acquisition, with the result of the batch that has its first verb.
    pub fn finish(&self, begun: Begun<S>, result: &BatchResult, wait: Wait) -> Acquiring<S> {
        let mut acquiring = Acquiring::new(Ok(begun.0), wait);
        acquiring.answered(result);
        acquiring
    }

    /// Acquires a lock. The first verb is posted at once.
    #[inline]
    pub fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> Acquiring<S> {
        let Limits { wait, terms } = limits;
        let mut batch = self.core.lane.batch();
        let mut first = self.first(&mut batch, at, mode, terms);
        if let Ok(First::Run(guard)) = &mut first {
            guard.post(batch);
        }
        Acquiring::new(first, wait)
    }

    /// Whether a holder may rely on its lock: the node has not been expelled, the lock's memory
    /// node not abandoned meanwhile, and the lease, if any, has not ended. Verbs posted later may
    /// come too late all the same, unless locks are fenced.
    pub fn is_valid(&self, hold: &Hold<S>) -> bool {
        let now = self.core.lane.executor().now();
        let is_lost = self.core.is_expelled.get() || hold.is_abandoned();
        !is_lost && now < hold.holds_until()
    }

    /// Releases a lock: the first verb is posted behind all earlier verbs of the lane. The rest
    /// goes on in the background, also if the returned future is dropped.
    ///
    /// Where uses send notices to one another ([`LockSystem::TELLS`]), a message may release the
    /// lock, and messages are not ordered behind verbs: the holder's own verbs have to be answered
    /// before, unless the system [releases in order](LockSystem::RELEASES_IN_ORDER).
    #[inline]
    pub fn release(&self, hold: Hold<S>) -> Releasing<S> {
        hold.release()
    }

    /// Begins a release: adds its first verb to `batch`. The batch has verbs of a single memory
    /// node, so several locks on the node cost one doorbell. The caller posts the batch, and passes
    /// its result to [`Self::finish_release`]. See [`Self::release`].
    #[inline]
    pub fn begin_release(&self, batch: &mut Batch, hold: Hold<S>) -> Leaving<S> {
        hold.release_in(batch)
    }

    /// Ends a release, with the result of the batch that has its first verb.
    #[inline]
    pub fn finish_release(&self, leaving: Leaving<S>, result: &BatchResult) -> Releasing<S> {
        leaving.answered(result)
    }

    /// Ends a use without a release, like a failing transaction (DSLR appendix A.6): for
    /// experiments with locks as published, where waiters pass over the failed holder.
    ///
    /// # Panics
    /// If the locks are fenced: a living node would keep them for ever.
    pub fn forget(&self, hold: Hold<S>) {
        let survives = self.core.system.guarantees().survives_losses;
        assert!(!survives, "a fenced lock is released");
        hold.forget();
    }
}
