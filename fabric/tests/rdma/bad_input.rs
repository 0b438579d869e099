//! Errors in a configuration or of a machine are reported in one sentence.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use lotus_fabric::env::Env;
use lotus_fabric::rdma::{Config, Place, RdmaFabric};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::Fabric;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::devices::on_a_machine_with;
use super::{MEMORY, REGION, fabric};

/// Error of making a fabric of one node on these devices.
fn refusal(devices: &[&str], change: fn(&mut Config)) -> String {
    let devices: Vec<_> = devices.iter().map(|name| (*name).to_owned()).collect();
    let made = Config::in_process(1, &devices).and_then(|mut config| {
        change(&mut config);
        RdmaFabric::new(config, Env::real(0))
    });
    made.map(|_| ()).expect_err("refused").to_string()
}

fn nothing(_: &mut Config) {}

#[test]
fn devices_and_ports_that_will_not_do_are_named() {
    type Case<'a> = (&'a [&'a str], fn(&mut Config), &'a str);
    let cases: [Case<'_>; 10] = [
        (&["card9"], nothing, "there is no RDMA device card9; this machine has card0, card1, "),
        (&["card0:2"], nothing, "RDMA device card0 has no port 2"),
        (&["card0:x"], nothing, "\"card0:x\" does not name an RDMA device and its port"),
        (&["down0"], nothing, "port 1 of RDMA device down0 is down; bring its link up"),
        (&["plain0"], nothing, "RDMA device plain0 has no atomic operations"),
        (&["card0"], |config| config.gid_index = Some(7), "GID index 7; it has entries at 0, 1"),
        (&["card0"], |config| config.mtu = Some(1500), "1500 bytes"),
        (&["card0"], |config| config.timeout = 99, "timeout"),
        (&["card0"], |config| config.send_queue = 0, "send queue"),
        (&["card0"], listen_where_somebody_does, "cannot listen at 127.0.0.1:"),
    ];
    for (devices, change, part) in cases {
        let sentence = refusal(devices, change);
        assert!(sentence.contains(part), "{devices:?}: {sentence}");
        assert!(!sentence.contains('\n'), "{devices:?}: {sentence}");
    }
}

fn listen_where_somebody_does(config: &mut Config) {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let Place::Here { listen, .. } = &mut config.nodes[0] else { panic!("all nodes are here") };
    *listen = other.local_addr().expect("it listens");
    // Kept as long as the tests run.
    std::mem::forget(other);
}

#[test]
fn a_machine_without_devices_says_so() {
    let sentence = on_a_machine_with(|_| false, || refusal(&[], nothing));
    assert_eq!(sentence, "this machine has no RDMA device");
    let sentence = on_a_machine_with(|_| false, || refusal(&["card0"], nothing));
    assert_eq!(sentence, "this machine has no RDMA device");
    let sentence = on_a_machine_with(|model| !model.active, || refusal(&[], nothing));
    assert_eq!(sentence, "no RDMA device of this machine has an active port (found down0)");
}

#[test]
fn a_limit_on_locked_memory_is_named_and_how_to_raise_it() {
    // Only for the message; the device has a limit of its own.
    let limit = Rlimit { current: Some(65_536), ..getrlimit(Resource::Memlock) };
    setrlimit(Resource::Memlock, limit).expect("a limit may be lowered");
    let registered = fabric(1, &["tight0"]).register(MEMORY, REGION, 1 << 26, Rights::ALL);
    let sentence = registered.expect_err("more than may be locked").to_string();
    for part in ["67108864 bytes", "limit is 65536 bytes", "ulimit -l unlimited", "LimitMEMLOCK"] {
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn a_peer_that_does_not_answer_is_named() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let at = nobody.local_addr().expect("it listens");
    drop(nobody);
    let config = Config::new(vec![Place::There { at }]);
    let fabric = RdmaFabric::new(config, Env::real(0)).expect("no device is needed");
    let sentence = fabric.greet(MEMORY).expect_err("nobody is there").to_string();
    assert!(sentence.contains(&format!("does not answer at {at}")), "{sentence}");
    let known = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port()));
    assert_eq!(fabric.listens_at(MEMORY), Some(known));
}
