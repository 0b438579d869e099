//! Acquiring and releasing a lock does not allocate once the lane is warm.
//!
//! A counting allocator replaces the system's. It counts by thread, so a lane reads what it, its
//! executor and the fabric allocate on its own thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::machines::{Machines, MachinesExt, Program, Threads};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Service;
use lotus_locks::systems::Visitor;
use lotus_locks::{Client, Identity, Limits, LockSystem, Mode, Roster};
use lotus_locksystems::local::{LocalClient, LocalTable, Policy};
use lotus_locksystems::systems::{Choice, Kind};

struct Counting;

thread_local! {
    // `const` and without a destructor, so that reaching it never allocates.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory but a
// thread-local integer, and neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is being torn down counts no more.
        let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LOCKS: u64 = 1000;
const WARM_UP: u64 = 2 * LOCKS;
const MEASURED: u64 = 10 * LOCKS;

/// Counts what a lane allocates while it acquires and releases locks, one by one and in pairs.
struct Allocations;

impl Visitor for Allocations {
    type Output = u64;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> u64 {
        let (memory, node) = (NodeId(0), NodeId(1));
        let machines = Threads::new(2, 1);
        let fabric = machines.fabric();
        let stride = make().object_bytes().max(16);
        let bytes = (LOCKS * stride).next_multiple_of(4096);
        fabric.register(memory, RegionId(0), bytes, Rights::ALL).expect("there is room");
        let roster = Roster::default();
        let member = roster.join(node, 1).expect("there is room");
        let (send, counted) = async_channel::bounded(1);
        let program: Program = Box::new(move |executor: &mut Executor| {
            let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
            let opened = Client::open(make(), executor, &*fabric, 0, identity);
            let (client, lane) = opened.expect("nobody has the lane");
            Box::pin(async move {
                let lock =
                    |number: u64| RemoteAddr::new(memory, RegionId(0), number % LOCKS * stride);
                let mut before = 0;
                for number in 0..WARM_UP + MEASURED {
                    if number == WARM_UP {
                        before = ALLOCATIONS.with(Cell::get);
                    }
                    let mode = if number % 2 == 0 { Mode::Shared } else { Mode::Exclusive };
                    let hold = client.acquire(lock(number), mode, Limits::PATIENT).await;
                    let hold = hold.expect("nobody else wants it");
                    let mut batch = lane.batch();
                    let begun = client.begin(&mut batch, lock(number + 1), mode, 1);
                    let begun = begun.expect("there is room");
                    let result = batch.post().await;
                    let second = client.finish(begun, &result, Limits::PATIENT.wait).await;
                    client.release(second.expect("free")).await.expect("nothing fails");
                    client.release(hold).await.expect("nothing fails");
                }
                let allocated = ALLOCATIONS.with(Cell::get) - before;
                send.send(allocated).await.expect("it is awaited");
            })
        });
        let core = machines.start(node, "locks", program).expect("it has cores");
        let allocated = machines.wait(&counted).expect("it ends");
        machines.join(core);
        allocated
    }
}

/// The same where the clients of a node share its locks, one by one.
struct SharedAllocations;

impl Visitor for SharedAllocations {
    type Output = u64;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> u64 {
        let (memory, node) = (NodeId(0), NodeId(1));
        let machines = Threads::new(2, 1);
        let fabric = machines.fabric();
        let stride = make().object_bytes().max(16);
        let bytes = (LOCKS * stride).next_multiple_of(4096);
        fabric.register(memory, RegionId(0), bytes, Rights::ALL).expect("there is room");
        let roster = Roster::default();
        let member = roster.join(node, 1).expect("there is room");
        let table = Arc::new(LocalTable::new(Policy::LocalPrefer, 1));
        let (send, counted) = async_channel::bounded(1);
        let program: Program = Box::new(move |executor: &mut Executor| {
            let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
            let opened = Client::open(make(), executor, &*fabric, 0, identity);
            let client = LocalClient::new(opened.expect("nobody has the lane").0, table);
            Box::pin(async move {
                let mut before = 0;
                for number in 0..WARM_UP + MEASURED {
                    if number == WARM_UP {
                        before = ALLOCATIONS.with(Cell::get);
                    }
                    let mode = if number % 2 == 0 { Mode::Shared } else { Mode::Exclusive };
                    let at = RemoteAddr::new(memory, RegionId(0), number % LOCKS * stride);
                    let hold = client.acquire(at, mode, Limits::PATIENT).await;
                    client.release(hold.expect("nobody else wants it")).await.expect("no fault");
                }
                let allocated = ALLOCATIONS.with(Cell::get) - before;
                send.send(allocated).await.expect("it is awaited");
            })
        });
        let core = machines.start(node, "locks", program).expect("it has cores");
        let allocated = machines.wait(&counted).expect("it ends");
        machines.join(core);
        allocated
    }
}

#[test]
fn a_lock_that_clients_share_is_acquired_without_an_allocation() {
    for kind in [Kind::Cas, Kind::Dslr, Kind::Mcs, Kind::ShiftLock, Kind::Declock] {
        let allocated = Choice::of(kind).visit(SharedAllocations);
        assert_eq!(allocated, 0, "{kind}: in {MEASURED} rounds");
    }
}

#[test]
fn a_lock_is_acquired_and_released_without_an_allocation() {
    // The fabric has no atomics on 16 bytes.
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.needs_wide_atomics()) {
        let allocated = Choice::of(kind).visit(Allocations);
        assert_eq!(allocated, 0, "{kind}: in {MEASURED} rounds");
    }
}
