//! Costs of verbs on the data path: no allocations, and instructions for callgrind to count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use lotus_fabric::lane::{Completed, Lane};

use super::{open, pair_on, word};

struct Counting;

thread_local! {
    // `const` and without a destructor, so that reaching it never allocates.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down no longer counts.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory but a
// thread-local integer, and neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One of every kind of verb, with WRITEs short enough to be inline and too long for that; together
/// more than fit into the queue, so that some wait.
async fn one_of_everything(lane: &Lane) -> Completed {
    let mut batch = lane.batch();
    for size in [64, 4096] {
        let staged = batch.stage(size);
        batch.write(word(0), staged);
        batch.read(word(0), size);
    }
    batch.read_stable(word(1), 64);
    batch.compare_and_swap(word(2), 0, 1);
    batch.fetch_and_add(word(3), 1);
    (0..100).for_each(|index| batch.write_word(word(index), index));
    batch.post().await.expect("nothing fails")
}

#[test]
fn no_verb_allocates() {
    for device in ["card0", "soft0"] {
        let fabric = pair_on(device);
        let (mut executor, lane) = open(&fabric);
        let allocated = executor.run(async {
            for _ in 0..100 {
                one_of_everything(&lane).await;
            }
            // A thread initialises its own handle when it first sleeps, which it may do at any
            // time.
            lane.executor().sleep(Duration::from_millis(20)).await;
            let before = ALLOCATIONS.get();
            for _ in 0..100 {
                one_of_everything(&lane).await;
            }
            ALLOCATIONS.get() - before
        });
        assert_eq!(allocated, 0, "{device}");
    }
}

/// For `scripts/rdma-instructions.sh`: the number of batches and verbs that it sets.
#[test]
#[ignore = "to be run under callgrind"]
fn many_batches() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let verbs = number("LOTUS_VERBS").expect("LOTUS_VERBS is a number");
    let batches = number("LOTUS_BATCHES").expect("LOTUS_BATCHES is a number");
    let fabric = pair_on("card0");
    let (mut executor, lane) = open(&fabric);
    executor.run(async {
        for _ in 0..batches {
            let mut batch = lane.batch();
            (0..verbs).for_each(|index| batch.write_word(word(index), index));
            batch.post().await.expect("nothing fails");
        }
    });
}
