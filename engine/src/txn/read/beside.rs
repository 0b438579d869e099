//! Reading by an attempt that the idealized lock has let go on beside another attempt.

use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Cvt, Version};

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::txn::body::{Access, Body};
use crate::txn::fetch::{Fetch, Next};

impl Body {
    /// Notes whether the attempt is beside another attempt. Errands of the engine are given up in
    /// this case: they may free only unused memory.
    pub(super) fn go_beside(&mut self, coordinator: &Coordinator) -> Result<(), TxnError> {
        self.is_beside = coordinator.locks.is_beside(&self.held);
        let is_errand = |access| matches!(access, Access::Purge | Access::Trim);
        let errand = self.piece.is_some() || self.rows.iter().any(|row| is_errand(row.access));
        if self.is_beside && errand { Err(self.given_up()) } else { Ok(()) }
    }

    /// Absorbs the CVT of a row that the other attempt writes, without the other attempt's writes.
    #[cold]
    pub(super) fn absorb_beside(
        &mut self,
        fetch: &mut Fetch,
        cvt: Cvt<'_>,
        limit: Timestamp,
    ) -> Result<Next, TxnError> {
        let shape = self.table(self.rows[fetch.row].table).def.cvt();
        if cvt.cells().any(|cell| cell.is_err()) {
            return Ok(Next::Reread);
        }
        let mut words = cvt.words().to_vec();
        for (index, cell) in cvt.cells().enumerate() {
            if cell.is_ok_and(|cell| matches!(cell.version, Version::Invisible(_))) {
                let first = shape.cell_word(index);
                words[first..first + CELL_WORDS].fill(0);
            }
        }
        self.absorb_locked(fetch, Cvt::new(&words, shape), limit)
    }
}
