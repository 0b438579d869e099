//! TLS around the connections: the contract, refusals, and bytes buffered in TLS.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::tests::{Tcp, start};
use super::*;
use crate::conformance;
use lotus_security::{Caller, Key, Security, Stream, Tls};

const NAME: &str = "orders.lotus";

/// A test's directory; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lotus-tls-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("there is room");
        Self(directory)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An authority, and a directory for the files that it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    scratch: Scratch,
}

impl Authority {
    fn new() -> Self {
        let scratch = Scratch::new();
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("randomness");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("it signs itself");
        fs::write(scratch.path("ca.pem"), issuer.pem()).expect("there is room");
        Self { issuer, scratch }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.scratch.path(file)
    }

    /// Signs a certificate for the cluster name, and writes it and its key.
    fn sign(&self, cluster: &str) -> [PathBuf; 2] {
        self.sign_until(cluster, 4000)
    }

    /// Like `sign`, with a certificate valid to the end of `last_year`.
    fn sign_until(&self, cluster: &str, last_year: i32) -> [PathBuf; 2] {
        let key = KeyPair::generate().expect("randomness");
        let mut params = CertificateParams::new([cluster.to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(last_year, 12, 31);
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        let paths = ["certificate", "key"].map(|what| self.path(&format!("{cluster}-{what}.pem")));
        fs::write(&paths[0], certificate.pem()).expect("there is room");
        fs::write(&paths[1], key.serialize_pem()).expect("there is room");
        set_mode(&paths[1], 0o600);
        paths
    }

    fn tls(&self, cluster: &str) -> Tls {
        let [certificate, key] = self.sign(cluster);
        Tls::from_files(&self.path("ca.pem"), &certificate, &key, NAME).expect("they are good")
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is there");
}

/// Several workers, so that connections pass from one thread to another.
#[test]
fn passes_the_conformance_suite() {
    let security = Security::Tls(Authority::new().tls(NAME));
    let workers = NonZero::new(3).expect("not zero");
    let config = Config { security, workers, ..Config::loopback(conformance::NODES) };
    conformance::run(|| Tcp(start(config.clone())));
}

/// Message that a refused peer sees.
#[test]
fn only_nodes_of_one_cluster_talk() {
    let ours = Authority::new();
    let theirs = Authority::new();
    let another_cluster = "invoices.lotus";
    let key = || Security::SharedKey(Key::random().expect("randomness"));
    let tls = |authority: &Authority, name| Security::Tls(authority.tls(name));
    // Security of the target, of the initiator, and a part of the message.
    let cases = [
        (
            tls(&ours, NAME),
            tls(&theirs, NAME),
            "TLS: the other side's certificate was signed by another authority",
        ),
        (
            tls(&ours, another_cluster),
            tls(&ours, NAME),
            "TLS: the other side's certificate bears another name",
        ),
        (
            tls(&ours, NAME),
            tls(&ours, another_cluster),
            "TLS: this side's certificate bears another name",
        ),
        // An application's certificate is not accepted from a node.
        (tls(&ours, NAME), tls(&ours, "applications.orders.lotus"), "bears another name"),
        (tls(&ours, NAME), Security::PlainOnLoopback, "one side demands"),
        (tls(&ours, NAME), key(), "one side demands"),
        (Security::PlainOnLoopback, tls(&ours, NAME), "TLS: the other side does not speak TLS"),
        (key(), tls(&ours, NAME), "TLS: the other side does not speak TLS"),
    ];
    let node = NodeId(0);
    for (serves, asks, sentence) in cases {
        let what = format!("{serves:?}, asked by {asks:?}");
        let target = start(Config { security: serves, ..Config::loopback(2) });
        let mut config = Config { security: asks, served: vec![], ..Config::loopback(2) };
        config.addresses.insert(node, target.address(node).expect("served there"));
        let stranger = start(config);
        let refused = stranger.register(node, RegionId(0), 64, Rights::ALL);
        let error = refused.expect_err(&what).to_string();
        assert!(error.contains(sentence), "{what}: {error}");
        let counters = target.counters(node).expect("served there");
        assert_eq!(counters.admitted, 0, "{what}: {counters:?}");
    }
}

/// Both sides present a certificate: trusting our authority is not enough to be admitted.
#[test]
fn a_certificate_of_another_authority_opens_nothing() {
    let ours = Authority::new();
    let theirs = Authority::new();
    let target = start(Config { security: Security::Tls(ours.tls(NAME)), ..Config::loopback(2) });
    let node = NodeId(0);
    let [certificate, key] = theirs.sign(NAME);
    let tls = Tls::from_files(&ours.path("ca.pem"), &certificate, &key, NAME).expect("good files");
    let security = Security::Tls(tls);
    let mut config = Config { security, served: vec![], ..Config::loopback(2) };
    config.addresses.insert(node, target.address(node).expect("served there"));
    let error = start(config).register(node, RegionId(0), 64, Rights::ALL).expect_err("a stranger");
    assert!(
        error.to_string().contains("another authority has signed this side's certificate"),
        "{error}"
    );
    assert_eq!(target.counters(node).expect("served there").admitted, 0);
}

/// The commands of docs/security.md, verbatim, make files that both sides of a connection accept.
#[test]
fn the_documented_commands_make_certificates_that_work() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: there is no openssl here");
        return;
    }
    let page = include_str!("../../../../docs/security.md");
    let commands = page.split("```").find_map(|part| part.strip_prefix("sh\nopenssl "));
    let commands = format!("openssl {}", commands.expect("the page says how"));
    let scratch = Scratch::new();
    let mut shell = Command::new("sh");
    let made = shell.args(["-euc", &commands]).current_dir(&scratch.0).output().expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|file| scratch.path(file));
    pair(&Tls::from_files(&ca, &certificate, &key, NAME).expect("they are good"));
}

