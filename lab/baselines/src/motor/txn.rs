//! A transaction of Motor until its commit: the steps of a row in each round.
//!
//! | row | address known | address unknown |
//! |---|---|---|
//! | to write | lock and version table, then value | bucket, then lock, version table and value |
//! | to read | version table, then value | bucket, then value |
//! | absent | | bucket, then lock and version table of the free slot |

use std::sync::atomic::Ordering;

use lotus_benchmarks::engine::{Item, Receipt, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{RemoteAddr, TxnId};
use lotus_fabric::lane::{Completed, Posted};
use lotus_fabric::verbs::Buffer;

use super::Motor;
use super::decide::{TxnView, VersionPlace, newer, place};
use super::row::{self, Cell, Cvt, Delta, HEADER_WORDS, LOCK_AT, Link, Shape, WORD};
use crate::store::attempt::{Attempt, Protocol};
use crate::store::rows::{CONFLICT, Change, FULL, RowUse, Value};
use crate::store::search::Found;
use crate::store::thread_context::ThreadContext;
use crate::store::{Locking, SHARED_REGION};

/// Motor's state for a row of a transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Whether the slot was free, and is locked for this row.
    pub(super) claimed: bool,
    /// Timestamp of the row's newest version; 0 if there is no version.
    pub(super) newest: u64,
    /// Offset of the row's bar of deltas, if any.
    pub(super) bar: Option<u64>,
    /// Place of the row's next version, if the row is to be written.
    pub(super) place: VersionPlace,
    /// Version that was chosen, possibly a deletion; `None` if the row has no visible version.
    seen: Option<ChosenVersion>,
    /// Newer versions to undo, if any.
    older: Option<Box<Older>>,
    /// Content of the chosen version, if it was read.
    pub(super) content: Option<Value>,
    /// Whether the row gets its bar of deltas with this commit.
    pub(super) new_bar: bool,
}

/// The chosen version of a row.
#[derive(Clone, Copy, Debug)]
struct ChosenVersion {
    /// Length of the version's value.
    bytes: u32,
    deleted: bool,
    /// Place of the value to read for the version, among the row's values.
    place: u8,
    /// Word at both ends of the value.
    anchor: u64,
}

/// Versions to undo.
#[derive(Clone, Debug, Default)]
struct Older {
    /// The versions with their deltas, the newest first.
    newer: Vec<(u64, Delta)>,
    /// Buffers with the deltas.
    answers: Vec<Buffer>,
}

/// The next step of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowStep {
    /// Read a bucket to find the slot.
    Bucket(u64),
    /// Read the version table.
    Cvt,
    /// Lock, and read the version table.
    Lock,
    /// Lock, and read the version table and the value at this place, where the bucket had the
    /// newest value.
    LockAndValue(u8),
    /// Lock a free slot.
    Claim,
    /// Read the value, and the deltas of the versions to undo.
    Value,
}

/// Buffers with the answers to a step.
#[derive(Clone, Copy)]
pub(crate) struct Answers {
    lock: Buffer,
    slot: Buffer,
    value: Buffer,
}

impl Protocol for Motor {
    const LOCK_AT: usize = LOCK_AT;
    type Known = Known;
    type Step = RowStep;
    type Answers = Answers;
    type View = TxnView;

    fn view(context: &ThreadContext<Self>, id: TxnId, kind: TxnKind) -> Result<TxnView, TxnError> {
        let crate::Options { faults, locking, .. } = context.store.options;
        let start = context.store.clock.latest().raw();
        Ok(TxnView { kind, start, id: id.raw(), faults, locking })
    }

    fn find(bucket: u64) -> RowStep {
        RowStep::Bucket(bucket)
    }

    fn visit(access: RowUse) -> RowStep {
        if access == RowUse::Read { RowStep::Cvt } else { RowStep::Lock }
    }

    fn locks(step: RowStep) -> bool {
        matches!(step, RowStep::Lock | RowStep::LockAndValue(_) | RowStep::Claim)
    }

    #[inline]
    fn post(txn: &mut MotorTxn, at: usize, step: RowStep) -> (Answers, Posted) {
        txn.post(at, step)
    }

    #[inline]
    fn take(
        txn: &mut MotorTxn,
        step: (usize, RowStep, Answers),
        done: &Completed,
    ) -> Result<Option<RowStep>, TxnError> {
        txn.take(step, done)
    }

    fn value_words(shape: Shape) -> usize {
        shape.content_words
    }

    fn change(txn: &mut MotorTxn, item: Item) {
        txn.sign(item);
    }

    async fn commit(txn: &mut MotorTxn) -> Result<Receipt, TxnError> {
        txn.commit_all().await
    }
}

