//! Slots of rows, as far as a thread knows them.
//!
//! Motor and FORD give each thread an unbounded cache of addresses. A thread adds every slot of a
//! bucket that it has read. Slots never change keys, so entries never become stale.

use std::collections::HashMap;

use lotus_mvcc::PrimaryKey;

use super::index::SlotNumber;

/// Addresses that threads know when a run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Known {
    /// None: each thread learns addresses itself.
    #[default]
    Nothing,
    /// Addresses of all loaded rows.
    Loaded,
}

type Slots = HashMap<PrimaryKey, SlotNumber, ahash::RandomState>;

/// Slots of the rows of one table.
#[derive(Clone, Debug)]
pub(crate) struct TableSlots(Slots);

impl Default for TableSlots {
    /// Slots with a hasher of fixed seed, as simulations require.
    fn default() -> Self {
        Self(Slots::with_hasher(ahash::RandomState::with_seed(0)))
    }
}

impl TableSlots {
    #[inline]
    pub(crate) fn get(&self, key: &PrimaryKey) -> Option<SlotNumber> {
        self.0.get(key).copied()
    }

    #[inline]
    pub(crate) fn learn(&mut self, key: PrimaryKey, slot: SlotNumber) {
        self.0.insert(key, slot);
    }
}

/// One thread's addresses, by table.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    tables: Vec<TableSlots>,
    lookups: u64,
    hits: u64,
}

impl Addresses {
    pub(crate) fn new(tables: usize) -> Self {
        Self { tables: vec![TableSlots::default(); tables], lookups: 0, hits: 0 }
    }

    /// The slot of a row, if known to this thread or in `loaded`.
    #[inline]
    pub(crate) fn find(
        &mut self,
        table: usize,
        key: &PrimaryKey,
        loaded: Option<&TableSlots>,
    ) -> Option<SlotNumber> {
        self.lookups += 1;
        let found = loaded.and_then(|slots| slots.get(key));
        let found = found.or_else(|| self.tables[table].get(key));
        self.hits += u64::from(found.is_some());
        found
    }

    #[inline]
    pub(crate) fn learn(&mut self, table: usize, key: PrimaryKey, slot: SlotNumber) {
        self.tables[table].learn(key, slot);
    }

    /// Number of look-ups, and of look-ups that found the address.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.lookups, self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_loaded_or_learnt_is_found() {
        let mut addresses = Addresses::new(2);
        let mut loaded = TableSlots::default();
        loaded.learn(7_u64.into(), 70);
        addresses.learn(1, 8_u64.into(), 80);
        let mut find = |table, key: u64| addresses.find(table, &key.into(), Some(&loaded));
        assert_eq!(
            [find(1, 7), find(1, 8), find(0, 8), find(1, 9)],
            [Some(70), Some(80), None, None]
        );
        assert_eq!(addresses.counts(), (4, 2));
    }
}
