//! `lotus-lab bench … --lock redlock --redis`: real servers, of which some are not there or die.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::common::lab;
use super::redis_server::{self, RedisServer};

/// Commands that a server has carried out before something happens to it.
const BUSY: u64 = 500;

fn list(servers: &[SocketAddr]) -> String {
    servers.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

fn addresses(running: &[RedisServer]) -> Vec<SocketAddr> {
    running.iter().map(RedisServer::address).collect()
}

/// Number of keys that a server was asked to set.
fn sets(server: &RedisServer) -> u64 {
    let told = server.ask("INFO commandstats");
    let calls = told.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Runs a benchmark of this length on servers; `strike` comes while it uses them.
fn run_with(
    load: &[&str],
    length: [&str; 2],
    running: &mut [RedisServer],
    strike: impl FnOnce(&mut [RedisServer]),
) -> Output {
    let servers = list(&addresses(running));
    let flags = ["--lock", "redlock", "--redis", &servers];
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus-lab"));
    command.arg("bench").args(load).args(flags).args(length).args(["--json", "-"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let benchmark = command.spawn().expect("the binary was built for this test");
    let begin = redis_server::begin();
    while running.iter().any(|server| sets(server) < BUSY) {
        assert!(begin.elapsed() < Duration::from_secs(30), "the benchmark asks for nothing");
        redis_server::pause(Duration::from_millis(5));
    }
    strike(running);
    benchmark.wait_with_output().expect("it ends")
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON alone")
}

#[test]
fn loads_on_locks_run_on_real_servers_and_pass_their_audits() {
    let loads: [&[&str]; 3] = [
        &["locks", "--count", "100"],
        &["lock-trace", "tatp", "--subscribers", "1000"],
        &["bank", "smallbank", "--accounts", "1000", "--ttl-ms", "10000", "--timeout-us", "200000"],
    ];
    for load in loads {
        let Some(mut running) = redis_server::start(3) else { return };
        let report = report(&run_with(load, ["--ops", "2000"], &mut running, |_| {}));
        let named = addresses(&running).into_iter().map(|server| Value::from(server.to_string()));
        assert_eq!(report["redis"], named.collect::<Value>(), "{load:?}");
        assert!(report["operations"].as_u64() > Some(0), "{load:?}");
        assert_eq!(report["audit"], Value::Array(Vec::new()), "{load:?}");
        let left: Vec<_> = running.iter().map(|server| server.ask("DBSIZE")).collect();
        assert!(left.iter().all(|size| size == ":0\r\n"), "{load:?}: {left:?}");
    }
}

#[test]
fn a_run_goes_on_without_one_server_of_three() {
    let Some(mut running) = redis_server::start(3) else { return };
    let load = ["locks", "--count", "100"];
    let output = run_with(&load, ["--ops", "20000"], &mut running, |running| running[2].kill());
    assert_eq!(report(&output)["audit"], Value::Array(Vec::new()));
}

#[test]
fn a_run_ends_with_a_sentence_when_two_servers_of_three_die() {
    for load in [&["locks", "--count", "100"][..], &["bank", "transfer", "--accounts", "1000"]] {
        let Some(mut running) = redis_server::start(3) else { return };
        // It is the servers' death that ends the run.
        let output = run_with(load, ["--secs", "600"], &mut running, |running| {
            running[0].kill();
            running[1].kill();
        });
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{load:?}: {said}");
        assert!(output.stdout.is_empty(), "{load:?}: no lock counts");
        let last = said.lines().last().expect("a sentence");
        let begins = "error: no majority of redis is left, so no lock is held: ";
        assert!(last.starts_with(begins), "{load:?}: {said}");
        for lost in &running[..2] {
            assert!(last.contains(&format!("{} is lost (", lost.address())), "{load:?}: {said}");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_named_in_one_sentence() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = free.local_addr().expect("it is bound").to_string();
    drop(free);
    for load in [&["locks"][..], &["bank", "smallbank"], &["lock-trace", "tatp"]] {
        let flags = ["--lock", "redlock", "--redis", &address, "--secs", "1"];
        let output = lab(&[&["bench"], load, &flags].concat());
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{load:?}: {said}");
        assert!(output.stdout.is_empty(), "{load:?}");
        let sentence = format!("error: redis does not answer at {address}: ");
        assert!(said.starts_with(&sentence) && said.lines().count() == 1, "{load:?}: {said}");
    }
}
