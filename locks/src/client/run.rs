//! One use of a lock, carried out: posts the verbs of its state machine, waits, and begins anew
//! after resets.
//!
//! All state of a use is in its [`Run`], including the step under way. The future that drives a run
//! may therefore be dropped anywhere, and a later future may drive the run on.
//!
//! Frequent work, verbs and pauses, is polled ([`Run::poll`]); rare work, resets and lost
//! connections, is left to the async function [`Run::drive`].

mod homes;
mod keeper_waits;
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
use lotus_points::{PointState, may_cut};
use lotus_sabotage::{Rule, broken};

use super::wire::Message;
use super::{Core, add_verb};
use crate::contract::{Event, LockSystem, NotHeld, Notice, Step, Verb, View};
use crate::word::Mode;
use listening::Listened;

/// Time after which an unanswered request for a reset is repeated.
const DOUBT: Duration = Duration::from_millis(5);
/// Time between requests for a reset by a leaving use that looks for its successor (DecLock: the
/// successor may have been lost before it has written that it waits).
const SEARCH: Duration = Duration::from_millis(1);
/// Bounds of the time between two looks at a lock that is being reset.
const BARRED: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// A use of a lock.
pub(super) struct Run<S: LockSystem> {
    pub(super) at: RemoteAddr,
    pub(super) mode: Mode,
    pub(super) slot: u16,
    state: S::Use,
    doing: RunState,
    /// Whether the lock is being released, or the acquisition was given up.
    is_leaving: bool,
    /// Whether the lock is held, and its holder waits for exclusive access.
    is_upgrading: bool,
    /// Whether the use has no waiting user.
    pub(super) is_ghost: bool,
    /// Time and connection of the last verb.
    posted: (Nanos, u64),
    /// Number of verbs posted by the acquisition.
    verbs: u64,
    has_waited: bool,
    /// Time of the next question whether a node was lost; zero until the use waits.
    next_look: Nanos,
    /// Contents of the last verb's answer, for a lock with entries. `entries` holds the entries
    /// read, or the second word of a lock of 16 bytes: see [`View::entries`]. `answer` and
    /// `entries` are kept beside `doing`, because every system copies `doing`.
    answer: VerbAnswer,
    entries: Vec<u64>,
    point_state: PointState,
}

enum RunState {
    /// The step has not been carried out.
    Next(Step),
    Verb(Posted, Buffer),
    /// The first verb is in a batch of the caller.
    InBatch(Buffer),
    /// A verb had no answer; its connection is being made anew.
    Mending,
    Pausing(Nanos),
    /// The use waits for a notice.
    Listening,
    /// The use waits for a notice until this time.
    Awaiting(Nanos),
    /// The use looks whether its keeper has to free the lock.
    Watching,
    /// The use looks for the home of the lock, to send this notice.
    Homing(Notice),
    Held,
    /// Time until the next look, and number of resets that were over at the beginning.
    Barred(Duration, u32),
    /// The use waits until the lock leaves this generation; time until the next look.
    Full(Duration, u64),
    /// Number of resets that were over at the beginning.
    Doubting(u32),
    Ended,
}

/// Contents of a verb's answer.
#[derive(Clone, Copy)]
enum VerbAnswer {
    /// The head, as for systems without entries.
    Head,
    /// Nothing: the verb was a WRITE.
    Written,
    /// The head, and entries from this entry on.
    Entries(u32, Buffer),
}

/// End of a drive.
#[derive(Clone, Copy)]
pub(super) enum DriveEnd {
    /// The lock is held.
    Held,
    /// The use has ended.
    Gone(Result<(), NotHeld>),
    /// The use has not ended; the owner of the run has to drive it on.
    Stopped(NotHeld),
}

/// A run that is being upgraded. On drop, the lock is held again, in its present mode. A READ under
/// way has no effect by then, so its answer is not awaited.
struct Upgrade<'a, S: LockSystem>(&'a mut Run<S>);

impl<S: LockSystem> Drop for Upgrade<'_, S> {
    fn drop(&mut self) {
        self.0.doing = RunState::Held;
        self.0.is_upgrading = false;
    }
}

impl<S: LockSystem> Run<S> {
    /// Creates a use whose first verb will be added to a batch.
    pub(super) fn new(at: RemoteAddr, slot: u16, state: S::Use, mode: Mode) -> Self {
        Self {
            at,
            mode,
            slot,
            state,
            doing: RunState::Ended,
            is_leaving: false,
            is_upgrading: false,
            is_ghost: false,
            posted: (Nanos(0), 0),
            verbs: 0,
            has_waited: false,
            next_look: Nanos(0),
            answer: VerbAnswer::Head,
            entries: Vec::new(),
            point_state: PointState::FREE,
        }
    }

