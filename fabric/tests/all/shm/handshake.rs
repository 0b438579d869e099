//! Strangers at a host's socket, peers that do not match, and sockets that no real host serves.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;

use lotus_fabric::ids::NodeId;
use lotus_fabric::region::Rights;
use lotus_fabric::shm::{Host, ShmError, ShmFabric};
use lotus_fabric::transport::Fabric;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use super::{Directory, REGION, env, join};

const MAGIC: u64 = u64::from_le_bytes(*b"lotusshm");
const VERSION: u64 = 2;

fn packet(words: [u64; 6]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn hello(version: u64, nodes: u64, node: u64) -> Vec<u8> {
    packet([1, MAGIC, version, nodes, node, 0])
}

fn socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn address(directory: &Path) -> SocketAddrUnix {
    SocketAddrUnix::new(directory.join("node-0.sock")).expect("a short path")
}

fn connect(directory: &Path) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, &address(directory)).expect("somebody listens");
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    let control = &mut SendAncillaryBuffer::default();
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], control, SendFlags::NOSIGNAL);
    sent.expect("the host has not hung up yet");
}

/// Words of a reply; empty when the other end hung up instead.
fn reply(socket: &OwnedFd) -> Vec<u64> {
    let mut bytes = [0; 100];
    let (_, length) =
        rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()).unwrap_or((0, 0));
    let (words, _) = bytes[..length].as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn a_host_survives_whatever_connects() {
    let directory = Directory::new();
    let _host = Host::start(directory.path(), NodeId(0), 2, &env()).expect("hosts");
    let strange: [&[u8]; 6] = [
        b"GET / HTTP/1.1",
        &[0xFF; 48],
        &[0xFF; 4096],
        &packet([3, 0, 0, 0, 0, 0]),
        &packet([1, MAGIC + 1, 1, 2, 0, 0]),
        // A hello without its files.
        &hello(VERSION, 2, 0),
    ];
    for bytes in strange {
        let socket = connect(directory.path());
        send(&socket, bytes);
        assert!(reply(&socket).is_empty(), "{} bytes were answered", bytes.len());
    }
    // One hangs up before its hello, one before the answer.
    drop(connect(directory.path()));
    send(&connect(directory.path()), &hello(VERSION, 2, 0));
    // Silent for ever; the host waits for none of them.
    let _silent: Vec<_> = (0..50).map(|_| connect(directory.path())).collect();
    let fabric = join(directory.path(), 1, 2);
    fabric.register(NodeId(0), REGION, 4096, Rights::ALL).expect("still served");
}

#[test]
fn a_process_of_another_version_or_cluster_is_told_so() {
    let directory = Directory::new();
    let _host = Host::start(directory.path(), NodeId(0), 2, &env()).expect("hosts");
    // Refused for the version, or as a member of another cluster; the second field is the version.
    let cases =
        [(hello(77, 2, 0), 1, VERSION), (hello(VERSION, 3, 0), 2, 0), (hello(VERSION, 2, 1), 2, 0)];
    for (hello, code, detail) in cases {
        let socket = connect(directory.path());
        send(&socket, &hello);
        assert_eq!(reply(&socket), [7, MAGIC, code, detail, 0, 0]);
        assert!(reply(&socket).is_empty(), "the connection stays open");
    }
    let larger = ShmFabric::join(directory.path(), 9, &env()).expect("joins");
    assert!(matches!(larger.attach(NodeId(0)), Err(ShmError::OtherCluster)));
    assert!(matches!(larger.attach(NodeId(9)), Err(ShmError::OtherCluster)));
}

#[test]
fn too_many_processes_are_refused() {
    let directory = Directory::new();
    let _host = Host::start(directory.path(), NodeId(0), 2, &env()).expect("hosts");
    let waiting: Vec<_> = (0..256).map(|_| connect(directory.path())).collect();
    let fabric = ShmFabric::join(directory.path(), 2, &env()).expect("joins");
    assert!(matches!(fabric.attach(NodeId(0)), Err(ShmError::Crowded)));
    drop(waiting);
    // The host notices the hang-ups in no particular order.
    while fabric.attach(NodeId(0)).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn nobody_at_the_socket_is_an_error() {
    let directory = Directory::new();
    let fabric = ShmFabric::join(directory.path(), 2, &env()).expect("joins");
    assert!(matches!(fabric.attach(NodeId(0)), Err(ShmError::Absent { .. })));
    let refused = fabric.register(NodeId(0), REGION, 64, Rights::ALL).expect_err("nobody");
    assert!(refused.to_string().contains("node-0.sock"), "{refused}");
    let long = ShmFabric::join("/".repeat(200), 2, &env()).expect("joins");
    assert!(matches!(long.attach(NodeId(0)), Err(ShmError::Absent { .. })));
}

/// Answers the first connection with `answer`, and hangs up.
fn false_host(directory: &Path, answer: Option<Vec<u8>>) -> std::thread::JoinHandle<()> {
    let listener = socket();
    rustix::net::bind(&listener, &address(directory)).expect("nobody is there");
    rustix::net::listen(&listener, 1).expect("listens");
    let serve = move || {
        let socket = rustix::net::accept(&listener).expect("a connection");
        assert_eq!(reply(&socket)[..5], [1, MAGIC, VERSION, 2, 0], "a hello");
        answer.into_iter().for_each(|answer| send(&socket, &answer));
    };
    env().spawn("false-host", serve).expect("a thread")
}

#[test]
fn a_host_that_hangs_up_or_talks_nonsense_is_an_error() {
    let cases = [
        (None, "HungUp"),
        (Some(b"220 ready".to_vec()), "Nonsense"),
        (Some(packet([!0; 6])), "Nonsense"),
        // A welcome without a board.
        (Some(packet([1, MAGIC, 0, 0, 0, 0])), "Nonsense"),
        (Some(packet([2, 0, 0, 0, 0, 0])), "Nonsense"),
        (Some(packet([7, MAGIC, 1, 9, 0, 0])), "Version { ours: 2, theirs: 9 }"),
    ];
    for (answer, expected) in cases {
        let directory = Directory::new();
        let host = false_host(directory.path(), answer);
        let fabric = ShmFabric::join(directory.path(), 2, &env()).expect("joins");
        let error = fabric.attach(NodeId(0)).expect_err("no host");
        assert_eq!(format!("{error:?}"), expected, "{error}");
        host.join().expect("no panic");
    }
}
