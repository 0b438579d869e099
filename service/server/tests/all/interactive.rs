//! Interactive transactions.

use std::task::Poll;
use std::time::Duration;

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus_client::{CallError, Client, Failure, Kind};

fn bytes(amount: u64) -> Vec<u8> {
    amount.to_le_bytes().to_vec()
}

/// Deposits by a stored transaction, which is tried again as long as other transactions conflict.
async fn deposit(client: &Client, account: u64, sum: u64) -> Result<(), CallError> {
    let call = client.call::<_, u64>("deposit", &(account, sum));
    call.timeout(Duration::from_secs(30)).await.map(drop)
}

#[test]
fn rows_are_read_written_inserted_and_deleted() {
    let bank = Bank::open(2);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        let (one, two) = (txn.add_rw(table, 1), txn.add_ro(table, 2));
        txn.execute().await.unwrap();
        assert_eq!(txn.value(one), Some(&*bytes(INITIAL)));
        assert_eq!(txn.value(two), Some(&*bytes(INITIAL)));
        // The engine has one item for a row, the client one for each time it was added.
        let again = txn.add_rw(table, 1);
        let new = txn.insert(table, 1_000, bytes(5));
        let absent = txn.add_rw(table, 2_000);
        txn.execute().await.unwrap();
        assert_eq!(txn.value(absent), None);
        txn.put(again, bytes(INITIAL - 5));
        assert_eq!(txn.value(one), Some(&*bytes(INITIAL - 5)), "its own changes are seen");
        assert_eq!(txn.value(new), Some(&*bytes(5)));
        assert!(txn.commit().await.unwrap().is_some());
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL - 5);
        assert_eq!(balance(&client, 1_000).await.unwrap(), 5);
        let mut txn = client.transaction(Kind::Snapshot);
        let (gone, heir) = (txn.add_rw(table, 1_000), txn.add_rw(table, 1));
        txn.execute().await.unwrap();
        txn.delete(gone);
        txn.put(heir, bytes(INITIAL));
        txn.commit().await.unwrap();
        let mut txn = client.transaction(Kind::ReadOnly);
        let gone = txn.add_ro(table, 1_000);
        txn.execute().await.unwrap();
        assert_eq!(txn.value(gone), None);
        assert_eq!(txn.commit().await.unwrap(), None);
        // Both in one exchange.
        let mut txn = client.transaction(Kind::Serializable);
        txn.insert(table, 1_001, bytes(0));
        txn.commit().await.unwrap();
        let _ = new;
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn an_upsert_inserts_an_absent_row_and_updates_a_present_one() {
    let bank = Bank::open(2);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for (round, kind) in [(0, Kind::Serializable), (1, Kind::Snapshot)] {
            let mut txn = client.transaction(kind);
            let (present, absent) = (txn.add_rw(table, 1), txn.add_rw(table, 1_000 + round));
            let deleted = txn.add_rw(table, 2 + round);
            txn.execute().await.unwrap();
            assert_eq!(txn.value(absent), None);
            txn.upsert(present, bytes(INITIAL + 1 + round));
            txn.upsert(absent, bytes(5));
            txn.delete(deleted);
            // In a step before the commit, and again in the commit's.
            txn.execute().await.unwrap();
            txn.upsert(absent, bytes(6));
            txn.upsert(deleted, bytes(7));
            assert!(txn.commit().await.unwrap().is_some());
            assert_eq!(balance(&client, 1).await.unwrap(), INITIAL + 1 + round);
            assert_eq!(balance(&client, 1_000 + round).await.unwrap(), 6);
            assert_eq!(balance(&client, 2 + round).await.unwrap(), 7);
        }
        // The second time the row is there.
        let mut txn = client.transaction(Kind::Serializable);
        let present = txn.add_rw(table, 1_000);
        txn.execute().await.unwrap();
        txn.upsert(present, bytes(8));
        txn.commit().await.unwrap();
        assert_eq!(balance(&client, 1_000).await.unwrap(), 8);
    });
    assert_eq!(bank.audit(), (ACCOUNTS - 2) * INITIAL + 2 + 7 + 7 + 8 + 6);
}

