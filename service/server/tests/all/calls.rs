//! Stored transactions, called from outside.

use std::time::Duration;

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::Cluster;
use lotus_client::{CallError, CallId, Effect, Failure};

#[test]
fn a_call_takes_effect_and_returns_its_result() {
    let bank = Bank::open(2);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for from in 0..ACCOUNTS {
            let to = (from + 1) % ACCOUNTS;
            let call = client.call("transfer", &(from, to, 1_u64)).at(table, from);
            let left: u64 = call.await.unwrap();
            assert!(left >= INITIAL - 1);
        }
        assert_eq!(balance(&client, 7).await.unwrap(), INITIAL);
        assert_eq!(client.table("lotus.calls"), None);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn errors_arrive_where_they_belong() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let rejected = client.call::<_, u64>("transfer", &(1_u64, 2_u64, 5_000_u64)).await;
        let Err(CallError::Rejected(rejection)) = rejected else { panic!("{rejected:?}") };
        assert_eq!(rejection.decode::<String>().unwrap(), format!("has {INITIAL}"));
        let unknown = client.call::<_, u64>("no such", &1_u64).await;
        assert!(matches!(unknown, Err(CallError::Failed(Failure::UnknownProcedure))));
        let arguments = client.call::<_, u64>("balance", &()).await;
        assert!(matches!(arguments, Err(CallError::Failed(Failure::Arguments(_)))));
        let longer = client.call::<_, u64>("balance", &(1_u64, 2_u64)).await;
        assert!(matches!(longer, Err(CallError::Failed(Failure::Arguments(_)))));
        let result = client.call::<_, (u64, u64)>("balance", &1_u64).await;
        assert!(matches!(result, Err(CallError::Result(_))));
        let missing = client.call::<_, u64>("balance", &9_999_u64).await;
        assert!(matches!(missing, Err(CallError::Failed(Failure::Refused(_)))));
        let panicked = client.call::<_, ()>("panic", &1_u64).await;
        assert!(matches!(panicked, Err(CallError::Failed(Failure::Panicked))));
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// The effect that each error reports is what happened to the account. Regression: a result that
/// did not decode was called an error that changes nothing, and its deposit had been made.
#[test]
fn what_an_error_says_of_its_effect_is_true() {
    let bank = Bank::open_with(1, |config| config.call_records.row_bytes = 256);
    run(async {
        let client = bank.client().await;
        let one = || (1_u64, 1_u64);
        let deposit = || client.call::<_, u64>("deposit", &one());
        deposit().idempotent(7).await.unwrap();
        assert_eq!(client.outcome::<u64>(CallId::from(8)).await.unwrap(), None);
        let mut after = INITIAL + 1;
        let ended = [
            client.call::<_, Vec<String>>("deposit", &one()).await.map(drop),
            client.call::<_, Vec<String>>("deposit", &one()).idempotent(9).await.map(drop),
            client.call::<_, u64>("deposit", &1_u64).await.map(drop),
            client.call::<_, u64>("no such", &one()).await.map(drop),
            client.call::<_, u64>("transfer", &(1_u64, 2_u64, 5_000_u64)).await.map(drop),
            client.call::<_, ()>("panic", &1_u64).await,
            client.call::<_, ()>("stall", &1_u64).timeout(Duration::from_millis(50)).await,
            // Too long for a record, which is part of what would be committed.
            client.call::<_, Vec<u8>>("deposit for bytes", &one()).idempotent(10).await.map(drop),
            client.call::<_, u64>("deposit", &(1_u64, 2_u64)).idempotent(7).await.map(drop),
            deposit().idempotent(8).await.map(drop),
        ];
        let mut seen = Vec::new();
        for error in ended.map(Result::unwrap_err) {
            let effect = error.effect();
            seen.push(effect);
            after += u64::from(effect == Effect::Committed);
            assert_ne!(effect, Effect::Unknown, "{error:?}");
        }
        assert_eq!(balance(&client, 1).await.unwrap(), after, "{seen:?}");
        assert_eq!(seen.iter().filter(|effect| **effect == Effect::Committed).count(), 2);
        // A call's outcome is known even where its result does not decode.
        let known = client.outcome::<Vec<String>>(CallId::from(9)).await.unwrap_err();
        assert_eq!(known.effect(), Effect::Committed, "{known:?}");
        assert_eq!(deposit().idempotent(9).await.unwrap(), after, "it is the same call");
        drop(bank.servers);
        let nobody = client.outcome::<u64>(CallId::from(11)).await.unwrap_err();
        assert_eq!(nobody.effect(), Effect::Unknown, "{nobody:?}");
        assert_eq!(deposit().await.unwrap_err().effect(), Effect::Nothing);
    });
}

#[test]
fn a_call_that_takes_too_long_ends_and_leaves_no_lock() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let stalled = client.call::<_, ()>("stall", &3_u64).timeout(Duration::from_millis(50));
        assert!(matches!(stalled.await, Err(CallError::Failed(Failure::Timeout))));
        let after: u64 = client.call("deposit", &(3_u64, 1_u64)).await.unwrap();
        assert_eq!(after, INITIAL + 1);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

/// Regression: a worker's alarm had gone off, and was asked again by the next call: the worker died
/// of it, and its place was lost. Here there is only one worker, which is late several times.
#[test]
fn a_worker_outlives_calls_that_are_late() {
    let bank = Bank::open_with(1, |config| config.workers = Some(1));
    run(async {
        let client = bank.client().await;
        for _ in 0..3 {
            let stalled = client.call::<_, ()>("stall", &3_u64).timeout(Duration::from_millis(20));
            let stalled = stalled.await;
            assert!(matches!(stalled, Err(CallError::Failed(Failure::Timeout))), "{stalled:?}");
        }
        let call = client.call::<_, u64>("deposit", &(3_u64, 1_u64));
        call.timeout(Duration::from_secs(30)).await.unwrap();
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

#[test]
fn conflicts_are_retried_at_the_server_until_time_is_up() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let holder = client.clone();
        let stall = tokio::spawn(async move {
            let stalled = holder.call::<_, ()>("stall", &3_u64);
            stalled.timeout(Duration::from_millis(500)).await
        });
        // Repeats until the lock is held: then a call that has little time meets it.
        let conflict = loop {
            let call = client.call::<_, u64>("deposit", &(3_u64, 0_u64));
            match call.timeout(Duration::from_millis(20)).await {
                Err(CallError::Failed(failure)) => break failure,
                other => assert!(other.is_ok(), "{other:?}"),
            }
            tokio::task::yield_now().await;
        };
        assert!(matches!(conflict, Failure::Conflict(_) | Failure::Timeout), "{conflict:?}");
        // A call that has more time gets through when the holder's time is up.
        let deposit = client.call::<_, u64>("deposit", &(3_u64, 1_u64));
        let after = deposit.timeout(Duration::from_secs(30)).await.unwrap();
        assert_eq!(after, INITIAL + 1);
        assert!(stall.await.unwrap().is_err());
    });
    bank.audit();
}

#[test]
fn many_calls_share_a_connection() {
    many_calls(Bank::open(2));
}

/// A connection belongs to one coordinator; the others take over what it cannot do alone.
#[test]
fn many_calls_on_a_connection_are_shared_by_coordinators() {
    let builder = Cluster::embedded().threads(3).memory_nodes(1).replicas(1);
    many_calls(Bank::over(builder.lock_table_bytes(1 << 16).start().unwrap(), |config| {
        config.workers = Some(1);
    }));
}

fn many_calls(bank: Bank) {
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let mut tasks = Vec::new();
        for task in 0..128_u64 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                for step in 0..10 {
                    let account = (task + step) % ACCOUNTS;
                    let call = client.call::<_, u64>("deposit", &(account, 1_u64));
                    call.at(table, account).timeout(Duration::from_secs(30)).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1_280);
}

#[test]
fn a_call_with_an_id_takes_effect_once() {
    let bank = Bank::open(2);
    run(async {
        let client = bank.client().await;
        // All at once, and at any node.
        let calls = (0..16).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let call = client.call::<_, u64>("deposit", &(5_u64, 10_u64)).idempotent(42);
                call.timeout(Duration::from_secs(30)).await
            })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap().unwrap(), INITIAL + 10);
        }
        assert_eq!(balance(&client, 5).await.unwrap(), INITIAL + 10);
        let other = client.call::<_, u64>("deposit", &(5_u64, 11_u64)).idempotent(42).await;
        assert!(matches!(other, Err(CallError::Failed(Failure::IdTaken))));
        // A rejected call was not carried out, and may be tried again with the same id.
        let poor =
            |sum: u64| client.call::<_, u64>("transfer", &(5_u64, 6_u64, sum)).idempotent(43);
        assert!(matches!(poor(5_000).await, Err(CallError::Rejected(_))));
        assert_eq!(poor(10).await.unwrap(), INITIAL);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 10);
}

