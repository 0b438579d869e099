//! A process's attachment to a node: the node's mapped memory, and the connection to the node's
//! host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::error::ShmError;
use super::gates::ForeignBoard;
use super::mailbox::{Mailbox, Producer};
use super::socket::{self, Received, Socket};
use super::wire::{HostRefusal, HostRequest, Reply, VERSION};
use crate::backends::copies::{Mapping, REGIONS_PER_NODE, Region, Target};
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::contract::region::{Memory, Rights, View};

/// Time for a host to answer; longer than a fence may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// An attachment to one node.
pub(super) struct Attachment {
    socket: Mutex<Socket>,
    board: ForeignBoard,
    regions: Box<[OnceLock<Arc<Region>>]>,
    /// Whether the host hung up, or once failed to answer: the host's next reply may then belong to
    /// an earlier request.
    lost: AtomicBool,
    /// Whether a test has made the node unreachable.
    cut: Arc<AtomicBool>,
}

impl Attachment {
    /// Attaches to `node`, in a fabric of `nodes` nodes, at the node's socket in `directory`;
    /// `gates` is the file of this process's gates.
    pub(super) fn new(
        directory: &Path,
        node: NodeId,
        nodes: u16,
        gates: BorrowedFd<'_>,
        cut: Arc<AtomicBool>,
    ) -> Result<Self, ShmError> {
        let path = socket::path(directory, node);
        let absent = |source| ShmError::Absent { path: path.clone(), source };
        let socket = Socket::connect(&path, PATIENCE).map_err(absent)?;
        if rustix::net::sockopt::socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            return Err(ShmError::OtherUser);
        }
        let hello = HostRequest::Hello { version: VERSION, nodes, node };
        let (reply, files) = ask(&socket, hello, &[gates])?;
        let (Reply::Welcome, [board]) = (reply, &files[..]) else {
            return Err(unexpected(reply));
        };
        let attachment = Self {
            socket: Mutex::new(socket),
            board: ForeignBoard::map(board, nodes).map_err(|_| ShmError::Nonsense)?,
            regions: (0..REGIONS_PER_NODE).map(|_| OnceLock::new()).collect(),
            lost: AtomicBool::new(false),
            cut,
        };
        attachment.refresh()?;
        Ok(attachment)
    }

    /// Maps the regions registered since the last refresh.
    pub(super) fn refresh(&self) -> Result<(), ShmError> {
        let known = self.regions.iter().filter(|region| region.get().is_some()).count();
        if self.board.region_count() == known {
            return Ok(());
        }
        let mut from = 0;
        loop {
            let (reply, files) = self.ask(HostRequest::NextRegion { from })?;
            if reply == Reply::NoMoreRegions {
                return Ok(());
            }
            let Reply::Region { region, .. } = reply else { return Err(unexpected(reply)) };
            // Numbers that do not ascend would make this loop endless.
            if u16::from(region.0) < from {
                return Err(ShmError::Nonsense);
            }
            self.map(reply, &files)?;
            from = u16::from(region.0) + 1;
        }
    }

    /// Registers a region; `None` if the number is taken.
    pub(super) fn register(
        &self,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<Option<()>, ShmError> {
        match self.ask(HostRequest::Register { region, bytes, rights })? {
            (Reply::Refused(HostRefusal::RegionTaken), _) => Ok(None),
            (reply, files) => self.map(reply, &files).map(Some),
        }
    }

    fn map(&self, reply: Reply, files: &[OwnedFd]) -> Result<(), ShmError> {
        let (Reply::Region { region, bytes, rights }, [file]) = (reply, files) else {
            return Err(unexpected(reply));
        };
        let slot = &self.regions[usize::from(region.0)];
        if slot.get().is_some() {
            return Ok(());
        }
        let writable = rights.write || rights.atomic;
        let (mapping, mapped) = if writable {
            let memory = Memory::of_file(file)?;
            let mapped = memory.bytes();
            (Mapping::Writable(memory), mapped)
        } else {
            let view = View::of_file(file)?;
            let mapped = view.bytes();
            (Mapping::ReadOnly(view), mapped)
        };
        if bytes > mapped as u64 {
            return Err(ShmError::Nonsense);
        }
        // Another thread may have mapped the region meanwhile.
        let _ = slot.set(Arc::new(Region::new(mapping, bytes, rights)));
        Ok(())
    }

    /// Opens a lane of the node, with the bell to ring while the lane sleeps; `None` if the lane is
    /// already open.
    pub(super) fn open_lane(
        &self,
        lane: LaneId,
        bell: BorrowedFd<'_>,
    ) -> Result<Option<Mailbox>, ShmError> {
        match self.ask_with(HostRequest::OpenLane { lane }, &[bell])? {
            (Reply::Refused(HostRefusal::LaneTaken), _) => Ok(None),
            (Reply::Lane, files) => {
                let [mailbox] = &files[..] else { return Err(ShmError::Nonsense) };
                Ok(Some(Mailbox::map(mailbox)?))
            }
            (reply, _) => Err(unexpected(reply)),
        }
    }

    /// Returns the ring in which `from` puts messages for a lane of the node, and the lane's bell;
    /// `None` if the lane is not open or has no free ring.
    pub(super) fn find_lane(
        &self,
        lane: LaneId,
        from: Endpoint,
    ) -> Result<Option<(Producer, OwnedFd)>, ShmError> {
        match self.ask(HostRequest::FindLane { lane, from })? {
            (Reply::Refused(HostRefusal::NoLane | HostRefusal::NoRoom), _) => Ok(None),
            (Reply::Ring { index }, files) => {
                let files = <[OwnedFd; 2]>::try_from(files).map_err(|_| ShmError::Nonsense)?;
                let [mailbox, bell] = files;
                let producer = Producer::new(Mailbox::map(&mailbox)?, usize::from(index));
                Ok(Some((producer.ok_or(ShmError::Nonsense)?, bell)))
            }
            (reply, _) => Err(unexpected(reply)),
        }
    }

    /// Closes a lane: releases the lane's mailbox if the lane is of this node, and the lane's
    /// sending rings at this node.
    pub(super) fn close_lane(&self, at: Endpoint) -> Result<(), ShmError> {
        self.expect_done(HostRequest::CloseLane { at })
    }

    /// Fences `expelled` at this node; see `Fabric::fence`.
    pub(super) fn fence_out(&self, expelled: NodeId, epoch: Epoch) -> Result<(), ShmError> {
        self.expect_done(HostRequest::Fence { expelled, epoch })
    }

    fn expect_done(&self, request: HostRequest) -> Result<(), ShmError> {
        match self.ask(request)? {
            (Reply::Done, _) => Ok(()),
            (reply, _) => Err(unexpected(reply)),
        }
    }

    fn ask(&self, request: HostRequest) -> Result<(Reply, Vec<OwnedFd>), ShmError> {
        self.ask_with(request, &[])
    }

    fn ask_with(
        &self,
        request: HostRequest,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ShmError> {
        let socket = self.socket();
        if self.is_lost() {
            return Err(ShmError::HungUp);
        }
        ask(&socket, request, files).inspect_err(|_| self.lost.store(true, Ordering::Release))
    }

    fn socket(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection is no longer usable.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether a test has made the node unreachable.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Checks whether the host has hung up.
    pub(super) fn look(&self) {
        let socket = self.socket();
        let mut polled = [PollFd::new(&*socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|events| events > 0) {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Calls `watch` with the connection's descriptor.
    pub(super) fn with_descriptor<T>(&self, watch: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        watch(self.socket().as_fd())
    }
}

impl Target for Attachment {
    fn fence(&self, initiator: NodeId) -> Epoch {
        self.board.fence(initiator)
    }

    fn answers(&self) -> bool {
        !self.lost.load(Ordering::Relaxed) && !self.is_cut()
    }

    #[inline]
    fn region(&self, region: RegionId) -> Option<&Arc<Region>> {
        self.regions[usize::from(region.0)].get()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Unmapped first, as the goodbye says; this process's lanes have released their references.
        self.regions = Box::default();
        // If the goodbye does not arrive, the host waits for the end of this process.
        let _ = self.socket().send_now(&HostRequest::Goodbye.encode(), &[]);
    }
}

/// Sends one request and receives its reply.
fn ask(
    socket: &Socket,
    request: HostRequest,
    files: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), ShmError> {
    socket.send(&request.encode(), files).map_err(of_socket)?;
    let (packet, files) = match socket.receive().map_err(of_socket)? {
        Received::Packet(packet, files) => (packet, files),
        Received::Garbage => return Err(ShmError::Nonsense),
        Received::End => return Err(ShmError::HungUp),
    };
    Ok((Reply::decode(&packet).ok_or(ShmError::Nonsense)?, files))
}

fn of_socket(error: io::Error) -> ShmError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ShmError::Silent,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ShmError::HungUp,
        _ => ShmError::System(error),
    }
}

/// Error for a reply that the caller did not expect.
fn unexpected(reply: Reply) -> ShmError {
    match reply {
        Reply::Refused(refusal) => match refusal {
            HostRefusal::Version { theirs } => ShmError::Version { ours: VERSION, theirs },
            HostRefusal::OtherCluster => ShmError::OtherCluster,
            HostRefusal::OtherUser => ShmError::OtherUser,
            HostRefusal::Crowded => ShmError::Crowded,
            HostRefusal::NotFenced => ShmError::NotFenced,
            HostRefusal::System { errno } => ShmError::System(io::Error::from_raw_os_error(errno)),
            HostRefusal::RegionTaken
            | HostRefusal::LaneTaken
            | HostRefusal::NoLane
            | HostRefusal::NoRoom => ShmError::Nonsense,
        },
        _ => ShmError::Nonsense,
    }
}
