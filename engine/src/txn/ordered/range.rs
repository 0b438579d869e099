//! Ranges of keys.

use std::ops::{self, RangeBounds};

use lotus_mvcc::KeyRange;
use lotus_sabotage::any_broken;
use lotus_tree::{ENTRY_BYTES, Inner, Node, ROOT, Seek};

use super::{INVERTED, OrderedTable};
use crate::api::error::TxnError;
use crate::txn::body::{Access, Item};

/// Maximum number of leaves that are read at once.
const MOST_AT_ONCE: usize = 16;
/// Leaves after which a page ends, even if they have few rows.
const PAGE_LEAVES: usize = 64;

/// Rows of a range, in the requested order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Rows side by side, as in a leaf: the length of the key in a byte, key and value.
    bytes: Vec<u8>,
    /// Ends of each row's key and value.
    ends: Vec<(u32, u32)>,
    /// The part of the range that was not read.
    rest: Option<KeyRange>,
}

impl Rows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the result is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the keys and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Returns the last row, from which a later range may continue.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.len().checked_sub(1).map(|index| self.row(index))
    }

    /// Returns the part of the range behind a page ([`Range::page`]), to be read as another range;
    /// `None` if the page was the last, or has as many rows as its limit allows.
    pub fn rest(&self) -> Option<&KeyRange> {
        self.rest.as_ref()
    }

    fn row(&self, index: usize) -> (&[u8], &[u8]) {
        let begins = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_ends, ends) = self.ends[index];
        let at = |offset: u32| offset as usize;
        (&self.bytes[at(begins) + 1..at(key_ends)], &self.bytes[at(key_ends)..at(ends)])
    }

    /// Number of rows at `places` of a leaf, from the first on, that fit a page of `most` bytes.
    /// The first row of a page always fits.
    fn fitting(&self, leaf: Node<'_>, places: &ops::Range<usize>, most: usize) -> usize {
        let begin = leaf.begin(places.start);
        let has_room = |place: &usize| {
            let is_first = self.is_empty() && *place == places.start;
            is_first || self.bytes.len() + leaf.begin(place + 1) - begin <= most
        };
        match most {
            usize::MAX => places.len(),
            _ => places.clone().take_while(has_room).count(),
        }
    }

    /// Adds the rows at these places of a leaf, in ascending order, by one copy. `None`, without
    /// any addition, if the leaf is not sound.
    fn push(&mut self, leaf: Node<'_>, places: ops::Range<usize>) -> Option<()> {
        let (own, before) = (self.bytes.len(), self.ends.len());
        let (bytes, first) = (leaf.side_by_side(places.clone()), leaf.begin(places.start));
        let ends = places.map(|place| {
            let begin = leaf.begin(place).checked_sub(first)?;
            let key_ends = begin + 1 + usize::from(*bytes.get(begin)?);
            let end = leaf.begin(place + 1).checked_sub(first)?;
            (key_ends <= end && end <= bytes.len())
                .then_some(((own + key_ends) as u32, (own + end) as u32))
        });
        for end in ends {
            match end {
                Some(end) => self.ends.push(end),
                None => {
                    self.ends.truncate(before);
                    return None;
                }
            }
        }
        self.bytes.extend_from_slice(bytes);
        Some(())
    }
}

/// A range to be read: from a key on, up to but not including another key.
#[must_use = "nothing is read before `rows` is awaited"]
pub struct Range<'o, 't> {
    table: &'o mut OrderedTable<'t>,
    keys: KeyRange,
    reverse: bool,
    limit: usize,
    /// Limits of a page: bytes of rows, and leaves.
    page: (usize, usize),
    access: Access,
}

impl<'t> OrderedTable<'t> {
    /// Returns a range of keys, to be read by [`Range::rows`]. Bounds compare as bytes do.
    pub fn range<'o, 'k>(&'o mut self, bounds: impl RangeBounds<&'k [u8]>) -> Range<'o, 't> {
        self.within(KeyRange::of(bounds))
    }

    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix<'o>(&'o mut self, prefix: &[u8]) -> Range<'o, 't> {
        self.within(KeyRange::prefix(prefix))
    }

    /// Returns a range over bounds that were built before.
    pub fn within<'o>(&'o mut self, keys: KeyRange) -> Range<'o, 't> {
        let (reverse, limit, access) = (false, usize::MAX, Access::Read);
        Range { table: self, keys, reverse, limit, page: (usize::MAX, usize::MAX), access }
    }
}

