//! TATP: a registry of mobile subscribers, four tables and seven short transactions (LOTUS §8.1).
//!
//! The rules come from the specification ("Telecom Application Transaction Processing Benchmark",
//! version 1.0): population, mix, parameters, and the unequal popularity of subscribers. Records
//! have at most 48 bytes.
//!
//! # Telephone numbers
//! Three transactions know only a subscriber's telephone number. These transactions follow a unique
//! secondary path ([`lotus::path`]), a fifth table from numbers to subscribers. A telephone number
//! is the subscriber's own number in fifteen decimal digits, so the key is that integer, and the
//! path row shares the shard of its subscriber.
//!
//! # Expected failures
//! Many transactions ask for rows that do not exist, or insert a row that exists. The specification
//! counts such a transaction as failed; here the transaction aborts with [`AbortReason::Logic`],
//! and is not retried. The success rate of each transaction follows from the population, and is
//! checked.
//!
//! # The audit
//! Every call forwarding belongs to a special facility, and the number of call forwardings equals
//! the loaded rows plus the inserted rows minus the deleted rows (the balance). All data that no
//! transaction changes is as loaded.

mod audit;
mod population;

use lotus::path;
use lotus_fabric::ids::TableId;
use lotus_mvcc::{CriticalField, PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::audit::{Check, Effects};
use crate::contract::config::{ClusterConfig, Sharding};
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{AbortReason, Item, Txn, TxnError};
use crate::contract::stats::Counts;
use crate::contract::workload::{Access, Workload};
use crate::workloads::kvs::integer_table;

pub use population::Population;
use population::{
    ACCESS_INFO_BYTES, Facility, Forwarding, START_TIMES, Subscriber, TYPES, digits,
    forwarding_key, typed_key,
};

/// Number of the table of subscribers.
pub const SUBSCRIBER: usize = 0;
/// Number of the table of access information.
pub const ACCESS_INFO: usize = 1;
/// Number of the table of special facilities.
pub const SPECIAL_FACILITY: usize = 2;
const CALL_FORWARDING: usize = 3;
/// The path from telephone numbers to subscribers.
const BY_NUMBER: usize = 4;
/// The tables' names, in the order of [`Workload::row`]'s table numbers.
const TABLES: [&str; 5] =
    ["subscriber", "access_info", "special_facility", "call_forwarding", "subscriber_by_number"];

/// Number of telephone numbers: larger numbers have too many digits.
const NUMBERS: u64 = 10_u64.pow(population::DIGITS as u32);
/// Hours of a day.
const HOURS: u8 = 24;

/// The transaction types, in the order of `MIX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TatpProfile {
    /// Reads a subscriber.
    GetSubscriberData,
    /// Reads the number to which a call is forwarded.
    GetNewDestination,
    /// Reads the access information of a type.
    GetAccessData,
    /// Writes a bit of a subscriber, and a byte of a special facility.
    UpdateSubscriberData,
    /// Writes the location of a subscriber.
    UpdateLocation,
    /// Adds a call forwarding.
    InsertCallForwarding,
    /// Removes a call forwarding.
    DeleteCallForwarding,
}

/// Number of transactions of each type in a hundred.
const MIX: [(TatpProfile, u32); 7] = [
    (TatpProfile::GetSubscriberData, 35),
    (TatpProfile::GetNewDestination, 10),
    (TatpProfile::GetAccessData, 35),
    (TatpProfile::UpdateSubscriberData, 2),
    (TatpProfile::UpdateLocation, 14),
    (TatpProfile::InsertCallForwarding, 2),
    (TatpProfile::DeleteCallForwarding, 2),
];

/// The requested row does not exist, or the row to insert does.
const MISSED: TxnError = TxnError::Aborted(AbortReason::Logic);

/// The TATP workload.
#[derive(Clone, Debug)]
pub struct Tatp {
    tables: [TableId; 5],
    population: Population,
    /// The parameter A of the specification's non-uniform distribution, which makes some
    /// subscribers more popular.
    spread: u64,
}