#[test]
fn an_upsert_that_cannot_be_is_refused_and_ends_the_transaction() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let refused = |step: Result<Option<u64>, CallError>, why: &str| {
            let Err(CallError::Failed(Failure::Refused(told))) = step else { panic!("{step:?}") };
            assert!(told.contains(why), "{told}");
        };
        let mut txn = client.transaction(Kind::Serializable);
        let early = txn.add_rw(table, 1_000);
        txn.upsert(early, bytes(1));
        refused(txn.commit().await, "execute before an upsert");
        for kind in [Kind::Serializable, Kind::ReadOnly] {
            let mut txn = client.transaction(kind);
            let read = txn.add_ro(table, 1);
            txn.execute().await.unwrap();
            txn.upsert(read, bytes(1));
            refused(txn.commit().await, "added for reading only");
        }
        let mut txn = client.transaction(Kind::Serializable);
        let long = txn.add_rw(table, 1);
        txn.execute().await.unwrap();
        txn.upsert(long, vec![0; 9]);
        refused(txn.commit().await, "at most 8 bytes");
        let mut others = client.transaction(Kind::Serializable);
        let foreign = [others.add_ro(table, 1), others.add_ro(table, 2)][1];
        let mut txn = client.transaction(Kind::Serializable);
        txn.add_rw(table, 1);
        txn.execute().await.unwrap();
        txn.upsert(foreign, bytes(1));
        refused(txn.commit().await, "another transaction");
        deposit(&client, 1, 0).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn errors_end_a_transaction_and_its_locks() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        txn.insert(table, 1, bytes(0));
        let exists = txn.execute().await;
        assert!(matches!(exists, Err(CallError::Failed(Failure::AlreadyExists(_)))));
        let over = txn.execute().await;
        assert!(matches!(over, Err(CallError::Failed(Failure::NoTransaction))));
        let mut txn = client.transaction(Kind::ReadOnly);
        txn.add_rw(table, 1);
        assert!(matches!(txn.execute().await, Err(CallError::Failed(Failure::Refused(_)))));
        let mut txn = client.transaction(Kind::Serializable);
        let item = txn.add_rw(table, 7_777);
        txn.execute().await.unwrap();
        txn.put(item, bytes(1));
        assert!(matches!(txn.commit().await, Err(CallError::Failed(Failure::NotFound(_)))));
        // The table of call records is closed to clients.
        let internal = bank.cluster.table("lotus.calls").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        txn.add_ro(internal, 1);
        assert!(matches!(
            txn.execute().await,
            Err(CallError::Failed(Failure::UnknownTable { .. }))
        ));
        deposit(&client, 1, 0).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn a_transaction_that_is_dropped_leaves_no_lock() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        txn.add_rw(table, 1);
        txn.execute().await.unwrap();
        let mut other = client.transaction(Kind::Serializable);
        other.add_rw(table, 1);
        let conflict = other.execute().await;
        assert!(matches!(conflict, Err(CallError::Failed(Failure::Conflict(_)))));
        assert!(conflict.is_err_and(|error| error.is_retryable()), "it was not retried");
        txn.abort();
        deposit(&client, 1, 1).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

/// Polls a step once, which sends it, and drops it before its answer can come.
async fn drop_step(step: impl Future<Output = Result<(), CallError>>) {
    let mut step = std::pin::pin!(step);
    let first = std::future::poll_fn(|task| Poll::Ready(step.as_mut().poll(task)));
    assert!(first.await.is_pending(), "no answer comes before this thread waits");
}

/// The rows that a dropped step had taken along were lost, and the commit of a transaction without
/// them was reported; or the value of one went into another row.
#[test]
fn a_step_that_is_dropped_ends_its_transaction() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for begun in [false, true] {
            deposit(&client, 1, 0).await.unwrap();
            let mut txn = client.transaction(Kind::Serializable);
            if begun {
                txn.add_ro(table, 2);
                txn.execute().await.unwrap();
            }
            let first = txn.add_rw(table, 1);
            drop_step(txn.execute()).await;
            txn.add_rw(table, 3);
            txn.put(first, bytes(INITIAL + 7));
            let ended = txn.commit().await;
            assert!(ended.as_ref().is_err_and(CallError::is_retryable), "{ended:?}");
        }
        let attempts = std::cell::Cell::new(0);
        let body = async |txn: &mut lotus_client::Transaction| {
            attempts.set(attempts.get() + 1);
            txn.insert(table, 1_000, bytes(5));
            if attempts.get() == 1 {
                drop_step(txn.execute()).await;
            }
            Ok::<(), CallError>(())
        };
        let committed = client.run(Kind::Serializable, body).await.unwrap();
        assert!(committed.commit_ts.is_some() && attempts.get() >= 2);
        assert_eq!(balance(&client, 1_000).await.unwrap(), 5);
        for account in [1, 3] {
            assert_eq!(balance(&client, account).await.unwrap(), INITIAL);
        }
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 5);
}

