//! Digest of a snapshot's content: two digests are equal if all tables and the application's rows
//! are equal, but for the time by which records of calls expire.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufReader;
use std::path::Path;

use lotus::{PrimaryKey, SnapshotError, SnapshotVisitor, TableSpec, read_snapshot};
use lotus_server::is_call_time;

/// Number of rows of a snapshot, and a sum of hashes over all rows.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Digest {
    rows: u64,
    sum: u64,
    /// Table of the following rows; `None` once the file is read.
    table: Option<TableSpec>,
}

impl SnapshotVisitor for Digest {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.table = Some(spec);
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        let Self { rows, sum, table } = self;
        let table = table.as_ref().ok_or(SnapshotError::Damaged)?;
        if is_call_time(&table.name, &key) {
            return Ok(());
        }
        // A restore renumbers the nodes of trees: only the rows in the nodes are content.
        table.for_each_row(&key, value, &mut |key, value| {
            let mut hasher = DefaultHasher::new();
            (&table.name, key, value).hash(&mut hasher);
            *rows += 1;
            *sum = sum.wrapping_add(hasher.finish());
        });
        Ok(())
    }
}

impl Digest {
    /// Reads a file to its end, and digests its content.
    ///
    /// # Errors
    /// A sentence: the file is not whole, or cannot be read.
    pub fn of(path: &Path) -> Result<Self, String> {
        let damaged = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| damaged(&error))?;
        let mut digest = Self::default();
        let read = read_snapshot(&mut BufReader::new(file), &mut digest);
        read.map_err(|error| damaged(&error))?;
        digest.table = None;
        Ok(digest)
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Summary for people.
    pub fn in_words(&self) -> String {
        format!("{} rows, sum {:016x}", self.rows(), self.sum)
    }
}