/// A transaction with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TatpRequest {
    /// Type of the transaction.
    pub kind: TatpProfile,
    /// Number of the subscriber.
    pub s_id: u32,
    /// Type of access information or of a special facility.
    pub row_type: u8,
    /// Hour at which a call forwarding starts.
    pub start_time: u8,
    end_time: u8,
    /// Value to write: a bit and a byte, a location, or a telephone number.
    data: u64,
}

impl Tatp {
    /// Limit of subscribers: their numbers have 32 bits.
    pub const MAX_SUBSCRIBERS: u64 = u32::MAX as u64;

    /// A registry of `subscribers` subscribers. All rows follow from `seed`.
    ///
    /// # Panics
    /// If `subscribers` is zero or above [`Self::MAX_SUBSCRIBERS`].
    pub fn new(subscribers: u64, seed: u64) -> Self {
        let allowed = 1..=Self::MAX_SUBSCRIBERS;
        assert!(allowed.contains(&subscribers), "{subscribers} subscribers");
        let spread = match subscribers {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        let population = Population::new(subscribers, seed);
        Self { tables: [0, 1, 2, 3, 4].map(TableId), population, spread }
    }

    /// The initial rows.
    pub const fn population(&self) -> &Population {
        &self.population
    }

    /// Draws a subscriber by the specification's non-uniform distribution.
    #[inline]
    fn draw_subscriber(&self, rng: &mut SmallRng) -> u64 {
        let subscribers = self.population.subscribers;
        let drawn = rng.random_range(0..=self.spread) | rng.random_range(1..=subscribers);
        drawn % subscribers + 1
    }

    /// Follows the path from a telephone number to its subscriber.
    async fn subscriber_of<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> Result<u64, TxnError> {
        let item = txn.add_ro(self.tables[BY_NUMBER], number_key(r))?;
        txn.execute().await?;
        match path::target(txn.value(item)) {
            Ok(Some(key)) if key == u64::from(r.s_id).into() => Ok(r.s_id.into()),
            found => Err(TxnError::Fatal(format!("number {} leads to {found:?}", r.s_id))),
        }
    }

    /// Reads one subscriber.
    async fn get_subscriber_data<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let item = txn.add_ro(self.tables[SUBSCRIBER], u64::from(r.s_id))?;
        txn.execute().await?;
        subscriber(txn, item, r).map(|_| 0)
    }