/// A transaction.
pub(crate) type MotorTxn = Attempt<Motor>;

impl MotorTxn {
    /// Posts a step of a row.
    #[inline]
    fn post(&mut self, at: usize, step: RowStep) -> (Answers, Posted) {
        let row = &self.scratch.rows.all()[at];
        let mut batch = self.context.lane.batch();
        let (mut lock, mut value) = (Buffer::EMPTY, Buffer::EMPTY);
        if let RowStep::Bucket(bucket) = step {
            let slot = self.read_bucket(&mut batch, row.table, bucket);
            return (Answers { lock, slot, value }, batch.post());
        }
        let table = self.table(row.table);
        let (node, number) = self.place(row);
        let addr = table.slot(node, number);
        if Motor::locks(step) {
            lock = self.lock(&mut batch, addr);
        }
        let slot = match step {
            RowStep::Value => Buffer::EMPTY,
            _ => batch.read_stable(addr, table.geometry.slot_bytes()),
        };
        let mut deltas = Vec::new();
        if let (RowStep::Value, Some(bar), Some(older)) = (step, row.engine.bar, &row.engine.older)
        {
            // Deltas are read before the value: a writer overwrites the value first, so the
            // overwriting would be noticed.
            deltas.extend(older.newer.iter().map(|(_, delta)| {
                let bytes = table.shape.words_of_delta(delta.changed) * WORD;
                let at = bar + table.shape.delta_at(delta.place);
                batch.read_stable(RemoteAddr::new(node, SHARED_REGION, at), bytes)
            }));
        }
        let place = match step {
            RowStep::LockAndValue(place) => Some(place),
            RowStep::Value => row.engine.seen.map(|seen| seen.place),
            _ => None,
        };
        if let Some(place) = place {
            let addr = table.beside(node, number).plus(table.shape.value_at(place));
            value = batch.read_stable(addr, table.shape.value_words() * WORD);
        }
        if let Some(older) = &mut self.scratch.rows.get(at).engine.older {
            older.answers = deltas;
        }
        (Answers { lock, slot, value }, batch.post())
    }

    /// Processes the answers to a step; returns the row's next step.
    fn take(
        &mut self,
        (at, step, answers): (usize, RowStep, Answers),
        done: &Completed,
    ) -> Result<Option<RowStep>, TxnError> {
        match step {
            RowStep::Bucket(bucket) => self.find_in(at, bucket, done.words(answers.slot)),
            RowStep::Cvt => self.judge(at, done.words(answers.slot)),
            RowStep::Lock | RowStep::LockAndValue(_) | RowStep::Claim => {
                self.take_lock(at, answers.lock, done)?;
                let slot = done.words(answers.slot);
                if matches!(step, RowStep::Claim) {
                    return self.claim(at, slot);
                }
                let next = self.judge(at, slot)?;
                let seen = self.scratch.rows.all()[at].engine.seen;
                let place = seen.map_or(0, |seen| seen.place);
                match (step, next) {
                    (RowStep::LockAndValue(read), Some(_)) if read == place => {
                        self.take_value(at, answers, done).map(|()| None)
                    }
                    (_, next) => Ok(next),
                }
            }
            RowStep::Value => self.take_value(at, answers, done).map(|()| None),
        }
    }

    /// Searches for a row in its bucket.
    fn find_in(
        &mut self,
        at: usize,
        bucket: u64,
        words: &[u64],
    ) -> Result<Option<RowStep>, TxnError> {
        let found = self.search(at, bucket, words);
        let row = self.scratch.rows.get(at);
        match (found, row.access) {
            (Found::GoOn(next), _) => Ok(Some(RowStep::Bucket(next))),
            (Found::Full, _) => Err(FULL),
            (Found::There(slot, words), access) => {
                (row.slot, row.absent_in) = (Some(slot), None);
                match access {
                    RowUse::Read => self.judge(at, words),
                    _ => {
                        let newest = Cvt::of(words).and_then(|cvt| cvt.newest());
                        let place = newest.map_or(0, |cell| cell.value_place());
                        Ok(Some(RowStep::LockAndValue(place)))
                    }
                }
            }
            (Found::Free(_, words), RowUse::Read) => {
                row.absent_in = Some(bucket);
                if self.view.is_shut_out(words[LOCK_AT]) { Err(CONFLICT) } else { Ok(None) }
            }
            (Found::Free(slot, _), _) => {
                (row.slot, row.absent_in) = (Some(slot), Some(bucket));
                Ok(Some(RowStep::Claim))
            }
        }
    }

