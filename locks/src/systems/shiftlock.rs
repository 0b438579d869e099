//! `shiftlock`: a queue of writers that hand the lock on, beside a count of readers (ShiftLock §3).
//! The lock is a [`ShiftWord`], half as long as the published one; or, in [`ShiftLockWide`], a
//! [`WideShiftWord`], which is that one.
//!
//! *Readers* count themselves. Without a writer they have the lock; otherwise they read the word
//! from time to time until its epoch is another. To release it, they count themselves out, and
//! raise the count of releases.
//!
//! *Writers* make themselves the tail, as in `mcs`. The one that finds neither tail nor readers has
//! the lock; the one that finds readers reads the word until as many have released it. One that
//! finds a tail tells it its name, and waits to be told that the lock is handed over, or that it
//! was given to the readers, and which count of releases says that they have left.
//!
//! *Release of a writer.* The last one in the queue takes its name out of the word, changes the
//! epoch and raises the count, at once. Another raises the count, and when it has the answer it
//! hands the lock to its successor; after [`ShiftLock::THRESHOLD`] writers in a row the atomic also
//! changes the epoch, and its answer says how many readers have the lock then. So a reader waits
//! for as many writers at most, and a writer for one phase of readers (ShiftLock §3.5).
//!
//! # Counts precede hand-overs
//! The last writer in the queue *sets* the count of releases, to one more than the count that it
//! was told. If a hand-over came before the atomic that counts it, that one might land afterwards:
//! the count would be too large by one, and a writer that waits for readers would take the lock
//! while one of them has it. As published, nothing says that the answer is awaited.
//!
//! # Readers that give up
//! A reader takes back its count only as long as the epoch is the one that it has found, by a swap
//! of the whole word. In another epoch it has been admitted, and releases the lock. If it took back
//! its count first, and looked then, a late release might let a writer in beside a reader.
//!
//! # Names that are used again
//! The hand-over names the number of the enqueue that it is for, which the successor has told. The
//! successor itself knows nothing but the name in the word. It says the count of releases that it
//! has found, which is no smaller than what the one before it has found ([`ShiftLock::LATER`]);
//! that of a notice to an earlier use of the name is smaller, because that use has raised the count
//! when it ended. The two are told from each other unless a notice is under way for 2²⁵ releases of
//! the lock: a quarter of a minute at what a network card can do with one word.
//!
//! # As published, and fenced
//! As published, a hand-over is sent with the atomic that counts it, notices are sent once, and a
//! notice is for the present use of the name. Waiters look at the lock every 5 ms; after 30 ms
//! without a release they have its keeper free it, whether its holder is lost or not (ShiftLock
//! §3.6, [`Keeping`]). That adds half of the range to the count, by which other waiters see that
//! they have to begin anew. A holder that only was slow releases what it does not hold any more:
//! the readers are then one less than none, which their field shows as 4,095. Fenced, notices are
//! repeated until they are acknowledged (`client`), and a lock that has lost a node is reset
//! (`crate::reset`).
//!
//! Without masked atomics, a writer swaps the whole word, and tries again as long as others come
//! between; the last writer in the queue does so for as long as readers come.
//!
//! # Of 16 bytes
//! Each of these verbs is one masked atomic on both words, and there is no doing without. The lock
//! has no room for the mark of a reset, so it is had as published only.

mod layout;

use std::marker::PhantomData;
use std::time::Duration;

use lotus_fabric::verbs::Capabilities;
use lotus_sabotage::{Rule, broken};

use crate::contract::{
    Event, Keeping, LockSystem, NotHeld, Notice, Peer, Promises, Recovery, Request, Said, Step,
    Verb, View, Waiter, WideVerb,
};
use crate::word::{Head, Mode, ShiftWord, WideShiftWord};
use layout::{Deed, Layout};

/// Time between two looks at the word: the unit of the back-off of ShiftLock §2.3.
const LOOK: Duration = Duration::from_nanos(1862);

/// Longest time for which a holder has the lock, as published (ShiftLock §3.6).
const LEASE: Duration = Duration::from_millis(10);

/// Most writers that hold a lock one after another: hand-overs have twelve bits for their number.
const MAX_THRESHOLD: u16 = 4095;

/// The system in words of eight bytes. See the module's documentation.
pub type ShiftLock = Shifts<ShiftWord>;

/// The system in 16 bytes, as published. See the module's documentation.
pub type ShiftLockWide = Shifts<WideShiftWord>;

