//! Costs of ordered tables and typed rows, as ratios: the two sides of each take turns, so that
//! other load on the machine affects both alike. On `local`, sixteen coroutines of one coordinator.
//!
//! * a point read of an ordered table, to one of a hash table;
//! * a range of 100 rows, to a transaction that reads as many rows of a hash table as the range
//!   reads leaves, each as large as a leaf, and to as many bare READs in one batch;
//! * typed rows, to the same rows as bytes, both in a hash table.
//!
//! Criterion is not used, as it measures one thing after the other.

use std::cell::Cell;
use std::hint::black_box;
use std::io::{self, Write};
use std::rc::Rc;

use lotus::{
    Cluster, CoordinatorId, Isolation, Secret, Session, TableId, TableSpec, Transaction, TxnError,
};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::Rights;
use lotus_fabric::transport::Fabric;
use lotus_rows::{Schema, Table};

const COROUTINES: u64 = 16;
const VALUE_BYTES: usize = 100;
/// Bytes of a full leaf, about.
const BLOCK_BYTES: usize = 1000;
const RANGE_ROWS: u64 = 100;
const COORDINATOR: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };

type Error = Box<dyn std::error::Error>;

/// Numbers in an order that no prefetcher follows (Knuth's MMIX generator).
struct Scatter(u64);

impl Scatter {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// The tables, and their number of rows.
#[derive(Clone, Copy)]
struct Rows {
    count: u64,
    hash: TableId,
    ordered: TableId,
    typed: Table<u64, u64>,
    small: TableId,
    /// Rows as large as a leaf; a tenth in number.
    blocks: TableId,
}

impl Rows {
    fn load(cluster: &Cluster, count: u64) -> Result<Self, Error> {
        const TYPED: Schema<u64, u64> = Schema::new("typed");
        let spec = |name, bytes| TableSpec::new(name).record_bytes(bytes).capacity(count);
        let ordered = spec("ordered", VALUE_BYTES as u32).ordered().key_bytes(8);
        let rows = Self {
            count,
            hash: cluster.create_table(spec("hash", VALUE_BYTES as u32))?,
            ordered: cluster.create_table(ordered)?,
            typed: TYPED.table(cluster.create_table(TYPED.spec().capacity(count))?),
            small: cluster.create_table(spec("small", 8))?,
            blocks: cluster
                .create_table(spec("blocks", BLOCK_BYTES as u32).capacity(count / 10))?,
        };
        for first in (0..count).step_by(50) {
            let insert = async move |txn: &mut Transaction| {
                for row in first..(first + 50).min(count) {
                    let value = [row as u8; VALUE_BYTES];
                    txn.insert(rows.hash, row, &value)?;
                    txn.insert(rows.small, row, &row.to_le_bytes())?;
                    rows.typed.insert(txn, &row, &row).await?;
                    txn.ordered(rows.ordered)?.insert(&row.to_be_bytes(), &value).await?;
                    if row < count / 10 {
                        txn.insert(rows.blocks, row, &[row as u8; BLOCK_BYTES])?;
                    }
                }
                Ok::<_, TxnError>(())
            };
            cluster.run(Isolation::Serializable, insert).wait()?;
        }
        Ok(rows)
    }
}

/// A transaction to be measured, on a row of this number.
trait Measured: Copy + Send + 'static {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError>;
}

#[derive(Clone, Copy)]
struct HashRead(Rows);
#[derive(Clone, Copy)]
struct OrderedRead(Rows);
#[derive(Clone, Copy)]
struct RangeRead(Rows);
#[derive(Clone, Copy)]
struct BlocksRead {
    rows: Rows,
    blocks: u64,
}
#[derive(Clone, Copy)]
struct Typed(Rows);
#[derive(Clone, Copy)]
struct Bytes(Rows);

impl Measured for HashRead {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        let item = txn.add_ro(self.0.hash, row)?;
        txn.execute().await?;
        black_box(txn.value(item));
        Ok(())
    }
}

impl Measured for OrderedRead {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        black_box(txn.ordered(self.0.ordered)?.get(&row.to_be_bytes()).await?);
        Ok(())
    }
}

