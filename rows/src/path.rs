//! Secondary access paths: finding rows by a key different from the primary key.
//!
//! # What it is
//! A path is an ordinary table with rows that lead to rows of a base table. Two kinds:
//!
//! * **Unique**: one row per secondary key, with the bytes of a primary key as the value.
//!   [`target`] reads the value. Inserting the path row of an existing key fails with
//!   `AlreadyExists`, which makes the path unique.
//! * **Grouped**: one row per parent key; the value is an ordered list of entries, a [`Group`]. An
//!   [`Entry`] is a primary key and its sort order: customers of one last name by first name,
//!   orders of a customer by number.
//!
//! The module decodes and encodes values, and knows no engine. `link` and `unlink` of the
//! transactions of the engine and of the client store the results in rows; code over [`HashRows`]
//! stores the results itself.
//!
//! [`HashRows`]: crate::HashRows
//!
//! # What it is not
//! Maintained automatically: a transaction that inserts, deletes or re-keys a base row must also
//! change the path row; base and path then become visible at one moment, or not at all. Nor is a
//! path a range index: a group lies in one row and is limited by the table's record size.
//!
//! # Phantoms
//! A missing path row is locked by its key like an existing row (H20). So under serializability "no
//! customer of that name" stays true until the end of the transaction that has read the absence,
//! and a transaction that would add such a customer conflicts. Under snapshot isolation an absence
//! is read from the snapshot, like every row, and only two writers of one path row exclude each
//! other.
//!
//! # Bytes
//! An entry is two bytes of lengths, then the order, then the key. Entries are in ascending order,
//! without duplicates. A group without entries keeps its row, with an empty value: deleting the row
//! would not free its place in the index, and the next entry would have to lock a whole bucket of
//! the index.

use lotus_mvcc::PrimaryKey;

/// Bytes of an entry's two lengths.
const LENGTHS: usize = 2;

/// Error from reading or changing a path row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The value was not encoded by this module. The row belongs to a different table, or was
    /// written by a bug: do not go on.
    #[error("the value of a path row is malformed")]
    Malformed,
    /// The group already has the entry; nothing was changed.
    #[error("the group has this entry already")]
    AlreadyLinked,
    /// The group does not have the entry to remove; nothing was changed.
    #[error("the group has no such entry")]
    NotLinked,
    /// The group would not fit in its row; nothing was changed. Give the path table longer records,
    /// or use a parent key with smaller groups.
    #[error("a group of {bytes} bytes exceeds the {limit} bytes of its row")]
    GroupFull {
        /// Size of the group with the entry, in bytes.
        bytes: usize,
        /// Largest record of the table, in bytes.
        limit: usize,
    },
    /// The entry's order is longer than [`Entry::MAX_ORDER_BYTES`]; use a prefix.
    #[error("an entry is ordered by at most 255 bytes, not {bytes}")]
    OrderTooLong {
        /// Length of the order, in bytes.
        bytes: usize,
    },
}

/// Decodes the primary key in a row of a unique path; `None` if the row does not exist.
///
/// The row's value is [`PrimaryKey::as_bytes`].
///
/// # Errors
/// [`PathError::Malformed`] if the value is not a primary key.
pub fn target(value: Option<&[u8]>) -> Result<Option<PrimaryKey>, PathError> {
    value.map(|bytes| PrimaryKey::try_from(bytes).map_err(|_| PathError::Malformed)).transpose()
}

/// A base row in a group. Entries are sorted by `order`, then by key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry<'a> {
    /// Sort order as bytes; may be empty.
    pub order: &'a [u8],
    /// The primary key of the base row.
    pub key: PrimaryKey,
}

impl<'a> Entry<'a> {
    /// Largest length of an entry's order, in bytes.
    pub const MAX_ORDER_BYTES: usize = u8::MAX as usize;

    /// Creates an entry sorted by its key alone.
    pub fn by_key(key: impl Into<PrimaryKey>) -> Self {
        Self { order: &[], key: key.into() }
    }

    /// Returns the size of the entry in a row, in bytes.
    pub fn byte_count(&self) -> usize {
        LENGTHS + self.order.len() + self.key.byte_count()
    }

