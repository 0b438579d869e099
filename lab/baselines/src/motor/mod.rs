//! Motor (OSDI 2024), the multi-version engine that LOTUS is compared with (LOTUS §8).
//!
//! # What it is
//! Each row has a version table with a lock word, at the row's primary. A transaction locks a row
//! by a compare-and-swap of the lock word and reads the version table behind it in one doorbell; it
//! never waits for a lock. A commit writes value, delta, cell and lock of every replica, without
//! waiting for completion. There is no log: memory is assumed to survive power failures.
//!
//! # What it is not
//! A system that survives a failure: a compute node that stops leaves its locks held, and may tear
//! its last commits. Motor is therefore measured without faults.
//!
//! # As published, and mended
//! Motor's program has faults that a history checker finds. They are mended by default, and present
//! on demand ([`Faults::AsPublished`](crate::Faults)):
//!
//! * an abort releases every lock that it has *tried* to acquire, even if another transaction holds
//!   the lock;
//! * validation compares lock words with a constant that no lock word ever has, so write skew
//!   passes;
//! * readers ignore locks, so they may see one row of a commit, and the previous version of another
//!   row.
//!
//! Timestamps come from a clock that all compute nodes share, as for LOTUS here; the program as
//! published uses a counter in its own process.
//!
//! # On the way to LOTUS
//! Two steps of LOTUS Figure 14 are variants of Motor: a full record for each version
//! ([`Records::Full`](crate::Records)), and in addition a commit with a log entry and a visible
//! step ([`CommitSteps::LogAndVisible`](crate::CommitSteps)). Everything else is unchanged.
//!
//! * `row`: bytes of a row; `decide`: decisions about a row; both are pure;
//! * `txn`: a transaction until its commit; `commit`: its commit; `write`: the WRITEs to one row.

mod commit;
mod decide;
mod row;
mod txn;
mod write;

use lotus_mvcc::{PrimaryKey, TableSpec};

use crate::store::index::Geometry;
use crate::store::{Deltas, Options, Stored, System};
use row::{Cvt, INVISIBLE, LOCK_AT, Shape};
use zerocopy::IntoBytes;

/// Slots of a bucket of hashed keys. A bucket of keys that are numbers has one slot, as in Motor's
/// own loader.
const HASHED_SLOTS: u64 = 4;
/// Slots of a hashed index for each row of its capacity: at most one bucket of twenty has more rows
/// than slots.
const ROOM: u64 = 2;

/// Motor.
pub(crate) struct Motor;

impl System for Motor {
    type Shape = Shape;

    fn shape(spec: &TableSpec, _longest: usize, options: &Options) -> Shape {
        Shape::new(spec, options.records)
    }

    fn geometry(shape: Shape, capacity: u64, dense: bool) -> Geometry {
        let slots_per_bucket = if dense { 1 } else { HASHED_SLOTS };
        let slots = if dense { capacity } else { capacity * ROOM };
        let words = (shape.slot_words(), shape.beside_words());
        Geometry::of_slots(slots, slots_per_bucket, dense, words)
    }

    fn shared_bytes(shape: Shape, options: &Options) -> u64 {
        match options.deltas {
            Deltas::AtFirstUpdate => 0,
            Deltas::Loaded => shape.bar_bytes(),
        }
    }

    fn lay_out(
        shape: Shape,
        table: usize,
        row: (&PrimaryKey, &[u8], Option<u64>),
        slot: &mut [u64],
        beside: &mut [u64],
    ) {
        shape.lay_out(table, row, slot, beside);
    }

    fn key_in(slot: &[u64]) -> Option<PrimaryKey> {
        row::key_in(slot)
    }

    fn is_locked(slot: &[u64]) -> bool {
        slot[LOCK_AT] != 0
    }

    fn stored(shape: Shape, slot: &[u64], beside: &[u64]) -> Result<Stored, String> {
        let key = row::key_in(slot).ok_or("it has no key")?;
        let cvt = Cvt::of(slot).ok_or("a cell is of two versions")?;
        if cvt.newest_version() == INVISIBLE {
            return Err("the newest version is invisible".to_owned());
        }
        let Some(newest) = cvt.newest().filter(|cell| !cell.deleted) else {
            return Ok(Stored { key, value: None });
        };
        let first = usize::from(newest.value_place()) * shape.value_words();
        let value = beside.get(first..first + shape.value_words()).unwrap_or_default();
        let content = shape.content_of(value, cvt.anchor(&newest));
        let content = content.ok_or("the value is not of the newest version")?;
        let bytes = content.as_bytes().get(..newest.bytes as usize);
        let value = bytes.ok_or("the value is longer than the table allows")?.to_vec();
        Ok(Stored { key, value: Some((value, row::writer_of(content))) })
    }
}
