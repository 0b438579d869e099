//! An authority in another process: a small server, and the client that meets the contract.
//!
//! # What it is
//! [`AuthorityServer`] keeps the values of one [`EmbeddedAuthority`](crate::EmbeddedAuthority) and
//! answers for it on a socket; [`RemoteAuthority`] is an [`Authority`](crate::Authority) that asks
//! it. Every request is one frame, every answer one frame, in order, on a connection that the
//! client keeps. Linearizable, because the server carries out one request after the other.
//!
//! # What it is not
//! Replicated, or kept on disk: its values end with its process. The feature `etcd` has an
//! authority that is both.
//!
//! # Lives
//! Each server has a random id, which it tells with its welcome. A client that
//! [stays](RemoteAuthority::stay) with one server believes no other: a server that comes back
//! without its values would contradict all that it had said.
//!
//! # Trust
//! The rules are those of the `tcp` fabric, and so are keys and certificates ([`Security`]). Each
//! side proves that it has the key by signing the whole handshake, under labels of its own, so no
//! proof is good for anything else. Only processes of the same user can connect to a Unix socket.
//!
//! # Bounds
//! A frame has at most [`MAX_VALUE_BYTES`] and a little, 256 bytes before the handshake is over.
//! There are at most [`MAX_CONNECTIONS`] connections at a time, and [`MAX_GUESTS`] that have not
//! passed their handshake, each with a thread. A client that does not pass it in 2 s, or does not
//! take an answer in 10 s, is disconnected; a guest also if another one needs its place. An address
//! that has its three quarters waits for its own guests, and holds up no other.

mod client;
mod server;
mod wire;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

pub use client::{ConnectError, RemoteAuthority};
use lotus_security::{Caller, Source};
pub use lotus_security::{Key, Security};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use server::{AuthorityServer, ServeError, listen_unix};
pub use wire::Refusal;

/// Version of the protocol. Both ends must have the same.
pub const VERSION: u16 = 3;
/// Longest value in bytes. The catalogue of a thousand tables fits.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// Largest number of admitted connections that a server has at a time.
pub const MAX_CONNECTIONS: usize = 256;
/// Largest number of connections that have not passed the handshake, beside the others; three
/// quarters of them from one address.
pub const MAX_GUESTS: usize = 64;

/// Address at which an authority listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Whether a connection waits to be accepted, or comes before `patience` has passed.
    fn waits(&self, patience: Duration) -> bool {
        let listener = match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        };
        let patience = Timespec::try_from(patience).ok();
        let mut polled = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        // A signal ends it early, which is as good as the end of the time.
        matches!(poll(&mut polled, patience.as_ref()), Ok(1..))
    }

    fn accept(&self, security: &Security) -> io::Result<(Stream, Source)> {
        Ok(match self {
            Self::Unix(listener) => (Stream::Unix(listener.accept()?.0), Source::ThisHost),
            Self::Tcp(listener) => {
                let (socket, address) = listener.accept()?;
                let stream = lotus_security::Stream::incoming(socket, security, Caller::Node)?;
                (Stream::Tcp(stream), Source::from(address.ip()))
            }
        })
    }
}

/// A connection of either kind.
enum Stream {
    Unix(UnixStream),
    Tcp(lotus_security::Stream),
}

/// Second handle of a connection, to end it from another thread.
enum Handle {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(to: &Address, security: &Security, patience: Duration) -> io::Result<Self> {
        Ok(match to {
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let socket = TcpStream::connect_timeout(address, patience)?;
                Self::Tcp(lotus_security::Stream::outgoing(socket, security)?)
            }
        })
    }

    /// Sets the time limits of a read and a write.
    fn set_patience(&self, read: Option<Duration>, write: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(Some(write))
            }
            Self::Tcp(stream) => {
                let socket = stream.socket();
                socket.set_nodelay(true)?;
                socket.set_read_timeout(read)?;
                socket.set_write_timeout(Some(write))
            }
        }
    }

    /// Whether the other side has closed the connection, and all that it had sent was read. Not
    /// known of a socket in the file system.
    fn is_closed(&self) -> bool {
        let Self::Tcp(stream) = self else { return false };
        let socket = stream.socket();
        let is_closed =
            socket.set_nonblocking(true).is_ok() && matches!(socket.peek(&mut [0]), Ok(0));
        // Should this fail the next read fails, and the connection ends.
        let _ = socket.set_nonblocking(false);
        is_closed
    }

    fn handle(&self) -> io::Result<Handle> {
        Ok(match self {
            Self::Unix(stream) => Handle::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Handle::Tcp(stream.socket().try_clone()?),
        })
    }
}

impl Handle {
    fn hang_up(&self) {
        // A connection that has ended already is no error.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tcp(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests;
