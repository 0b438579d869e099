//! A device that only records requests, for testing the data path without hardware.
//!
//! It completes at once each request that reports its completion. Its objects must never be
//! dropped: the library would treat them as its own.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::*;

/// A work request, as the device saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::backends::rdma) struct SeenRequest {
    pub reports: bool,
    pub fenced: bool,
    pub inline: bool,
}

/// Requests to the device of this thread.
#[derive(Default)]
pub(in crate::backends::rdma) struct Log {
    pub doorbells: usize,
    pub requests: Vec<SeenRequest>,
    reported: VecDeque<u64>,
}

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// Requests since the last call.
pub(in crate::backends::rdma) fn take_log() -> Log {
    LOG.with_borrow_mut(|log| {
        let reported = std::mem::take(&mut log.reported);
        std::mem::replace(log, Log { reported, ..Log::default() })
    })
}

unsafe extern "C" fn post_send(
    _: *mut sys::ibv_qp,
    mut next: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    LOG.with_borrow_mut(|log| {
        log.doorbells += usize::from(!next.is_null());
        // SAFETY: the list is linked through live requests and ends with a null pointer.
        while let Some(request) = unsafe { next.as_ref() } {
            let has = |flag: sys::ibv_send_flags| request.send_flags & flag.0 != 0;
            let reports = has(sys::ibv_send_flags::IBV_SEND_SIGNALED);
            log.requests.push(SeenRequest {
                reports,
                fenced: has(sys::ibv_send_flags::IBV_SEND_FENCE),
                inline: has(sys::ibv_send_flags::IBV_SEND_INLINE),
            });
            if reports {
                log.reported.push_back(request.wr_id);
            }
            next = request.next;
        }
    });
    0
}

unsafe extern "C" fn poll_cq(_: *mut sys::ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    LOG.with_borrow_mut(|log| {
        let found = log.reported.len().min(most as usize);
        for (place, id) in log.reported.drain(..found).enumerate() {
            // SAFETY: there is room for `most`; a completion begins with its id, and all zeroes are
            // one that succeeded.
            unsafe {
                let entry = into.add(place);
                entry.write(zeroed());
                entry.cast::<u64>().write(id);
            }
        }
        found as c_int
    })
}

/// Objects of the fake device.
pub(in crate::backends::rdma) struct Fake {
    pub domain: Arc<ProtectionDomain>,
    pub queue: Arc<CompletionQueue>,
    pub pair: QueuePair,
}

fn leaked<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

/// An object of the library, all zeroes.
fn blank<T>() -> T {
    // SAFETY: called for structures of pointers, integers and optional functions only, for which
    // zero is a value.
    unsafe { zeroed() }
}

impl Fake {
    pub fn new() -> Self {
        let mut context: sys::ibv_context = blank();
        context.ops.post_send = Some(post_send);
        context.ops.poll_cq = Some(poll_cq);
        let raw = leaked(context);
        let context = Arc::new(Context { raw });
        let domain = ProtectionDomain { raw: leaked(blank()), _context: Arc::clone(&context) };
        let domain = Arc::new(domain);
        let queue = leaked(sys::ibv_cq { context: raw.as_ptr(), ..blank() });
        let queue = CompletionQueue { raw: queue, _context: context, _channel: None };
        let queue = Arc::new(queue);
        let pair = QueuePair {
            raw: leaked(sys::ibv_qp { context: raw.as_ptr(), ..blank() }),
            _domain: Arc::clone(&domain),
            _queues: [Arc::clone(&queue), Arc::clone(&queue)],
            inline_bytes: 64,
        };
        Self { domain, queue, pair }
    }

    pub fn region(&self, memory: &Arc<Memory>) -> MemoryRegion {
        let _domain = Arc::clone(&self.domain);
        MemoryRegion { raw: leaked(blank()), _domain, memory: Arc::clone(memory) }
    }
}
