//! The interface of a workload: tables, requests, transactions, and an audit of the result.
//!
//! A workload knows nothing of clients, time, retries or routing: it draws a request, names the
//! record for routing, runs one attempt of the request, and states its effect. The harness does the
//! rest.
//!
//! A workload's *balance* is a sum over the data: every committed transaction reports its change of
//! the sum. After the run the harness compares the sum in the data with the reported changes.

use std::time::Duration;

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::rngs::SmallRng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::contract::audit::{Check, Effects};
use crate::contract::config::ClusterConfig;
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{Txn, TxnError};
use crate::contract::stats::Counts;

/// Whether a request writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    /// Writes nothing.
    ReadOnly,
    /// May write.
    ReadWrite,
}

/// A workload; see the module documentation.
#[allow(async_fn_in_trait, reason = "transactions stay on their coordinator's thread")]
pub trait Workload: Send + Sync + 'static {
    /// A type of transaction and its parameters.
    type Request: Copy + Send + Serialize + DeserializeOwned + 'static;

    /// Name on the command line and in reports.
    const NAME: &'static str;

    /// True for a workload that goes on when no memory is left for another row. Other workloads
    /// end.
    const FILLS_MEMORY: bool = false;

    /// Names of the workload's transactions; [`Workload::kind`] indexes this list.
    const TRANSACTIONS: &'static [&'static str];

    /// Specifications of the workload's tables; [`Workload::rows`] and [`Workload::row`] index this
    /// list.
    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec>;

    /// Tells the workload the ids of its tables, in the order of [`Workload::tables`].
    fn attach(&mut self, tables: &[TableId]);

    /// Number of rows that a table starts with.
    fn rows(&self, table: usize) -> u64;

    /// Writes row `row` of a table into the empty buffer and returns its key.
    fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey;

    /// The next request.
    fn draw(&self, rng: &mut SmallRng) -> Self::Request;

    /// The next request, `elapsed` after the first request. Most workloads do not change with time.
    #[inline]
    fn draw_at(&self, rng: &mut SmallRng, _elapsed: Duration) -> Self::Request {
        self.draw(rng)
    }

    /// Index of a request's type in [`Workload::TRANSACTIONS`].
    fn kind(request: &Self::Request) -> usize;

    /// Whether a request writes.
    fn access(request: &Self::Request) -> Access;

    /// The first record that a request touches; its shard decides the route (LOTUS §4.3).
    fn first_record(&self, request: &Self::Request) -> (TableId, PrimaryKey);

    /// Runs one attempt except for its commit, and returns the change of the balance.
    ///
    /// # Errors
    /// The engine's errors; [`crate::AbortReason::Logic`] if the workload's own rules ask for a
    /// rollback, and [`TxnError::Fatal`] if a value is invalid.
    async fn attempt<T: Txn>(&self, txn: &mut T, request: &Self::Request) -> Result<i64, TxnError>;

    /// Checks all data after the run.
    ///
    /// # Errors
    /// [`DeployError`] if the data cannot be read. Wrong data is a failed check, not an error.
    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError>;

    /// Checks the outcome counts of each type of transaction, in the order of
    /// [`Workload::TRANSACTIONS`]. The default checks nothing.
    fn judge(&self, _counts: &[Counts]) -> Vec<Check> {
        Vec::new()
    }

    /// Parameters of the workload, for the report.
    fn settings(&self) -> serde_json::Value;

    /// Well-known rates of the workload, such as tpmC; `by_transaction` is in the order of
    /// [`Workload::TRANSACTIONS`].
    fn rates(_by_transaction: &[Counts], _elapsed_s: f64) -> Vec<Rate> {
        Vec::new()
    }
}

/// A well-known rate of a workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Name in reports.
    pub name: &'static str,
    /// Counted thing and unit of time.
    pub unit: &'static str,
    /// Value of the rate.
    pub value: f64,
}

/// Pseudo-random function of `seed`: 64 well-mixed bits (SplitMix64's finalizer).
#[inline]
pub const fn mix(seed: u64) -> u64 {
    let a = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ a >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ b >> 31
}
