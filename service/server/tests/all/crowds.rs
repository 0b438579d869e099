//! Strangers at all ports, and clients that come at one moment. Admitted clients are served on,
//! clients that may come in do, and the end waits for no stranger.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::raw::{PATIENCE, Raw};
use crate::common::{Bank, INITIAL, balance, get, run, try_get, value};
use lotus_client::{Client, Config};
use lotus_fabric::env::Env;
use lotus_server::Rules;
use tokio::net::TcpSocket;

/// Rules of a port that few strangers of one address crowd; some dozens wait in line.
const CROWDED: Rules = Rules { places: 64, of_one: 6, grace: Duration::from_millis(20) };

/// A bank with a metrics port.
fn watched(guests: Rules) -> (Bank, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Mutex::new(Some(listener));
    let bank = Bank::open_with(1, |config| {
        config.metrics = metrics.lock().unwrap().take();
        config.limits.guests = guests;
    });
    (bank, at)
}

/// Keeps `count` silent connections at a port, each opened again when it is closed.
fn besiege(at: SocketAddr, count: usize, stop: &AtomicBool) {
    let open = || {
        let stream = TcpStream::connect(at).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let mut strangers: Vec<Option<TcpStream>> = (0..count).map(|_| open()).collect();
    while !stop.load(Ordering::Relaxed) {
        for stranger in &mut strangers {
            let is_here = |mut stream: &TcpStream| match stream.read(&mut [0]) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
            if !stranger.as_ref().is_some_and(is_here) {
                *stranger = open();
            }
        }
        std::thread::yield_now();
    }
}

/// Sets the flag when it is dropped, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// 844 of 1,000 clients were once reset, since 64 guests were let stand at the door.
#[test]
fn clients_that_come_at_one_moment_all_come_in() {
    const CLIENTS: usize = 200;
    // Slow guests beyond the places of one address wait in line.
    let rules = Rules { places: CLIENTS, of_one: 24, grace: Duration::from_secs(60) };
    let bank = Bank::open_with(1, |config| {
        config.limits.guests = rules;
        config.limits.greeting = PATIENCE;
    });
    let address = bank.servers[0].address();
    let mut raws: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut hello = Vec::new();
    let _guest = lotus_protocol::handshake::ClientHandshake::start(None, &mut hello).unwrap();
    for raw in &mut raws {
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.write_all(&hello).unwrap();
    }
    for raw in &mut raws {
        assert!(raw.read(&mut [0; 64]).expect("an answer, not a reset") > 0);
    }
}

/// 200 silent connections once kept 70 of 86 clients out.
#[test]
fn silent_strangers_keep_nobody_out() {
    let (bank, metrics) = watched(CROWDED);
    let address = bank.servers[0].address();
    let mut admitted = Raw::admitted(address);
    let stop = AtomicBool::new(false);
    Env::real(0).in_parallel(2, |role| {
        if role == 0 {
            return besiege(address, 40, &stop);
        }
        let _stop = Stop(&stop);
        for _ in 0..8 {
            run(async {
                let mut config = Config::new(address.to_string());
                // On a busy machine its turn comes late; that it comes is the point.
                (config.timeout, config.connect_timeout) = (PATIENCE, PATIENCE);
                let client = Client::connect(config).await.expect("it may come in");
                assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
            });
        }
        // Strangers were closed, and are counted.
        let turned_away = "lotus_clients_total{fate=\"turned_away\"}";
        assert!(value(&get(metrics, "/metrics"), turned_away) > 0.0);
    });
    // The client that came in before them is served.
    admitted.stream.write_all(&crate::common::raw::blob(8)).unwrap();
    assert!(admitted.next().is_some());
}

/// A socket of 127.0.0.2, another address of this host, that is connected to a port.
fn from_another_address(at: SocketAddr) -> TcpStream {
    run(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let stream = socket.connect(at).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    })
}

/// The acceptor once waited with the seventh connection of one address, which may have six places,
/// and let no client of another address in, although two places were free.
#[test]
fn one_address_with_more_than_its_share_keeps_no_other_out() {
    let mut bank = Bank::open_with(1, |config| {
        config.limits.guests = Rules { places: 8, of_one: 6, grace: Duration::from_secs(60) };
        config.limits.greeting = Duration::from_secs(60);
    });
    let address = bank.servers[0].address();
    let mut hello = Vec::new();
    let _guest = lotus_protocol::handshake::ClientHandshake::start(None, &mut hello).unwrap();
    let mut silent: Vec<TcpStream> = Vec::new();
    // Seven; then more than the port holds.
    for more in [7, 40] {
        silent.extend((0..more).map(|_| TcpStream::connect(address).unwrap()));
        let mut other = from_another_address(address);
        other.write_all(&hello).unwrap();
        assert!(other.read(&mut [0; 64]).expect("an answer") > 0, "{more} silent ones");
    }
    // The first have their places still, and those that wait do not hold the end.
    silent[0].set_nonblocking(true).unwrap();
    let error = silent[0].read(&mut [0]).expect_err("it is here, and silent");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    bank.servers.remove(0).stop().unwrap();
    for mut stranger in silent {
        stranger.set_nonblocking(false).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        match stranger.read(&mut [0]) {
            Ok(read) => assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

/// The answer to a scraper that comes again when its connection is closed, as all do in time.
fn scrape(at: SocketAddr, path: &str) -> String {
    let env = Env::real(0);
    let deadline = env.now().after(PATIENCE);
    loop {
        match try_get(at, path, "*/*") {
            Ok(answer) if !answer.is_empty() => return answer,
            failed => assert!(env.now() < deadline, "{failed:?}"),
        }
        std::thread::yield_now();
    }
}

/// The metrics port took any number of strangers, for any time, and the end waited for them.
#[test]
fn strangers_at_the_metrics_port_neither_hold_it_nor_the_end() {
    let (mut bank, at) = watched(CROWDED);
    let mut strangers: Vec<TcpStream> = Vec::new();
    for _ in 0..2 * lotus_server::METRICS_CONNECTIONS {
        let mut stranger = TcpStream::connect(at).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        // Half a request; a stranger that was closed already may not be told.
        let _ = stranger.write_all(b"GET /metrics HTTP/1.1\r\nHost: lo");
        strangers.push(stranger);
    }
    assert!(scrape(at, "/health").ends_with("serving\n"));
    assert!(scrape(at, "/metrics").contains("lotus_connections 0\n"));
    // Each is closed in time, with an answer or without.
    let mut last = strangers.pop().unwrap();
    let _ = last.read_to_end(&mut Vec::new()).map_err(|error| {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    });
    // These are here at the end.
    let _late: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
    bank.servers.remove(0).stop().unwrap();
    let gone = TcpStream::connect(at).map(|mut late| late.read(&mut [0]));
    assert!(!matches!(gone, Ok(Ok(1..))), "{gone:?}");
}
