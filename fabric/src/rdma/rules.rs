//! What a device has to be told about order, and what its errors mean: decisions over plain values.

use super::ffi::ibv_wc_status;
use crate::verbs::{VerbError, VerbKind};

/// What a verb may overtake on a NIC unless told otherwise (H24): an atomic or a WRITE a READ
/// before it, a WRITE an atomic before it.
#[derive(Clone, Copy, Default)]
pub(super) struct Order {
    read: bool,
    atomic: bool,
}

impl Order {
    /// Whether a verb behind those so far needs the fence flag.
    #[inline]
    pub fn fence(&mut self, kind: VerbKind) -> bool {
        let fence = match kind {
            VerbKind::Read => false,
            VerbKind::Write => self.read || self.atomic,
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.read,
        };
        if fence {
            *self = Self::default();
        }
        match kind {
            VerbKind::Read => self.read = true,
            VerbKind::Write => {}
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.atomic = true,
        }
        fence
    }
}

/// What an error of the device means in the fabric's terms, for a verb of this kind.
pub(super) fn meaning(status: ibv_wc_status::Type, kind: Option<VerbKind>) -> VerbError {
    use ibv_wc_status as Status;
    let atomic = matches!(kind, Some(VerbKind::CompareAndSwap | VerbKind::FetchAndAdd));
    match status {
        // The target looked at the request and refused all of it.
        Status::IBV_WC_REM_ACCESS_ERR => VerbError::AccessDenied,
        Status::IBV_WC_REM_INV_REQ_ERR if atomic => VerbError::Misaligned,
        Status::IBV_WC_REM_INV_REQ_ERR => VerbError::AccessDenied,
        Status::IBV_WC_WR_FLUSH_ERR => VerbError::Flushed,
        Status::IBV_WC_RESP_TIMEOUT_ERR => VerbError::TimedOut,
        // No acknowledgement, or nobody ready to give one; and whatever else may go wrong: the
        // request may have been carried out.
        _ => VerbError::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_device_mean_what_the_contract_says() {
        use ibv_wc_status as Status;
        let cas = Some(VerbKind::CompareAndSwap);
        let read = Some(VerbKind::Read);
        let cases = [
            (Status::IBV_WC_REM_ACCESS_ERR, read, VerbError::AccessDenied),
            (Status::IBV_WC_REM_INV_REQ_ERR, cas, VerbError::Misaligned),
            (Status::IBV_WC_REM_INV_REQ_ERR, read, VerbError::AccessDenied),
            (Status::IBV_WC_WR_FLUSH_ERR, read, VerbError::Flushed),
            (Status::IBV_WC_RETRY_EXC_ERR, cas, VerbError::Unreachable),
            (Status::IBV_WC_RNR_RETRY_EXC_ERR, read, VerbError::Unreachable),
            (Status::IBV_WC_RESP_TIMEOUT_ERR, read, VerbError::TimedOut),
            (Status::IBV_WC_REM_OP_ERR, read, VerbError::Unreachable),
            (Status::IBV_WC_LOC_PROT_ERR, read, VerbError::Unreachable),
            (Status::IBV_WC_GENERAL_ERR, None, VerbError::Unreachable),
        ];
        for (status, kind, error) in cases {
            assert_eq!(meaning(status, kind), error, "{status}");
        }
    }

    #[test]
    fn what_could_overtake_is_fenced() {
        use VerbKind::{CompareAndSwap as Cas, FetchAndAdd as Faa, Read, Write};
        let cases: [(&[VerbKind], &[bool]); 6] = [
            (&[Write, Write, Read, Read], &[false; 4]),
            (&[Read, Write, Write], &[false, true, false]),
            (&[Read, Cas, Faa], &[false, true, false]),
            (&[Cas, Faa, Read], &[false; 3]),
            (&[Faa, Write, Cas, Write], &[false, true, false, true]),
            (&[Cas, Read, Faa, Write], &[false, false, true, true]),
        ];
        for (kinds, expected) in cases {
            let mut order = Order::default();
            let fenced: Vec<_> = kinds.iter().map(|kind| order.fence(*kind)).collect();
            assert_eq!(fenced, expected, "{kinds:?}");
        }
    }
}
