//! Errors of typed rows.

use std::fmt;

/// Reason why bytes are no value of a type, or a value has no bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end too early.
    #[error("the bytes end too early")]
    Short,
    /// Bytes are left behind the last part.
    #[error("{bytes} bytes are left over")]
    Trailing {
        /// Number of bytes left.
        bytes: usize,
    },
    /// The value has another length than its type.
    #[error("there are {found} bytes, and the type has {expected}")]
    Length {
        /// Number of bytes of the type.
        expected: usize,
        /// Number of bytes there are.
        found: usize,
    },
    /// The bytes stand for no value of the type.
    #[error("the bytes stand for no value of the type")]
    NoValue,
    /// A text is not UTF-8.
    #[error("the text is not UTF-8")]
    Utf8,
    /// The serializer's own reason.
    #[error("serde: {0}")]
    Serde(String),
}

/// Defect of a row, or of what was to become one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The key has no byte, or more than the table allows. Choose another key.
    #[error("a key of this table has 1 to {limit} bytes, not {bytes}")]
    KeyLength {
        /// Bytes of the key.
        bytes: usize,
        /// Largest length of a key.
        limit: u32,
    },
    /// The value is longer than the table allows. Shorten it.
    #[error("a value of this table has at most {limit} bytes, not {bytes}")]
    ValueLength {
        /// Bytes of the value.
        bytes: usize,
        /// Largest length of a value.
        limit: u32,
    },
    /// The key's bytes are no key of this type: the table has keys of another type.
    #[error("its key is not of the table's type: {0}")]
    Key(Malformed),
    /// The value cannot be encoded, or the bytes are no value of this type.
    #[error("its value is not of the table's type: {0}")]
    Value(Malformed),
}

/// Error of a typed row. It names the table and the key; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("row {} of table {}: {}", Hex(&.0.key), .0.table, .0.defect)]
pub struct RowError(Box<Fault>);

/// Contents of a [`RowError`], apart because errors are rare and results are moved.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fault {
    table: &'static str,
    key: Box<[u8]>,
    defect: Defect,
}

/// Bytes of a key, shown as primary keys are.
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

    /// The key as bytes; of a key that is too long, the first bytes.
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
