//! The rows of a transaction, as declared by the workload. `X` is the engine's state for each row.

use lotus_benchmarks::engine::Item;
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;
use zerocopy::IntoBytes;

use super::index::SlotNumber;
use super::{Store, System};

const WORD: usize = 8;

/// Use of a row; each use includes the uses before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RowUse {
    Read,
    Write,
    /// The row must not exist.
    Insert,
}

/// Change of a row at commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    None,
    Put,
    Delete,
}

/// Position of a value among the words of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Value {
    first: u32,
    /// Length in bytes.
    pub(crate) bytes: u32,
}

/// One row.
pub(crate) struct TxnRow<X> {
    pub(crate) table: usize,
    pub(crate) key: PrimaryKey,
    pub(crate) access: RowUse,
    /// Value that was read; `None` if the row does not exist.
    pub(crate) read: Option<Value>,
    pub(crate) writer: Option<TxnId>,
    pub(crate) change: Change,
    pub(crate) new: Value,
    /// Whether the row waits for the next execution.
    pub(crate) is_new: bool,
    /// The row's slot, or the free slot that an inserted row will get.
    pub(crate) slot: Option<SlotNumber>,
    /// Bucket at which the search ended, if the row does not exist.
    pub(crate) absent_in: Option<u64>,
    /// Whether this transaction holds the row's lock.
    pub(crate) held: bool,
    /// Whether a compare-and-swap of the row's lock was posted.
    pub(crate) tried: bool,
    pub(crate) engine: X,
}

/// The rows of a transaction, with the values read and the values to write.
pub(crate) struct TxnRows<X> {
    rows: Vec<TxnRow<X>>,
    words: Vec<u64>,
}

impl<X> Default for TxnRows<X> {
    fn default() -> Self {
        Self { rows: Vec::new(), words: Vec::new() }
    }
}

