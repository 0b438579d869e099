//! The two layouts of the lock, one word or two, and the verbs that work on each.

use std::fmt::Debug;
use std::hash::Hash;

use lotus_fabric::wide::WideSwap;

use crate::contract::{Verb, Waiter, WideVerb};
use crate::word::{Head, ShiftWord, WideShiftWord};

/// An operation of a use on the lock.
#[derive(Clone, Copy, Debug)]
pub enum LockOperation<W> {
    /// Reads the lock.
    Read,
    /// Counts a reader.
    Join,
    /// Takes back the count of a reader, if the lock is still this.
    Withdraw(W),
    /// Counts a reader out, and a release in.
    Leave,
    /// Makes a writer the tail; without masks, of this lock.
    Enqueue(Waiter, W),
    /// Takes a writer's name out of the lock, expected to be this, and gives the lock to the
    /// readers.
    Close(W),
    /// Counts a writer's release, and changes the epoch if given.
    Count(Option<bool>),
}

/// The lock as a value: an epoch, a number of readers, a tail, and a count of releases.
pub trait Layout: Copy + Eq + Hash + Debug + Default + 'static {
    /// Name of the lock system.
    const NAME: &'static str;
    /// Whether the lock is two words.
    const IS_WIDE: bool;
    /// Bytes of the lock, and of the words beside it.
    const OBJECT_BYTES: u64;
    /// Fields that a reset uses, if the lock can be reset.
    const HEAD: Option<Head>;
    /// Largest number of readers.
    const MAX_READERS: u32;
    /// See [`crate::LockSystem::COMPARED`].
    const COMPARED: u64 = u64::MAX;
    /// See [`crate::LockSystem::REPLACED`].
    const REPLACED: u64 = u64::MAX;

    /// The lock with this first word; its second word, if the layout has two, is in `rest`.
    fn found(first: u64, rest: &[u64]) -> Self;
    /// The words; the second is 0 in a layout of one word.
    fn words(self) -> [u64; 2];
    /// Number of the waiter that is the tail; 0 without a writer.
    fn tail(self) -> u32;
    /// Whether the epoch is odd.
    fn is_odd(self) -> bool;
    /// Number of readers that hold the lock or wait for it.
    fn readers(self) -> u32;
    /// Number of releases.
    fn releases(self) -> u64;
    /// The lock with this tail.
    #[must_use]
    fn with_tail(self, who: u32) -> Self;
    /// The lock with this number of readers.
    #[must_use]
    fn with_readers(self, readers: u32) -> Self;
    /// The lock in this epoch.
    #[must_use]
    fn in_epoch(self, is_odd: bool) -> Self;
    /// The lock with `releases` more releases.
    #[must_use]
    fn plus(self, releases: u32) -> Self;
    /// Whether the lock is being reset.
    fn is_resetting(self) -> bool;
    /// Whether the lock has neither holders nor waiters.
    fn is_free(self) -> bool;
    /// The lock after its keeper's intervention.
    #[must_use]
    fn freed(self) -> Self;
    /// Whether its keeper has freed the lock since it was `earlier`.
    fn has_leapt(self, earlier: Self) -> bool;

    /// Payload of a notice: count of releases, epoch, and number of consecutive writers.
    fn says(self, writers: u16) -> u64;
    /// Decodes the payload of a notice to a use that has found this lock.
    fn told(self, says: u64) -> (Self, u16);
    /// Whether the count in a payload is the count of this lock, or a later count.
    fn is_said_since(self, says: u64) -> bool;
    /// Whether the count in the first payload is later than the count in the second.
    fn is_later(says: u64, other: u64) -> bool;

    /// The verb of an operation, with masked atomics or without.
    fn verb(operation: LockOperation<Self>, has_masks: bool) -> Verb;
    /// The operands of an operation on two words, where [`Self::verb`] is [`Verb::Wide`].
    fn wide(operation: LockOperation<Self>) -> WideVerb;
}

impl Layout for ShiftWord {
    const NAME: &'static str = "shiftlock";
    const IS_WIDE: bool = false;
    /// The word, and beside it the claim or, as published, the era.
    const OBJECT_BYTES: u64 = 16;
    const HEAD: Option<Head> = Some(Self::HEAD);
    const MAX_READERS: u32 = Self::MAX_READERS;
    const COMPARED: u64 = Self::TAIL;
    const REPLACED: u64 = Self::CLOSED;

    #[inline]
    fn found(first: u64, _: &[u64]) -> Self {
        Self::of(first)
    }

    fn words(self) -> [u64; 2] {
        [self.word(), 0]
    }

    #[inline]
    fn tail(self) -> u32 {
        self.tail()
    }

    #[inline]
    fn is_odd(self) -> bool {
        self.is_odd()
    }

    #[inline]
    fn readers(self) -> u32 {
        self.readers()
    }

    #[inline]
    fn releases(self) -> u64 {
        self.releases().into()
    }

    #[inline]
    fn with_tail(self, who: u32) -> Self {
        self.with_tail(who)
    }

    #[inline]
    fn with_readers(self, readers: u32) -> Self {
        self.with_readers(readers)
    }

    #[inline]
    fn in_epoch(self, is_odd: bool) -> Self {
        self.in_epoch(is_odd)
    }

    #[inline]
    fn plus(self, releases: u32) -> Self {
        self.plus(releases)
    }

    #[inline]
    fn is_resetting(self) -> bool {
        self.is_resetting()
    }

    #[inline]
    fn is_free(self) -> bool {
        self.is_free()
    }

    fn freed(self) -> Self {
        self.freed()
    }

