//! Client side of the remote authority.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_security::nonce;

use super::server::{CLIENT, SERVER};
use super::wire::{self, Hello, MAX_FRAME_BYTES, MAX_GUEST_BYTES, Refusal, Reply, Request};
use super::{Address, MAX_KEY_BYTES, MAX_VALUE_BYTES, Security, Stream, VERSION};
use crate::{Authority, AuthorityError, Version, Versioned};

/// Reason why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server answers at the address; try again later, or correct the address.
    #[error("the authority at {address} cannot be reached: {source}")]
    Unreachable {
        /// Address that was tried.
        address: Address,
        /// Error of the operating system.
        source: io::Error,
    },
    /// TLS has failed, or the peer speaks another protocol; correct the configuration.
    #[error("the authority at {address} and this process do not trust each other: {source}")]
    Untrusted {
        /// Address that was tried.
        address: Address,
        /// Error of the TLS or protocol layer.
        source: io::Error,
    },
    /// The server refuses this client; correct the configuration.
    #[error("the authority at {address} refuses: {reason}")]
    Refused {
        /// Address that was tried.
        address: Address,
        /// Reason of the refusal.
        reason: Refusal,
    },
    /// The answering server is not the server that this client stays with; permanent.
    #[error("another authority is at {address} than the one of this cluster")]
    Replaced {
        /// Address that was tried.
        address: Address,
    },
}

/// Servers accepted by a client. A node that takes part accepts a single server (I353).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Believed {
    /// Initial state: any server.
    #[default]
    Any,
    /// Any server; the last server had this id.
    Last(u64),
    /// Only the server with this id.
    Only(u64),
    /// No server any more: a new server has replaced the server that the client stays with. The
    /// client tells later servers at the address about the earlier server.
    None,
}

impl Believed {
    /// State after a welcome of the server `life`.
    fn after(self, life: u64) -> Self {
        match self {
            Self::Any | Self::Last(_) => Self::Last(life),
            Self::Only(only) if only == life => self,
            Self::Only(_) | Self::None => Self::None,
        }
    }

    /// State of a client that stays with the last server.
    fn fixed(self) -> Self {
        match self {
            Self::Last(life) => Self::Only(life),
            other => other,
        }
    }
}

/// How long the server that a client stays with has been silent.
struct ServerSilence {
    env: Env,
    /// Time at which the last answered question was asked.
    heard: Nanos,
    /// Whether no process has listened at the address since: a server listens as long as it lives.
    has_ended: bool,
}

/// Client of an authority in a server process; one call at a time. Connecting, each step of the
/// handshake and each answer take at most `patience`; reads are retried once, on a new connection.
pub struct RemoteAuthority {
    address: Address,
    security: Security,
    patience: Duration,
    connection: Mutex<Option<Stream>>,
    believed: Mutex<Believed>,
    hearing: Mutex<Option<ServerSilence>>,
}

impl RemoteAuthority {
    /// Creates a client of the authority at `address`. The client connects on the first call, and
    /// again whenever the connection is lost.
    pub fn new(address: Address, security: Security, patience: Duration) -> Self {
        let (connection, believed) = (Mutex::default(), Mutex::default());
        Self { address, security, patience, connection, believed, hearing: Mutex::default() }
    }

    /// Accepts, from now on, only the server that has answered last. If a new server replaces it,
    /// every call fails. The clock of `env` measures the server's silence.
    pub fn stay(&self, env: &Env) {
        let mut believed = self.believed();
        *believed = believed.fixed();
        let hearing = ServerSilence { env: env.clone(), heard: env.now(), has_ended: false };
        *self.hearing() = Some(hearing);
    }

    /// Whether a new server has replaced the server that this client stays with.
    pub fn is_replaced(&self) -> bool {
        *self.believed() == Believed::None
    }

    fn believed(&self) -> MutexGuard<'_, Believed> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hearing(&self) -> MutexGuard<'_, Option<ServerSilence>> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an answer to a question asked at `asked`.
    fn note_answer(&self, asked: Option<Nanos>) {
        if let (Some(hearing), Some(asked)) = (&mut *self.hearing(), asked) {
            hearing.heard = hearing.heard.max(asked);
            hearing.has_ended = false;
        }
    }

    /// Records a failed connection attempt.
    fn note_failure(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        if let Some(hearing) = &mut *self.hearing() {
            hearing.has_ended |= matches!(error.kind(), ConnectionRefused | NotFound);
        }
    }

