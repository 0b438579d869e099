//! Decision about one in-doubt transaction: forward, back, or nothing to do.
//!
//! # What it is
//! Pure functions over what a recoverer has read. [`decide`] settles the transaction, [`repair`]
//! says what that means for one cell, [`unresolved`] is the auditor's check.
//!
//! # Steps of a recoverer
//! 1. Fence the dead node at every memory node (H2); only then read its log slots.
//! 2. Read every cell that a whole entry names, on every surviving replica, and [`decide`].
//! 3. Swap the decision from undecided into every surviving whole entry, in the order of node
//!    numbers; then give the entry, with the decision, to every memory node that holds a named cell
//!    and has no whole entry, its id last, by a swap from the id that was read. If a log holds
//!    another decision by now, start over at 2: another recoverer was first (H17).
//! 4. [`repair`] every cell by a swap from the word that was read. If that fails, start over.
//! 5. Swap done into every surviving log, from the decision; only then release the locks. If a log
//!    holds neither, start over.
//!
//! Any number of recoverers may do this, at the same time or after one another, and stop anywhere.
//! At the same time only while no memory node is lost: if the only log with a whole entry goes, a
//! recoverer that has not seen it finds nothing to do while one that has seen it is at work. So the
//! engine has recoverers claim a log part, and fence its earlier holders (`recovery/tests/model/`).
//! Where [`decide`] answers [`Decision::AlreadyResolved`], skip steps 3 and 4; step 5 swaps from
//! the word that was read, since another recoverer may just have decided what this one saw no trace
//! of.
//!
//! # Why the words tell enough
//! *A tag, or a decision on record, means that no later transaction has written.* While a cell
//! carries INVISIBLE with the transaction's tag, or a log a decision that is not done, its locks
//! are held or refused (H1, H4). So each named cell holds one of four words: the tag, the
//! transaction's commit timestamp, the earlier word, or the 0 of a repair.
//!
//! *The timestamp is recognisable.* A cell is chosen for overwriting only if it holds no version or
//! an older one than some other cell of its CVT. A commit timestamp is larger than every earlier
//! one on the key. So a timestamp is the transaction's own exactly if it is larger than all others
//! in the CVT; that is why [`CellSeen`] carries the largest of those.
//!
//! *With neither there is nothing to do.* The timestamp is drawn once every cell is INVISIBLE on
//! every replica, and the reply follows once all backups are visible (H3). If no survivor carries
//! the tag, then either all of them are visible, or none was reached, or another recoverer has
//! finished the work. A record that landed ahead of its cell then overwrote only the CVT's oldest
//! version, whose readers find a checksum of another version and take a newer snapshot.
//!
//! *The tag alone would not be enough.* Undoing empties the named cell everywhere, also where the
//! write never landed (H12, H15). Were the recoverer and the only memory node with the tag lost
//! half-way, the replicas would differ for ever. Hence step 3 before step 4: a memory node gets a
//! log before it gets a cell, from recoverers too.
//!
//! # What it is not
//! It reads, writes and waits for nothing, and it does not judge which node is dead.

use lotus_fabric::ids::TxnId;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::Version;

use crate::log::{DecisionWord, LogEntry};

/// One named cell on one surviving replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellSeen {
    /// The cell's version word, as [`Version`] decodes it.
    pub word: u64,
    /// The largest commit timestamp among the other cells of the same CVT on the same replica;
    /// [`Timestamp::ZERO`] if there is none.
    pub newest_other: Timestamp,
}

/// A version word, from the viewpoint of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// INVISIBLE with this transaction's tag.
    Tagged,
    /// INVISIBLE with another tag.
    Foreign,
    /// The newest timestamp of its CVT: this transaction's, unless a later one has written since.
    Stamped(Timestamp),
    /// No version, or one that is not the newest: the state before the transaction, unless a later
    /// one has written since.
    Older,
}

impl CellSeen {
    fn reading(self, txn: TxnId) -> Reading {
        match Version::decode(self.word) {
            Version::Invisible(writer) if writer == txn => Reading::Tagged,
            Version::Invisible(_) => Reading::Foreign,
            Version::Committed(time) if time > self.newest_other => Reading::Stamped(time),
            Version::Committed(_) | Version::None => Reading::Older,
        }
    }
}

/// Verdict on an in-doubt transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Committed at this timestamp; make every cell visible with it.
    Forward(Timestamp),
    /// Undone; empty every cell that it names.
    Back,
    /// Over, or never reached a surviving cell; touch nothing.
    AlreadyResolved,
}

/// Two observations that the protocol rules out. Repair nothing: keep the logs, report, and hold
/// the shards back, for either memory or the program is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// Two logs hold different decisions, or a cell was made visible against the decision.
    #[error("{0:?} and {1:?} are both on record for one transaction")]
    Decisions(Decision, Decision),
    /// Another transaction writes a cell while this one still holds its lock.
    #[error("a cell carries the tag of another writer under this transaction's lock")]
    ForeignWriter,
    /// The transaction has a timestamp, and a surviving replica never got one of its cells.
    #[error("the transaction has a commit timestamp, but a replica missed its write")]
    MissedReplica,
}

