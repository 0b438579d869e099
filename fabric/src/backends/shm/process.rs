//! Another process, held by a process descriptor, which cannot come to mean another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::UCred;
use rustix::process::{Pid, PidfdFlags, Signal};

/// A process that has connected.
pub(super) struct Process {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Process {
    /// The process with these credentials, which has a connection open.
    pub(super) fn of(peer: UCred) -> io::Result<Self> {
        let descriptor = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty())?;
        Ok(Self { pid: peer.pid, descriptor })
    }

    /// Whether it is the calling process.
    pub(super) fn is_this(&self) -> bool {
        self.pid == rustix::process::getpid()
    }

    /// Whether all its threads have ended, so that none of its stores is still to come.
    pub(super) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Kills the process and waits for its end. Returns whether it ended within `patience`.
    pub(super) fn kill(&self, patience: Duration) -> bool {
        // Fails if it has ended by itself, which shows below.
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL);
        self.ends_within(patience)
    }

    fn ends_within(&self, patience: Duration) -> bool {
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let poll = || rustix::event::poll(&mut ends, Some(&patience));
        rustix::io::retry_on_intr(poll).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Process {
    /// Readable once the process has ended.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
