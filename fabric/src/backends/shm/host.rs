//! The host of a node: a thread that shares the node's memory with other processes.
//!
//! # What it is
//! [`Host`] listens at the node's socket, with one connection for each process, and answers as
//! `service` decides. The host has no part in verbs and messages: attached processes have the
//! memory mapped.
//!
//! # End of a process
//! Memory is in unnamed files, so the kernel frees the memory. The socket of a killed host stays; a
//! lock on a file beside the socket tells the next host that the socket is stale. The kernel
//! releases the lock when the lock's owner ends.
//!
//! # Misbehaving processes
//! Malformed packets end the connection. The host waits for no process: a reply that does not fit
//! ends the connection as well. The host refuses processes of other users, and processes beyond
//! [`MAX_PEERS`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::error::ShmError;
use super::process::Process;
use super::service::{Answer, Ledger, PeerId, Service};
use super::socket::{self, Received, Socket};
use super::wire::{HostRefusal, HostRequest, Reply};
use crate::contract::counters::LentResources;
use crate::contract::ids::NodeId;
use crate::run::env::Env;

/// Largest number of processes attached at once, including processes that hung up but did not end.
const MAX_PEERS: usize = 256;
/// Largest number of connections, including connections that only receive the refusal `Crowded`.
const MOST_CONNECTIONS: usize = MAX_PEERS + 64;
/// Pause in accepting when the operating system is out of descriptors.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The host of a node. Dropping the host ends the node; the node's memory remains only where
/// mapped.
pub struct Host {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
    ledger: Arc<Ledger>,
    /// Held during the host's lifetime.
    _lock: Lock,
}

impl Host {
    /// Hosts `node`, one of `nodes` nodes, at the node's socket in `directory`.
    ///
    /// # Errors
    /// [`ShmError::InUse`] if another process hosts the node; or the operating system's error.
    pub fn start(directory: &Path, node: NodeId, nodes: u16, env: &Env) -> Result<Self, ShmError> {
        let path = socket::path(directory, node);
        let failed = |source: io::Error| ShmError::Socket { path: path.clone(), source };
        let lock =
            Lock::take(&path).map_err(failed)?.ok_or_else(|| ShmError::InUse(path.clone()))?;
        // A socket file at this path is stale: the host that made it held the lock, and is gone.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = socket::listen(&path).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags)?);
        let service = Service::new(node, nodes, env.clone())?;
        let ledger = Arc::clone(service.ledger());
        let stopped = Arc::clone(&stop);
        let serve = move || {
            Server { service, listener, stop: stopped, peers: BTreeMap::new(), next: 0 }.serve();
        };
        let thread = Some(env.spawn(&format!("lotus-host{}", node.0), serve)?);
        Ok(Self { stop, thread, path, ledger, _lock: lock })
    }

