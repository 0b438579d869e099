//! Backs memory with pages before it is used, on a thread of its own.
//!
//! A NIC pins a region when it is registered, so no verb ever waits for a page. Here pages come
//! at their first touch, and zeroing one takes longer than all else that a transaction does. So
//! whoever is about to use fresh memory says so ([`Fabric::prefault`](crate::transport::Fabric)),
//! and this thread touches it meanwhile. It is only ever early: a verb that gets there first
//! faults the page itself, and neither changes what the memory says.

use std::sync::{OnceLock, Weak};

use crossbeam_channel::{Receiver, Sender};

use super::Shared;
use crate::copies::{Mapping, Target};
use crate::ids::RemoteAddr;

/// What is prefaulted in one go, so that an address space is never held up for long.
const STEP_BYTES: u64 = 2 << 20;
/// Hints that wait before further ones are dropped.
const WAITING_HINTS: usize = 256;

/// A hint: this many bytes from there on.
type Hint = (RemoteAddr, u64);

/// Starts its thread with the first hint, and ends it when the fabric is gone.
#[derive(Default)]
pub(super) struct Prefaulter {
    hints: OnceLock<Sender<Hint>>,
}

impl Prefaulter {
    /// Passes a hint on. Without a thread to be had, or with too many hints waiting, nothing
    /// happens, and pages come at their first touch.
    pub(super) fn hint(&self, fabric: Weak<Shared>, at: RemoteAddr, bytes: u64) {
        let hints = self.hints.get_or_init(|| {
            let (sender, hints) = crossbeam_channel::bounded(WAITING_HINTS);
            let thread = std::thread::Builder::new().name("lotus-prefault".into());
            let _ = thread.spawn(move || follow(&fabric, &hints));
            sender
        });
        let _ = hints.try_send((at, bytes));
    }
}

fn follow(fabric: &Weak<Shared>, hints: &Receiver<Hint>) {
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
