//! Encodings of the types of key parts.

use super::{KeyReader, KeyWriter, RowKey};
use crate::error::Malformed;

/// Byte at the end of a string.
const END: u8 = 0;
/// Escape byte: a following 1 encodes a byte 0, a following 2 a byte 1.
const ESCAPE: u8 = 1;

/// Total length of two parts, if both have a limit.
pub(super) const fn together(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        _ => None,
    }
}

/// Writes a string without its end byte: the common prefix of every encoded string that begins with
/// `string`.
pub(super) fn begin_string(string: &[u8], to: &mut KeyWriter<'_>) {
    let mut rest = string;
    while let Some(at) = rest.iter().position(|byte| *byte <= ESCAPE) {
        to.write(&rest[..at]);
        to.write(&[ESCAPE, rest[at] + 1]);
        rest = &rest[at + 1..];
    }
    to.write(rest);
}

macro_rules! unsigned {
    ($($number:ty),*) => {$(
        impl RowKey for $number {
            const MAX_KEY_BYTES: Option<u32> = Some(size_of::<Self>() as u32);

            #[inline]
            fn write_key(&self, to: &mut KeyWriter<'_>) {
                to.write(&self.to_be_bytes());
            }

            #[inline]
            fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
                from.read().map(Self::from_be_bytes)
            }
        }
    )*};
}

macro_rules! signed {
    ($($number:ty),*) => {$(
        impl RowKey for $number {
            const MAX_KEY_BYTES: Option<u32> = Some(size_of::<Self>() as u32);

            #[inline]
            fn write_key(&self, to: &mut KeyWriter<'_>) {
                to.write(&(self ^ Self::MIN).to_be_bytes());
            }

            #[inline]
            fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
                Ok(Self::from_be_bytes(from.read()?) ^ Self::MIN)
            }
        }
    )*};
}

unsigned!(u8, u16, u32, u64, u128);
signed!(i8, i16, i32, i64, i128);

impl RowKey for bool {
    const MAX_KEY_BYTES: Option<u32> = Some(1);

    #[inline]
    fn write_key(&self, to: &mut KeyWriter<'_>) {
        to.write(&[u8::from(*self)]);
    }

    #[inline]
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        match from.read()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed::NoValue),
        }
    }
}

impl RowKey for char {
    const MAX_KEY_BYTES: Option<u32> = u32::MAX_KEY_BYTES;

    #[inline]
    fn write_key(&self, to: &mut KeyWriter<'_>) {
        u32::from(*self).write_key(to);
    }

    #[inline]
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        Self::from_u32(u32::read_key(from)?).ok_or(Malformed::NoValue)
    }
}

impl<const N: usize> RowKey for [u8; N] {
    const MAX_KEY_BYTES: Option<u32> = Some(N as u32);

    #[inline]
    fn write_key(&self, to: &mut KeyWriter<'_>) {
        to.write(self);
    }

    #[inline]
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        from.read()
    }
}

impl<K: RowKey> RowKey for Option<K> {
    const MAX_KEY_BYTES: Option<u32> = together(Some(1), K::MAX_KEY_BYTES);

    #[inline]
    fn write_key(&self, to: &mut KeyWriter<'_>) {
        self.is_some().write_key(to);
        if let Some(key) = self {
            key.write_key(to);
        }
    }

    #[inline]
    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        bool::read_key(from)?.then(|| K::read_key(from)).transpose()
    }
}

impl RowKey for Vec<u8> {
    const MAX_KEY_BYTES: Option<u32> = None;

    fn write_key(&self, to: &mut KeyWriter<'_>) {
        begin_string(self, to);
        to.write(&[END]);
    }

    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        let escaped = from.until_zero()?;
        let mut string = Self::with_capacity(escaped.len());
        let mut bytes = escaped.iter();
        while let Some(byte) = bytes.next() {
            string.push(match *byte {
                ESCAPE => match bytes.next() {
                    Some(1) => 0,
                    Some(2) => 1,
                    _ => return Err(Malformed::NoValue),
                },
                plain => plain,
            });
        }
        Ok(string)
    }
}

impl RowKey for String {
    const MAX_KEY_BYTES: Option<u32> = None;

    fn write_key(&self, to: &mut KeyWriter<'_>) {
        begin_string(self.as_bytes(), to);
        to.write(&[END]);
    }

    fn read_key(from: &mut KeyReader<'_>) -> Result<Self, Malformed> {
        Self::from_utf8(Vec::read_key(from)?).map_err(|_| Malformed::Utf8)
    }
}