impl Measured for RangeRead {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        let first = row.min(self.0.count - RANGE_ROWS);
        let mut ordered = txn.ordered(self.0.ordered)?;
        let (from, until) = (first.to_be_bytes(), (first + RANGE_ROWS).to_be_bytes());
        let rows = ordered.range(&from[..]..&until[..]).rows().await?;
        assert_eq!(rows.len() as u64, RANGE_ROWS);
        black_box(rows);
        Ok(())
    }
}

impl Measured for BlocksRead {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        let count = self.rows.count / 10;
        let keys = (row % count..).take(self.blocks as usize).map(|block| block % count);
        let items = keys.map(|block| txn.add_ro(self.rows.blocks, block));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        txn.execute().await?;
        for item in items {
            black_box(txn.value(item));
        }
        Ok(())
    }
}

impl Measured for Typed {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        let value = self.0.typed.get_for_update(txn, &row).await?.expect("it was loaded");
        self.0.typed.put(txn, &row, &(value + 1)).await
    }
}

impl Measured for Bytes {
    async fn run(self, txn: &mut Transaction, row: u64) -> Result<(), TxnError> {
        let item = txn.add_rw(self.0.small, row)?;
        txn.execute().await?;
        let value = txn.value(item).expect("it was loaded");
        let value = u64::from_le_bytes(value.try_into().expect("eight bytes"));
        txn.put(item, &(value + 1).to_le_bytes())
    }
}

