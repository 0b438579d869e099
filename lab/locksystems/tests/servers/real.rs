//! RedLock on real servers: the same client over sockets. Servers are started, killed and stopped
//! by the tests; without a Redis they say so and test nothing.

use std::cell::RefCell;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::Endpoint;
use lotus_fabric::rpc::Rpc;
use lotus_locks::word::Claimant;
use lotus_locks::{Member, Mode, NotHeld, Roster, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::redlock::{Prefix, RedLockClient, RedisError, RedisServers, SocketLink};

use super::platforms::{self, LOAD, Load, LockBackend, OpenCore, Platform};
use super::redis_server::{self, RedisServer};

const PATIENT: Wait = Wait::Until(Nanos::NEVER);
const LOCK: u64 = 3;
const PREFIX: &str = "test";

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The addresses of running servers.
fn addresses(running: &[RedisServer]) -> RedisServers {
    let addresses: Vec<_> = running.iter().map(RedisServer::address).collect();
    let servers =
        RedisServers::new(&addresses, Prefix::New(PREFIX)).expect("each has its own port");
    servers.check().expect("they run");
    servers
}

/// A lane's use of servers, and where it is told of a lost majority.
fn client(
    executor: &Handle,
    servers: &RedisServers,
    lane: u16,
    times: Times,
) -> (RedLockClient, Rc<RefCell<Vec<String>>>) {
    let told = Rc::<RefCell<Vec<String>>>::default();
    let (listener, handle) = (Rc::clone(&told), executor.clone());
    let rng = executor.env().rng(u64::from(lane) | 1 << 48);
    let life = Claimant::new(1, 1);
    let client = RedLockClient::new(executor.clone(), (life, lane), times, rng, |replies| {
        SocketLink::open(servers, &handle, times, replies, move |why| {
            listener.borrow_mut().push(why);
        })
    });
    (client, told)
}

/// Waits for something that comes soon, for half a minute at most.
async fn eventually(executor: &Handle, is_so: impl Fn() -> bool) {
    let until = executor.now().after(Duration::from_secs(30));
    while !is_so() {
        assert!(executor.now() < until, "it does not come");
        executor.sleep(millis(1)).await;
    }
}

/// Servers that keep locks for the loads of all services.
struct RealRedises(RedisServers);

impl LockBackend for RealRedises {
    type Locker = RedLockClient;

    fn cores(&self) -> Vec<(Endpoint, OpenCore)> {
        Vec::new()
    }

    fn client(&self, rpc: Rpc, member: Member, _: &Roster) -> RedLockClient {
        let (executor, at) = (rpc.lane().executor().clone(), rpc.lane().at());
        let rng = executor.env().rng(u64::from(at.node.0) << 32 | u64::from(at.lane.0) | 1 << 48);
        let (handle, servers, times) = (executor.clone(), self.0.clone(), Times::LOCKS);
        RedLockClient::new(executor, (member.life, at.lane.0), times, rng, |replies| {
            SocketLink::open(&servers, &handle, times, replies, |why| panic!("{why}"))
        })
    }

    fn used(&self) -> usize {
        self.0.used().expect("they run")
    }
}

/// The promises of all services, judged as those of others are: exclusion, whole data, free locks,
/// deadlines, requests that are dropped.
#[test]
fn clients_of_real_servers_keep_the_promises_of_the_others() {
    let mixed = Load { refusing: 0.15, hurried: 0.2, dropped: 0.2, hurry: millis(1), ..LOAD };
    for (count, platform) in [(1, Platform::Local), (3, Platform::Local), (3, Platform::Tcp)] {
        let Some(running) = redis_server::start(count) else { return };
        for load in [LOAD, mixed] {
            let backend = RealRedises(addresses(&running));
            let outcome = platforms::run_backend(backend, platform, load);
            assert_eq!(outcome.violations, [""; 0], "{count}, {platform:?}, {load:?}");
            assert_eq!(outcome.used, 0, "{count}, {platform:?}, {load:?}: all keys are deleted");
            assert!(outcome.counts.acquired > 0, "{count}, {platform:?}");
            assert_eq!(outcome.refused > 0, load.refusing > 0.0, "{count}, {platform:?}");
        }
    }
}

#[test]
fn the_key_of_a_holder_that_is_lost_expires() {
    let Some(running) = redis_server::start(1) else { return };
    let servers = addresses(&running);
    let times = Times { ttl: millis(2000), ..Times::LOCKS };
    let mut lost = Executor::new(Env::real(1));
    let began = redis_server::begin();
    let (holder, _) = client(lost.handle(), &servers, 0, times);
    let held = lost.run(holder.acquire(LOCK, Mode::Exclusive, PATIENT)).expect("it is free");
    // Its node is gone with its connections before it has released anything.
    drop(lost);
    drop(held);
    assert_eq!(servers.used().expect("it runs"), 1);

    let mut executor = Executor::new(Env::real(2));
    let (next, _) = client(executor.handle(), &servers, 1, times);
    let (early, late) = executor.run(async {
        let early = next.acquire(LOCK, Mode::Exclusive, Wait::No).await.err();
        (early, next.acquire(LOCK, Mode::Exclusive, PATIENT).await)
    });
    let waited = began.elapsed();
    assert_eq!(early, Some(NotHeld::Conflict));
    // A server counts whole milliseconds of a clock that it does not read for each command.
    assert!(waited >= millis(1995), "{waited:?}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!(executor.run(next.release(late.expect("it expires"))), Ok(()));
    assert_eq!(servers.used().expect("it runs"), 0);
}

#[test]
fn a_holder_that_is_too_late_does_not_delete_the_key_of_the_next_one() {
    let Some(running) = redis_server::start(1) else { return };
    let servers = addresses(&running);
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    let (slow, _) = client(&handle, &servers, 0, Times { ttl: millis(100), ..Times::LOCKS });
    let (next, _) = client(&handle, &servers, 1, Times::LOCKS);
    executor.run(async {
        let first = slow.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        let second = next.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it expires");
        assert!(!slow.is_valid(&first) && next.is_valid(&second));
        let key = format!("GET {PREFIX}:{LOCK}");
        let before = running[0].ask(&key);
        assert_eq!(slow.release(first).await, Err(NotHeld::Reset));
        assert_eq!(running[0].ask(&key), before, "the key is the second's");
        assert!(before.starts_with("$32\r\n"), "{before}");
        assert_eq!(next.release(second).await, Ok(()));
        assert_eq!(running[0].ask(&key), "$-1\r\n");
    });
}

/// Takes a lock again and again on some threads until they are told to stop, and finds whether two
/// ever hold it at once. Meanwhile `meanwhile` runs. Returns the locks held before its end, and
/// after.
fn under_load(servers: &RedisServers, times: Times, meanwhile: impl FnOnce() + Send) -> [u64; 2] {
    const LANES: usize = 3;
    let holders = AtomicU64::new(0);
    let (is_after, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let meanwhile = Mutex::new(Some(meanwhile));
    Env::real(1).in_parallel(LANES + 1, |worker| {
        if worker == LANES {
            let first = counts[0].load(Ordering::Relaxed);
            wait_for(|| counts[0].load(Ordering::Relaxed) > first + 100);
            let meanwhile = meanwhile.lock().expect("nobody panicked").take();
            meanwhile.expect("it is called once")();
            is_after.store(true, Ordering::Relaxed);
            wait_for(|| counts[1].load(Ordering::Relaxed) > 100);
            is_over.store(true, Ordering::Relaxed);
            return;
        }
        let mut executor = Executor::new(Env::real(worker as u64));
        let (client, told) = client(executor.handle(), servers, worker as u16, times);
        executor.run(async {
            while !is_over.load(Ordering::Relaxed) {
                let held = client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
                let held = held.expect("a majority is there");
                let others = holders.fetch_add(1, Ordering::Relaxed);
                assert_eq!(others, 0, "two hold the lock");
                holders.fetch_sub(1, Ordering::Relaxed);
                match client.release(held).await {
                    // The majority that it had may have been lost with the server.
                    Ok(()) | Err(NotHeld::Reset) => {}
                    Err(why) => panic!("a majority is there: {why}"),
                }
                let phase = usize::from(is_after.load(Ordering::Relaxed));
                counts[phase].fetch_add(1, Ordering::Relaxed);
            }
            client.quiet().await;
        });
        assert_eq!(*told.borrow(), [""; 0]);
    });
    counts.map(AtomicU64::into_inner)
}

/// Waits on a thread for what others do, for half a minute at most.
fn wait_for(is_so: impl Fn() -> bool) {
    let begin = redis_server::begin();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it does not come");
        redis_server::pause(millis(1));
    }
}

#[test]
fn one_server_of_three_that_is_killed_in_the_middle_keeps_nobody_from_locks() {
    let Some(mut running) = redis_server::start(3) else { return };
    let servers = addresses(&running);
    let killed = &mut running[1];
    let [before, after] = under_load(&servers, Times::LOCKS, || killed.kill());
    assert!(before > 100 && after > 100, "{before}, {after}");
    assert_eq!(servers.used().expect("the others run"), 0, "all keys are deleted");
}

/// Its connections stay; only its answers are missing.
#[test]
fn one_server_of_three_that_stands_still_keeps_nobody_from_locks() {
    let Some(running) = redis_server::start(3) else { return };
    let servers = addresses(&running);
    let [before, after] = under_load(&servers, Times::LOCKS, || {
        running[2].pause();
        redis_server::pause(Times::LOCKS.patience * 2);
    });
    running[2].resume();
    assert!(before > 100 && after > 100, "{before}, {after}");
    assert_eq!(servers.used().expect("the others run"), 0, "all keys are deleted");
}

#[test]
fn without_two_servers_of_three_nobody_holds_a_lock_and_a_sentence_says_so() {
    let Some(mut running) = redis_server::start(3) else { return };
    let servers = addresses(&running);
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    let (client, told) = client(&handle, &servers, 0, Times::LOCKS);
    executor.run(async {
        let held = client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        running[0].kill();
        let other = client.acquire(LOCK + 1, Mode::Exclusive, PATIENT).await.expect("two are left");
        assert_eq!(client.release(other).await, Ok(()));
        assert_eq!(*told.borrow(), [""; 0], "a majority is there");
        running[2].kill();
        eventually(&handle, || !told.borrow().is_empty()).await;
        let sentence = told.borrow()[0].clone();
        assert!(sentence.starts_with("no majority of redis is left, so no lock is held"));
        for lost in [0, 2] {
            let named = format!("{} is lost (", running[lost].address());
            assert!(sentence.contains(&named), "{sentence}");
        }
        assert_eq!(client.release(held).await, Err(NotHeld::Unavailable));
        for wait in [PATIENT, Wait::No] {
            let refused = client.acquire(LOCK, Mode::Exclusive, wait).await.err();
            assert_eq!(refused, Some(NotHeld::Unavailable));
        }
        assert_eq!(client.counts().acquired, 2);
        client.quiet().await;
    });
    assert_eq!(servers.used().expect("the last one runs"), 0);
}

/// Its connection stays, and it is not asked again and again for what it does not answer.
#[test]
fn a_server_that_is_silent_counts_as_lost_after_a_time() {
    let Some(running) = redis_server::start(1) else { return };
    let servers = addresses(&running);
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    let times = Times { patience: millis(400), ..Times::LOCKS };
    let (client, told) = client(&handle, &servers, 0, times);
    executor.run(async {
        let held = client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        running[0].pause();
        let paused = handle.now();
        assert_eq!(client.release(held).await, Err(NotHeld::Unavailable));
        assert!(handle.now() >= paused.after(times.patience), "it may answer yet");
        client.quiet().await;
    });
    running[0].resume();
    let address = running[0].address();
    let expected = format!("{address} is lost (it has been silent for 400ms)");
    assert!(told.borrow()[0].ends_with(&expected), "{told:?}");
}

/// It has lost its keys, and must not give them to others while their holders rely on them.
#[test]
fn a_server_that_comes_back_counts_again_once_its_keys_would_have_expired() {
    let Some(mut running) = redis_server::start(3) else { return };
    let servers = addresses(&running);
    let times = Times { ttl: Duration::from_secs(4), ..Times::LOCKS };
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    let (client, told) = client(&handle, &servers, 0, times);
    executor.run(async {
        let held = client.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        let lost = handle.now();
        running[0].kill();
        running[0].start_again();
        // The client could be connected again long since.
        handle.sleep(millis(500)).await;
        running[1].kill();
        eventually(&handle, || !told.borrow().is_empty()).await;
        let early = client.acquire(LOCK, Mode::Exclusive, PATIENT).await.err();
        assert!(handle.now() < lost.after(times.ttl), "this machine is too slow for the test");
        assert_eq!(early, Some(NotHeld::Unavailable), "the first server does not count yet");
        // A majority of keys is gone with two servers, one of them for the time being.
        assert_eq!(client.release(held).await, Err(NotHeld::Unavailable));
        let again = loop {
            match client.acquire(LOCK, Mode::Exclusive, Wait::No).await {
                Ok(held) => break held,
                Err(_) => handle.sleep(millis(20)).await,
            }
            assert!(handle.now() < lost.after(Duration::from_secs(30)), "it never counts again");
        };
        assert!(handle.now() >= lost.after(times.ttl), "its keys might not have expired");
        assert_eq!(client.release(again).await, Ok(()));
        client.quiet().await;
    });
}

/// A server that has restarted has lost its keys, and a client that was not connected to it before
/// cannot know that from a lost connection. Two of the three servers have the key of a holder; one
/// of those restarts, and a new client is given the lock by it and by the third.
#[test]
fn a_client_that_is_new_to_a_server_without_its_keys_is_given_nothing_by_it() {
    let Some(mut running) = redis_server::start(3) else { return };
    let servers = addresses(&running);
    let times = Times { ttl: Duration::from_secs(3), ..Times::LOCKS };
    // Another client tries for the lock at the same time, and gives up.
    running[2].ask(&format!("SET {PREFIX}:{LOCK} other NX PX 60000"));
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    let (holder, _) = client(&handle, &servers, 0, times);
    executor.run(async {
        let held = holder.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("two give it");
        running[2].ask(&format!("DEL {PREFIX}:{LOCK}"));
        running[1].kill();
        running[1].start_again();
        let (next, told) = client(&handle, &servers, 1, times);
        while holder.is_valid(&held) {
            let given = next.acquire(LOCK, Mode::Exclusive, Wait::No).await;
            assert!(given.is_err() || !holder.is_valid(&held), "two hold the lock");
            handle.sleep(millis(10)).await;
        }
        assert_eq!(*told.borrow(), [""; 0], "a majority is there");
        let given = next.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("the key expires");
        assert_eq!(next.release(given).await, Ok(()));
        assert_eq!(holder.release(held).await, Err(NotHeld::Reset));
    });
}

/// A process that is new to a prefix knows nothing of what its servers have lost: they count once
/// they have been up for as long as keys live. One that has made the prefix finds them in the life
/// that saw its first key.
#[test]
fn a_prefix_that_others_use_is_had_of_servers_that_have_been_up_for_long() {
    let Some(mut running) = redis_server::start(1) else { return };
    let (own, times) = (addresses(&running), Times { ttl: millis(1500), ..Times::LOCKS });
    let used = RedisServers::new(&[running[0].address()], Prefix::Used(PREFIX));
    let used = used.expect("it is one");
    let mut executor = Executor::new(Env::real(1));
    let handle = executor.handle().clone();
    executor.run(async {
        let (holder, _) = client(&handle, &own, 0, times);
        let began = handle.now();
        let held = holder.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it is free");
        running[0].kill();
        running[0].start_again();
        used.check().expect("it can keep locks");
        let (next, told) = client(&handle, &used, 1, times);
        let early = next.acquire(LOCK, Mode::Exclusive, PATIENT).await.err();
        assert_eq!(early, Some(NotHeld::Unavailable), "it may have lost the key, and has");
        let sentence = told.borrow()[0].clone();
        let expected = " s, and may have lost keys before)";
        assert!(sentence.contains("is lost (it has been up for "), "{sentence}");
        assert!(sentence.ends_with(expected), "{sentence}");
        let given = loop {
            match next.acquire(LOCK, Mode::Exclusive, Wait::No).await {
                Ok(given) => break given,
                Err(_) => handle.sleep(millis(20)).await,
            }
            assert!(handle.now() < began.after(Duration::from_secs(30)), "it never counts");
        };
        assert!(handle.now() >= began.after(times.ttl), "the lock is the first holder's");
        assert!(!holder.is_valid(&held));
        assert_eq!(next.release(given).await, Ok(()));
        // It has been up for long enough to others, too.
        let (last, told) = client(&handle, &used, 2, times);
        let given = last.acquire(LOCK, Mode::Exclusive, PATIENT).await.expect("it counts");
        assert_eq!(last.release(given).await, Ok(()));
        assert_eq!(*told.borrow(), [""; 0]);
    });
}

#[test]
fn servers_that_are_not_there_or_no_redis_are_refused_in_a_sentence() {
    let check = |address| {
        RedisServers::new(&[address], Prefix::New(PREFIX)).and_then(|found| found.check())
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address: SocketAddr = listener.local_addr().expect("it is bound");
    let other = Env::real(1).spawn("no redis", move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("it is there");
        redis_server::pause(millis(100));
    });
    let error = check(address).expect_err("it is no redis").to_string();
    let expected = format!("redis at {address} cannot keep locks: it does not speak as a Redis");
    assert!(error.starts_with(&expected), "{error}");
    other.expect("a thread").join().expect("no panic");

    let error = check(address).expect_err("nobody is there").to_string();
    assert!(error.starts_with(&format!("redis does not answer at {address}: ")), "{error}");
    let twice = RedisServers::new(&[address, address], Prefix::New(PREFIX)).expect_err("it is one");
    assert_eq!(twice.to_string(), format!("the server of redis at {address} is named twice"));
    assert!(matches!(RedisServers::new(&[], Prefix::Used(PREFIX)), Err(RedisError::None)));

    let Some(closed) = RedisServer::start(&["--requirepass", "secret"]) else { return };
    let error = check(closed.address()).expect_err("it wants a password").to_string();
    assert!(error.contains("cannot keep locks: it refuses: NOAUTH"), "{error}");
}
