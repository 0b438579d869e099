//! Restoring a snapshot into an empty cluster.
//!
//! The file is read twice: once to its end, so that no part of an incomplete file is ever used
//! (I152), and once to fill the tables, one after the other. While a table is filled, all of its
//! rows are in this process's memory. The nodes of an ordered table get new numbers, from 1 on
//! ([`crate::node::agreed::node_numbers`]).

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use lotus_mvcc::{PrimaryKey, Secret, TableSpec, Timestamp};
use lotus_sabotage::{Rule, broken};

use super::error::SnapshotError;
use super::format::{SnapshotInfo, SnapshotVisitor, read_snapshot};
use crate::api::error::TxnError;
use crate::cluster::handle::Cluster;
use crate::node::agreed::node_numbers::renumber;

impl Cluster {
    /// Creates and fills all tables of a snapshot, in a cluster that has no tables and serves no
    /// clients yet; in the process of compute node 0. Commits from now on are later than the
    /// snapshot.
    ///
    /// # Errors
    /// `NotEmpty`, or an error of the file: the cluster is unchanged. `Cluster`, if there is no
    /// room, or `Read`, if no timestamps are issued: this cluster is of no use any more.
    pub fn restore(&self, path: &Path) -> Result<SnapshotInfo, SnapshotError> {
        let open = || File::open(path).map(|file| BufReader::with_capacity(1 << 20, file));
        self.restore_from(open()?, open()?)
    }

    /// Restores from two readers of the same bytes.
    ///
    /// # Errors
    /// As [`Self::restore`].
    #[doc(hidden)]
    pub fn restore_from(
        &self,
        mut checked: impl Read,
        mut source: impl Read,
    ) -> Result<SnapshotInfo, SnapshotError> {
        if !self.shared.learn_tables()?.tables.is_empty() {
            return Err(SnapshotError::NotEmpty);
        }
        let info = read_snapshot(&mut checked, &mut ())?;
        let mut filler = Filler { cluster: self, table: None };
        if read_snapshot(&mut source, &mut filler)? != info {
            return Err(SnapshotError::Damaged);
        }
        filler.fill()?;
        self.begin_behind(info.head.timestamp)?;
        Ok(info)
    }

    /// Makes all future commit timestamps later than `past`.
    fn begin_behind(&self, past: Timestamp) -> Result<(), TxnError> {
        self.shared.clock.skip(past);
        self.shared.nodes.iter().for_each(|node| node.oracle.skip(past));
        let config = &self.shared.config;
        let patience = config.lock_timeout + config.lease.unwrap_or_default();
        // If the clocks were set back by more than the lead of a stored bound, this takes until the
        // oracle has stored another bound.
        self.wait(self.submit(self.any_coordinator(), move |session| async move {
            let deadline = session.now().after(patience);
            let mut attempts = 0;
            loop {
                match session.coordinator().timestamps.commit().await {
                    Ok(issued) if issued > past => return Ok(()),
                    _ if session.now() >= deadline => return Err(TxnError::Timeout),
                    _ => session.back_off(attempts).await,
                }
                attempts += 1;
            }
        }))
    }
}

/// Collects the rows of a table, and fills the table when the next table begins.
struct Filler<'a> {
    cluster: &'a Cluster,
    table: Option<Rows>,
}

/// Rows of one table, concatenated.
struct Rows {
    spec: TableSpec,
    keys: Vec<PrimaryKey>,
    values: Vec<u8>,
    /// End of each value.
    ends: Vec<usize>,
}

impl Rows {
    /// Rows for changes in place.
    fn each_mut(&mut self) -> impl Iterator<Item = (&mut PrimaryKey, &mut [u8])> {
        let (mut values, mut begin) = (&mut self.values[..], 0);
        self.keys.iter_mut().zip(&self.ends).map(move |(key, end)| {
            let (value, rest) = std::mem::take(&mut values).split_at_mut(end - begin);
            (values, begin) = (rest, *end);
            (key, value)
        })
    }
}

impl Filler<'_> {
    fn fill(&mut self) -> Result<(), SnapshotError> {
        let Some(mut rows) = self.table.take() else { return Ok(()) };
        if rows.spec.ordered && !broken(Rule::NodeNumbersAreNew) {
            renumber(rows.each_mut());
        }
        let Rows { spec, keys, values, ends } = rows;
        let table = self.cluster.create_table(spec)?;
        let row = |number: u64, value: &mut Vec<u8>| {
            let number = number as usize;
            let start = number.checked_sub(1).map_or(0, |before| ends[before]);
            value.extend_from_slice(&values[start..ends[number]]);
            keys[number]
        };
        Ok(self.cluster.load_stored(table, keys.len() as u64, &row, &AtomicU64::new(0))?)
    }
}

impl SnapshotVisitor for Filler<'_> {
    fn secret(&mut self, secret: Secret) -> Result<(), SnapshotError> {
        self.cluster.shared.names.propose(secret);
        Ok(())
    }

    fn dropped(&mut self, count: u32) -> Result<(), SnapshotError> {
        self.fill()?;
        // Clients may remember these numbers, so no other table gets them.
        Ok(self.cluster.skip_numbers(count)?)
    }

    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.fill()?;
        let (keys, values, ends) = (Vec::new(), Vec::new(), Vec::new());
        self.table = Some(Rows { spec, keys, values, ends });
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        let rows = self.table.as_mut().ok_or(SnapshotError::Damaged)?;
        rows.keys.push(key);
        rows.values.extend_from_slice(value);
        rows.ends.push(rows.values.len());
        Ok(())
    }
}
