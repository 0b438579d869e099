//! Recovery of one log slot of a dead node: reads the slot's transaction, decides the outcome, and
//! applies the outcome on all replicas.
//!
//! The steps are those in the essay of [`lotus_recovery::resolve`]: read, decide, record the
//! decision in all logs, repair by compare-and-swap, record completion. Whenever a word differs
//! from the value read, recovery starts over.
//!
//! # Partial traces
//! *A record ahead of the tag.* Records go before cells, so a transaction without a tag in any cell
//! may have overwritten the record of a row's oldest version on some replicas. The words of the
//! cells do not distinguish such a transaction from a transaction finished long ago. The
//! transaction's record does: the record names the newest version that the transaction found. If
//! that version still is the newest, the transaction has not become visible, so its locks are held,
//! and recovery undoes the transaction as usual ([`Recoverer::stopped_early`]).
//!
//! *The slot of a record that no cell names* is left unchanged on each replica. No reader reaches
//! the slot, and its next user writes the slot on every replica.
//!
//! *A torn log entry* is emptied; later recoveries can ignore the entry.
//!
//! # What is not seen
//! A record that landed in part, nowhere whole, without any tag. Only a record longer than a packet
//! can land in part. The oldest version of its row is then damaged on one replica: a reader of the
//! version retries with a later snapshot, and the row's next writer overwrites the version.

use lotus_fabric::ids::{NodeId, RemoteAddr, TxnId};
use lotus_fabric::lane::Batch;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::overflow_offset;
use lotus_mvcc::layout::cvt::{Cell, CellState, Cvt, CvtShape, Slot, Version};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::{TableDef, Timestamp};
use lotus_points::{cut, point};
use lotus_recovery::log::{DECISION_WORD, entry_words};
use lotus_recovery::{
    CellSeen, Decision, DecisionWord, LogEntry, LogError, LoggedWrite, Repair, WriteKind, decide,
    decide_purge, repair,
};
use lotus_router::placement::LOG_REGION;
use lotus_router::{GroupId, Replica, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use super::Recoverer;
use super::Swap;
use crate::memory_nodes::fence::Stop;
use crate::txn::commit::Replicas;

/// Contents of a log slot on one memory node.
struct Copy {
    node: NodeId,
    words: Vec<u64>,
}

/// Last transaction named by a log slot.
struct InDoubt {
    txn: TxnId,
    writes: Vec<LoggedWrite>,
    /// Entry words, undecided.
    words: Vec<u64>,
    /// Memory nodes with the whole entry, and the decision on each, in the order of node numbers.
    logs: Vec<(NodeId, DecisionWord)>,
}

/// Row possibly written by a transaction in doubt, on all replicas.
struct Named {
    write: LoggedWrite,
    shape: CvtShape,
    copies: Vec<(Replica, Vec<u64>)>,
    /// Replicas in `copies` that are being filled.
    joining: Vec<Replica>,
}

impl InDoubt {
    /// Returns the latest transaction named by the copies of a slot: all earlier attempts were over
    /// when it began (H16), as were the attempts of earlier lives.
    fn latest(copies: &[Copy]) -> Option<Self> {
        let whole =
            || copies.iter().filter_map(|copy| Some((copy, LogEntry::decode(&copy.words).ok()?)));
        let (copy, entry) =
            whole().max_by_key(|(_, entry)| (entry.txn().incarnation(), entry.txn().attempt()))?;
        let writes: Vec<LoggedWrite> = entry.writes().collect();
        let mut words = copy.words[..entry_words(writes.len())].to_vec();
        words[DECISION_WORD] = DecisionWord::Undecided.word();
        let of_it = whole().filter(|(_, other)| other.txn() == entry.txn());
        let logs: Vec<_> = of_it.map(|(copy, entry)| (copy.node, entry.decision())).collect();
        debug_assert!(!logs.is_empty(), "I52: an entry that counts is whole on a memory node");
        Some(Self { txn: entry.txn(), writes, words, logs })
    }

    fn decide(&self, named: &[Named]) -> Result<Decision, Stop> {
        let logs = self.logs.iter().map(|(_, decision)| *decision);
        if self.writes.iter().any(|write| write.kind == WriteKind::Purge) {
            let words = named.iter().flat_map(Named::seen).map(|(_, seen)| seen.word);
            return Ok(decide_purge(self.txn, logs, words)?);
        }
        // A copy being filled is no witness of visibility (I139): the copy may show the contents at
        // the time of joining, or nothing. A tag counts even in such a copy.
        let tag = Version::Invisible(self.txn).encode();
        let cells = named.iter().flat_map(|row| row.seen().map(move |seen| (row, seen)));
        let counts = |(row, (at, seen)): &(&Named, (Replica, CellSeen))| {
            !row.joining.contains(at) || seen.word == tag
        };
        let cells = cells.filter(counts).map(|(_, (_, seen))| seen);
        let decision = decide(self.txn, logs, cells)?;
        match decision {
            Decision::Forward(_) if broken(Rule::TimestampsDecide) => Ok(Decision::Back),
            decision => Ok(decision),
        }
    }
}

impl Named {
    /// Returns the named cell on each replica.
    fn seen(&self) -> impl Iterator<Item = (Replica, CellSeen)> {
        let index = usize::from(self.write.cell);
        self.copies.iter().map(move |(replica, words)| {
            let versions = || Cvt::new(words, self.shape).version_words().enumerate();
            let others = versions().filter(|(other, _)| *other != index);
            let newest_other =
                others.fold(Timestamp::ZERO, |newest, (_, word)| match Version::decode(word) {
                    Version::Committed(time) => newest.max(time),
                    _ => newest,
                });
            (*replica, CellSeen { word: words[self.shape.cell_word(index)], newest_other })
        })
    }

    /// Returns the offset of the named cell.
    fn place(&self) -> u64 {
        self.write.cvt + self.shape.cell_offset(usize::from(self.write.cell))
    }

    /// Returns the three words of the named cell on one replica.
    fn cell_words<'w>(&self, words: &'w [u64]) -> &'w [u64; 3] {
        let start = self.shape.cell_word(usize::from(self.write.cell));
        words[start..].first_chunk().expect("a CVT ends with a whole cell")
    }

    /// Returns swaps that empty the named cell on a replica; the result is equal on every replica.
    fn emptying(&self, replica: Replica, words: &[u64]) -> impl Iterator<Item = Swap> {
        let trims = self.write.kind == WriteKind::Trim;
        let empty = Cell {
            version: Version::None,
            state: if trims { CellState::Trimmed } else { CellState::Cleared },
            record: self.write.record,
            length: 0,
            writes: 0,
        };
        let seen = *self.cell_words(words);
        let at = (self.place()..).step_by(WORD_BYTES).map(move |place| replica.at(place));
        let swaps = at.zip(seen).zip(empty.encode());
        swaps.map(|((at, from), to)| Swap::new(at, from, to))
    }
}

