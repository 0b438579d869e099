//! Clients that are let in and ask for more than their share. The node goes on beating, others are
//! served, and what is held for all of them is bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::raw::{PATIENCE, Raw, blob};
use crate::common::{ACCOUNTS, Bank, INITIAL, balance, get, run, value};
use lotus::{Cluster, MAX_RECORD_BYTES, TableSpec};
use lotus_client::{CallError, Effect, Failure, Kind};
use lotus_fabric::env::Env;
use lotus_protocol::messages::{self, Answer, Excess, Op, RESULT_BYTES, ScarceResource, decode};

/// Lease of the compute nodes: longer than a loaded machine makes them silent.
const LEASE: Duration = Duration::from_secs(4);
/// Time for which the greedy clients go on.
const GREED: Duration = Duration::from_secs(6);

/// Requests for the directory, tens of thousands of them.
fn directories() -> Vec<u8> {
    let mut requests = Vec::new();
    (0..8_000).for_each(|number| messages::send(&mut requests, number, &Op::Directory));
    requests
}

/// Asks for the directory again and again until told to stop, and reads the answers if `reads`.
fn hammer(address: SocketAddr, reads: bool, stop: &AtomicBool) {
    let raw = Raw::admitted(address);
    let requests = directories();
    let short = Some(Duration::from_millis(20));
    raw.stream.set_write_timeout(short).unwrap();
    raw.stream.set_read_timeout(short).unwrap();
    let (mut input, mut output) = (raw.stream.try_clone().unwrap(), raw.stream);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; 1 << 20];
            while reads && !stop.load(Ordering::Relaxed) {
                // An error means that nothing has come in time, or that the connection is closed.
                let _ = input.read(&mut bytes);
            }
        });
        let mut at = 0;
        while !stop.load(Ordering::Relaxed) {
            match output.write(&requests[at..]) {
                Ok(count) => at = (at + count) % requests.len(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    });
}

/// Tells the greedy clients to stop when dropped, also if the test has failed.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A bank of two compute nodes that watch each other.
fn watched(metrics: &Mutex<Option<TcpListener>>) -> Bank {
    let builder = Cluster::embedded().compute_nodes(2).memory_nodes(1).replicas(1);
    let cluster = builder.lock_table_bytes(1 << 16).lease(Some(LEASE)).start().unwrap();
    Bank::over(cluster, |config| {
        // No connection is closed meanwhile.
        config.limits.write_patience = 2 * PATIENCE;
        config.limits.held_in_all_bytes = 4 << 20;
        config.metrics = metrics.lock().unwrap().take();
    })
}

/// Regression: four connections asked for the directory as fast as they could. They were read and
/// answered without limit, by the thread that has to say that the node lives: it was expelled after
/// a few seconds, and the unread answers had grown by 40 MB in each of them.
#[test]
fn clients_that_ask_without_limit_neither_silence_the_node_nor_fill_its_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let bank = watched(&Mutex::new(Some(listener)));
    let (stop, address) = (AtomicBool::new(false), bank.servers[0].address());
    let env = Env::real(0);
    let mut most_held = 0.0_f64;
    let figures = |name: &str| value(&get(at, "/metrics"), name);
    let limit = figures("lotus_client_bytes_limit");
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for reads in [true, true, false, false, false, false, false, false] {
            let stop = &stop;
            scope.spawn(move || hammer(address, reads, stop));
        }
        let began = env.now();
        run(async {
            let client = bank.client().await;
            while env.now().since(began) < GREED {
                for account in 0..10 {
                    assert_eq!(balance(&client, account).await.unwrap(), INITIAL);
                }
                most_held = most_held.max(figures("lotus_client_bytes_held"));
            }
        });
    });
    // Each connection may have a batch of answers more than there was room for.
    let slack = 8.0 * 64.0 * 32_768.0;
    assert!(most_held > 0.0 && most_held < limit + slack, "{most_held} of {limit}");
    for node in 0..2 {
        let figures = bank.cluster.node_figures(node);
        assert!(figures.takes_part && figures.expelled == 0, "{figures:?}");
    }
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// Regression: a client that reads a little now and then was never closed: each time it made room
/// for a write.
#[test]
fn who_reads_too_slowly_is_closed_however_steadily() {
    let bank = Bank::open_with(1, |config| {
        config.limits.write_patience = Duration::from_millis(500);
        config.limits.progress_bytes = 1 << 20;
    });
    let raw = Raw::admitted(bank.servers[0].address());
    raw.stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut input, mut output) = (raw.stream.try_clone().unwrap(), raw.stream);
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 16 << 10];
            // About three quarters of what it has to read.
            while !closed.load(Ordering::Relaxed) && input.read(&mut bytes).is_ok() {
                std::thread::park_timeout(Duration::from_millis(10));
            }
        });
        let (request, env) = (blob(128 << 10), Env::real(0));
        let began = env.now();
        let error = loop {
            match output.write_all(&request) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => break Some(error),
                _ if env.now().since(began) > PATIENCE => break None,
                _ => {}
            }
        };
        closed.store(true, Ordering::Relaxed);
        assert!(error.is_some(), "the server keeps the connection");
    });
}

