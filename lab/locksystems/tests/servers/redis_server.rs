//! A real Redis for tests, on a loopback port of its own (Debian's `redis-server`).

#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ports that are tried until one is still free when the server takes it.
const TRIES: u32 = 5;

/// A Redis that keeps nothing on disk, in a directory of its own. Killed and removed when dropped.
pub struct RedisServer {
    process: Child,
    address: SocketAddr,
    directory: PathBuf,
}

/// So many servers; `None`, with a line that says so, where no Redis is installed.
pub fn start(count: usize) -> Option<Vec<RedisServer>> {
    (0..count).map(|_| RedisServer::start(&[])).collect()
}

impl RedisServer {
    /// A server with these words behind its command; `None`, with a line that says so, where no
    /// Redis is installed.
    pub fn start(words: &[&str]) -> Option<Self> {
        for _ in 0..TRIES {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = free.local_addr().expect("it is bound");
            drop(free);
            let name = format!("lotus-redis-{}-{}", std::process::id(), address.port());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).expect("a directory");
            let process = match launch(&directory, address, words) {
                Ok(process) => process,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    say_that_it_is_skipped();
                    let _ = std::fs::remove_dir_all(&directory);
                    return None;
                }
                Err(error) => panic!("redis-server does not start: {error}"),
            };
            let mut server = Self { process, address, directory };
            if server.serves() {
                return Some(server);
            }
        }
        panic!("no redis-server serves on any of {TRIES} ports");
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }

    /// Starts it again, without its keys.
    pub fn start_again(&mut self) {
        self.process = launch(&self.directory, self.address, &[]).expect("it did before");
        assert!(self.serves(), "its port is free still");
    }

    /// Stops its process, which goes on with [`Self::resume`].
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Answer to one command.
    pub fn ask(&self, command: &str) -> String {
        ask(self.address, command).expect("it answers")
    }

    fn signal(&self, signal: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.expect("there is such a command").success());
    }

    /// Waits until it answers. Returns whether it does, and not another one at its port.
    fn serves(&mut self) -> bool {
        let own = format!("process_id:{}\r", self.process.id());
        let begin = begin();
        while begin.elapsed() < Duration::from_secs(30) {
            if self.process.try_wait().expect("it is ours").is_some() {
                return false;
            }
            match ask(self.address, "INFO server") {
                Ok(answer) if answer.starts_with('-') => return true,
                Ok(answer) => return answer.contains(&own),
                Err(_) => pause(Duration::from_millis(10)),
            }
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn launch(directory: &PathBuf, address: SocketAddr, words: &[&str]) -> io::Result<Child> {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--dir")
        .arg(directory)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

#[expect(clippy::print_stderr, reason = "who runs the tests is to know")]
fn say_that_it_is_skipped() {
    eprintln!("skipped: there is no redis-server here (redis-server on Debian)");
}

/// Answer to one command, as far as it has come in one piece.
fn ask(address: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut bytes = [0; 16 << 10];
    let count = stream.read(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

#[expect(clippy::disallowed_methods, reason = "a process of the system is waited for")]
pub fn begin() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a process of the system is waited for")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
