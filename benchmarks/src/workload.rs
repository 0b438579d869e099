//! What a workload is: tables, rows, requests, transactions, and how to tell that all is well.
//!
//! A workload knows nothing of clients, time, retries or routing: it draws a request, says where
//! it belongs, runs one attempt of it, and states what its effect was. The harness does the rest.
//!
//! Its *balance* is a number that the data must add up to: every committed transaction says by how
//! much it moved. After the run the harness compares what it finds with what it was told.

use std::time::Duration;

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::rngs::SmallRng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::audit::{Check, Effects};
use crate::config::ClusterConfig;
use crate::deployment::{DeployError, Deployment};
use crate::engine::{Txn, TxnError};
use crate::stats::Counts;

/// Whether a request writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    /// It writes nothing.
    ReadOnly,
    /// It may write.
    ReadWrite,
}

/// A workload; see the module.
#[allow(async_fn_in_trait, reason = "transactions stay on their coordinator's thread")]
pub trait Workload: Send + Sync + 'static {
    /// What a client asks for: a type of transaction and its parameters.
    type Request: Copy + Send + Serialize + DeserializeOwned + 'static;

    /// The name that the command line and reports use.
    const NAME: &'static str;

    /// True for a workload that goes on where no memory is left for another row. Others end there.
    const FILLS_MEMORY: bool = false;

    /// The names of its transactions, in the order that [`Workload::kind`] counts.
    const TRANSACTIONS: &'static [&'static str];

    /// Its tables; the numbers of [`Workload::rows`] and [`Workload::row`] index this list.
    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec>;

    /// Learns the ids of its tables.
    fn attach(&mut self, tables: &[TableId]);

    /// How many rows a table starts with.
    fn rows(&self, table: usize) -> u64;

    /// Writes row `row` of a table into the empty buffer and returns its key.
    fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey;

    /// The next request.
    fn draw(&self, rng: &mut SmallRng) -> Self::Request;

    /// The next request, so long after the first one. Most workloads do not change with time.
    #[inline]
    fn draw_at(&self, rng: &mut SmallRng, _elapsed: Duration) -> Self::Request {
        self.draw(rng)
    }

    /// Which of [`Workload::TRANSACTIONS`] a request asks for.
    fn kind(request: &Self::Request) -> usize;

    /// Whether a request writes.
    fn access(request: &Self::Request) -> Access;

    /// The first record that a request touches; it decides the route (LOTUS §4.3).
    fn first_record(&self, request: &Self::Request) -> (TableId, PrimaryKey);

    /// Runs one attempt, all but its commit, and returns by how much the balance will move.
    ///
    /// # Errors
    /// What the engine says; [`crate::AbortReason::Logic`] when the workload's own rules ask for
    /// it, and [`TxnError::Fatal`] when a value is not what it must be.
    async fn attempt<T: Txn>(&self, txn: &mut T, request: &Self::Request) -> Result<i64, TxnError>;

    /// Looks at all data after the run.
    ///
    /// # Errors
    /// If the data cannot be read. What it finds there is no error but a failed check.
    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError>;

    /// Looks at how often transactions of each type, in the order of [`Workload::TRANSACTIONS`],
    /// came to which end. Nothing, for most workloads.
    fn judge(&self, _counts: &[Counts]) -> Vec<Check> {
        Vec::new()
    }

    /// What the report says about how the workload was set up.
    fn settings(&self) -> serde_json::Value;

    /// Rates by which this workload is known, of what [`Workload::TRANSACTIONS`] counted.
    fn rates(_by_transaction: &[Counts], _elapsed_s: f64) -> Vec<Rate> {
        Vec::new()
    }
}

/// A rate by which a workload is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Its name, in reports.
    pub name: &'static str,
    /// What it counts, and per what.
    pub unit: &'static str,
    /// How much.
    pub value: f64,
}

/// Sixty-four well-mixed bits that follow from `seed` alone (SplitMix64's finalizer).
#[inline]
pub(crate) const fn mix(seed: u64) -> u64 {
    let a = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ a >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ b >> 31
}
