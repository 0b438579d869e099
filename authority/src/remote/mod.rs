//! An authority in a server process, and a client that implements the contract.
//!
//! # What it is
//! [`AuthorityServer`] keeps the values of one [`EmbeddedAuthority`](crate::EmbeddedAuthority) and
//! serves them on a socket; [`RemoteAuthority`] is an [`Authority`](crate::Authority) on the client
//! side, which asks the server. Every request and every answer is one frame, in order, on a
//! connection that the client keeps. Linearizable, because the server carries requests out one by
//! one.
//!
//! # What it is not
//! Replicated, or kept on disk: the values end with the server's process. The authority of the
//! feature `etcd` is both.
//!
//! # Lives
//! Each server sends a random id in its welcome. A client that [stays](RemoteAuthority::stay) with
//! one server refuses other servers: a server that comes back without its values would contradict
//! earlier answers.
//!
//! # Trust
//! Rules, keys and certificates are the same as for the `tcp` fabric ([`Security`]). Each side
//! proves possession of the key by signing the whole handshake, under a separate label, so a proof
//! is useless elsewhere. Only processes of the same user can connect to a Unix socket.
//!
//! # Bounds
//! A frame has at most [`MAX_VALUE_BYTES`] and a little, 256 bytes before the handshake is over. At
//! most [`MAX_CONNECTIONS`] connections exist at a time, and [`MAX_GUESTS`] guests (connections
//! before the end of the handshake), each with a thread. A client that does not pass the handshake
//! in 2 s, or does not take an answer in 10 s, is disconnected; a guest also to make room for a new
//! guest. An address with three quarters of the places waits for its own guests, and delays no
//! other.

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

/// Version of the protocol, equal on both ends.
pub const VERSION: u16 = 3;
/// Longest value in bytes. The catalogue of a thousand tables fits.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// Largest number of admitted connections of a server at a time.
pub const MAX_CONNECTIONS: usize = 256;
/// Largest number of connections that have not passed the handshake, beside the admitted
/// connections; at most three quarters from one address.
pub const MAX_GUESTS: usize = 64;

/// Listening address of an authority.
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
    /// Whether a connection is waiting to be accepted, or arrives before `patience` has passed.
    fn waits(&self, patience: Duration) -> bool {
        let listener = match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        };
        let patience = Timespec::try_from(patience).ok();
        let mut polled = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        // A signal ends the poll early, with the same effect as a timeout.
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

/// A connection over a Unix socket or TCP.
enum Stream {
    Unix(UnixStream),
    Tcp(lotus_security::Stream),
}

/// Second handle of a connection, for hanging up from another thread.
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

    /// Whether the peer has closed the connection, and the bytes that it had sent were read. Always
    /// false for a Unix socket.
    fn is_closed(&self) -> bool {
        let Self::Tcp(stream) = self else { return false };
        let socket = stream.socket();
        let is_closed =
            socket.set_nonblocking(true).is_ok() && matches!(socket.peek(&mut [0]), Ok(0));
        // If this fails, the next read fails, and the connection ends.
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
        // A connection that has already ended is no error.
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
