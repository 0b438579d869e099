//! Real servers: addresses, checks at set-up, and audits of keys.
//!
//! Calls block, for at most [`PATIENCE`] per answer, and are meant for set-up and audits. Commands
//! of lanes go through a [`super::SocketLink`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis_protocol::resp2::types::OwnedFrame;

use super::redis::{Command, Token};
use super::resp::{self, ServerLife, Verb};
use super::rules::RedisReply;

/// Time limit of a connection and of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of an answer; a page of keys is smaller.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Number of a lock that no client uses, for the check of a server.
const PROBE: u64 = u64::MAX;

/// Reason why servers cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// No server is named. Name at least one.
    #[error("no server of redis is named")]
    None,
    /// A server named twice would count twice in a majority. Name each server once.
    #[error("the server of redis at {0} is named twice")]
    Twice(SocketAddr),
    /// Two addresses of a server, which would count twice. Name each server once.
    #[error("redis at {address} is the server at {other}: it is named twice")]
    Same {
        /// The server's address.
        address: SocketAddr,
        /// The server's other address.
        other: SocketAddr,
    },
    /// The server cannot be reached, or ends the connection. Start it, or correct the address.
    #[error("redis does not answer at {address}: {source}")]
    Silent {
        /// The server's address.
        address: SocketAddr,
        /// Error of the connection.
        source: io::Error,
    },
    /// The server does not do what RedLock needs. Correct its settings, or the address.
    #[error("redis at {address} cannot keep locks: {reason}")]
    Unfit {
        /// The server's address.
        address: SocketAddr,
        /// The server's answer.
        reason: String,
    },
}

/// Prefix of lock keys, followed by a colon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix<'a> {
    /// A prefix with no keys before [`RedisServers::check`] runs. Keys lost before the check did
    /// not have this prefix.
    New(&'a str),
    /// A prefix that may have keys already. Servers count after an uptime longer than keys live, by
    /// the client's times: all clients of a prefix should have equal times.
    Used(&'a str),
}

/// Lock servers: independent Redis instances without replicas. Clones share the servers.
#[derive(Clone, Debug)]
pub struct RedisServers {
    pub(super) addresses: Arc<[SocketAddr]>,
    pub(super) prefix: Arc<str>,
    /// Whether no key had the prefix before the first check.
    is_new: bool,
    notes: Arc<[Notes]>,
}

/// State of one server.
#[derive(Debug, Default)]
struct Notes {
    /// Run ID of the server's life at the first check of a new prefix: earlier lives lost no key of
    /// the prefix.
    first_life: OnceLock<String>,
    /// Whether a connection to the server was lost.
    is_lost: AtomicBool,
}

impl RedisServers {
    /// Returns servers at these addresses; keys of locks begin with `prefix` and a colon. Clients
    /// with the same prefix contend for the same locks.
    ///
    /// # Errors
    /// [`RedisError`] if there is no address, or an address is named twice.
    pub fn new(addresses: &[SocketAddr], prefix: Prefix<'_>) -> Result<Self, RedisError> {
        if addresses.is_empty() {
            return Err(RedisError::None);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = addresses.iter().find(|address| !seen.insert(**address)) {
            return Err(RedisError::Twice(*twice));
        }
        let (prefix, is_new) = match prefix {
            Prefix::New(prefix) => (prefix, true),
            Prefix::Used(prefix) => (prefix, false),
        };
        let notes = addresses.iter().map(|_| Notes::default()).collect();
        Ok(Self { addresses: addresses.into(), prefix: prefix.into(), is_new, notes })
    }

    /// Sets and deletes a key on each server, as clients will, lists the keys, and records each
    /// server's life. Clients of a new prefix call this before the first lock.
    ///
    /// # Errors
    /// [`RedisError`] of the first server that is absent, unfit, or already checked at another
    /// address.
    pub fn check(&self) -> Result<(), RedisError> {
        let mut seen = BTreeMap::new();
        self.addresses.iter().zip(&*self.notes).try_for_each(|(address, notes)| {
            let mut server = Dialled::to(*address)?;
            let life = server.life()?;
            // Every life of a server draws its own run ID.
            if let Some(other) = seen.insert(life.run_id.clone(), *address) {
                return Err(RedisError::Same { address: *address, other });
            }
            if self.is_new {
                // A later check does not know of keys lost before it.
                notes.first_life.get_or_init(|| life.run_id);
            }
            let (key, token) = (PROBE, Token(0));
            server.carry_out(&self.prefix, Command::Set { key, token, ttl: PATIENCE })?;
            // A concurrent check by another client may have set the key.
            server.carry_out(&self.prefix, Command::Delete { key, token })?;
            server.keys(&self.prefix).map(drop)
        })
    }

    /// Number of locks with keys on servers. Servers that do not answer or to which a connection
    /// was lost are left out: their keys end with the time to live.
    ///
    /// # Errors
    /// [`RedisError`] of a server with an unexpected answer.
    pub fn used(&self) -> Result<usize, RedisError> {
        let mut keys = BTreeSet::new();
        for (address, notes) in self.addresses.iter().zip(&*self.notes) {
            if notes.is_lost.load(Ordering::Relaxed) {
                continue;
            }
            let found = Dialled::to(*address).and_then(|mut server| server.keys(&self.prefix));
            match found {
                Ok(found) => keys.extend(found),
                Err(RedisError::Silent { .. }) => {}
                Err(unfit) => return Err(unfit),
            }
        }
        Ok(keys.len())
    }

    /// Records that a connection to a server was lost. Read only after the run.
    pub(super) fn note_lost(&self, server: usize) {
        self.notes[server].is_lost.store(true, Ordering::Relaxed);
    }

    /// Whether a server lost no key of the prefix before its present life.
    pub(super) fn has_all_keys(&self, server: usize, life: &ServerLife) -> bool {
        self.notes[server].first_life.get() == Some(&life.run_id)
    }
}

/// A blocking connection.
struct Dialled {
    address: SocketAddr,
    stream: TcpStream,
    /// Bytes received but not parsed yet.
    came: Vec<u8>,
}

impl Dialled {
    fn to(address: SocketAddr) -> Result<Self, RedisError> {
        let dial = || {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Self { address, stream, came: Vec::new() })
        };
        dial().map_err(|source| RedisError::Silent { address, source })
    }

    fn unfit(&self, reason: String) -> RedisError {
        RedisError::Unfit { address: self.address, reason }
    }

    fn carry_out(&mut self, prefix: &str, command: Command) -> Result<RedisReply, RedisError> {
        let mut out = Vec::new();
        resp::push_command(&mut out, prefix, command);
        let reply = self.ask(&out)?;
        resp::understand(Verb::of(command), &reply).map_err(|reason| self.unfit(reason))
    }

    fn life(&mut self) -> Result<ServerLife, RedisError> {
        let mut out = Vec::new();
        resp::push_info(&mut out);
        let reply = self.ask(&out)?;
        resp::life(&reply).map_err(|reason| self.unfit(reason))
    }

    /// Lists the keys of a prefix, possibly with duplicates.
    fn keys(&mut self, prefix: &str) -> Result<Vec<Vec<u8>>, RedisError> {
        let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut out = Vec::new();
            let pattern = format!("{prefix}:*");
            resp::push(&mut out, &["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]);
            let reply = self.ask(&out)?;
            let Some((next, found)) = page(&reply) else {
                return Err(self.unfit(resp::unexpected(&reply)));
            };
            keys.extend(found);
            if next == "0" {
                return Ok(keys);
            }
            cursor = next;
        }
    }

    /// Sends a command and waits for the answer.
    fn ask(&mut self, command: &[u8]) -> Result<OwnedFrame, RedisError> {
        let address = self.address;
        let silent = |source| RedisError::Silent { address, source };
        self.stream.write_all(command).map_err(silent)?;
        let mut bytes = [0; 16 << 10];
        loop {
            match resp::take_reply(&self.came) {
                Err(reason) => return Err(self.unfit(reason)),
                Ok(Some((reply, length))) => {
                    self.came.drain(..length);
                    return Ok(reply);
                }
                Ok(None) if self.came.len() > MAX_ANSWER_BYTES => {
                    return Err(self.unfit("its answer has no end".to_owned()));
                }
                Ok(None) => {}
            }
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hangs up")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Err(io::Error::new(io::ErrorKind::TimedOut, "it is silent"))
                }
                read => read,
            };
            self.came.extend_from_slice(&bytes[..count.map_err(silent)?]);
        }
    }
}

