//! Visibility: the version of a row that a transaction sees, and the cell that a writer replaces.
//!
//! Pure decisions over the words of one CVT; the module does not read remote memory. Whether the
//! *record* behind a cell is the right record is decided by [`crate::acceptance`].
//!
//! # The history that a CVT shows
//!
//! Writers of a row are serialised by its lock, and each writer replaces its [`victim`]: a cell
//! without a version or else the oldest version. So the versions in a CVT are always the newest few
//! of the row's history, without gaps. Code that clears cells for other reasons (reclamation) must
//! also begin with the oldest version, and never take the newest.
//!
//! # Reading at a snapshot
//!
//! Before a writer may draw its commit timestamp its cell stands INVISIBLE on every replica, and a
//! snapshot is at least every timestamp issued before (H18). So a reader that reads the CVT after
//! drawing its snapshot finds, for every version that the snapshot includes, the version itself, or
//! the writer's INVISIBLE word, or a later replacement. Hence the rules: an INVISIBLE word leaves
//! the result undecided, even beside an older version within the snapshot (H1); and the lack of a
//! version means "not found" only if no version can have been replaced (H13).

use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::layout::Torn;
use crate::layout::cvt::{Cell, CellState, Contents, Cvt, Version};
use crate::timestamp::Timestamp;

/// A committed version that a transaction may read, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Index of the cell in its CVT.
    pub index: usize,
    /// Commit time of the version.
    pub version: Timestamp,
    /// Offset of the version's record slot in the group's region; 0 for a deletion without a
    /// record.
    pub record: u64,
    /// Value, with its length, or the row's deletion.
    pub contents: Contents,
    /// Previous version, if the CVT still shows it.
    pub predecessor: Option<Timestamp>,
}

/// Newest committed version of a row, as read by its lock holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newest {
    /// A value.
    Version(Candidate),
    /// The row was deleted at this time. The lock excludes other writers, so that the deletion,
    /// unlike a deletion seen by a snapshot, is believed without its record.
    Deleted {
        /// Version of the tombstone.
        version: Timestamp,
        /// Offset of the deletion's record slot; 0 for a deletion without a record.
        record: u64,
    },
    /// The CVT holds no version.
    Absent,
    /// A transaction died in the middle of a commit and recovery has not reached this row: the
    /// caller aborts, and must never overwrite the cell (H1).
    InDoubt {
        /// Writer of the cell.
        writer: TxnId,
    },
    /// The CVT is being written. Under the row's lock the writer is recovery or a dead writer's
    /// last verb: read again, or abort as in [`Newest::InDoubt`].
    Torn,
}

impl Newest {
    /// Version that precedes the next write: the previous version in the next record, and the
    /// version that snapshot isolation compares with its snapshot. Zero if the row has no version.
    ///
    /// `None` if the version is not known yet.
    #[inline]
    pub fn version(&self) -> Option<Timestamp> {
        match *self {
            Self::Version(Candidate { version, .. }) | Self::Deleted { version, .. } => {
                Some(version)
            }
            Self::Absent => Some(Timestamp::ZERO),
            Self::InDoubt { .. } | Self::Torn => None,
        }
    }

    /// Offset of the newest version's record slot; 0 if it has no slot or is not known.
    #[inline]
    pub fn record(&self) -> u64 {
        match *self {
            Self::Version(Candidate { record, .. }) | Self::Deleted { record, .. } => record,
            Self::Absent | Self::InDoubt { .. } | Self::Torn => 0,
        }
    }
}

/// State of a row at a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visible {
    /// A value or deletion, provided that its record is accepted. A deletion that names a record
    /// must not be believed without the record; a deletion without a record is believed on the
    /// terms of an absence ([`Visible::NotFound`], I6).
    Version(Candidate),
    /// The row did not exist, provided that the CVT, read again after this READ completed, still
    /// has the same words, since an absence has no record as evidence.
    NotFound,
    /// The version that the snapshot needs is no longer in the CVT, but may be found by links,
    /// starting from this candidate, which is newer than the snapshot. The candidate counts only if
    /// its record is accepted and names the candidate's predecessor ([`crate::chain`]).
    Displaced(Candidate),
    /// The version that the snapshot needs has been replaced: the transaction cannot continue, and
    /// may be retried with a newer snapshot.
    TooOld,
    /// A writer is committing, before or after the snapshot: read the CVT again a bounded number of
    /// times, then abort as retryable (H1).
    Undecided {
        /// Writer that is committing.
        writer: TxnId,
    },
    /// A cell was being written: read the CVT again, as in [`Visible::Undecided`].
    Torn,
}