/// A commit that was not even sent was reported as one that may have taken effect.
#[test]
fn a_commit_that_was_not_sent_has_no_effect_and_says_so() {
    let mut bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        let item = txn.add_rw(table, 1);
        txn.execute().await.unwrap();
        bank.servers.clear();
        // Until then its connection may not know yet that the server has ended.
        while !matches!(balance(&client, 2).await, Err(CallError::Unreachable(_))) {}
        txn.put(item, bytes(0));
        let ended = txn.commit().await;
        assert!(ended.as_ref().is_err_and(CallError::is_retryable), "{ended:?}");
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// A first step whose caller went away was carried out, and held its locks until the limit for
/// idle clients: only the step's answer told the client of the transaction that it had to abandon.
#[test]
fn a_first_step_that_nobody_waits_for_leaves_no_lock() {
    // A limit that is never reached.
    let bank = Bank::open_with(1, |config| config.limits.hold = Duration::from_secs(3_600));
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for _ in 0..5 {
            // There is a connection: the step is sent when it is first polled.
            deposit(&client, 1, 1).await.unwrap();
            let mut txn = client.transaction(Kind::Serializable);
            txn.add_rw(table, 1);
            drop_step(txn.execute()).await;
        }
        deposit(&client, 1, 1).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 6);
}

#[test]
fn who_holds_locks_too_long_loses_them_and_is_told() {
    let bank = Bank::open_with(1, |config| config.limits.hold = Duration::from_millis(50));
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut txn = client.transaction(Kind::Serializable);
        let item = txn.add_rw(table, 1);
        txn.execute().await.unwrap();
        // The call waits for the lock, and so for the limit.
        deposit(&client, 1, 1).await.unwrap();
        txn.put(item, bytes(0));
        let late = txn.commit().await;
        let told = matches!(late, Err(CallError::Failed(Failure::HeldTooLong { limit_ms: 50 })));
        assert!(told, "{late:?}");
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

#[test]
fn transactions_of_one_connection_take_steps_in_turn() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for kind in [Kind::Serializable, Kind::Snapshot] {
            let mut both = [1, 2].map(|account| (account, client.transaction(kind)));
            for (account, txn) in &mut both {
                txn.add_ro(table, *account);
                txn.execute().await.unwrap();
            }
            for (account, txn) in &mut both {
                let item = txn.add_rw(table, *account);
                txn.execute().await.unwrap();
                txn.put(item, bytes(INITIAL));
            }
            for (_, txn) in both {
                txn.commit().await.unwrap();
            }
        }
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn a_client_that_vanishes_leaves_no_lock() {
    // A limit that is never reached: only the loss of the connection can end it.
    let bank = Bank::open_with(1, |config| config.limits.hold = Duration::from_secs(3_600));
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let vanishing = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // The end of its runtime takes the connection with it, without a farewell.
                    let txn = run(async {
                        let client = bank.client().await;
                        let mut txn = client.transaction(Kind::Serializable);
                        txn.add_rw(table, 1);
                        txn.execute().await.unwrap();
                        txn
                    });
                    std::mem::forget(txn);
                })
                .join()
        });
        vanishing.unwrap();
        deposit(&client, 1, 1).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

#[test]
fn there_are_places_for_so_many_and_calls_go_on_beside_them() {
    let bank = Bank::open_with(1, |config| {
        config.workers = Some(12);
        config.limits.hold = Duration::from_secs(3_600);
    });
    run(async {
        let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
        config.timeout = Duration::from_millis(200);
        let client = Client::connect(config).await.unwrap();
        let table = client.table("accounts").unwrap();
        // Sixteen coroutines, less twelve workers and one for errands.
        let mut open = Vec::new();
        for account in 0..3 {
            let mut txn = client.transaction(Kind::Serializable);
            txn.add_rw(table, account);
            txn.execute().await.unwrap();
            open.push(txn);
        }
        let mut fourth = client.transaction(Kind::Serializable);
        fourth.add_rw(table, 10);
        let busy = fourth.execute().await;
        assert!(matches!(busy, Err(CallError::Failed(Failure::Busy(_)))), "{busy:?}");
        deposit(&client, 11, 1).await.unwrap();
        open.pop();
        let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
        config.timeout = Duration::from_secs(30);
        let patient = Client::connect(config).await.unwrap();
        let mut fourth = patient.transaction(Kind::Serializable);
        fourth.add_rw(table, 10);
        fourth.execute().await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}
