//! Real servers: where they are, whether they are there, and what they hold.
//!
//! Calls block, for [`PATIENCE`] at most for each answer: they are for set-up and audits. Commands
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
/// Most bytes of an answer: a page of keys is less.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Number of a lock that no client has, by which a server is tried.
const PROBE: u64 = u64::MAX;

/// Reason why servers cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// No server is named. Name some.
    #[error("no server of redis is named")]
    None,
    /// Two that are one are no majority of three. Name each once.
    #[error("the server of redis at {0} is named twice")]
    Twice(SocketAddr),
    /// Two addresses lead to one server, which is no majority of two. Name each server once.
    #[error("redis at {address} is the server at {other}: it is named twice")]
    Same {
        /// Its address.
        address: SocketAddr,
        /// Its other address.
        other: SocketAddr,
    },
    /// The server cannot be reached, or ends the connection. Start it, or correct the address.
    #[error("redis does not answer at {address}: {source}")]
    Silent {
        /// Its address.
        address: SocketAddr,
        /// Error of the connection.
        source: io::Error,
    },
    /// What answers does not do what RedLock needs. Correct its settings, or the address.
    #[error("redis at {address} cannot keep locks: {reason}")]
    Unfit {
        /// Its address.
        address: SocketAddr,
        /// What it answers.
        reason: String,
    },
}

/// What the keys of locks begin with, before a colon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix<'a> {
    /// One that nobody has used before [`RedisServers::check`] looks. What servers have lost before
    /// was none of its keys.
    New(&'a str),
    /// One that others may use already. Servers count once they have been up for longer than keys
    /// live, by the times of the client: all clients of a prefix should have the same.
    Used(&'a str),
}

/// Servers that keep locks, each a Redis of its own without a replica. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct RedisServers {
    pub(super) addresses: Arc<[SocketAddr]>,
    pub(super) prefix: Arc<str>,
    /// Whether no key had the prefix before servers were looked at first.
    is_new: bool,
    notes: Arc<[Notes]>,
}

/// What is known of a server.
#[derive(Debug, Default)]
struct Notes {
    /// Name of its life that saw the first key of a new prefix: no such key was lost before.
    first_life: OnceLock<String>,
    /// Whether a connection to it was lost.
    is_lost: AtomicBool,
}

impl RedisServers {
    /// Servers at these addresses, on which the keys of locks begin with `prefix` and a colon.
    /// Clients of one prefix exclude one another.
    ///
    /// # Errors
    /// [`RedisError`] if there is none, or one is named twice.
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

    /// Sets a key on each server and deletes it, as clients will, and looks which keys there are
    /// and in which life the server is. Clients of a new prefix do so before the first lock.
    ///
    /// # Errors
    /// [`RedisError`] of the first server that is not there, does not do so, or is another one.
    pub fn check(&self) -> Result<(), RedisError> {
        let mut seen = BTreeMap::new();
        self.addresses.iter().zip(&*self.notes).try_for_each(|(address, notes)| {
            let mut server = Dialled::to(*address)?;
            let life = server.life()?;
            // Every life of a server draws a name of its own.
            if let Some(other) = seen.insert(life.run_id.clone(), *address) {
                return Err(RedisError::Same { address: *address, other });
            }
            if self.is_new {
                // A later look does not know what was lost before it.
                notes.first_life.get_or_init(|| life.run_id);
            }
            let (key, token) = (PROBE, Token(0));
            server.carry_out(&self.prefix, Command::Set { key, token, ttl: PATIENCE })?;
            // Another client that tries it at the same time may have set the key.
            server.carry_out(&self.prefix, Command::Delete { key, token })?;
            server.keys(&self.prefix).map(drop)
        })
    }

    /// Number of locks with keys on servers. Servers to which a connection was lost, or that
    /// do not answer, are left out: what is there ends with its time to live.
    ///
    /// # Errors
    /// [`RedisError`] of a server that answers something else.
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

    /// Notes that a connection to a server was lost. Read when nothing runs any more.
    pub(super) fn note_lost(&self, server: usize) {
        self.notes[server].is_lost.store(true, Ordering::Relaxed);
    }

    /// Whether a server has lost no key of the prefix before this life of it.
    pub(super) fn has_all_keys(&self, server: usize, life: &ServerLife) -> bool {
        self.notes[server].first_life.get() == Some(&life.run_id)
    }
}

/// A connection that blocks.
struct Dialled {
    address: SocketAddr,
    stream: TcpStream,
    /// Bytes of answers that are not taken yet.
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

    /// The keys of a prefix; some may come twice.
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

    /// Sends a command and waits for its answer.
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

/// The next cursor of a page of keys, and the keys.
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
