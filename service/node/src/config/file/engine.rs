//! Engine settings of a cluster file: sizes, the lease, the lock system.

use std::time::Duration;

use lotus::LockKind;
use toml::Spanned;

use super::{FileError, Reader, Settings, Written};
use crate::config::settings::{LOCKS, lock_name, lock_table_bytes, memory_bytes};

/// Maximum number of nodes of either kind.
const MAX_NODES: usize = 64;
/// Interval of load comparisons between compute nodes (LOTUS §4.3).
const BALANCE: Duration = Duration::from_millis(100);
/// Shortest lease that a real cluster may have, in milliseconds.
const MIN_LEASE_MS: u64 = 20;
/// Default capacity of a version table cache, in rows.
const CACHE: u64 = 64 << 10;

impl Reader<'_> {
    pub(super) fn settings(&self, written: &Written) -> Result<Settings, FileError> {
        let count = |nodes: usize, name: &str| {
            let why = format!("a cluster has 1 to {MAX_NODES} {name}s, not {nodes}");
            if (1..=MAX_NODES).contains(&nodes) { Ok(nodes) } else { Err(self.wrong(0..0, &why)) }
        };
        let mns = count(written.memory_node.len(), "memory_node")?;
        let cns = count(written.compute_node.len(), "compute_node")?;
        let default = mns.min(3) as u64;
        let replicas = self.number(&written.replicas, default, 1..=8, "replicas")? as usize;
        if replicas > mns {
            let why = format!("{replicas} replicas do not fit on {mns} memory nodes");
            return Err(self.at(written.replicas.as_ref(), &why));
        }
        let memory = self.bytes(&written.memory, "1G", memory_bytes, "memory")?;
        let lock_table = self.bytes(&written.lock_table, "32M", lock_table_bytes, "lock_table")?;
        let coordinators = self.number(&written.coordinators, 1, 1..=64, "coordinators")? as usize;
        let coroutines = self.number(&written.coroutines, 16, 1..=64, "coroutines")? as usize;
        let locks = self.locks(&written.locks)?;
        Ok(Settings {
            memory_nodes: mns,
            compute_nodes: cns,
            replicas,
            coordinators,
            coroutines,
            lock_table_bytes: lock_table,
            version_table_cache: self.version_table_cache(written, locks)?,
            balance: self.balance(written, locks)?,
            memory_bytes: memory,
            lease: self.lease(&written.lease_ms)?,
            locks,
        })
    }

    fn lease(&self, field: &Option<Spanned<u64>>) -> Result<Option<Duration>, FileError> {
        let lease_ms = self.number(field, 2000, 0..=3_600_000, "lease_ms")?;
        if (1..MIN_LEASE_MS).contains(&lease_ms) {
            let why = format!("lease_ms must be 0, for none, or at least {MIN_LEASE_MS}");
            return Err(self.at(field.as_ref(), &why));
        }
        Ok((lease_ms > 0).then(|| Duration::from_millis(lease_ms)))
    }

    fn locks(&self, field: &Option<Spanned<String>>) -> Result<LockKind, FileError> {
        let Some(name) = field else { return Ok(LockKind::default()) };
        let named = LOCKS.into_iter().find(|known| lock_name(*known) == name.as_ref());
        let names = LOCKS.map(|known| format!("{:?}", lock_name(known))).join(", ");
        let why = || format!("locks must be one of {names}, not {:?}", name.as_ref());
        named.ok_or_else(|| self.wrong(name.span(), &why()))
    }

    /// Only the owner of a lock learns of writers, so lock systems without owners have no cache.
    fn version_table_cache(&self, written: &Written, locks: LockKind) -> Result<usize, FileError> {
        let field = &written.version_table_cache;
        let default = if locks == LockKind::Lotus { CACHE } else { 0 };
        let rows = self.number(field, default, 0..=1 << 30, "version_table_cache")?;
        if rows > 0 && locks != LockKind::Lotus {
            let why = format!(
                "version_table_cache needs LOTUS's locks, not locks = \"{}\": compute nodes cache \
                 rows whose locks they own",
                lock_name(locks)
            );
            return Err(self.at(field.as_ref(), &why));
        }
        Ok(rows as usize)
    }

    /// By default overloaded nodes give shards away if locks have owners.
    fn balance(&self, written: &Written, locks: LockKind) -> Result<Option<Duration>, FileError> {
        let owned = locks == LockKind::Lotus;
        let is_on = written.balance.as_ref().map_or(owned, |field| *field.as_ref());
        if is_on && !owned {
            let why = format!(
                "balance needs LOTUS's locks, not locks = \"{}\": locks on memory nodes have no \
                 owners",
                lock_name(locks)
            );
            return Err(self.at(written.balance.as_ref(), &why));
        }
        Ok(is_on.then_some(BALANCE))
    }

    /// Runs the engine's check on the combination of settings. The error names the line of `locks`
    /// if the engine would accept the settings with LOTUS's locks.
    pub(super) fn check_engine(
        &self,
        written: &Written,
        settings: &Settings,
    ) -> Result<(), FileError> {
        let Err(error) = settings.builder().node_count() else { return Ok(()) };
        let lotus = Settings { locks: LockKind::Lotus, ..settings.clone() };
        match &written.locks {
            Some(locks) if lotus.builder().node_count().is_ok() => {
                let why = format!("locks = {:?}: {error}", locks.as_ref());
                Err(self.wrong(locks.span(), &why))
            }
            _ => Err(FileError::Settings { path: self.path.to_owned(), why: error.to_string() }),
        }
    }
}