    /// Turns an ended run into a new run in place, which saves a copy.
    #[inline]
    pub(super) fn renew(&mut self, at: RemoteAddr, slot: u16, state: S::Use, mode: Mode) {
        (self.at, self.slot, self.state, self.mode) = (at, slot, state, mode);
        (self.is_leaving, self.is_ghost, self.has_waited) = (false, false, false);
        (self.verbs, self.next_look) = (0, Nanos(0));
        self.point_state = PointState::FREE;
    }

    /// Begins, and adds the first verb to `batch`.
    #[inline]
    pub(super) fn begin(&mut self, core: &Rc<Core<S>>, batch: &mut Batch) {
        if core.is_told(self.at) || S::QUEUES && core.is_shut(self.at) {
            self.doing = RunState::Next(Step::Barred);
            return;
        }
        if S::TELLS && !S::TELLS_ONCE {
            self.renumber(core);
        }
        let step = self.step(core, Event::Begin);
        self.doing = match step {
            Step::Post(verb) => RunState::InBatch(self.add(core, batch, verb)),
            step => RunState::Next(step),
        };
    }

    /// Takes over the batch that has the first verb, and nothing else.
    #[inline]
    pub(super) fn posted(&mut self, core: &Core<S>, posted: Posted) {
        if let RunState::InBatch(buffer) = self.doing {
            self.doing = RunState::Verb(posted, buffer);
            if may_cut() {
                self.has_posted(core);
            }
        }
    }

    /// Takes the answer of the first verb from its completed batch.
    pub(super) fn answered(&mut self, core: &Rc<Core<S>>, done: Option<&Completed>) {
        let RunState::InBatch(buffer) = self.doing else { return };
        self.doing = match done {
            Some(done) => {
                let event = self.found(core, done, buffer);
                let step = self.step(core, event);
                if may_cut() {
                    self.has_answer(core, event, step);
                }
                RunState::Next(step)
            }
            None => RunState::Mending,
        };
    }

