//! All tables of a snapshot file in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::io::Read;

use lotus_mvcc::{PrimaryKey, TableSpec};

use super::error::SnapshotError;
use super::format::{SnapshotVisitor, read_snapshot};
use crate::checks::trees::{number_of, visit_in_order};
use crate::scan::ScanRow;

/// Table of a file, with its rows; the rows of an ordered table are in key order.
pub type SnapshotTable = (TableSpec, Vec<ScanRow>);

/// Reads a whole snapshot.
///
/// # Errors
/// As [`read_snapshot`]; `Damaged` also if the nodes of an ordered table do not form a tree.
#[doc(hidden)]
pub fn snapshot_tables(source: &mut dyn Read) -> Result<Vec<SnapshotTable>, SnapshotError> {
    let mut seen = Seen::default();
    read_snapshot(source, &mut seen)?;
    seen.finish()?;
    Ok(seen.tables)
}

#[derive(Default)]
struct Seen {
    tables: Vec<SnapshotTable>,
    /// Nodes of the last table, if it is ordered.
    nodes: BTreeMap<u64, Vec<u8>>,
}

impl Seen {
    /// Ends the last table.
    fn finish(&mut self) -> Result<(), SnapshotError> {
        let nodes = std::mem::take(&mut self.nodes);
        if let Some((spec, rows)) = self.tables.last_mut()
            && spec.ordered
        {
            let mut visit = |key: &[u8], value: &[u8]| rows.push((key.to_vec(), value.to_vec()));
            visit_in_order(&nodes, &mut visit).ok_or(SnapshotError::Damaged)?;
        }
        Ok(())
    }
}

impl SnapshotVisitor for Seen {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.finish()?;
        self.tables.push((spec, Vec::new()));
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        let (spec, rows) = self.tables.last_mut().ok_or(SnapshotError::Damaged)?;
        match spec.ordered {
            true => _ = self.nodes.insert(number_of(&key), value.to_vec()),
            false => rows.push((key.as_bytes().to_vec(), value.to_vec())),
        }
        Ok(())
    }
}
