//! Ranges of the keys of an ordered table.

use std::ops::{Bound, RangeBounds};

/// A half-open range of keys, in byte order: from an included key to an excluded key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRange {
    /// Inclusive lower bound: the least byte string in the range, whether or not a valid key.
    pub from: Vec<u8>,
    /// Exclusive upper bound; `None` if unbounded.
    pub until: Option<Vec<u8>>,
}

impl KeyRange {
    /// Returns the range between two bounds.
    pub fn of<'k>(bounds: impl RangeBounds<&'k [u8]>) -> Self {
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
        Self { from, until }
    }

    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { from: prefix.to_vec(), until: after_all_with(prefix) }
    }

    /// Whether the range ends before it begins.
    pub fn is_inverted(&self) -> bool {
        self.until.as_ref().is_some_and(|until| *until < self.from)
    }

    /// Whether the range contains no key.
    pub fn is_empty(&self) -> bool {
        self.until.as_ref().is_some_and(|until| *until <= self.from)
    }

    /// Returns the unread rest of the range after a read up to `place`: the least unread key, or in
    /// reverse the least key read.
    pub fn rest(&self, place: Vec<u8>, reverse: bool) -> Self {
        match reverse {
            false => Self { from: place, until: self.until.clone() },
            true => Self { from: self.from.clone(), until: Some(place) },
        }
    }
}

/// Returns the least key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns the least key above all keys with this prefix; `None` if no such key exists.
fn after_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
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
            assert_eq!(KeyRange::prefix(prefix).until.as_deref(), next, "{prefix:?}");
        }
    }

    #[test]
    fn ranges_have_the_bounds_that_they_are_made_of() {
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        let range = |from: &[u8], until: Option<&[u8]>| KeyRange {
            from: from.to_vec(),
            until: until.map(<[u8]>::to_vec),
        };
        assert_eq!(KeyRange::of(..), range(b"", None));
        assert_eq!(KeyRange::of(a..b), range(a, Some(b)));
        assert_eq!(KeyRange::of(a..=b), range(a, Some(b"b\0")));
        assert_eq!(KeyRange::of((Bound::Excluded(a), Bound::Unbounded)), range(b"a\0", None));
        // (range, whether it is inverted, whether it is empty)
        for (range, inverted, empty) in [
            (range(a, Some(b)), false, false),
            (range(a, Some(a)), false, true),
            (range(b, Some(a)), true, true),
            (range(b, None), false, false),
        ] {
            assert_eq!((range.is_inverted(), range.is_empty()), (inverted, empty), "{range:?}");
        }
        assert_eq!(range(a, None).rest(b.to_vec(), false), range(b, None));
        assert_eq!(range(a, None).rest(b.to_vec(), true), range(a, Some(b)));
    }
}
