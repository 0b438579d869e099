//! Rows as errors name them.

use std::borrow::Cow;
use std::fmt;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_mvcc::shown::{ShownKey, ShownName};

/// Row that an error is about, in the application's terms: the name of its table, its whole key,
/// and its item, if the transaction has one for it.
///
/// Names of one key are equal, whatever else is known of the row.
#[derive(Clone)]
pub struct RowName(Box<Known>);

#[derive(Clone, Default)]
struct Known {
    /// Name of the table.
    table: Option<Cow<'static, str>>,
    /// The key; empty if all that is known is a node of an ordered table.
    key: Vec<u8>,
    /// The node that the key was looked for in.
    node: Option<PrimaryKey>,
    /// Place of its item in the transaction.
    item: Option<u32>,
}

impl RowName {
    /// Name of a row of an ordered table.
    pub(crate) fn of_key(table: Cow<'static, str>, key: &[u8]) -> Self {
        Self(Box::new(Known { table: Some(table), key: key.to_vec(), ..Known::default() }))
    }

    /// Name of a row of a hash table, with its item.
    pub(crate) fn of_item(table: Cow<'static, str>, key: &[u8], item: u32) -> Self {
        let key = key.to_vec();
        Self(Box::new(Known { table: Some(table), key, node: None, item: Some(item) }))
    }

    /// Name of a row that is in a node of an ordered table; `key` is empty if it is not known.
    pub(crate) fn in_node(table: Cow<'static, str>, key: &[u8], node: PrimaryKey) -> Self {
        Self(Box::new(Known {
            table: Some(table),
            key: key.to_vec(),
            node: Some(node),
            item: None,
        }))
    }

    /// Names the row that was looked for if this is about `node`, or if no key is known.
    pub(crate) fn sought(&mut self, node: &PrimaryKey, key: &[u8]) {
        let about = self.0.node.as_ref() == Some(node);
        if about || self.0.key.is_empty() {
            self.0.key = key.to_vec();
        }
    }

    /// Returns the key as the application wrote it, or the bytes that it was encoded as. Empty if
    /// the error is about rows of an ordered table of which none can be named.
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }

    /// Returns the name of the table.
    pub fn table_name(&self) -> Option<&str> {
        self.0.table.as_deref()
    }

    /// Place of the row's item in its transaction.
    pub(crate) fn place(&self) -> Option<u32> {
        self.0.item
    }

    /// The table, by its name or else by its number.
    pub(crate) fn table(&self, table: TableId) -> impl fmt::Display + use<> {
        match &self.0.table {
            Some(name) => format!("table {}", ShownName(name)),
            None => format!("table {}", table.0),
        }
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.key[..] {
            [] => f.write_str("a row"),
            key => write!(f, "row {}", ShownKey(key)),
        }
    }
}

impl fmt::Debug for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = &self.0.table {
            write!(f, "{table:?}:")?;
        }
        write!(f, "{}", ShownKey(&self.0.key))
    }
}

impl PartialEq for RowName {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for RowName {}

impl PartialEq<PrimaryKey> for RowName {
    fn eq(&self, other: &PrimaryKey) -> bool {
        self.0.key == other.as_bytes()
    }
}

impl From<&[u8]> for RowName {
    fn from(key: &[u8]) -> Self {
        Self(Box::new(Known { key: key.to_vec(), ..Known::default() }))
    }
}

impl From<PrimaryKey> for RowName {
    fn from(key: PrimaryKey) -> Self {
        Self::from(key.as_bytes())
    }
}

impl From<u64> for RowName {
    fn from(key: u64) -> Self {
        Self::from(PrimaryKey::from(key))
    }
}

impl<const N: usize> From<[u8; N]> for RowName {
    fn from(key: [u8; N]) -> Self {
        Self::from(&key[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_known() {
        let table = TableId(4);
        let bare = RowName::from(7);
        assert_eq!(bare.to_string(), "row 7");
        assert_eq!(bare.table(table).to_string(), "table 4");
        let long = vec![b'k'; 255];
        let named = RowName::of_key("a\nb".into(), &long);
        assert_eq!(named.table(table).to_string(), "table a\\nb");
        assert_eq!((named.key(), named.place()), (&long[..], None));
        assert_eq!(named.table_name(), Some("a\nb"));
        let of_item = RowName::of_item("t".into(), &7_u64.to_be_bytes(), 2);
        assert_eq!((of_item.place(), &of_item), (Some(2), &bare));
    }

    #[test]
    fn a_node_is_named_by_the_key_that_was_looked_for_in_it() {
        let node = PrimaryKey::from(1 << 60);
        let named = |key: &[u8]| RowName::in_node("t".into(), key, node);
        assert_eq!(named(b"").to_string(), "a row");
        let sought = |mut name: RowName, node: u64| {
            name.sought(&node.into(), b"key");
            name.key().to_vec()
        };
        assert_eq!(sought(named(b"first"), 1 << 60), b"key");
        assert_eq!(sought(named(b"first"), 5), b"first", "it is about another node");
        assert_eq!(sought(named(b""), 5), b"key");
    }
}
