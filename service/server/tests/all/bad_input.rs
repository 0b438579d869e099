//! Strangers, broken clients and greedy ones at the port. Whatever they do, others are served and
//! nothing is left behind.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use crate::common::raw::{PATIENCE, Raw, blob};
use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus_client::{Client, ConnectError};
use lotus_protocol::frame;
use lotus_protocol::handshake::{ClientHandshake, Refusal};
use lotus_protocol::messages::{self, Answer, Bytes, Call, Failure, Op, decode};
use lotus_server::{Key, Rules, Security};

/// Asserts that other clients are served.
fn assert_serves(bank: &Bank) {
    run(async {
        let client = bank.client().await;
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn noise_at_the_door_is_refused() {
    let bank = Bank::open(1);
    let mut hello = Vec::new();
    let _guest = ClientHandshake::start(None, &mut hello).unwrap();
    let mut newer = hello.clone();
    newer[frame::HEADER_BYTES + 8] += 1;
    let mut secured = hello;
    secured[frame::HEADER_BYTES + 10] = 1;
    let (server, client) = (messages::VERSION, messages::VERSION + 1);
    let newer_refusal = Refusal::Versions { server, client };
    let cases: [(&[u8], Refusal); 5] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Refusal::Garbage),
        (&[0xFF; 64], Refusal::Garbage),
        (&[0; 4], Refusal::Garbage),
        (&newer, newer_refusal),
        (&secured, Refusal::Security),
    ];
    for (noise, refusal) in cases {
        let mut raw = Raw::open(bank.servers[0].address());
        raw.stream.write_all(noise).unwrap();
        assert_eq!(raw.refusal(), refusal, "{noise:?}");
        assert_eq!(raw.next(), None);
    }
    assert_serves(&bank);
}

#[test]
fn noise_inside_ends_the_connection() {
    let bank = Bank::open(1);
    let mut unknown_op = Vec::new();
    frame::append(&mut unknown_op, |out| out.extend_from_slice(&[1, 0, 0, 0, 99]));
    let mut no_number = Vec::new();
    frame::append(&mut no_number, |out| out.push(1));
    let oversized = (512_u32 << 20).to_le_bytes();
    for noise in [&unknown_op[..], &no_number, &oversized, &[0xA5; 5000]] {
        let mut raw = Raw::admitted(bank.servers[0].address());
        raw.stream.write_all(noise).unwrap();
        assert_eq!(raw.next(), None, "{noise:?}");
    }
    assert_serves(&bank);
}

#[test]
fn half_a_request_harms_nobody() {
    let bank = Bank::open(1);
    let request = blob(10);
    for cut in [1, 4, 5, request.len() - 1] {
        let mut raw = Raw::admitted(bank.servers[0].address());
        raw.stream.write_all(&request[..cut]).unwrap();
        // The connection ends in the middle of a message.
        drop(raw);
    }
    let mut raw = Raw::admitted(bank.servers[0].address());
    let (first, second) = request.split_at(7);
    raw.stream.write_all(first).unwrap();
    raw.stream.write_all(second).unwrap();
    let frame = raw.next().expect("an answer");
    let (number, answer) = messages::split(&frame).unwrap();
    assert_eq!(number, 1);
    assert!(matches!(decode(answer), Ok(Answer::Done(Bytes(bytes))) if bytes.len() == 11));
    assert_serves(&bank);
}

#[test]
fn the_wrong_server_names_the_right_one() {
    let bank = Bank::open(2);
    // The shards are dealt out in turn.
    for (node, shard) in [(0, 1_u16), (1, 0)] {
        let mut raw = Raw::admitted(bank.servers[node].address());
        let call = Call {
            procedure: "balance",
            arguments: Bytes(&[1]),
            timeout_us: 1_000_000,
            shard: Some(shard),
            id: None,
        };
        let mut out = Vec::new();
        messages::send(&mut out, 9, &Op::Call(call));
        raw.stream.write_all(&out).unwrap();
        let frame = raw.next().expect("an answer");
        let (_, answer) = messages::split(&frame).unwrap();
        let owner = Some(1 - node as u16);
        let expected = Failure::WrongOwner { shard, owner, epoch: 1 };
        assert_eq!(decode(answer), Ok(Answer::Failed(expected)));
    }
}

#[test]
fn only_who_has_the_key_comes_in() {
    let key = Key::random().unwrap();
    let secured = Security::SharedKey(key.clone());
    let bank = Bank::open_with(1, |config| config.security = secured.clone());
    run(async {
        let connect = |key: Option<Key>| {
            let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
            config.security = key.map_or(Security::default(), Security::SharedKey);
            Client::connect(config)
        };
        let refused = |connected: Result<Client, ConnectError>| match connected {
            Err(ConnectError::Refused { refusal, .. }) => refusal,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it was let in"),
        };
        assert_eq!(refused(connect(None).await), Refusal::Security);
        assert_eq!(refused(connect(Some(Key::random().unwrap())).await), Refusal::Proof);
        let client = connect(Some(key)).await.unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let bank = Bank::open_with(1, |config| {
        config.limits.greeting = Duration::from_millis(50);
        config.limits.guests = Rules { places: 2, of_one: 2, grace: Duration::from_secs(60) };
    });
    let address = bank.servers[0].address();
    let mut silent: Vec<Raw> = (0..8).map(|_| Raw::open(address)).collect();
    silent[0].stream.write_all(&[40]).unwrap();
    // Two are guests for a while, and there is no room for the others.
    for raw in &mut silent {
        assert_eq!(raw.next(), None);
    }
    assert_serves(&bank);
}

#[test]
fn there_is_room_for_so_many() {
    let bank = Bank::open_with(1, |config| config.limits.connections = 3);
    let address = bank.servers[0].address();
    let admitted: Vec<Raw> = (0..3).map(|_| Raw::admitted(address)).collect();
    let mut fourth = Raw::open(address);
    let mut hello = Vec::new();
    let _guest = ClientHandshake::start(None, &mut hello).unwrap();
    fourth.stream.write_all(&hello).unwrap();
    assert_eq!(fourth.refusal(), Refusal::Full);
    drop(admitted);
}

/// The coordinators of such a node serve no connection: a client that came in would wait for ever.
#[test]
fn a_node_that_has_left_lets_nobody_in() {
    let bank = Bank::open(2);
    bank.cluster.kill(1);
    // The node's coordinators are told to end, and do so at their next turn.
    let try_again = |_| {
        let mut raw = Raw::open(bank.servers[1].address());
        let mut hello = Vec::new();
        let _guest = ClientHandshake::start(None, &mut hello).unwrap();
        raw.stream.write_all(&hello).unwrap();
        raw.greeting().map(|refusal| (raw, refusal))
    };
    let (mut raw, refusal) = (0..10_000).find_map(try_again).expect("it lets everybody in");
    assert_eq!(refusal, Refusal::Leaving);
    assert_eq!(raw.next(), None);
}

/// A server that stops writes what waits to be read, but not for ever.
#[test]
fn who_does_not_read_does_not_keep_a_server_from_stopping() {
    let mut bank = Bank::open_with(1, |config| {
        config.limits.write_patience = 2 * PATIENCE;
        config.limits.drain = Duration::from_millis(50);
        config.limits.in_flight = 4;
    });
    let mut raw = Raw::admitted(bank.servers[0].address());
    raw.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let request = blob(128 << 10);
    // Writes until the server reads no more: its answers fill the socket.
    while raw.stream.write_all(&request).is_ok() {}
    bank.servers.remove(0).stop().unwrap();
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn who_does_not_read_is_closed() {
    let bank = Bank::open_with(1, |config| {
        config.limits.write_patience = Duration::from_millis(100);
        config.limits.in_flight = 4;
    });
    let mut raw = Raw::admitted(bank.servers[0].address());
    let request = blob(128 << 10);
    // Writes until the server neither reads nor keeps the connection.
    let closed = loop {
        if let Err(error) = raw.stream.write_all(&request) {
            break error;
        }
    };
    assert_ne!(closed.kind(), ErrorKind::WouldBlock, "the server keeps the connection");
    assert_serves(&bank);
}
