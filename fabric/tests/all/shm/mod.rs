//! The `shm` back end with real processes: this test's program started again, as memory nodes that
//! only host their memory and as compute nodes that are stopped and killed.

mod children;
mod conformance;
mod death;
mod handshake;
mod idle;
mod wake;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_fabric::verbs::VerbError;

const REGION: RegionId = RegionId(0);
const REGION_BYTES: u64 = 1 << 20;

/// A directory for the sockets of one fabric; removed with its contents when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lotus-shm-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("nobody else removes it");
    }
}

fn env() -> Env {
    Env::real(0)
}

fn at(node: u16) -> Endpoint {
    Endpoint { node: NodeId(node), lane: LaneId(0) }
}

fn word(node: u16, index: u64) -> RemoteAddr {
    RemoteAddr::new(NodeId(node), REGION, index * 8)
}

/// Joins a fabric and hosts `node` in it.
fn join(directory: &Path, node: u16, nodes: u16) -> ShmFabric {
    let fabric = ShmFabric::join(directory, nodes, &env()).expect("joins");
    fabric.host(NodeId(node)).expect("nobody else hosts it");
    fabric
}

/// Runs `body` with a new lane.
fn on_lane<T, F: Future<Output = T>>(
    fabric: &ShmFabric,
    at: Endpoint,
    epoch: Epoch,
    body: impl FnOnce(Lane) -> F,
) -> Result<T, FabricError> {
    let mut executor = Executor::new(env());
    let handle = executor.handle().clone();
    let transport = fabric.open_lane(at, epoch, handle.waker())?;
    let lane = Lane::new(at, handle, transport);
    executor.add_driver(lane.driver());
    Ok(executor.run(body(lane)))
}

async fn read(lane: &Lane, addr: RemoteAddr, words: usize) -> Result<Vec<u64>, VerbError> {
    let mut batch = lane.batch();
    let buffer = batch.read(addr, words * 8);
    match batch.post().await {
        Ok(done) => Ok(done.words(buffer).to_vec()),
        Err(error) => Err(error.first().error),
    }
}

async fn write(lane: &Lane, addr: RemoteAddr, value: u64) -> Result<(), VerbError> {
    let mut batch = lane.batch();
    batch.write_word(addr, value);
    batch.post().await.map(drop).map_err(|error| error.first().error)
}