impl Range<'_, '_> {
    /// Limit of the bytes of a page's keys and values.
    pub const PAGE_BYTES: usize = 128 << 10;

    /// Reads from the greatest key down.
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Reads at most `rows` rows. Without a limit the result takes the memory of all rows.
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// Ends early, before the rows take more than [`Range::PAGE_BYTES`] or when many leaves were
    /// read: [`Rows::rest`] is the part that remains. The memory of a page is therefore bounded. A
    /// page may be empty if most rows were deleted.
    pub fn page(mut self) -> Self {
        self.page = (Self::PAGE_BYTES, PAGE_LEAVES);
        self
    }

    /// Locks the rows to write, for a transaction that will change them: see
    /// [`OrderedTable::get_for_update`].
    pub fn for_update(mut self) -> Self {
        self.access = Access::Write;
        self
    }

    /// Reads the rows, with this transaction's changes.
    ///
    /// # Errors
    /// `Misuse` if the range ends before it begins; otherwise as [`OrderedTable::get`].
    pub async fn rows(mut self) -> Result<Rows, TxnError> {
        if self.keys.is_inverted() {
            return Err(INVERTED);
        }
        let mut rows = Rows::default();
        if self.limit == 0 || self.keys.is_empty() {
            return Ok(rows);
        }
        match self.reverse {
            false => self.ascend(&mut rows).await?,
            true => self.descend(&mut rows).await?,
        }
        Ok(rows)
    }

