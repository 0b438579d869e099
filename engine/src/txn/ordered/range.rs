//! Ranges of keys.

use std::ops::{Bound, RangeBounds};

use lotus_sabotage::any_broken;
use lotus_tree::{ENTRY_BYTES, Node, ROOT, Seek};

use super::OrderedTable;
use crate::api::error::TxnError;
use crate::txn::body::Access;

/// Most leaves that are read at once.
const MOST_AT_ONCE: usize = 16;

/// Rows of a range, in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Keys and values, side by side.
    bytes: Vec<u8>,
    /// Ends of each row's key and value.
    ends: Vec<(u32, u32)>,
}

impl Rows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the keys and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Returns the last row, from which a later range may go on.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.len().checked_sub(1).map(|index| self.row(index))
    }

    fn row(&self, index: usize) -> (&[u8], &[u8]) {
        let begins = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_ends, ends) = self.ends[index];
        let at = |offset: u32| offset as usize;
        (&self.bytes[at(begins)..at(key_ends)], &self.bytes[at(key_ends)..at(ends)])
    }

    fn push(&mut self, (key, value): (&[u8], &[u8])) {
        self.bytes.extend_from_slice(key);
        let key_ends = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((key_ends, self.bytes.len() as u32));
    }
}

/// A range to be read: from a key on, up to but not including another one.
#[must_use = "nothing is read before `rows` is awaited"]
pub struct Range<'o, 't> {
    table: &'o mut OrderedTable<'t>,
    from: Vec<u8>,
    until: Option<Vec<u8>>,
    reverse: bool,
    limit: usize,
    access: Access,
}

impl<'t> OrderedTable<'t> {
    /// Returns a range of keys, to be read by [`Range::rows`]. Bounds compare as bytes do.
    pub fn range<'o, 'k>(&'o mut self, bounds: impl RangeBounds<&'k [u8]>) -> Range<'o, 't> {
        let from = match bounds.start_bound() {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => after(key),
            Bound::Unbounded => Vec::new(),
        };
        let until = match bounds.end_bound() {
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        let (reverse, limit, access) = (false, usize::MAX, Access::Read);
        Range { table: self, from, until, reverse, limit, access }
    }

    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix<'o>(&'o mut self, prefix: &[u8]) -> Range<'o, 't> {
        let mut range = self.range(prefix..);
        range.until = after_all_with(prefix);
        range
    }
}

/// Least key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Least key above all those with this prefix; `None` if there is none.
fn after_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

impl Range<'_, '_> {
    /// Reads from the greatest key down.
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Reads at most this number of rows. Without a limit the result takes the memory of all rows.
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
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
        if self.until.as_ref().is_some_and(|until| *until < self.from) {
            return Err(TxnError::Misuse("a range ends at or after the key that it begins with"));
        }
        let mut rows = Rows::default();
        let empty = self.until.as_ref() == Some(&self.from);
        if self.limit == 0 || empty {
            return Ok(rows);
        }
        match self.reverse {
            false => self.ascend(&mut rows).await?,
            true => self.descend(&mut rows).await?,
        }
        Ok(rows)
    }

    async fn ascend(&mut self, rows: &mut Rows) -> Result<(), TxnError> {
        let mut from = std::mem::take(&mut self.from);
        loop {
            self.read_ahead(&from, self.limit - rows.len()).await?;
            let (id, item) = self.table.leaf(Seek::At(&from), self.access).await?;
            let leaf = self.table.node(id, item)?.unwrap_or(Node::EMPTY);
            debug_assert!(
                leaf.covers(Seek::At(&from)) || any_broken(),
                "I281: a range reads the leaf that is responsible for its next key"
            );
            let (Ok(first) | Err(first)) = leaf.find(&from);
            let inside = |key: &[u8]| self.until.as_ref().is_none_or(|until| key < &**until);
            for entry in leaf.entries().skip(first).take_while(|(key, _)| inside(key)) {
                rows.push(entry);
                if rows.len() == self.limit {
                    return Ok(());
                }
            }
            match leaf.high() {
                Some(high) if inside(high) && *high > *from => from = high.to_vec(),
                Some(high) if inside(high) => return Err(self.table.damaged()),
                _ => return Ok(()),
            }
        }
    }

    async fn descend(&mut self, rows: &mut Rows) -> Result<(), TxnError> {
        let mut until = self.until.take();
        loop {
            let place = until.as_deref().map_or(Seek::Last, Seek::Below);
            let (id, item) = self.table.leaf(place, self.access).await?;
            let leaf = self.table.node(id, item)?.unwrap_or(Node::EMPTY);
            let end = until.as_ref().map_or(leaf.len(), |until| {
                let (Ok(end) | Err(end)) = leaf.find(until);
                end
            });
            for index in (0..end).rev() {
                let (key, value) = leaf.entry(index);
                if key < &*self.from {
                    return Ok(());
                }
                rows.push((key, value));
                if rows.len() == self.limit {
                    return Ok(());
                }
            }
            if leaf.low() <= &*self.from {
                return Ok(());
            }
            if until.as_ref().is_some_and(|until| leaf.low() >= &**until) {
                return Err(self.table.damaged());
            }
            until = Some(leaf.low().to_vec());
        }
    }

    /// Executes, in one round, the leaves that are likely to be read next, as the remembered inner
    /// nodes name them.
    async fn read_ahead(&mut self, from: &[u8], rows: usize) -> Result<(), TxnError> {
        let table = &mut *self.table;
        let inner_nodes = &table.txn.slot.coordinator.inner_nodes;
        let place = Seek::At(from);
        let parent = table.remembered(place, 1);
        let bytes = parent.and_then(|parent| inner_nodes.get(table.table, parent));
        let node = bytes.as_deref().and_then(Node::read);
        let Some(node) = node.filter(|node| node.level() == 1 && node.covers(place)) else {
            return Ok(());
        };
        let entry = ENTRY_BYTES + (table.limits.key + table.limits.value) as usize;
        let at_once = rows.div_ceil((table.limits.node / 2 / entry).max(1)).min(MOST_AT_ONCE);
        let first = node.child_place(place);
        let children = (first..node.len()).take(at_once);
        let inside = |index: &usize| {
            *index == first || self.until.as_ref().is_none_or(|until| node.key(*index) < &**until)
        };
        for index in children.take_while(inside) {
            let id = node.child(index);
            debug_assert!(id != ROOT, "I280: the root has no parent");
            table.txn.add(table.table, id.into(), self.access, 0)?;
        }
        table.execute(place).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_lie_between_keys() {
        assert_eq!(after(b"ab"), b"ab\0");
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"ab", Some(b"ac")),
            (b"a\xff", Some(b"b")),
            (b"\xff\xff", None),
            (b"", None),
            (b"\xfe\xff\xff", Some(b"\xff")),
        ];
        for (prefix, next) in cases {
            assert_eq!(after_all_with(prefix).as_deref(), next, "{prefix:?}");
        }
    }

    #[test]
    fn rows_are_given_back_as_they_came() {
        let mut rows = Rows::default();
        assert_eq!((rows.is_empty(), rows.last()), (true, None));
        let all: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"bb", b""), (b"c", b"333")];
        all.iter().for_each(|row| rows.push(*row));
        assert_eq!(rows.iter().collect::<Vec<_>>(), all);
        assert_eq!(rows.iter().rev().map(|(key, _)| key).next(), Some(&b"c"[..]));
        assert_eq!((rows.len(), rows.last()), (3, Some(all[2])));
    }
}
