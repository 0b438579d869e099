//! Locks on memory nodes.

use crate::common::*;
use lotus::{Isolation, LockKind, TxnError};

/// The lock systems that a cluster may have on its memory nodes.
const KINDS: [LockKind; 4] =
    [LockKind::Cas, LockKind::Dslr, LockKind::ShiftLock, LockKind::Declock];

#[test]
fn an_audit_finds_a_lock_that_is_held() {
    for kind in KINDS {
        let (cluster, table) = with_numbers(small().locks(kind));
        insert_all(&cluster, table, &[(1, 1), (2, 2)]);
        let (locked, is_locked) = async_channel::bounded(1);
        let (release, released) = async_channel::bounded::<()>(1);
        let holder = cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, 1)?;
            txn.add_ro(table, 2)?;
            txn.execute().await?;
            let _ = locked.send(()).await;
            let _ = released.recv().await;
            txn.abort();
            Ok::<_, TxnError>(())
        });
        is_locked.recv_blocking().expect("it holds the locks");
        let finding = || {
            let findings = cluster.audit().expect("the memory nodes answer");
            findings.into_iter().find(|one| one.name == "every lock object is free")
        };
        let finding = finding().expect("the locks are on memory nodes");
        assert!(!finding.passed && finding.detail.contains(" 2 wrong"), "{kind:?}: {finding:?}");
        release.send_blocking(()).expect("it waits for that");
        done(holder);
        stop_clean(cluster);
    }
}