    /// Claims a locked free slot, unless another row was placed there before.
    fn claim(&mut self, at: usize, words: &[u64]) -> Result<Option<RowStep>, TxnError> {
        let row = self.scratch.rows.get(at);
        if row::key_in(words).is_some() {
            return Err(CONFLICT);
        }
        row.engine.claimed = true;
        let number = row.table;
        self.table(number).filled.fetch_add(1, Ordering::Relaxed);
        let row = self.scratch.rows.get(at);
        (row.read, row.writer) = (None, None);
        Ok(None)
    }

    /// Chooses the visible version of a row.
    fn judge(&mut self, at: usize, words: &[u64]) -> Result<Option<RowStep>, TxnError> {
        let view = self.view;
        let row = self.scratch.rows.get(at);
        if !row::is_of(words, row.table, &row.key) {
            return Err(CONFLICT);
        }
        let Some(cvt) = Cvt::of(words) else {
            self.context.note_torn();
            return Err(CONFLICT);
        };
        (row.read, row.writer, row.engine.content) = (None, None, None);
        let seen = view.version(&cvt, row.access)?;
        (row.engine.newest, row.engine.bar) = (cvt.newest_version(), cvt.bar());
        if row.access > RowUse::Read {
            row.engine.place = place(&cvt);
        }
        (row.engine.seen, row.engine.older) = (None, None);
        if let Some(cell) = &seen {
            let (place, anchor) = (cell.value_place(), cvt.anchor(cell));
            row.engine.seen =
                Some(ChosenVersion { bytes: cell.bytes, deleted: cell.deleted, place, anchor });
            let newer = newer(&cvt, cell.version);
            if !newer.is_empty() {
                row.engine.older = Some(Box::new(Older { newer, ..Older::default() }));
            }
        }
        match (seen, row.access) {
            (Some(Cell { deleted: false, .. }), RowUse::Insert) => {
                Err(TxnError::Aborted(AbortReason::Logic))
            }
            (Some(Cell { deleted: true, .. }), RowUse::Read) | (None, _) => Ok(None),
            (Some(Cell { deleted: true, link: Link::Record { .. }, .. }), _) => Ok(None),
            // A writer needs the content of a deleted row, too, for its delta.
            (Some(_), _) => Ok(Some(RowStep::Value)),
        }
    }

    /// Processes a value: the version's record, or the newest value and the deltas of newer
    /// versions.
    fn take_value(
        &mut self,
        at: usize,
        answers: Answers,
        done: &Completed,
    ) -> Result<(), TxnError> {
        let row = self.scratch.rows.get(at);
        let (table, known) = (row.table, &mut row.engine);
        let seen = known.seen.expect("a value is read of a version that was chosen");
        let older = known.older.take();
        let shape = self.table(table).shape;
        if seen.bytes as usize > (shape.content_words - 1) * WORD {
            return Err(TxnError::Fatal(format!("a value of {} bytes", seen.bytes)));
        }
        let value = done.words(answers.value);
        // Without locks, two writers may leave the value of one writer beside the cell of the
        // other.
        let anchor = match self.view.locking {
            Locking::On => seen.anchor,
            Locking::Off => value[0],
        };
        let content = shape.content_of(value, anchor);
        // A table that was read in the middle of a row's first update may lack the bar.
        let is_whole = older.as_ref().is_none_or(|older| older.newer.len() == older.answers.len());
        let Some(content) = content.filter(|_| is_whole) else {
            self.context.note_torn();
            return Err(CONFLICT);
        };
        let value = self.scratch.rows.keep(content, seen.bytes as usize);
        let words = self.scratch.rows.words_mut(value, shape.content_words);
        if let Some(older) = older {
            let mut deltas = older.newer.iter().zip(&older.answers);
            if !deltas
                .all(|(delta, words_of)| shape.take_back(*delta, done.words(*words_of), words))
            {
                self.context.note_torn();
                return Err(CONFLICT);
            }
        }
        let writer = row::writer_of(words);
        let row = self.scratch.rows.get(at);
        row.engine.content = Some(value);
        if !seen.deleted {
            (row.read, row.writer) = (Some(value), writer);
        }
        Ok(())
    }
}

impl MotorTxn {
    /// Records this transaction as the writer of a row's new content. The content of a deleted row
    /// is otherwise unchanged.
    fn sign(&mut self, item: Item) {
        let row = &self.scratch.rows.all()[item.0 as usize];
        let (words, mut new) = (self.table(row.table).shape.content_words, row.new);
        if row.change == Change::Delete {
            new = self.scratch.rows.copy(row.read, words);
            self.scratch.rows.get(item.0 as usize).new = new;
        }
        self.scratch.rows.words_mut(new, words)[words - 1] = self.id.raw();
    }
}

const _: () = assert!(LOCK_AT < HEADER_WORDS);
