//! A real etcd server for tests, on loopback ports of its own (Debian's `etcd-server`).

#![allow(dead_code, reason = "each test program uses its own part")]

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An etcd server with a directory of its own. Killed and removed when dropped.
pub struct Server {
    process: Child,
    ports: [u16; 2],
    directory: PathBuf,
}

impl Server {
    pub fn start() -> Self {
        // Both are held until both are known, or they might be the same.
        let free = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
        let ports = free.map(|port| port.local_addr().expect("it is bound").port());
        let name = format!("lotus-etcd-{}-{}", std::process::id(), ports[0]);
        let directory = std::env::temp_dir().join(name);
        Self { process: launch(&directory, ports), ports, directory }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }

    /// Starts it with the contents of a backup from before all writes.
    pub fn start_empty(&mut self) {
        std::fs::remove_dir_all(&self.directory).expect("it is ours");
        self.start_again();
    }

    pub fn start_again(&mut self) {
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

/// Repeats `attempt` until it succeeds; for half a minute, far beyond what a busy machine needs.
#[expect(clippy::disallowed_methods, reason = "a process of the system is waited for")]
pub fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if begin.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