/// The system, on locks of this layout.
#[derive(Clone, Copy, Debug)]
pub struct Shifts<W> {
    recovery: Recovery,
    /// Number of writers that hold the lock one after another before the readers have it.
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
    /// The word that it has found when it counted itself, or made itself the tail.
    entry: W,
    /// A writer's: count of releases and epoch while it holds the lock. Before that, they are those
    /// that it has found or was told of; afterwards, those that it tells.
    now: W,
    /// Number of writers that have held the lock since the readers, before it.
    writers: u16,
    successor: Option<Peer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At<W> {
    /// A reader counts itself, or is about to.
    Joining,
    /// A reader waits for the next epoch; the word that it has found last.
    Waiting(W),
    /// A reader takes back its count from this word.
    Withdrawing(W),
    /// A reader releases the lock.
    Leaving,
    /// A writer makes itself the tail, or is about to; the word that a swap expects, without masks.
    Asking(Option<W>),
    /// It has told the one before it, or is about to, and waits to be told.
    Behind,
    /// It waits for the readers: for a count of releases that it knows.
    Draining,
    Held,
    /// It takes its name out of the word; the word that a swap expects, without masks.
    Closing(Option<W>),
    /// Another has come after it; it is not known yet which one.
    Followed,
    /// It counts its release; whether it gives the lock to the readers.
    Counting(bool),
    /// It hands the lock on; whether it counts its release only then.
    Telling(bool),
}

impl ShiftLock {
    /// Number of writers that hold the lock one after another before the readers have it
    /// (ShiftLock §3.5.2).
    pub const THRESHOLD: u16 = 16;

    /// Largest number of requests for one lock that may be outstanding together: as many readers
    /// have room in the word.
    pub const CAPACITY: u32 = ShiftWord::MAX_READERS;

    /// The system, with this treatment of lost holders. The readers have the lock after `threshold`
    /// writers in a row: after one if that is zero, and after 4,095 at the latest.
    pub const fn new(recovery: Recovery, threshold: u16) -> Self {
        Self::of(recovery, threshold)
    }
}

impl ShiftLockWide {
    /// Largest number of requests for one lock that may be outstanding together: as many readers
    /// have room in the lock.
    pub const CAPACITY: u32 = WideShiftWord::MAX_READERS;

    /// The system, as published (ShiftLock §3.7). The threshold is that of [`ShiftLock::new`].
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
    /// What a use does to the lock where it is.
    #[inline(always)]
    fn deed(of: &ShiftUse<W>) -> Deed<W> {
        match of.at {
            At::Joining => Deed::Join,
            At::Waiting(_) | At::Draining => Deed::Read,
            At::Withdrawing(seen) => Deed::Withdraw(seen),
            At::Leaving => Deed::Leave,
            At::Asking(seen) => Deed::Enqueue(of.me.who, seen.unwrap_or_default()),
            At::Closing(Some(seen)) => Deed::Close(seen),
            At::Closing(None) => Deed::Close(of.now.with_tail(of.me.who.raw()).with_readers(0)),
            At::Counting(true) => Deed::Count(Some(of.now.is_odd())),
            At::Counting(false) | At::Telling(true) => Deed::Count(None),
            at @ (At::Behind | At::Held | At::Followed | At::Telling(false)) => {
                unreachable!("nothing is done to the lock at {at:?}")
            }
        }
    }

