//! Shards filled by a compute node on returning memory nodes ([`crate::memory_nodes::filling`]).

use lotus_fabric::ids::ShardId;
use lotus_recovery::membership::returns::{Copied, Life};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shards filled by a node's coordinators, for each life of a memory node.
#[derive(Debug, Default)]
pub(crate) struct Filled(Mutex<Vec<(Life, Copied)>>);

impl Filled {
    fn lock(&self) -> MutexGuard<'_, Vec<(Life, Copied)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, life: Life) -> Copied {
        let filled = self.lock();
        let of = filled.iter().find(|(of, _)| *of == life);
        of.map_or_else(Copied::none, |(_, filled)| filled.clone())
    }

    pub(crate) fn add(&self, life: Life, shard: ShardId) {
        let mut filled = self.lock();
        match filled.iter_mut().find(|(of, _)| *of == life) {
            Some((_, filled)) => filled.add(shard),
            None => {
                let mut first = Copied::none();
                first.add(shard);
                filled.push((life, first));
            }
        }
    }

    /// Forgets lives that are over or whole.
    pub(crate) fn keep(&self, mut is_filled: impl FnMut(Life) -> bool) {
        self.lock().retain(|(life, _)| is_filled(*life));
    }
}