/// State of a row for a transaction that holds its lock and has not written the row itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedRow {
    /// The newest committed version.
    pub newest: Newest,
    /// Cell for the next write, and the cell's current contents; `None` if the CVT is in doubt or
    /// torn, and so must not be written.
    pub victim: Option<(Victim, Cell)>,
}

/// Reads a CVT under the row's lock, in one pass: the newest committed version, and the cell that
/// the holder of the write lock overwrites. The victim is a cell without a version, preferably with
/// a record slot, or else the oldest version (I19); never the newest (I18).
#[inline]
pub fn locked(cvt: Cvt<'_>) -> LockedRow {
    let mut newest: Option<(usize, Timestamp, Cell)> = None;
    let mut predecessor = None;
    // Order of victims: cells without a version before the oldest version, bound before unbound
    // cells, never used before trimmed cells, which show that versions are missing. Version zero is
    // less than every version, so one comparison decides.
    let mut victim: Option<((Timestamp, u8), usize, Cell)> = None;
    let mut second = Timestamp::MAX;
    let mut writer = None;
    for (index, cell) in cvt.cells().enumerate() {
        let Ok(cell) = cell else { return LockedRow { newest: Newest::Torn, victim: None } };
        let rank = match cell.version {
            Version::Invisible(by) => {
                writer = Some(by);
                continue;
            }
            Version::Committed(time) => {
                match newest {
                    Some((_, latest, _)) if time < latest => {
                        predecessor = predecessor.max(Some(time));
                    }
                    earlier => {
                        predecessor = earlier.map(|(_, time, _)| time);
                        newest = Some((index, time, cell));
                    }
                }
                (time, 0)
            }
            Version::None if cell.record != 0 => (Timestamp::ZERO, 0),
            Version::None if cell.state != CellState::Trimmed => (Timestamp::ZERO, 1),
            Version::None => (Timestamp::ZERO, 2),
        };
        match victim {
            Some((least, ..)) if (rank < least) == broken(Rule::OldestVersionFirst) => {
                second = second.min(rank.0);
            }
            _ => {
                second = victim.map_or(second, |(least, ..)| second.min(least.0));
                victim = Some((rank, index, cell));
            }
        }
    }
    // I4: an INVISIBLE cell leaves the row in doubt, so there is no victim to overwrite.
    if let Some(writer) = writer {
        return LockedRow { newest: Newest::InDoubt { writer }, victim: None };
    }
    let newest = newest.map_or(Newest::Absent, |(index, version, cell)| match cell.state {
        CellState::Tombstone => Newest::Deleted { version, record: cell.record },
        _ => Newest::Version(Candidate::new(index, version, cell, predecessor)),
    });
    let victim = victim.map(|((version, _), index, cell)| {
        let successor = (version > Timestamp::ZERO).then_some(second);
        (Victim { index, successor }, cell)
    });
    LockedRow { newest, victim }
}

/// Returns the newest committed version, as found by [`locked`].
#[inline]
pub fn newest(cvt: Cvt<'_>) -> Newest {
    locked(cvt).newest
}

/// Finds the version that a transaction without the row's lock sees at `snapshot`, drawn before the
/// CVT was read. A version is visible iff it is at most the snapshot (H1). Without a visible
/// version, the row was absent only if no version can have been overwritten (I7).
#[inline]
pub fn visible_at(cvt: Cvt<'_>, snapshot: Timestamp) -> Visible {
    let Ok(mut scan) = Scan::of(cvt, snapshot) else { return Visible::Torn };
    if broken(Rule::SnapshotsWait) {
        scan.invisible = None;
    }
    match (scan.invisible, scan.seen) {
        (Some(writer), _) => Visible::Undecided { writer },
        (None, Some(candidate)) => Visible::Version(candidate),
        (None, None) if scan.never_used && !scan.trimmed => Visible::NotFound,
        (None, None) if !scan.any_version => Visible::NotFound,
        (None, None) if broken(Rule::AbsenceIsNotEviction) => Visible::NotFound,
        (None, None) => displaced(cvt),
    }
}

/// Returns the starting point of the search for a version older than the whole CVT: the second
/// oldest version. Its record names the oldest version and the slot of that version; the cells'
/// words may be torn and prove neither. A deletion without a record names no earlier versions.
#[cold]
fn displaced(cvt: Cvt<'_>) -> Visible {
    let version = |cell: &Cell| match cell.version {
        Version::Committed(version) => Some(version),
        Version::None | Version::Invisible(_) => None,
    };
    let oldest = cvt.cells().flatten().filter_map(|cell| version(&cell)).min();
    let mut next: Option<Candidate> = None;
    for (index, cell) in cvt.cells().enumerate() {
        let Some((cell, version)) = cell.ok().and_then(|cell| Some((cell, version(&cell)?))) else {
            continue;
        };
        if Some(version) > oldest && next.is_none_or(|next| version < next.version) {
            next = Some(Candidate::new(index, version, cell, oldest));
        }
    }
    next.filter(|next| next.record != 0).map_or(Visible::TooOld, Visible::Displaced)
}