    /// Posts the verb of a use that has come so far.
    #[inline(always)]
    fn post(&self, of: &ShiftUse<W>) -> Step {
        Step::Post(W::verb(Self::deed(of), self.has_masks))
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

    /// What a reader has found that counts itself.
    #[inline]
    fn joined(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        if found.is_resetting() {
            return Step::Barred;
        }
        let readers = found.readers();
        // As published, it may be one less than none.
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

    /// What a reader sees that waits.
    fn looked(&self, of: &mut ShiftUse<W>, found: W) -> Step {
        // Before the epoch, which says nothing then.
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

    /// A reader gives up, and has seen this word last.
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

    /// What it has found that makes a writer the tail.
    #[inline]
    fn asked(&self, of: &mut ShiftUse<W>, expected: Option<W>, found: W) -> Step {
        if found.is_resetting() {
            return Step::Barred;
        }
        if expected.is_some_and(|expected| expected != found) {
            if found.is_free() {
                return self.ask(of, found);
            }
            // Not in the queue yet, it may still go.
            of.at = At::Asking(Some(found));
            return Step::Pause(Duration::ZERO);
        }
        (of.entry, of.now) = (found, found);
        if let Some(who) = Waiter::of(found.tail()) {
            of.at = At::Behind;
            return Step::Tell(Notice::new(Said::Successor, Peer { who, number: 0 }));
        }
        if found.readers() == 0 {
            of.at = At::Held;
            return Step::Held;
        }
        of.now = found.plus(found.readers());
        of.at = At::Draining;
        Step::Pause(LOOK)
    }

    /// What a writer sees that waits for readers.
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

    /// What it has found that takes its name out.
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

    /// Counts a writer's release, before the lock is its successor's.
    fn pass_on(&self, of: &mut ShiftUse<W>, successor: Peer) -> Step {
        let changes = of.writers.saturating_add(1) >= self.threshold;
        let is_early = self.recovery == Recovery::Paper || broken(Rule::CountsPrecedeHandovers);
        if is_early && !changes {
            (of.writers, of.at) = (of.writers + 1, At::Telling(true));
            of.now = of.now.plus(1);
            return Step::Tell(Notice::new(Said::Handover, successor));
        }
        of.at = At::Counting(changes);
        self.post(of)
    }

    /// What it has found that counts a writer's release.
    fn counted(of: &mut ShiftUse<W>, changes: bool, found: W) -> Step {
        if found.is_resetting() {
            return Step::Gone(Ok(()));
        }
        let successor = of.successor.expect("it is passed on to somebody");
        let releases = if changes { 1 + found.readers() } else { 1 };

        of.now = found.plus(releases).in_epoch(found.is_odd() != changes);
        of.writers = if changes { 0 } else { of.writers + 1 };
        of.at = At::Telling(false);
        let said = if changes { Said::ModeChanged } else { Said::Handover };
        Step::Tell(Notice::new(said, successor))
    }

    /// What a use does when its verb had no answer.
    fn lost(&self, of: &ShiftUse<W>) -> Step {
        match (of.at, self.recovery) {
            // A READ changes nothing, so there is nothing to doubt.
            (At::Waiting(_) | At::Draining, _) => self.post(of),
            (_, Recovery::Fenced) => Step::Doubt,
            (_, Recovery::Paper) => Step::Gone(Err(NotHeld::Unavailable)),
        }
    }

    /// What the verb of a use has found.
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

    fn promises(&self) -> Promises {
        let survives_losses = self.recovery == Recovery::Fenced;
        Promises { shares: true, in_order: false, survives_losses, upgrades: false }
    }

    fn keeping(&self) -> Option<Keeping> {
        (self.recovery == Recovery::Paper).then(keeping::<W>)
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
        W::wide(Self::deed(of))
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

    /// Count of releases, epoch, and number of writers in a row.
    fn says(&self, of: &ShiftUse<W>) -> u64 {
        of.now.says(of.writers)
    }

    fn take_note(&self, of: &mut ShiftUse<W>, notice: Notice, says: u64) -> bool {
        match notice.said() {
            Said::Successor => {
                let is_known = self.recovery == Recovery::Paper || of.entry.is_said_since(says);
                is_known && !of.is_reader
            }
            // As published, it may be meant for a former use of the name, whatever this one does.
            Said::Handover | Said::ModeChanged
                if self.recovery == Recovery::Paper && of.at != At::Behind =>
            {
                false
            }
            Said::Handover | Said::ModeChanged => {
                (of.now, of.writers) = of.entry.told(says);
                true
            }
            Said::Joins | Said::Awaits | Said::Left => false,
        }
    }

    fn hear(&self, of: &mut ShiftUse<W>, notice: Notice) -> Step {
        match (of.at, notice.said()) {
            (At::Behind, Said::Handover) => {
                of.at = At::Held;
                Step::Held
            }
            (At::Behind, Said::ModeChanged) => {
                of.at = At::Draining;
                Step::Post(Verb::Read)
            }
            (At::Behind | At::Held | At::Followed, Said::Successor) => {
                of.successor = Some(notice.peer());
                match of.at {
                    At::Behind => Step::Listen,
                    At::Held => Step::Held,
                    _ => self.pass_on(of, notice.peer()),
                }
            }
            (at, said) => unreachable!("{said:?} at {at:?}"),
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
            // Nothing of it is in the word.
            (At::Joining | At::Asking(_), Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => self.lost(of),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

/// Three leases, and what clocks drift apart meanwhile: one part in ten thousand.
fn keeping<W: Layout>() -> Keeping {
    Keeping {
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
