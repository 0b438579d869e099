//! Encodings of values.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::Malformed;

/// An encoding of values as bytes. Plain values are their own encoding; further types use a marker
/// such as [`Serde`] or [`Zerocopy`], which is never constructed.
///
/// A type of an application may implement `Value`:
///
/// ```
/// use lotus_rows::{Malformed, Value};
///
/// struct Cents(i64);
///
/// impl Value for Cents {
///     type Type = Self;
///     const MAX_VALUE_BYTES: Option<u32> = i64::MAX_VALUE_BYTES;
///     fn to_bytes(value: &Self) -> Result<impl AsRef<[u8]>, Malformed> {
///         Ok(value.0.to_le_bytes())
///     }
///     fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
///         i64::from_bytes(bytes).map(Cents)
///     }
/// }
/// ```
pub trait Value {
    /// Type of the values.
    type Type;
    /// Length of the longest value, in bytes; `None` if unlimited.
    const MAX_VALUE_BYTES: Option<u32>;

    /// Encodes a value.
    ///
    /// # Errors
    /// [`Malformed`] if the value cannot be encoded.
    fn to_bytes(value: &Self::Type) -> Result<impl AsRef<[u8]>, Malformed>;

    /// Decodes a value from its complete bytes.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes do not decode as the type.
    fn from_bytes(bytes: &[u8]) -> Result<Self::Type, Malformed>;
}

/// Returns `bytes` as an array, if the length is exactly `N`.
#[inline]
fn whole<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed::Length { expected: N, found: bytes.len() })
}

macro_rules! little_endian {
    ($($number:ty),*) => {$(
        impl Value for $number {
            type Type = Self;
            const MAX_VALUE_BYTES: Option<u32> = Some(size_of::<Self>() as u32);

            #[inline]
            fn to_bytes(value: &Self) -> Result<impl AsRef<[u8]>, Malformed> {
                Ok(value.to_le_bytes())
            }

            #[inline]
            fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
                whole(bytes).map(Self::from_le_bytes)
            }
        }
    )*};
}

little_endian!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl<const N: usize> Value for [u8; N] {
    type Type = Self;
    const MAX_VALUE_BYTES: Option<u32> = Some(N as u32);

    #[inline]
    fn to_bytes(value: &Self) -> Result<impl AsRef<[u8]>, Malformed> {
        Ok(value)
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        whole(bytes)
    }
}

/// No value, for rows with all information in the key.
impl Value for () {
    type Type = Self;
    const MAX_VALUE_BYTES: Option<u32> = Some(0);

    #[inline]
    fn to_bytes((): &Self) -> Result<impl AsRef<[u8]>, Malformed> {
        Ok([])
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        whole::<0>(bytes).map(|_| ())
    }
}

impl Value for Vec<u8> {
    type Type = Self;
    const MAX_VALUE_BYTES: Option<u32> = None;

    #[inline]
    fn to_bytes(value: &Self) -> Result<impl AsRef<[u8]>, Malformed> {
        Ok(value)
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(bytes.to_vec())
    }
}

impl Value for String {
    type Type = Self;
    const MAX_VALUE_BYTES: Option<u32> = None;

    #[inline]
    fn to_bytes(value: &Self) -> Result<impl AsRef<[u8]>, Malformed> {
        Ok(value)
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed::Utf8)
    }
}

/// Marker of values stored with their memory representation, for types of `zerocopy`.
#[derive(Debug)]
pub struct Zerocopy<T>(std::marker::PhantomData<T>);

impl<T: FromBytes + IntoBytes + Immutable> Value for Zerocopy<T> {
    type Type = T;
    const MAX_VALUE_BYTES: Option<u32> = Some(size_of::<T>() as u32);

    #[inline]
    fn to_bytes(value: &T) -> Result<impl AsRef<[u8]>, Malformed> {
        Ok(value.as_bytes())
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<T, Malformed> {
        let length = Malformed::Length { expected: size_of::<T>(), found: bytes.len() };
        T::read_from_bytes(bytes).map_err(|_| length)
    }
}

/// Marker of values serialised by serde, in the format of `postcard`.
#[cfg(feature = "serde")]
#[derive(Debug)]
pub struct Serde<T>(std::marker::PhantomData<T>);

/// Initial buffer size of a serialised value. The buffer grows for longer values.
#[cfg(feature = "serde")]
const FIRST_ROOM: usize = 256;

#[cfg(feature = "serde")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Value for Serde<T> {
    type Type = T;
    const MAX_VALUE_BYTES: Option<u32> = None;

    fn to_bytes(value: &T) -> Result<impl AsRef<[u8]>, Malformed> {
        let written = postcard::to_extend(value, Vec::with_capacity(FIRST_ROOM));
        written.map_err(|error| Malformed::Serde(error.to_string()))
    }

    fn from_bytes(bytes: &[u8]) -> Result<T, Malformed> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(Malformed::Trailing { bytes: rest.len() }),
            Err(error) => Err(Malformed::Serde(error.to_string())),
        }
    }
}
