//! An attempt of a transaction until its commit, common to all engines: rows are declared, locked
//! and read. [`Protocol`] defines the engine's part.
//!
//! An execution proceeds in rounds. In each round, every unfinished row has one doorbell under way,
//! and the answer decides the row's next step. A round is processed to its end even if a row has
//! lost a conflict, since other rows of the round have acquired locks.

use std::cell::Cell;
use std::rc::Rc;

use lotus_benchmarks::TxnError;
use lotus_benchmarks::engine::{Finish, Item, Receipt, Txn, TxnEngine, TxnKind};
use lotus_fabric::ids::{NodeId, RemoteAddr, TableId, TxnId};
use lotus_fabric::lane::{Batch, Completed, Posted};
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::PrimaryKey;

use super::index::SlotNumber;
use super::log::LogRing;
use super::rows::{CONFLICT, RowUse, TxnRow, TxnRows};
use super::search::{Found, search};
use super::thread_context::ThreadContext;
use super::{Faults, Locking, StoredTable, System};

const WORD: usize = 8;

/// An engine's transaction protocol.
pub(crate) trait Protocol: System {
    /// Index of the lock word within a slot.
    const LOCK_AT: usize;
    /// The engine's state for each row of a transaction.
    type Known: Default;
    /// A step of a row: one round trip.
    type Step: Copy;
    /// Buffers with the answers to a step.
    type Answers: Copy;
    /// State of a transaction that the engine's decisions depend on.
    type View;

    /// Begins an attempt.
    ///
    /// # Errors
    /// [`TxnError::Fatal`] if the engine has no transactions of this kind.
    fn view(
        context: &ThreadContext<Self>,
        id: TxnId,
        kind: TxnKind,
    ) -> Result<Self::View, TxnError>;

    /// The step that reads a bucket.
    fn find(bucket: u64) -> Self::Step;

    /// First step of a row whose slot is known.
    fn visit(access: RowUse) -> Self::Step;

    /// Whether a step tries to lock the row.
    fn locks(step: Self::Step) -> bool;

    /// Posts a step of a row.
    fn post(attempt: &mut Attempt<Self>, at: usize, step: Self::Step) -> (Self::Answers, Posted);

    /// Processes the answers to a step; returns the row's next step.
    ///
    /// # Errors
    /// The reason to abort the attempt.
    fn take(
        attempt: &mut Attempt<Self>,
        step: (usize, Self::Step, Self::Answers),
        done: &Completed,
    ) -> Result<Option<Self::Step>, TxnError>;

    /// Continues after all rows of an execution have been read; does nothing by default.
    ///
    /// # Errors
    /// The reason to abort the attempt.
    fn executed(_attempt: &mut Attempt<Self>) -> Result<(), TxnError> {
        Ok(())
    }

    /// Words of a value, with the engine's own words.
    fn value_words(shape: Self::Shape) -> usize;

    /// Completes the new value of a row that was changed; does nothing by default.
    fn change(_attempt: &mut Attempt<Self>, _item: Item) {}

    /// Commits an attempt whose rows have all been read.
    ///
    /// # Errors
    /// As described by [`TxnError`].
    async fn commit(attempt: &mut Attempt<Self>) -> Result<Receipt, TxnError>;
}

/// A step under way: its row, and the place of the answers.
type Flight<P> = (usize, <P as Protocol>::Step, <P as Protocol>::Answers, Posted);
type Spare<P> = Rc<Cell<Option<Box<Scratch<P>>>>>;

/// Memory of an attempt that the next attempt of its coroutine reuses.
pub(crate) struct Scratch<P: Protocol> {
    pub(crate) rows: TxnRows<P::Known>,
    steps: Vec<(usize, P::Step)>,
    flights: Vec<Flight<P>>,
    pub(crate) log: LogRing,
    /// Log entries that have not landed.
    pub(crate) logs: Vec<Posted>,
}

impl<P: Protocol> Default for Scratch<P> {
    fn default() -> Self {
        let (rows, steps, flights) = (TxnRows::default(), Vec::new(), Vec::new());
        Self { rows, steps, flights, log: LogRing::default(), logs: Vec::new() }
    }
}

/// Begins the transactions of one coroutine.
pub(crate) struct Session<P: Protocol> {
    context: Rc<ThreadContext<P>>,
    task: usize,
    attempts: u64,
    spare: Spare<P>,
}

