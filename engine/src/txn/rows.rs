//! Index of a transaction's rows by key.
//!
//! Most transactions have a handful of rows, and a linear search is the fastest way to find a row.
//! From [`FEW`] rows on, the rows are also entered in a hash table. The table holds places in the
//! list of rows and no keys, so the list remains the only source of truth. Its memory is kept, like
//! all buffers of a slot.

use lotus_fabric::ids::{Key, TableId};

use crate::txn::body::Row;

/// Number of rows from which the hash table is used.
const FEW: usize = 16;

/// Index of a transaction's rows by key; see the module's documentation.
#[derive(Default)]
pub(crate) struct RowIndex {
    /// Places in the list of rows, plus one; 0 is a free slot. The length is a power of two, or
    /// zero.
    slots: Vec<u32>,
    /// Number of rows entered: all rows, or 0 while there are few.
    entered: usize,
}

impl RowIndex {
    pub(crate) fn clear(&mut self) {
        // Not zeroed: the next transaction resizes the table, zeroed, to the required length.
        self.slots.clear();
        self.entered = 0;
    }

    /// Returns the place of the row with this table and 64-bit key for which `wanted` is true;
    /// different primary keys may share a 64-bit key.
    #[inline]
    pub(crate) fn find(
        &self,
        rows: &[Row],
        table: TableId,
        key: Key,
        mut wanted: impl FnMut(&Row) -> bool,
    ) -> Option<usize> {
        let mut is_it = |row: &Row| row.key == key && row.table == table && wanted(row);
        if rows.len() < FEW {
            return rows.iter().position(is_it);
        }
        debug_assert_eq!(
            self.entered,
            rows.len(),
            "I8: every row of the transaction is found by its key"
        );
        let mask = self.slots.len() - 1;
        let mut slot = hash(table, key) & mask;
        while let Some(place) = self.slots[slot].checked_sub(1) {
            if is_it(&rows[place as usize]) {
                return Some(place as usize);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// Enters the row added last, and the earlier rows once they are no longer few.
    #[inline]
    pub(crate) fn added(&mut self, rows: &[Row]) {
        if rows.len() >= FEW {
            self.enter(rows);
        }
    }

    fn enter(&mut self, rows: &[Row]) {
        // At most half full.
        if self.slots.len() < 2 * rows.len() {
            self.slots.clear();
            self.slots.resize((4 * rows.len()).next_power_of_two(), 0);
            self.entered = 0;
        }
        let mask = self.slots.len() - 1;
        for (place, row) in rows.iter().enumerate().skip(self.entered) {
            let mut slot = hash(row.table, row.key) & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = place as u32 + 1;
        }
        self.entered = rows.len();
    }
}

/// Hashes table and key. A key is a hash except for its shard, which many rows share; rows of
/// several tables often share the whole key.
#[inline]
fn hash(table: TableId, key: Key) -> usize {
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    (key.hash() ^ u64::from(table.0).wrapping_mul(GOLDEN_RATIO) >> 20) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::body::{Access, Change};
    use lotus_mvcc::naming::KeyMark;
    use lotus_mvcc::{CriticalField, Naming};
    use lotus_router::GroupId;

    fn row(table: u16, number: u64, key: Key) -> Row {
        Row {
            table: TableId(table),
            key,
            mark: KeyMark::default(),
            group: GroupId(0),
            primary_key: number.into(),
            access: Access::Read,
            executed: false,
            value: None,
            writer: None,
            target: None,
            change: Change::None,
            reserved: None,
        }
    }

    fn key(number: u64) -> Key {
        // A single shard, the worst case.
        Naming::KNOWN.name(&number.into(), CriticalField::Hashed, 1).key
    }

    #[test]
    fn few_and_many_rows_are_found_and_others_are_not() {
        let mut index = RowIndex::default();
        for total in [3, 1000, 0, FEW, FEW - 1, 40] {
            index.clear();
            let mut rows = Vec::new();
            for number in 0..total as u64 {
                for table in [1, 2] {
                    rows.push(row(table, number, key(number)));
                    index.added(&rows);
                }
            }
            for (place, row) in rows.iter().enumerate() {
                let same = |other: &Row| other.primary_key == row.primary_key;
                assert_eq!(index.find(&rows, row.table, row.key, same), Some(place));
            }
            let absent = total as u64;
            assert_eq!(index.find(&rows, TableId(1), key(absent), |_| true), None);
            assert_eq!(index.find(&rows, TableId(3), key(0), |_| true), None);
        }
    }

    #[test]
    fn rows_that_share_a_key_are_told_apart() {
        let mut index = RowIndex::default();
        let mut rows = Vec::new();
        for number in 0..100 {
            rows.push(row(1, number, key(7)));
            index.added(&rows);
        }
        for number in 0..100 {
            let named = |row: &Row| row.primary_key == number.into();
            assert_eq!(index.find(&rows, TableId(1), key(7), named), Some(number as usize));
        }
        assert_eq!(index.find(&rows, TableId(1), key(7), |_| false), None);
    }
}
