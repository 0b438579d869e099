//! The trait of a lock system: each use of a lock is a state machine over the words that its verbs
//! find.
//!
//! A *use* is one acquisition, the time for which the lock is held, and the release. What is to be
//! done next is a [`Step`]; what has happened is an [`Event`]. The machines neither post nor wait,
//! so tests and models drive them without a fabric; `client` drives them over one.

use std::fmt::Debug;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::verbs::Capabilities;

use super::{Backoff, Keeping, Notice, Waiter, WideVerb};
use crate::word::{Claimant, Head, Mode, QueuePart};

/// Treatment of holders that are late or lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Recovery {
    /// As published: a lock may be taken from a holder that only was slow.
    Paper,
    /// A lock is taken from a node only once it can reach the memory no more.
    #[default]
    Fenced,
}

/// One request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Mode in which the lock is wanted.
    pub mode: Mode,
    /// Name of the request.
    pub who: Waiter,
    /// The node that asks, in its present life.
    pub life: Claimant,
    /// Number of lease terms that the holder may need, for systems with leases (DSLR §5.1); at
    /// least one.
    pub terms: u16,
}

/// Reason why a lock is not held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotHeld {
    /// It is another's, and the request does not wait. Give up what else is held, and try again.
    #[error("another holds the lock")]
    Conflict,
    /// It was another's until the deadline. Give up what else is held, and try again.
    #[error("another held the lock until the deadline")]
    TimedOut,
    /// The lock was reset, or is being reset. Try again.
    #[error("the lock was reset")]
    Reset,
    /// The lock's memory node does not answer. Try again later.
    #[error("the lock's memory node does not answer")]
    Unavailable,
    /// This node has been expelled. Stop.
    #[error("this node has been expelled")]
    Expelled,
    /// The lane has too many requests outstanding. Wait for one of them.
    #[error("the lane has {} requests outstanding, and no room for another", Waiter::SLOTS)]
    TooMany,
    /// The lock is held to read, and only update locks may be upgraded. Release it first.
    #[error("a lock that is held to read cannot be upgraded, only an update lock can")]
    Unsupported,
}

/// A verb on the head of a lock object, its first word; or on the second
/// ([`LockSystem::TWO_WORDS`]); in systems with queues ([`LockSystem::QUEUES`]) also on the entries
/// behind the claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// READ.
    Read,
    /// Fetch-and-add.
    Add(u64),
    /// Compare-and-swap.
    Swap {
        /// Word that is replaced.
        expected: u64,
        /// Word that replaces it.
        new: u64,
    },
    /// Replaces some bits, whatever the word is. Only where the fabric has masked atomics.
    Exchange {
        /// Bits that are replaced.
        mask: u64,
        /// Their values.
        new: u64,
    },
    /// Compare-and-swap of the bits [`LockSystem::REPLACED`], if those of [`LockSystem::COMPARED`]
    /// are as expected, whatever the others are. Only where the fabric has masked atomics.
    SwapPart {
        /// Bits that are compared.
        expected: u64,
        /// Bits that replace those of the word.
        new: u64,
    },
    /// WRITE of an entry. [`Event::Written`] follows.
    Write {
        /// Number of the entry.
        entry: u32,
        /// The word that is written.
        word: u64,
    },
    /// READ of the head and of entries, in this order, in one round trip.
    ReadQueue(QueuePart),
    /// Fetch-and-add on the head, and READ of entries behind it, in one round trip.
    AddAndRead(u64, QueuePart),
    /// The verb on both words of the lock that [`LockSystem::wide`] says, which has more operands
    /// than a step has room for. Only where the fabric has wide atomics.
    Wide,
}

impl Verb {
    /// Whether the verb is on the entries.
    #[inline]
    pub const fn is_on_entries(self) -> bool {
        matches!(self, Self::Write { .. } | Self::ReadQueue(_) | Self::AddAndRead(..))
    }
}

/// Event in the life of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The acquisition begins, or begins anew after a reset.
    Begin,
    /// The verb has taken effect; the head was this before.
    Found(u64),
    /// The entry is written.
    Written,
    /// The verb had no answer. It has taken effect or never will: its connection is closed.
    Lost,
    /// The pause is over.
    Paused,
    /// The notice is on its way.
    Told,
    /// The holder releases the lock; or the acquisition is given up, with no verb under way and
    /// none of the last step posted.
    Leave,
    /// The holder of an update lock wants to write. Only for systems that promise `upgrades`; it
    /// may come again, and [`Event::Leave`] may come, when an upgrade was given up with no verb
    /// under way whose answer matters.
    Upgrade,
}

