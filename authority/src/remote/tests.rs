//! The contract over sockets, admission of clients, and the effect of garbage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::env::{Clock, Env, Nanos};

use super::wire::{Hello, Reply, Request};
use super::*;
use crate::conformance;
use crate::{Authority, AuthorityError, Version, allocate_incarnation};

const PATIENCE: Duration = Duration::from_secs(5);

fn loopback() -> Address {
    Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn serve(security: &Security) -> AuthorityServer {
    AuthorityServer::start(loopback(), security, &Env::real(0)).expect("serves")
}

fn client(server: &AuthorityServer, security: Security) -> RemoteAuthority {
    RemoteAuthority::new(server.address().clone(), security, PATIENCE)
}

fn key(byte: u8) -> Security {
    Security::SharedKey(Key::new(&[byte; 32]).expect("long enough"))
}

#[test]
fn it_keeps_the_contract_over_both_kinds_of_socket() {
    let directory = std::env::temp_dir().join(format!("lotus-authority-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let unix = Address::Unix(directory.join("authority.sock"));
    for (address, security) in [(loopback(), key(1)), (unix, Security::default())] {
        let server = AuthorityServer::start(address, &security, &Env::real(0)).expect("serves");
        let (one, two) = (client(&server, security.clone()), client(&server, security));
        conformance::run(&one);
        let large = vec![7; MAX_VALUE_BYTES];
        one.compare_and_swap("large", Version::ABSENT, &large).unwrap();
        assert_eq!(two.read("large").unwrap().unwrap().value, large);
        assert_eq!(server.store().read("large").unwrap().unwrap().value, large);
    }
    std::fs::remove_dir(&directory).expect("no socket is left in it");
}

#[test]
fn rivals_get_incarnations_of_their_own() {
    let server = serve(&Security::default());
    let clients: Vec<_> = (0..4).map(|_| Arc::new(client(&server, Security::default()))).collect();
    let mut taken: Vec<u16> = Env::real(0)
        .in_parallel(clients.len(), |worker| -> Vec<u16> {
            let take = |_| allocate_incarnation(&*clients[worker]).unwrap().raw();
            (0..25).map(take).collect()
        })
        .concat();
    taken.sort_unstable();
    assert_eq!(taken, (1..=100).collect::<Vec<u16>>());
}

#[test]
fn who_cannot_prove_it_is_told_why() {
    let plain = Security::default();
    let cases = [
        (key(1), key(2), Refusal::Proof),
        (key(1), plain.clone(), Refusal::Security),
        (plain, key(1), Refusal::Security),
    ];
    for (server, asks, expected) in cases {
        let server = serve(&server);
        let client = client(&server, asks);
        let refused = client.connect().expect_err("refused");
        assert!(
            matches!(refused, ConnectError::Refused { reason, .. } if reason == expected),
            "{refused}"
        );
        assert_eq!(client.read("a"), Err(AuthorityError::Unavailable));
    }
}

#[test]
fn beyond_loopback_it_needs_a_key() {
    let anywhere = Address::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let refused = AuthorityServer::start(anywhere, &Security::default(), &Env::real(0));
    assert!(matches!(refused, Err(ServeError::NeedsKey(_))));
}

#[test]
fn a_server_that_returns_is_found_again() {
    let security = Security::default();
    let server = serve(&security);
    let address = server.address().clone();
    let client = client(&server, security.clone());
    client.compare_and_swap("a", Version::ABSENT, b"1").unwrap();
    drop(server);
    assert_eq!(client.read("a"), Err(AuthorityError::Unavailable));
    let _server = AuthorityServer::start(address, &security, &Env::real(0)).expect("serves");
    // Its values ended with its process.
    assert_eq!(client.read("a"), Ok(None));
}

/// Memory node 0 was killed and started again: its empty authority passed for the cluster's, and
/// compute nodes went on over lost data.
#[test]
fn a_server_that_has_lost_its_values_is_not_taken_for_the_one_before() {
    let security = key(1);
    let server = serve(&security);
    let (stays, any) = (client(&server, security.clone()), client(&server, security.clone()));
    assert_eq!((stays.read("a"), any.read("a")), (Ok(None), Ok(None)));
    stays.stay(&Env::real(0));
    assert!(stays.compare_and_swap("a", Version::ABSENT, b"kept").is_ok());
    let address = server.address().clone();
    drop(server);
    assert_eq!(stays.read("a"), Err(AuthorityError::Unavailable));
    assert!(!stays.is_replaced(), "it may be silent only");
    assert_eq!((stays.silence(), any.silence()), (Duration::MAX, Duration::ZERO), "none listens");
    // The first ends when it is told, and its unit starts another.
    for _ in 0..2 {
        let address = address.clone();
        let server = AuthorityServer::start(address, &security, &Env::real(0)).expect("serves");
        for _ in 0..2 {
            assert_eq!(stays.read("a"), Err(AuthorityError::Unavailable));
            assert!(stays.is_replaced());
            assert_eq!(stays.silence(), Duration::MAX);
        }
        assert!(matches!(stays.connect(), Err(ConnectError::Replaced { .. })));
        assert_eq!(any.read("a"), Ok(None), "who stays with none believes the next");
        let told = (0..1000).any(|_| {
            assert_eq!(any.read("a"), Ok(None));
            server.is_called_by_an_earlier_life()
        });
        assert!(told, "the server has learnt that a cluster is left");
    }
}

/// A clock that stands still unless a test moves it.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn silence_is_the_time_since_the_last_question_that_was_answered() {
    let hand = Arc::new(Hand(AtomicU64::new(1)));
    let env = Env::with_clock(Arc::clone(&hand) as Arc<dyn Clock>, 0);
    let pass = |secs: u64| hand.0.fetch_add(secs * 1_000_000_000, Ordering::Relaxed);
    // No connection of another test gets a port of this address, once it is free again.
    let own = Address::Tcp(SocketAddr::from(([127, 0, 0, 2], 0)));
    let server = AuthorityServer::start(own, &key(1), &Env::real(0)).expect("serves");
    let client = RemoteAuthority::new(server.address().clone(), key(1), Duration::from_secs(1));
    assert_eq!(client.read("a"), Ok(None));
    client.stay(&env);
    pass(3);
    assert_eq!(client.silence(), Duration::from_secs(3));
    assert_eq!(client.read("a"), Ok(None));
    assert_eq!(client.silence(), Duration::ZERO);
    let Address::Tcp(at) = *server.address() else { unreachable!() };
    drop(server);
    // It accepts nothing: connections wait in its queue, and nothing is answered.
    let _mute = TcpListener::bind(at).expect("it is free again");
    pass(4);
    assert_eq!(client.read("a"), Err(AuthorityError::Unavailable));
    assert_eq!(client.silence(), Duration::from_secs(4), "somebody may listen there");
}

#[test]
fn noise_is_hung_up_on_and_hurts_nobody() {
    let server = serve(&key(1));
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[255; 64], &[1, 0, 0, 0, 9]] {
        let mut stream =
            Stream::connect(server.address(), &Security::default(), PATIENCE).expect("connects");
        stream.set_patience(Some(PATIENCE), PATIENCE).expect("a socket");
        stream.write_all(noise).expect("sent");
        let mut said = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() <= 6, "at most a refusal: {said:?}");
    }
    client(&server, key(1)).connect().expect("it still serves");
}

