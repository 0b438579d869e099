//! Client side of the remote authority.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_security::nonce;

use super::server::{CLIENT, SERVER};
use super::wire::{self, Hello, MAX_FRAME_BYTES, MAX_GUEST_BYTES, Refusal, Reply, Request};
use super::{Address, MAX_KEY_BYTES, MAX_VALUE_BYTES, Security, Stream, VERSION};
use crate::{Authority, AuthorityError, Version, Versioned};

/// Reason why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server answers there; try again later, or correct the address.
    #[error("the authority at {address} cannot be reached: {source}")]
    Unreachable {
        /// Address that was tried.
        address: Address,
        /// Error of the operating system.
        source: io::Error,
    },
    /// TLS has failed, or something else speaks there; correct the configuration.
    #[error("the authority at {address} and this process do not trust each other: {source}")]
    Untrusted {
        /// Address that was tried.
        address: Address,
        /// Error of the TLS or protocol layer.
        source: io::Error,
    },
    /// A server answers, and refuses this client; correct the configuration.
    #[error("the authority at {address} refuses: {reason}")]
    Refused {
        /// Address that was tried.
        address: Address,
        /// Reason of the refusal.
        reason: Refusal,
    },
}

/// An authority in another process. Calls block for at most `patience`, twice that for reads, which
/// are tried again on a new connection; one call at a time.
pub struct RemoteAuthority {
    address: Address,
    security: Security,
    patience: Duration,
    connection: Mutex<Option<Stream>>,
}

impl RemoteAuthority {
    /// Authority at `address`. Connects on the first call, and again whenever the connection is
    /// lost.
    pub fn new(address: Address, security: Security, patience: Duration) -> Self {
        Self { address, security, patience, connection: Mutex::default() }
    }

    /// Connects now, so that errors of the configuration are reported.
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
        let stream = Stream::connect(&self.address, &self.security, self.patience);
        let mut stream = stream.map_err(unreachable)?;
        let patient = stream.set_patience(Some(self.patience), self.patience);
        patient.map_err(unreachable)?;
        match self.shake_hands(&mut stream).map_err(unreachable)? {
            Ok(()) => Ok(stream),
            Err(reason) => Err(ConnectError::Refused { address: self.address.clone(), reason }),
        }
    }

    fn shake_hands(&self, stream: &mut Stream) -> io::Result<Result<(), Refusal>> {
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
                (Some(Reply::Welcome), _) if trusted => return Ok(Ok(())),
                // A server without a key welcomes at once; a client with a key does not talk to it.
                (Some(Reply::Welcome), _) => return Ok(Err(Refusal::Security)),
                (Some(Reply::Refused(why)), _) => return Ok(Err(why)),
                _ => return Ok(Err(Refusal::Garbage)),
            }
        }
    }

    /// Asks once. On failure the connection is dropped.
    fn ask(&self, request: &Request) -> Result<Reply, AuthorityError> {
        let lost = AuthorityError::Unavailable;
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => self.open().map_err(|_| lost)?,
        };
        wire::send(&mut stream, request).map_err(|_| lost)?;
        let reply = wire::receive(&mut stream, MAX_FRAME_BYTES).ok().flatten().ok_or(lost)?;
        *connection = Some(stream);
        Ok(reply)
    }

    /// Asks for a value; repeats a failed question once, which is safe for reads.
    fn find(&self, request: &Request) -> Result<Option<Versioned>, AuthorityError> {
        match self.ask(request).or_else(|_| self.ask(request))? {
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
}

fn checked(key: &str) -> String {
    assert!(key.len() <= MAX_KEY_BYTES, "keys have at most {MAX_KEY_BYTES} bytes");
    key.to_owned()
}