/// Settles `txn`.
///
/// `logs` are the decision words of the surviving whole entries (one at least, or there would be
/// no cells to name); `cells` are all named cells on all surviving replicas, in any order. A
/// decision on record wins; else a timestamp beside a tag sends the transaction forward; else a
/// tag sends it back (H3, H17).
///
/// # Errors
/// [`Contradiction`], if these cannot all be true of one transaction.
pub fn decide(
    txn: TxnId,
    logs: impl IntoIterator<Item = DecisionWord>,
    cells: impl IntoIterator<Item = CellSeen>,
) -> Result<Decision, Contradiction> {
    let mut recorded = Agreement::default();
    for log in logs {
        match log {
            DecisionWord::Undecided => {}
            DecisionWord::Back => recorded.add(Decision::Back),
            DecisionWord::Forward(time) => recorded.add(Decision::Forward(time)),
            DecisionWord::Done => return Ok(Decision::AlreadyResolved),
        }
    }
    let mut witnessed = recorded;
    let (mut tagged, mut foreign, mut older) = (false, false, false);
    for cell in cells {
        match cell.reading(txn) {
            Reading::Tagged => tagged = true,
            Reading::Foreign => foreign = true,
            Reading::Stamped(time) => witnessed.add(Decision::Forward(time)),
            Reading::Older => older = true,
        }
    }
    if !tagged && recorded.first.is_none() {
        return Ok(Decision::AlreadyResolved);
    }
    if foreign {
        return Err(Contradiction::ForeignWriter);
    }
    match witnessed.reached()?.unwrap_or(Decision::Back) {
        Decision::Forward(_) if older => Err(Contradiction::MissedReplica),
        decision => Ok(decision),
    }
}

/// Settles `txn` if it is a purge: `words` are the version words of all cells that it names, on all
/// surviving replicas. A tag shows that it has begun, and then it can always be finished:
/// [`Decision::Back`], which zeroes every CVT that it names. Timestamps say nothing here, because
/// the cell that bears the tag had an older version or none, and the others are zeroed before it.
///
/// # Errors
/// [`Contradiction::Decisions`], if a log says that it is committed: purges never are.
pub fn decide_purge(
    txn: TxnId,
    logs: impl IntoIterator<Item = DecisionWord>,
    words: impl IntoIterator<Item = u64>,
) -> Result<Decision, Contradiction> {
    let mut begun = false;
    for log in logs {
        match log {
            DecisionWord::Undecided => {}
            DecisionWord::Back => begun = true,
            DecisionWord::Forward(time) => {
                return Err(Contradiction::Decisions(Decision::Back, Decision::Forward(time)));
            }
            DecisionWord::Done => return Ok(Decision::AlreadyResolved),
        }
    }
    let tag = Version::Invisible(txn).encode();
    let begun = begun || words.into_iter().any(|word| word == tag);
    Ok(if begun { Decision::Back } else { Decision::AlreadyResolved })
}

/// Decisions seen so far, which must all be the same.
#[derive(Clone, Copy, Default)]
struct Agreement {
    first: Option<Decision>,
    other: Option<Decision>,
}

impl Agreement {
    fn add(&mut self, decision: Decision) {
        match self.first {
            None => self.first = Some(decision),
            Some(first) if first != decision => self.other = Some(decision),
            Some(_) => {}
        }
    }

    fn reached(self) -> Result<Option<Decision>, Contradiction> {
        match (self.first, self.other) {
            (Some(first), Some(other)) => Err(Contradiction::Decisions(first, other)),
            (first, _) => Ok(first),
        }
    }
}

/// Action on one cell on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Leave it.
    Keep,
    /// Swap the version word from INVISIBLE to the commit timestamp.
    Publish {
        /// Word to swap from.
        from: u64,
        /// Word of the commit timestamp.
        to: u64,
    },
    /// Swap the version word to 0, and mark the cell as one that lost its version.
    Empty {
        /// Word to swap from; if it is 0, the swap only proves that no later write has landed.
        from: u64,
    },
}

/// Action that `decision` requires on a cell of `txn`. Repeating it on its own result is harmless.
pub fn repair(txn: TxnId, decision: Decision, cell: CellSeen) -> Repair {
    let from = cell.word;
    match (decision, cell.reading(txn)) {
        (Decision::Forward(time), Reading::Tagged) => {
            Repair::Publish { from, to: Version::Committed(time).encode() }
        }
        (Decision::Back, Reading::Tagged | Reading::Older) => Repair::Empty { from },
        // Visible already, or another transaction's by now.
        _ => Repair::Keep,
    }
}

/// Whether work remains for the transaction of a log entry, given the version words of all cells
/// that the entry names: one carries its tag, or a decision is on record and not done.
pub fn unresolved(entry: &LogEntry<'_>, words: impl IntoIterator<Item = u64>) -> bool {
    match entry.decision() {
        DecisionWord::Back | DecisionWord::Forward(_) => true,
        DecisionWord::Undecided | DecisionWord::Done => {
            let tag = Version::Invisible(entry.txn()).encode();
            words.into_iter().any(|word| word == tag)
        }
    }
}

#[cfg(test)]
mod tests;
