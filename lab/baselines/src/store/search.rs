//! Search for a row in a bucket that was read: the row's slot, or the slot for its insertion.

use lotus_mvcc::PrimaryKey;

use super::addresses::Addresses;
use super::index::SlotNumber;
use super::{StoredTable, System};

/// Result of a search in one bucket: a slot, and its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<'w> {
    /// The row's slot.
    There(SlotNumber, &'w [u64]),
    /// The row does not exist; this is the first free slot that could become the row's.
    Free(SlotNumber, &'w [u64]),
    /// The bucket has no free slot: the search continues in the bucket with this number.
    GoOn(u64),
    /// No bucket has a free slot.
    Full,
}

/// Searches for a row in the words of its bucket, and learns the addresses of all rows in the
/// bucket. A free slot with `is_mine`, claimed by the transaction for another row, does not count
/// as free.
pub(crate) fn search<'w, S: System>(
    table: &StoredTable<S>,
    key: &PrimaryKey,
    (bucket, words): (u64, &'w [u64]),
    addresses: &mut Addresses,
    is_mine: impl Fn(SlotNumber) -> bool,
) -> Found<'w> {
    let geometry = &table.geometry;
    let first = bucket * geometry.slots_per_bucket;
    let (mut found, mut free) = (None, None);
    for (slot, words) in (first..).zip(words.chunks_exact(geometry.slot_words)) {
        match S::key_in(words) {
            Some(other) => {
                addresses.learn(table.number, other, slot);
                if other == *key {
                    found = Some(Found::There(slot, words));
                }
            }
            None if free.is_none() && !is_mine(slot) => free = Some(Found::Free(slot, words)),
            None => {}
        }
    }
    let next = geometry.next(bucket);
    let is_over = next == geometry.bucket_of(key);
    found.or(free).unwrap_or(if is_over { Found::Full } else { Found::GoOn(next) })
}

/// Whether a bucket shows that an absent row has been inserted, or may be about to be: its first
/// free slot is locked, as `is_shut_out` judges, or the bucket has no free slot any more.
pub(crate) fn may_have_come<S: System>(
    table: &StoredTable<S>,
    key: &PrimaryKey,
    words: &[u64],
    is_shut_out: impl Fn(&[u64]) -> bool,
) -> bool {
    let mut slots = words.chunks_exact(table.geometry.slot_words);
    if slots.clone().any(|slot| S::key_in(slot).as_ref() == Some(key)) {
        return true;
    }
    slots.find(|slot| S::key_in(slot).is_none()).is_none_or(is_shut_out)
}
