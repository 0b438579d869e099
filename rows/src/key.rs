//! Order-preserving encodings of keys.
//!
//! | type | bytes |
//! |---|---|
//! | unsigned integers | big-endian |
//! | signed integers | big-endian, with the sign bit flipped |
//! | `bool`, `char` | one byte, 0 or 1; the scalar value in four bytes |
//! | `[u8; N]` | unchanged |
//! | `String`, `Vec<u8>` | byte 0 as 1, 1; byte 1 as 1, 2; a byte 0 at the end |
//! | `Option<K>` | a byte 0 for `None`; a byte 1, then the key |
//! | tuples of one to six keys | one after the other |
//!
//! No key is a prefix of a different key of the same type, so the parts of a tuple can be
//! concatenated.

mod parts;
mod prefix;

use crate::error::Malformed;

pub use prefix::{KeyRange, PrefixOf};

/// Longest key in a [`KeyBuffer`]: the longest key of an ordered table, plus one byte.
const BUFFER_BYTES: usize = lotus_mvcc::table::MAX_ORDERED_KEY_BYTES as usize + 1;

/// A type of keys. Types of an application get an implementation by [`KeyAs`].
///
/// The encoding keeps the order of the values, and no encoding is a prefix of a different value's
/// encoding.
pub trait RowKey: Sized {
    /// Length of the longest key, in bytes; `None` if unlimited.
    const MAX_KEY_BYTES: Option<u32>;

    /// Writes the key's bytes.
    fn write_key(&self, to: &mut KeyWriter<'_>);

    /// Reads a key, and leaves the following bytes unread.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes do not begin with a key of the type.
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed>;
}

/// A type with keys encoded as another type, in the same order.
///
/// For newtypes and enums:
///
/// ```
/// use lotus_rows::KeyAs;
///
/// #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
/// struct CustomerId(u32);
///
/// impl KeyAs for CustomerId {
///     type As = u32;
///     fn to_key(&self) -> u32 {
///         self.0
///     }
///     fn from_key(number: u32) -> Option<Self> {
///         Some(Self(number))
///     }
/// }
///
/// #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
/// enum State {
///     Open = 1,
///     Closed = 2,
/// }
///
/// impl KeyAs for State {
///     type As = u8;
///     fn to_key(&self) -> u8 {
///         *self as u8
///     }
///     fn from_key(number: u8) -> Option<Self> {
///         [Self::Open, Self::Closed].into_iter().find(|state| *state as u8 == number)
///     }
/// }
/// ```
pub trait KeyAs: Sized {
    /// The encoded type.
    type As: RowKey;

    /// Converts to the encoded type. The conversion must keep the order of the values.
    fn to_key(&self) -> Self::As;

    /// Converts back; `None` if `key` is not the conversion of a value.
    fn from_key(key: Self::As) -> Option<Self>;
}

impl<T: KeyAs> RowKey for T {
    const MAX_KEY_BYTES: Option<u32> = T::As::MAX_KEY_BYTES;

    #[inline]
    fn write_key(&self, to: &mut KeyWriter<'_>) {
        self.to_key().write_key(to);
    }

    #[inline]
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        T::from_key(T::As::read_key(from)?).ok_or(Malformed::NoValue)
    }
}

/// Receiver of a key's bytes, with room for the longest allowed key.
#[derive(Debug)]
pub struct KeyWriter<'b> {
    room: &'b mut [u8],
    len: usize,
}

impl<'b> KeyWriter<'b> {
    #[inline]
    pub(crate) fn new(room: &'b mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Appends bytes. Bytes that do not fit are only counted.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.room.get_mut(self.len..end) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.fill(bytes),
        }
        self.len = end;
    }

    /// Appends the bytes that still fit: an error shows the beginning of the key.
    #[cold]
    fn fill(&mut self, bytes: &[u8]) {
        let room = self.room.get_mut(self.len..).unwrap_or_default();
        let fitting = room.len().min(bytes.len());
        room[..fitting].copy_from_slice(&bytes[..fitting]);
    }

    /// Number of bytes written, which may exceed the room.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Source of a key's bytes.
#[derive(Debug)]
pub struct KeyReader<'a> {
    bytes: &'a [u8],
}

impl<'a> KeyReader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes the next `N` bytes.
    ///
    /// # Errors
    /// `Short` if fewer than `N` bytes are left.
    #[inline]
    pub fn read<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or(Malformed::Short)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// Takes the bytes up to the first 0, and drops the 0.
    fn until_zero(&mut self) -> Result<&'a [u8], Malformed> {
        let at = self.bytes.iter().position(|byte| *byte == 0).ok_or(Malformed::Short)?;
        let (taken, rest) = self.bytes.split_at(at);
        self.bytes = &rest[1..];
        Ok(taken)
    }

    /// Checks that no bytes are left.
    #[inline]
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(Malformed::Trailing { bytes }),
        }
    }
}

/// Bytes of one key of an ordered table, stored inline.
#[derive(Clone, Debug)]
pub struct KeyBuffer {
    bytes: [u8; BUFFER_BYTES],
    /// Number of bytes written; more than the stored bytes if the room was too small.
    len: usize,
}

impl KeyBuffer {
    #[inline]
    pub(crate) fn written(write: impl FnOnce(&mut KeyWriter<'_>)) -> Self {
        let mut bytes = [0; BUFFER_BYTES];
        let mut writer = KeyWriter::new(&mut bytes);
        write(&mut writer);
        let len = writer.len();
        Self { bytes, len }
    }

    /// The key's bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.min(BUFFER_BYTES)]
    }

    /// Length of the encoded key, stored completely or not.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the whole key is stored.
    pub(crate) fn is_whole(&self) -> bool {
        self.len <= BUFFER_BYTES
    }

    /// The least key above `self`.
    fn next(mut self) -> Self {
        self.len += 1;
        self
    }
}