    /// Appends the entry to a row's value. To build the value of a row for loading instead of
    /// inserting, append the entries in ascending order.
    ///
    /// # Errors
    /// [`PathError::OrderTooLong`]; nothing was appended.
    pub fn append_to(&self, value: &mut Vec<u8>) -> Result<(), PathError> {
        let bytes = self.order.len();
        let order_bytes = u8::try_from(bytes).map_err(|_| PathError::OrderTooLong { bytes })?;
        value.extend([order_bytes, self.key.byte_count() as u8]);
        value.extend_from_slice(self.order);
        value.extend_from_slice(self.key.as_bytes());
        Ok(())
    }

    /// Splits off the first entry of `bytes`; `None` if `bytes` do not begin with a whole entry.
    fn split_from(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (lengths, rest) = bytes.split_first_chunk::<LENGTHS>()?;
        let (order, rest) = rest.split_at_checked(lengths[0].into())?;
        let (key, rest) = rest.split_at_checked(lengths[1].into())?;
        Some((Self { order, key: PrimaryKey::try_from(key).ok()? }, rest))
    }
}

/// Entries of one row of a grouped path, in ascending order.
///
/// ```
/// use lotus_rows::path::{Entry, Group, PathError};
///
/// let ada = Entry { order: b"Ada", key: 2.into() };
/// let bea = Entry { order: b"Bea", key: 1.into() };
/// let value = Group::EMPTY.with(&bea, 100)?;
/// let value = Group::read(Some(&value))?.with(&ada, 100)?;
/// let group = Group::read(Some(&value))?;
/// assert_eq!((group.first(), group.last()), (Some(ada), Some(bea)));
/// # Ok::<(), PathError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    /// Whole entries, in ascending order.
    bytes: &'a [u8],
}

impl<'a> Group<'a> {
    /// The group without entries.
    pub const EMPTY: Self = Self { bytes: &[] };

    /// Reads the group in a row's value; a row that does not exist is an empty group.
    ///
    /// # Errors
    /// [`PathError::Malformed`] if the value is not a list of entries in ascending order.
    pub fn read(value: Option<&'a [u8]>) -> Result<Self, PathError> {
        let bytes = value.unwrap_or_default();
        let (mut rest, mut before) = (bytes, None);
        while !rest.is_empty() {
            let (entry, behind) = Entry::split_from(rest).ok_or(PathError::Malformed)?;
            if before.is_some_and(|before| before >= entry) {
                return Err(PathError::Malformed);
            }
            (rest, before) = (behind, Some(entry));
        }
        Ok(Self { bytes })
    }