/// Whether a CVT that shows a version for `snapshot` may have held a later version within the
/// snapshot a moment before or after, on fabrics whose READs may be torn: a cell shows a version
/// later than the snapshot, or no version, because its version was replaced, cleared or purged. A
/// reader without the lock then reads the CVT again behind the record, and believes the record only
/// if the CVT is unchanged ([`crate::acceptance`]).
#[inline]
pub fn may_be_outdated(cvt: Cvt<'_>, snapshot: Timestamp) -> bool {
    cvt.cells().any(|cell| {
        cell.is_ok_and(|cell| cell.version == Version::None || cell.version.is_after(snapshot))
    })
}

/// The cell for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Victim {
    /// Index of the cell in the CVT.
    pub index: usize,
    /// Version after the cell's version, if the cell has a version; the CVT keeps the successor.
    /// Snapshots at or after the successor do not need the cell's version.
    pub successor: Option<Timestamp>,
}

/// Returns the cell for a write, as chosen by [`locked`].
#[inline]
pub fn victim(cvt: Cvt<'_>) -> Option<Victim> {
    locked(cvt).victim.map(|(victim, _)| victim)
}

/// Chooses the cell whose slot the row can spare: a cleared cell, or else the oldest version, which
/// only snapshots before its successor need. Never the newest version, and no cell if the oldest
/// version is a deletion without a record.
///
/// `None` if no slot can be spared, or if the CVT is in doubt or torn.
pub fn spare(cvt: Cvt<'_>) -> Option<Victim> {
    let mut best: Option<(Timestamp, usize)> = None;
    // The two oldest versions, and the newest.
    let (mut oldest, mut second) = (Timestamp::MAX, Timestamp::MAX);
    let mut newest = Timestamp::ZERO;
    for (index, cell) in cvt.cells().enumerate() {
        let cell = cell.ok()?;
        let time = match cell.version {
            Version::Invisible(_) => return None,
            Version::Committed(time) => {
                newest = newest.max(time);
                second = second.min(oldest.max(time));
                oldest = oldest.min(time);
                time
            }
            Version::None => Timestamp::ZERO,
        };
        if cell.record != 0 && best.is_none_or(|(least, _)| time < least) {
            best = Some((time, index));
        }
    }
    // Never a middle version: the versions in a CVT have no gaps (I19).
    let best = best.filter(|(time, _)| *time < newest && *time <= oldest);
    best.map(|(time, index)| Victim {
        index,
        successor: (time > Timestamp::ZERO).then_some(second),
    })
}

/// Result of one pass over the cells.
struct Scan {
    /// The newest version at or before the snapshot.
    seen: Option<Candidate>,
    /// The writer of an INVISIBLE cell.
    invisible: Option<TxnId>,
    /// Whether a cell was never used, so that no version was ever replaced.
    never_used: bool,
    /// Whether a cell was trimmed, so that a version was removed nevertheless.
    trimmed: bool,
    /// Whether a cell holds a committed version, of any time.
    any_version: bool,
}

impl Scan {
    #[inline]
    fn of(cvt: Cvt<'_>, snapshot: Timestamp) -> Result<Self, Torn> {
        let (seen, invisible) = (None, None);
        let mut scan =
            Self { seen, invisible, never_used: false, trimmed: false, any_version: false };
        for (index, cell) in cvt.cells().enumerate() {
            let cell = cell?;
            match cell.version {
                Version::Invisible(writer) => scan.invisible = Some(writer),
                Version::None => {
                    scan.never_used |= cell.state == CellState::NeverUsed;
                    scan.trimmed |= cell.state == CellState::Trimmed;
                }
                Version::Committed(version) => {
                    scan.any_version = true;
                    if version <= snapshot {
                        scan.see(index, version, cell);
                    }
                }
            }
        }
        Ok(scan)
    }

    #[inline]
    fn see(&mut self, index: usize, version: Timestamp, cell: Cell) {
        match &mut self.seen {
            Some(newest) if version < newest.version => {
                newest.predecessor = newest.predecessor.max(Some(version));
            }
            seen => {
                let predecessor = seen.map(|earlier| earlier.version);
                *seen = Some(Candidate::new(index, version, cell, predecessor));
            }
        }
    }
}