#[test]
fn files_that_are_no_good_are_named() {
    let authority = Authority::new();
    let other = Authority::new();
    let [ca, no_pem, missing] =
        ["ca.pem", "no.pem", "missing.pem"].map(|file| authority.path(file));
    fs::write(&no_pem, "not what it should be").expect("there is room");
    let [certificate, key] = authority.sign(NAME);
    let [_, key_of_another] = other.sign(NAME);
    let [expired, key_of_expired] = authority.sign_until("expired.lotus", 1999);
    let [_, public] = authority.sign("public.lotus");
    set_mode(&public, 0o644);
    let cases = [
        (&missing, &certificate, &key, NAME, "missing.pem"),
        (&no_pem, &certificate, &key, NAME, "no.pem: no certificate"),
        (&ca, &missing, &key, NAME, "missing.pem"),
        (&ca, &no_pem, &key, NAME, "cannot be used"),
        (&ca, &certificate, &missing, NAME, "missing.pem"),
        (&ca, &certificate, &certificate, NAME, "certificate.pem"),
        (&ca, &certificate, &key_of_another, NAME, "cannot be used"),
        (&ca, &certificate, &public, NAME, "public.lotus-key.pem can be read by other users"),
        (&ca, &expired, &key_of_expired, NAME, "certificate.pem: the certificate has run out"),
        (&ca, &certificate, &key, "no name", "'no name' cannot stand in a certificate"),
    ];
    for (authority, certificate, key, name, sentence) in cases {
        let error = Tls::from_files(authority, certificate, key, name).expect_err(sentence);
        assert!(error.to_string().contains(sentence), "{error}");
    }
}

/// Two non-blocking streams after a successful handshake.
fn pair(tls: &Tls) -> [Stream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let asks = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (serves, _) = listener.accept().expect("somebody has asked");
    for socket in [&asks, &serves] {
        socket.set_nonblocking(true).expect("it is open");
    }
    let security = Security::Tls(tls.clone());
    let mut asks = Stream::outgoing(asks, &security).expect("TLS begins");
    let mut serves = Stream::incoming(serves, &security, Caller::Node).expect("TLS begins");
    asks.write_all(b"!").expect("there is room");
    let mut word = [0];
    while serves.read(&mut word).map_err(|error| error.kind()) == Err(io::ErrorKind::WouldBlock) {
        let nothing = asks.read(&mut word).map_err(|error| error.kind());
        assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
    }
    assert_eq!(word, *b"!");
    [asks, serves]
}

/// More bytes than sockets and TLS hold, read in pieces that end anywhere: none is lost, doubled or
/// swapped, and bytes buffered in TLS alone are announced.
#[test]
fn bytes_come_out_as_they_went_in_however_little_fits() {
    const TOTAL: usize = 16 << 20;
    let [mut writer, mut reader] = pair(&Authority::new().tls(NAME));
    let bytes: Vec<u8> = (0..TOTAL).map(|at| (at % 251) as u8).collect();
    let (mut written, mut taken, mut waited, mut hidden) = (0, 0, 0, 0);
    let mut room = [0; 1000];
    while taken < TOTAL {
        // Writes until the socket is full. Bytes not taken are offered again, with more after them.
        while written < TOTAL {
            match writer.write(&bytes[written..TOTAL.min(written + 50_000)]) {
                Ok(count) => written += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    waited += 1;
                    break;
                }
            }
        }
        // Reads all received bytes.
        while taken < TOTAL {
            match reader.read(&mut room) {
                Ok(count) => {
                    assert!(room[..count] == bytes[taken..taken + count], "at {taken}");
                    taken += count;
                    hidden += usize::from(reader.hides_input());
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    assert!(!reader.hides_input(), "there is nothing");
                    break;
                }
            }
        }
    }
    assert!(waited > 0 && hidden > 0, "the test was too easy: {waited}, {hidden}");
}
