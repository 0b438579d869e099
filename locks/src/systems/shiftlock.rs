//! `shiftlock`: a queue of writers that hand the lock on, beside a count of readers (ShiftLock §3).
//! The lock is a [`ShiftWord`], half as long as the published word; or, in [`ShiftLockWide`], a
//! [`WideShiftWord`], which is the published word.
//!
//! *Readers* count themselves. Without a writer they have the lock; otherwise they read the word
//! from time to time until its epoch has changed. To release the lock, they count themselves out,
//! and raise the count of releases.
//!
//! *Writers* make themselves the tail, as in `mcs`. A writer that finds neither tail nor readers
//! has the lock; a writer that finds readers reads the word until as many readers have released the
//! lock. A writer that finds a tail sends its name to the tail, and waits for one of two notices.
//! Either the lock is handed over, or the readers got the lock: the notice then has the count of
//! releases at which the readers will have left.
//!
//! *Release of a writer.* The last writer in the queue takes its name out of the word, changes the
//! epoch and raises the count, at once. Any other writer raises the count, and hands the lock to
//! its successor after the answer. After [`ShiftLock::THRESHOLD`] consecutive writers the atomic
//! also changes the epoch, and its answer says how many readers have the lock then. So a reader
//! waits for as many writers at most, and a writer for one phase of readers (ShiftLock §3.5).
//!
//! # Counts precede hand-overs
//! The last writer in the queue *sets* the count of releases, to one more than the count of its
//! hand-over. If a hand-over preceded the atomic that counts the release, the atomic might land
//! after the count was set: the count would be too large by one, and a writer that waits for
//! readers would take the lock while a reader still has it (I301). The paper does not say that the
//! answer is awaited.
//!
//! # Readers that give up
//! A reader takes back its count only in the epoch that it has found, by a swap of the whole word.
//! In another epoch the reader has been admitted, and releases the lock. If the reader took back
//! its count before looking, a late release might let a writer in beside a reader (I301).
//!
//! # Names that are used again
//! The hand-over names the number of the successor's enqueue, which the successor has sent. The
//! successor knows only the name in the word. The successor therefore sends the count of releases
//! that it has found, which is at least the count found by its predecessor ([`ShiftLock::LATER`]).
//! A notice to an earlier use of the name has a smaller count, because the earlier use raised the
//! count when it ended. The two notices are told apart unless a notice is under way for 2²⁵
//! releases of the lock: a quarter of a minute at the maximal rate of a network card on one word.
//!
//! # As published, and fenced
//! As published, a hand-over is sent with the atomic that counts it, notices are sent once, and a
//! notice is for the present use of the name. Waiters look at the lock every 5 ms; after 30 ms
//! without a release they have its keeper free the lock, whether its holder is lost or not
//! (ShiftLock §3.6, [`KeeperRules`]). The keeper adds half of the range to the count: waiters see
//! the leap and begin anew. A slow holder then releases a lock that it no longer holds: the number
//! of readers becomes one less than zero, shown in the field as 4,095. Fenced, notices are repeated
//! until they are acknowledged (`client`), and a lock that has lost a node is reset
//! (`crate::reset`).
//!
//! Without masked atomics, a writer swaps the whole word, and tries again while other requests come
//! between; the last writer in the queue does this for as long as readers come.
//!
//! # Of 16 bytes
//! Each of these verbs is a masked atomic on both words, without a fallback. The lock has no room
//! for the mark of a reset, so the wide system is offered as published only.

mod layout;

use std::marker::PhantomData;
use std::time::Duration;

use lotus_fabric::verbs::Capabilities;
use lotus_sabotage::{Rule, broken};

use crate::contract::{
    Event, Guarantees, KeeperRules, LockSystem, NotHeld, Notice, NoticeKind, Peer, Recovery,
    Request, Step, Verb, View, Waiter, WideVerb,
};
use crate::word::{Head, Mode, ShiftWord, WideShiftWord};
use layout::{Layout, LockOperation};

/// Time between two looks at the word: the unit of the back-off of ShiftLock §2.3.
const LOOK: Duration = Duration::from_nanos(1862);

/// Longest time for which a holder has the lock, as published (ShiftLock §3.6).
const LEASE: Duration = Duration::from_millis(10);

/// Largest number of consecutive writers: hand-overs have twelve bits for the number.
const MAX_THRESHOLD: u16 = 4095;

