//! TPC-C (revision 5.11): a company with warehouses, districts, customers, stock and orders.
//!
//! # Tables and transactions
//! Nine tables and five transactions, in the specification's proportions, populated in full
//! ([`Scale`]). Access paths lead to customers by last name, to a customer's latest order and to
//! the oldest undelivered order of a district: rows of three more tables, or ranges of ordered
//! tables ([`Paths`]), written in the same transactions as their targets.
//!
//! # Limits
//! The figures are no TPC-C results: there are no terminals, keying times or think times.
//!
//! # Modules
//! `rows` defines the records, `population` their initial contents, `request` the requests, `paths`
//! the differences between the forms of access paths; each transaction has a file. `audit` checks
//! the specification's twelve consistency conditions. The conditions hold at either isolation
//! level, because every execution of TPC-C under snapshot isolation is serializable (Fekete et al.,
//! "Making snapshot isolation serializable", TODS 2005). An unknown outcome breaks no condition,
//! because a transaction takes effect as a whole or not at all.

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::rngs::SmallRng;
use serde_json::json;

use crate::contract::audit::{Check, Effects};
use crate::contract::config::ClusterConfig;
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{Txn, TxnError};
use crate::contract::stats::Counts;
use crate::contract::workload::{Access, Rate, Workload};

mod access;
mod audit;
mod delivery;
mod new_order;
mod order_status;
mod paths;
mod payment;
mod population;
mod random;
mod request;
mod rows;
mod scale;
mod stock_level;
#[cfg(test)]
mod tests;

use access::Rows;
pub use paths::Paths;
use population::Population;
use request::TpccProfile;
pub use request::{
    CustomerSelector, NewOrder, Ordered, Payment, RequestParameters, Terminals, TpccRequest,
};
use scale::Table;
pub use scale::{Critical, DISTRICTS, LAST_NAMES, MAX_LINES, Scale};

/// The TPC-C workload.
#[derive(Clone, Debug)]
pub struct Tpcc {
    tables: [TableId; Table::COUNT],
    scale: Scale,
    critical: Critical,
    paths: Paths,
    population: Population,
    terminals: Terminals,
}

impl Tpcc {
    /// A company of size `scale`, sharded by `critical`. All data follows from `seed`.
    ///
    /// # Panics
    /// If a number of `scale` is zero or above its limit.
    pub fn new(scale: Scale, critical: Critical, seed: u64) -> Self {
        let Scale { warehouses, customers, items } = scale;
        let allowed = (1..=Scale::MAX_WAREHOUSES).contains(&warehouses)
            && (1..=Scale::MAX_CUSTOMERS).contains(&customers)
            && (1..=Scale::MAX_ITEMS).contains(&items);
        assert!(allowed, "there is no company of {scale:?}");
        Self {
            tables: [TableId(0); Table::COUNT],
            scale,
            critical,
            paths: Paths::Rows,
            population: Population::new(scale, seed),
            terminals: Terminals::new(scale, seed),
        }
    }

    /// Returns the company with access paths of this form; [`Paths::Rows`] is the default.
    #[must_use]
    pub fn with_paths(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    fn record_bytes(&self, table: Table) -> usize {
        match table {
            Table::Warehouse => size_of::<rows::Warehouse>(),
            Table::District => size_of::<rows::District>(),
            Table::Customer => size_of::<rows::Customer>(),
            Table::History => size_of::<rows::History>(),
            Table::NewOrder => size_of::<rows::NewOrder>(),
            Table::Order => size_of::<rows::Order>(),
            Table::OrderLine => size_of::<rows::OrderLine>(),
            Table::Item => size_of::<rows::Item>(),
            Table::Stock => size_of::<rows::Stock>(),
            Table::CustomersByName => {
                self.population.most_of_one_name() * rows::postings::ENTRY_BYTES
            }
            Table::LatestOrder => size_of::<rows::LatestOrder>(),
            Table::NextDelivery => size_of::<rows::NextDelivery>(),
            Table::NamedCustomer => size_of::<rows::NamedCustomer>(),
            Table::CustomersOrder => size_of::<rows::CustomersOrder>(),
        }
    }
}

impl Workload for Tpcc {
    type Request = TpccRequest;