    /// Returns the entries in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (entry, behind) = Entry::split_from(rest)?;
            rest = behind;
            Some(entry)
        })
    }

    /// Returns the number of entries, by counting them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether the group is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the least entry.
    pub fn first(&self) -> Option<Entry<'a>> {
        self.iter().next()
    }

    /// Returns the greatest entry.
    pub fn last(&self) -> Option<Entry<'a>> {
        self.iter().last()
    }

    /// Returns whether the group has the entry.
    pub fn contains(&self, entry: &Entry<'_>) -> bool {
        self.place_of(entry).1
    }

    /// Returns the row's value with `entry` added in sort order; `limit` is the row's size in
    /// bytes.
    ///
    /// # Errors
    /// [`PathError::AlreadyLinked`], [`PathError::GroupFull`], or [`PathError::OrderTooLong`].
    pub fn with(&self, entry: &Entry<'_>, limit: usize) -> Result<Vec<u8>, PathError> {
        let (at, present) = self.place_of(entry);
        if present {
            return Err(PathError::AlreadyLinked);
        }
        let bytes = self.bytes.len() + entry.byte_count();
        if bytes > limit {
            return Err(PathError::GroupFull { bytes, limit });
        }
        let mut value = Vec::with_capacity(bytes);
        value.extend_from_slice(&self.bytes[..at]);
        entry.append_to(&mut value)?;
        value.extend_from_slice(&self.bytes[at..]);
        Ok(value)
    }

    /// Returns the row's value with `entry` removed.
    ///
    /// # Errors
    /// [`PathError::NotLinked`].
    pub fn without(&self, entry: &Entry<'_>) -> Result<Vec<u8>, PathError> {
        let (at, present) = self.place_of(entry);
        if !present {
            return Err(PathError::NotLinked);
        }
        Ok([&self.bytes[..at], &self.bytes[at + entry.byte_count()..]].concat())
    }

    /// Returns the offset of the entry, or of its place if absent, and whether the entry is
    /// present.
    fn place_of(&self, wanted: &Entry<'_>) -> (usize, bool) {
        let mut at = 0;
        for entry in self.iter() {
            if entry >= *wanted {
                return (at, entry == *wanted);
            }
            at += entry.byte_count();
        }
        (at, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 60;

    fn entry(order: &str, key: u64) -> Entry<'_> {
        Entry { order: order.as_bytes(), key: key.into() }
    }

    fn made_of(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut value = Vec::new();
        for entry in entries {
            entry.append_to(&mut value).expect("short orders");
        }
        value
    }

    #[test]
    fn a_unique_row_leads_to_its_key() {
        let key = PrimaryKey::from((7_u32, 9_u32));
        assert_eq!(target(Some(key.as_bytes())), Ok(Some(key)));
        assert_eq!(target(None), Ok(None));
        assert_eq!(target(Some(&[])), Err(PathError::Malformed));
        assert_eq!(target(Some(&[1; 32])), Err(PathError::Malformed));
    }

    #[test]
    fn entries_come_in_order_however_they_were_added() {
        let sorted = [entry("", 9), entry("Ada", 3), entry("Ada", 4), entry("Adam", 1)];
        for turn in 0..sorted.len() {
            let mut shuffled = sorted;
            shuffled.rotate_left(turn);
            shuffled.swap(0, 2);
            let mut value = Vec::new();
            for entry in &shuffled {
                let group = Group::read(Some(&value)).expect("it is well-formed");
                assert!(!group.contains(entry));
                value = group.with(entry, LIMIT).expect("there is room");
            }
            assert_eq!(value, made_of(&sorted));
            let group = Group::read(Some(&value)).expect("it is well-formed");
            assert_eq!(group.iter().collect::<Vec<_>>(), sorted);
            assert_eq!((group.first(), group.last()), (Some(sorted[0]), Some(sorted[3])));
            for entry in shuffled {
                let group = Group::read(Some(&value)).expect("it is well-formed");
                assert!(group.contains(&entry));
                value = group.without(&entry).expect("it is there");
            }
            assert!(value.is_empty());
        }
        assert_eq!(Group::read(None), Ok(Group::EMPTY));
        assert_eq!((Group::EMPTY.len(), Group::EMPTY.last()), (0, None));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let value = made_of(&[entry("Ada", 3), entry("Bea", 4)]);
        let group = Group::read(Some(&value)).expect("it is well-formed");
        let long = "x".repeat(256);
        let full = PathError::GroupFull { bytes: 39, limit: 38 };
        let cases = [
            (group.with(&entry("Ada", 3), LIMIT), PathError::AlreadyLinked),
            (group.with(&entry("Cat", 5), 38), full),
            (group.with(&entry(&long, 5), 1000), PathError::OrderTooLong { bytes: 256 }),
            (group.without(&entry("Ada", 4)), PathError::NotLinked),
            (Group::EMPTY.without(&entry("", 4)), PathError::NotLinked),
        ];
        for (refused, error) in cases {
            assert_eq!(refused, Err(error));
        }
        assert!(group.with(&entry("Cat", 5), 39).is_ok(), "it fits exactly");
    }

    #[test]
    fn a_value_of_another_kind_is_no_group() {
        let good = made_of(&[entry("Ada", 3), entry("Bea", 4)]);
        let cut = &good[..good.len() - 1];
        let unsorted = made_of(&[entry("Bea", 4), entry("Ada", 3)]);
        let twice = made_of(&[entry("Ada", 3), entry("Ada", 3)]);
        let cases = [cut, &good[1..], &unsorted, &twice, &[0], &[0, 0], &[0, 32], &[255, 1, 7]];
        for value in cases {
            assert_eq!(Group::read(Some(value)), Err(PathError::Malformed), "{value:?}");
        }
    }
}