    /// Gives up the lock, or the acquisition, and posts the first verb of leaving.
    ///
    /// # Panics
    /// If a verb is under way.
    pub(super) fn leave(&mut self, core: &Rc<Core<S>>) -> Option<DriveEnd> {
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

    /// As [`Self::leave`], with the first verb in a batch of the caller.
    pub(super) fn leave_in(&mut self, core: &Rc<Core<S>>, batch: &mut Batch) -> Option<DriveEnd> {
        match self.leaves(core) {
            step if may_cut() && self.stops_before_release(core, step) => None,
            Step::Post(verb) if !self.is_told(core) => {
                self.doing = RunState::InBatch(self.add(core, batch, verb));
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
        assert!(matches!(self.doing, RunState::Held | RunState::Pausing(_) | RunState::Next(_)));
        if S::TELLS && !S::TELLS_ONCE && self.is_held() {
            self.catch_up(core);
        }
        if S::QUEUES {
            self.next_look = Nanos(0);
        }
        self.is_leaving = true;
        self.step(core, Event::Leave)
    }

    /// Drives a held update lock until it is exclusive, or, at `until` or later, until it would
    /// wait. The lock stays held whatever the outcome, also if the future is dropped.
    pub(super) async fn upgrade(
        &mut self,
        core: &Rc<Core<S>>,
        until: Nanos,
    ) -> Result<(), NotHeld> {
        (self.is_upgrading, self.next_look) = (true, Nanos(0));
        let step = self.step(core, Event::Upgrade);
        self.doing = RunState::Next(step);
        let upgrade = Upgrade(self);
        match upgrade.0.drive(core, until).await {
            DriveEnd::Held => Ok(()),
            DriveEnd::Stopped(why) => Err(why),
            DriveEnd::Gone(_) => unreachable!("it is held"),
        }
    }

    /// Whether the run may stop here, at time `until` or later: its user stops waiting; or there is
    /// no waiting user, and the run has no place in a queue.
    fn may_stop(&self, core: &Core<S>, now: Nanos, until: Nanos) -> bool {
        let gives_up = !self.is_ghost || core.system.can_leave(&self.state);
        !self.is_leaving && now >= until && gives_up
    }

    /// Whether the deadline of the waiting user is over. The acquisition then posts nothing more.
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
    pub(super) async fn drive(&mut self, core: &Rc<Core<S>>, until: Nanos) -> DriveEnd {
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
    /// only [`Self::drive`] can go on.
    #[inline(always)]
    pub(super) fn poll(
        &mut self,
        core: &Rc<Core<S>>,
        until: Nanos,
        task: &mut Context<'_>,
    ) -> Poll<Option<DriveEnd>> {
        loop {
            if may_cut() && self.stands(core) {
                return Poll::Pending;
            }
            let event = match &mut self.doing {
                RunState::Verb(posted, buffer) => match ready!(Pin::new(posted).poll(task)) {
                    Ok(done) => {
                        let buffer = *buffer;
                        self.found(core, &done, buffer)
                    }
                    Err(_) => {
                        self.doing = RunState::Mending;
                        return Poll::Ready(None);
                    }
                },
                RunState::Pausing(due) => {
                    let due = *due;
                    match ready!(self.poll_pause(core, due, until)) {
                        Some(turn) => return Poll::Ready(Some(turn)),
                        None => Event::Paused,
                    }
                }
                RunState::Next(step) => {
                    let step = *step;
                    match self.carry_out_rest(core, step, until) {
                        Some(turn) => return Poll::Ready(Some(turn)),
                        None => continue,
                    }
                }
                RunState::Held => return Poll::Ready(Some(DriveEnd::Held)),
                RunState::Listening if S::TELLS => match ready!(self.poll_notice(core, until)) {
                    Listened::Next => continue,
                    Listened::Turn(turn) => return Poll::Ready(Some(turn)),
                    Listened::Look => return Poll::Ready(None),
                },
                RunState::Awaiting(due) if S::QUEUES => {
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
    fn happened(&mut self, core: &Rc<Core<S>>, event: Event, until: Nanos) -> Option<DriveEnd> {
        let step = self.step(core, event);
        if may_cut() && self.has_answer(core, event, step) {
            self.doing = RunState::Next(step);
            return None;
        }
        self.carry_out(core, step, until)
    }

    /// The rare part of [`Self::drive`]: goes on until there is something to poll.
    async fn rarely(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<DriveEnd> {
        let event = match self.doing {
            RunState::InBatch(_) => {
                // A READ behind the verb: after its answer, the verb is answered too.
                let mut batch = core.lane.batch();
                batch.read(self.at, 8);
                match batch.post().await {
                    Ok(_) => Event::Lost,
                    Err(_) => {
                        self.doing = RunState::Mending;
                        return None;
                    }
                }
            }
            RunState::Mending => match core.mend(self.at.node(), self.posted.1).await {
                Ok(()) => Event::Lost,
                Err(VerbError::Unreachable) if self.is_abandoned(core) => {
                    return Some(self.abandon(core));
                }
                // A holder learns of the expulsion when it releases the lock.
                Err(VerbError::Revoked) if self.is_upgrading => {
                    return Some(DriveEnd::Stopped(NotHeld::Expelled));
                }
                Err(VerbError::Revoked) => {
                    return Some(self.end(core, Err(NotHeld::Expelled)));
                }
                Err(_) => return Some(DriveEnd::Stopped(NotHeld::Unavailable)),
            },
            RunState::Barred(..) => match self.barred(core, until).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            RunState::Full(..) => match self.full(core, until).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            RunState::Doubting(before) => match self.doubt(core, before).await {
                Some(turn) => return Some(turn),
                None => Event::Begin,
            },
            RunState::Listening | RunState::Watching => return self.look(core).await,
            RunState::Homing(notice) => return self.find_home(core, notice).await,
            RunState::Ended => unreachable!("it has ended"),
            RunState::Next(_)
            | RunState::Verb(..)
            | RunState::Pausing(_)
            | RunState::Awaiting(_)
            | RunState::Held => return None,
        };
        if S::TELLS && !S::TELLS_ONCE && event == Event::Begin {
            self.renumber(core);
        }
        let step = self.step(core, event);
        self.doing = RunState::Next(step);
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
            self.answer = VerbAnswer::Head;
        }
        let is_second = S::TWO_WORDS && core.system.is_second(&self.state);
        let word = if is_second { self.at.plus(8) } else { self.at };
        add_verb::<S>(batch, word, verb)
    }

    /// Returns the event of a verb whose answer is in this buffer.
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
    fn carry_out(&mut self, core: &Rc<Core<S>>, step: Step, until: Nanos) -> Option<DriveEnd> {
        match step {
            // Steps with fault points are carried out in one place.
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
    fn carry_out_rest(&mut self, core: &Rc<Core<S>>, step: Step, until: Nanos) -> Option<DriveEnd> {
        let ends = matches!(step, Step::Held | Step::Upgraded | Step::Gone(_));
        if !ends && self.is_abandoned(core) {
            return Some(self.abandon(core));
        }
        // Told of a reset, the use waits no more, and takes nothing back: the reset erases its
        // additions.
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
            self.doing = RunState::Next(step);
            return None;
        }
        match step {
            Step::Post(_) if self.is_late(core, until) => {
                self.doing = RunState::Next(step);
                return Some(DriveEnd::Stopped(NotHeld::TimedOut));
            }
            Step::Post(verb) => self.post(core, verb),
            Step::Pause(pause) => {
                let now = core.lane.executor().now();
                if self.may_stop(core, now, until) {
                    self.doing = RunState::Next(step);
                    return Some(DriveEnd::Stopped(NotHeld::TimedOut));
                }
                self.has_waited |= !self.is_leaving;
                let watches = S::KEEPS && self.is_to_watch(core, now);
                self.look_for_losses(core, now);
                self.doing = match pause.is_zero() {
                    _ if watches => RunState::Watching,
                    true => {
                        let step = self.step(core, Event::Paused);
                        RunState::Next(step)
                    }
                    false => RunState::Pausing(now.after(pause)),
                };
            }
            Step::Tell(notice) => self.tell(core, notice),
            Step::Listen => return self.listen(core, until),
            Step::Await(time) => return self.wait_for_turn(core, time, until),
            Step::Full(generation) => return self.has_no_room(core, generation),
            Step::Held => return Some(self.held(core)),
            Step::Upgraded => {
                (self.doing, self.mode) = (RunState::Held, Mode::Exclusive);
                return Some(DriveEnd::Held);
            }
            Step::Barred if self.is_upgrading => return Some(DriveEnd::Stopped(NotHeld::Reset)),
            Step::Barred if self.is_ghost => return Some(self.end(core, Err(NotHeld::Reset))),
            Step::Barred => {
                core.counts.borrow_mut().barred += 1;
                self.doing = RunState::Barred(BARRED.0, self.quiet(core));
            }
            Step::Doubt => {
                self.doing = RunState::Doubting(self.quiet(core));
                if !broken(Rule::DoubtsAreReset) {
                    core.want_reset(Message::Doubted, self.at);
                }
                if !self.is_ghost && !self.is_leaving {
                    return Some(DriveEnd::Stopped(NotHeld::Unavailable));
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
        self.doing = RunState::Verb(batch.post(), buffer);
    }

    #[inline(always)]
    fn held(&mut self, core: &Core<S>) -> DriveEnd {
        self.doing = RunState::Held;
        let counts = &mut *core.counts.borrow_mut();
        counts.acquired += u64::from(!self.is_ghost);
        counts.waited += u64::from(self.has_waited);
        counts.retries += self.verbs - 1;
        DriveEnd::Held
    }

    /// Whether the lock is held.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.doing, RunState::Held)
    }

    /// Ends the use.
    #[inline(always)]
    fn end(&mut self, core: &Core<S>, result: Result<(), NotHeld>) -> DriveEnd {
        self.doing = RunState::Ended;
        core.free(self.slot, self.at);
        DriveEnd::Gone(result)
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

    /// Ends a use of an abandoned lock, without a verb under way; a holder that upgrades stays a
    /// holder.
    fn abandon(&mut self, core: &Core<S>) -> DriveEnd {
        match self.is_upgrading {
            true => DriveEnd::Stopped(NotHeld::Unavailable),
            false => {
                let turn = self.end(core, Err(NotHeld::Unavailable));
                core.note_interruptions();
                turn
            }
        }
    }

    /// Ready once a pause until `due` is over, or the use was told of a reset; with a turn if the
    /// acquisition is given up instead.
    fn poll_pause(
        &mut self,
        core: &Rc<Core<S>>,
        due: Nanos,
        until: Nanos,
    ) -> Poll<Option<DriveEnd>> {
        let executor = core.lane.executor();
        let now = executor.now();
        if self.may_stop(core, now, until) {
            return Poll::Ready(Some(DriveEnd::Stopped(NotHeld::TimedOut)));
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