    #[inline]
    fn has_leapt(self, earlier: Self) -> bool {
        self.has_leapt(earlier)
    }

    /// As in the word, with the number of writers in the place of the readers.
    fn says(self, writers: u16) -> u64 {
        let word = Self::free(self.releases()).in_epoch(self.is_odd());
        word.with_readers(writers.into()).word()
    }

    fn told(self, says: u64) -> (Self, u16) {
        (Self::of(says), Self::of(says).readers() as u16)
    }

    fn is_said_since(self, says: u64) -> bool {
        Self::of(says).is_since(self)
    }

    fn is_later(says: u64, other: u64) -> bool {
        !Self::of(other).is_since(Self::of(says))
    }

    #[inline(always)]
    fn verb(operation: LockOperation<Self>, has_masks: bool) -> Verb {
        match operation {
            LockOperation::Read => Verb::Read,
            LockOperation::Join => Verb::Add(Self::READER),
            LockOperation::Withdraw(seen) => {
                let new = seen.word().wrapping_sub(Self::READER);
                Verb::Swap { expected: seen.word(), new }
            }
            LockOperation::Leave => Verb::Add(Self::RELEASE.wrapping_sub(Self::READER)),
            LockOperation::Enqueue(who, _) if has_masks => {
                Verb::Exchange { mask: Self::TAIL, new: Self::of(0).with_tail(who.raw()).word() }
            }
            LockOperation::Enqueue(who, seen) => {
                Verb::Swap { expected: seen.word(), new: seen.with_tail(who.raw()).word() }
            }
            LockOperation::Close(seen) if has_masks => {
                Verb::SwapPart { expected: seen.word(), new: seen.closed().word() }
            }
            LockOperation::Close(seen) => {
                Verb::Swap { expected: seen.word(), new: seen.closed().word() }
            }
            LockOperation::Count(epoch) => {
                let epoch = match epoch {
                    None => 0,
                    Some(false) => Self::EPOCH,
                    Some(true) => Self::EPOCH.wrapping_neg(),
                };
                Verb::Add(Self::RELEASE.wrapping_add(epoch))
            }
        }
    }

    fn wide(operation: LockOperation<Self>) -> WideVerb {
        unreachable!("{operation:?} is done to one word")
    }
}

impl Layout for WideShiftWord {
    const NAME: &'static str = "shiftlock-wide";
    const IS_WIDE: bool = true;
    /// The two words and the era, on a multiple of sixteen.
    const OBJECT_BYTES: u64 = 32;
    const HEAD: Option<Head> = None;
    const MAX_READERS: u32 = Self::MAX_READERS;

    fn found(first: u64, rest: &[u64]) -> Self {
        Self::of([first, rest.first().copied().unwrap_or(0)])
    }

    fn words(self) -> [u64; 2] {
        self.words()
    }

    fn tail(self) -> u32 {
        self.tail()
    }

    fn is_odd(self) -> bool {
        self.is_odd()
    }

    fn readers(self) -> u32 {
        self.readers()
    }

    fn releases(self) -> u64 {
        self.releases()
    }

    fn with_tail(self, who: u32) -> Self {
        self.with_tail(who)
    }

    fn with_readers(self, readers: u32) -> Self {
        self.with_readers(readers)
    }

    fn in_epoch(self, is_odd: bool) -> Self {
        self.in_epoch(is_odd)
    }

    fn plus(self, releases: u32) -> Self {
        self.plus(releases)
    }

    fn is_resetting(self) -> bool {
        false
    }

    fn is_free(self) -> bool {
        self.is_free()
    }

    fn freed(self) -> Self {
        self.freed()
    }

    fn has_leapt(self, earlier: Self) -> bool {
        self.has_leapt(earlier)
    }

    fn says(self, writers: u16) -> u64 {
        self.says(writers)
    }

    fn told(self, says: u64) -> (Self, u16) {
        self.told(says)
    }

    fn is_said_since(self, says: u64) -> bool {
        self.is_said_since(says)
    }

    fn is_later(says: u64, other: u64) -> bool {
        // Any lock serves to compare the payloads.
        let said = |says| Self::default().told(says).0;
        !said(says).is_said_since(other)
    }

    fn verb(operation: LockOperation<Self>, _: bool) -> Verb {
        match operation {
            LockOperation::Read => Verb::Read,
            _ => Verb::Wide,
        }
    }

    fn wide(operation: LockOperation<Self>) -> WideVerb {
        let adds = |addend| WideVerb::Add { addend, boundary: Self::BOUNDARY };
        let (compare, compare_mask, swap, swap_mask) = match operation {
            LockOperation::Join => return adds(Self::READER),
            LockOperation::Leave => return adds(Self::RELEASE | Self::READER_LESS),
            LockOperation::Count(epoch) => {
                return adds(Self::RELEASE | if epoch.is_some() { Self::EPOCH } else { 0 });
            }
            LockOperation::Withdraw(seen) => {
                let new =
                    seen.with_readers(seen.readers().wrapping_sub(1) % (Self::MAX_READERS + 1));
                (seen.value(), u128::MAX, new.value(), u128::MAX)
            }
            LockOperation::Enqueue(who, _) => (0, 0, who.raw().into(), Self::TAIL),
            LockOperation::Close(seen) => {
                (seen.value(), Self::TAIL, seen.closed().value(), Self::CLOSED)
            }
            LockOperation::Read => unreachable!("a READ is none of them"),
        };
        WideVerb::Swap(WideSwap { compare, compare_mask, swap, swap_mask })
    }
}
