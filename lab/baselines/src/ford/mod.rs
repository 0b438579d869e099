//! FORD (FAST 2022), the single-version engine that LOTUS is compared with (LOTUS §8).
//!
//! # What it is
//! A row has one version, in its slot of the index, behind the version number and the lock. Locking
//! is combined with reading: a row with a known address is locked and read in one doorbell. The old
//! rows go to a log on every memory node while the transaction computes. Validation reads version
//! numbers again. A commit writes every replica and waits for completion, then releases the locks
//! without waiting.
//!
//! # What it is not
//! A system that recovers: the log is written and never read. FORD is made for persistent memory;
//! here it runs on plain memory, as in LOTUS's evaluation. FORD has no snapshots, so it is
//! serializable only.
//!
//! # As published, and mended
//! Validation as published compares versions and ignores locks, so write skew passes. An abort
//! releases every lock that it has tried to acquire, even locks of other transactions. Both faults
//! are mended by default, and present on demand ([`Faults::AsPublished`](crate::Faults)).
//!
//! * `item`: bytes of a row;
//! * `txn`: a transaction until its commit; `commit`: its commit.

mod commit;
mod item;
mod txn;

use lotus_mvcc::{PrimaryKey, TableSpec};

use crate::store::index::Geometry;
use crate::store::{Options, Stored, System};
use item::{LOCK_AT, Shape};

/// Maximum number of slots of a bucket, as in FORD's program.
const SLOTS: u64 = 22;
/// Largest bucket, in bytes: one READ fetches it.
const BUCKET_BYTES: usize = lotus_fabric::verbs::MAX_VERB_BYTES;
/// Slots for each hundred rows of an index's capacity.
const ROOM_PERCENT: u64 = 140;

/// FORD.
pub(crate) struct Ford;

impl System for Ford {
    type Shape = Shape;

    fn shape(_spec: &TableSpec, longest: usize, options: &Options) -> Shape {
        Shape::new(longest, options.ford.item_bytes)
    }

    fn geometry(shape: Shape, capacity: u64, dense: bool) -> Geometry {
        let slot_bytes = shape.words * item::WORD;
        let slots_per_bucket = SLOTS.min((BUCKET_BYTES / slot_bytes) as u64).max(1);
        let slots = if dense { capacity } else { capacity * ROOM_PERCENT / 100 };
        Geometry::of_slots(slots, slots_per_bucket, dense, (shape.words, 0))
    }

    fn lay_out(
        _shape: Shape,
        table: usize,
        row: (&PrimaryKey, &[u8], Option<u64>),
        slot: &mut [u64],
        _beside: &mut [u64],
    ) {
        item::lay_out(table, (row.0, row.1), slot);
    }

    fn key_in(slot: &[u64]) -> Option<PrimaryKey> {
        item::key_in(slot)
    }

    fn is_locked(slot: &[u64]) -> bool {
        slot[LOCK_AT] != 0
    }

    fn stored(_shape: Shape, slot: &[u64], _beside: &[u64]) -> Result<Stored, String> {
        item::stored(slot)
    }
}
