//! Loading of a table, outside of time: an image of all slots, written to every replica by plain
//! WRITEs of maximum size.

use std::sync::atomic::AtomicU64;

use lotus_benchmarks::deployment::{DeployError, RowSource};
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::{PrimaryKey, TableSpec};

use super::addresses::{Known, TableSlots};
use super::index::{Geometry, number_of};
use super::{MAX_TABLES, Store, StoredTable, System, failed, refused};

/// WRITEs under way at once.
const IN_FLIGHT: usize = 16;
const WORD: usize = 8;

/// Bytes of all slots of a table, and of the words beside the index.
pub(crate) struct Image {
    words: Vec<u64>,
    /// Offset of the first slot's part of the shared region, and the bytes of each part.
    shared: (u64, u64),
}

impl<S: System> Store<S> {
    /// Lays out a table with its rows.
    ///
    /// # Errors
    /// [`DeployError::Refused`] if a row does not fit, or two rows have the same key.
    pub(crate) fn lay_out(
        &self,
        (spec, longest): (&TableSpec, usize),
        rows: u64,
        source: &RowSource<'_>,
    ) -> Result<(StoredTable<S>, Image), DeployError> {
        let number = self.tables.len();
        if number >= MAX_TABLES {
            return Err(refused(format!("there are at most {MAX_TABLES} tables")));
        }
        let capacity = spec.capacity.max(rows);
        let shape = S::shape(spec, longest, &self.options);
        let geometry = S::geometry(shape, capacity, is_dense(rows, capacity, source));
        if geometry.bucket_bytes() > MAX_VERB_BYTES {
            return Err(refused(format!(
                "a bucket of table {} has {} bytes, more than the {MAX_VERB_BYTES} of a verb",
                spec.name,
                geometry.bucket_bytes()
            )));
        }
        let mut table = StoredTable {
            number,
            name: spec.name.clone().into_owned(),
            region: RegionId(number as u8),
            shape,
            geometry,
            key_bytes: spec.key_bytes as usize,
            record_bytes: spec.record_bytes as usize,
            rows,
            filled: AtomicU64::new(rows),
            loaded: None,
        };
        let each = S::shared_bytes(shape, &self.options);
        let full = || refused(format!("the rows of table {} do not fit", spec.name));
        let first = self.take(each * geometry.slots()).ok_or_else(full)?;
        let words = vec![0; geometry.bytes() as usize / WORD];
        let mut image = Image { words, shared: (first, each) };
        let mut slots = TableSlots::default();
        let mut value = Vec::new();
        for row in 0..rows {
            value.clear();
            let key = source(row, &mut value);
            let slot = image.place(&table, &key, &value)?;
            if self.options.known == Known::Loaded {
                slots.learn(key, slot);
            }
        }
        table.loaded = (self.options.known == Known::Loaded).then_some(slots);
        Ok((table, image))
    }

    /// Writes the image of a table to all nodes that have a replica of any row of the table.
    ///
    /// # Errors
    /// [`DeployError::Failed`] if a verb fails.
    pub(crate) async fn write(
        &self,
        lane: &Lane,
        table: &StoredTable<S>,
        image: &Image,
    ) -> Result<(), DeployError> {
        let nodes = self.nodes(table);
        let mut in_flight = std::collections::VecDeque::new();
        for (at, words) in image.words.chunks(MAX_VERB_BYTES / WORD).enumerate() {
            if words.iter().all(|word| *word == 0) {
                continue;
            }
            let mut batch = lane.batch();
            let staged = batch.stage(words.len() * WORD);
            batch.words_mut(staged).copy_from_slice(words);
            batch.write_all(nodes, table.region, (at * MAX_VERB_BYTES) as u64, staged);
            in_flight.push_back(batch.post());
            if in_flight.len() == IN_FLIGHT
                && let Some(first) = in_flight.pop_front()
            {
                first.await.map_err(failed)?;
            }
        }
        for posted in in_flight {
            posted.await.map_err(failed)?;
        }
        Ok(())
    }
}

/// Whether all rows have numeric keys that need no hash. False for an empty table.
fn is_dense(rows: u64, capacity: u64, source: &RowSource<'_>) -> bool {
    let mut value = Vec::new();
    let mut is_number = |row| {
        value.clear();
        number_of(&source(row, &mut value)).is_some_and(|number| number < capacity)
    };
    rows > 0 && (0..rows).all(&mut is_number)
}

impl Image {
    /// Places a row in the first free slot of its search; returns the slot.
    fn place<S: System>(
        &mut self,
        table: &StoredTable<S>,
        key: &PrimaryKey,
        value: &[u8],
    ) -> Result<u64, DeployError> {
        let geometry = &table.geometry;
        let lengths = [(key.byte_count(), table.key_bytes), (value.len(), table.record_bytes)];
        if lengths.iter().any(|(length, most)| length > most) {
            return Err(refused(format!("a row of table {} is too long: {key:?}", table.name)));
        }
        let mut bucket = geometry.bucket_of(key);
        for _ in 0..geometry.buckets {
            let first = bucket * geometry.slots_per_bucket;
            for slot in first..first + geometry.slots_per_bucket {
                let words = &self.words[slot_range(geometry, slot)];
                match S::key_in(words) {
                    None => {
                        self.lay::<S>(table, slot, (key, value));
                        return Ok(slot);
                    }
                    Some(taken) if taken == *key => {
                        return Err(refused(format!(
                            "two rows of table {} have the key {key:?}",
                            table.name
                        )));
                    }
                    Some(_) => {}
                }
            }
            bucket = geometry.next(bucket);
        }
        Err(refused(format!("the rows of table {} do not fit its index", table.name)))
    }

    fn lay<S: System>(&mut self, table: &StoredTable<S>, slot: u64, row: (&PrimaryKey, &[u8])) {
        let geometry = &table.geometry;
        let index_words = geometry.beside_at(0) as usize / WORD;
        let (index, beside) = self.words.split_at_mut(index_words);
        let place = slot as usize * geometry.beside_words;
        let beside = &mut beside[place..place + geometry.beside_words];
        let (first, each) = self.shared;
        let row = (row.0, row.1, (each > 0).then_some(first + slot * each));
        S::lay_out(table.shape, table.number, row, &mut index[slot_range(geometry, slot)], beside);
    }
}

fn slot_range(geometry: &Geometry, slot: u64) -> std::ops::Range<usize> {
    let first = geometry.slot_at(slot) as usize / WORD;
    first..first + geometry.slot_words
}

/// Address of the byte `offset` of a table's region on a node.
pub(crate) fn byte<S: System>(table: &StoredTable<S>, node: NodeId, offset: u64) -> RemoteAddr {
    RemoteAddr::new(node, table.region, offset)
}
