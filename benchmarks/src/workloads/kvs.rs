//! The key-value store: one table, two transactions, adjustable skew and update ratio (LOTUS §8.2).
//!
//! A jumping [hotspot](crate::workloads::hotspot) can replace the constant skew.
//!
//! Keys have 8 bytes, values 40. A value carries its key, the id of the attempt that wrote it, and
//! a pattern derived from both. Every read can thus check that the value is one whole version of
//! the right record, and that the engine names the right writer.

use std::time::Duration;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::{CriticalField, PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::audit::{Check, Effects, RowCheck};
use crate::contract::config::{ClusterConfig, Sharding};
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{Txn, TxnError};
use crate::contract::workload::{Access, Workload, mix};
use crate::workloads::hotspot::Hotspot;
use crate::workloads::zipf::KeyChooser;

/// Words of a value: key, writer, pattern.
const VALUE_WORDS: usize = 5;
/// Bytes of a value (LOTUS §8.1).
pub const VALUE_BYTES: usize = VALUE_WORDS * 8;

/// The key-value workload.
#[derive(Clone, Debug)]
pub struct Kvs {
    table: TableId,
    keys: u64,
    update_ratio: f64,
    theta: f64,
    chooser: KeyChooser,
    hotspot: Option<Hotspot>,
}

/// A transaction on one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvsRequest {
    key: u64,
    access: Access,
}

impl Kvs {
    /// A store of `keys` records. A share `update_ratio` of the transactions updates one record,
    /// the other transactions read one record, chosen with skew `theta` (0 = uniform).
    ///
    /// # Panics
    /// As [`KeyChooser::new`], and if `update_ratio` is not in 0..=1.
    pub fn new(keys: u64, update_ratio: f64, theta: f64) -> Self {
        assert!((0.0..=1.0).contains(&update_ratio), "a ratio of {update_ratio}");
        let chooser = KeyChooser::new(keys, theta);
        Self { table: TableId(0), keys, update_ratio, theta, chooser, hotspot: None }
    }

    /// Replaces the skew by a hotspot, if `hotspot` is given.
    #[must_use]
    pub fn with_hotspot(self, hotspot: Option<Hotspot>) -> Self {
        Self { hotspot, ..self }
    }
}

/// The value that `writer` writes for `key`.
#[inline]
fn encode(key: u64, writer: Option<TxnId>) -> [u8; VALUE_BYTES] {
    let writer = writer.map_or(0, TxnId::raw);
    let pattern = mix(key ^ writer.rotate_left(32));
    let words = [key, writer, pattern, !pattern, pattern.rotate_left(32)];
    let mut value = [0; VALUE_BYTES];
    for (bytes, word) in value.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    value
}

/// Describes a `value` that is wrong for `key` and `writer`.
#[cold]
fn complaint(key: u64, value: Option<&[u8]>, writer: Option<TxnId>) -> String {
    format!("key {key}, written by {writer:?}, has the value {value:02x?}")
}

impl Workload for Kvs {
    type Request = KvsRequest;

