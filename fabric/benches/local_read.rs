//! Cost of a READ through the back ends that copy, `local` and `shm`, compared with a bare copy of
//! the same bytes. On `shm` the memory belongs to a host in this process, which makes no
//! difference.
//!
//! Every benchmark fetches random 64-byte records from a mapping far larger than the caches:
//!
//! * `raw`: sixteen addresses at a time, all prefetched, then all copied. The floor.
//! * `read/1`: one coroutine, each READ awaited before the next. Nothing hides the latency.
//! * `read/16`: sixteen coroutines on one executor and lane. The excess over `raw` is the cost of
//!   executor, lane and transport; the aim is at most twice `raw`.
//!
//! `executor/yield` is one suspension and resumption of a coroutine among sixteen.

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lotus_fabric::env::Env;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::{LINE_BYTES, Memory, Rights, WORD_BYTES};
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::transport::Fabric;

const MAPPING_BYTES: u64 = 1 << 30;
const RECORD_BYTES: usize = LINE_BYTES;
const RECORD_WORDS: usize = RECORD_BYTES / WORD_BYTES;
const RECORDS: u64 = MAPPING_BYTES / RECORD_BYTES as u64;
const WIDTH: usize = 16;
const NODES: u16 = 2;
const MEMORY_NODE: NodeId = NodeId(0);
const REGION: RegionId = RegionId(0);

/// Record numbers in an order that no hardware prefetcher follows (Knuth's MMIX generator).
struct Scatter(u64);

impl Scatter {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % RECORDS
    }
}

fn raw(criterion: &mut Criterion) {
    let env = Env::real(0);
    let memory = Memory::anonymous(MAPPING_BYTES as usize).expect("maps");
    for word in (0..memory.bytes() / WORD_BYTES).step_by(4096 / WORD_BYTES) {
        memory.write(word, &[1]);
    }
    let mut scatter = Scatter(1);
    let mut copies = [[0; RECORD_WORDS]; WIDTH];
    let mut group = criterion.benchmark_group("local");
    group.throughput(Throughput::Elements(1));
    group.bench_function("raw", |bencher| {
        bencher.iter_custom(|records| {
            let start = env.now();
            for _ in 0..records.div_ceil(WIDTH as u64) {
                let words: [usize; WIDTH] =
                    std::array::from_fn(|_| scatter.next() as usize * RECORD_WORDS);
                words.iter().for_each(|&word| memory.prefetch(word, RECORD_WORDS));
                for (&word, copy) in words.iter().zip(&mut copies) {
                    memory.read(word, copy);
                    black_box(copy);
                }
            }
            env.now().since(start)
        });
    });
}

fn local(criterion: &mut Criterion) {
    read(criterion, "local", &LocalFabric::new(NODES));
}

fn shm(criterion: &mut Criterion) {
    let directory = std::env::temp_dir().join(format!("lotus-bench-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a fresh directory");
    let fabric = ShmFabric::join(&directory, NODES, &Env::real(0)).expect("joins");
    (0..NODES).for_each(|node| fabric.host(NodeId(node)).expect("hosts"));
    read(criterion, "shm", &fabric);
    drop(fabric);
    std::fs::remove_dir_all(&directory).expect("nobody else removes it");
}

fn read(criterion: &mut Criterion, name: &str, fabric: &dyn Fabric) {
    let (mut executor, lane) = lane(fabric);
    touch_every_page(&mut executor, &lane);
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    for width in [1, WIDTH as u64] {
        group.bench_function(format!("read/{width}"), |bencher| {
            bencher.iter_custom(|records| {
                let lane = lane.clone();
                on_coroutines(&mut executor, width, move |_, index| {
                    let (lane, mut scatter) = (lane.clone(), Scatter(index));
                    async move {
                        for _ in 0..records.div_ceil(width) {
                            let mut batch = lane.batch();
                            let buffer = batch.read(record(scatter.next()), RECORD_BYTES);
                            let done = batch.post().await.expect("no fault is injected");
                            black_box(done.words(buffer)[0]);
                        }
                    }
                })
            });
        });
    }
}

fn yields(criterion: &mut Criterion) {
    let mut executor = Executor::new(Env::real(0));
    criterion.bench_function("executor/yield", |bencher| {
        bencher.iter_custom(|yields| {
            on_coroutines(&mut executor, WIDTH as u64, move |handle, _| async move {
                for _ in 0..yields.div_ceil(WIDTH as u64) {
                    handle.yield_now().await;
                }
            })
        });
    });
}

/// Runs `count` coroutines to their end and returns the time taken.
fn on_coroutines<Work: Future<Output = ()> + 'static>(
    executor: &mut Executor,
    count: u64,
    body: impl Fn(Handle, u64) -> Work,
) -> Duration {
    let handle = executor.handle().clone();
    let running = Rc::new(Cell::new(count));
    for index in 0..count {
        let (work, running) = (body(handle.clone(), index), Rc::clone(&running));
        handle.spawn(async move {
            work.await;
            running.set(running.get() - 1);
        });
    }
    let start = handle.now();
    while running.get() > 0 {
        executor.turn();
    }
    handle.now().since(start)
}

fn record(index: u64) -> RemoteAddr {
    RemoteAddr::new(MEMORY_NODE, REGION, index * RECORD_BYTES as u64)
}

fn lane(fabric: &dyn Fabric) -> (Executor, Lane) {
    fabric.register(MEMORY_NODE, REGION, MAPPING_BYTES, Rights::ALL).expect("maps");
    let mut executor = Executor::new(Env::real(0));
    let at = Endpoint { node: NodeId(1), lane: LaneId(0) };
    let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker()).expect("opens");
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    (executor, lane)
}

/// Makes the system allocate the region's pages now: a fault costs more than many READs.
fn touch_every_page(executor: &mut Executor, lane: &Lane) {
    let lane = lane.clone();
    executor.run(async move {
        for page in 0..MAPPING_BYTES / 4096 {
            let mut batch = lane.batch();
            batch.write_word(RemoteAddr::new(MEMORY_NODE, REGION, page * 4096), 1);
            batch.post().await.expect("no fault is injected");
        }
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = raw, local, shm, yields
}
criterion_main!(benches);
