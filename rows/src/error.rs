//! Errors of typed rows.

use std::fmt;

/// Reason why bytes do not decode as a type, or a value cannot be encoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end too early.
    #[error("the bytes end too early")]
    Short,
    /// Bytes follow the last part.
    #[error("{bytes} bytes are left over")]
    Trailing {
        /// Number of trailing bytes.
        bytes: usize,
    },
    /// The length of the value does not match the type.
    #[error("there are {found} bytes, and the type has {expected}")]
    Length {
        /// Length of the type, in bytes.
        expected: usize,
        /// Length of the value, in bytes.
        found: usize,
    },
    /// The bytes encode no value of the type.
    #[error("the bytes stand for no value of the type")]
    NoValue,
    /// A string is not UTF-8.
    #[error("the text is not UTF-8")]
    Utf8,
    /// The serializer's error.
    #[error("serde: {0}")]
    Serde(String),
}

/// Defect of a row, stored or to be written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The key is empty, or longer than the table allows. Choose a different key.
    #[error("a key of this table has 1 to {limit} bytes, not {bytes}")]
    KeyLength {
        /// Length of the key, in bytes.
        bytes: usize,
        /// Largest length of a key.
        limit: u32,
    },
    /// The value is longer than the table allows. Shorten it.
    #[error("a value of this table has at most {limit} bytes, not {bytes}")]
    ValueLength {
        /// Length of the value, in bytes.
        bytes: usize,
        /// Largest length of a value.
        limit: u32,
    },
    /// The bytes do not decode as the key type: the table has keys of a different type.
    #[error("its key is not of the table's type: {0}")]
    Key(Malformed),
    /// The value cannot be encoded, or the bytes do not decode as the value type.
    #[error("its value is not of the table's type: {0}")]
    Value(Malformed),
}

/// Error of a typed row, with the table's name and the key. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("row {} of table {}: {}", Hex(&.0.key), .0.table, .0.defect)]
pub struct RowError(Box<Fault>);

/// Contents of a [`RowError`], boxed to keep results small: errors are rare and results are moved.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fault {
    table: &'static str,
    key: Box<[u8]>,
    defect: Defect,
}

/// Bytes of a key, displayed like primary keys.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl RowError {
    #[cold]
    pub(crate) fn new(table: &'static str, key: &[u8], defect: Defect) -> Self {
        Self(Box::new(Fault { table, key: key.into(), defect }))
    }

    /// Name of the table.
    pub fn table(&self) -> &'static str {
        self.0.table
    }

    /// The encoded key; the first bytes of a key that is too long.
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }

    /// Defect of the row.
    pub fn defect(&self) -> &Defect {
        &self.0.defect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_table_and_key() {
        let defect = Defect::KeyLength { bytes: 40, limit: 31 };
        let error = RowError::new("accounts", &[1, 0xab], defect.clone());
        assert_eq!((error.table(), error.key()), ("accounts", &[1, 0xab][..]));
        assert_eq!(error.defect(), &defect);
        let said = "row 0x01ab of table accounts: a key of this table has 1 to 31 bytes, not 40";
        assert_eq!(error.to_string(), said);
    }
}