impl<P: Protocol> Session<P> {
    pub(crate) fn new(context: Rc<ThreadContext<P>>, task: usize) -> Self {
        Self { context, task, attempts: 0, spare: Rc::default() }
    }
}

impl<P: Protocol> TxnEngine for Session<P> {
    type Txn = Attempt<P>;

    async fn begin(&mut self, kind: TxnKind) -> Result<Attempt<P>, TxnError> {
        self.context.lane.executor().env().transaction_begins();
        self.attempts += 1;
        let id = self.context.txn_id(self.task, self.attempts);
        Ok(Attempt {
            id,
            may_write: kind != TxnKind::ReadOnly,
            view: P::view(&self.context, id, kind)?,
            scratch: self.spare.take().unwrap_or_default(),
            spare: Rc::clone(&self.spare),
            context: Rc::clone(&self.context),
        })
    }
}

/// An attempt. Dropping the attempt aborts it.
pub(crate) struct Attempt<P: Protocol> {
    pub(crate) context: Rc<ThreadContext<P>>,
    pub(crate) id: TxnId,
    may_write: bool,
    pub(crate) view: P::View,
    pub(crate) scratch: Box<Scratch<P>>,
    spare: Spare<P>,
}

impl<P: Protocol> Attempt<P> {
    pub(crate) fn table(&self, number: usize) -> &StoredTable<P> {
        &self.context.store.tables[number]
    }

    /// The primary of a row, and the row's slot.
    ///
    /// # Panics
    /// If the slot is not known.
    #[inline]
    pub(crate) fn place(&self, row: &TxnRow<P::Known>) -> (NodeId, SlotNumber) {
        let slot = row.slot.expect("a step that needs the slot comes when it is known");
        (self.context.store.homes(self.table(row.table), slot).primary, slot)
    }

    /// Adds the READ of a bucket of a table.
    pub(crate) fn read_bucket(&self, batch: &mut Batch, table: usize, bucket: u64) -> Buffer {
        let node = self.context.store.placement.homes(table, bucket).primary;
        let table = self.table(table);
        let at = table.geometry.bucket_addr(node, table.region, bucket);
        batch.read_stable(at, table.geometry.bucket_bytes())
    }

    /// Adds the compare-and-swap of a slot's lock; adds nothing where the engine takes no locks.
    pub(crate) fn lock(&self, batch: &mut Batch, slot: RemoteAddr) -> Buffer {
        match self.context.store.options.locking {
            Locking::On => batch.compare_and_swap(lock_in::<P>(slot), 0, self.id.raw()),
            Locking::Off => Buffer::EMPTY,
        }
    }

    /// Records whether the lock of a row was acquired.
    ///
    /// # Errors
    /// [`CONFLICT`] if another transaction holds the lock.
    pub(crate) fn take_lock(
        &mut self,
        at: usize,
        lock: Buffer,
        done: &Completed,
    ) -> Result<(), TxnError> {
        let held = match self.context.store.options.locking {
            Locking::On => done.words(lock)[0],
            Locking::Off => 0,
        };
        // The lock is also acquired if this row is locked again, to be written after its insertion.
        if held != 0 && held != self.id.raw() {
            return Err(CONFLICT);
        }
        self.scratch.rows.get(at).held = true;
        Ok(())
    }

    /// Searches for a row in its bucket. A slot that another row of this transaction has claimed is
    /// not free.
    pub(crate) fn search<'w>(&self, at: usize, bucket: u64, words: &'w [u64]) -> Found<'w> {
        let row = &self.scratch.rows.all()[at];
        let others = self.scratch.rows.all().iter().enumerate().filter(|(other, _)| *other != at);
        let is_mine = |slot| {
            others.clone().any(|(_, other)| {
                other.table == row.table && other.absent_in.is_some() && other.slot == Some(slot)
            })
        };
        let mut addresses = self.context.addresses.borrow_mut();
        search(self.table(row.table), &row.key, (bucket, words), &mut addresses, is_mine)
    }

    /// First step of a row that was added.
    fn first_step(&self, row: &TxnRow<P::Known>) -> (Option<SlotNumber>, P::Step) {
        let table = self.table(row.table);
        let known = row.slot.filter(|_| row.absent_in.is_none());
        let mut addresses = self.context.addresses.borrow_mut();
        let find = || addresses.find(row.table, &row.key, table.loaded.as_ref());
        match known.or_else(find) {
            Some(slot) => (Some(slot), P::visit(row.access)),
            None => (None, P::find(table.geometry.bucket_of(&row.key))),
        }
    }

    fn add(&mut self, table: TableId, key: PrimaryKey, access: RowUse) -> Result<Item, TxnError> {
        self.scratch.rows.declare(&self.context.store, table, (key, access), self.may_write)
    }

    /// Releases the locks that are still held; as published, also the locks that were only tried.
    fn let_go(&self) {
        let published = self.context.store.options.faults == Faults::AsPublished;
        for row in self.scratch.rows.all() {
            if row.tried && !row.held {
                self.context.note_freed();
            }
            if (row.held || (published && row.tried)) && row.slot.is_some() {
                let (node, slot) = self.place(row);
                let lock = lock_in::<P>(self.table(row.table).slot(node, slot));
                let mut batch = self.context.lane.batch();
                batch.write_word(lock, 0);
                // Later verbs on the connection take effect after this WRITE.
                drop(batch.post());
            }
        }
    }
}

