//! A transaction must not allocate on the harness's side: serving a hundred times as many must not
//! take one allocation more.

mod null;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a counter of allocations.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting has no effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps this function's contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(transactions: u64) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(null::serve(transactions) > transactions / 2);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// The least of several runs: the thread that runs the tests allocates too, once, at any time.
fn least_allocations_of(transactions: u64) -> u64 {
    (0..5).map(|_| allocations_of(transactions)).min().expect("five runs")
}

#[test]
fn serving_more_transactions_allocates_no_more() {
    // Warm-up: one-time allocations of the process happen here.
    allocations_of(1_000);
    let few = least_allocations_of(1_000);
    let many = least_allocations_of(100_000);
    assert!(many <= few, "{many} allocations, and {few} for a hundredth of the transactions");
}
