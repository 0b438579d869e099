//! Descriptions of clusters (docs/operations.md) as this command reads them: the file of the node
//! crate, plus the initial workload of `lotus bench` (`load`).

pub mod load;

use std::path::Path;
use std::time::Duration;

use lotus::LockKind;
use lotus_benchmarks::config::{ClusterConfig, Fabric, Locks, Timestamps};
use lotus_node::config::file::Net;
use lotus_node::{ClusterFile, FileError};

use load::Load;

/// Reads and checks a cluster's file; `state` replaces the state directory, which is beside the
/// file by default.
///
/// # Errors
/// [`FileError`].
pub fn read(path: &Path, state: Option<&Path>) -> Result<ClusterFile, FileError> {
    let file = ClusterFile::read(path, state)?;
    Load::of(&file).map(|_| file)
}

/// Settings of a cluster in the form that benchmarks report.
pub fn shape(file: &ClusterFile) -> ClusterConfig {
    let settings = &file.settings;
    ClusterConfig {
        fabric: match file.net {
            Net::Shm { .. } => Fabric::Shm,
            Net::Tcp { .. } => Fabric::Tcp,
        },
        cns: settings.compute_nodes,
        threads: settings.coordinators,
        coroutines: settings.coroutines,
        mns: settings.memory_nodes,
        replicas: settings.replicas,
        lock_table_bytes: settings.lock_table_bytes,
        vt_cache: settings.version_table_cache,
        locks: match settings.locks {
            LockKind::Lotus => Locks::Lotus,
            LockKind::Cas => Locks::Cas,
            LockKind::Dslr => Locks::Dslr,
            LockKind::ShiftLock => Locks::ShiftLock,
            LockKind::Declock => Locks::Declock,
            LockKind::IdealRdma => Locks::IdealRdma,
        },
        balance_us: settings.balance.map(|interval: Duration| interval.as_micros() as u64),
        timestamps: Timestamps::Oracle,
        memory_limit_bytes: Some(settings.memory_bytes),
        ..ClusterConfig::default()
    }
}
