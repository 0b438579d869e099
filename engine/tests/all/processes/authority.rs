//! Authorities that misbehave in one way each, within the contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus::{Authority, Cluster, ClusterBuilder, Isolation, Secret, TxnError};
use lotus_authority::testing::{Question, QuestionOutcome, TestAuthority};

use super::{LEASE, load, wait_until};

/// Builds a cluster of one compute node that asks `authority` as if it were far away.
pub fn alone(authority: Arc<dyn Authority>) -> ClusterBuilder {
    Cluster::embedded()
        .memory_nodes(1)
        .replicas(1)
        .memory_limit(64 << 20)
        .lock_table_bytes(1 << 20)
        .part([0], authority, Duration::ZERO)
}

/// Creates an authority at which another process writes the first value of the catalogue just
/// before this one would. The flag says whether that has happened.
pub fn outrun() -> (TestAuthority, Arc<AtomicBool>) {
    let happened = Arc::new(AtomicBool::new(false));
    let happens = Arc::clone(&happened);
    let authority = TestAuthority::following(move |question, values| {
        if let Question::Swap { key: "tables", expected, value } = question
            && !happens.swap(true, Ordering::SeqCst)
        {
            // An empty catalogue: its format, the secret of names, and no table.
            let written = values.compare_and_swap("tables", expected, &value[..1 + Secret::BYTES]);
            written.expect("this process would be the first");
        }
        QuestionOutcome::Answered
    });
    (authority, happened)
}

/// Regression: memory node 0 hosted the authority and was killed. Rows without a copy there were
/// written on, though no node was left that could keep them.
#[test]
fn nothing_commits_while_the_authority_may_have_ended() {
    let authority = Arc::new(TestAuthority::default());
    let cluster = alone(Arc::clone(&authority) as _).lease(Some(LEASE)).start().expect("founds");
    let table = load(&cluster);
    let coordinator_id = cluster.coordinators().next().expect("a coordinator");
    let (has_begun, begins) = async_channel::bounded(1);
    let (goes_on, waits) = async_channel::bounded::<()>(1);
    let write = |key: u64| {
        let (has_begun, waits) = (has_begun.clone(), waits.clone());
        cluster.submit(coordinator_id, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let item = txn.add_rw(table, key)?;
            txn.execute().await?;
            txn.put(item, &[7; 8])?;
            // Both fail once the test has closed the channels.
            let _ = has_begun.send(()).await;
            let _ = waits.recv().await;
            txn.commit().await.map(drop)
        })
    };
    let begun = write(1);
    begins.recv_blocking().expect("it begins");
    authority.seem_silent_for(LEASE);
    wait_until("no transaction begins", || {
        let refused = cluster.submit(coordinator_id, move |mut session| async move {
            session.begin(Isolation::Serializable).await.map(drop)
        });
        refused.wait() == Err(TxnError::Timeout)
    });
    goes_on.close();
    begins.close();
    assert_eq!(begun.wait(), Err(TxnError::Timeout), "it was not acknowledged");
    authority.seem_silent_for(Duration::ZERO);
    wait_until("it answers, and transactions go on", || write(1).wait().is_ok());
}