#[test]
fn who_begins_a_request_and_does_not_go_on_is_closed() {
    let bank = Bank::open_with(1, |config| {
        config.limits.write_patience = Duration::from_millis(200);
    });
    let mut raw = Raw::admitted(bank.servers[0].address());
    raw.stream.write_all(&(100_000_u32).to_le_bytes()).unwrap();
    // A byte at a time, often enough for any server that looks only for signs of life.
    let env = Env::real(0);
    let began = env.now();
    while raw.stream.write_all(&[0]).is_ok() {
        assert!(env.now().since(began) < PATIENCE, "the server keeps the connection");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_has_not_read_is_told_to_come_back_and_nothing_is_lost() {
    const BYTES: u64 = 128 << 10;
    const CALLS: usize = 200;
    const HELD: usize = 256 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Mutex::new(Some(listener));
    let bank = Bank::open_with(1, |config| {
        config.limits.held_bytes = HELD;
        config.metrics = metrics.lock().unwrap().take();
    });
    let held = || value(&get(at, "/metrics"), "lotus_client_bytes_held") as usize;
    let at_once = bank.cluster.config().threads * bank.cluster.config().coroutines;
    let mut raw = Raw::admitted(bank.servers[0].address());
    let requests: Vec<u8> = (0..CALLS).flat_map(|_| blob(BYTES)).collect();
    let (mut done, mut busy) = (0, 0);
    std::thread::scope(|scope| {
        let mut output = raw.stream.try_clone().unwrap();
        scope.spawn(move || output.write_all(&requests).unwrap());
        // All work that needs no reading is done soon.
        for _ in 0..50 {
            std::thread::park_timeout(Duration::from_millis(10));
            assert!(held() <= HELD + at_once * BYTES as usize, "{} are held", held());
        }
        for _ in 0..CALLS {
            let frame = raw.next().expect("an answer to each");
            match decode(messages::split(&frame).unwrap().1).unwrap() {
                Answer::Done(_) => done += 1,
                Answer::Failed(Failure::Busy(ScarceResource::Answers)) => busy += 1,
                other => panic!("{other:?}"),
            }
        }
    });
    assert!(done >= 2 && done + busy == CALLS, "{done} done, {busy} busy");
    // The client library repeats by itself.
    run(async {
        let client = bank.client().await;
        let call = |_| client.call::<_, Vec<u8>>("blob", &BYTES).timeout(2 * PATIENCE).send();
        let calls = (0..64).map(call);
        let calls: Vec<_> = calls.map(tokio::spawn).collect();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().len(), BYTES as usize);
        }
    });
}

#[test]
fn a_step_that_asks_for_too_much_is_refused_with_what_is_too_much() {
    const ROWS: usize = 90_000;
    let bank = Bank::open_with(1, |config| {
        config.limits.rows = ROWS;
        config.limits.request_bytes = 4 << 20;
        config.limits.hold = Duration::from_secs(20);
    });
    let spec = TableSpec::new("wide").record_bytes(MAX_RECORD_BYTES).capacity(10);
    let wide = bank.cluster.create_table(spec).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.resize(MAX_RECORD_BYTES as usize, 7);
        row.into()
    };
    bank.cluster.load(wide, 2, &row, &AtomicU64::new(0)).unwrap();
    run(async {
        let client = bank.client().await;
        let too_large = |outcome: Result<(), CallError>| match outcome {
            Err(error @ CallError::Failed(Failure::TooLarge { .. })) => {
                assert_eq!(error.effect(), Effect::Nothing);
                let CallError::Failed(Failure::TooLarge { excess, limit }) = error else {
                    unreachable!()
                };
                (excess, limit as usize)
            }
            other => panic!("{other:?}"),
        };
        let step = |rows: usize| {
            let mut txn = client.transaction(Kind::Serializable);
            let written = txn.add_rw(bank.table, 1_u64);
            txn.put(written, 5_u64.to_le_bytes());
            (1..rows).for_each(|_| _ = txn.add_ro(bank.table, 2_u64));
            txn
        };
        assert_eq!(too_large(step(ROWS + 1).execute().await), (Excess::Rows, ROWS));
        let long = |rows: usize| {
            let mut txn = step(1);
            (0..rows).for_each(|_| _ = txn.add_ro(wide, 1_u64));
            txn
        };
        let (most, answer) =
            (RESULT_BYTES / MAX_RECORD_BYTES as usize, (Excess::AnswerBytes, RESULT_BYTES));
        assert_eq!(too_large(long(most + 1).execute().await), answer);
        // Locks of what was dropped are released a little later.
        while let Err(error) = long(most - 1).execute().await {
            assert!(error.is_retryable(), "{error}");
        }
        // In steps, all of them may be read. The client divides what is longer than a request.
        while let Err(error) = step(ROWS).execute().await {
            assert!(error.is_retryable(), "{error}");
        }
        let mut txn = step(1000);
        while let Err(error) = txn.execute().await {
            assert!(error.is_retryable(), "{error}");
            txn = step(1000);
        }
        // Refused steps have changed nothing and hold no lock.
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
        txn.commit().await.unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), 5);
    });
}

#[test]
fn a_result_that_fits_in_no_answer_is_refused_before_the_commit() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let long = client.call::<_, Vec<u8>>("blob", &(RESULT_BYTES as u64)).await;
        assert!(matches!(long, Err(CallError::Failed(Failure::Result(_)))), "{long:?}");
        // The connection still works.
        let fits = RESULT_BYTES as u64 - 3;
        assert_eq!(client.call::<_, Vec<u8>>("blob", &fits).await.unwrap().len() as u64, fits);
    });
}