/// Next step of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Post the verb. [`Event::Found`] or [`Event::Lost`] follows.
    Post(Verb),
    /// The lock is another's: wait, if only for no time at all. [`Event::Paused`] follows.
    Pause(Duration),
    /// Send the notice to the use that it names. [`Event::Told`] follows.
    Tell(Notice),
    /// Wait for a notice; if the lock is not held yet, it is another's. [`LockSystem::hear`]
    /// follows.
    Listen,
    /// The same for so long at most: [`LockSystem::hear`] or [`Event::Paused`] follows.
    Await(Duration),
    /// The lock is held until [`Event::Leave`].
    Held,
    /// The upgrade has succeeded: the holder is alone, until [`Event::Leave`].
    Upgraded,
    /// The lock is being reset, which erases what the use has added. [`Event::Begin`] may follow
    /// when the reset is over. Of an upgrade: it cannot end, and the lock is held as before.
    Barred,
    /// The same of a lock that is to be reset first, because it has no room for what the use has
    /// added in this generation. Of a use that leaves: it has ended.
    Full(u64),
    /// Nobody can know what the use has added: a reset has to erase it.
    Doubt,
    /// The use has ended, and nothing of it is left in the word, except after
    /// [`NotHeld::Unavailable`].
    Gone(Result<(), NotHeld>),
}

/// A step is handed on by each verb: what few systems need must not make it larger.
const _: () = assert!(size_of::<Step>() == size_of::<Verb>());

/// What a step may look at.
pub struct View<'a> {
    /// The clock. It costs more than a step.
    pub clock: &'a dyn Fn() -> Nanos,
    /// Time at which the last verb was posted, for systems with leases.
    pub posted: Nanos,
    /// Randomness.
    pub rng: &'a mut SmallRng,
    /// The back-off of the lane.
    pub backoff: &'a mut Backoff,
    /// See [`super::Peers::is_settled`].
    pub is_settled: &'a dyn Fn(Claimant) -> bool,
    /// The entries, as the use's last verb that reads them has found them, with zeroes for those
    /// that it has not read; none before. Of a lock of 16 bytes, its second word, as the last verb
    /// has found it.
    pub entries: &'a [u64],
}

impl View<'_> {
    /// The time.
    pub fn now(&self) -> Nanos {
        (self.clock)()
    }

    /// Time until the next try of a request that has failed `failures` times.
    pub fn back_off(&mut self, failures: u32) -> Duration {
        let now = if self.backoff.is_none() { Nanos(0) } else { self.now() };
        self.backoff.failed(failures, now, self.rng)
    }
}

/// What users may rely on; the conformance suite demands it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promises {
    /// Readers hold the lock together.
    pub shares: bool,
    /// Locks are granted in the order in which the first verbs take effect.
    pub in_order: bool,
    /// A node that dies keeps no lock for ever, and nobody holds a lock beside another whatever
    /// stops or pauses.
    pub survives_losses: bool,
    /// There are update locks. If not, they are exclusive ones.
    pub upgrades: bool,
}

/// Counts of one lane. `+=` adds up several lanes, `-` is what came between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Locks acquired.
    pub acquired: u64,
    /// Acquisitions that found the lock taken.
    pub waited: u64,
    /// Verbs of acquisitions beyond the first of each.
    pub retries: u64,
    /// Acquisitions and upgrades given up at their deadline.
    pub timed_out: u64,
    /// Waiters left behind in a queue, to take their turn and release at once.
    pub ghosts: u64,
    /// Acquisitions and releases that met a reset.
    pub barred: u64,
    /// Resets carried out by this lane.
    pub resets: u64,
    /// Time that they took until the lock was free again, in nanoseconds; of locks
    /// that a keeper frees it is not taken.
    pub reset_ns: u64,
    /// READs of entries by releases beyond their first ([`Verb::ReadQueue`]).
    pub refetches: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.acquired += other.acquired;
        self.waited += other.waited;
        self.retries += other.retries;
        self.timed_out += other.timed_out;
        self.ghosts += other.ghosts;
        self.barred += other.barred;
        self.resets += other.resets;
        self.reset_ns += other.reset_ns;
        self.refetches += other.refetches;
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    /// Counts between the earlier counts `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            acquired: self.acquired - earlier.acquired,
            waited: self.waited - earlier.waited,
            retries: self.retries - earlier.retries,
            timed_out: self.timed_out - earlier.timed_out,
            ghosts: self.ghosts - earlier.ghosts,
            barred: self.barred - earlier.barred,
            resets: self.resets - earlier.resets,
            reset_ns: self.reset_ns - earlier.reset_ns,
            refetches: self.refetches - earlier.refetches,
        }
    }
}