#[test]
fn an_outcome_is_for_good() {
    let bank = Bank::open(2);
    run(async {
        let client = bank.client().await;
        let (done, never) = (CallId::from(1), CallId::from(2));
        let after = client.call::<_, u64>("deposit", &(5_u64, 10_u64)).idempotent(done).await;
        assert_eq!(client.outcome::<u64>(done).await.unwrap(), Some(after.unwrap()));
        assert_eq!(client.outcome::<u64>(never).await.unwrap(), None);
        let late = client.call::<_, u64>("deposit", &(5_u64, 10_u64)).idempotent(never).await;
        assert!(matches!(late, Err(CallError::Failed(Failure::GivenUp))));
        assert_eq!(client.outcome::<u64>(never).await.unwrap(), None);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 10);
}

#[test]
fn a_row_of_records_takes_no_more_than_it_has_room_for() {
    let bank = Bank::open_with(1, |config| {
        config.call_records.rows = 1;
        config.call_records.row_bytes = 128;
    });
    run(async {
        let client = bank.client().await;
        let deposit = |id: u128| {
            let call = client.call::<_, u64>("deposit", &(5_u64, 1_u64)).idempotent(id);
            // On a busy machine an answer may take a while.
            call.timeout(Duration::from_secs(1))
        };
        let mut accepted = 0;
        let refused = loop {
            match deposit(accepted).await {
                Ok(_) => accepted += 1,
                Err(error) => break error,
            }
        };
        // The client keeps asking as long as it has time.
        assert!(matches!(refused, CallError::Failed(Failure::Busy(_))), "{refused:?}");
        assert!((2..8).contains(&accepted), "{accepted}");
        assert_eq!(balance(&client, 5).await.unwrap(), INITIAL + accepted as u64);
    });
    bank.audit();
}

#[test]
fn the_loss_of_a_server_is_survived() {
    let mut bank = Bank::open(2);
    let client = run(async {
        let client = bank.client().await;
        balance(&client, 1).await.unwrap();
        client
    });
    drop(client);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        for account in 0..8 {
            let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
            call.await.unwrap();
        }
        // Its compute node still grants locks; only the server is gone.
        let gone = bank.servers.remove(1);
        tokio::task::spawn_blocking(move || gone.stop()).await.unwrap().unwrap();
        for account in 0..8 {
            let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
            // Without an id the outcome of the call that notices first would be unknown.
            let call = call.idempotent(u128::from(account));
            call.timeout(Duration::from_secs(30)).await.unwrap();
        }
        let gone = bank.servers.remove(0);
        tokio::task::spawn_blocking(move || gone.stop()).await.unwrap().unwrap();
        // The outcome is unknown if the connection's end is noticed after the call was sent.
        let nobody = loop {
            let call = client.call::<_, u64>("deposit", &(1_u64, 1_u64)).idempotent(9_u128);
            match call.timeout(Duration::from_millis(100)).await {
                Err(CallError::Unknown) => {}
                other => break other,
            }
        };
        assert!(matches!(nobody, Err(CallError::Unreachable(_))), "{nobody:?}");
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 16);
}
