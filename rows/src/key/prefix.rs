//! Tuples of keys, and ranges of ordered tables with every key that has the same first parts.

use std::ops::{Bound, RangeBounds};

use super::parts::{begin_string, together};
use super::{KeyBuffer, KeyReader, KeyWriter, RowKey};
use crate::error::Malformed;

/// A prefix of keys of type `K`. For a tuple: its first part, or a tuple of the first two or more
/// parts. For a string: its beginning.
///
/// ```
/// use lotus_rows::KeyRange;
///
/// // All orders of customer 7, in a table whose keys are customer, year and order.
/// let orders = KeyRange::prefix::<(u32, u16, u64), _>(&7);
/// let of_2024 = KeyRange::prefix::<(u32, u16, u64), _>(&(7, 2024));
/// let names = KeyRange::prefix::<String, _>("an");
/// assert_eq!((names.from(), names.until()), (&b"an"[..], Some(&b"ao"[..])));
/// # assert!(orders.from() < of_2024.from() && orders.until() > of_2024.until());
/// ```
pub trait PrefixOf<K> {
    /// Writes the bytes at the beginning of every key with the prefix, and of no other key.
    fn write_prefix(&self, to: &mut KeyWriter<'_>);
}

impl PrefixOf<String> for str {
    fn write_prefix(&self, to: &mut KeyWriter<'_>) {
        begin_string(self.as_bytes(), to);
    }
}

/// Implements `RowKey` for a tuple.
macro_rules! tuple {
    ($($part:ident)*) => {
        impl<$($part: RowKey),*> RowKey for ($($part,)*) {
            const MAX_KEY_BYTES: Option<u32> = {
                let bytes = Some(0);
                $(let bytes = together(bytes, $part::MAX_KEY_BYTES);)*
                bytes
            };

            #[inline]
            #[expect(non_snake_case, reason = "a part is named as its type")]
            fn write_key(&self, to: &mut KeyWriter<'_>) {
                let ($($part,)*) = self;
                $($part.write_key(to);)*
            }

            #[inline]
            fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
                Ok(($($part::read_key(from)?,)*))
            }
        }
    };
}

/// Implements `PrefixOf` for the first parts of a tuple.
macro_rules! prefix {
    ($prefix:ty: $($first:ident)* | $($other:ident)*) => {
        impl<$($first: RowKey,)* $($other: RowKey),*> PrefixOf<($($first,)* $($other,)*)>
            for $prefix
        {
            #[inline]
            fn write_prefix(&self, to: &mut KeyWriter<'_>) {
                self.write_key(to);
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);

prefix!(A: A | B);
prefix!(A: A | B C);
prefix!(A: A | B C D);
prefix!(A: A | B C D E);
prefix!(A: A | B C D E F);
prefix!((A, B): A B | C);
prefix!((A, B): A B | C D);
prefix!((A, B): A B | C D E);
prefix!((A, B): A B | C D E F);
prefix!((A, B, C): A B C | D);
prefix!((A, B, C): A B C | D E);
prefix!((A, B, C): A B C | D E F);
prefix!((A, B, C, D): A B C D | E);
prefix!((A, B, C, D): A B C D | E F);
prefix!((A, B, C, D, E): A B C D E | F);

/// A range of encoded keys, with an inclusive lower and an exclusive upper bound.
#[derive(Clone, Debug)]
pub struct KeyRange {
    from: KeyBuffer,
    until: Option<KeyBuffer>,
}

impl KeyRange {
    /// Encodes a range of keys.
    pub fn of<K: RowKey>(keys: &impl RangeBounds<K>) -> Self {
        let buffer = |key: &K| KeyBuffer::written(|to| key.write_key(to));
        let from = match keys.start_bound() {
            Bound::Included(key) => buffer(key),
            Bound::Excluded(key) => buffer(key).next(),
            Bound::Unbounded => KeyBuffer::written(|_| {}),
        };
        let until = match keys.end_bound() {
            Bound::Included(key) => Some(buffer(key).next()),
            Bound::Excluded(key) => Some(buffer(key)),
            Bound::Unbounded => None,
        };
        Self { from, until }
    }

    /// The range of the keys of type `K` with prefix `prefix`.
    pub fn prefix<K, P: PrefixOf<K> + ?Sized>(prefix: &P) -> Self {
        let from = KeyBuffer::written(|to| prefix.write_prefix(to));
        let until = from.clone().after_all_that_begin_so();
        Self { from, until }
    }

    /// Inclusive lower bound.
    pub fn from(&self) -> &[u8] {
        self.from.as_bytes()
    }

    /// Exclusive upper bound; `None` if the range ends with the table.
    pub fn until(&self) -> Option<&[u8]> {
        self.until.as_ref().map(KeyBuffer::as_bytes)
    }

    /// The longer bound, which may have been cut.
    pub(crate) fn longest(&self) -> &KeyBuffer {
        let bounds = self.until.iter().chain([&self.from]);
        bounds.max_by_key(|bound| bound.len()).unwrap_or(&self.from)
    }
}

impl KeyBuffer {
    /// Least byte string above every byte string that begins with `self`; `None` if there is no
    /// upper bound.
    fn after_all_that_begin_so(mut self) -> Option<Self> {
        let last = self.as_bytes().iter().rposition(|byte| *byte < u8::MAX)?;
        self.bytes[last] += 1;
        self.bytes[last + 1..].fill(0);
        self.len = last + 1;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_the_bounds_of_their_keys() {
        let cases = [
            (KeyRange::of(&(1_u16..3)), &[0, 1][..], Some(&[0, 3][..])),
            (KeyRange::of(&(1_u16..=3)), &[0, 1], Some(&[0, 3, 0])),
            (KeyRange::of(&(Bound::Excluded(1_u16), Bound::Unbounded)), &[0, 1, 0], None),
            (KeyRange::of::<u16>(&..), &[], None),
            (KeyRange::prefix::<(u8, u8), _>(&7_u8), &[7], Some(&[8])),
            (KeyRange::prefix::<(u8, u8), _>(&255_u8), &[255], None),
            (KeyRange::prefix::<(u8, u8, u8), _>(&(7_u8, 255_u8)), &[7, 255], Some(&[8])),
            (KeyRange::prefix::<String, _>("a\0"), &[b'a', 1, 1], Some(&[b'a', 1, 2])),
            (KeyRange::prefix::<String, _>(""), &[], None),
        ];
        for (range, from, until) in cases {
            assert_eq!((range.from(), range.until()), (from, until));
        }
    }
}
