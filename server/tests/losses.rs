//! The loss of a compute node under calls that must take effect once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{ACCOUNTS, Bank, INITIAL, run};
use lotus::Cluster;
use lotus_client::{CallError, CallId, Client};

/// Calls until it is known for good whether the deposit was made; whether it was.
async fn deposit(client: &Client, account: u64, id: CallId) -> bool {
    let table = client.table("accounts").unwrap();
    let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
    match call.idempotent(id).timeout(Duration::from_secs(30)).await {
        Ok(_) => return true,
        Err(CallError::Unknown) => {}
        Err(error) => panic!("{error}"),
    }
    client.outcome::<u64>(id).await.unwrap().is_some()
}

/// A node dies while calls are queued, executing and committing there. Each of them is made on
/// the node that is left, or was made before, and never both: the record of a call is in its own
/// write set, and recovery settles both together.
#[test]
fn calls_with_an_id_take_effect_once_although_their_node_dies() {
    let builder = Cluster::embedded().compute_nodes(2).memory_nodes(2).replicas(2);
    let builder = builder.lock_table_bytes(1 << 16).lease(Some(Duration::from_millis(500)));
    let bank = Bank::over(builder.start().unwrap(), |_| {});
    let made = run(async {
        let client = bank.client().await;
        let mut tasks = Vec::new();
        for task in 0..32_u64 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let mut made = 0;
                for step in 0..20_u64 {
                    let id = CallId::from(u128::from(task << 32 | step));
                    made += u64::from(deposit(&client, (task + step) % ACCOUNTS, id).await);
                }
                made
            }));
        }
        // In the thick of it, wherever that is.
        deposit(&client, 1, CallId::from(u128::MAX)).await;
        bank.cluster.kill(1);
        let mut made = 1;
        for task in tasks {
            made += task.await.unwrap();
        }
        made
    });
    assert_eq!(made, 32 * 20 + 1);
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + made);
}
