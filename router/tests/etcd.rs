//! The etcd back end of the authority against a real etcd server, which each test starts on
//! loopback ports of its own (Debian's `etcd-server`).

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lotus_router::authority::{Authority, AuthorityError, Version, allocate_incarnation};
use lotus_router::conformance;
use lotus_router::etcd::{ConnectError, EtcdAuthority, Options};

/// An etcd server with a directory of its own. Killed and removed when dropped.
struct Server {
    process: Child,
    ports: [u16; 2],
    directory: PathBuf,
}

impl Server {
    fn start() -> Self {
        // Both are held until both are known, or they might be one.
        let free = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
        let ports = free.map(|port| port.local_addr().expect("it is bound").port());
        let name = format!("lotus-etcd-{}-{}", std::process::id(), ports[0]);
        let directory = std::env::temp_dir().join(name);
        Self { process: launch(&directory, ports), ports, directory }
    }

    fn options(&self) -> Options {
        let endpoint = format!("http://127.0.0.1:{}", self.ports[0]);
        Options::new(vec![endpoint], "/lotus/test/")
    }

    /// An authority, once the server answers.
    fn authority(&self, options: Options) -> EtcdAuthority {
        eventually(|| EtcdAuthority::connect(options.clone()).map_err(|error| error.to_string()))
    }

    fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }

    fn start_again(&mut self) {
        self.process = launch(&self.directory, self.ports);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn launch(directory: &PathBuf, [clients, peers]: [u16; 2]) -> Child {
    let [clients, peers] = [clients, peers].map(|port| format!("http://127.0.0.1:{port}"));
    Command::new("etcd")
        .arg("--data-dir")
        .arg(directory)
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd is installed (etcd-server on Debian)")
}

/// Tries until it works; for half a minute, far beyond what a busy machine needs.
#[expect(clippy::disallowed_methods, reason = "a process of the system is waited for")]
fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if begin.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[test]
fn etcd_keeps_the_contract() {
    let server = Server::start();
    let authority = server.authority(server.options());
    conformance::run(&authority);
}

#[test]
fn incarnations_never_repeat() {
    let server = Server::start();
    let authority = server.authority(server.options());
    let taken = [(); 5].map(|()| allocate_incarnation(&authority).expect("etcd answers").raw());
    assert_eq!(taken, [1, 2, 3, 4, 5]);
}

#[test]
fn clusters_with_other_prefixes_do_not_meet() {
    let server = Server::start();
    let ours = server.authority(server.options());
    let mut options = server.options();
    options.prefix = "/lotus/other/".into();
    let theirs = server.authority(options);
    ours.compare_and_swap("key", Version::ABSENT, b"ours").expect("etcd answers");
    assert_eq!(theirs.read("key").expect("etcd answers"), None);
}

/// A cluster goes on without etcd; when it is back, so is what had been agreed on.
#[test]
fn a_server_that_is_killed_and_started_again_knows_what_it_knew() {
    let mut server = Server::start();
    let mut options = server.options();
    options.timeout = Duration::from_secs(5);
    let authority = server.authority(options);
    let version = authority.compare_and_swap("key", Version::ABSENT, b"1").expect("etcd answers");

    server.kill();
    assert_eq!(authority.read("key"), Err(AuthorityError::Unavailable));
    let write = authority.compare_and_swap("key", version, b"2");
    assert_eq!(write, Err(AuthorityError::Unavailable));

    server.start_again();
    let found = eventually(|| authority.read("key").map_err(|error| error.to_string()));
    let found = found.expect("what was acknowledged is not lost");
    assert_eq!((found.version, found.value), (version, b"1".to_vec()));
    authority.compare_and_swap("key", version, b"2").expect("etcd answers again");
}

#[test]
fn nobody_there_is_an_error_with_a_sentence() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let endpoint = format!("http://{}", nobody.local_addr().expect("it is bound"));
    // Whoever listens and never answers.
    let mut options = Options::new(vec![endpoint.clone()], "/lotus/");
    options.timeout = Duration::from_millis(200);
    let error = EtcdAuthority::connect(options.clone()).expect_err("it is no etcd");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains(&endpoint), "{error}");
    // Nobody listens.
    drop(nobody);
    options.timeout = Duration::from_secs(20);
    let error = EtcdAuthority::connect(options).expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}