    /// Looks up the destination of calls at a certain time, if the facility is active.
    async fn get_new_destination<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let s_id = r.s_id.into();
        let facility = txn.add_ro(self.tables[SPECIAL_FACILITY], typed_key(s_id, r.row_type))?;
        let mut forwardings = [None; START_TIMES.len()];
        for (item, start) in forwardings.iter_mut().zip(START_TIMES) {
            if start <= r.start_time {
                let key = forwarding_key(s_id, r.row_type, start);
                *item = Some(txn.add_ro(self.tables[CALL_FORWARDING], key)?);
            }
        }
        txn.execute().await?;
        let active = txn.value(facility).map(is_active).transpose()?;
        let mut found = false;
        for record in forwardings.into_iter().flatten().filter_map(|item| txn.value(item)) {
            let forwarding = Forwarding::decode(record).ok_or_else(|| damaged(r, record))?;
            if active.is_none() {
                return Err(TxnError::Fatal(format!("a call forwarding of no facility: {r:?}")));
            }
            found |= r.end_time < forwarding.end_time;
        }
        if active == Some(true) && found { Ok(0) } else { Err(MISSED) }
    }

    /// Reads one row of access information.
    async fn get_access_data<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let key = typed_key(r.s_id.into(), r.row_type);
        let item = txn.add_ro(self.tables[ACCESS_INFO], key)?;
        txn.execute().await?;
        match txn.value(item) {
            None => Err(MISSED),
            // No transaction writes this table.
            Some(record) if record == self.population.access_info(r.s_id.into(), r.row_type) => {
                Ok(0)
            }
            Some(record) => Err(damaged(r, record)),
        }
    }

    /// Changes a bit of a subscriber and a byte of a special facility.
    async fn update_subscriber_data<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let item = txn.add_rw(self.tables[SUBSCRIBER], u64::from(r.s_id))?;
        let key = typed_key(r.s_id.into(), r.row_type);
        let facility = txn.add_rw(self.tables[SPECIAL_FACILITY], key)?;
        txn.execute().await?;
        let mut record = subscriber(txn, item, r)?;
        let Some(value) = txn.value(facility) else { return Err(MISSED) };
        let mut changed: [u8; Facility::BYTES] = value.try_into().map_err(|_| damaged(r, value))?;
        let [bit, data_a, ..] = r.data.to_le_bytes();
        let first = &mut record[Subscriber::BITS.start];
        *first = *first & !1 | bit & 1;
        changed[Facility::DATA_A] = data_a;
        txn.put(item, &record)?;
        txn.put(facility, &changed)?;
        Ok(0)
    }

    /// Changes the location of the subscriber with a telephone number.
    async fn update_location<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let s_id = self.subscriber_of(txn, r).await?;
        let item = txn.add_rw(self.tables[SUBSCRIBER], s_id)?;
        txn.execute().await?;
        let mut record = subscriber(txn, item, r)?;
        record[Subscriber::VLR].copy_from_slice(&(r.data as u32).to_le_bytes());
        txn.put(item, &record)?;
        Ok(0)
    }

    /// Inserts a call forwarding, provided that its special facility exists and the row does not.
    async fn insert_call_forwarding<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let s_id = self.subscriber_of(txn, r).await?;
        // The specification reads all facilities of the subscriber.
        let mut facility = None;
        for sf_type in 1..=TYPES as u8 {
            let item = txn.add_ro(self.tables[SPECIAL_FACILITY], typed_key(s_id, sf_type))?;
            facility = if sf_type == r.row_type { Some(item) } else { facility };
        }
        let key = forwarding_key(s_id, r.row_type, r.start_time);
        let value = Forwarding { end_time: r.end_time, to: digits(r.data) }.encode();
        txn.insert(self.tables[CALL_FORWARDING], key, &value)?;
        txn.execute().await?;
        match facility.and_then(|item| txn.value(item)) {
            Some(_) => Ok(1),
            None => Err(MISSED),
        }
    }

    /// Deletes a call forwarding if it exists.
    async fn delete_call_forwarding<T: Txn>(&self, txn: &mut T, r: &TatpRequest) -> TatpOutcome {
        let s_id = self.subscriber_of(txn, r).await?;
        let key = forwarding_key(s_id, r.row_type, r.start_time);
        let item = txn.add_rw(self.tables[CALL_FORWARDING], key)?;
        txn.execute().await?;
        if txn.value(item).is_none() {
            return Err(MISSED);
        }
        txn.delete(item)?;
        Ok(-1)
    }
}

/// Change of the number of call forwardings.
type TatpOutcome = Result<i64, TxnError>;

/// Key of the path row of the subscriber's telephone number.
#[inline]
fn number_key(request: &TatpRequest) -> u64 {
    request.s_id.into()
}

/// Record of the request's subscriber.
#[inline]
fn subscriber<T: Txn>(
    txn: &T,
    item: Item,
    r: &TatpRequest,
) -> Result<[u8; Subscriber::BYTES], TxnError> {
    let record = txn.value(item).unwrap_or_default();
    match <[u8; Subscriber::BYTES]>::try_from(record) {
        Ok(whole) if whole[Subscriber::ID] == u64::from(r.s_id).to_le_bytes() => Ok(whole),
        _ => Err(damaged(r, record)),
    }
}

/// Whether the facility with this record is active.
#[inline]
fn is_active(record: &[u8]) -> Result<bool, TxnError> {
    match record {
        [active @ (0 | 1), ..] if record.len() == Facility::BYTES => Ok(*active == 1),
        _ => Err(TxnError::Fatal(format!("a special facility is {record:02x?}"))),
    }
}

#[cold]
fn damaged(request: &TatpRequest, record: &[u8]) -> TxnError {
    TxnError::Fatal(format!("{request:?} read the record {record:02x?}"))
}

impl Workload for Tatp {
    type Request = TatpRequest;