    async fn ascend(&mut self, rows: &mut Rows) -> Result<(), TxnError> {
        let mut from = std::mem::take(&mut self.keys.from);
        // Leaves that have been read ahead, the next one last.
        let mut ahead = Vec::new();
        for leaves in 1.. {
            if ahead.is_empty() {
                self.read_ahead(&from, self.limit - rows.len(), &mut ahead).await?;
            }
            let place = Seek::At(&from);
            let (id, item) = match ahead.pop() {
                Some((id, item)) if self.table.is_it(id, item, place, 0)? => (id, item),
                // The remembered inner nodes are missing or out of date.
                _ => {
                    ahead.clear();
                    self.table.leaf(place, self.access).await?
                }
            };
            let leaf = self.table.node(id, item)?.unwrap_or(Node::EMPTY);
            debug_assert!(
                leaf.covers(place) || any_broken(),
                "I281: a range reads the leaf that is responsible for its next key"
            );
            let (Ok(first) | Err(first)) = leaf.find(&from);
            let inside = |key: &[u8]| self.keys.until.as_ref().is_none_or(|until| key < &**until);
            let goes_on = leaf.high().filter(|high| inside(high));
            let end = match &self.keys.until {
                Some(until) if goes_on.is_none() => leaf.find(until).unwrap_or_else(|end| end),
                _ => leaf.len(),
            };
            if !self.copy(leaf, first..end.max(first), ahead.len(), rows)? {
                return Ok(());
            }
            match goes_on {
                Some(high) if *high > *from => {
                    from.clear();
                    from.extend_from_slice(high);
                }
                Some(_) => return Err(self.table.damaged()),
                None => return Ok(()),
            }
            if leaves >= self.page.1 {
                rows.rest = Some(self.keys.rest(from, false));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies the rows at these places of a leaf, up to limit and page size; `ahead` more leaves
    /// have been read. Returns whether the range goes on.
    fn copy(
        &self,
        leaf: Node<'_>,
        places: ops::Range<usize>,
        ahead: usize,
        rows: &mut Rows,
    ) -> Result<bool, TxnError> {
        let most = self.limit - rows.len();
        let wanted = places.start..places.end.min(places.start.saturating_add(most));
        let fitting = rows.fitting(leaf, &wanted, self.page.0);
        if rows.bytes.capacity() - rows.bytes.len() < leaf.bytes().len() {
            // Room for all leaves read ahead, if they resemble this leaf.
            let leaves = 1 + ahead.min(most / fitting.max(1));
            rows.bytes.reserve(leaves * leaf.bytes().len());
            rows.ends.reserve(leaves * leaf.len());
        }
        let end = wanted.start + fitting;
        rows.push(leaf, wanted.start..end).ok_or_else(|| self.table.damaged())?;
        if end < wanted.end {
            rows.rest = Some(self.keys.rest(leaf.key(end).to_vec(), false));
        }
        Ok(rows.rest.is_none() && rows.len() < self.limit)
    }

    async fn descend(&mut self, rows: &mut Rows) -> Result<(), TxnError> {
        let mut until = self.keys.until.take();
        for leaves in 1.. {
            let place = until.as_deref().map_or(Seek::Last, Seek::Below);
            let (id, item) = self.table.leaf(place, self.access).await?;
            let leaf = self.table.node(id, item)?.unwrap_or(Node::EMPTY);
            debug_assert!(
                leaf.covers(place) || any_broken(),
                "I281: a range reads the leaf that is responsible for its last key"
            );
            let end = until.as_ref().map_or(leaf.len(), |until| {
                let (Ok(end) | Err(end)) = leaf.find(until);
                end
            });
            for index in (0..end).rev() {
                if leaf.key(index) < &*self.keys.from {
                    return Ok(());
                }
                let place = index..index + 1;
                if rows.fitting(leaf, &place, self.page.0) == 0 {
                    // The row above is the last row read.
                    rows.rest = rows.last().map(|(last, _)| self.keys.rest(last.to_vec(), true));
                    return Ok(());
                }
                rows.push(leaf, place).ok_or_else(|| self.table.damaged())?;
                if rows.len() == self.limit {
                    return Ok(());
                }
            }
            if leaf.low() <= &*self.keys.from {
                return Ok(());
            }
            if until.as_ref().is_some_and(|until| leaf.low() >= &**until) {
                return Err(self.table.damaged());
            }
            let low = leaf.low().to_vec();
            if leaves >= self.page.1 {
                rows.rest = Some(self.keys.rest(low, true));
                return Ok(());
            }
            until = Some(low);
        }
        Ok(())
    }

    /// Executes, in one round, the leaves that are likely to be read next, as named by the
    /// remembered inner nodes. Adds the leaves to `ahead`, the first leaf last.
    async fn read_ahead(
        &mut self,
        from: &[u8],
        rows: usize,
        ahead: &mut Vec<(u64, Item)>,
    ) -> Result<(), TxnError> {
        let table = &mut *self.table;
        let inner_nodes = &table.txn.slot.coordinator.inner_nodes;
        let place = Seek::At(from);
        let parent = table.remembered(place, 1);
        let inner = parent.and_then(|parent| inner_nodes.get(table.table, parent));
        let node = inner.as_ref().map(Inner::node);
        let Some(node) = node.filter(|node| node.level() == 1 && node.covers(place)) else {
            return Ok(());
        };
        let entry = ENTRY_BYTES + (table.limits.key + table.limits.value) as usize;
        let at_once = rows.div_ceil((table.limits.node / 2 / entry).max(1)).min(MOST_AT_ONCE);
        let first = node.child_place(place);
        let children = (first..node.len()).take(at_once);
        let inside = |index: &usize| {
            let until = self.keys.until.as_ref();
            *index == first || until.is_none_or(|until| node.key(*index) < &**until)
        };
        for index in children.take_while(inside) {
            let id = node.child(index);
            debug_assert!(id != ROOT, "I280: the root has no parent");
            let item = table.txn.add(table.table, id.into(), self.access, 0)?;
            ahead.push((id, item));
        }
        ahead.reverse();
        // The first leaf contains the place.
        let first = ahead.last().map_or(ROOT, |(id, _)| *id);
        table.execute(first, place).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_tree::edit;

    #[test]
    fn rows_are_given_back_as_they_came() {
        let mut rows = Rows::default();
        assert_eq!((rows.is_empty(), rows.last()), (true, None));
        let all: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"bb", b""), (b"c", b"333")];
        let leaf = all.iter().fold(Node::EMPTY.bytes().to_vec(), |leaf, (key, value)| {
            edit::with(Node::read(&leaf).expect("well-formed"), key, value)
        });
        let leaf = Node::read(&leaf).expect("well-formed");
        assert_eq!(rows.push(leaf, 0..2).and_then(|()| rows.push(leaf, 2..3)), Some(()));
        assert_eq!(rows.iter().collect::<Vec<_>>(), all);
        // A row takes its key, its value and a byte.
        let room = |most| Rows::default().fitting(leaf, &(0..3), most);
        assert_eq!([0, 5, 6, 10, 11].map(room), [1, 1, 2, 2, 3]);
        let full = |most| rows.fitting(leaf, &(0..3), most);
        assert_eq!([0, 13, 14, 22, usize::MAX].map(full), [0, 0, 1, 3, 3]);
        assert_eq!(rows.iter().rev().map(|(key, _)| key).next(), Some(&b"c"[..]));
        assert_eq!((rows.len(), rows.last()), (3, Some(all[2])));
    }
}
