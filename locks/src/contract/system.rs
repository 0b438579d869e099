//! The trait of a lock system: each use of a lock is a state machine over the words that its verbs
//! find.
//!
//! A *use* is one acquisition, the time for which the lock is held, and the release. A [`Step`]
//! says what to do next; an [`Event`] says what has happened. The machines neither post nor wait,
//! so tests and models drive them without a fabric; `client` drives them over a fabric.

use std::fmt::Debug;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::verbs::Capabilities;

use super::{Backoff, KeeperRules, Notice, Waiter, WideVerb};
use crate::word::{Claimant, Head, Mode, QueuePart};

/// Treatment of late or lost holders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Recovery {
    /// As published: a lock may be taken from a slow holder.
    Paper,
    /// A lock is taken from a node only once the node can reach the memory no more.
    #[default]
    Fenced,
}

/// One request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Requested lock mode.
    pub mode: Mode,
    /// Name of the request.
    pub who: Waiter,
    /// The requesting node, in its present life.
    pub life: Claimant,
    /// Number of lease terms that the holder may need, for systems with leases (DSLR §5.1); at
    /// least one.
    pub terms: u16,
}

/// Reason why a lock is not held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotHeld {
    /// Another request holds the lock, and this request does not wait. Release all other locks, and
    /// try again.
    #[error("another holds the lock")]
    Conflict,
    /// Another request held the lock until the deadline. Release all other locks, and try again.
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
    /// The lane has too many requests outstanding. Wait for a request to end.
    #[error("the lane has {} requests outstanding, and no room for another", Waiter::SLOTS)]
    TooMany,
    /// The lock is held to read, and only update locks may be upgraded. Release the lock first.
    #[error("a lock that is held to read cannot be upgraded, only an update lock can")]
    Unsupported,
}

/// A verb on the head of a lock object, its first word; or on the second word
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
        /// The replacing word.
        new: u64,
    },
    /// Replaces some bits, whatever the word is. Only where the fabric has masked atomics.
    Exchange {
        /// Replaced bits.
        mask: u64,
        /// New values of the bits.
        new: u64,
    },
    /// Compare-and-swap of the bits [`LockSystem::REPLACED`], if the bits [`LockSystem::COMPARED`]
    /// are as expected, whatever the remaining bits are. Only where the fabric has masked atomics.
    SwapPart {
        /// Expected values of the compared bits.
        expected: u64,
        /// New values of the replaced bits.
        new: u64,
    },
    /// WRITE of an entry. [`Event::Written`] follows.
    Write {
        /// Number of the entry.
        entry: u32,
        /// The written word.
        word: u64,
    },
    /// READ of the head and of entries, in this order, in one round trip.
    ReadQueue(QueuePart),
    /// Fetch-and-add on the head, and READ of entries behind the head, in one round trip.
    AddAndRead(u64, QueuePart),
    /// The verb on both words of the lock that [`LockSystem::wide`] returns: its operands do not
    /// fit into a step. Only where the fabric has wide atomics.
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
    /// The verb has taken effect; the value is the head before the verb.
    Found(u64),
    /// The entry is written.
    Written,
    /// The verb had no answer. The verb has taken effect or never will: its connection is closed.
    Lost,
    /// The pause is over.
    Paused,
    /// The notice is on its way.
    Told,
    /// The holder releases the lock. Or the acquisition is given up, with no verb under way and the
    /// verb of the last step not posted.
    Leave,
    /// The holder of an update lock wants to write. Only for systems that promise `upgrades`. When
    /// an upgrade was given up with no verb under way whose answer matters, this event may come
    /// again, and [`Event::Leave`] may come.
    Upgrade,
}