    /// Returns the memory and connections that the node provides to other processes.
    pub fn lent(&self) -> LentResources {
        self.ledger.lent()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Cannot fail: this is the only write, and a single count does not overflow the counter.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
        // If the file stays, the next host treats the socket as stale.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file lock beside a socket.
struct Lock(File);

impl Lock {
    /// Takes the lock; `None` if held by another process.
    fn take(socket: &Path) -> io::Result<Option<Self>> {
        let path = socket.with_extension("lock");
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Lock {
    /// Unlocks explicitly, because closing the file is not enough: a child process that another
    /// thread is starting holds a copy of the descriptor, and so the lock, until `exec`.
    fn drop(&mut self) {
        // If unlocking fails, closing the file releases the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// State of the host's thread.
struct Server {
    service: Service,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    peers: BTreeMap<PeerId, PeerProcess>,
    next: PeerId,
}

enum PeerProcess {
    /// Has not sent a hello; the reply to the hello may be a refusal.
    Stranger(Socket, Result<Process, HostRefusal>),
    Attached(Socket),
    /// Hung up, but may have the node's memory mapped until the process ends.
    Departed,
}

/// Event that ended a wait.
#[derive(Clone, Copy)]
enum Event {
    Stop,
    Connection,
    PeerProcess(PeerId),
}

impl Server {
    fn serve(mut self) {
        let mut accepting = true;
        loop {
            let events = self.wait(accepting);
            accepting = true;
            for event in events {
                match event {
                    Event::Stop => return,
                    Event::Connection => accepting = self.welcome().is_ok(),
                    Event::PeerProcess(peer) => self.attend(peer),
                }
            }
        }
    }

    /// Sleeps until an event.
    fn wait(&self, accepting: bool) -> Vec<Event> {
        let mut sources: Vec<(Event, BorrowedFd<'_>)> = vec![(Event::Stop, self.stop.as_fd())];
        if accepting {
            sources.push((Event::Connection, self.listener.as_fd()));
        }
        for (id, peer) in &self.peers {
            let source = match peer {
                PeerProcess::Stranger(socket, _) | PeerProcess::Attached(socket) => {
                    Some(socket.as_fd())
                }
                PeerProcess::Departed => self.service.process(*id).map(Process::as_fd),
            };
            sources.extend(source.map(|source| (Event::PeerProcess(*id), source)));
        }
        let polled =
            sources.iter().map(|(_, source)| PollFd::from_borrowed_fd(*source, PollFlags::IN));
        let mut polled: Vec<_> = polled.collect();
        let timeout = if accepting { None } else { Some(&PAUSE) };
        // An interrupted wait has no events.
        if rustix::event::poll(&mut polled, timeout).is_err() {
            return Vec::new();
        }
        let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        ready.map(|((event, _), _)| *event).collect()
    }

    /// Accepts the next connection.
    fn welcome(&mut self) -> io::Result<()> {
        let socket = socket::accept(&self.listener)?;
        let process = match self.peers.len() {
            ..MAX_PEERS => stranger(&socket),
            MAX_PEERS..MOST_CONNECTIONS => Err(HostRefusal::Crowded),
            // A flood: the connection is closed without a reply.
            _ => return Ok(()),
        };
        self.peers.insert(self.next, PeerProcess::Stranger(socket, process));
        self.next += 1;
        Ok(())
    }

    /// Handles a peer's request or end.
    fn attend(&mut self, id: PeerId) {
        let next = match self.peers.remove(&id) {
            Some(PeerProcess::Stranger(socket, process)) => self.greet(id, socket, process),
            Some(PeerProcess::Attached(socket)) => self.serve_one(id, socket),
            Some(PeerProcess::Departed) => {
                self.service.forget(id);
                None
            }
            None => None,
        };
        next.map(|peer| self.peers.insert(id, peer));
    }

    fn greet(
        &mut self,
        id: PeerId,
        socket: Socket,
        process: Result<Process, HostRefusal>,
    ) -> Option<PeerProcess> {
        let (packet, files) = match socket.receive_now() {
            Ok(None) => return Some(PeerProcess::Stranger(socket, process)),
            Ok(Some(Received::Packet(packet, files))) => (packet, files),
            // Nothing of this node was given to the process yet.
            _ => return None,
        };
        let answer = match process {
            Ok(process) => self.service.greet(id, process, HostRequest::decode(&packet)?, files)?,
            Err(refusal) => refusal.into(),
        };
        let sent = send(&socket, &answer);
        if answer.reply != Reply::Welcome {
            return None;
        }
        Some(if sent { PeerProcess::Attached(socket) } else { PeerProcess::Departed })
    }

    /// Answers one request.
    fn serve_one(&mut self, id: PeerId, socket: Socket) -> Option<PeerProcess> {
        let (request, files) = match socket.receive_now() {
            Ok(None) => return Some(PeerProcess::Attached(socket)),
            Ok(Some(Received::Packet(packet, files))) => (HostRequest::decode(&packet), files),
            _ => (None, Vec::new()),
        };
        let answer = request.and_then(|request| self.service.answer(id, request, files));
        if answer.is_some_and(|answer| send(&socket, &answer)) {
            return Some(PeerProcess::Attached(socket));
        }
        self.service.hang_up(id);
        // A goodbye has already removed the process.
        self.service.process(id).map(|_| PeerProcess::Departed)
    }
}

fn send(socket: &Socket, answer: &Answer) -> bool {
    let files: Vec<_> = answer.files.iter().map(|file| file.as_fd()).collect();
    socket.send_now(&answer.reply.encode(), &files).is_ok()
}

/// Identifies the connecting process, and refuses processes of other users.
fn stranger(socket: &Socket) -> Result<Process, HostRefusal> {
    let refuse = |error: Errno| HostRefusal::System { errno: error.raw_os_error() };
    let credentials = rustix::net::sockopt::socket_peercred(socket).map_err(refuse)?;
    if credentials.uid != rustix::process::geteuid() {
        return Err(HostRefusal::OtherUser);
    }
    Process::of(credentials)
        .map_err(|error| HostRefusal::System { errno: error.raw_os_error().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_being_started_does_not_keep_the_lock_of_a_host_that_ended() {
        let directory = tempfile::tempdir().expect("a fresh directory");
        let host = || Host::start(directory.path(), NodeId(0), 1, &Env::real(0)).expect("hosts");
        let first = host();
        let _copy = first._lock.0.try_clone().expect("as a fork does");
        drop(first);
        host();
    }
}
