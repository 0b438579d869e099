//! A lane's use of locks.
//!
//! * `run`: one use of a lock, carried out; `slots`: the uses that a lane has outstanding.
//! * `ghosts`: uses that nobody waits for any more.
//! * `members`, `resetter`: the two parts in a reset; `wire`: their messages.
//! * `connections`: what becomes of a connection whose verb had no answer.
//! * `roster`: a membership for benchmarks, tests and simulation.

mod connections;
mod ghosts;
mod members;
mod resetter;
mod roster;
mod run;
mod slots;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::lane::{Batch, BatchResult, Lane};
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::verbs::VerbError;

use crate::contract::{Backoff, Counts, LockSystem, Member, NotHeld, Peers, Request, Verb, Waiter};
use crate::word::Mode;
use connections::Connections;
use ghosts::Ghosts;
use members::Told;
pub use roster::Roster;
use run::{Run, Turn};
use slots::Slots;
use wire::Message;

/// Time until a memory node that does not answer is asked again.
const UNREACHABLE: Duration = Duration::from_millis(1);

/// A lane's place among the users of locks.
pub struct Identity {
    /// The node, as a member.
    pub member: Member,
    /// The membership.
    pub peers: Rc<dyn Peers>,
    /// Number of the service by which lanes tell one another of resets.
    pub service: Service,
}

/// Treatment of a lock that is another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The request is refused.
    No,
    /// The request waits, until this time.
    Until(Nanos),
}

/// What a request asks for, beside the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// What becomes of it if the lock is another's.
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
/// One clone has to be kept for as long as the node is a member: it answers those who reset locks.
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
    backoff: RefCell<Backoff>,
    rng: RefCell<SmallRng>,
    counts: RefCell<Counts>,
    /// Locks that are being reset by another node, or this one, as far as this lane was told.
    told: RefCell<BTreeMap<RemoteAddr, Told>>,
    /// Locks that this lane resets.
    resetting: RefCell<BTreeSet<RemoteAddr>>,
    is_expelled: Cell<bool>,
    /// Runs that have ended, for others to use.
    spare: RefCell<Spare<S>>,
}

/// Boxed, because runs would be copied from hand to hand otherwise.
type Spare<S> = Vec<Box<Run<S>>>;

/// Error: this node has been expelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expelled;

impl<S: LockSystem> Core<S> {
    /// See [`Connections::settle`].
    async fn mend(&self, node: NodeId, used: u64) -> Result<(), VerbError> {
        let mended = self.connections.settle(&self.lane, node, used).await;
        if mended == Err(VerbError::Revoked) {
            self.is_expelled.set(true);
        }
        mended
    }

    /// Carries out a verb on a word. `None` if it had no answer: it has taken effect or never will.
    async fn verb(&self, word: RemoteAddr, verb: Verb) -> Result<Option<u64>, Expelled> {
        let used = self.connections.current(word.node());
        let mut batch = self.lane.batch();
        let buffer = match verb {
            Verb::Read => batch.read(word, 8),
            Verb::Add(summand) => batch.fetch_and_add(word, summand),
            Verb::Swap { expected, new } => batch.compare_and_swap(word, expected, new),
        };
        if let Ok(done) = batch.post().await {
            return Ok(Some(done.words(buffer)[0]));
        }
        loop {
            match self.mend(word.node(), used).await {
                Ok(()) => return Ok(None),
                Err(VerbError::Revoked) => return Err(Expelled),
                Err(_) => self.lane.executor().sleep(UNREACHABLE).await,
            }
        }
    }

    /// Reads a word, as often as needed.
    async fn read(&self, word: RemoteAddr) -> Result<u64, Expelled> {
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

    /// Frees the slot of a use that has ended.
    fn free(&self, slot: u16, at: RemoteAddr) {
        self.slots.borrow_mut().free(slot);
        self.wake_answer(at);
    }
}

impl<S: LockSystem> Client<S> {
    /// The uses of `system`'s locks by the lane of `rpc`.
    ///
    /// # Panics
    /// If the lane's number is beyond [`Waiter::LANES`].
    pub fn new(system: S, rpc: Rpc, identity: Identity) -> Self {
        let lane = rpc.lane().clone();
        assert!(lane.at().lane.0 < Waiter::LANES, "a node has fewer lanes that use locks");
        let Identity { member, peers, service } = identity;
        let stream = u64::from(lane.at().node.0) << 16 | u64::from(lane.at().lane.0);
        let core = Core {
            backoff: RefCell::new(Backoff::new(system.pacing())),
            system,
            rng: RefCell::new(lane.executor().env().rng(stream)),
            lane,
            rpc,
            me: member,
            peers,
            service,
            slots: RefCell::default(),
            connections: Rc::default(),
            ghosts: Ghosts::default(),
            counts: RefCell::default(),
            told: RefCell::default(),
            resetting: RefCell::default(),
            is_expelled: Cell::new(false),
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
            let Some((Message::Finish, at, incarnation)) = wire::decode(bytes) else { return };
            if let Some(core) = core.upgrade()
                && core.me.life.incarnation() == incarnation
            {
                members::tell(&core, at, responder);
            }
        };
        rpc.serve(service, Box::new(request));
        let notice = move |_, bytes: &[u8]| {
            let Some((why @ (Message::Stalled | Message::Doubted), at, _)) = wire::decode(bytes)
            else {
                return;
            };
            weak.upgrade().into_iter().for_each(|core| core.begin_reset(why, at));
        };
        rpc.hear(service, Box::new(notice));
    }

