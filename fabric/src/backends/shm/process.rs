//! Another process, held by a process descriptor: unlike a process id, a descriptor is never reused
//! for a different process.

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
    /// Opens the process with the credentials `peer` of an open connection.
    pub(super) fn of(peer: UCred) -> io::Result<Self> {
        let descriptor = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty())?;
        Ok(Self { pid: peer.pid, descriptor })
    }

    /// Whether the process is the calling process.
    pub(super) fn is_this(&self) -> bool {
        self.pid == rustix::process::getpid()
    }

    /// Whether every thread of the process has ended, so that no store is outstanding.
    pub(super) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Kills the process and waits for its end. Returns whether the process ended within
    /// `patience`.
    pub(super) fn kill(&self, patience: Duration) -> bool {
        // Fails if the process has already ended; the wait below then succeeds.
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