impl Recoverer<'_> {
    /// Settles the transaction named by a log slot.
    pub(super) async fn resolve_slot(&self, slot: u16) -> Result<(), Stop> {
        loop {
            let copies = self.copies(slot).await?;
            let me = self.coordinator.node.id.0;
            let slots = self.coordinator.shared.config.slots();
            point!(me, LogRead, usize::from(slot), slots);
            let Some(mut doubt) = InDoubt::latest(&copies) else {
                return self.empty_torn(slot, &copies).await;
            };
            let logged = doubt.writes.len();
            doubt.writes.retain(|write| !self.is_gone(write));
            if doubt.writes.is_empty() && logged > 0 {
                return self.empty_torn(slot, &copies).await;
            }
            let named = self.named(&doubt).await?;
            let mut decision = doubt.decide(&named)?;
            if decision == Decision::AlreadyResolved && self.stopped_early(&doubt, &named).await? {
                decision = Decision::Back;
            }
            point!(me, DecisionMade, if decision != Decision::AlreadyResolved);
            let settled = match decision {
                Decision::AlreadyResolved => self.finish(slot, &doubt.logs).await?,
                decision => self.carry_out(slot, &copies, &doubt, &named, decision).await?,
            };
            if settled {
                return self.empty_torn(slot, &copies).await;
            }
        }
    }

    fn log_place(&self, node: NodeId, slot: u16) -> RemoteAddr {
        let offset = self.coordinator.shared.log.offset(self.dead.index as u16, slot);
        RemoteAddr::new(node, LOG_REGION, offset)
    }

    fn replicas(&self, write: &LoggedWrite) -> &ReplicaSet {
        self.placement.replicas(GroupId(write.group))
    }

    /// Reads a slot on every memory node.
    async fn copies(&self, slot: u16) -> Result<Vec<Copy>, Stop> {
        let bytes = self.coordinator.shared.log.slot_bytes() as usize;
        let read = |batch: &mut Batch| {
            let read = |node| (node, batch.read(self.log_place(node, slot), bytes));
            self.nodes.into_iter().map(read).collect::<Vec<_>>()
        };
        let (done, buffers) = self.post(read).await?;
        let copy = |(node, buffer)| Copy { node, words: done.words(buffer).to_vec() };
        Ok(buffers.into_iter().map(copy).collect())
    }

    /// Whether the memory of a write's table is free, or belongs to another table. By then every
    /// node had let go of the table, so the transaction is over.
    fn is_gone(&self, write: &LoggedWrite) -> bool {
        let shared = &self.coordinator.shared;
        self.now.is_released(write.table) || shared.table_with_memory(write.table).is_none()
    }

    /// Reads the CVTs of all rows named by the transaction.
    async fn named(&self, doubt: &InDoubt) -> Result<Vec<Named>, Stop> {
        let mut named = Vec::new();
        for write in doubt.writes.iter().filter(|write| write.kind != WriteKind::Link) {
            let table = self.table(write);
            let bytes = table.cvt_words() * WORD_BYTES;
            let read = |batch: &mut Batch| {
                let members = self.replicas(write).members().iter();
                let read = |replica: &Replica| (*replica, batch.read(replica.at(write.cvt), bytes));
                members.map(read).collect::<Vec<_>>()
            };
            let (done, buffers) = self.post(read).await?;
            let copy = |(replica, buffer)| (replica, done.words(buffer).to_vec());
            let joining = self.replicas(write).joining().to_vec();
            let copies = buffers.into_iter().map(copy).collect();
            named.push(Named { write: *write, shape: table.cvt(), copies, joining });
        }
        Ok(named)
    }

    fn table(&self, write: &LoggedWrite) -> std::sync::Arc<TableDef> {
        let table = self.coordinator.shared.table_with_memory(write.table);
        table.expect("writes to tables that are gone are left out")
    }

    /// Carries out a decision. Returns false if a word differs from the value read, and recovery
    /// has to start over.
    async fn carry_out(
        &self,
        slot: u16,
        copies: &[Copy],
        doubt: &InDoubt,
        named: &[Named],
        decision: Decision,
    ) -> Result<bool, Stop> {
        debug_assert!(
            decision != Decision::AlreadyResolved,
            "I51: what is resolved is not touched"
        );
        let word = match decision {
            Decision::Forward(time) => DecisionWord::Forward(time),
            _ => DecisionWord::Back,
        };
        if !self.record(slot, copies, doubt, word).await? {
            return Ok(false);
        }
        let repaired = match decision {
            Decision::Forward(_) => self.publish(doubt, named, decision).await?,
            _ => self.undo(doubt, named).await?,
        };
        if !repaired || !self.link(doubt).await? {
            return Ok(false);
        }
        let concerned = copies.iter().map(|copy| copy.node);
        let concerned = concerned.filter(|node| self.holds_cell(doubt, *node));
        let logs: Vec<_> = concerned.map(|node| (node, word)).collect();
        self.finish(slot, &logs).await
    }

    fn holds_cell(&self, doubt: &InDoubt, node: NodeId) -> bool {
        let replicas = doubt.writes.iter().flat_map(|write| self.replicas(write).members());
        replicas.into_iter().any(|replica| replica.node == node)
    }

    /// Records the decision in every log before acting on it (H17). Sequentially: the first log
    /// decides.
    async fn record(
        &self,
        slot: u16,
        copies: &[Copy],
        doubt: &InDoubt,
        decision: DecisionWord,
    ) -> Result<bool, Stop> {
        debug_assert!(
            matches!(decision, DecisionWord::Forward(_) | DecisionWord::Back),
            "I51: a decision is recorded before it is done"
        );
        let offset = (DECISION_WORD * WORD_BYTES) as u64;
        for (place, (node, _)) in doubt.logs.iter().enumerate() {
            let at = self.log_place(*node, slot).plus(offset);
            let undecided = DecisionWord::Undecided.word();
            if !self.swap(&[Swap::new(at, undecided, decision.word())]).await? {
                return Ok(false);
            }
            point!(self.coordinator.node.id.0, DecisionRecorded, place, doubt.logs.len());
        }
        for copy in copies {
            let has_it = doubt.logs.iter().any(|(node, _)| *node == copy.node);
            if has_it || !self.holds_cell(doubt, copy.node) {
                continue;
            }
            // Write the words after the id first; then the id, which makes the entry whole.
            let at = self.log_place(copy.node, slot);
            let mut words = doubt.words.clone();
            words[DECISION_WORD] = decision.word();
            self.post(|batch| write_words(batch, at.plus(WORD_BYTES as u64), &words[1..])).await?;
            if !self.swap(&[Swap::new(at, copy.words[0], words[0])]).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes every cell visible, on backups before primaries (H3).
    async fn publish(
        &self,
        doubt: &InDoubt,
        named: &[Named],
        decision: Decision,
    ) -> Result<bool, Stop> {
        for replicas in [Replicas::Backups, Replicas::Primaries] {
            let mut swaps = Vec::new();
            for row in named {
                let members = replicas.of(self.replicas(&row.write));
                for (replica, seen) in row.seen() {
                    let here = members.iter().any(|member| member.node == replica.node);
                    if let Repair::Publish { from, to } = repair(doubt.txn, decision, seen)
                        && here
                    {
                        swaps.push(Swap::new(replica.at(row.place()), from, to));
                    }
                }
            }
            if !self.swap_up_to(&swaps, |place, all| self.cuts_repair(place, all)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Empties every cell on every replica, even if the write never landed (H12, I72).
    async fn undo(&self, doubt: &InDoubt, named: &[Named]) -> Result<bool, Stop> {
        let mut swaps = Vec::new();
        for row in named {
            let whole = matches!(row.write.kind, WriteKind::Insert | WriteKind::Purge);
            for ((replica, words), (_, seen)) in row.copies.iter().zip(row.seen()) {
                let tagged = seen.word == Version::Invisible(doubt.txn).encode();
                if broken(Rule::AllReplicasAreRepaired) && !tagged {
                    continue;
                }
                if whole {
                    self.zero(row, *replica, words, &mut swaps).await?;
                } else if row.joining.contains(replica)
                    || repair(doubt.txn, Decision::Back, seen) != Repair::Keep
                {
                    swaps.extend(row.emptying(*replica, words));
                }
            }
        }
        self.swap_up_to(&swaps, |place, all| self.cuts_repair(place, all)).await
    }

    fn cuts_repair(&self, place: usize, all: usize) -> bool {
        cut!(self.coordinator.node.id.0, Repair, place, all)
    }

    /// Zeroes a CVT to free its memory; the swap of the named version word comes last.
    async fn zero(
        &self,
        row: &Named,
        replica: Replica,
        words: &[u64],
        swaps: &mut Vec<Swap>,
    ) -> Result<(), Stop> {
        let named = row.shape.cell_word(usize::from(row.write.cell));
        let at = |index: usize| replica.at(row.write.cvt + (index * WORD_BYTES) as u64);
        let zeroes = vec![0; words.len()];
        self.post(|batch| {
            write_words(batch, at(0), &zeroes[..named]);
            write_words(batch, at(named + 1), &zeroes[named + 1..]);
        })
        .await?;
        swaps.push(Swap::new(at(named), words[named], 0));
        Ok(())
    }

    /// Completes the links of overflow buckets under either decision: an empty bucket in a chain is
    /// harmless.
    async fn link(&self, doubt: &InDoubt) -> Result<bool, Stop> {
        let mut swaps = Vec::new();
        for write in doubt.writes.iter().filter(|write| write.kind == WriteKind::Link) {
            let place = write.cvt + overflow_offset(self.table(write).cvt());
            let members = self.replicas(write).members().iter();
            swaps.extend(members.map(|replica| Swap::new(replica.at(place), 0, write.record)));
        }
        self.swap(&swaps).await
    }

    /// Marks every log as done, before any lock is released.
    async fn finish(&self, slot: u16, logs: &[(NodeId, DecisionWord)]) -> Result<bool, Stop> {
        let place = |node| self.log_place(node, slot).plus((DECISION_WORD * WORD_BYTES) as u64);
        let done = DecisionWord::Done.word();
        let swaps = logs.iter().map(|(node, from)| Swap::new(place(*node), from.word(), done));
        let cut = |place, all| cut!(self.coordinator.node.id.0, Done, place, all);
        self.swap_up_to(&swaps.collect::<Vec<_>>(), cut).await
    }

    /// Whether a transaction without tags has certainly not become visible: a record of the
    /// transaction follows the version that is still the newest. A visible transaction would leave
    /// a newer version, its own or a later one, for as long as the row exists.
    async fn stopped_early(&self, doubt: &InDoubt, named: &[Named]) -> Result<bool, Stop> {
        if doubt.logs.iter().any(|(_, decision)| *decision == DecisionWord::Done) {
            return Ok(false);
        }
        for row in named {
            let writes = matches!(row.write.kind, WriteKind::Update | WriteKind::Delete);
            if !writes || row.write.record == 0 {
                continue;
            }
            let bytes = self.table(&row.write).whole_record_bytes();
            for ((replica, words), (_, seen)) in row.copies.iter().zip(row.seen()) {
                let Slot::Used(header) = Cvt::new(words, row.shape).slot() else { continue };
                let newest = match Version::decode(seen.word) {
                    Version::Committed(time) => time.max(seen.newest_other),
                    _ => seen.newest_other,
                };
                let (done, record) =
                    self.post(|batch| batch.read(replica.at(row.write.record), bytes)).await?;
                let own = Record::decode(header.name.key, done.words(record)).is_ok_and(|record| {
                    record.header().writer == Some(doubt.txn) && record.previous() == newest
                });
                if own {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Empties copies of a slot that are not whole, if `copies` has such copies.
    async fn empty_torn(&self, slot: u16, copies: &[Copy]) -> Result<(), Stop> {
        let torn = |copy: &&Copy| matches!(LogEntry::decode(&copy.words), Err(LogError::Torn));
        if !copies.iter().any(|copy| torn(&copy)) {
            return Ok(());
        }
        // Some copies may have become whole meanwhile.
        let copies = self.copies(slot).await?;
        let swaps = copies
            .iter()
            .filter(torn)
            .map(|copy| Swap::new(self.log_place(copy.node, slot), copy.words[0], 0));
        self.swap(&swaps.collect::<Vec<_>>()).await.map(drop)
    }
}

/// Adds a WRITE of `words`, unless empty.
fn write_words(batch: &mut Batch, at: RemoteAddr, words: &[u64]) {
    if words.is_empty() {
        return;
    }
    let buffer = batch.stage(words.len() * WORD_BYTES);
    batch.words_mut(buffer).copy_from_slice(words);
    batch.write(at, buffer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{Epoch, Incarnation, TableId};

    fn txn(incarnation: u16, attempt: u64) -> TxnId {
        TxnId::new(Incarnation::new(incarnation).expect("small"), 0, attempt)
    }

    fn copy(node: u16, txn: TxnId, decision: DecisionWord) -> Copy {
        let (table, kind) = (TableId(0), WriteKind::Update);
        let write = LoggedWrite { group: 0, table, kind, cvt: 0, cell: 0, record: 0 };
        let mut words = vec![0; entry_words(1)];
        LogEntry::encode(&mut words, txn, Epoch(1), [write]);
        words[DECISION_WORD] = decision.word();
        Copy { node: NodeId(node), words }
    }

    /// I148: a node died, returned, and died again while the entry of its second life had landed on
    /// one memory node only. Attempts count from zero in each life, so the last attempt of the
    /// first life, long over, had the larger number: the second life's would have been left in
    /// doubt.
    #[test]
    fn h16_a_later_life_s_attempt_is_later() {
        let before = |node| copy(node, txn(1, 900), DecisionWord::Done);
        // (what, the copies, what the slot tells of)
        let cases = [
            ("one copy", vec![before(0), copy(1, txn(4, 2), DecisionWord::Undecided)], txn(4, 2)),
            ("none", vec![before(0), before(1)], txn(1, 900)),
            ("attempts of one life", vec![copy(0, txn(1, 901), DecisionWord::Back), before(1)], {
                txn(1, 901)
            }),
        ];
        for (what, copies, latest) in cases {
            let found = InDoubt::latest(&copies).expect("there are whole ones");
            assert_eq!(found.txn, latest, "{what}");
            assert!(!found.logs.is_empty(), "{what}");
        }
    }
}
