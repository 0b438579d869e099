//! The loss of a compute node under calls that must take effect once.

use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{ACCOUNTS, Bank, INITIAL, get, run};
use lotus::Cluster;
use lotus_client::{CallError, CallId, Client};
use lotus_fabric::ids::NodeId;

/// Calls until it is known for good whether the deposit was made, and returns that.
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

/// A node dies while calls are queued, executing and committing there. Each of them is made on the
/// node that is left, or was made before, and never both: the record of a call is in its own write
/// set, and recovery settles both together.
#[test]
fn calls_with_an_id_take_effect_once_although_their_node_dies() {
    let builder = Cluster::embedded().compute_nodes(2).memory_nodes(2).replicas(2);
    let builder = builder.lock_table_bytes(1 << 16).lease(Some(Duration::from_secs(2)));
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
        // In the middle of the other calls.
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

/// Does something when dropped, also in a test that fails.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Every replica takes part in a commit, so a memory node that is out of reach may leave a call
/// with an unknown outcome. Later calls fail at once, with the name of the node; when it is back,
/// what was under way is finished, and nothing is left locked.
#[test]
fn a_memory_node_out_of_reach_is_named_until_it_is_back() {
    let builder = Cluster::embedded().compute_nodes(1).memory_nodes(2).replicas(2);
    let builder = builder.lock_table_bytes(1 << 16).commit_timeout(Duration::from_secs(2));
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = metrics.local_addr().unwrap();
    let metrics = Mutex::new(Some(metrics));
    let set = |config: &mut lotus_server::Config| config.metrics = metrics.lock().unwrap().take();
    let bank = Bank::over(builder.start().unwrap(), set);
    let fabric = bank.cluster.local_fabric().clone();
    let reachable = move |is| fabric.set_reachable(NodeId(1), is).unwrap();
    // A cluster ends when its commits have.
    let _back = AtEnd(|| reachable(true));
    let made = run(async {
        let client = bank.client().await;
        let deposit = async || {
            let call = client.call::<_, u64>("deposit", &(1_u64, 1_u64));
            call.timeout(Duration::from_secs(30)).await
        };
        deposit().await.unwrap();
        // The slot may still be about to make that visible, and take no other transaction.
        bank.cluster.settle().unwrap();
        reachable(false);
        let first = deposit().await;
        // It reads before it writes, and may not get that far.
        let is_unknown = matches!(first, Err(CallError::Unknown));
        let named = |error: &CallError| error.to_string().contains("memory node 1 does not answer");
        assert!(is_unknown || first.as_ref().is_err_and(named), "{first:?}");
        let next = deposit().await.unwrap_err();
        assert!(named(&next), "{next}");
        assert!(get(at, "/health").ends_with("a memory node does not answer\n"));
        bank.cluster.look_for_memory();
        assert_eq!(bank.cluster.silent_memory(0), [1], "it is still out of reach");
        reachable(true);
        bank.cluster.look_for_memory();
        deposit().await.unwrap();
        assert!(get(at, "/health").ends_with("serving\n"));
        2 + u64::from(is_unknown)
    });
    // A call of unknown outcome has committed by now.
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + made);
}
