//! Decision about one in-doubt transaction: forward, back, or nothing to do.
//!
//! # What it is
//! Pure functions over the words that a recoverer has read. [`decide`] settles the transaction,
//! [`repair`] says what the decision means for one cell, [`unresolved`] is the auditor's check.
//!
//! # Steps of a recoverer
//! 1. Fence the dead node at every memory node (H2); only then read the node's log slots.
//! 2. Read every cell that a whole entry names, on every surviving replica, and [`decide`].
//! 3. Swap the decision from undecided into every surviving whole entry, in the order of node
//!    numbers; then give the entry, with the decision, to every memory node that holds a named cell
//!    and has no whole entry, its id last, by a swap from the id that was read. If a log holds
//!    another decision by now, start over at 2: another recoverer was first (H17).
//! 4. [`repair`] every cell by a swap from the word that was read. If the swap fails, start over.
//! 5. Swap done into every surviving log, from the decision; only then release the locks. If a log
//!    holds neither, start over.
//!
//! Any number of recoverers may run the steps, concurrently or in turn, and stop at any step.
//! Concurrent recoverers are safe only while no memory node is lost: if the only log with a whole
//! entry is lost, a recoverer that has not seen the entry finds nothing to do while a recoverer
//! that has seen it is at work. Therefore recoverers in the engine claim a log part, and fence its
//! earlier holders (`recovery/tests/model/`). Where [`decide`] answers
//! [`Decision::AlreadyResolved`], skip steps 3 and 4; step 5 swaps from the word read, since a
//! concurrent recoverer may just have decided a transaction without a trace in the words read here.
//!
//! # Why the words tell enough
//! *A tag, or a decision on record, means that no later transaction has written.* While a cell
//! carries INVISIBLE with the transaction's tag, or a log a decision that is not done, its locks
//! are held or refused (H1, H4). Hence every named cell holds one of four words: the tag, the
//! transaction's commit timestamp, the earlier word, or the 0 of a repair.
//!
//! *The timestamp is recognisable.* A cell is chosen for overwriting only if it is empty or its
//! version is older than the version of some other cell of the CVT. A commit timestamp is larger
//! than every earlier timestamp on the key. A timestamp is therefore the transaction's own exactly
//! if larger than all others in the CVT; for the comparison [`CellSeen`] carries the largest other
//! timestamp.
//!
//! *Without tag and decision no work is left.* The timestamp is drawn once every cell is INVISIBLE
//! on every replica, and the reply follows once all backups are visible (H3, I73). If no survivor
//! carries the tag, the cells on all survivors are visible, or the writes reached no survivor, or
//! another recoverer has finished the work. A record landing ahead of its cell has overwritten only
//! the CVT's oldest version, whose readers find the checksum of another version and take a newer
//! snapshot.
//!
//! *The tag alone would not be enough.* Undoing empties the named cell everywhere, also where the
//! write never landed (H12, H15). Were the recoverer and the only memory node with the tag lost
//! half-way, the replicas would differ for ever. Hence step 3 before step 4: a memory node gets a
//! log before it gets a cell, from recoverers too.
//!
//! # What it is not
//! The functions read, write and wait for nothing, and do not judge which node is dead.

use lotus_fabric::ids::TxnId;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::Version;

use crate::log::{DecisionWord, LogEntry};

/// A named cell on a surviving replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellSeen {
    /// The cell's version word, as [`Version`] decodes it.
    pub word: u64,
    /// Largest commit timestamp among the other cells of the CVT on the replica;
    /// [`Timestamp::ZERO`] without any.
    pub newest_other: Timestamp,
}

/// A version word, from the viewpoint of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// INVISIBLE with this transaction's tag.
    Tagged,
    /// INVISIBLE with another tag.
    Foreign,
    /// The newest timestamp of its CVT: this transaction's, unless a later transaction has written
    /// since.
    Stamped(Timestamp),
    /// No version, or a version that is not the newest: the state before the transaction, unless a
    /// later transaction has written since.
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
    /// Undone; empty every cell that the transaction names.
    Back,
    /// Over, or never reached a surviving cell; touch nothing.
    AlreadyResolved,
}

/// Two observations that the protocol rules out. Repair nothing (I54): keep the logs, report, and
/// hold the shards back, because memory or the program is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// Two logs hold different decisions, or a cell was made visible against the decision.
    #[error("{0:?} and {1:?} are both on record for one transaction")]
    Decisions(Decision, Decision),
    /// A foreign transaction writes a cell under this transaction's lock.
    #[error("a cell carries the tag of another writer under this transaction's lock")]
    ForeignWriter,
    /// The transaction has a timestamp, and a surviving replica never got one of its cells.
    #[error("the transaction has a commit timestamp, but a replica missed its write")]
    MissedReplica,
}

/// Settles `txn`.
///
/// `logs` are the decision words of the surviving whole entries (one at least, because the entries
/// name the cells); `cells` are all named cells on the surviving replicas, in any order. A decision
/// on record wins; else a timestamp beside a tag sends the transaction forward; else a tag sends it
/// back (H3, H17, I49).
///
/// # Errors
/// [`Contradiction`], if the observations cannot all be true of one transaction.
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

/// Settles `txn` if it is a purge: `words` are the version words of all cells named by the purge,
/// on all surviving replicas. A tag shows that the purge has begun, and a begun purge can always be
/// finished: [`Decision::Back`], which zeroes every CVT that the purge names. Timestamps say
/// nothing about a purge, because the tagged cell was empty or had an older version, and the other
/// cells are zeroed earlier.
///
/// # Errors
/// [`Contradiction::Decisions`], if a log says that the purge is committed: purges never are.
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

/// Decisions seen until now, which must be equal.
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

/// Action on a cell of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Leave the cell.
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
        /// Word to swap from; from 0, the swap only proves that no later write has landed.
        from: u64,
    },
}

/// Action that `decision` requires on a cell of `txn`, the same for every recoverer and on every
/// replica (I50). Repeating the action on its result is harmless.
pub fn repair(txn: TxnId, decision: Decision, cell: CellSeen) -> Repair {
    let from = cell.word;
    match (decision, cell.reading(txn)) {
        (Decision::Forward(time), Reading::Tagged) => {
            Repair::Publish { from, to: Version::Committed(time).encode() }
        }
        (Decision::Back, Reading::Tagged | Reading::Older) => Repair::Empty { from },
        // Visible already, or written by another transaction by now.
        _ => Repair::Keep,
    }
}

/// Whether work remains for the transaction of a log entry, given the version words of all cells
/// that the entry names: a cell carries the transaction's tag, or a decision is on record and not
/// done.
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