    /// The lock system.
    pub fn system(&self) -> &S {
        &self.core.system
    }

    /// Counts since the lane began.
    pub fn counts(&self) -> Counts {
        *self.core.counts.borrow()
    }

    /// Number of uses that have not ended: locks held, requests, releases and ghosts.
    pub fn outstanding(&self) -> usize {
        self.core.slots.borrow().count()
    }

    /// Waits until no use is outstanding.
    pub async fn quiet(&self) {
        let executor = self.core.lane.executor();
        while self.outstanding() > 0 || !self.core.resetting.borrow().is_empty() {
            executor.sleep(Duration::from_micros(10)).await;
        }
    }

    /// Begins an acquisition: adds its first verb to `batch`, so that those of several locks can
    /// share a round trip. The caller posts the batch, and passes its result to [`Self::finish`].
    ///
    /// # Errors
    /// [`NotHeld::TooMany`], [`NotHeld::Expelled`].
    pub fn begin(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        mode: Mode,
        terms: u16,
    ) -> Result<Begun<S>, NotHeld> {
        let ghost = self.core.ghosts.find(at);
        let run = match ghost {
            Some(_) => None,
            None => Some(self.start(batch, at, mode, terms)?),
        };
        Ok(Begun { run, ghost, at, mode, terms })
    }

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
        let slot = core.slots.borrow_mut().take(at).ok_or(NotHeld::TooMany)?;
        let who = Waiter::new(core.me.life.node(), core.lane.at().lane.0, slot);
        let terms = terms.max(1);
        let state = core.system.start(Request { mode, who, life: core.me.life, terms });
        let run = Run::new(at, slot, state, mode);
        let spare = core.spare.borrow_mut().pop();
        let mut run = match spare {
            Some(mut spare) => {
                *spare = run;
                spare
            }
            None => Box::new(run),
        };
        run.begin(core, batch);
        Ok(self.guard(run, true))
    }

    fn guard(&self, run: Box<Run<S>>, acquires: bool) -> Guard<S> {
        Guard { core: Rc::clone(&self.core), run: Some(run), acquires }
    }

    /// Ends an acquisition, with the result of the batch that has its first verb.
    ///
    /// If this future is dropped, the request is given up as at its deadline.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub async fn finish(
        &self,
        begun: Begun<S>,
        result: &BatchResult,
        wait: Wait,
    ) -> Result<Hold<S>, NotHeld> {
        let mut begun = begun;
        if let Some(guard) = &mut begun.run {
            let done = result.as_ref().ok();
            let words = done.map(|done| |buffer| done.words(buffer)[0]);
            guard.run.as_mut().expect(TAKEN).answered(&self.core, words);
        }
        self.go_on(begun, wait).await
    }

    async fn go_on(&self, mut begun: Begun<S>, wait: Wait) -> Result<Hold<S>, NotHeld> {
        let until = match wait {
            Wait::No => Nanos(0),
            Wait::Until(until) => until,
        };
        let refused = |why| match (wait, why) {
            (Wait::No, NotHeld::TimedOut) => NotHeld::Conflict,
            (_, why) => why,
        };
        while let Some(ghost) = begun.ghost.take() {
            let taken = ghost.take_over(&self.core, begun.mode, until).await;
            begun.run = match taken.map_err(|why| self.count_refusal(refused(why)))? {
                Some(run) => Some(self.guard(run, true)),
                None => {
                    begun.ghost = self.core.ghosts.find(begun.at);
                    if begun.ghost.is_some() {
                        continue;
                    }
                    let mut batch = self.core.lane.batch();
                    let mut guard = self.start(&mut batch, begun.at, begun.mode, begun.terms)?;
                    guard.posted(batch);
                    Some(guard)
                }
            };
        }
        let mut guard = begun.run.expect("without a ghost there is a run");
        match guard.drive(until).await {
            Turn::Held => {
                guard.acquires = false;
                Ok(Hold { guard })
            }
            Turn::Gone(result) => {
                Err(result.expect_err("an acquisition does not end well without being held"))
            }
            Turn::Stopped(why) => Err(self.count_refusal(refused(why))),
        }
    }

    fn count_refusal(&self, why: NotHeld) -> NotHeld {
        self.core.counts.borrow_mut().timed_out += u64::from(why == NotHeld::TimedOut);
        why
    }

    /// Acquires a lock.
    ///
    /// If this future is dropped, the request is given up as at its deadline.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub async fn acquire(
        &self,
        at: RemoteAddr,
        mode: Mode,
        limits: Limits,
    ) -> Result<Hold<S>, NotHeld> {
        let mut batch = self.core.lane.batch();
        let mut begun = self.begin(&mut batch, at, mode, limits.terms)?;
        if let Some(guard) = &mut begun.run {
            guard.posted(batch);
        }
        self.go_on(begun, limits.wait).await
    }

    /// Whether a holder may rely on its lock: the node has not been expelled, and the lease, if
    /// there is one, has not ended. What is posted later may come too late all the same, unless
    /// locks are fenced.
    pub fn is_valid(&self, hold: &Hold<S>) -> bool {
        let now = self.core.lane.executor().now();
        !self.core.is_expelled.get() && now < hold.guard.get().holds_until(&self.core)
    }

    /// Releases a lock: its first verb is posted behind everything that this lane has posted
    /// before. The rest goes on in the background, also if what is returned is dropped.
    pub fn release(&self, mut hold: Hold<S>) -> Releasing<S> {
        match hold.guard.leave() {
            Some(Turn::Gone(result)) => Releasing { guard: Err(result) },
            Some(_) => unreachable!("it is being released"),
            None => Releasing { guard: Ok(hold.guard) },
        }
    }
}

