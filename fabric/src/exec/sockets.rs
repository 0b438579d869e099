//! Sockets that an executor's tasks read and write: those of applications, beside the lanes.
//!
//! # What it is
//! Sockets without waiting, and who is told when one of them is ready again. A busy executor looks
//! every few turns, with one call into the kernel for all sockets; an idle one sleeps on them, so
//! what comes wakes the very thread that reads it.
//!
//! # Who owns what
//! A task owns its [`Socket`]; the executor knows which task to wake for it. Nothing is watched,
//! and no call is made, before the first socket is adopted.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;

use super::bed::{Bed, timespec};
use super::{Handle, TaskId};
use crate::transport::Sleep;

/// Events taken in one go.
const EVENTS: usize = 64;

/// What one executor watches.
pub(super) struct Sockets {
    /// Edge-triggered: what an event says is kept in the entry.
    epoll: OwnedFd,
    entries: RefCell<Slab<Rc<Entry>>>,
    ready: RefCell<Vec<epoll::Event>>,
}

/// What is known of a socket.
struct Entry {
    readable: Cell<bool>,
    /// The other side has sent all that it will. It is said once, perhaps with the last bytes.
    ended: Cell<bool>,
    writable: Cell<bool>,
    /// Who has found it not ready.
    task: Cell<TaskId>,
}

impl Sockets {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, entries: RefCell::default(), ready: RefCell::default() })
    }

    /// Wakes those whose sockets have become ready. Whether there were any.
    pub(super) fn look(&self, executor: &Handle) -> bool {
        let entries = self.entries.borrow();
        if entries.is_empty() {
            return false;
        }
        let mut ready = self.ready.borrow_mut();
        ready.reserve(EVENTS);
        let room = rustix::buffer::spare_capacity(&mut ready);
        // Fails only for an interrupted call: then nobody was ready.
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

    /// Readable while a socket is ready and [`Sockets::look`] has not seen it.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A connection in the hands of a task. Read and written without waiting, by that task alone.
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

    /// Appends what has come to `into`, as much as it has room for; zero bytes are the end. If
    /// nothing has come, the task is woken when something does.
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
                // Less than there was room for is all that there was, but for the end.
                entry.readable.set(count == room || count == 0 || entry.ended.get());
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Writes some of `bytes`. If none can be written, the task is woken when some can.
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

    /// The executor of the task that has it.
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
        // Fails if it is not watched, which is what is wanted.
        let _ = epoll::delete(&self.sockets.epoll, &self.stream);
        self.sockets.entries.borrow_mut().remove(self.key);
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

/// The sleeper of an executor that has `lanes`' own, or none.
pub(super) fn sleeper(
    lanes: Option<&Arc<dyn Sleep>>,
    sockets: &Sockets,
) -> io::Result<Arc<dyn Sleep>> {
    let sleeper = match lanes {
        Some(sleeper) => Arc::clone(sleeper),
        None => Arc::new(Bed::new()?),
    };
    sleeper.watch(sockets.as_fd())?;
    Ok(sleeper)
}