impl Candidate {
    /// Returns the version in `cell` as a candidate.
    #[inline]
    fn new(index: usize, version: Timestamp, cell: Cell, predecessor: Option<Timestamp>) -> Self {
        let contents = match cell.state {
            CellState::Tombstone => Contents::Deleted,
            _ => Contents::Value { length: cell.length },
        };
        Self { index, version, record: cell.record, contents, predecessor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::cvt::{CELL_WORDS, CvtShape, HEADER_WORDS};

    /// The CVT in these words, which has no home slots.
    fn view(words: &[u64]) -> Cvt<'_> {
        Cvt::new(words, CvtShape::new((words.len() - HEADER_WORDS) / CELL_WORDS, 0))
    }

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time).expect("63 bits")
    }

    /// A cell in one letter: `.` never used, `_` cleared but bound, `-` trimmed, `?` invisible, `~`
    /// torn, a digit is a value committed then, `x` after it a tombstone, `o` one without a record.
    fn cvt(picture: &str) -> Vec<u64> {
        let mut words = vec![0; HEADER_WORDS];
        for (index, text) in picture.split(' ').enumerate() {
            let value = Contents::Value { length: 16 };
            let contents = if text.ends_with(['x', 'o']) { Contents::Deleted } else { value };
            let slot = if text.ends_with('o') { 0 } else { 0x1000 * (index as u64 + 1) };
            let mut cell = Cell::NEVER_USED.taken_by(TxnId::from_raw(77), contents, slot);
            match text.trim_end_matches(['x', 'o']).parse() {
                Ok(time) => cell.version = Version::Committed(at(time)),
                Err(_) if text == "." => cell = Cell::NEVER_USED,
                Err(_) if text == "_" => cell = cell.cleared(),
                Err(_) if text == "-" => cell = cell.trimmed(),
                Err(_) => {}
            }
            let mut encoded = cell.encode();
            encoded[2] += if text == "~" { 1 << 56 } else { 0 };
            words.extend(encoded);
        }
        words
    }

    fn value(index: usize, version: u64, predecessor: Option<u64>) -> Candidate {
        Candidate {
            index,
            version: at(version),
            record: 0x1000 * (index as u64 + 1),
            contents: Contents::Value { length: 16 },
            predecessor: predecessor.map(at),
        }
    }

    fn deletion(index: usize, version: u64, predecessor: Option<u64>) -> Candidate {
        Candidate { contents: Contents::Deleted, ..value(index, version, predecessor) }
    }

    const WRITER: u64 = 77;

    #[test]
    fn the_newest_version_is_the_largest_unless_somebody_is_writing() {
        let in_doubt = Newest::InDoubt { writer: TxnId::from_raw(WRITER) };
        let cases = [
            (". .", Newest::Absent),
            ("_ .", Newest::Absent),
            ("5 .", Newest::Version(value(0, 5, None))),
            ("5 7", Newest::Version(value(1, 7, Some(5)))),
            ("7 5", Newest::Version(value(0, 7, Some(5)))),
            ("7 5 6", Newest::Version(value(0, 7, Some(6)))),
            ("5 7 6", Newest::Version(value(1, 7, Some(6)))),
            ("5 6 7", Newest::Version(value(2, 7, Some(6)))),
            ("5 7x", Newest::Deleted { version: at(7), record: 0x2000 }),
            ("5 7o", Newest::Deleted { version: at(7), record: 0 }),
            ("5x 7", Newest::Version(value(1, 7, Some(5)))),
            ("5 _", Newest::Version(value(0, 5, None))),
            ("5 ?", in_doubt),
            ("? 5", in_doubt),
            ("? .", in_doubt),
            ("5 ~", Newest::Torn),
        ];
        for (picture, expected) in cases {
            assert_eq!(newest(view(&cvt(picture))), expected, "{picture}");
        }
    }

    #[test]
    fn the_version_that_a_write_follows() {
        let cases =
            [(". .", Some(0)), ("5 7", Some(7)), ("5 7x", Some(7)), ("5 ?", None), ("5 ~", None)];
        for (picture, expected) in cases {
            assert_eq!(newest(view(&cvt(picture))).version(), expected.map(at), "{picture}");
        }
    }

    #[test]
    fn a_snapshot_sees_the_newest_version_at_or_before_it() {
        let undecided = Visible::Undecided { writer: TxnId::from_raw(WRITER) };
        let cases = [
            ("5 7", 7, Visible::Version(value(1, 7, Some(5)))),
            ("5 7", 6, Visible::Version(value(0, 5, None))),
            ("5 7", 5, Visible::Version(value(0, 5, None))),
            ("5 7", 4, Visible::Displaced(value(1, 7, Some(5)))),
            ("7x 5", 4, Visible::Displaced(deletion(0, 7, Some(5)))),
            ("9 5 7", 4, Visible::Displaced(value(2, 7, Some(5)))),
            ("7 5o", 4, Visible::Displaced(value(0, 7, Some(5)))),
            ("7o 5", 4, Visible::TooOld),
            ("7o 5", 8, Visible::Version(Candidate { record: 0, ..deletion(0, 7, Some(5)) })),
            ("5 _", 4, Visible::TooOld),
            ("5 .", 4, Visible::NotFound),
            ("5 . _", 4, Visible::NotFound),
            ("5 . -", 4, Visible::TooOld),
            ("5 . -", 5, Visible::Version(value(0, 5, None))),
            (". .", 4, Visible::NotFound),
            ("_ _", 4, Visible::NotFound),
            ("5 7x", 7, Visible::Version(deletion(1, 7, Some(5)))),
            ("5 7x", 6, Visible::Version(value(0, 5, None))),
            ("5x 7", 6, Visible::Version(deletion(0, 5, None))),
            ("9 7 5", 8, Visible::Version(value(1, 7, Some(5)))),
            ("9 5 7", 8, Visible::Version(value(2, 7, Some(5)))),
            // H1: not even if an older version stands beside it, or a newer one.
            ("5 ?", 6, undecided),
            ("? .", 6, undecided),
            ("? 9", 6, undecided),
            ("5 ~", 6, Visible::Torn),
            ("5 ? ~", 6, Visible::Torn),
        ];
        for (picture, snapshot, expected) in cases {
            let seen = visible_at(view(&cvt(picture)), at(snapshot));
            assert_eq!(seen, expected, "{picture} at {snapshot}");
        }
    }

    #[test]
    fn a_writer_replaces_what_will_be_missed_least() {
        let cases = [
            (". .", Some((0, None))),
            (". _", Some((1, None))),
            ("5 .", Some((1, None))),
            ("5 _", Some((1, None))),
            ("5 . _", Some((2, None))),
            ("5 - .", Some((2, None))),
            ("5 -", Some((1, None))),
            ("- 5 7", Some((0, None))),
            ("7 5", Some((1, Some(7)))),
            ("5x 7", Some((0, Some(7)))),
            ("6 5 7", Some((1, Some(6)))),
            ("5 7 6", Some((0, Some(6)))),
            ("7 6 5", Some((2, Some(6)))),
            ("5 ?", None),
            (". ?", None),
            ("5 ~", None),
        ];
        for (picture, expected) in cases {
            let expected = expected.map(|(index, successor): (usize, Option<u64>)| Victim {
                index,
                successor: successor.map(at),
            });
            assert_eq!(victim(view(&cvt(picture))), expected, "{picture}");
        }
    }

    #[test]
    fn a_row_can_do_without_all_slots_but_its_newest_version_s() {
        let cases = [
            (". .", None),
            ("5 .", None),
            ("_ .", None),
            ("5 _", Some((1, 0))),
            ("5 7", Some((0, 7))),
            ("7 5", Some((1, 7))),
            ("7 5 _", Some((2, 0))),
            ("7 5 6", Some((1, 6))),
            ("9 6 5 7", Some((2, 6))),
            ("5 7x", Some((0, 7))),
            ("5 7o", Some((0, 7))),
            ("5o 7", None),
            ("- 7", None),
            ("7 5o 6", None),
            ("7 5o _", Some((2, 0))),
            ("5 ?", None),
            ("5 7 ~", None),
        ];
        for (picture, expected) in cases {
            // A successor of 0 stands for none.
            let successor = |time| (time > 0).then(|| at(time));
            let expected =
                expected.map(|(index, time)| Victim { index, successor: successor(time) });
            assert_eq!(spare(view(&cvt(picture))), expected, "{picture}");
        }
    }

    #[test]
    fn what_is_newer_or_gone_may_hide_a_version() {
        let cases = [
            ("5 7", 7, false),
            ("5 .", 7, true),
            ("5 7", 6, true),
            ("5 9 7", 8, true),
            ("5 _", 7, true),
        ];
        for (picture, snapshot, expected) in cases {
            let seen = may_be_outdated(view(&cvt(picture)), at(snapshot));
            assert_eq!(seen, expected, "{picture} at {snapshot}");
        }
    }
}