/// The system in words of eight bytes. See the module's documentation.
pub type ShiftLock = Shifts<ShiftWord>;

/// The system in 16 bytes, as published. See the module's documentation.
pub type ShiftLockWide = Shifts<WideShiftWord>;

/// The system, on locks of this layout.
#[derive(Clone, Copy, Debug)]
pub struct Shifts<W> {
    recovery: Recovery,
    /// Number of consecutive writers before the readers have the lock.
    threshold: u16,
    /// Whether the fabric has masked atomics.
    has_masks: bool,
    layout: PhantomData<W>,
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShiftUse<W = ShiftWord> {
    me: Peer,
    is_reader: bool,
    at: At<W>,
    /// The word found when the use counted itself, or made itself the tail.
    entry: W,
    /// For a writer: count of releases and epoch while it holds the lock. Before, the found or
    /// received values; afterwards, the values to send.
    now: W,
    /// Number of consecutive writers before this writer, since readers had the lock.
    writers: u16,
    successor: Option<Peer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At<W> {
    /// A reader counts itself, or is about to.
    Joining,
    /// A reader waits for the next epoch; the word found last.
    Waiting(W),
    /// A reader takes back its count from this word.
    Withdrawing(W),
    /// A reader releases the lock.
    Leaving,
    /// A writer makes itself the tail, or is about to; the word that a swap expects, without masks.
    Asking(Option<W>),
    /// The writer has sent its name to its predecessor, or is about to, and waits for a notice.
    Behind,
    /// The writer waits for the readers: for a known count of releases.
    Draining,
    Held,
    /// The writer takes its name out of the word; the word that a swap expects, without masks.
    Closing(Option<W>),
    /// The writer has a successor, not known yet.
    Followed,
    /// The writer counts its release; whether it gives the lock to the readers.
    Counting(bool),
    /// The writer hands the lock on; whether the release is counted only afterwards.
    Telling(bool),
}

impl ShiftLock {
    /// Number of consecutive writers before the readers have the lock (ShiftLock §3.5.2).
    pub const THRESHOLD: u16 = 16;

    /// Largest number of outstanding requests for one lock: as many readers have room in the word.
    pub const CAPACITY: u32 = ShiftWord::MAX_READERS;

    /// Creates the system, with this treatment of lost holders. The readers have the lock after
    /// `threshold` consecutive writers: after one if `threshold` is zero, and after 4,095 at the
    /// latest.
    pub const fn new(recovery: Recovery, threshold: u16) -> Self {
        Self::of(recovery, threshold)
    }
}

impl ShiftLockWide {
    /// Largest number of outstanding requests for one lock: as many readers have room in the lock.
    pub const CAPACITY: u32 = WideShiftWord::MAX_READERS;

    /// Creates the system, as published (ShiftLock §3.7). The threshold is as for
    /// [`ShiftLock::new`].
    pub const fn published(threshold: u16) -> Self {
        Self::of(Recovery::Paper, threshold)
    }
}

impl<W> Shifts<W> {
    const fn of(recovery: Recovery, threshold: u16) -> Self {
        let threshold = if threshold > MAX_THRESHOLD { MAX_THRESHOLD } else { threshold };
        Self { recovery, threshold, has_masks: false, layout: PhantomData }
    }
}

impl<W: Layout> Shifts<W> {
    /// Returns the operation of a use in its present state.
    #[inline(always)]
    fn operation(of: &ShiftUse<W>) -> LockOperation<W> {
        match of.at {
            At::Joining => LockOperation::Join,
            At::Waiting(_) | At::Draining => LockOperation::Read,
            At::Withdrawing(seen) => LockOperation::Withdraw(seen),
            At::Leaving => LockOperation::Leave,
            At::Asking(seen) => LockOperation::Enqueue(of.me.who, seen.unwrap_or_default()),
            At::Closing(Some(seen)) => LockOperation::Close(seen),
            At::Closing(None) => {
                LockOperation::Close(of.now.with_tail(of.me.who.raw()).with_readers(0))
            }
            At::Counting(true) => LockOperation::Count(Some(of.now.is_odd())),
            At::Counting(false) | At::Telling(true) => LockOperation::Count(None),
            at @ (At::Behind | At::Held | At::Followed | At::Telling(false)) => {
                unreachable!("nothing is done to the lock at {at:?}")
            }
        }
    }

    /// Posts the verb of a use in its present state.
    #[inline(always)]
    fn post(&self, of: &ShiftUse<W>) -> Step {
        Step::Post(W::verb(Self::operation(of), self.has_masks))
    }

    /// Counts a reader, or makes a writer the tail of the word that was `seen` last.
    #[inline]
    fn ask(&self, of: &mut ShiftUse<W>, seen: W) -> Step {
        of.at = match of.is_reader {
            true => At::Joining,
            false => At::Asking((!self.has_masks).then_some(seen)),
        };
        self.post(of)
    }

    /// Handles the answer of the verb by which a reader counts itself.
    #[inline]
    fn joined(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        if found.is_resetting() {
            return Step::Barred;
        }
        let readers = found.readers();
        // As published, the number may be one less than zero.
        let has_room = readers < W::MAX_READERS || self.recovery == Recovery::Paper;
        assert!(has_room, "{readers} readers: there is no room for another");
        of.entry = found;
        if found.tail() == 0 {
            of.at = At::Held;
            return Step::Held;
        }
        of.at = At::Waiting(found);
        Step::Pause(LOOK)
    }

    /// Whether the keeper has freed the lock, as published, since a use has found it.
    fn has_leapt(&self, of: &ShiftUse<W>, found: W) -> bool {
        self.recovery == Recovery::Paper && found.has_leapt(of.entry)
    }

    /// Handles a look of a waiting reader at the word.
    fn looked(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        // Checked first: the epoch has no meaning in these cases.
        if found.is_resetting() || self.has_leapt(of, found) {
            return Step::Barred;
        }
        if found.is_odd() != of.entry.is_odd() {
            of.at = At::Held;
            return Step::Held;
        }
        of.at = At::Waiting(found);
        Step::Pause(LOOK)
    }

    /// Gives up a waiting reader, which has seen this word last.
    fn withdraw(&self, of: &mut ShiftUse<W>, seen: W) -> Step {
        if seen.is_odd() != of.entry.is_odd() {
            return self.leave_readers(of);
        }
        of.at = At::Withdrawing(seen);
        self.post(of)
    }

    #[inline]
    fn leave_readers(&self, of: &mut ShiftUse<W>) -> Step {
        of.at = At::Leaving;
        self.post(of)
    }

    /// Handles the answer of a verb that makes a writer the tail.
    #[inline]
    fn asked(&self, of: &mut ShiftUse<W>, expected: Option<W>, found: W) -> Step {
        if found.is_resetting() {
            return Step::Barred;
        }
        if expected.is_some_and(|expected| expected != found) {
            if found.is_free() {
                return self.ask(of, found);
            }
            // Not in the queue yet, the writer may still leave.
            of.at = At::Asking(Some(found));
            return Step::Pause(Duration::ZERO);
        }
        (of.entry, of.now) = (found, found);
        if let Some(who) = Waiter::of(found.tail()) {
            of.at = At::Behind;
            return Step::Tell(Notice::new(NoticeKind::Successor, Peer { who, number: 0 }));
        }
        if found.readers() == 0 {
            of.at = At::Held;
            return Step::Held;
        }
        of.now = found.plus(found.readers());
        of.at = At::Draining;
        Step::Pause(LOOK)
    }

    /// Handles a look of a writer that waits for readers.
    fn drained(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        if found.is_resetting() || self.has_leapt(of, found) {
            return Step::Barred;
        }
        if found.releases() != of.now.releases() {
            return Step::Pause(LOOK);
        }
        of.at = At::Held;
        Step::Held
    }

    #[inline]
    fn leave(&self, of: &mut ShiftUse<W>) -> Step {
        if of.is_reader {
            return self.leave_readers(of);
        }
        match of.successor {
            Some(successor) => self.pass_on(of, successor),
            None => self.close(of, of.now.with_tail(of.me.who.raw()).with_readers(0)),
        }
    }

    /// Takes a writer's name out of the word, which was `seen` last, and gives the lock to the
    /// readers.
    #[inline]
    fn close(&self, of: &mut ShiftUse<W>, seen: W) -> Step {
        of.at = At::Closing((!self.has_masks).then_some(seen));
        self.post(of)
    }

    /// Handles the answer of a verb that takes a writer's name out.
    #[inline]
    fn closed(&self, of: &mut ShiftUse<W>, expected: Option<W>, found: W) -> Step {
        let is_tail = found.tail() == of.me.who.raw();
        let is_out = is_tail && expected.is_none_or(|expected| expected == found);
        if is_out || found.is_resetting() {
            return Step::Gone(Ok(()));
        }
        if self.has_leapt(of, found) {
            return Step::Gone(Err(NotHeld::Reset));
        }
        if is_tail {
            return self.close(of, found);
        }
        of.at = At::Followed;
        Step::Listen
    }

    /// Counts a writer's release, before the successor has the lock.
    fn pass_on(&self, of: &mut ShiftUse<W>, successor: Peer) -> Step {
        let changes = of.writers.saturating_add(1) >= self.threshold;
        let is_early = self.recovery == Recovery::Paper || broken(Rule::CountsPrecedeHandovers);
        if is_early && !changes {
            (of.writers, of.at) = (of.writers + 1, At::Telling(true));
            of.now = of.now.plus(1);
            return Step::Tell(Notice::new(NoticeKind::Handover, successor));
        }
        of.at = At::Counting(changes);
        self.post(of)
    }

    /// Handles the answer of a verb that counts a writer's release.
    fn counted(of: &mut ShiftUse<W>, changes: bool, found: W) -> Step {
        if found.is_resetting() {
            return Step::Gone(Ok(()));
        }
        let successor = of.successor.expect("it is passed on to somebody");
        let releases = if changes { 1 + found.readers() } else { 1 };

        of.now = found.plus(releases).in_epoch(found.is_odd() != changes);
        of.writers = if changes { 0 } else { of.writers + 1 };
        of.at = At::Telling(false);
        let kind = if changes { NoticeKind::ModeChanged } else { NoticeKind::Handover };
        Step::Tell(Notice::new(kind, successor))
    }

    /// Returns the step after a verb without an answer.
    fn lost(&self, of: &ShiftUse<W>) -> Step {
        match (of.at, self.recovery) {
            // A READ changes nothing, so there is nothing to doubt.
            (At::Waiting(_) | At::Draining, _) => self.post(of),
            (_, Recovery::Fenced) => Step::Doubt,
            (_, Recovery::Paper) => Step::Gone(Err(NotHeld::Unavailable)),
        }
    }

    /// Handles the answer of a use's verb.
    #[inline]
    fn found(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        match of.at {
            At::Joining => self.joined(of, found),
            At::Waiting(_) => self.looked(of, found),
            At::Withdrawing(expected) if found == expected => Step::Gone(Ok(())),
            At::Withdrawing(_) if found.is_resetting() || self.has_leapt(of, found) => {
                Step::Gone(Ok(()))
            }
            At::Withdrawing(_) => self.withdraw(of, found),
            At::Leaving | At::Telling(true) => Step::Gone(Ok(())),
            At::Asking(expected) => self.asked(of, expected, found),
            At::Draining => self.drained(of, found),
            At::Closing(expected) => self.closed(of, expected, found),
            At::Counting(changes) => Self::counted(of, changes, found),
            at @ (At::Behind | At::Held | At::Followed | At::Telling(false)) => {
                unreachable!("no verb is under way at {at:?}")
            }
        }
    }
}

impl<W: Layout> LockSystem for Shifts<W> {
    type Use = ShiftUse<W>;

    const TELLS: bool = true;

    const KEEPS: bool = true;

    const WIDE: bool = W::IS_WIDE;

    const COMPARED: u64 = W::COMPARED;

    const REPLACED: u64 = W::REPLACED;

    const LATER: Option<fn(u64, u64) -> bool> = Some(W::is_later);

    fn name(&self) -> &'static str {
        W::NAME
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.recovery == Recovery::Fenced;
        Guarantees { shares: true, in_order: false, survives_losses, upgrades: false }
    }

    fn keeper_rules(&self) -> Option<KeeperRules> {
        (self.recovery == Recovery::Paper).then(keeper_rules::<W>)
    }

    fn was_freed(&self, of: &ShiftUse<W>, [first, second]: [u64; 2]) -> bool {
        let is_counted = !matches!(of.at, At::Joining | At::Asking(_));
        is_counted && self.has_leapt(of, W::found(first, &[second]))
    }

    /// As published, there is an era beside the word.
    fn object_bytes(&self) -> u64 {
        W::OBJECT_BYTES
    }

    fn wide(&self, of: &ShiftUse<W>) -> WideVerb {
        W::wide(Self::operation(of))
    }

    fn can_leave(&self, of: &ShiftUse<W>) -> bool {
        matches!(of.at, At::Joining | At::Waiting(_) | At::Asking(_))
    }

    fn head(&self) -> Option<Head> {
        if self.recovery == Recovery::Fenced { W::HEAD } else { None }
    }

    fn is_free(&self, head: u64) -> bool {
        W::found(head, &[]).is_free()
    }

    fn may_have_writer(&self, head: u64) -> bool {
        W::found(head, &[]).tail() != 0
    }

    fn fit(&mut self, fabric: &Capabilities) {
        self.has_masks = fabric.masked_atomics || W::IS_WIDE;
    }

    #[inline]
    fn start(&self, request: Request) -> ShiftUse<W> {
        let is_reader = request.mode == Mode::Shared;
        ShiftUse {
            me: Peer { who: request.who, number: 0 },
            is_reader,
            at: if is_reader { At::Joining } else { At::Asking(None) },
            entry: W::default(),
            now: W::default(),
            writers: 0,
            successor: None,
        }
    }

    #[inline]
    fn renumber(&self, of: &mut ShiftUse<W>, number: u64) {
        of.me.number = number;
    }

    /// Payload of a notice: count of releases, epoch, and number of consecutive writers.
    fn says(&self, of: &ShiftUse<W>) -> u64 {
        of.now.says(of.writers)
    }

    fn take_note(&self, of: &mut ShiftUse<W>, notice: Notice, says: u64) -> bool {
        match notice.kind() {
            NoticeKind::Successor => {
                let is_known = self.recovery == Recovery::Paper || of.entry.is_said_since(says);
                is_known && !of.is_reader
            }
            // As published, the notice may be meant for a former use of the name, whatever this use
            // does.
            NoticeKind::Handover | NoticeKind::ModeChanged
                if self.recovery == Recovery::Paper && of.at != At::Behind =>
            {
                false
            }
            NoticeKind::Handover | NoticeKind::ModeChanged => {
                (of.now, of.writers) = of.entry.told(says);
                true
            }
            NoticeKind::Joins | NoticeKind::Awaits | NoticeKind::Left => false,
        }
    }

    fn hear(&self, of: &mut ShiftUse<W>, notice: Notice) -> Step {
        match (of.at, notice.kind()) {
            (At::Behind, NoticeKind::Handover) => {
                of.at = At::Held;
                Step::Held
            }
            (At::Behind, NoticeKind::ModeChanged) => {
                of.at = At::Draining;
                Step::Post(Verb::Read)
            }
            (At::Behind | At::Held | At::Followed, NoticeKind::Successor) => {
                of.successor = Some(notice.peer());
                match of.at {
                    At::Behind => Step::Listen,
                    At::Held => Step::Held,
                    _ => self.pass_on(of, notice.peer()),
                }
            }
            (at, kind) => unreachable!("{kind:?} at {at:?}"),
        }
    }

    #[inline]
    fn step(&self, of: &mut ShiftUse<W>, event: Event, view: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Found(found)) => self.found(of, W::found(found, view.entries)),
            (_, Event::Begin) => {
                (of.successor, of.writers) = (None, 0);
                self.ask(of, W::default())
            }
            (At::Asking(seen), Event::Paused) => self.ask(of, seen.unwrap_or_default()),
            (At::Waiting(_) | At::Draining, Event::Paused) => self.post(of),
            (At::Behind, Event::Told) => Step::Listen,
            (At::Telling(false), Event::Told) => Step::Gone(Ok(())),
            (At::Telling(true), Event::Told) => self.post(of),
            (At::Held, Event::Leave) => self.leave(of),
            (At::Waiting(seen), Event::Leave) => self.withdraw(of, seen),
            // The use has left nothing in the word.
            (At::Joining | At::Asking(_), Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => self.lost(of),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

/// Three leases, and the drift of clocks meanwhile: one part in ten thousand.
fn keeper_rules<W: Layout>() -> KeeperRules {
    KeeperRules {
        look: Duration::from_millis(5),
        patience: Duration::from_micros(3 * (10_000 + 1)),
        again: LEASE,
        count: |[first, second]| W::found(first, &[second]).releases(),
        freed: |[first, second]| W::found(first, &[second]).freed().words(),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wide_tests;
