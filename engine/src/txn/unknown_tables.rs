//! Lookup of tables that another process has created.

use std::sync::Arc;

use lotus_fabric::ids::TableId;

use crate::api::error::TxnError;
use crate::node::agreed::catalogue_lookups::LookupStep;
use crate::node::shared::Shared;
use crate::txn::session::SessionView;

/// A lookup under way. The lookup ends even if its task is dropped.
struct LookupGuard {
    shared: Arc<Shared>,
    answered: bool,
}

impl LookupGuard {
    /// Reads the catalogue in a place where blocking is allowed.
    async fn carry_out(mut self) {
        self.answered = self.shared.learn_tables_apart().await;
    }
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.shared.catalogue_lookups.end(self.answered);
    }
}

impl SessionView {
    /// Learns a table that another process may have created. Other coroutines run meanwhile.
    /// Lookups begin at intervals of at least 100 ms, and a lookup serves all waiting callers.
    ///
    /// # Errors
    /// `UnknownTable` if the table does not exist; `Timeout` if the authority does not answer.
    pub async fn learn_table(&self, table: TableId) -> Result<(), TxnError> {
        let shared = &self.slot.coordinator.shared;
        if shared.table(table).is_none() {
            self.learn_tables().await?;
        }
        shared.table(table).map(drop).ok_or(TxnError::UnknownTable(table))
    }

    /// Learns all existing tables, as [`Self::learn_table`] does.
    ///
    /// # Errors
    /// `Timeout` if the authority does not answer.
    pub async fn learn_tables(&self) -> Result<(), TxnError> {
        let coordinator = &self.slot.coordinator;
        let catalogue_lookups = &coordinator.shared.catalogue_lookups;
        if coordinator.shared.is_whole() {
            // This process is the whole cluster.
            return Ok(());
        }
        let wanted = catalogue_lookups.ask();
        loop {
            match catalogue_lookups.turn(wanted, coordinator.executor.now()) {
                // A separate task: other callers wait for the lookup, even if this call is dropped.
                LookupStep::Look => {
                    let shared = Arc::clone(&coordinator.shared);
                    coordinator.executor.spawn(LookupGuard { shared, answered: false }.carry_out());
                }
                LookupStep::Wait(time) => coordinator.executor.sleep(time).await,
                LookupStep::Over { answered: true } => return Ok(()),
                LookupStep::Over { answered: false } => return Err(TxnError::Timeout),
            }
        }
    }
}
