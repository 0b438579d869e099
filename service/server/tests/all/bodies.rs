//! The contract of a transaction's body, for stored and for interactive transactions: it commits by
//! returning `Ok`, aborts by returning `Err`, and is run again after conflicts.

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, load, run};
use lotus::{Cluster, Isolation, TableId};
use lotus_client::{CallError, Client, Failure, Kind, Transaction};
use lotus_fabric::ids::NodeId;
use lotus_server::{Abort, Config, Registry, Server};

/// Refusal by an application's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct TooPoor {
    has: u64,
}

/// Time for which a transaction is held in a test: for ever.
const HOLD: Duration = Duration::from_secs(3_600);

/// An application's own error, at the client.
#[derive(Debug)]
enum Trouble {
    TooPoor(TooPoor),
    Call(CallError),
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Body for this process and for applications.
async fn withdraw(
    txn: &mut lotus::Transaction,
    table: TableId,
    account: u64,
    sum: u64,
) -> Result<u64, Abort<TooPoor>> {
    let item = txn.add_rw(table, account)?;
    txn.execute().await?;
    let has = number(txn.value(item));
    let left = has.checked_sub(sum).ok_or(Abort::Application(TooPoor { has }))?;
    txn.put(item, &left.to_le_bytes())?;
    Ok(left)
}

/// Adds to an account at the client.
async fn add(txn: &mut Transaction, table: TableId, account: u64) -> Result<u64, CallError> {
    let item = txn.add_rw(table, account);
    txn.execute().await?;
    let after = number(txn.value(item)) + 1;
    txn.upsert(item, after.to_le_bytes());
    Ok(after)
}

/// An interactive transaction that holds the lock of account 1.
async fn holder(client: &Client, table: TableId) -> Transaction {
    let mut txn = client.transaction(Kind::Serializable);
    txn.add_rw(table, 1);
    txn.execute().await.unwrap();
    txn
}

#[test]
fn one_body_runs_in_this_process_and_as_a_stored_transaction() {
    let cluster = Arc::new(Cluster::embedded().memory_nodes(1).replicas(1).start().unwrap());
    let table = load(&cluster);
    let mut registry = Registry::new();
    registry.register(
        "withdraw",
        async move |txn: &mut lotus::Transaction, (account, sum): (u64, u64)| {
            withdraw(txn, table, account, sum).await
        },
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = Config::new(listener, vec![address.clone()]);
    let server = Server::start(Arc::clone(&cluster), 0, registry, config).unwrap();
    let here = |sum: u64| {
        let body = async move |txn: &mut lotus::Transaction| withdraw(txn, table, 1, sum).await;
        cluster.run(Isolation::Serializable, body).wait().map(|done| done.value)
    };
    assert_eq!(here(100), Ok(INITIAL - 100));
    assert_eq!(here(INITIAL), Err(Abort::Application(TooPoor { has: INITIAL - 100 })));
    run(async {
        let client = Client::connect(lotus_client::Config::new(address)).await.unwrap();
        let there = |sum: u64| client.call::<_, u64>("withdraw", &(1_u64, sum));
        assert_eq!(there(100).await.unwrap(), INITIAL - 200);
        let refused = there(INITIAL).await;
        let Err(CallError::Rejected(rejection)) = refused else { panic!("{refused:?}") };
        assert_eq!(rejection.decode(), Some(TooPoor { has: INITIAL - 200 }));
    });
    server.stop().unwrap();
}

/// Regression: the caller was told that the transaction's own code had refused, or that it had
/// misused the engine, where another attempt would have succeeded.
#[test]
fn a_stored_transaction_is_retried_whatever_it_has_made_of_a_conflict() {
    let cluster = Arc::new(Cluster::embedded().memory_nodes(1).replicas(1).start().unwrap());
    let table = load(&cluster);
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let mut registry = Registry::new();
    registry.register("read", async move |txn: &mut lotus::Transaction, converts: bool| {
        counted.fetch_add(1, Ordering::SeqCst);
        let item = txn.add_rw(table, 1)?;
        match txn.execute().await {
            Err(_) if converts => return Err(Abort::Application("no idea".to_owned())),
            // Swallowed.
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
        Ok::<_, Abort<String>>(Some(number(txn.value(item))))
    });
    registry.register("swallow", async move |txn: &mut lotus::Transaction, account: u64| {
        txn.insert(table, account, b"x")?;
        let _ = txn.execute().await;
        Ok::<(), Abort>(())
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut config = Config::new(listener, vec![address.clone()]);
    config.limits.hold = HOLD;
    let server = Server::start(Arc::clone(&cluster), 0, registry, config).unwrap();
    run(async {
        let client = Client::connect(lotus_client::Config::new(address)).await.unwrap();
        for converts in [true, false] {
            let held = holder(&client, table).await;
            attempts.store(0, Ordering::SeqCst);
            let caller = client.clone();
            let call = tokio::spawn(async move {
                let call = caller.call::<_, Option<u64>>("read", &converts);
                call.timeout(Duration::from_secs(30)).await
            });
            while attempts.load(Ordering::SeqCst) < 4 {
                assert!(!call.is_finished(), "it has met the lock: {:?}", call.await);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(held);
            assert_eq!(call.await.unwrap().unwrap(), Some(INITIAL));
        }
        // An error that no retry can cure, and that the function has passed over.
        let swallowed = client.call::<_, ()>("swallow", &1_u64).await;
        let told = matches!(swallowed, Err(CallError::Failed(Failure::AlreadyExists(_))));
        assert!(told, "{swallowed:?}");
    });
    server.stop().unwrap();
}

#[test]
fn two_clients_that_increment_one_counter_lose_nothing() {
    const EACH: u64 = 100;
    let bank = Bank::open(2);
    let attempts = Arc::new(AtomicU32::new(0));
    run(async {
        let mut tasks = tokio::task::JoinSet::new();
        for client in [bank.client().await, bank.client().await] {
            let counted = Arc::clone(&attempts);
            let table = client.table("accounts").unwrap();
            tasks.spawn(async move {
                for _ in 0..EACH {
                    let counted = Arc::clone(&counted);
                    let body = async move |txn: &mut Transaction| {
                        counted.fetch_add(1, Ordering::SeqCst);
                        add(txn, table, 1).await
                    };
                    let added = client.run(Kind::Serializable, body).await.unwrap();
                    assert!(added.commit_ts.is_some());
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let client = bank.client().await;
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL + 2 * EACH);
    });
    assert!(u64::from(attempts.load(Ordering::SeqCst)) > 2 * EACH, "they have met");
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 2 * EACH);
}

#[test]
fn a_client_s_body_is_run_again_whatever_it_has_made_of_a_conflict() {
    let bank = Bank::open_with(1, |config| config.limits.hold = HOLD);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for (converts, expected) in [(true, INITIAL), (false, INITIAL + 1)] {
            let held = RefCell::new(Some(holder(&client, table).await));
            let attempts = Cell::new(0);
            let body = async |txn: &mut Transaction| {
                attempts.set(attempts.get() + 1);
                if attempts.get() == 4 {
                    held.take();
                }
                let item = txn.add_rw(table, 1);
                match txn.execute().await {
                    Err(_) if converts => return Err(Trouble::TooPoor(TooPoor { has: 0 })),
                    // Swallowed.
                    Err(_) => return Ok(None),
                    Ok(()) => {}
                }
                let has = number(txn.value(item));
                txn.put(item, (has + 1).to_le_bytes());
                Ok::<_, Trouble>(Some(has))
            };
            let done = client.run(Kind::Serializable, body).await.unwrap();
            assert_eq!(done.value, Some(expected));
            assert!(attempts.get() >= 4, "the first three met the lock");
        }
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 2);
}

#[test]
fn a_client_s_body_that_fails_changes_nothing() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let attempts = Cell::new(0);
        let broke = client.run(Kind::Serializable, async |txn: &mut Transaction| {
            attempts.set(attempts.get() + 1);
            let item = txn.add_rw(table, 1);
            txn.execute().await?;
            let has = number(txn.value(item));
            txn.put(item, 0_u64.to_le_bytes());
            // The server has it.
            txn.execute().await?;
            Err::<(), _>(Trouble::TooPoor(TooPoor { has }))
        });
        let broke = broke.await;
        let told = matches!(broke, Err(Trouble::TooPoor(TooPoor { has: INITIAL })));
        assert!(told, "{broke:?}");
        assert_eq!(attempts.get(), 1, "an error of the application is final");
        // A failure that no retry can cure: swallowed, and of the commit.
        for swallows in [true, false] {
            let exists = client.run(Kind::Serializable, async |txn: &mut Transaction| {
                txn.insert(table, 1, *b"x");
                if swallows {
                    let _ = txn.execute().await;
                }
                Ok::<(), Trouble>(())
            });
            let exists = exists.await;
            let told =
                matches!(exists, Err(Trouble::Call(CallError::Failed(Failure::AlreadyExists(_)))));
            assert!(told, "{exists:?}");
        }
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
        let looked = client.run(Kind::ReadOnly, async |txn: &mut Transaction| {
            let item = txn.add_ro(table, 1);
            txn.execute().await?;
            Ok::<u64, CallError>(number(txn.value(item)))
        });
        let looked = looked.await.unwrap();
        assert_eq!((looked.value, looked.commit_ts), (INITIAL, None));
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn a_client_s_body_is_not_begun_again_when_time_is_up() {
    let bank = Bank::open_with(1, |config| config.limits.hold = HOLD);
    run(async {
        let patient = bank.client().await;
        let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
        config.timeout = Duration::from_millis(100);
        let hasty = Client::connect(config).await.unwrap();
        let table = hasty.table("accounts").unwrap();
        let held = holder(&patient, table).await;
        let body = async |txn: &mut Transaction| add(txn, table, 1).await;
        let ended = hasty.run(Kind::Serializable, body).await;
        // Its last attempt has met the lock, or had too little time to begin.
        let error = ended.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        drop(held);
        patient.run(Kind::Serializable, body).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

/// Carries out `end` when it is dropped, also by a panic.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_body_whose_outcome_is_unknown_is_not_run_again() {
    let builder = Cluster::embedded().compute_nodes(1).memory_nodes(2).replicas(2);
    let builder = builder.lock_table_bytes(1 << 16).commit_timeout(Duration::from_millis(200));
    let bank = Bank::over(builder.start().unwrap(), |_| {});
    let fabric = bank.cluster.local_fabric().clone();
    let reachable = move |is| fabric.set_reachable(NodeId(1), is).unwrap();
    let back = AtEnd(|| reachable(true));
    let attempts = Cell::new(0);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let ended = client.run(Kind::Serializable, async |txn: &mut Transaction| {
            attempts.set(attempts.get() + 1);
            let added = add(txn, table, 1).await;
            // The commit begins, and cannot end in time.
            reachable(false);
            added
        });
        let ended = ended.await;
        assert!(matches!(ended, Err(CallError::Unknown)), "{ended:?}");
    });
    assert_eq!(attempts.get(), 1);
    // A commit that has begun is completed.
    drop(back);
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}
