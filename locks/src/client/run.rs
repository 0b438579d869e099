//! One use of a lock, carried out: posts the verbs of its state machine, waits, and begins anew
//! after resets.
//!
//! All state of a use is in its [`Run`], also that of the step under way. So the future that drives
//! it may be dropped anywhere, and the run driven on by another one.
//!
//! What happens often, verbs and pauses, is polled ([`Run::poll`]); what happens seldom, resets and
//! lost connections, is for the async function [`Run::drive`].

mod homes;
mod keeping;
mod listening;
mod queues;
mod resets;
mod sharing;
mod struck;
mod wide;

use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{Batch, Completed, Posted};
use lotus_fabric::verbs::{Buffer, VerbError};
use lotus_points::{Foothold, may_cut};
use lotus_sabotage::{Rule, broken};

use super::wire::Message;
use super::{Core, add_verb};
use crate::contract::{Event, LockSystem, NotHeld, Notice, Step, Verb, View};
use crate::word::Mode;
use listening::Listened;

/// Time after which an unanswered wish for a reset is repeated.
const DOUBT: Duration = Duration::from_millis(5);
/// The same for a use that leaves, and looks for the one after it (DecLock: the other may have been
/// lost before it has written that it waits).
const SEARCH: Duration = Duration::from_millis(1);
/// Bounds of the time between two looks at a lock that is being reset.
const BARRED: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// A use of a lock.
pub(super) struct Run<S: LockSystem> {
    pub(super) at: RemoteAddr,
    pub(super) mode: Mode,
    pub(super) slot: u16,
    state: S::Use,
    doing: Doing,
    /// Whether the lock is being released, or the acquisition was given up.
    is_leaving: bool,
    /// Whether it is held, and its holder waits for it to become exclusive.
    is_upgrading: bool,
    /// Whether nobody waits for the lock to be held.
    pub(super) is_ghost: bool,
    /// Time and connection of the last verb.
    posted: (Nanos, u64),
    /// Number of verbs posted by the acquisition.
    verbs: u64,
    has_waited: bool,
    /// Time of the next question whether a node was lost; zero until the use waits.
    next_look: Nanos,
    /// What the last verb of a lock with entries answers, and what they were, or the second word of
    /// a lock of 16 bytes: see [`View::entries`]. Beside `doing`, which all systems copy.
    answer: Answer,
    entries: Vec<u64>,
    foothold: Foothold,
}

enum Doing {
    /// The step has not been carried out.
    Next(Step),
    Verb(Posted, Buffer),
    /// The first verb is in a batch of the caller's.
    InBatch(Buffer),
    /// A verb had no answer; its connection is made anew.
    Mending,
    Pausing(Nanos),
    /// It waits for a notice.
    Listening,
    /// It waits for one until this time.
    Awaiting(Nanos),
    /// It looks whether the lock is to be freed by its keeper.
    Watching,
    /// It finds the home of the lock, which it has to tell this.
    Homing(Notice),
    Held,
    /// Time until the next look, and number of resets that were over when it began.
    Barred(Duration, u32),
    /// It waits until the lock has another generation than this; time until the next look.
    Full(Duration, u64),
    /// Number of resets that were over when it began.
    Doubting(u32),
    Ended,
}

/// What the answer of a verb has.
#[derive(Clone, Copy)]
enum Answer {
    /// The head, as for all other systems.
    Head,
    /// Nothing: the verb was a WRITE.
    Written,
    /// The head, and entries from this one on.
    Entries(u32, Buffer),
}

/// End of a drive.
#[derive(Clone, Copy)]
pub(super) enum Turn {
    /// The lock is held.
    Held,
    /// The use has ended.
    Gone(Result<(), NotHeld>),
    /// The use has not ended; it is to be driven on, by whoever is there.
    Stopped(NotHeld),
}

/// A run that is being upgraded. When this is dropped, the lock is held again, in whichever mode;
/// a READ that is under way then changes nothing, so nobody waits for its answer.
struct Upgrade<'a, S: LockSystem>(&'a mut Run<S>);

impl<S: LockSystem> Drop for Upgrade<'_, S> {
    fn drop(&mut self) {
        self.0.doing = Doing::Held;
        self.0.is_upgrading = false;
    }
}

impl<S: LockSystem> Run<S> {
    /// A use whose first verb is to be added to a batch.
    pub(super) fn new(at: RemoteAddr, slot: u16, state: S::Use, mode: Mode) -> Self {
        Self {
            at,
            mode,
            slot,
            state,
            doing: Doing::Ended,
            is_leaving: false,
            is_upgrading: false,
            is_ghost: false,
            posted: (Nanos(0), 0),
            verbs: 0,
            has_waited: false,
            next_look: Nanos(0),
            answer: Answer::Head,
            entries: Vec::new(),
            foothold: Foothold::FREE,
        }
    }

