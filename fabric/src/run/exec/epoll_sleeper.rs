//! An executor's sleep on descriptors and on an event counter (the bell), which other threads and
//! processes write to in order to end the sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::SPIN;
use crate::contract::transport::{Sleep, Wake};

/// An epoll instance that watches the bell and further descriptors.
pub(crate) struct EpollSleeper {
    epoll: OwnedFd,
    bell: OwnedFd,
}

const BELL: u64 = 0;
const OTHERS: u64 = 1;

impl EpollSleeper {
    /// Creates a sleeper with a silent bell.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, bell })
    }

    /// The bell: an eventfd. Any holder can ring it, also from another process.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Sleep for EpollSleeper {
    fn spin(&self) -> Duration {
        SPIN
    }

    fn sleep(&self, at_most: Duration) {
        let mut events = Vec::with_capacity(2);
        let room = rustix::buffer::spare_capacity(&mut events);
        // Fails only if interrupted, which ends the wait.
        let _ = epoll::wait(&self.epoll, room, Some(&timespec(at_most)));
        if events.iter().any(|event| event.data.u64() == BELL) {
            // Resets the bell. An error means that the bell is already reset.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(OTHERS);
        Ok(epoll::add(&self.epoll, other, data, epoll::EventFlags::IN)?)
    }
}

impl Wake for EpollSleeper {
    fn wake(&self) {
        // Fails only if the counter would overflow: then the bell is readable anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// Converts a duration for system calls.
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