impl<X: Default> TxnRows<X> {
    /// Removes all rows; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.words.clear();
    }

    pub(crate) fn all(&self) -> &[TxnRow<X>] {
        &self.rows
    }

    #[inline]
    pub(crate) fn get(&mut self, at: usize) -> &mut TxnRow<X> {
        &mut self.rows[at]
    }

    /// Adds a row, if the table exists and the transaction may access it so.
    ///
    /// # Errors
    /// [`TxnError::Fatal`].
    pub(crate) fn declare<S: System>(
        &mut self,
        store: &Store<S>,
        table: TableId,
        (key, access): (PrimaryKey, RowUse),
        may_write: bool,
    ) -> Result<Item, TxnError> {
        let known = store.tables.get(usize::from(table.0));
        let known = known.ok_or_else(|| TxnError::Fatal(format!("there is no {table:?}")))?;
        if key.byte_count() > known.key_bytes {
            let (most, name) = (known.key_bytes, &known.name);
            return Err(TxnError::Fatal(format!("{key:?} is longer than the {most} of {name}")));
        }
        if access > RowUse::Read && !may_write {
            return Err(TxnError::Fatal("a read-only transaction cannot write".to_owned()));
        }
        Ok(self.add(known.number, key, access))
    }

    /// Adds a row, or finds the row if it was added before, with the greater access of both.
    fn add(&mut self, table: usize, key: PrimaryKey, access: RowUse) -> Item {
        let found = self.rows.iter().position(|row| row.table == table && row.key == key);
        if let Some(at) = found {
            let row = &mut self.rows[at];
            if access > row.access && row.change != Change::Delete {
                (row.access, row.is_new) = (access, true);
            }
            return Item(at as u32);
        }
        self.rows.push(TxnRow {
            table,
            key,
            access,
            read: None,
            writer: None,
            change: Change::None,
            new: Value::default(),
            is_new: true,
            slot: None,
            absent_in: None,
            held: false,
            tried: false,
            engine: X::default(),
        });
        Item(self.rows.len() as u32 - 1)
    }

    /// Zeroed room for a value of `words` words.
    pub(crate) fn room(&mut self, words: usize, bytes: usize) -> Value {
        let first = self.words.len();
        self.words.resize(first + words, 0);
        Value { first: first as u32, bytes: bytes as u32 }
    }

    /// Stores the words of a value of `bytes` bytes.
    pub(crate) fn keep(&mut self, words: &[u64], bytes: usize) -> Value {
        let first = self.words.len();
        self.words.extend_from_slice(words);
        Value { first: first as u32, bytes: bytes as u32 }
    }

    /// The first `words` words of a value.
    pub(crate) fn words(&self, value: Value, words: usize) -> &[u64] {
        &self.words[value.first as usize..][..words]
    }

    pub(crate) fn words_mut(&mut self, value: Value, words: usize) -> &mut [u64] {
        &mut self.words[value.first as usize..][..words]
    }

    /// A copy of a value of `words` words, with length 0; zeroes if `value` is `None`.
    pub(crate) fn copy(&mut self, value: Option<Value>, words: usize) -> Value {
        let copy = self.room(words, 0);
        if let Some(value) = value {
            let first = value.first as usize;
            self.words.copy_within(first..first + words, copy.first as usize);
        }
        copy
    }

    pub(crate) fn value(&self, item: Item) -> Option<&[u8]> {
        let value = self.rows.get(item.0 as usize)?.read?;
        let words = self.words(value, (value.bytes as usize).div_ceil(WORD));
        Some(&words.as_bytes()[..value.bytes as usize])
    }

    pub(crate) fn writer(&self, item: Item) -> Option<TxnId> {
        self.rows.get(item.0 as usize)?.writer
    }

    /// Sets the value that the commit writes. A table's values have at most `most` bytes, and
    /// `words` words with the engine's own words.
    pub(crate) fn set(
        &mut self,
        item: Item,
        value: &[u8],
        (most, words): (usize, usize),
    ) -> Result<(), TxnError> {
        if value.len() > most {
            let length = value.len();
            return Err(TxnError::Fatal(format!("a value of {length} bytes, not at most {most}")));
        }
        let new = self.room(words, value.len());
        self.words[new.first as usize..].as_mut_bytes()[..value.len()].copy_from_slice(value);
        let row = self.writable(item)?;
        (row.change, row.new) = (Change::Put, new);
        Ok(())
    }

    /// Marks a row for deletion.
    pub(crate) fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.writable(item)?.change = Change::Delete;
        Ok(())
    }

    /// Refuses a change of a row that does not exist, unless the row is inserted.
    pub(crate) fn check_changes(&self) -> Result<(), TxnError> {
        let is_wrong = |row: &&TxnRow<X>| {
            let absent = row.read.is_none() && row.access != RowUse::Insert;
            row.change != Change::None && absent
        };
        match self.rows.iter().find(is_wrong) {
            Some(row) => Err(TxnError::Fatal(format!("{:?} does not exist", row.key))),
            None => Ok(()),
        }
    }

    fn writable(&mut self, item: Item) -> Result<&mut TxnRow<X>, TxnError> {
        let row = self.rows.get_mut(item.0 as usize);
        row.filter(|row| row.access > RowUse::Read)
            .ok_or_else(|| TxnError::Fatal("a row that was not added for writing".to_owned()))
    }
}

/// Abort: the attempt lost a conflict against another attempt.
pub(crate) const CONFLICT: TxnError = TxnError::Aborted(AbortReason::Conflict);
/// Abort: no memory is left for the attempt.
pub(crate) const FULL: TxnError = TxnError::Aborted(AbortReason::MemoryFull);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_added_twice_is_one_with_the_greater_access() {
        let mut rows = TxnRows::<()>::default();
        let first = rows.add(0, 1_u64.into(), RowUse::Read);
        rows.get(0).is_new = false;
        assert_eq!(rows.add(0, 1_u64.into(), RowUse::Read), first);
        assert!(!rows.get(0).is_new);
        assert_eq!(rows.add(0, 1_u64.into(), RowUse::Write), first);
        assert!(rows.get(0).is_new);
        assert_ne!(rows.add(1, 1_u64.into(), RowUse::Write), first);
    }

    #[test]
    fn values_are_bytes_and_only_rows_added_for_writing_can_be_set() {
        let mut rows = TxnRows::<()>::default();
        let read = rows.add(0, 1_u64.into(), RowUse::Read);
        let write = rows.add(0, 2_u64.into(), RowUse::Write);
        assert!(rows.set(read, &[1], (8, 1)).is_err() && rows.delete(read).is_err());
        assert!(rows.set(write, &[1; 9], (8, 1)).is_err());
        rows.set(write, &[1, 2, 3], (8, 1)).expect("it was added for writing");
        let new = rows.get(1).new;
        assert_eq!((rows.words(new, 1)[0], new.bytes), (0x03_02_01, 3));
        rows.get(1).read = Some(new);
        assert_eq!(rows.value(write), Some(&[1, 2, 3][..]));
        assert_eq!(rows.value(read), None);
    }
}