    /// Makes a run that has ended a new one, in its place: it would be copied otherwise.
    #[inline]
    pub(super) fn renew(&mut self, at: RemoteAddr, slot: u16, state: S::Use, mode: Mode) {
        (self.at, self.slot, self.state, self.mode) = (at, slot, state, mode);
        (self.is_leaving, self.is_ghost, self.has_waited) = (false, false, false);
        (self.verbs, self.next_look) = (0, Nanos(0));
        self.foothold = Foothold::FREE;
    }

    /// Begins, and adds the first verb to `batch`.
    #[inline]
    pub(super) fn begin(&mut self, core: &Rc<Core<S>>, batch: &mut Batch) {
        if core.is_told(self.at) || S::QUEUES && core.is_shut(self.at) {
            self.doing = Doing::Next(Step::Barred);
            return;
        }
        if S::TELLS && !S::TELLS_ONCE {
            self.renumber(core);
        }
        let step = self.step(core, Event::Begin);
        self.doing = match step {
            Step::Post(verb) => Doing::InBatch(self.add(core, batch, verb)),
            step => Doing::Next(step),
        };
    }

    /// Takes over the batch that has the first verb, and nothing else.
    #[inline]
    pub(super) fn posted(&mut self, core: &Core<S>, posted: Posted) {
        if let Doing::InBatch(buffer) = self.doing {
            self.doing = Doing::Verb(posted, buffer);
            if may_cut() {
                self.has_posted(core);
            }
        }
    }

    /// Takes the answer of the first verb from its batch, which is complete.
    pub(super) fn answered(&mut self, core: &Rc<Core<S>>, done: Option<&Completed>) {
        let Doing::InBatch(buffer) = self.doing else { return };
        self.doing = match done {
            Some(done) => {
                let event = self.found(core, done, buffer);
                let step = self.step(core, event);
                if may_cut() {
                    self.has_answer(core, event, step);
                }
                Doing::Next(step)
            }
            None => Doing::Mending,
        };
    }

    /// Gives up the lock, or the acquisition, and posts the first verb of that.
    ///
    /// # Panics
    /// If a verb is under way.
    pub(super) fn leave(&mut self, core: &Rc<Core<S>>) -> Option<Turn> {
        let step = self.leaves(core);
        if may_cut() && self.stops_before_release(core, step) {
            return None;
        }
        let turn = self.carry_out(core, step, Nanos::NEVER);
        if may_cut() {
            self.has_posted(core);
        }
        turn
    }

    /// The same, with the first verb in a batch of the caller's.
    pub(super) fn leave_in(&mut self, core: &Rc<Core<S>>, batch: &mut Batch) -> Option<Turn> {
        match self.leaves(core) {
            step if may_cut() && self.stops_before_release(core, step) => None,
            Step::Post(verb) if !self.is_told(core) => {
                self.doing = Doing::InBatch(self.add(core, batch, verb));
                if may_cut() {
                    self.has_posted(core);
                }
                None
            }
            step => self.carry_out(core, step, Nanos::NEVER),
        }
    }

    #[inline]
    fn leaves(&mut self, core: &Rc<Core<S>>) -> Step {
        assert!(matches!(self.doing, Doing::Held | Doing::Pausing(_) | Doing::Next(_)));
        if S::TELLS && !S::TELLS_ONCE && self.is_held() {
            self.catch_up(core);
        }
        if S::QUEUES {
            self.next_look = Nanos(0);
        }
        self.is_leaving = true;
        self.step(core, Event::Leave)
    }

    /// Drives a held update lock until it is exclusive, or at `until` or later until it would wait.
    /// Whatever comes of it, also if this is dropped, the lock is held.
    pub(super) async fn upgrade(
        &mut self,
        core: &Rc<Core<S>>,
        until: Nanos,
    ) -> Result<(), NotHeld> {
        (self.is_upgrading, self.next_look) = (true, Nanos(0));
        let step = self.step(core, Event::Upgrade);
        self.doing = Doing::Next(step);
        let upgrade = Upgrade(self);
        match upgrade.0.drive(core, until).await {
            Turn::Held => Ok(()),
            Turn::Stopped(why) => Err(why),
            Turn::Gone(_) => unreachable!("it is held"),
        }
    }