/// Address of the lock of a slot.
fn lock_in<P: Protocol>(slot: RemoteAddr) -> RemoteAddr {
    slot.plus((P::LOCK_AT * WORD) as u64)
}

/// A failed verb: no run survives it.
#[cold]
pub(crate) fn broken(error: impl std::fmt::Display) -> TxnError {
    TxnError::Fatal(format!("this engine survives no failure: {error}"))
}

impl<P: Protocol> Txn for Attempt<P> {
    fn id(&self) -> TxnId {
        self.id
    }

    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), RowUse::Read)
    }

    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), RowUse::Write)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let item = self.add(table, key.into(), RowUse::Insert)?;
        self.put(item, value)?;
        Ok(item)
    }

    async fn execute(&mut self) -> Result<(), TxnError> {
        let mut steps = std::mem::take(&mut self.scratch.steps);
        let mut flights = std::mem::take(&mut self.scratch.flights);
        for at in 0..self.scratch.rows.all().len() {
            if self.scratch.rows.all()[at].is_new {
                let (slot, step) = self.first_step(&self.scratch.rows.all()[at]);
                let row = self.scratch.rows.get(at);
                // A locked slot stays known, so that its lock is released.
                (row.is_new, row.slot) = (false, slot.or(row.slot));
                steps.push((at, step));
            }
        }
        let mut lost = None;
        while !steps.is_empty() && lost.is_none() {
            for (at, step) in steps.drain(..) {
                self.scratch.rows.get(at).tried |= P::locks(step);
                let (answers, posted) = P::post(self, at, step);
                flights.push((at, step, answers, posted));
            }
            for (at, step, answers, posted) in flights.drain(..) {
                let next = match posted.await {
                    Ok(done) => P::take(self, (at, step, answers), &done),
                    Err(error) => Err(broken(error)),
                };
                match next {
                    Ok(next) => steps.extend(next.map(|step| (at, step))),
                    Err(error) => lost = Some(lost.unwrap_or(error)),
                }
            }
        }
        steps.clear();
        (self.scratch.steps, self.scratch.flights) = (steps, flights);
        match lost {
            Some(error) => Err(error),
            None => P::executed(self),
        }
    }

    fn value(&self, item: Item) -> Option<&[u8]> {
        self.scratch.rows.value(item)
    }

    fn writer(&self, item: Item) -> Option<TxnId> {
        self.scratch.rows.writer(item)
    }

    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let table = self.scratch.rows.all().get(item.0 as usize).map(|row| row.table);
        let table = self.table(table.unwrap_or(0));
        let lengths = (table.record_bytes, P::value_words(table.shape));
        self.scratch.rows.set(item, value, lengths)?;
        P::change(self, item);
        Ok(())
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.scratch.rows.delete(item)?;
        P::change(self, item);
        Ok(())
    }
}

impl<P: Protocol> Finish for Attempt<P> {
    async fn commit(mut self) -> Result<Receipt, TxnError> {
        if self.scratch.rows.all().iter().any(|row| row.is_new) {
            self.execute().await?;
        }
        self.scratch.rows.check_changes()?;
        P::commit(&mut self).await
    }

    fn abort(self) {
        drop(self);
    }
}

impl<P: Protocol> Drop for Attempt<P> {
    fn drop(&mut self) {
        self.let_go();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.rows.clear();
        scratch.logs.clear();
        self.spare.set(Some(scratch));
    }
}
