//! What wakes a process's attendant: a counter in the kernel that other processes can add to.

use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;

/// A bell that nobody has rung.
pub(super) fn new() -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings it. Never waits: one that cannot be rung any louder is ringing.
pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Lets it be rung anew.
pub(super) fn silence(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
