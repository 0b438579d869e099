//! Drops tables.
//!
//! The entry in the catalogue marks a table as dropped; the members then give its memory back
//! ([`crate::memory_nodes::clearing`]), even if the requesting process ends meanwhile.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TableId;
use lotus_mvcc::table::MAX_TABLE_IDS;

use crate::api::error::ClusterError;
use crate::cluster::handle::Cluster;
use crate::cluster::once::{self, until_answered};
use crate::node::agreed::catalogue::{Catalogue, Demotion, TableState};

impl Cluster {
    /// Drops a table with all rows, and waits until other tables can use its memory. From then on,
    /// transactions, scans and ranges on the table fail as on an unknown table; transactions under
    /// way commit before the drop, or fail. All transactions of the cluster stop for some turns of
    /// the membership. The name is free at once, for a new table with a new number.
    ///
    /// # Errors
    /// `NoSuchTable`; `Setting` in a cluster of several processes without a
    /// [lease](crate::ClusterBuilder::lease); an authority that has not answered for a minute: call
    /// again, since the outcome is unknown. `StillThere` if the memory has not been given back
    /// within that minute, because a node does not answer, a memory node is being filled, or no
    /// compute node takes part: the table is dropped, and its memory is given back later.
    pub fn drop_table(&self, name: &str) -> Result<(), ClusterError> {
        self.drop_table_within(name, once::PATIENCE)
    }

    /// Like [`Self::drop_table`], but waits for at most `patience`.
    ///
    /// # Errors
    /// As [`Self::drop_table`].
    pub fn drop_table_within(&self, name: &str, patience: Duration) -> Result<(), ClusterError> {
        let deadline = self.shared.control.now().after(patience);
        let table = self.begin_to_drop(name, patience)?;
        self.await_gone(name, table, deadline)
    }

    /// Drops the table with this name and this number, and no other table. Succeeds if the table
    /// has been dropped already, so the call may be repeated, even if a new table has got the name
    /// since.
    ///
    /// # Errors
    /// As [`Self::drop_table`].
    pub fn drop_numbered(
        &self,
        name: &str,
        table: TableId,
        patience: Duration,
    ) -> Result<(), ClusterError> {
        let deadline = self.shared.control.now().after(patience);
        self.begin_with(name, patience, |now| now.finds_or_had(name, table).then_some(table))?;
        self.await_gone(name, table, deadline)
    }

    /// Waits until other tables can use the memory of a dropped table.
    fn await_gone(&self, name: &str, table: TableId, deadline: Nanos) -> Result<(), ClusterError> {
        let shared = &self.shared;
        let is_gone = || {
            let tables = shared.learn_tables()?.tables;
            let is_gone = tables.get(usize::from(table.0)) == Some(&TableState::Gone);
            // Nodes that have found memory full search again once they know that the clearing is
            // over.
            Ok::<_, ClusterError>(is_gone && !shared.is_clearing())
        };
        while !matches!(is_gone(), Ok(true)) {
            if shared.control.now() >= deadline {
                return Err(ClusterError::StillThere(name.to_owned()));
            }
            shared.control.pause(once::PAUSE);
        }
        Ok(())
    }

    /// Drops a table, without waiting for its memory. Returns its number.
    ///
    /// # Errors
    /// As [`Self::drop_table`], without `StillThere`.
    pub fn begin_to_drop(&self, name: &str, patience: Duration) -> Result<TableId, ClusterError> {
        self.begin_with(name, patience, |now| now.find(name))
    }

    /// Drops the table that `find` selects in the catalogue.
    fn begin_with(
        &self,
        name: &str,
        patience: Duration,
        find: impl Fn(&Catalogue) -> Option<TableId>,
    ) -> Result<TableId, ClusterError> {
        let shared = &self.shared;
        if shared.config.lease.is_none() && !shared.is_whole() {
            let sentence = "a cluster of several processes needs a lease to drop a table";
            return Err(ClusterError::Setting(sentence.to_owned()));
        }
        let mut dropped = None;
        until_answered(
            &shared.control,
            patience,
            || Ok(()),
            || {
                let now = shared.learn_tables()?;
                // After a lost answer a new table may have the name.
                let Some(table) = dropped.or_else(|| find(&now)) else {
                    return Err(ClusterError::NoSuchTable(name.to_owned()));
                };
                dropped = Some(table);
                let authority = shared.async_authority.authority();
                let named = (shared.placement.group_count(), shared.names.proposed());
                let now = Catalogue::demote(authority, named, table, Demotion::Drop)?;
                shared.install(&now)?;
                shared.drops.0.close();
                Ok(table)
            },
        )
    }

    /// Skips the next `count` table numbers: they count as numbers of tables that are gone.
    pub(crate) fn skip_numbers(&self, count: u32) -> Result<(), ClusterError> {
        let shared = &self.shared;
        let target = shared.ask(|| shared.learn_tables())?.tables.len() + count as usize;
        if target > MAX_TABLE_IDS {
            return Err(ClusterError::TooManyTables);
        }
        shared.ask(|| {
            let mut now = shared.learn_tables()?;
            if now.tables.len() < target {
                now.skip_to(target, shared.async_authority.authority())?;
            }
            shared.install(&now)
        })
    }
}
