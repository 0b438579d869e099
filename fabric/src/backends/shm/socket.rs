//! Unix sockets that preserve packet boundaries and carry file descriptors.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::{PACKET_BYTES, Packet};
use crate::contract::ids::NodeId;

/// Largest number of files sent with one packet.
const MAX_FILES: usize = 2;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Returns the path of the socket of `node`'s host.
pub(super) fn path(directory: &Path, node: NodeId) -> PathBuf {
    directory.join(format!("node-{}.sock", node.0))
}

/// Removes the sockets and locks that killed hosts of a fabric of `nodes` nodes left in
/// `directory`, then the directory if empty. Files of running hosts stay.
pub fn remove_sockets(directory: &Path, nodes: u16) {
    for node in (0..nodes).map(NodeId) {
        let socket = path(directory, node);
        let lock = socket.with_extension("lock");
        // A running host holds the lock. A missing file is no error.
        let held = fs::File::open(&lock)
            .map(|file| (rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive), file));
        if matches!(held, Ok((Err(Errno::WOULDBLOCK), _))) {
            continue;
        }
        let _ = fs::remove_file(lock);
        let _ = fs::remove_file(socket);
    }
    let _ = fs::remove_dir(directory);
}

/// One end of a connection.
pub(super) struct Socket(OwnedFd);

/// Result of receiving from a socket.
pub(super) enum Received {
    Packet(Packet, Vec<OwnedFd>),
    /// Bytes that are not a packet of this protocol.
    Garbage,
    /// The peer has closed the connection.
    End,
}

fn new_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`; no file may exist at the path.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts the next connection.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Socket> {
    Ok(Socket(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?))
}

impl Socket {
    /// Connects to the socket at `path`; receives and sends time out after `patience`.
    pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let socket = new_socket()?;
        for side in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&socket, side, Some(patience))?;
        }
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Sends a packet and copies of `files`.
    pub(super) fn send(&self, packet: &Packet, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(packet, files, SendFlags::NOSIGNAL)
    }

    /// Like `send`, but fails instead of blocking.
    pub(super) fn send_now(&self, packet: &Packet, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(packet, files, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        packet: &Packet,
        files: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(files));
            assert!(fits, "a packet carries at most {MAX_FILES} files");
        }
        let send = || rustix::net::sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, flags);
        let sent = rustix::io::retry_on_intr(send)?;
        debug_assert_eq!(sent, PACKET_BYTES, "packets are sent whole");
        Ok(())
    }

    /// Waits for the next packet.
    pub(super) fn receive(&self) -> io::Result<Received> {
        self.receive_with(RecvFlags::empty())
    }

    /// Receives the next packet, if available, without waiting.
    pub(super) fn receive_now(&self) -> io::Result<Option<Received>> {
        match self.receive_with(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Received> {
        let mut packet = [0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let receive = || {
            let parts = &mut [IoSliceMut::new(&mut packet)];
            rustix::net::recvmsg(&self.0, parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)
        };
        let message = match rustix::io::retry_on_intr(receive) {
            Err(Errno::CONNRESET) => return Ok(Received::End),
            message => message?,
        };
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = part {
                files.extend(sent);
            }
        }
        let cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(match message.bytes {
            0 => Received::End,
            PACKET_BYTES if !cut => Received::Packet(packet, files),
            _ => Received::Garbage,
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
