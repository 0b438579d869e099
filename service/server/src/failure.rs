//! Conversion of the engine's errors to failures for clients.

use lotus::{ScanError, TxnError};
use lotus_protocol::messages::Failure;

/// Returns the failure that a caller gets for an attempt's last error.
pub(crate) fn of(error: TxnError) -> Failure {
    match error {
        TxnError::Fenced => Failure::Leaving,
        TxnError::Unknown(_) => Failure::Unknown,
        TxnError::Panicked => Failure::Panicked,
        TxnError::UnknownTable(table) => Failure::UnknownTable { table: table.0 },
        TxnError::NotFound { .. } => Failure::NotFound(error.to_string()),
        TxnError::AlreadyExists { .. } => Failure::AlreadyExists(error.to_string()),
        error if error.is_retryable() => Failure::Conflict(error.to_string()),
        error => Failure::Refused(error.to_string()),
    }
}

/// Returns the failure for an error of the commit itself. A node fenced during its commit may have
/// committed.
pub(crate) fn of_commit(error: TxnError) -> Failure {
    match error {
        TxnError::Fenced | TxnError::Panicked => Failure::Unknown,
        error => of(error),
    }
}

/// Returns the failure for an error of a scan.
pub(crate) fn of_scan(error: ScanError) -> Failure {
    match error {
        ScanError::SnapshotTooOld => Failure::SnapshotTooOld,
        ScanError::UnknownTable(table) => Failure::UnknownTable { table: table.0 },
        ScanError::Txn(error) => of(error),
        error => Failure::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::{TableId, TxnId};

    #[test]
    fn what_a_commit_leaves_open_is_unknown() {
        let unknown = TxnError::Unknown(TxnId::from_raw(1));
        let conflict = TxnError::Conflict { table: TableId(0), key: 1.into() };
        let cases = [
            (TxnError::Fenced, Failure::Leaving, Failure::Unknown),
            (unknown, Failure::Unknown, Failure::Unknown),
            (
                conflict.clone(),
                Failure::Conflict(conflict.to_string()),
                Failure::Conflict(conflict.to_string()),
            ),
        ];
        for (error, before, committing) in cases {
            assert_eq!(of(error.clone()), before);
            assert_eq!(of_commit(error), committing);
        }
    }
}