/// Nanoseconds that a transaction takes, over `each` of them by every coroutine.
fn time(cluster: &Cluster, rows: Rows, what: impl Measured, each: u64) -> Result<f64, Error> {
    let clock = Env::real(0);
    let begun = clock.now();
    let jobs = (0..COROUTINES).map(|coroutine| {
        cluster.submit(COORDINATOR, async move |mut session: Session| {
            let mut scatter = Scatter(coroutine * 977 + 1);
            for _ in 0..each {
                let row = scatter.below(rows.count);
                // Two coroutines may want one row.
                while let Err(error) = once(&mut session, what, row).await {
                    if !error.is_retryable() {
                        return Err(error);
                    }
                }
            }
            Ok(())
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.wait()?;
    }
    Ok(clock.now().since(begun).as_nanos() as f64 / (each * COROUTINES) as f64)
}

async fn once(session: &mut Session, what: impl Measured, row: u64) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    what.run(&mut txn, row).await?;
    txn.commit().await.map(drop)
}

/// Number and bytes of the READs of one range.
fn reads(cluster: &Cluster, rows: Rows) -> Result<(u64, usize), Error> {
    const RANGES: u64 = 100;
    // The first ones read inner nodes too.
    time(cluster, rows, RangeRead(rows), RANGES)?;
    let before = cluster.counters()?;
    time(cluster, rows, RangeRead(rows), RANGES)?;
    let posted = cluster.counters()? - &before;
    let (reads, bytes) = (posted.reads, posted.verb_bytes);
    let one = bytes / reads;
    Ok((reads.div_ceil(RANGES * COROUTINES), one as usize / 8 * 8))
}

/// Memory of one node, and a lane to it, for bare READs.
struct Bare {
    executor: Executor,
    lane: Lane,
    bytes: u64,
}

impl Bare {
    const MEMORY: NodeId = NodeId(0);

    fn new(bytes: u64) -> Result<Self, Error> {
        let fabric = LocalFabric::new(2);
        fabric.register(Self::MEMORY, RegionId(0), bytes, Rights::ALL)?;
        let executor = Executor::new(Env::real(0));
        let at = Endpoint { node: NodeId(1), lane: LaneId(0) };
        let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
        let lane = Lane::new(at, executor.handle().clone(), transport);
        let mut bare = Self { executor, lane, bytes };
        bare.executor.add_driver(bare.lane.driver());
        Ok(bare)
    }

    /// Nanoseconds that a batch of `verbs` READs of `bytes` takes, over `each` by every coroutine.
    fn time(&mut self, verbs: u64, bytes: usize, each: u64) -> f64 {
        let (handle, left) = (self.executor.handle().clone(), Rc::new(Cell::new(COROUTINES)));
        let begun = handle.now();
        for coroutine in 0..COROUTINES {
            let (lane, left, places) = (self.lane.clone(), Rc::clone(&left), self.bytes / 4096);
            handle.spawn(async move {
                let mut scatter = Scatter(coroutine * 977 + 1);
                for _ in 0..each {
                    let mut batch = lane.batch();
                    let buffers = (0..verbs).map(|_| {
                        let offset = scatter.below(places) * 4096;
                        batch.read(RemoteAddr::new(Self::MEMORY, RegionId(0), offset), bytes)
                    });
                    let buffers: Vec<_> = buffers.collect();
                    let done = batch.post().await.expect("no fault is injected");
                    buffers.iter().for_each(|buffer| {
                        black_box(done.words(*buffer)[0]);
                    });
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            self.executor.turn();
        }
        handle.now().since(begun).as_nanos() as f64 / (each * COROUTINES) as f64
    }
}

/// Whether the command line asks for a comparison: names none, or part of this name.
fn is_wanted(name: &str) -> bool {
    let mut parts = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|part| name.contains(&part))
}

/// Measures two sides in turns, and prints their medians and the median ratio with its quartiles.
fn compare(
    name: &str,
    rounds: usize,
    sides: [&mut dyn FnMut() -> Result<f64, Error>; 2],
) -> Result<(), Error> {
    if !is_wanted(name) {
        return Ok(());
    }
    let mut pairs = Vec::new();
    for round in 0..=rounds {
        let first = round % 2;
        let one = sides[first]()?;
        let other = sides[1 - first]()?;
        // The first round warms up.
        if round > 0 {
            pairs.push(if first == 0 { (one, other) } else { (other, one) });
        }
    }
    let at = |values: &[f64], quarter: usize| values[(values.len() - 1) * quarter / 4];
    let sorted = |value: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let ratios = sorted(|(one, other)| one / other);
    let sides = [sorted(|pair| pair.0), sorted(|pair| pair.1)].map(|side| at(&side, 2));
    let [low, median, high] = [1, 2, 3].map(|quarter| at(&ratios, quarter));
    let [one, other] = sides;
    writeln!(
        io::stdout(),
        "| {name} | {one:.0} | {other:.0} | {median:.2} ({low:.2}, {high:.2}) |"
    )?;
    Ok(())
}

fn main() -> Result<(), Error> {
    // Without `--bench`, as in tests, only check that it runs.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (count, each, rounds) = if whole { (100_000, 4_000, 21) } else { (2_000, 20, 1) };
    let cluster = Cluster::embedded().compute_nodes(1).memory_nodes(1).replicas(1);
    let cluster = cluster.name_secret(Some(Secret::from_seed(0)));
    let cluster = cluster.threads(1).coroutines(COROUTINES as usize).memory_limit(1 << 30);
    let cluster = cluster.start()?;
    let rows = Rows::load(&cluster, count)?;
    writeln!(io::stdout(), "| | ns | ns of the other | ratio (quartiles) |\n|---|---|---|---|")?;
    compare(
        "point read, ordered to hash",
        rounds,
        [&mut || time(&cluster, rows, OrderedRead(rows), each), &mut || {
            time(&cluster, rows, HashRead(rows), each)
        }],
    )?;
    let (verbs, bytes) = reads(&cluster, rows)?;
    let mut bare = Bare::new(128 << 20)?;
    compare(
        &format!("range of {RANGE_ROWS} rows, to {verbs} rows of {BLOCK_BYTES} bytes"),
        rounds,
        [&mut || time(&cluster, rows, RangeRead(rows), each.div_ceil(4)), &mut || {
            time(&cluster, rows, BlocksRead { rows, blocks: verbs }, each.div_ceil(4))
        }],
    )?;
    compare(
        &format!("range of {RANGE_ROWS} rows, to {verbs} bare READs of {bytes} bytes"),
        rounds,
        [&mut || time(&cluster, rows, RangeRead(rows), each.div_ceil(4)), &mut || {
            Ok(bare.time(verbs, bytes, each.div_ceil(4)))
        }],
    )?;
    compare(
        "read and write of a row, typed to bytes",
        rounds,
        [&mut || time(&cluster, rows, Typed(rows), each), &mut || {
            time(&cluster, rows, Bytes(rows), each)
        }],
    )?;
    cluster.stop()?;
    Ok(())
}