    /// Connects now, to report configuration errors.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self) -> Result<(), ConnectError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.is_none() {
            *connection = Some(self.open()?);
        }
        Ok(())
    }

    fn open(&self) -> Result<Stream, ConnectError> {
        let unreachable = |source: io::Error| {
            let address = self.address.clone();
            match source.kind() {
                io::ErrorKind::InvalidData => ConnectError::Untrusted { address, source },
                _ => ConnectError::Unreachable { address, source },
            }
        };
        let replaced = || ConnectError::Replaced { address: self.address.clone() };
        let stream = Stream::connect(&self.address, &self.security, self.patience);
        let stream = stream.inspect_err(|error| self.note_failure(error));
        let mut stream = stream.map_err(unreachable)?;
        let patient = stream.set_patience(Some(self.patience), self.patience);
        patient.map_err(unreachable)?;
        match self.shake_hands(&mut stream).map_err(unreachable)? {
            Ok(life) => {
                let mut believed = self.believed();
                *believed = believed.after(life);
                if *believed == Believed::None {
                    // Each call tells the present server again: the told server may have ended, and
                    // a successor begins without the information.
                    let _ = wire::send(&mut stream, &Request::EarlierLife);
                    return Err(replaced());
                }
                Ok(stream)
            }
            Err(reason) => Err(ConnectError::Refused { address: self.address.clone(), reason }),
        }
    }

    fn shake_hands(&self, stream: &mut Stream) -> io::Result<Result<u64, Refusal>> {
        let key = self.security.key();
        let hello = Hello { version: VERSION, secured: key.is_some(), nonce: nonce()? };
        wire::send(stream, &Request::Hello(hello))?;
        let mut trusted = key.is_none();
        loop {
            match (wire::receive(stream, MAX_GUEST_BYTES)?, key) {
                (Some(Reply::Challenge { nonce, proof }), Some(key)) if !trusted => {
                    let words = hello.words();
                    if !key.verify(SERVER, &words, nonce, &proof) {
                        return Ok(Err(Refusal::Proof));
                    }
                    trusted = true;
                    let proof = Request::Proof(key.sign(CLIENT, &words, nonce));
                    wire::send(stream, &proof)?;
                }
                (Some(Reply::Welcome { life }), _) if trusted => return Ok(Ok(life)),
                // A server without a key welcomes at once; a client with a key hangs up.
                (Some(Reply::Welcome { .. }), _) => return Ok(Err(Refusal::Security)),
                (Some(Reply::Refused(why)), _) => return Ok(Err(why)),
                _ => return Ok(Err(Refusal::Garbage)),
            }
        }
    }

    /// Sends one request and waits for the reply. On failure the connection is dropped.
    fn ask(&self, request: &Request) -> Result<Reply, AuthorityError> {
        let lost = AuthorityError::Unavailable;
        let asked = self.hearing().as_ref().map(|hearing| hearing.env.now());
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => self.open().map_err(|_| lost)?,
        };
        wire::send(&mut stream, request).map_err(|_| lost)?;
        let reply = wire::receive(&mut stream, MAX_FRAME_BYTES).ok().flatten().ok_or(lost)?;
        *connection = Some(stream);
        self.note_answer(asked);
        Ok(reply)
    }

    /// Reads a value; repeats a failed request once, which is safe for reads.
    fn find(&self, request: &Request) -> Result<Option<Versioned>, AuthorityError> {
        let again = |error| if self.is_replaced() { Err(error) } else { self.ask(request) };
        match self.ask(request).or_else(again)? {
            Reply::Nothing => Ok(None),
            Reply::Found(found) => Ok(Some(found)),
            _ => Err(AuthorityError::Unavailable),
        }
    }
}

/// # Panics
/// Methods panic for keys longer than [`MAX_KEY_BYTES`] or values longer than [`MAX_VALUE_BYTES`].
impl Authority for RemoteAuthority {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.find(&Request::Read { key: checked(key) })
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        assert!(value.len() <= MAX_VALUE_BYTES, "values have at most {MAX_VALUE_BYTES} bytes");
        let request = Request::Swap { key: checked(key), expected, value: value.to_vec() };
        match self.ask(&request)? {
            Reply::Swapped(version) => Ok(version),
            Reply::Conflict(current) => Err(AuthorityError::Conflict { current }),
            _ => Err(AuthorityError::Unavailable),
        }
    }

    fn changed_since(&self, key: &str, seen: Version) -> Result<Option<Versioned>, AuthorityError> {
        self.find(&Request::ChangedSince { key: checked(key), seen })
    }

    /// Zero for a client that stays with no server.
    fn silence(&self) -> Duration {
        match &*self.hearing() {
            None => Duration::ZERO,
            Some(hearing) if hearing.has_ended || self.is_replaced() => Duration::MAX,
            Some(hearing) => hearing.env.now().since(hearing.heard),
        }
    }
}

fn checked(key: &str) -> String {
    assert!(key.len() <= MAX_KEY_BYTES, "keys have at most {MAX_KEY_BYTES} bytes");
    key.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_stays_with_one_server_believes_no_other_again() {
        let any = Believed::default();
        assert_eq!(any.fixed(), any, "none has answered");
        assert_eq!(any.after(1).after(2), Believed::Last(2));
        let only = any.after(1).fixed();
        assert_eq!((only, only.after(1)), (Believed::Only(1), only));
        assert_eq!((only.after(2), only.after(2).after(1)), (Believed::None, Believed::None));
        assert_eq!(only.after(2).fixed(), Believed::None);
    }
}