/// Next step of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Post the verb. [`Event::Found`] or [`Event::Lost`] follows.
    Post(Verb),
    /// Another request holds the lock: wait, possibly for zero time. [`Event::Paused`] follows.
    Pause(Duration),
    /// Send the notice to the use named in it. [`Event::Told`] follows.
    Tell(Notice),
    /// Wait for a notice. If the lock is not held yet, another request holds it.
    /// [`LockSystem::hear`] follows.
    Listen,
    /// As [`Step::Listen`], for at most this time: [`LockSystem::hear`] or [`Event::Paused`]
    /// follows.
    Await(Duration),
    /// The lock is held until [`Event::Leave`].
    Held,
    /// The upgrade has succeeded: the holder is alone, until [`Event::Leave`].
    Upgraded,
    /// The lock is being reset, which erases what the use has added. [`Event::Begin`] may follow
    /// when the reset is over. For an upgrade: the upgrade cannot end, and the lock is held as
    /// before.
    Barred,
    /// As [`Step::Barred`], for a lock that has to be reset first, because it has no room for what
    /// the use has added in this generation. For a leaving use: the use has ended.
    Full(u64),
    /// Nobody can know what the use has added: a reset has to erase it. The verb is not repeated
    /// (I295).
    Doubt,
    /// The use has ended, and has left nothing in the word, except after [`NotHeld::Unavailable`].
    Gone(Result<(), NotHeld>),
}

/// Each verb hands a step on, so operands of few systems must not make the step larger.
const _: () = assert!(size_of::<Step>() == size_of::<Verb>());

/// Inputs of a step beside the event.
pub struct View<'a> {
    /// The clock. A reading costs more than a step.
    pub clock: &'a dyn Fn() -> Nanos,
    /// Time at which the last verb was posted, for systems with leases.
    pub posted: Nanos,
    /// Randomness.
    pub rng: &'a mut SmallRng,
    /// The back-off of the lane.
    pub backoff: &'a mut Backoff,
    /// See [`super::Peers::is_settled`].
    pub is_settled: &'a dyn Fn(Claimant) -> bool,
    /// The entries, as read by the use's last verb on entries, with zeroes for unread entries;
    /// empty before the first read. For a lock of 16 bytes: its second word, as read by the last
    /// verb.
    pub entries: &'a [u64],
}

impl View<'_> {
    /// The time.
    pub fn now(&self) -> Nanos {
        (self.clock)()
    }

    /// Returns the time until the next try of a request that has failed `failures` times.
    pub fn back_off(&mut self, failures: u32) -> Duration {
        let now = if self.backoff.is_none() { Nanos(0) } else { self.now() };
        self.backoff.failed(failures, now, self.rng)
    }
}

/// Guarantees to users, checked by the conformance suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guarantees {
    /// Readers hold the lock together.
    pub shares: bool,
    /// Locks are granted in the order in which the first verbs take effect.
    pub in_order: bool,
    /// A dead node keeps no lock for ever, and exclusion holds whatever stops or pauses.
    pub survives_losses: bool,
    /// The system has update locks. If not, update locks are exclusive locks.
    pub upgrades: bool,
}