/// Parses a page of keys: the next cursor and the keys.
fn page(reply: &OwnedFrame) -> Option<(String, Vec<Vec<u8>>)> {
    let OwnedFrame::Array(parts) = reply else { return None };
    let [OwnedFrame::BulkString(next), OwnedFrame::Array(found)] = &**parts else { return None };
    let key = |key: &OwnedFrame| match key {
        OwnedFrame::BulkString(key) => Some(key.clone()),
        _ => None,
    };
    let found = found.iter().map(key).collect::<Option<_>>()?;
    Some((String::from_utf8(next.clone()).ok()?, found))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use lotus_fabric::env::Env;

    use super::*;

    /// Answers one connection as a Redis of this life.
    fn serve(listener: &TcpListener, run_id: &str) {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut asked = [0; 1024];
        while let Ok(bytes @ 1..) = stream.read(&mut asked) {
            let asked = String::from_utf8_lossy(&asked[..bytes]).into_owned();
            let said = format!("run_id:{run_id}\r\nuptime_in_seconds:9\r\n");
            let answer = match () {
                () if asked.contains("INFO") => format!("${}\r\n{said}\r\n", said.len()),
                () if asked.contains("SCAN") => "*2\r\n$1\r\n0\r\n*0\r\n".to_owned(),
                () if asked.contains("EVAL") => ":1\r\n".to_owned(),
                () => "+OK\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).expect("it reads");
        }
    }

    /// Looks at servers of these lives, each behind an address of its own.
    fn check(lives: &[&str]) -> Result<(), RedisError> {
        let listeners: Vec<_> = lives
            .iter()
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"))
            .collect();
        let addresses: Vec<_> =
            listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let servers = RedisServers::new(&addresses, Prefix::New("p")).expect("they differ");
        let checked = Env::real(0).in_parallel(lives.len() + 1, |role| match role {
            0 => {
                let checked = servers.check();
                // Those that nobody has asked are asked nothing, so that they end.
                addresses.iter().for_each(|address| drop(TcpStream::connect(address)));
                Some(checked)
            }
            role => {
                serve(&listeners[role - 1], lives[role - 1]);
                None
            }
        });
        checked.into_iter().flatten().next().expect("the first looks")
    }

    /// A run on one server of two addresses once waited for ever: it had no majority of itself.
    #[test]
    fn one_server_of_two_addresses_is_refused() {
        check(&["a", "b", "c"]).expect("three servers");
        let error = check(&["a", "b", "a"]).expect_err("two servers");
        assert!(matches!(error, RedisError::Same { .. }), "{error}");
        assert!(error.to_string().ends_with("it is named twice"), "{error}");
    }
}