    const NAME: &'static str = "tpcc";
    const TRANSACTIONS: &'static [&'static str] =
        &["NewOrder", "Payment", "OrderStatus", "Delivery", "StockLevel"];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        let spec = |table: &Table| {
            let size = (self.population.rows(*table), self.record_bytes(*table));
            table.spec(&self.scale, size, (self.paths, self.critical), cluster)
        };
        Table::of(self.paths).iter().map(spec).collect()
    }

    fn attach(&mut self, tables: &[TableId]) {
        for (table, id) in Table::of(self.paths).iter().zip(tables) {
            self.tables[*table as usize] = *id;
        }
    }

    fn rows(&self, table: usize) -> u64 {
        self.population.rows(Table::of(self.paths)[table])
    }

    fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        self.population.row(Table::of(self.paths)[table], row, value)
    }

    #[inline]
    fn draw(&self, rng: &mut SmallRng) -> TpccRequest {
        self.terminals.draw(rng)
    }

    #[inline]
    fn kind(request: &TpccRequest) -> usize {
        request.kind() as usize
    }

    #[inline]
    fn access(request: &TpccRequest) -> Access {
        match request.kind() {
            TpccProfile::OrderStatus | TpccProfile::StockLevel => Access::ReadOnly,
            TpccProfile::NewOrder | TpccProfile::Payment | TpccProfile::Delivery => {
                Access::ReadWrite
            }
        }
    }

    /// The customer, if a new order or a status request gives the customer's number; otherwise the
    /// district or warehouse of the request. The key of the record names all levels above the
    /// record, so any of these levels can be the critical field.
    #[inline]
    fn first_record(&self, request: &TpccRequest) -> (TableId, PrimaryKey) {
        let (table, key) = match request.0 {
            RequestParameters::NewOrder(order) => {
                (Table::Customer, self.scale.customer_key(order.customer))
            }
            RequestParameters::Payment(payment) => {
                (Table::District, Scale::district_key(payment.district))
            }
            RequestParameters::OrderStatus(CustomerSelector::Number(customer)) => {
                (Table::Customer, self.scale.customer_key(customer))
            }
            RequestParameters::OrderStatus(CustomerSelector::Name { district, .. })
            | RequestParameters::StockLevel { district, .. } => {
                (Table::District, Scale::district_key(district))
            }
            RequestParameters::Delivery { warehouse, .. } => {
                (Table::Warehouse, Scale::warehouse_key(warehouse))
            }
        };
        (self.tables[table as usize], key)
    }

    /// The balance is the sum of cents paid, orders placed and orders delivered.
    async fn attempt<T: Txn>(&self, txn: &mut T, request: &TpccRequest) -> Result<i64, TxnError> {
        let mut rows = Rows { tpcc: self, txn };
        match &request.0 {
            RequestParameters::NewOrder(wish) => rows.new_order(wish).await,
            RequestParameters::Payment(wish) => rows.payment(wish).await,
            RequestParameters::OrderStatus(whom) => rows.order_status(*whom).await.map(|()| 0),
            RequestParameters::Delivery { warehouse, carrier } => {
                rows.delivery(*warehouse, *carrier).await
            }
            RequestParameters::StockLevel { district, threshold } => {
                rows.stock_level(*district, *threshold).await.map(|_low| 0)
            }
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        audit::audit(self, deployment, effects, audit::ORDERS_AT_ONCE)
    }

    fn settings(&self) -> serde_json::Value {
        json!({
            "warehouses": self.scale.warehouses,
            "customers_per_district": self.scale.customers,
            "items": self.scale.items,
            "critical_field": self.critical,
            "paths": self.paths,
        })
    }

    fn rates(by_transaction: &[Counts], elapsed_s: f64) -> Vec<Rate> {
        let orders = by_transaction[TpccProfile::NewOrder as usize].committed as f64;
        let value = if elapsed_s > 0.0 { orders * 60.0 / elapsed_s } else { 0.0 };
        vec![Rate { name: "tpmC", unit: "new orders a minute", value }]
    }
}
