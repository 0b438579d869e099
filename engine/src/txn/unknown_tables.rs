//! Tables that another process has created, for transactions that name them.

use std::sync::Arc;

use lotus_fabric::ids::TableId;

use crate::api::error::TxnError;
use crate::node::looks::Turn;
use crate::node::shared::Shared;
use crate::txn::session::SessionView;

/// A look that is under way. It ends even if its task is dropped.
struct Look {
    shared: Arc<Shared>,
    answered: bool,
}

impl Look {
    /// Reads the catalogue where that may block.
    async fn carry_out(mut self) {
        self.answered = self.shared.learn_tables_apart().await;
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.shared.looks.end(self.answered);
    }
}

impl SessionView {
    /// Makes a table known to this process that another one may have created. Other coroutines run
    /// meanwhile. Looks begin at intervals of 100 ms at least, and serve all that wait for one.
    ///
    /// # Errors
    /// `UnknownTable` if there is no such table; `Timeout` if the authority does not answer.
    pub async fn learn_table(&self, table: TableId) -> Result<(), TxnError> {
        let shared = &self.slot.coordinator.shared;
        if shared.table(table).is_none() {
            self.learn_tables().await?;
        }
        shared.table(table).map(drop).ok_or(TxnError::UnknownTable(table))
    }

    /// Makes all tables known to this process that have been created by now, as
    /// [`Self::learn_table`] does.
    ///
    /// # Errors
    /// `Timeout` if the authority does not answer.
    pub async fn learn_tables(&self) -> Result<(), TxnError> {
        let coordinator = &self.slot.coordinator;
        let looks = &coordinator.shared.looks;
        if coordinator.shared.is_whole() {
            // There are no other processes.
            return Ok(());
        }
        let wanted = looks.ask();
        loop {
            match looks.turn(wanted, coordinator.executor.now()) {
                // A task of its own: others wait for the look, whatever becomes of this one.
                Turn::Look => {
                    let shared = Arc::clone(&coordinator.shared);
                    coordinator.executor.spawn(Look { shared, answered: false }.carry_out());
                }
                Turn::Wait(time) => coordinator.executor.sleep(time).await,
                Turn::Over { answered: true } => return Ok(()),
                Turn::Over { answered: false } => return Err(TxnError::Timeout),
            }
        }
    }
}