#[test]
fn frames_are_read_back_and_every_cut_is_refused() {
    let hello = Hello { version: 1, secured: true, nonce: [1, 2, 3, 4] };
    let requests = [
        Request::Hello(hello),
        Request::Proof([4, 3, 2, 1]),
        Request::Read { key: "k".to_owned() },
        Request::ChangedSince { key: "k".to_owned(), seen: Version(7) },
        Request::EarlierLife,
    ];
    for request in requests {
        let bytes = wire::encode(&request);
        assert_eq!(wire::decode::<Request>(&bytes).as_ref(), Some(&request));
        (0..bytes.len()).for_each(|end| assert_eq!(wire::decode::<Request>(&bytes[..end]), None));
        assert_eq!(wire::decode::<Request>(&[&bytes[..], &[0]].concat()), None);
    }
    let replies = [
        Reply::Challenge { nonce: [1; 4], proof: [2; 4] },
        Reply::Welcome { life: 1 << 60 },
        Reply::Refused(Refusal::Full),
        Reply::Nothing,
        Reply::Swapped(Version(3)),
        Reply::Conflict(Version(4)),
    ];
    for reply in replies {
        let bytes = wire::encode(&reply);
        assert_eq!(wire::decode::<Reply>(&bytes).as_ref(), Some(&reply));
        (0..bytes.len()).for_each(|end| assert_eq!(wire::decode::<Reply>(&bytes[..end]), None));
    }
}

/// Strangers once took the places of nodes, for as long as they sent a byte every second.
#[test]
fn strangers_take_no_place_of_nodes() {
    let server = serve(&key(1));
    let Address::Tcp(at) = *server.address() else { unreachable!() };
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..3 * MAX_GUESTS {
        let mut stranger = TcpStream::connect(at).expect("it listens");
        // It may be closed already, for another one.
        let _ = stranger.write(&[1]);
        silent.push(stranger);
    }
    let nodes: Vec<_> = (0..4).map(|_| client(&server, key(1))).collect();
    for node in &nodes {
        // A node that lost its place to a stranger tries again.
        while let Err(error) = node.connect() {
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        }
        assert_eq!(node.read("a"), Ok(None));
    }
    // Strangers beyond the places were closed for others.
    assert!(server.refused() > 0);
    drop(silent);
}

#[test]
fn a_handshake_has_a_time_however_many_bytes_come() {
    let server = serve(&key(1));
    let Address::Tcp(at) = *server.address() else { unreachable!() };
    let mut slow = TcpStream::connect(at).expect("it listens");
    slow.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    slow.write_all(&200_u32.to_le_bytes()).expect("it takes a length");
    // Far fewer bytes than were announced, one after another; the last is never sent.
    let closed = (0..100).any(|_| {
        let sent = slow.write_all(&[0]);
        let ended = |error: &io::Error| {
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        };
        sent.is_err() || slow.read(&mut [0]).map_or_else(|error| ended(&error), |read| read == 0)
    });
    assert!(closed, "the server waits for ever");
}
