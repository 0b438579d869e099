//! Names of rows in errors.
//!
//! Most callers never see a conflict, since the transaction is repeated. So the name of a row of a
//! hash table allocates no memory, and its text is put together only when the name is formatted.

use std::fmt;
use std::sync::Arc;

use lotus_fabric::ids::TableId;
use lotus_mvcc::shown::{ShownKey, ShownName};
use lotus_mvcc::{PrimaryKey, TableDef};

/// Row of an error, in the application's terms: the name of the table, the whole key, and the row's
/// item in the transaction, if any.
///
/// Names compare by key alone; table and item do not count.
#[derive(Clone)]
pub struct RowName(Known);

#[derive(Clone)]
enum Known {
    /// A row of a table whose name is not known.
    Key(PrimaryKey),
    /// A row of a hash table, and the place of its item in the transaction.
    Item { table: Arc<TableDef>, key: PrimaryKey, item: u32 },
    /// Any other row.
    Other(Box<Other>),
}

#[derive(Clone, Default)]
struct Other {
    table: Option<Arc<TableDef>>,
    /// The key; empty if only a node of an ordered table is known.
    key: Vec<u8>,
    /// The node in which the key was looked for.
    node: Option<PrimaryKey>,
}

impl RowName {
    /// Name of a row of an ordered table.
    pub(crate) fn of_key(table: &Arc<TableDef>, key: &[u8]) -> Self {
        let (table, key) = (Some(Arc::clone(table)), key.to_vec());
        Self(Known::Other(Box::new(Other { table, key, node: None })))
    }

    /// Name of a row of a hash table, with its item.
    pub(crate) fn of_item(table: &Arc<TableDef>, key: PrimaryKey, item: u32) -> Self {
        Self(Known::Item { table: Arc::clone(table), key, item })
    }

    /// Name of a row in a node of an ordered table; `key` is empty if not known.
    pub(crate) fn in_node(table: &Arc<TableDef>, key: &[u8], node: PrimaryKey) -> Self {
        let (table, key) = (Some(Arc::clone(table)), key.to_vec());
        Self(Known::Other(Box::new(Other { table, key, node: Some(node) })))
    }

    /// Sets the key to the key looked for, if this name is about `node`, or has no key.
    pub(crate) fn sought(&mut self, node: &PrimaryKey, key: &[u8]) {
        if let Known::Other(known) = &mut self.0
            && (known.node.as_ref() == Some(node) || known.key.is_empty())
        {
            known.key = key.to_vec();
        }
    }

    /// Returns the key as the application wrote it, or its encoded bytes. Empty if the error is
    /// about rows of an ordered table and no single row can be named.
    pub fn key(&self) -> &[u8] {
        match &self.0 {
            Known::Key(key) | Known::Item { key, .. } => key.as_bytes(),
            Known::Other(known) => &known.key,
        }
    }

    /// Returns the name of the table.
    pub fn table_name(&self) -> Option<&str> {
        let table = match &self.0 {
            Known::Key(_) => None,
            Known::Item { table, .. } => Some(table),
            Known::Other(known) => known.table.as_ref(),
        };
        table.map(|table| &*table.spec().name)
    }

    /// Place of the row's item in its transaction.
    pub(crate) fn place(&self) -> Option<u32> {
        match self.0 {
            Known::Item { item, .. } => Some(item),
            Known::Key(_) | Known::Other(_) => None,
        }
    }

    /// The table, by name if known, otherwise by number.
    pub(crate) fn table(&self, table: TableId) -> impl fmt::Display + use<> {
        match self.table_name() {
            Some(name) => format!("table {}", ShownName(name)),
            None => format!("table {}", table.0),
        }
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            [] => f.write_str("a row"),
            key => write!(f, "row {}", ShownKey(key)),
        }
    }
}

impl fmt::Debug for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = self.table_name() {
            write!(f, "{table:?}:")?;
        }
        write!(f, "{}", ShownKey(self.key()))
    }
}

impl PartialEq for RowName {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for RowName {}

impl PartialEq<PrimaryKey> for RowName {
    fn eq(&self, other: &PrimaryKey) -> bool {
        self.key() == other.as_bytes()
    }
}

impl From<&[u8]> for RowName {
    fn from(key: &[u8]) -> Self {
        match PrimaryKey::try_from(key) {
            Ok(key) => key.into(),
            Err(_) => Self(Known::Other(Box::new(Other { key: key.to_vec(), ..Other::default() }))),
        }
    }
}

impl From<PrimaryKey> for RowName {
    #[inline]
    fn from(key: PrimaryKey) -> Self {
        Self(Known::Key(key))
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
    use lotus_mvcc::{Naming, TableSpec};

    use super::*;

    fn table(name: &'static str) -> Arc<TableDef> {
        let spec = TableSpec::new(name).record_bytes(8).capacity(1);
        let def = TableDef::new(TableId(4), spec, vec![64], Naming::KNOWN);
        Arc::new(def.expect("a sound specification"))
    }

    #[test]
    fn a_name_says_what_is_known() {
        let (table, def) = (TableId(4), table("a\nb"));
        let bare = RowName::from(7);
        assert_eq!(bare.to_string(), "row 7");
        assert_eq!(bare.table(table).to_string(), "table 4");
        let long = vec![b'k'; 255];
        let named = RowName::of_key(&def, &long);
        assert_eq!(named.table(table).to_string(), "table a\\nb");
        assert_eq!((named.key(), named.place()), (&long[..], None));
        assert_eq!(named.table_name(), Some("a\nb"));
        assert_eq!(RowName::from(&long[..]).key(), long);
        let of_item = RowName::of_item(&def, 7.into(), 2);
        assert_eq!((of_item.place(), &of_item), (Some(2), &bare));
    }

    #[test]
    fn a_node_is_named_by_the_key_that_was_looked_for_in_it() {
        let node = PrimaryKey::from(1 << 60);
        let table = table("t");
        let named = |key: &[u8]| RowName::in_node(&table, key, node);
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
