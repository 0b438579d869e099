//! Tests of the executor, on the machine's clock.

use super::*;
use crate::run::env::Clock;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;

fn executor() -> Executor {
    Executor::new(Env::real(0))
}

#[test]
fn tasks_take_turns() {
    let mut executor = executor();
    let handle = executor.handle().clone();
    let order = Rc::new(RefCell::new(Vec::new()));
    for task in 0..2 {
        let (handle, order) = (handle.clone(), Rc::clone(&order));
        executor.handle().spawn(async move {
            for step in 0..2 {
                order.borrow_mut().push((step, task));
                handle.yield_now().await;
            }
        });
    }
    while executor.live_tasks() > 0 {
        assert!(executor.turn());
    }
    assert_eq!(*order.borrow(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// A clock that moves when a test moves it.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Regression: 256 requests of one client that came at once kept a node from beating: 13 s on a
/// busy machine, and the node was expelled.
#[test]
fn a_task_whose_time_has_come_does_not_wait_for_all_who_are_ready() {
    let clock = Arc::new(Hand(AtomicU64::new(1_000_000)));
    let mut executor = Executor::new(Env::with_clock(Arc::clone(&clock) as Arc<dyn Clock>, 0));
    let woken = Rc::new(Cell::new(None));
    let (handle, at) = (executor.handle().clone(), Rc::clone(&woken));
    let began = handle.now();
    executor.handle().spawn(async move {
        handle.sleep(Duration::from_millis(5)).await;
        at.set(Some(handle.now().since(began)));
    });
    executor.turn();
    for _ in 0..256 {
        let clock = Arc::clone(&clock);
        executor.handle().spawn(async move {
            clock.0.fetch_add(1_000_000, Ordering::Relaxed);
        });
    }
    executor.turn();
    let late = woken.get().expect("its time has come");
    assert!(late <= Duration::from_millis(POLLS_PER_TIMER_LOOK as u64), "{late:?}");
    assert_eq!(executor.live_tasks(), 0);
}

/// Driver that counts its calls.
struct Driven(Rc<Cell<u32>>);

impl Driver for Driven {
    fn drive(&mut self) -> bool {
        self.0.set(self.0.get() + 1);
        false
    }

    fn has_input(&self) -> bool {
        false
    }
}

#[test]
fn drivers_come_after_those_who_yield_but_do_not_wait_for_ever() {
    let mut executor = executor();
    let driven = Rc::new(Cell::new(0));
    executor.add_driver(Driven(Rc::clone(&driven)));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (handle, at) = (executor.handle().clone(), Rc::clone(&seen));
    executor.handle().spawn(async move {
        for _ in 0..=ROUNDS_PER_TURN {
            at.borrow_mut().push(driven.get());
            handle.yield_now().await;
        }
    });
    while executor.live_tasks() > 0 {
        assert!(executor.turn_of_rounds(ROUNDS_PER_TURN));
    }
    assert_eq!(*seen.borrow(), [0, 0, 0, 0, 1]);
}

#[test]
fn a_wake_from_another_thread_ends_a_park() {
    let mut executor = executor();
    let (sender, receiver) = async_channel::bounded::<u32>(1);
    let env = executor.handle().env().clone();
    let thread = env.spawn("sender", move || {
        std::thread::park_timeout(Duration::from_millis(20));
        sender.send_blocking(7)
    });
    assert_eq!(executor.run(async move { receiver.recv().await }), Ok(7));
    thread.expect("spawns").join().expect("no panic").expect("received");
}

#[test]
fn timers_fire_in_order_and_not_early() {
    let mut executor = executor();
    let handle = executor.handle().clone();
    let start = handle.now();
    let later = handle.clone();
    let end = executor.run(async move {
        later.sleep(Duration::from_millis(3)).await;
        later.now()
    });
    assert!(end.since(start) >= Duration::from_millis(3));
}

#[test]
fn a_finished_task_leaves_its_place_to_the_next() {
    let mut executor = executor();
    let first = executor.handle().spawn(async {});
    executor.turn();
    assert_eq!(executor.live_tasks(), 0);
    assert_eq!(executor.handle().spawn(async {}), first);
}

#[test]
fn an_executor_drops_its_futures_though_they_hold_handles_on_it() {
    let executor = executor();
    let (alive, handle) = (Rc::new(()), executor.handle().clone());
    for _ in 0..3 {
        let (alive, handle) = (Rc::clone(&alive), handle.clone());
        executor.handle().spawn(async move {
            handle.suspend().await;
            drop(alive);
        });
    }
    drop(executor);
    assert_eq!(Rc::strong_count(&alive), 1);
}

/// Spawns a task when it is dropped, like locks whose release is a task of its own.
struct BeginsAnother {
    handle: Handle,
    kept: Rc<()>,
}

impl Drop for BeginsAnother {
    fn drop(&mut self) {
        let (handle, kept) = (self.handle.clone(), Rc::clone(&self.kept));
        self.handle.spawn(async move {
            handle.suspend().await;
            drop(kept);
        });
    }
}

#[test]
fn an_executor_drops_also_what_is_begun_while_it_drops_futures() {
    let mut executor = executor();
    let kept = Rc::new(());
    let handle = executor.handle().clone();
    // The slot of an ended task, before the slot of the task that spawns another.
    handle.spawn(async {});
    let last = BeginsAnother { handle: handle.clone(), kept: Rc::clone(&kept) };
    executor.handle().spawn(async move {
        handle.suspend().await;
        drop(last);
    });
    executor.turn();
    drop(executor);
    assert_eq!(Rc::strong_count(&kept), 1);
}

/// Both ends of a connection: one adopted by a task, the other outside.
fn connection(executor: &Executor) -> (Socket, TcpStream) {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let outside = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (executor.handle().adopt(stream).unwrap(), outside)
}

#[test]
fn a_sleeping_executor_is_woken_by_what_comes_and_by_other_threads() {
    let mut executor = executor();
    let (mut socket, mut outside) = connection(&executor);
    let (sender, receiver) = async_channel::bounded::<u32>(1);
    let env = executor.handle().env().clone();
    let thread = env.spawn("outside", move || {
        std::thread::park_timeout(Duration::from_millis(20));
        outside.write_all(b"word").unwrap();
        let mut answer = [0; 4];
        outside.read_exact(&mut answer).unwrap();
        std::thread::park_timeout(Duration::from_millis(20));
        sender.send_blocking(7).unwrap();
        answer
    });
    let (came, told) = executor.run(async move {
        let mut came = Vec::with_capacity(64);
        let count = std::future::poll_fn(|_| socket.poll_read(&mut came)).await.unwrap();
        let sent = std::future::poll_fn(|_| socket.poll_write(&came[..count])).await.unwrap();
        assert_eq!(sent, count);
        let told = receiver.recv().await;
        // The other end is closed, or about to be.
        let end = std::future::poll_fn(|_| socket.poll_read(&mut came)).await;
        assert!(matches!(end, Ok(0)), "{end:?}");
        (came, told)
    });
    assert_eq!((&came[..], told), (&b"word"[..], Ok(7)));
    assert_eq!(&thread.expect("spawns").join().expect("no panic"), b"word");
}

/// The last bytes and the end come in one event; the end has no event of its own.
#[test]
fn the_end_is_noticed_that_came_with_the_last_words() {
    let mut executor = executor();
    let (mut socket, mut outside) = connection(&executor);
    let handle = executor.handle().clone();
    let end = executor.run(async move {
        let mut came = Vec::with_capacity(64);
        assert!(socket.poll_read(&mut came).is_pending(), "nothing has come");
        outside.write_all(b"word").unwrap();
        drop(outside);
        let count = std::future::poll_fn(|_| socket.poll_read(&mut came)).await.unwrap();
        assert_eq!(&came[..count], b"word");
        for _ in 0..10_000 {
            if let Poll::Ready(end) = socket.poll_read(&mut came) {
                return Some(end.unwrap());
            }
            handle.yield_now().await;
        }
        None
    });
    assert_eq!(end, Some(0));
}

#[test]
fn a_socket_of_this_host_is_read_and_written_like_others() {
    let mut executor = executor();
    let (own, mut outside) = UnixStream::pair().unwrap();
    let mut socket = executor.handle().adopt(own).unwrap();
    let env = executor.handle().env().clone();
    let thread = env.spawn("outside", move || {
        std::thread::park_timeout(Duration::from_millis(20));
        outside.write_all(b"word").unwrap();
        let mut answer = [0; 4];
        outside.read_exact(&mut answer).unwrap();
        answer
    });
    executor.run(async move {
        let mut came = Vec::with_capacity(64);
        assert!(socket.poll_read(&mut came).is_pending(), "it does not wait in the kernel");
        let count = std::future::poll_fn(|_| socket.poll_read(&mut came)).await.unwrap();
        let sent = std::future::poll_fn(|_| socket.poll_write(&came[..count])).await.unwrap();
        assert_eq!(sent, count);
        let end = std::future::poll_fn(|_| socket.poll_read(&mut came)).await;
        assert!(matches!(end, Ok(0)), "{end:?}");
    });
    assert_eq!(&thread.expect("spawns").join().expect("no panic"), b"word");
}

#[test]
fn a_socket_that_takes_no_more_is_written_to_again_when_it_does() {
    const BYTES: usize = 32 << 20;
    let mut executor = executor();
    let (mut socket, mut outside) = connection(&executor);
    let env = executor.handle().env().clone();
    let reader = env.spawn("outside", move || {
        let mut all = Vec::new();
        outside.read_to_end(&mut all).map(|_| all.len())
    });
    executor.run(async move {
        let bytes = vec![1; BYTES];
        let mut sent = 0;
        while sent < BYTES {
            sent += std::future::poll_fn(|_| socket.poll_write(&bytes[sent..])).await.unwrap();
        }
    });
    assert_eq!(reader.expect("spawns").join().expect("no panic").expect("read"), BYTES);
}

/// Port of this host without a listener, unless another program begins to listen there.
fn port_of_nobody() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn a_connection_that_is_made_meanwhile_is_written_once_it_is_there() {
    let mut executor = executor();
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut socket = executor.handle().connect(listener.local_addr().unwrap()).unwrap();
    let env = executor.handle().env().clone();
    let thread = env.spawn("outside", move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut came = [0; 4];
        stream.read_exact(&mut came).unwrap();
        stream.write_all(b"back").unwrap();
        came
    });
    let came = executor.run(async move {
        let sent = std::future::poll_fn(|_| socket.poll_write(b"word")).await.unwrap();
        assert_eq!(sent, 4);
        let mut came = Vec::with_capacity(64);
        std::future::poll_fn(|_| socket.poll_read(&mut came)).await.unwrap();
        came
    });
    assert_eq!(&thread.expect("spawns").join().expect("no panic"), b"word");
    assert_eq!(came, b"back");
}

#[test]
fn a_connection_that_nobody_accepts_fails_when_it_is_used() {
    let mut executor = executor();
    let handle = executor.handle().clone();
    let error = executor.run(async move {
        let mut socket = handle.connect(port_of_nobody())?;
        std::future::poll_fn(|_| socket.poll_write(b"word")).await
    });
    assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
