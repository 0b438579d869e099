//! Byte stream between a client and a server: TCP, plain or within TLS, or a Unix socket.
//!
//! TLS is the nodes' TLS (`lotus_fabric::security::Stream`), which reads and writes without
//! waiting; this module adds the waiting for `tokio`. TLS may hold bytes that the socket has
//! already delivered; TLS is read before waiting, because only a read that finds nothing makes
//! `tokio` poll the socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lotus_security::{self as security, Caller, Security};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::frame::Incoming;
use crate::handshake::{ClientHandshake, Refusal};
use crate::messages::{ANSWER_BYTES, Directory};

/// TCP keepalive: silence before the first probe, interval, and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
/// Longest time for which sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Most bytes read from TLS with one call: a TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Prefix of an address that is the path of a Unix socket.
pub const LOCAL: &str = "unix:";

/// A connected stream, of any of the three kinds.
#[derive(Debug)]
pub enum Stream {
    /// TCP, after a handshake with or without a shared key.
    Plain(TcpStream),
    /// TCP with TLS.
    Sealed(Sealed),
    /// A Unix socket, which never leaves this host.
    Local(UnixStream),
}

/// Failure to connect or to pass a server's handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The server refused, or this client does not trust the server.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection broke; TLS reports its errors as [`io::ErrorKind::InvalidData`].
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Stream {
    /// Connects to a server and passes its handshake. The [`Incoming`] buffer holds bytes received
    /// after the welcome, and takes frames of an answer's size.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn open(
        address: &str,
        security: &Security,
    ) -> Result<(Self, Incoming, Box<Directory>), HandshakeError> {
        let mut stream = Self::connect(address, security).await?;
        let mut incoming = Incoming::new(ANSWER_BYTES);
        let mut out = Vec::new();
        let mut handshake = ClientHandshake::start(security.key(), &mut out)?;
        loop {
            stream.write_all(&out).await?;
            out.clear();
            loop {
                if let Some(frame) = incoming.take_frame().map_err(|_| Refusal::Garbage)? {
                    match handshake.step(frame, &mut out)? {
                        Some(directory) => return Ok((stream, incoming, directory)),
                        None => break,
                    }
                }
                if stream.read_buf(incoming.space(4096)).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
                }
            }
        }
    }

    /// Connects to a server: at a host and port, or, if the address begins with [`LOCAL`], at the
    /// Unix socket with the path that follows.
    ///
    /// # Errors
    /// The system refuses, TLS cannot begin, or TLS is asked for on a Unix socket.
    pub async fn connect(address: &str, security: &Security) -> io::Result<Self> {
        match address.strip_prefix(LOCAL) {
            None => Self::outgoing(TcpStream::connect(address).await?, security),
            Some(_) if security.seals() => {
                let why = "TLS is not spoken through Unix sockets";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            Some(path) => Ok(Self::Local(UnixStream::connect(path).await?)),
        }
    }

    /// Returns the stream over a socket that this side has connected.
    ///
    /// # Errors
    /// The system refuses, or TLS cannot begin.
    pub fn outgoing(socket: TcpStream, security: &Security) -> io::Result<Self> {
        Self::over(socket, security, |socket| security::Stream::outgoing(socket, security))
    }

    /// Returns the stream over a socket that an application has connected.
    ///
    /// # Errors
    /// The system refuses, or TLS cannot begin.
    pub fn incoming(socket: TcpStream, security: &Security) -> io::Result<Self> {
        let sealed = |socket| security::Stream::incoming(socket, security, Caller::Application);
        Self::over(socket, security, sealed)
    }

    fn over(
        socket: TcpStream,
        security: &Security,
        sealed: impl FnOnce(std::net::TcpStream) -> io::Result<security::Stream>,
    ) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        give_up_the_vanished(&socket)?;
        if !security.seals() {
            return Ok(Self::Plain(socket));
        }
        let socket = socket.into_std()?;
        let watch = TcpStream::from_std(socket.try_clone()?)?;
        Ok(Self::Sealed(Sealed { watch, stream: sealed(socket)? }))
    }

    /// Writes as much as possible without waiting.
    ///
    /// # Errors
    /// Errors of a write; [`io::ErrorKind::WouldBlock`] if there is no room.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(bytes),
            Self::Sealed(sealed) => sealed.stream.write(bytes),
            Self::Local(socket) => socket.try_write(bytes),
        }
    }

    /// Same as [`Self::try_write`], bypassing TLS: for a peer that does not speak TLS
    /// ([`security::NO_TLS`]).
    ///
    /// # Errors
    /// Same as [`Self::try_write`].
    pub fn try_write_plainly(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(bytes),
            Self::Sealed(sealed) => sealed.stream.socket().write(bytes),
            Self::Local(socket) => socket.try_write(bytes),
        }
    }
}

/// Lets the kernel end a connection whose other side has vanished without closing it, for example
/// at a loss of power: the other side answers no probe, or acknowledges no sent bytes.
fn give_up_the_vanished(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED.as_millis() as u32)?;
    Ok(())
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Sealed(sealed) => sealed.stream.as_fd(),
            Self::Local(socket) => socket.as_fd(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, into),
            Self::Sealed(sealed) => Pin::new(sealed).poll_read(cx, into),
            Self::Local(socket) => Pin::new(socket).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Sealed(sealed) => Pin::new(sealed).poll_write(cx, bytes),
            Self::Local(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Sealed(sealed) => Pin::new(sealed).poll_shutdown(cx),
            Self::Local(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

/// A TCP socket with TLS.
pub struct Sealed {
    /// A second handle of the socket, by which `tokio` watches it.
    watch: TcpStream,
    stream: security::Stream,
}

/// Keys are not shown.
impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sealed").field(&self.watch).finish()
    }
}

impl AsyncRead for Sealed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { watch, stream } = self.get_mut();
        let room = into.initialize_unfilled_to(into.remaining().min(RECORD_BYTES));
        loop {
            ready!(watch.poll_read_ready(cx))?;
            match watch.try_io(Interest::READABLE, || stream.read(room)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    into.advance(read?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Sealed {
    /// Unwritten bytes must be offered again first, unchanged: TLS may have sealed them already.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { watch, stream } = self.get_mut();
        loop {
            ready!(watch.poll_write_ready(cx))?;
            match watch.try_io(Interest::WRITABLE, || stream.write(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.socket().shutdown(std::net::Shutdown::Write))
    }
}
