//! Motor's decisions, as functions of the words that were read: the version that a transaction
//! sees, whether the transaction has lost a conflict, the place of its own version. `mod.rs` lists
//! the differences from the published program.

use lotus_benchmarks::engine::{Isolation, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};

use super::row::{Cell, Cvt, Delta, Link};
use crate::store::rows::{CONFLICT, RowUse};
use crate::store::{CommitSteps, Faults, Locking};

/// State of a transaction that its decisions depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TxnView {
    pub(crate) kind: TxnKind,
    /// Snapshot timestamp.
    pub(crate) start: u64,
    /// Transaction id, as stored in lock words.
    pub(crate) id: u64,
    pub(crate) faults: Faults,
    pub(crate) locking: Locking,
}

impl TxnView {
    pub(crate) fn is_serializable_writer(&self) -> bool {
        self.kind == TxnKind::ReadWrite(Isolation::Serializable)
    }

    /// Whether another transaction's lock must be respected. The program as published ignores locks
    /// where it takes none itself.
    pub(crate) fn is_shut_out(&self, lock: u64) -> bool {
        let heeds = self.faults == Faults::Mended && self.locking == Locking::On;
        heeds && lock != 0 && lock != self.id
    }

    /// The version that this transaction reads of a row, locked or only read (`access`). The
    /// version may be a deletion. `None` if the row never existed.
    ///
    /// # Errors
    /// The reason to abort.
    pub(crate) fn version(&self, cvt: &Cvt<'_>, access: RowUse) -> Result<Option<Cell>, TxnError> {
        if access == RowUse::Read && self.is_shut_out(cvt.lock()) {
            return Err(CONFLICT);
        }
        let newest = cvt.newest_version();
        // A serializable transaction would fail at its commit: early abort. A writer must not
        // overwrite a version that is not in its snapshot.
        let must_be_newest = access > RowUse::Read || self.is_serializable_writer();
        if must_be_newest && newest > self.start {
            return Err(CONFLICT);
        }
        if (1..=self.start).contains(&newest) {
            return Ok(cvt.newest());
        }
        let visible = cvt.cells().filter(|cell| (1..=self.start).contains(&cell.version));
        match visible.max_by_key(|cell| cell.version) {
            Some(cell) => Ok(Some(cell)),
            // All versions are newer than the snapshot, and older versions may have existed.
            None if newest != 0 && !self.began_absent(cvt) => {
                Err(TxnError::Aborted(AbortReason::SnapshotTooOld))
            }
            None => Ok(None),
        }
    }

    /// Whether no version of a row was ever replaced, so that the row did not exist before its
    /// first version.
    fn began_absent(&self, cvt: &Cvt<'_>) -> bool {
        cvt.cells().any(|cell| cell.version == 0)
    }

    /// Whether a row that was read at `version`, its newest version then, has changed since, or may
    /// be about to change, as seen by a commit at `commit`.
    pub(crate) fn has_changed(&self, cvt: &Cvt<'_>, version: u64, commit: u64) -> bool {
        let until = cvt.cells().map(|cell| cell.version).filter(|found| *found <= commit);
        self.is_shut_out(cvt.lock()) || until.max().unwrap_or(0) != version
    }
}

/// Place of a new version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VersionPlace {
    /// Number of the cell for the version.
    pub(crate) cell: u8,
    /// Place of the version's delta in the bar.
    pub(crate) delta: u8,
}

/// The place of the next version of a row: a cell without a version or else the cell of the oldest
/// version, and a part of the bar that no remaining version needs.
pub(crate) fn place(cvt: &Cvt<'_>) -> VersionPlace {
    let oldest = cvt.versions().enumerate().min_by_key(|(_, version)| *version);
    let cell = oldest.map_or(0, |(at, _)| at);
    let stay = cvt.versions().enumerate().filter(|(at, version)| *at != cell && *version != 0);
    // The oldest of the remaining versions is never undone.
    let last = stay.map(|(_, version)| version).min().unwrap_or(u64::MAX);
    let needed = cvt.cells().enumerate().filter(|(at, of)| *at != cell && of.version > last);
    let needed = needed.fold(0_u64, |places, (_, of)| match of.link {
        Link::Delta(Delta { place, .. }) => places | 1 << place,
        Link::Record { .. } => places,
    });
    VersionPlace { cell: cell as u8, delta: needed.trailing_ones() as u8 }
}

