//! The bytes of a connection: plain, or encrypted by TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::policy::Security;
#[cfg(feature = "tls")]
use super::tls::Sealed;

/// Error of a stream whose peer does not begin with TLS. The refusal can be sent to the peer in
/// plain text.
pub const NO_TLS: io::ErrorKind = io::ErrorKind::Unsupported;

/// Kind of clients of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Nodes of the cluster.
    Node,
    /// Applications, with separate certificates.
    Application,
}

/// A socket, with or without TLS. Reads and writes do not block: they move as many bytes as
/// possible, or fail with [`io::ErrorKind::WouldBlock`].
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    #[cfg(feature = "tls")]
    Sealed(Box<Sealed>),
}

impl Stream {
    /// Creates the stream of an outgoing connection.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn outgoing(socket: TcpStream, security: &Security) -> io::Result<Self> {
        match security {
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(Self::Sealed(Box::new(tls.connect(socket)?))),
            _ => Ok(Self::Plain(socket)),
        }
    }

    /// Creates the stream of an incoming connection.
    ///
    /// # Errors
    /// TLS cannot be set up.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "it matters to TLS only"))]
    pub fn incoming(socket: TcpStream, security: &Security, from: Caller) -> io::Result<Self> {
        match security {
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(Self::Sealed(Box::new(tls.accept(socket, from)?))),
            _ => Ok(Self::Plain(socket)),
        }
    }

    /// The underlying socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Sealed(sealed) => sealed.socket(),
        }
    }

    /// Returns whether the stream may hold buffered bytes that a watch on the socket does not
    /// report. Reading until a read does not fill its buffer drains the buffered bytes.
    #[inline]
    pub fn hides_input(&self) -> bool {
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
    /// Unwritten bytes must be offered again first, unchanged: TLS may have encrypted them already.
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
