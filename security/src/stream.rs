//! The bytes of a connection: plain, or encrypted by TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::policy::Security;
#[cfg(feature = "tls")]
use super::tls::Sealed;

/// Error of a stream with a peer that does not begin with TLS. The refusal can be sent to it in
/// plain text.
pub const NO_TLS: io::ErrorKind = io::ErrorKind::Unsupported;

/// Kind of clients that connect to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Nodes of the cluster.
    Node,
    /// Applications, with certificates of their own.
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
    /// Stream over a socket that this side has connected.
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

    /// Stream over a socket that the peer has connected.
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

    /// Whether bytes may be buffered here that have left the socket, so that a watch on the socket
    /// does not report them. Reading until a read does not fill its buffer takes them all.
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
    /// Bytes that could not be written at once must be offered again first, unchanged: TLS may have
    /// encrypted them already.
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
