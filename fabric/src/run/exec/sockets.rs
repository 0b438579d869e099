//! Sockets of applications (not of lanes), read and written by an executor's tasks.
//!
//! # What it is
//! Non-blocking sockets, with the task to wake when a socket becomes ready again. A busy executor
//! polls every few turns, with one system call for all sockets; an idle executor sleeps on the
//! sockets, so input directly wakes the reading thread.
//!
//! # Ownership
//! A task owns its [`Socket`]; the executor knows the task to wake. Before the first socket is
//! adopted, no descriptor is watched and no system call is made.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use slab::Slab;

use super::epoll_sleeper::{EpollSleeper, timespec};
use super::{Handle, TaskId};
use crate::contract::transport::Sleep;

/// Events taken with one system call.
const EVENTS: usize = 64;

/// The sockets of one executor.
pub(super) struct Sockets {
    /// Edge-triggered: an event's flags are kept in the entry.
    epoll: OwnedFd,
    entries: RefCell<Slab<Rc<Entry>>>,
    ready: RefCell<Vec<epoll::Event>>,
}

/// Readiness of one socket, as last seen.
struct Entry {
    readable: Cell<bool>,
    /// The peer has closed its sending side. The kernel reports the end once, perhaps with the last
    /// bytes.
    ended: Cell<bool>,
    writable: Cell<bool>,
    /// Task to wake when the socket becomes ready.
    task: Cell<TaskId>,
}

impl Sockets {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, entries: RefCell::default(), ready: RefCell::default() })
    }

    /// Wakes the tasks whose sockets have become ready. Returns whether any socket has.
    pub(super) fn look(&self, executor: &Handle) -> bool {
        let entries = self.entries.borrow();
        if entries.is_empty() {
            return false;
        }
        let mut ready = self.ready.borrow_mut();
        ready.reserve(EVENTS);
        let room = rustix::buffer::spare_capacity(&mut ready);
        // Fails only if interrupted; no socket is ready then.
        let _ = epoll::wait(&self.epoll, room, Some(&timespec(Duration::ZERO)));
        let any = !ready.is_empty();
        for event in ready.drain(..) {
            let Some(entry) = entries.get(event.data.u64() as usize) else { continue };
            let flags = event.flags;
            let broken = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let end = epoll::EventFlags::RDHUP | broken;
            let came = epoll::EventFlags::IN | end;
            let left = epoll::EventFlags::OUT | broken;
            entry.ended.set(entry.ended.get() || flags.intersects(end));
            entry.readable.set(entry.readable.get() || flags.intersects(came));
            entry.writable.set(entry.writable.get() || flags.intersects(left));
            if entry.task.get() != TaskId::NONE {
                executor.wake(entry.task.replace(TaskId::NONE));
            }
        }
        any
    }

    /// The epoll descriptor: readable while a socket is ready and [`Sockets::look`] has not taken
    /// the event.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A connection owned by a task, the only reader and writer. Reads and writes do not block.
pub struct Socket {
    stream: OwnedFd,
    entry: Rc<Entry>,
    key: usize,
    sockets: Rc<Sockets>,
    executor: Handle,
}

impl Socket {
    pub(super) fn new(
        stream: OwnedFd,
        sockets: &Rc<Sockets>,
        executor: &Handle,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let entry = Rc::new(Entry {
            readable: Cell::new(true),
            ended: Cell::new(false),
            writable: Cell::new(true),
            task: Cell::new(TaskId::NONE),
        });
        let mut entries = sockets.entries.borrow_mut();
        let vacant = entries.vacant_entry();
        let key = vacant.key();
        epoll::add(&sockets.epoll, &stream, epoll::EventData::new_u64(key as u64), flags)?;
        vacant.insert(Rc::clone(&entry));
        let (sockets, executor) = (Rc::clone(sockets), executor.clone());
        Ok(Self { stream, entry, key, sockets, executor })
    }

    /// Appends received bytes to `into` up to its capacity; zero bytes mean the end. If no bytes
    /// are available, the task is woken when bytes arrive.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn poll_read(&mut self, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let Self { stream, entry, executor, .. } = self;
        if !entry.readable.get() {
            return entry.wait(executor);
        }
        let room = into.capacity() - into.len();
        match retrying(|| rustix::io::read(&*stream, rustix::buffer::spare_capacity(into))) {
            Err(Errno::AGAIN) => {
                entry.readable.set(false);
                entry.wait(executor)
            }
            Ok(count) => {
                // A short read has drained the socket, but the end may still be unread.
                entry.readable.set(count == room || count == 0 || entry.ended.get());
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Writes a prefix of `bytes`. If nothing can be written, the task is woken when the socket has
    /// room.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn poll_write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, entry, executor, .. } = self;
        if !entry.writable.get() {
            return entry.wait(executor);
        }
        let flags = rustix::net::SendFlags::NOSIGNAL;
        match retrying(|| rustix::net::send(&*stream, bytes, flags)) {
            Err(Errno::AGAIN) => {
                entry.writable.set(false);
                entry.wait(executor)
            }
            outcome => Poll::Ready(outcome.map_err(io::Error::from)),
        }
    }

    /// Executor of the owning task.
    pub fn executor(&self) -> &Handle {
        &self.executor
    }
}

impl Entry {
    fn wait<T>(&self, executor: &Handle) -> Poll<T> {
        self.task.set(executor.current());
        Poll::Pending
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails if the socket is not watched, which is the desired result.
        let _ = epoll::delete(&self.sockets.epoll, &self.stream);
        self.sockets.entries.borrow_mut().remove(self.key);
    }
}

/// Creates a TCP socket that is connecting, or already connected, to an address.
pub(super) fn connecting(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn retrying<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Returns the sleeper of an executor with sockets: `lanes` if present, otherwise a new sleeper.
pub(super) fn sleeper(
    lanes: Option<&Arc<dyn Sleep>>,
    sockets: &Sockets,
) -> io::Result<Arc<dyn Sleep>> {
    let sleeper = match lanes {
        Some(sleeper) => Arc::clone(sleeper),
        None => Arc::new(EpollSleeper::new()?),
    };
    sleeper.watch(sockets.as_fd())?;
    Ok(sleeper)
}