    const NAME: &'static str = "kvs";
    const TRANSACTIONS: &'static [&'static str] = &["ReadOne", "UpdateOne"];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        vec![integer_table("kvs", VALUE_BYTES, self.keys, cluster)]
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.table = tables[0];
    }

    fn rows(&self, _table: usize) -> u64 {
        self.keys
    }

    fn row(&self, _table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        value.extend_from_slice(&encode(row, None));
        row.into()
    }

    #[inline]
    fn draw(&self, rng: &mut SmallRng) -> KvsRequest {
        self.draw_at(rng, Duration::ZERO)
    }

    #[inline]
    fn draw_at(&self, rng: &mut SmallRng, elapsed: Duration) -> KvsRequest {
        let update = rng.random::<f64>() < self.update_ratio;
        let access = if update { Access::ReadWrite } else { Access::ReadOnly };
        let key = match &self.hotspot {
            None => self.chooser.draw(rng),
            Some(hotspot) => hotspot.draw(self.keys, elapsed, rng),
        };
        KvsRequest { key, access }
    }

    #[inline]
    fn kind(request: &KvsRequest) -> usize {
        match request.access {
            Access::ReadOnly => 0,
            Access::ReadWrite => 1,
        }
    }

    #[inline]
    fn access(request: &KvsRequest) -> Access {
        request.access
    }

    #[inline]
    fn first_record(&self, request: &KvsRequest) -> (TableId, PrimaryKey) {
        (self.table, request.key.into())
    }

    async fn attempt<T: Txn>(&self, txn: &mut T, request: &KvsRequest) -> Result<i64, TxnError> {
        let key = request.key;
        let item = match request.access {
            Access::ReadOnly => txn.add_ro(self.table, key)?,
            Access::ReadWrite => txn.add_rw(self.table, key)?,
        };
        txn.execute().await?;
        let (value, writer) = (txn.value(item), txn.writer(item));
        if value != Some(&encode(key, writer)) {
            return Err(TxnError::Fatal(complaint(key, value, writer)));
        }
        if request.access == Access::ReadWrite {
            let value = encode(key, Some(txn.id()));
            txn.put(item, &value)?;
        }
        Ok(0)
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        _effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        let mut rows = RowCheck::default();
        deployment.scan(self.table, &mut |key, value, writer| {
            let key = integer_key(key).unwrap_or(u64::MAX);
            let right = key < self.keys && value == encode(key, writer);
            rows.see(right, || complaint(key, Some(value), writer));
        })?;
        Ok(vec![rows.check("every value carries its key and its writer", self.keys)])
    }

    fn settings(&self) -> serde_json::Value {
        let Self { keys, update_ratio, theta, .. } = self;
        match &self.hotspot {
            None => json!({ "keys": keys, "update_ratio": update_ratio, "zipf": theta }),
            Some(Hotspot { hot_shards, ratio, every, .. }) => json!({
                "keys": keys,
                "update_ratio": update_ratio,
                "hot_shards": hot_shards,
                "hot_ratio": ratio,
                "jump_s": every.as_secs_f64(),
            }),
        }
    }
}

/// Specification of a table keyed by one 64-bit integer, which is also the critical field.
pub fn integer_table(
    name: &'static str,
    record_bytes: usize,
    rows: u64,
    cluster: &ClusterConfig,
) -> TableSpec {
    let critical = match cluster.sharding {
        Sharding::App => CriticalField::Bytes { start: 0, len: 8 },
        Sharding::Hash => CriticalField::Hashed,
    };
    TableSpec::new(name)
        .record_bytes(record_bytes as u32)
        .capacity(rows)
        .versions(cluster.versions)
        .inline(cluster.inline.into())
        .critical_field(critical)
}

/// The integer key of a table made by [`integer_table`]; `None` if the key does not have eight
/// bytes.
pub fn integer_key(key: &PrimaryKey) -> Option<u64> {
    key.as_bytes().try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_value_differs_in_every_word_from_its_neighbours() {
        let writer = Some(TxnId::from_raw(9));
        let value = encode(7, writer);
        for other in [encode(8, writer), encode(7, None), encode(7, Some(TxnId::from_raw(10)))] {
            let same = value.chunks(8).zip(other.chunks(8)).filter(|(a, b)| a == b).count();
            assert!(same <= 1, "only key or writer may be alike");
        }
    }

    #[test]
    fn the_update_ratio_holds() {
        for ratio in [0.0, 0.3, 1.0] {
            let kvs = Kvs::new(100, ratio, 0.99);
            let mut rng = SmallRng::seed_from_u64(3);
            let updates: usize = (0..20_000).map(|_| Kvs::kind(&kvs.draw(&mut rng))).sum();
            assert!((updates as f64 / 20_000.0 - ratio).abs() < 0.02, "{ratio}: {updates}");
        }
    }
}
