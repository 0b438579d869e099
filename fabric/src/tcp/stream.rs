//! A connection's bytes: as they are, or sealed by TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::Security;
#[cfg(feature = "tls")]
use super::tls::Sealed;

/// The error of a stream whose other side does not begin as TLS does. It can be told in plain
/// words.
pub const NO_TLS: io::ErrorKind = io::ErrorKind::Unsupported;

/// Who asks for connections at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Nodes of the cluster.
    Node,
    /// Applications, which have certificates of their own.
    Application,
}

/// A socket, with or without TLS around what it carries. Reading and writing move what can be
/// moved at once; what cannot is [`io::ErrorKind::WouldBlock`].
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Within TLS.
    #[cfg(feature = "tls")]
    Sealed(Box<Sealed>),
}

impl Stream {
    /// The stream over a socket that this side has asked for.
    ///
    /// # Errors
    /// TLS cannot begin.
    pub fn outgoing(socket: TcpStream, security: &Security) -> io::Result<Self> {
        match security {
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(Self::Sealed(Box::new(tls.connect(socket)?))),
            _ => Ok(Self::Plain(socket)),
        }
    }

    /// The stream over a socket that somebody else has asked for.
    ///
    /// # Errors
    /// TLS cannot begin.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "it matters to TLS only"))]
    pub fn incoming(socket: TcpStream, security: &Security, from: Caller) -> io::Result<Self> {
        match security {
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(Self::Sealed(Box::new(tls.accept(socket, from)?))),
            _ => Ok(Self::Plain(socket)),
        }
    }

    /// The socket itself.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Sealed(sealed) => sealed.socket(),
        }
    }

    /// Whether bytes may wait here that have left the socket already, so that nobody who watches
    /// it will call for them. Reading on until there is room to spare takes them all.
    #[inline]
    pub(super) fn hides_input(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Sealed(sealed) => sealed.hides_input(),
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            #[cfg(feature = "tls")]
            Self::Sealed(sealed) => sealed.read(into),
        }
    }
}

impl Write for Stream {
    /// What could not be written at once must be offered again first, unchanged: TLS may have
    /// sealed it already.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            #[cfg(feature = "tls")]
            Self::Sealed(sealed) => sealed.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
