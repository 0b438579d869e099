//! Memory that was taken for the indexes of tables that were not created.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lotus_mvcc::layout::region::SLAB_BYTES;
use lotus_router::GroupId;

/// Offsets of unused stretches of memory, by group and number of slabs. All of it is zeroes: no
/// process has known of it.
#[derive(Default)]
pub(crate) struct SpareIndexes(Mutex<BTreeMap<(u8, u64), Vec<u64>>>);

impl SpareIndexes {
    /// Takes a stretch for an index of `bytes` bytes, if there is one of its size.
    pub(crate) fn take(&self, group: GroupId, bytes: u64) -> Option<u64> {
        self.lock().get_mut(&(group.0, bytes.div_ceil(SLAB_BYTES)))?.pop()
    }

    /// Keeps the stretch at `base`, which was taken for an index of `bytes` bytes.
    pub(crate) fn keep(&self, group: GroupId, bytes: u64, base: u64) {
        debug_assert!(base != 0, "I20: no slab begins where a region does");
        self.lock().entry((group.0, bytes.div_ceil(SLAB_BYTES))).or_default().push(base);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u8, u64), Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_serves_one_index_of_its_size_in_its_group() {
        let spare = SpareIndexes::default();
        spare.keep(GroupId(1), SLAB_BYTES + 1, 7 * SLAB_BYTES);
        assert_eq!(spare.take(GroupId(0), SLAB_BYTES + 1), None);
        assert_eq!(spare.take(GroupId(1), SLAB_BYTES), None);
        assert_eq!(spare.take(GroupId(1), 2 * SLAB_BYTES), Some(7 * SLAB_BYTES));
        assert_eq!(spare.take(GroupId(1), 2 * SLAB_BYTES), None);
    }
}