    const NAME: &'static str = "tatp";
    const TRANSACTIONS: &'static [&'static str] = &[
        "GetSubscriberData",
        "GetNewDestination",
        "GetAccessData",
        "UpdateSubscriberData",
        "UpdateLocation",
        "InsertCallForwarding",
        "DeleteCallForwarding",
    ];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        let critical = match cluster.sharding {
            Sharding::App => CriticalField::Bytes { start: 0, len: 4 },
            Sharding::Hash => CriticalField::Hashed,
        };
        let rows = |table| self.population.rows(table);
        let owned = |table: usize, bytes: usize, capacity| {
            integer_table(TABLES[table], bytes, capacity, cluster).critical_field(critical)
        };
        let whole = |table: usize, bytes| integer_table(TABLES[table], bytes, rows(table), cluster);
        // A deleted row keeps its place in the index, so make room for all rows that can ever
        // exist.
        let forwardings = rows(SPECIAL_FACILITY) * START_TIMES.len() as u64;
        vec![
            whole(SUBSCRIBER, Subscriber::BYTES),
            owned(ACCESS_INFO, ACCESS_INFO_BYTES, rows(ACCESS_INFO)),
            owned(SPECIAL_FACILITY, Facility::BYTES, rows(SPECIAL_FACILITY)),
            owned(CALL_FORWARDING, Forwarding::BYTES, forwardings),
            whole(BY_NUMBER, 8),
        ]
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.tables.copy_from_slice(tables);
    }

    fn rows(&self, table: usize) -> u64 {
        self.population.rows(table)
    }

    fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        self.population.row(table, row, value)
    }

    #[inline]
    fn draw(&self, rng: &mut SmallRng) -> TatpRequest {
        TatpRequest {
            kind: kind_of(rng.random_range(0..100)),
            s_id: self.draw_subscriber(rng) as u32,
            row_type: rng.random_range(1..=TYPES as u8),
            start_time: START_TIMES[rng.random_range(0..START_TIMES.len())],
            end_time: rng.random_range(1..=HOURS),
            data: rng.random_range(0..NUMBERS),
        }
    }

    #[inline]
    fn kind(request: &TatpRequest) -> usize {
        request.kind as usize
    }

    #[inline]
    fn access(request: &TatpRequest) -> Access {
        match request.kind {
            TatpProfile::GetSubscriberData
            | TatpProfile::GetNewDestination
            | TatpProfile::GetAccessData => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    #[inline]
    fn first_record(&self, request: &TatpRequest) -> (TableId, PrimaryKey) {
        let s_id = u64::from(request.s_id);
        match request.kind {
            TatpProfile::GetSubscriberData | TatpProfile::UpdateSubscriberData => {
                (self.tables[SUBSCRIBER], s_id.into())
            }
            TatpProfile::GetAccessData => {
                (self.tables[ACCESS_INFO], typed_key(s_id, request.row_type))
            }
            TatpProfile::GetNewDestination => {
                (self.tables[SPECIAL_FACILITY], typed_key(s_id, request.row_type))
            }
            _ => (self.tables[BY_NUMBER], number_key(request).into()),
        }
    }

    async fn attempt<T: Txn>(&self, txn: &mut T, request: &TatpRequest) -> Result<i64, TxnError> {
        match request.kind {
            TatpProfile::GetSubscriberData => self.get_subscriber_data(txn, request).await,
            TatpProfile::GetNewDestination => self.get_new_destination(txn, request).await,
            TatpProfile::GetAccessData => self.get_access_data(txn, request).await,
            TatpProfile::UpdateSubscriberData => self.update_subscriber_data(txn, request).await,
            TatpProfile::UpdateLocation => self.update_location(txn, request).await,
            TatpProfile::InsertCallForwarding => self.insert_call_forwarding(txn, request).await,
            TatpProfile::DeleteCallForwarding => self.delete_call_forwarding(txn, request).await,
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        audit::data(&self.tables, &self.population, deployment, effects)
    }

    fn judge(&self, counts: &[Counts]) -> Vec<Check> {
        audit::success_rates(self.population.subscribers, Self::TRANSACTIONS, counts)
    }

    fn settings(&self) -> serde_json::Value {
        json!({ "subscribers": self.population.subscribers })
    }
}

/// Type of transaction for a number from 0 to 99.
#[inline]
fn kind_of(mut percent: u32) -> TatpProfile {
    for (kind, share) in MIX {
        if percent < share {
            return kind;
        }
        percent -= share;
    }
    unreachable!("the shares add up to a hundred")
}

#[cfg(test)]
mod tests;
