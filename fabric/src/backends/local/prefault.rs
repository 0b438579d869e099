//! Backs memory with pages before its first use, on a separate thread.
//!
//! A NIC pins regions at registration, so no verb ever waits for a page. Here pages are allocated
//! at the first touch, and zeroing a page takes longer than the rest of a transaction. So a caller
//! that will soon use fresh memory gives a hint
//! ([`Fabric::prefault`](crate::contract::transport::Fabric)), and the prefault thread touches the
//! memory meanwhile. The thread can only save time: a verb that gets there first faults the page,
//! and neither of the two changes the contents.

use std::sync::{OnceLock, Weak};

use crossbeam_channel::{Receiver, Sender};

use super::LocalState;
use crate::backends::copies::{Mapping, Target};
use crate::contract::ids::RemoteAddr;

/// Bytes prefaulted with one call, so that an address space is never locked for long.
const STEP_BYTES: u64 = 2 << 20;
/// Hints that may wait. Further hints are dropped.
const WAITING_HINTS: usize = 256;

/// A hint: start address and number of bytes.
type Hint = (RemoteAddr, u64);

/// Handle of the prefault thread, which starts with the first hint and ends when the fabric is
/// gone.
#[derive(Default)]
pub(super) struct Prefaulter {
    hints: OnceLock<Sender<Hint>>,
}

impl Prefaulter {
    /// Passes a hint to the thread. Has no effect if the thread cannot be started or too many hints
    /// wait; pages are then allocated at their first touch.
    pub(super) fn hint(&self, fabric: Weak<LocalState>, at: RemoteAddr, bytes: u64) {
        let hints = self.hints.get_or_init(|| {
            let (sender, hints) = crossbeam_channel::bounded(WAITING_HINTS);
            let thread = std::thread::Builder::new().name("lotus-prefault".into());
            let _ = thread.spawn(move || follow(&fabric, &hints));
            sender
        });
        let _ = hints.try_send((at, bytes));
    }
}

fn follow(fabric: &Weak<LocalState>, hints: &Receiver<Hint>) {
    while let Ok((at, bytes)) = hints.recv() {
        let end = at.offset() + bytes;
        for from in (at.offset()..end).step_by(STEP_BYTES as usize) {
            let Some(shared) = fabric.upgrade() else { return };
            let Ok(node) = shared.node(at.node()) else { break };
            let Some(region) = node.region(at.region()) else { break };
            let Mapping::Writable(memory) = &region.mapping else { break };
            memory.prefault(from as usize, STEP_BYTES.min(end - from) as usize);
        }
    }
}
