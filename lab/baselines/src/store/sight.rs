//! Reads of whole tables from memory nodes while no transaction runs: for audits.

use lotus_benchmarks::audit::Check;
use lotus_benchmarks::deployment::{DeployError, RowVisitor};
use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::Lane;
use lotus_fabric::verbs::MAX_VERB_BYTES;

use super::load::byte;
use super::{Store, StoredTable, System, failed};

const WORD: usize = 8;
/// READs under way at once.
const IN_FLIGHT: u64 = 16;

/// Counts of leftovers in a table that no run may leave behind.
#[derive(Default)]
pub(crate) struct Leftovers {
    slots: u64,
    locked: u64,
    unequal: u64,
}

impl Leftovers {
    /// Checks on the leftovers.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let Self { slots, locked, unequal } = self;
        vec![
            Check::new("no lock is left held", *locked == 0, format!("{locked} of {slots} slots")),
            Check::new(
                "all replicas are equal",
                *unequal == 0,
                format!("{unequal} of {slots} slots differ"),
            ),
        ]
    }
}

impl<S: System> Store<S> {
    /// Reads `words` words of a table's region, from `offset` on.
    async fn read(
        &self,
        lane: &Lane,
        (table, node): (&StoredTable<S>, NodeId),
        offset: u64,
        words: usize,
    ) -> Result<Vec<u64>, DeployError> {
        let end = offset + (words * WORD) as u64;
        let mut read = Vec::with_capacity(words);
        let mut next = offset;
        while next < end {
            let mut batch = lane.batch();
            let mut buffers = Vec::new();
            for _ in 0..IN_FLIGHT {
                let bytes = (end - next).min(MAX_VERB_BYTES as u64);
                if bytes > 0 {
                    buffers.push(batch.read(byte(table, node, next), bytes as usize));
                }
                next += bytes;
            }
            let done = batch.post().await.map_err(failed)?;
            buffers.into_iter().for_each(|buffer| read.extend_from_slice(done.words(buffer)));
        }
        Ok(read)
    }

    /// Number of slots that are read at once.
    fn piece(table: &StoredTable<S>) -> u64 {
        let bytes = table.geometry.slot_bytes().max(table.geometry.beside_bytes());
        (IN_FLIGHT * MAX_VERB_BYTES as u64 / bytes as u64).max(1)
    }

    /// Slots from `first` on, with the words beside the index, on a node.
    async fn slots(
        &self,
        lane: &Lane,
        at: (&StoredTable<S>, NodeId),
        first: u64,
        count: u64,
    ) -> Result<(Vec<u64>, Vec<u64>), DeployError> {
        let geometry = &at.0.geometry;
        let words = |each: usize| each * count as usize;
        let slots = self.read(lane, at, geometry.slot_at(first), words(geometry.slot_words));
        let slots = slots.await?;
        let beside = self.read(lane, at, geometry.beside_at(first), words(geometry.beside_words));
        Ok((slots, beside.await?))
    }

    /// Passes every row of a table to `visit`, as stored on the row's primary.
    ///
    /// # Errors
    /// [`DeployError::Failed`] if the memory cannot be read, [`DeployError::Damaged`] if a row is
    /// not in this engine's format.
    pub(crate) async fn scan(
        &self,
        lane: &Lane,
        table: &StoredTable<S>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), DeployError> {
        let geometry = table.geometry;
        let piece = Self::piece(table);
        for node in self.placement.nodes() {
            for first in (0..geometry.slots()).step_by(piece as usize) {
                let count = piece.min(geometry.slots() - first);
                let (slots, beside) = self.slots(lane, (table, node), first, count).await?;
                for (at, slot) in slots.chunks_exact(geometry.slot_words).enumerate() {
                    let number = first + at as u64;
                    let is_primary = self.homes(table, number).primary == node;
                    if !is_primary || S::key_in(slot).is_none() {
                        continue;
                    }
                    let place = at * geometry.beside_words;
                    let beside = &beside[place..place + geometry.beside_words];
                    let found = S::stored(table.shape, slot, beside);
                    let found = found.map_err(|why| {
                        DeployError::Damaged(format!("{}, slot {number}: {why}", table.name))
                    })?;
                    if let Some((value, writer)) = found.value {
                        visit(&found.key, &value, writer);
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares all replicas of a table, and counts the locks that are still held.
    ///
    /// # Errors
    /// [`DeployError::Failed`] if the memory cannot be read.
    pub(crate) async fn inspect(
        &self,
        lane: &Lane,
        table: &StoredTable<S>,
        found: &mut Leftovers,
    ) -> Result<(), DeployError> {
        let geometry = table.geometry;
        let piece = Self::piece(table);
        for first in (0..geometry.slots()).step_by(piece as usize) {
            let count = piece.min(geometry.slots() - first);
            let mut copies = Vec::new();
            for node in self.placement.nodes() {
                copies.push(self.slots(lane, (table, node), first, count).await?);
            }
            for at in 0..count as usize {
                let homes = self.homes(table, first + at as u64);
                let copy = |node: NodeId| {
                    let (slots, beside) = &copies[usize::from(node.0)];
                    let part =
                        |words, each| -> &[u64] { &Vec::as_slice(words)[at * each..][..each] };
                    (part(slots, geometry.slot_words), part(beside, geometry.beside_words))
                };
                let first_copy = copy(homes.primary);
                let mut all = homes.all.into_iter().map(copy);
                found.slots += 1;
                found.locked += u64::from(all.clone().any(|(slot, _)| S::is_locked(slot)));
                found.unequal += u64::from(all.any(|copy| copy != first_copy));
            }
        }
        Ok(())
    }
}
