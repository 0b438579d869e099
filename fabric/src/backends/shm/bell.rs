//! Event counters in the kernel that other processes can add to. They wake helpers and lanes.

use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;

/// Creates a bell that has not been rung.
pub(super) fn new() -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings the bell. Never blocks: a full counter is ringing already.
pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Resets the bell.
pub(super) fn silence(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