/// Versions newer than `version` with their deltas, the newest first: the versions to undo. A
/// version with its own record needs no delta.
pub(crate) fn newer(cvt: &Cvt<'_>, version: u64) -> Vec<(u64, Delta)> {
    if cvt.newest_version() == version {
        return Vec::new();
    }
    let newer = cvt.cells().filter(|cell| cell.version > version);
    let deltas = newer.filter_map(|cell| match cell.link {
        Link::Delta(delta) => Some((cell.version, delta)),
        Link::Record { .. } => None,
    });
    let mut deltas: Vec<_> = deltas.collect();
    deltas.sort_unstable_by_key(|(version, _)| std::cmp::Reverse(*version));
    deltas
}

/// Whether a commit draws the timestamp before writing: true for Motor's commit, false for the
/// commit of LOTUS. But rows that were only read, which LOTUS locks, are validated against the
/// timestamp.
pub(crate) fn is_stamped_first(steps: CommitSteps, validates: bool) -> bool {
    match steps {
        CommitSteps::AtOnce => true,
        CommitSteps::LogAndVisible => validates,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::motor::row::{CELL_WORDS, HEADER_WORDS, INVISIBLE, LOCK_AT};

    const SR: TxnKind = TxnKind::ReadWrite(Isolation::Serializable);
    const SI: TxnKind = TxnKind::ReadWrite(Isolation::Snapshot);

    fn cvt(lock: u64, cells: &[Cell]) -> Cvt<'static> {
        let mut slot = vec![0; HEADER_WORDS + cells.len() * CELL_WORDS];
        slot[LOCK_AT] = lock;
        for (words, cell) in slot[HEADER_WORDS..].chunks_mut(CELL_WORDS).zip(cells) {
            words.copy_from_slice(&cell.to_words());
        }
        Cvt::of(Vec::leak(slot)).expect("it is whole")
    }

    fn cell(version: u64) -> Cell {
        Cell { version, ..Cell::default() }
    }

    fn reader(kind: TxnKind, faults: Faults) -> TxnView {
        TxnView { kind, start: 10, id: 77, faults, locking: Locking::On }
    }

    #[test]
    fn a_transaction_sees_its_snapshot_or_aborts() {
        let gone = Cell { deleted: true, ..cell(8) };
        let too_old = TxnError::Aborted(AbortReason::SnapshotTooOld);
        use RowUse::{Read, Write};
        let cases = [
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(5), cell(12)]), Ok(Some(5))),
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(5), cell(10)]), Ok(Some(10))),
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(5), gone]), Ok(Some(8))),
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(11), cell(12)]), Err(too_old)),
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(11), cell(0)]), Ok(None)),
            (TxnKind::ReadOnly, Read, cvt(0, &[cell(0), cell(0)]), Ok(None)),
            (TxnKind::ReadOnly, Read, cvt(99, &[cell(5), cell(0)]), Err(CONFLICT)),
            (SR, Read, cvt(0, &[cell(5), cell(12)]), Err(CONFLICT)),
            (SI, Read, cvt(0, &[cell(5), cell(12)]), Ok(Some(5))),
            (SI, Write, cvt(77, &[cell(5), cell(12)]), Err(CONFLICT)),
            (SI, Write, cvt(77, &[cell(5), cell(9)]), Ok(Some(9))),
            (SR, Read, cvt(77, &[cell(5), cell(9)]), Ok(Some(9))),
        ];
        for (kind, access, cvt, expected) in cases {
            let seen = reader(kind, Faults::Mended).version(&cvt, access);
            assert_eq!(
                seen.map(|cell| cell.map(|cell| cell.version)),
                expected,
                "{kind:?} {cvt:?}"
            );
        }
    }

    #[test]
    fn as_published_locks_are_not_heeded_by_readers_and_validation() {
        let held = cvt(99, &[cell(5), cell(0)]);
        let mended = reader(SR, Faults::Mended);
        let published = reader(SR, Faults::AsPublished);
        assert_eq!(published.version(&held, RowUse::Read), Ok(Some(cell(5))));
        assert!(!published.has_changed(&held, 5, 20) && mended.has_changed(&held, 5, 20));
    }

    #[test]
    fn a_row_has_changed_by_a_version_up_to_the_commit_or_a_lock() {
        let reader = reader(SR, Faults::Mended);
        let cases = [
            (cvt(0, &[cell(5), cell(7)]), false),
            (cvt(77, &[cell(5), cell(7)]), false),
            (cvt(0, &[cell(12), cell(7)]), true),
            (cvt(0, &[cell(30), cell(7)]), false),
            (cvt(98, &[cell(5), cell(7)]), true),
        ];
        for (cvt, expected) in cases {
            assert_eq!(reader.has_changed(&cvt, 7, 20), expected, "{cvt:?}");
        }
    }

    #[test]
    fn a_new_version_takes_the_oldest_cell_and_spares_the_deltas_in_use() {
        let link = |place| Link::Delta(Delta { changed: 0, place });
        let with = |version, place| Cell { link: link(place), ..cell(version) };
        let cases = [
            (vec![cell(1), cell(0)], VersionPlace { cell: 1, delta: 0 }),
            (vec![cell(1), with(5, 0)], VersionPlace { cell: 0, delta: 0 }),
            (vec![with(7, 1), with(5, 0), cell(1)], VersionPlace { cell: 2, delta: 0 }),
            (vec![with(7, 0), with(5, 1), with(6, 1)], VersionPlace { cell: 1, delta: 1 }),
            (vec![cell(0), cell(0)], VersionPlace { cell: 0, delta: 0 }),
        ];
        for (cells, expected) in cases {
            let found = place(&cvt(0, &cells));
            assert_eq!(found, expected, "{cells:?}");
            assert!(usize::from(found.delta) < cells.len() - 1, "within the bar");
        }
    }

    #[test]
    fn versions_are_taken_back_from_the_newest_on() {
        let cvt = cvt(0, &[cell(5), cell(9), cell(7)]);
        let versions = |version| newer(&cvt, version).iter().map(|(of, _)| *of).collect::<Vec<_>>();
        assert_eq!((versions(5), versions(9)), (vec![9, 7], vec![]));
    }

    #[test]
    fn versions_with_records_of_their_own_are_not_taken_back() {
        let record = |version, place| Cell {
            link: Link::Record { writer: 40 + version, place },
            ..cell(version)
        };
        let cvt = cvt(0, &[record(5, 0), record(9, 1)]);
        assert_eq!(newer(&cvt, 5), []);
        assert_eq!([5, 9].map(|version| cvt.anchor(&record(version, 0))), [45, 49]);
        assert_eq!(place(&cvt).cell, 0);
    }

    #[test]
    fn an_invisible_version_is_in_no_snapshot_and_stops_writers() {
        let held = cvt(99, &[cell(5), cell(INVISIBLE)]);
        let published = |kind| reader(kind, Faults::AsPublished).version(&held, RowUse::Read);
        assert_eq!(published(TxnKind::ReadOnly), Ok(Some(cell(5))));
        assert_eq!((published(SI), published(SR)), (Ok(Some(cell(5))), Err(CONFLICT)));
        let mended = reader(TxnKind::ReadOnly, Faults::Mended).version(&held, RowUse::Read);
        assert_eq!(mended, Err(CONFLICT));
        // Its first version is on its way.
        let first = cvt(99, &[cell(INVISIBLE), cell(0)]);
        let seen = reader(TxnKind::ReadOnly, Faults::AsPublished).version(&first, RowUse::Read);
        assert_eq!(seen, Ok(None));
    }

    #[test]
    fn a_timestamp_comes_before_the_writes_or_where_rows_are_validated() {
        use CommitSteps::{AtOnce, LogAndVisible};
        let cases =
            [(AtOnce, false), (AtOnce, true), (LogAndVisible, false), (LogAndVisible, true)];
        let first = cases.map(|(steps, validates)| is_stamped_first(steps, validates));
        assert_eq!(first, [true, true, false, true]);
    }
}