/// A lock system.
pub trait LockSystem: 'static {
    /// State of a use.
    type Use: Copy + Debug;

    /// Whether uses tell one another of themselves, by [`Step::Tell`].
    const TELLS: bool = false;

    /// Whether a release takes effect behind everything that its lane has posted to the memory node
    /// before, answered or not: it begins with a verb, and tells others only when that is answered.
    /// So a holder may post its WRITEs and release the lock at once.
    const RELEASES_IN_ORDER: bool = !Self::TELLS;

    /// Whether verbs may be on the second word of the lock object, which then has counters; it is
    /// no claim, so the locks are never reset.
    const TWO_WORDS: bool = false;
    /// Whether locks have homes: a lane of those that use it, which counts readers that a writer
    /// waits for ([`Said::is_for_home`](super::Said::is_for_home)). Its name is in the second word
    /// of the lock object. Such locks are not reset.
    const HAS_HOMES: bool = false;
    /// Whether the lock is two words, at an address that is a multiple of sixteen, which
    /// [`Verb::Read`] and [`Verb::Wide`] find together, and nothing else does: in
    /// [`Event::Found`] is the first one, in [`View::entries`] the second. Such locks are had where
    /// the fabric has wide atomics, and are not reset.
    const WIDE: bool = false;
    /// Bytes of which the address of a lock object has to be a multiple.
    const ALIGNMENT: u64 = if Self::WIDE { 16 } else { 8 };
    /// Whether locks as published are freed by a keeper; see [`Self::keeping`].
    const KEEPS: bool = false;

    /// Bits that [`Verb::SwapPart`] compares.
    const COMPARED: u64 = u64::MAX;

    /// Bits that [`Verb::SwapPart`] replaces.
    const REPLACED: u64 = u64::MAX;

    /// Whether the first of two notices [`Said::Successor`] to one name is of a later enqueue than
    /// the second, by what they say. `None` where the word names the enqueue that is told.
    ///
    /// [`Said::Successor`]: super::Said::Successor
    const LATER: Option<fn(u64, u64) -> bool> = None;
    /// Whether what they tell one another is a turn ([`Self::turn`]) and is said once: it is not
    /// acknowledged, because a use that misses it finds its turn in the words of the lock.
    const TELLS_ONCE: bool = false;

    /// Whether lock objects have entries behind head and claim, which verbs write and read. A lane
    /// posts no request for a lock any more that was full, or marked, until it has been reset:
    /// each would add to the head, and its fields have only so much room.
    const QUEUES: bool = false;

    /// Name, as on the command line.
    fn name(&self) -> &'static str;

    /// What users may rely on.
    fn promises(&self) -> Promises;

    /// The back-off that a lane's requests share.
    fn pacing(&self) -> super::Pacing {
        super::Pacing::NONE
    }

    /// Whether an acquisition may be given up where it is now, with no verb under way. If not, it
    /// has a place in a queue, which it cannot leave before its turn.
    fn can_leave(&self, _of: &Self::Use) -> bool {
        true
    }

    /// Fields of the head that a reset uses; `None` if the locks are never reset. Objects of locks
    /// that are reset have a second word, the claim.
    fn head(&self) -> Option<Head>;

    /// Whether nobody holds the lock of this head, and nobody waits for it.
    fn is_free(&self, head: u64) -> bool;

    /// Whether the lock of an object that begins with these words is free, without waiters. The
    /// second word may be none of the lock's.
    fn is_unused(&self, words: [u64; 2]) -> bool {
        self.is_free(words[0])
    }

    /// How a keeper frees the locks, if one does: only where they are not reset.
    fn keeping(&self) -> Option<Keeping> {
        None
    }

    /// Whether the keeper has freed the lock of these words since the use is in them; the second
    /// is 0 unless the lock has it.
    fn was_freed(&self, _of: &Self::Use, _words: [u64; 2]) -> bool {
        false
    }

    /// Bytes of a lock object.
    fn object_bytes(&self) -> u64 {
        let has_second = self.head().is_some() || Self::TWO_WORDS || Self::HAS_HOMES;
        let head = if has_second { 16 } else { 8 };
        head + 8 * u64::from(self.entries())
    }

    /// Number of entries of a lock object, each a word.
    fn entries(&self) -> u32 {
        0
    }

    /// A use that has not begun.
    fn start(&self, request: Request) -> Self::Use;

    /// Takes note of what the fabric can do, before the first use.
    fn fit(&mut self, _fabric: &Capabilities) {}

    /// Names a use anew, by a number that its lane has never given before; before each
    /// [`Event::Begin`], where uses tell one another of themselves.
    fn renumber(&self, _of: &mut Self::Use, _number: u64) {}

    /// Whether the verb of the last step is on the second word ([`Self::TWO_WORDS`]).
    fn is_second(&self, _of: &Self::Use) -> bool {
        false
    }

    /// The verb of the last step, if it is [`Verb::Wide`].
    fn wide(&self, of: &Self::Use) -> WideVerb {
        unreachable!("{of:?} has no verb on two words")
    }

    /// What the notice of the last [`Step::Tell`] says beside its names, in a form of the system's
    /// own.
    fn says(&self, _of: &Self::Use) -> u64 {
        0
    }

    /// Whether a use that listens hears of readers now ([`Said::Joins`](super::Said::Joins)): each
    /// of them, one after another. Until then they wait.
    fn gathers(&self, _of: &Self::Use) -> bool {
        false
    }

    /// Takes note of what a notice says, before [`Self::hear`]. Returns whether it is for this use;
    /// if not, it counts as one that has not come.
    fn take_note(&self, _of: &mut Self::Use, _notice: Notice, _says: u64) -> bool {
        true
    }

    /// Number of the turn that a use waits for, among all turns of the lock. A notice to the use
    /// that names another one is dropped ([`Self::TELLS_ONCE`]).
    fn turn(&self, _of: &Self::Use) -> u64 {
        0
    }

    /// The next step of a use that listens, or holds the lock, after a notice to it. Each use
    /// hears of one successor at most, beside readers, and is handed the lock once at most.
    fn hear(&self, of: &mut Self::Use, notice: Notice) -> Step {
        unreachable!("{notice:?} to {of:?}, which listens to none")
    }

    /// Notes the time of a request, for queues that have it: by the
    /// clock of its node, in microseconds. Not called where the clients of a node ask each for
    /// themselves.
    fn stamp(&self, _of: &mut Self::Use, _time: u16) {}

    /// Time of the earliest waiter of another node, if a use that holds its lock was told of one.
    fn next_time(&self, _of: &Self::Use) -> Option<u16> {
        None
    }

    /// Time of the earliest waiter that is of another node than `node`, if the words have one.
    fn earliest(&self, _head: u64, _entries: &[u64], _node: u8) -> Option<u16> {
        None
    }

    /// Whether a writer may wait for the lock of this head, which readers hold. True where the
    /// head does not tell.
    fn may_have_writer(&self, _head: u64) -> bool {
        true
    }

    /// The next step of a use after an event.
    fn step(&self, of: &mut Self::Use, event: Event, view: &mut View<'_>) -> Step;

    /// Whether a reset frees the head by a WRITE, whatever it has become meanwhile, as published
    /// (DecLock §4.4).
    fn is_forced(&self) -> bool {
        false
    }

    /// Whether locks are leased, so that the times of verbs matter, and readers have to see that
    /// theirs lasts still before they use what they have read.
    fn has_leases(&self) -> bool {
        false
    }

    /// Time until which a use that holds its lock may rely on it.
    fn holds_until(&self, _of: &Self::Use) -> Nanos {
        Nanos::NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another number in each field, so that no two can be mixed up.
    fn counts(first: u64) -> Counts {
        Counts {
            acquired: first,
            waited: 2 * first,
            retries: 3 * first,
            timed_out: 4 * first,
            ghosts: 5 * first,
            barred: 6 * first,
            resets: 7 * first,
            reset_ns: 8 * first,
            refetches: 9 * first,
        }
    }

    #[test]
    fn what_was_added_is_the_difference() {
        let (before, more) = (counts(100), counts(1));
        let mut after = before;
        after += more;
        assert_eq!(after, counts(101));
        assert_eq!(after - before, more);
        assert_eq!(after - after, Counts::default());
    }
}
