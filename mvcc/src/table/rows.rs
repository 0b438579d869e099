//! The application's rows in a stored row.

use super::TableSpec;
use crate::key::PrimaryKey;

impl TableSpec {
    /// Number of the application's rows in a stored row with this value: the entries of a leaf in
    /// an ordered table, otherwise 1.
    pub fn rows_in(&self, value: &[u8]) -> u64 {
        if self.ordered { lotus_tree::rows_in(value) } else { 1 }
    }

    /// Visits the application's rows in a stored row as keys and values: the entries of a leaf in
    /// an ordered table, otherwise the row.
    pub fn for_each_row(
        &self,
        key: &PrimaryKey,
        value: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) {
        if !self.ordered {
            return visit(key.as_bytes(), value);
        }
        let leaf = lotus_tree::Node::read(value).filter(|node| node.level() == 0);
        let entries = leaf.iter().flat_map(|leaf| leaf.entries());
        entries.for_each(|(key, value)| visit(key, value));
    }
}
