//! Rules for ordering verbs on a device, and for translating device errors: decisions over plain
//! values.

use super::ffi::ibv_wc_status;
use crate::contract::verbs::{VerbError, VerbKind};

/// Method of keeping a verb behind earlier verbs that it could overtake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ordering {
    /// The fence flag makes the device wait.
    Flag,
    /// The verb is posted only after the earlier verbs have completed.
    Wait,
}

impl Ordering {
    /// Returns the method for devices of this vendor. Soft-RoCE handles the flag wrongly as of
    /// Linux 6.1: a retransmitted atomic with the flag waits for itself, any other verb with the
    /// flag for READs and atomics *behind* it; then nothing on the connection completes any more,
    /// not even with an error.
    pub fn of_vendor(vendor: u32) -> Self {
        if vendor == SOFT_ROCE { Self::Wait } else { Self::Flag }
    }
}

/// Vendor number of Soft-RoCE.
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// Verbs in flight that later verbs may overtake on a NIC without a fence (H24): an atomic or a
/// WRITE may overtake a READ before it, a WRITE an atomic before it.
#[derive(Clone, Copy, Default)]
pub(super) struct Order {
    read: bool,
    atomic: bool,
}

impl Order {
    /// Whether a verb of this kind could overtake a verb in flight.
    #[inline]
    pub fn could_overtake(self, kind: VerbKind) -> bool {
        match kind {
            VerbKind::Read => false,
            VerbKind::Write => self.read || self.atomic,
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.read,
        }
    }

    /// Adds a verb in flight. A fenced verb waits for all earlier verbs.
    #[inline]
    pub fn add(&mut self, kind: VerbKind, fenced: bool) {
        if fenced {
            *self = Self::default();
        }
        match kind {
            VerbKind::Read => self.read = true,
            VerbKind::Write => {}
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.atomic = true,
        }
    }
}

/// Translates a completion error of the device to the fabric's error, for a verb of this kind.
pub(super) fn meaning(status: ibv_wc_status::Type, kind: Option<VerbKind>) -> VerbError {
    use ibv_wc_status as Status;
    let atomic = matches!(kind, Some(VerbKind::CompareAndSwap | VerbKind::FetchAndAdd));
    match status {
        // The target examined the request and refused the whole request.
        Status::IBV_WC_REM_ACCESS_ERR => VerbError::AccessDenied,
        Status::IBV_WC_REM_INV_REQ_ERR if atomic => VerbError::Misaligned,
        Status::IBV_WC_REM_INV_REQ_ERR => VerbError::AccessDenied,
        Status::IBV_WC_WR_FLUSH_ERR => VerbError::Flushed,
        Status::IBV_WC_RESP_TIMEOUT_ERR => VerbError::TimedOut,
        // No acknowledgement, receiver not ready, or any other error: the request may have been
        // carried out.
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
            for (kind, expected) in kinds.iter().zip(expected) {
                let fenced = order.could_overtake(*kind);
                order.add(*kind, fenced);
                assert_eq!(fenced, *expected, "{kind:?} of {kinds:?}");
            }
        }
    }
}