    /// Whether the run is at a point at which it may stop, at time `until` or later: its caller
    /// will not wait, or nobody waits and nothing of it is in a queue.
    fn may_stop(&self, core: &Core<S>, now: Nanos, until: Nanos) -> bool {
        let gives_up = !self.is_ghost || core.system.can_leave(&self.state);
        !self.is_leaving && now >= until && gives_up
    }

    /// Whether the deadline of the one who waits is over, so that nothing more is posted for it.
    #[inline]
    fn is_late(&self, core: &Core<S>, until: Nanos) -> bool {
        let has_deadline = until != Nanos(0) && until != Nanos::NEVER;
        has_deadline && self.verbs > 0 && core.lane.executor().now() >= until
    }

    /// Time until which a holder may rely on the lock.
    pub(super) fn holds_until(&self, core: &Core<S>) -> Nanos {
        core.system.holds_until(&self.state)
    }

    /// Goes on until the lock is held, or the use has ended; or, at `until` or later, until the
    /// acquisition would wait.
    pub(super) async fn drive(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Turn {
        loop {
            if let Some(turn) = std::future::poll_fn(|task| self.poll(core, until, task)).await {
                return turn;
            }
            if let Some(turn) = self.rarely(core, until).await {
                return turn;
            }
        }
    }

    /// [`Self::drive`], as long as verbs are answered and waits are pauses. Ready without a turn if
    /// only that can go on.
    #[inline(always)]
    pub(super) fn poll(
        &mut self,
        core: &Rc<Core<S>>,
        until: Nanos,
        task: &mut Context<'_>,
    ) -> Poll<Option<Turn>> {
        loop {
            if may_cut() && self.stands(core) {
                return Poll::Pending;
            }
            let event = match &mut self.doing {
                Doing::Verb(posted, buffer) => match ready!(Pin::new(posted).poll(task)) {
                    Ok(done) => {
                        let buffer = *buffer;
                        self.found(core, &done, buffer)
                    }
                    Err(_) => {
                        self.doing = Doing::Mending;
                        return Poll::Ready(None);
                    }
                },
                Doing::Pausing(due) => {
                    let due = *due;
                    match ready!(self.poll_pause(core, due, until)) {
                        Some(turn) => return Poll::Ready(Some(turn)),
                        None => Event::Paused,
                    }
                }
                Doing::Next(step) => {
                    let step = *step;
                    match self.carry_out_rest(core, step, until) {
                        Some(turn) => return Poll::Ready(Some(turn)),
                        None => continue,
                    }
                }
                Doing::Held => return Poll::Ready(Some(Turn::Held)),
                Doing::Listening if S::TELLS => match ready!(self.poll_notice(core, until)) {
                    Listened::Next => continue,
                    Listened::Turn(turn) => return Poll::Ready(Some(turn)),
                    Listened::Look => return Poll::Ready(None),
                },
                Doing::Awaiting(due) if S::QUEUES => {
                    let due = *due;
                    match ready!(self.poll_turn(core, due, until)) {
                        Listened::Next => continue,
                        Listened::Turn(turn) => return Poll::Ready(Some(turn)),
                        Listened::Look => Event::Paused,
                    }
                }
                _ => return Poll::Ready(None),
            };
            if let Some(turn) = self.happened(core, event, until) {
                return Poll::Ready(Some(turn));
            }
        }
    }

    /// Takes the step that follows an event.
    #[inline(never)]
    fn happened(&mut self, core: &Rc<Core<S>>, event: Event, until: Nanos) -> Option<Turn> {
        let step = self.step(core, event);
        if may_cut() && self.has_answer(core, event, step) {
            self.doing = Doing::Next(step);
            return None;
        }
        self.carry_out(core, step, until)
    }

    /// The part of [`Self::drive`] that is seldom needed: goes on until something is to be polled.
    async fn rarely(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<Turn> {
        let event = match self.doing {
            Doing::InBatch(_) => {
                // A READ behind the verb: when it is answered, so is the verb.
                let mut batch = core.lane.batch();
                batch.read(self.at, 8);
                match batch.post().await {
                    Ok(_) => Event::Lost,
                    Err(_) => {
                        self.doing = Doing::Mending;
                        return None;
                    }
                }
            }
            Doing::Mending => match core.mend(self.at.node(), self.posted.1).await {
                Ok(()) => Event::Lost,
                Err(VerbError::Unreachable) if self.is_abandoned(core) => {
                    return Some(self.abandon(core));
                }
                // A holder learns it when it releases the lock.
                Err(VerbError::Revoked) if self.is_upgrading => {
                    return Some(Turn::Stopped(NotHeld::Expelled));
                }
                Err(VerbError::Revoked) => {
                    return Some(self.end(core, Err(NotHeld::Expelled)));
                }
                Err(_) => return Some(Turn::Stopped(NotHeld::Unavailable)),
            },
            Doing::Barred(..) => match self.barred(core, until).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            Doing::Full(..) => match self.full(core, until).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            Doing::Doubting(before) => match self.doubt(core, before).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            Doing::Listening | Doing::Watching => return self.look(core).await,
            Doing::Homing(notice) => return self.find_home(core, notice).await,
            Doing::Ended => unreachable!("it has ended"),
            Doing::Next(_)
            | Doing::Verb(..)
            | Doing::Pausing(_)
            | Doing::Awaiting(_)
            | Doing::Held => return None,
        };
        if S::TELLS && !S::TELLS_ONCE && event == Event::Begin {
            self.renumber(core);
        }
        let step = self.step(core, event);
        self.doing = Doing::Next(step);
        None
    }

    #[inline(always)]
    fn step(&mut self, core: &Core<S>, event: Event) -> Step {
        let luck = &mut *core.luck.borrow_mut();
        let mut view = View {
            clock: &|| core.lane.executor().now(),
            posted: self.posted.0,
            rng: &mut luck.rng,
            backoff: &mut luck.backoff,
            is_settled: &|life| core.peers.is_settled(life),
            entries: if S::QUEUES || S::WIDE { &self.entries } else { &[] },
        };
        core.system.step(&mut self.state, event, &mut view)
    }

    #[inline(always)]
    fn add(&mut self, core: &Core<S>, batch: &mut Batch, verb: Verb) -> Buffer {
        self.posts(core);
        if S::WIDE {
            return self.add_wide(core, batch, verb);
        }
        if S::QUEUES {
            if verb.is_on_entries() {
                return self.add_on_entries(core, batch, verb);
            }
            self.answer = Answer::Head;
        }
        let is_second = S::TWO_WORDS && core.system.is_second(&self.state);
        let word = if is_second { self.at.plus(8) } else { self.at };
        add_verb::<S>(batch, word, verb)
    }

    /// What a verb has found, whose answer is in this buffer.
    #[inline(always)]
    fn found(&mut self, core: &Core<S>, done: &Completed, buffer: Buffer) -> Event {
        match S::QUEUES || S::WIDE {
            true if S::WIDE => self.read_both(done.words(buffer)),
            true => self.read(core, done, buffer),
            false => Event::Found(done.words(buffer)[0]),
        }
    }

    /// Notes that a verb is posted.
    #[inline(always)]
    fn posts(&mut self, core: &Core<S>) {
        self.posted.1 = core.connections.current(self.at.node());
        if core.system.has_leases() {
            self.posted.0 = core.lane.executor().now();
        }
        if !self.is_leaving {
            self.verbs += 1;
        }
    }

    #[inline(always)]
    fn carry_out(&mut self, core: &Rc<Core<S>>, step: Step, until: Nanos) -> Option<Turn> {
        match step {
            // Whatever may be struck is carried out in one place.
            Step::Post(_) | Step::Held if may_cut() => self.carry_out_rest(core, step, until),
            Step::Post(verb) if !self.is_told(core) && !self.is_late(core, until) => {
                self.post(core, verb);
                None
            }
            Step::Held => Some(self.held(core)),
            Step::Gone(result) => Some(self.end(core, result)),
            step => self.carry_out_rest(core, step, until),
        }
    }

    /// [`Self::carry_out`], for any step.
    #[inline(never)]
    fn carry_out_rest(&mut self, core: &Rc<Core<S>>, step: Step, until: Nanos) -> Option<Turn> {
        let ends = matches!(step, Step::Held | Step::Upgraded | Step::Gone(_));
        if !ends && self.is_abandoned(core) {
            return Some(self.abandon(core));
        }
        // Told of a reset, it waits no more, and takes nothing back: the reset erases that.
        let step = match step {
            Step::Post(_) | Step::Pause(_) | Step::Tell(_) | Step::Listen | Step::Await(_)
                if self.is_told(core) =>
            {
                match self.is_leaving {
                    true => Step::Gone(Ok(())),
                    false => Step::Barred,
                }
            }
            step => step,
        };
        if S::QUEUES && step == Step::Barred {
            core.shut(self.at, None);
        }
        if may_cut() && self.stops_before(core, step) {
            self.doing = Doing::Next(step);
            return None;
        }
        match step {
            Step::Post(_) if self.is_late(core, until) => {
                self.doing = Doing::Next(step);
                return Some(Turn::Stopped(NotHeld::TimedOut));
            }
            Step::Post(verb) => self.post(core, verb),
            Step::Pause(pause) => {
                let now = core.lane.executor().now();
                if self.may_stop(core, now, until) {
                    self.doing = Doing::Next(step);
                    return Some(Turn::Stopped(NotHeld::TimedOut));
                }
                self.has_waited |= !self.is_leaving;
                let watches = S::KEEPS && self.is_to_watch(core, now);
                self.look_for_losses(core, now);
                self.doing = match pause.is_zero() {
                    _ if watches => Doing::Watching,
                    true => {
                        let step = self.step(core, Event::Paused);
                        Doing::Next(step)
                    }
                    false => Doing::Pausing(now.after(pause)),
                };
            }
            Step::Tell(notice) => self.tell(core, notice),
            Step::Listen => return self.listen(core, until),
            Step::Await(time) => return self.wait_for_turn(core, time, until),
            Step::Full(generation) => return self.has_no_room(core, generation),
            Step::Held => return Some(self.held(core)),
            Step::Upgraded => {
                (self.doing, self.mode) = (Doing::Held, Mode::Exclusive);
                return Some(Turn::Held);
            }
            Step::Barred if self.is_upgrading => return Some(Turn::Stopped(NotHeld::Reset)),
            Step::Barred if self.is_ghost => return Some(self.end(core, Err(NotHeld::Reset))),
            Step::Barred => {
                core.counts.borrow_mut().barred += 1;
                self.doing = Doing::Barred(BARRED.0, self.quiet(core));
            }
            Step::Doubt => {
                self.doing = Doing::Doubting(self.quiet(core));
                if !broken(Rule::DoubtsAreReset) {
                    core.want_reset(Message::Doubted, self.at);
                }
                if !self.is_ghost && !self.is_leaving {
                    return Some(Turn::Stopped(NotHeld::Unavailable));
                }
            }
            Step::Gone(result) => return Some(self.end(core, result)),
        }
        None
    }

    #[inline(always)]
    fn post(&mut self, core: &Rc<Core<S>>, verb: Verb) {
        let mut batch = core.lane.batch();
        let buffer = self.add(core, &mut batch, verb);
        self.doing = Doing::Verb(batch.post(), buffer);
    }

    #[inline(always)]
    fn held(&mut self, core: &Core<S>) -> Turn {
        self.doing = Doing::Held;
        let counts = &mut *core.counts.borrow_mut();
        counts.acquired += u64::from(!self.is_ghost);
        counts.waited += u64::from(self.has_waited);
        counts.retries += self.verbs - 1;
        Turn::Held
    }

    /// Whether the lock is held.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.doing, Doing::Held)
    }

    /// Ends the use.
    #[inline(always)]
    fn end(&mut self, core: &Core<S>, result: Result<(), NotHeld>) -> Turn {
        self.doing = Doing::Ended;
        core.free(self.slot, self.at);
        Turn::Gone(result)
    }

    /// Whether the lock is being reset, or its memory node was abandoned.
    #[inline]
    fn is_told(&self, core: &Core<S>) -> bool {
        core.is_interrupted.get() && {
            let mut slots = core.slots.borrow_mut();
            let slot = slots.get(self.slot);
            slot.told.is_some() || slot.is_abandoned
        }
    }

    /// Whether the lock's memory node was abandoned.
    pub(super) fn is_abandoned(&self, core: &Core<S>) -> bool {
        core.is_interrupted.get() && core.slots.borrow_mut().get(self.slot).is_abandoned
    }

    /// Ends a use of an abandoned lock, of which no verb is under way; a holder stays one.
    fn abandon(&mut self, core: &Core<S>) -> Turn {
        match self.is_upgrading {
            true => Turn::Stopped(NotHeld::Unavailable),
            false => {
                let turn = self.end(core, Err(NotHeld::Unavailable));
                core.note_interruptions();
                turn
            }
        }
    }

    /// Ready once a pause until `due` is over, or there is a reset to know of; with a turn if the
    /// acquisition is given up instead.
    fn poll_pause(&mut self, core: &Rc<Core<S>>, due: Nanos, until: Nanos) -> Poll<Option<Turn>> {
        let executor = core.lane.executor();
        let now = executor.now();
        if self.may_stop(core, now, until) {
            return Poll::Ready(Some(Turn::Stopped(NotHeld::TimedOut)));
        }
        if now >= due || self.is_told(core) {
            return Poll::Ready(None);
        }
        let stops = !self.is_leaving && !self.is_ghost;
        core.slots.borrow_mut().get(self.slot).task = Some(executor.current());
        executor.wake_at(if stops { due.min(until) } else { due }, executor.current());
        Poll::Pending
    }
}