/// Counts of one lane. `+=` adds up several lanes, `-` is the difference between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Locks acquired.
    pub acquired: u64,
    /// Acquisitions that found the lock taken.
    pub waited: u64,
    /// Verbs of acquisitions, without the first of each.
    pub retries: u64,
    /// Acquisitions and upgrades given up at their deadline.
    pub timed_out: u64,
    /// Waiters left behind in a queue, to take their turn and release at once.
    pub ghosts: u64,
    /// Acquisitions and releases that met a reset.
    pub barred: u64,
    /// Resets carried out by this lane.
    pub resets: u64,
    /// Time from the start of these resets until the lock was free again, in nanoseconds; not
    /// measured for locks that a keeper frees.
    pub reset_ns: u64,
    /// READs of entries by releases, without the first of each ([`Verb::ReadQueue`]).
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

    /// Returns the counts between `earlier` and `self`.
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

    /// Whether uses send notices to one another, by [`Step::Tell`].
    const TELLS: bool = false;

    /// Whether a release takes effect behind everything that its lane has posted to the memory node
    /// before, answered or not: the release begins with a verb, and sends notices only after the
    /// answer. So a holder may post its WRITEs and release the lock at once.
    const RELEASES_IN_ORDER: bool = !Self::TELLS;

    /// Whether verbs may be on the second word of the lock object. The second word then has
    /// counters instead of a claim, so the locks are never reset.
    const TWO_WORDS: bool = false;
    /// Whether locks have homes. The home of a lock is one of the lanes that use the lock; it
    /// counts the readers that a writer waits for
    /// ([`NoticeKind::is_for_home`](super::NoticeKind::is_for_home)). The second word of the lock
    /// object names the home. Locks with homes are not reset.
    const HAS_HOMES: bool = false;
    /// Whether the lock is two words, at an address that is a multiple of sixteen. Only
    /// [`Verb::Read`] and [`Verb::Wide`] find both words together: the first in [`Event::Found`],
    /// the second in [`View::entries`]. Wide locks need a fabric with wide atomics, and are not
    /// reset.
    const WIDE: bool = false;
    /// Required alignment of a lock object's address, in bytes.
    const ALIGNMENT: u64 = if Self::WIDE { 16 } else { 8 };
    /// Whether a keeper frees locks as published; see [`Self::keeper_rules`].
    const KEEPS: bool = false;

    /// Bits compared by [`Verb::SwapPart`].
    const COMPARED: u64 = u64::MAX;

    /// Bits replaced by [`Verb::SwapPart`].
    const REPLACED: u64 = u64::MAX;

    /// Whether the first of two notices [`NoticeKind::Successor`] to one name is of a later enqueue
    /// than the second, by their payloads. `None` where the word names the enqueue of the
    /// addressee.
    ///
    /// [`NoticeKind::Successor`]: super::NoticeKind::Successor
    const LATER: Option<fn(u64, u64) -> bool> = None;
    /// Whether notices announce a turn ([`Self::turn`]) and are sent once: they are not
    /// acknowledged, because a use that misses a notice finds its turn in the words of the lock.
    const TELLS_ONCE: bool = false;

    /// Whether lock objects have entries behind head and claim, which verbs write and read. A lane
    /// posts no further request for a lock that was full, or marked, until the lock has been reset:
    /// each request would add to the head, whose fields have limited room.
    const QUEUES: bool = false;

    /// Returns the name, as on the command line.
    fn name(&self) -> &'static str;

    /// Returns the guarantees to users.
    fn guarantees(&self) -> Guarantees;

    /// Returns the constants of the back-off, which the requests of a lane share.
    fn pacing(&self) -> super::Pacing {
        super::Pacing::NONE
    }

    /// Whether an acquisition may be given up in its present state, with no verb under way. If not,
    /// the acquisition has a place in a queue, which it cannot leave before its turn.
    fn can_leave(&self, _of: &Self::Use) -> bool {
        true
    }

    /// Fields of the head that a reset uses; `None` if the locks are never reset. The object of a
    /// resettable lock has a second word, the claim.
    fn head(&self) -> Option<Head>;

    /// Whether a lock with this head has neither holders nor waiters.
    fn is_free(&self, head: u64) -> bool;

    /// Whether the lock of an object that begins with these words is free, without waiters. The
    /// second word may not belong to the lock.
    fn is_unused(&self, words: [u64; 2]) -> bool {
        self.is_free(words[0])
    }

    /// How a keeper frees the locks, if there is a keeper: only where locks are not reset.
    fn keeper_rules(&self) -> Option<KeeperRules> {
        None
    }

    /// Whether the keeper has freed the lock of these words since the use entered the words. The
    /// second word is 0 unless the lock has two.
    fn was_freed(&self, _of: &Self::Use, _words: [u64; 2]) -> bool {
        false
    }

    /// Bytes of a lock object.
    fn object_bytes(&self) -> u64 {
        let has_second = self.head().is_some() || Self::TWO_WORDS || Self::HAS_HOMES;
        let head = if has_second { 16 } else { 8 };
        head + 8 * u64::from(self.entries())
    }

    /// Number of entries of a lock object, a word each.
    fn entries(&self) -> u32 {
        0
    }

    /// Creates a use that has not begun.
    fn start(&self, request: Request) -> Self::Use;

    /// Takes note of the fabric's capabilities, before the first use.
    fn fit(&mut self, _fabric: &Capabilities) {}

    /// Gives a use a new number, which its lane has never given before. Called before
    /// [`Event::Begin`] in systems with notices.
    fn renumber(&self, _of: &mut Self::Use, _number: u64) {}

    /// Whether the verb of the last step is on the second word ([`Self::TWO_WORDS`]).
    fn is_second(&self, _of: &Self::Use) -> bool {
        false
    }

    /// The verb of the last step, if it is [`Verb::Wide`].
    fn wide(&self, of: &Self::Use) -> WideVerb {
        unreachable!("{of:?} has no verb on two words")
    }

    /// Payload of the notice of the last [`Step::Tell`], beside the names, in a format of the lock
    /// system.
    fn says(&self, _of: &Self::Use) -> u64 {
        0
    }

    /// Whether a listening use now hears the notices of readers
    /// ([`NoticeKind::Joins`](super::NoticeKind::Joins)), one after another. Before that, the
    /// notices wait.
    fn gathers(&self, _of: &Self::Use) -> bool {
        false
    }

    /// Takes note of the payload of a notice, before [`Self::hear`]. Returns whether the notice is
    /// for this use; if not, the notice counts as not received.
    fn take_note(&self, _of: &mut Self::Use, _notice: Notice, _says: u64) -> bool {
        true
    }

    /// Number of the turn that a use waits for, among all turns of the lock. A notice to the use
    /// that names another turn is dropped ([`Self::TELLS_ONCE`]).
    fn turn(&self, _of: &Self::Use) -> u64 {
        0
    }

    /// Returns the next step of a use that listens, or holds the lock, after a notice to the use.
    /// Each use hears of at most one successor, beside readers, and is handed the lock at most
    /// once.
    fn hear(&self, of: &mut Self::Use, notice: Notice) -> Step {
        unreachable!("{notice:?} to {of:?}, which listens to none")
    }

    /// Notes the time of a request, for queues that store it: by the
    /// clock of the requesting node, in microseconds. Not called where each client of a node
    /// requests locks alone.
    fn stamp(&self, _of: &mut Self::Use, _time: u16) {}

    /// Returns the request time of the earliest waiter of another node, if a use that holds its
    /// lock was told of such a waiter.
    fn next_time(&self, _of: &Self::Use) -> Option<u16> {
        None
    }

    /// Returns the request time of the earliest waiter of a node other than `node`, if the words
    /// name such a waiter.
    fn earliest(&self, _head: u64, _entries: &[u64], _node: u8) -> Option<u16> {
        None
    }

    /// Whether a writer may wait for the lock of this head while readers hold it. True where the
    /// head does not tell.
    fn may_have_writer(&self, _head: u64) -> bool {
        true
    }

    /// Returns the next step of a use after an event.
    fn step(&self, of: &mut Self::Use, event: Event, view: &mut View<'_>) -> Step;

    /// Whether a reset frees the head by a WRITE, whatever the head has become meanwhile, as
    /// published (DecLock §4.4).
    fn is_forced(&self) -> bool {
        false
    }

    /// Whether locks are leased: the times of verbs matter, and readers have to check that the
    /// lease still lasts before they use data that they have read.
    fn has_leases(&self) -> bool {
        false
    }

    /// Returns the time until which a holding use may rely on its lock.
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