/// An acquisition whose first verb is in a batch.
///
/// Dropped without [`Client::finish`], it is given up like a request at its deadline; in a system
/// that counts its users, the lock then has to be reset, because the verb's answer is lost. It must
/// not be dropped before its batch, if that is posted afterwards.
pub struct Begun<S: LockSystem> {
    run: Option<Guard<S>>,
    /// A ghost of the lane in whose place the request steps, or for whose end it waits.
    ghost: Option<Rc<ghosts::Ghost<S>>>,
    at: RemoteAddr,
    mode: Mode,
    terms: u16,
}

/// A lock that is held. It is released when this is dropped.
pub struct Hold<S: LockSystem> {
    guard: Guard<S>,
}

impl<S: LockSystem> Hold<S> {
    /// The lock.
    pub fn at(&self) -> RemoteAddr {
        self.guard.get().at
    }

    /// Mode in which it is held; stronger than asked for if an earlier request for that mode was
    /// under way still.
    pub fn mode(&self) -> Mode {
        self.guard.get().mode
    }
}

/// A release under way.
#[must_use = "dropped, it goes on, and nobody learns whether the lock was lost before"]
pub struct Releasing<S: LockSystem> {
    guard: Result<Guard<S>, Result<(), NotHeld>>,
}

impl<S: LockSystem> Releasing<S> {
    /// Waits for the end of the release.
    ///
    /// # Errors
    /// [`NotHeld::Reset`] if the lock was taken away before, which it is only without fencing;
    /// `Unavailable` or `Expelled` if it is not known.
    pub async fn done(self) -> Result<(), NotHeld> {
        let mut guard = match self.guard {
            Ok(guard) => guard,
            Err(result) => return result,
        };
        match guard.drive(Nanos::NEVER).await {
            Turn::Gone(result) => result,
            Turn::Stopped(why) => Err(why),
            Turn::Held => unreachable!("it is being released"),
        }
    }
}

/// A run that goes on in the background when it is dropped.
struct Guard<S: LockSystem> {
    core: Rc<Core<S>>,
    /// `None` once it has ended, or was left behind.
    run: Option<Box<Run<S>>>,
    /// Whether it acquires, so that it has to be given up.
    acquires: bool,
}

const TAKEN: &str = "a run is taken last";

impl<S: LockSystem> Guard<S> {
    fn get(&self) -> &Run<S> {
        self.run.as_ref().expect(TAKEN)
    }

    /// Posts the batch that has the first verb, and nothing else.
    fn posted(&mut self, batch: Batch) {
        self.run.as_mut().expect(TAKEN).posted(batch.post());
    }

    async fn drive(&mut self, until: Nanos) -> Turn {
        let turn = self.run.as_mut().expect(TAKEN).drive(&self.core, until).await;
        self.keep_if_gone(&turn);
        turn
    }

    fn leave(&mut self) -> Option<Turn> {
        let turn = self.run.as_mut().expect(TAKEN).leave(&self.core);
        turn.inspect(|turn| self.keep_if_gone(turn))
    }

    /// Keeps the run for another use, once it has ended.
    fn keep_if_gone(&mut self, turn: &Turn) {
        if let Turn::Gone(_) = turn {
            self.core.spare.borrow_mut().extend(self.run.take());
        }
    }
}

impl<S: LockSystem> Drop for Guard<S> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            ghosts::linger(Rc::clone(&self.core), run, self.acquires);
        }
    }
}
