//! Locks of TPC-C: one lock for each warehouse, and locks for the rows of its tables, or for parts
//! of the tables.
//!
//! With a lock for each row, a transaction locks the rows that the specification makes it use. With
//! parts, a transaction locks one part of orders, new orders, histories and order lines, drawn at
//! random, and parts of customers and stock by the row, as in the traces of FissLock: DELIVERY then
//! serves one district, and STOCK LEVEL looks at one part of the lines and of the stock. Items are
//! read only, and not locked.

use std::time::Duration;

use lotus_benchmarks::tpcc::{
    CustomerSelector, DISTRICTS, LAST_NAMES, MAX_LINES, NewOrder, Payment, RequestParameters,
    Scale, Terminals, Tpcc,
};
use lotus_benchmarks::workload::Workload as _;
use rand::Rng;
use rand::rngs::SmallRng;

use super::layout::{self, Layout, LockGranularity};
use super::{Origin, Transaction, WantedLock};

/// Type number of [`Scans`], behind the other types.
const SCAN: usize = TpccTrace::KINDS.len();

/// Transactions that read all customers for a long time (DSLR §6.4).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scans {
    /// Share of scans among all transactions.
    pub share: f64,
    /// Time for which a scan executes.
    pub time: Duration,
}

/// TPC-C as locks.
#[derive(Clone, Debug)]
pub struct TpccTrace {
    scale: Scale,
    scans: Option<Scans>,
    granularity: LockGranularity,
    layout: Layout,
    terminals: Terminals,
}

impl TpccTrace {
    /// Names of the types of transactions, in the order of [`Transaction::kind`].
    pub const KINDS: &'static [&'static str] = Tpcc::TRANSACTIONS;

    /// A company of `warehouses` warehouses.
    ///
    /// # Panics
    /// If there are no warehouses.
    pub fn new(warehouses: u32, granularity: LockGranularity, seed: u64) -> Self {
        assert!(warehouses > 0, "a company has a warehouse");
        let scale = granularity.scale(warehouses);
        let terminals = Terminals::new(scale, seed);
        Self { scale, scans: None, granularity, layout: Layout::new(granularity, false), terminals }
    }

    /// Adds scans of all customers. Each warehouse then has one lock for its customers, taken by
    /// scans and by transactions that read or write a customer.
    #[must_use]
    pub fn with_scans(self, scans: Scans) -> Self {
        Self { scans: Some(scans), layout: Layout::new(self.granularity, true), ..self }
    }

    /// Names of the types of transactions in this trace.
    pub(super) fn kinds(&self) -> Vec<&str> {
        let scans = self.scans.map(|_| "CustomerScan");
        Self::KINDS.iter().copied().chain(scans).collect()
    }

    /// Execution time of transactions of a type, if the type has its own.
    pub(super) fn execution(&self, kind: usize) -> Option<Duration> {
        self.scans.filter(|_| kind == SCAN).map(|scans| scans.time)
    }

    /// See [`super::Trace::locks`].
    pub const fn locks(&self) -> u64 {
        self.scale.warehouses as u64 * self.layout.all
    }

    /// Draws a transaction at a warehouse of the client's node; the nodes share the warehouses
    /// evenly.
    pub(super) fn draw(&self, rng: &mut SmallRng, at: Origin) -> Transaction {
        if self.scans.is_some_and(|scans| rng.random_bool(scans.share)) {
            let customers = |warehouse| self.lock(warehouse, &self.layout.customers, 0);
            let all = (0..self.scale.warehouses).map(customers);
            return Transaction::new(SCAN, all.map(WantedLock::read).collect());
        }
        let share = |node| (node * u64::from(self.scale.warehouses) / at.nodes) as u32;
        let own = share(at.node)..share(at.node + 1);
        // If there are more nodes than warehouses, some nodes have no warehouse.
        let own = if own.is_empty() { 0..self.scale.warehouses } else { own };
        let warehouse = rng.random_range(own);
        let request = self.terminals.draw_at(rng, warehouse);
        let wants = match &request.0 {
            RequestParameters::NewOrder(order) => self.new_order(order, rng),
            RequestParameters::Payment(payment) => self.payment(payment, rng),
            RequestParameters::OrderStatus(whom) => {
                let (customer, warehouse) = self.customer(whom);
                let order = self.random_order(rng, None);
                let order_lock = self.lock(warehouse, &self.layout.orders, order);
                let lines = self.lines(warehouse, order, rng).into_iter().map(WantedLock::read);
                let found = [customer, order_lock].map(WantedLock::read).into_iter();
                found.chain(lines).collect()
            }
            RequestParameters::Delivery { warehouse, .. } => self.delivery(*warehouse, rng),
            RequestParameters::StockLevel { district, .. } => self.stock_level(*district, rng),
        };
        Transaction::new(Tpcc::kind(&request), wants)
    }

    fn new_order(&self, order: &NewOrder, rng: &mut SmallRng) -> Vec<WantedLock> {
        let layout = &self.layout;
        let district = self.scale.district_of(order.customer);
        let warehouse = Scale::warehouse_of(district);
        let number = self.random_order(rng, Some(district));
        let new = self.random_new_order(rng, Some(district));
        let mut wants = vec![
            WantedLock::read(self.warehouse(warehouse)),
            WantedLock::write(self.lock(warehouse, &layout.districts, district.into())),
            WantedLock::read(self.lock(warehouse, &layout.customers, order.customer.into())),
            WantedLock::write(self.lock(warehouse, &layout.orders, number)),
            WantedLock::write(self.lock(warehouse, &layout.new_orders, new)),
        ];
        // An item that does not exist has no stock.
        let lines = order.lines().iter().filter(|line| line.item < self.scale.items);
        let stock = |supplier, item: u32| self.lock(supplier, &layout.stock, item.into());
        wants.extend(lines.map(|line| WantedLock::write(stock(line.supplier, line.item))));
        let count = order.lines().len() as u64;
        wants.extend(self.lines_of(warehouse, number, count).map(WantedLock::write));
        wants
    }

    fn payment(&self, payment: &Payment, rng: &mut SmallRng) -> Vec<WantedLock> {
        let warehouse = Scale::warehouse_of(payment.district);
        let (customer, _) = self.customer(&payment.whom);
        let histories = &self.layout.histories;
        let history = rng.random_range(0..layout::count(histories));
        let district = self.lock(warehouse, &self.layout.districts, payment.district.into());
        let history = self.lock(warehouse, histories, history);
        [self.warehouse(warehouse), district, customer, history].map(WantedLock::write).to_vec()
    }

    /// Delivers the oldest new order of each district, or of one district.
    fn delivery(&self, warehouse: u32, rng: &mut SmallRng) -> Vec<WantedLock> {
        let (first, layout) = (warehouse * DISTRICTS, &self.layout);
        let districts: Vec<Option<u32>> = match self.granularity {
            LockGranularity::Parts => vec![None],
            LockGranularity::Rows { .. } => (first..first + DISTRICTS).map(Some).collect(),
        };
        let mut wants = Vec::new();
        for district in districts {
            let new = self.random_new_order(rng, district);
            let order = self.random_order(rng, district);
            let anywhere = rng.random_range(0..DISTRICTS);
            let customer = district.unwrap_or(first + anywhere) * self.scale.customers
                + rng.random_range(0..self.scale.customers);
            let one = [
                self.lock(warehouse, &layout.new_orders, new),
                self.lock(warehouse, &layout.orders, order),
            ];
            wants.extend(one.map(WantedLock::write));
            wants.extend(self.lines(warehouse, order, rng).into_iter().map(
                match self.granularity {
                    // In the traces of FissLock, DELIVERY only reads the lines.
                    LockGranularity::Parts => WantedLock::read,
                    LockGranularity::Rows { .. } => WantedLock::write,
                },
            ));
            wants.push(WantedLock::write(self.lock(warehouse, &layout.customers, customer.into())));
        }
        wants
    }

    /// Reads a district; with parts, also one part of the lines and one of the stock. Lines and
    /// stock may be read without lasting locks (clause 3.4), which is the case with locks for rows.
    fn stock_level(&self, district: u32, rng: &mut SmallRng) -> Vec<WantedLock> {
        let (warehouse, layout) = (Scale::warehouse_of(district), &self.layout);
        let mut wants = vec![self.lock(warehouse, &layout.districts, district.into())];
        if self.granularity == LockGranularity::Parts {
            wants.extend(self.lines(warehouse, 0, rng));
            let item = rng.random_range(0..self.scale.items);
            wants.push(self.lock(warehouse, &layout.stock, item.into()));
        }
        wants.into_iter().map(WantedLock::read).collect()
    }

    fn warehouse(&self, warehouse: u32) -> u64 {
        u64::from(warehouse) * self.layout.all
    }

    fn lock(&self, warehouse: u32, table: &std::ops::Range<u64>, row: u64) -> u64 {
        self.warehouse(warehouse) + layout::of(table, row)
    }

    /// Lock of a customer, and the customer's warehouse.
    fn customer(&self, whom: &CustomerSelector) -> (u64, u32) {
        let number = match *whom {
            CustomerSelector::Number(customer) => customer,
            // Of three customers with a name, the one in the middle.
            CustomerSelector::Name { district, name } => {
                let middle = name + LAST_NAMES;
                let within = if middle < self.scale.customers { middle } else { name };
                district * self.scale.customers + within
            }
        };
        let warehouse = Scale::warehouse_of(self.scale.district_of(number));
        (self.lock(warehouse, &self.layout.customers, number.into()), warehouse)
    }

    /// An order of a district of the warehouse, or of any district: with parts, and for an order
    /// that is looked up.
    fn random_order(&self, rng: &mut SmallRng, district: Option<u32>) -> u64 {
        self.random(rng, layout::count(&self.layout.orders), district)
    }

    fn random_new_order(&self, rng: &mut SmallRng, district: Option<u32>) -> u64 {
        self.random(rng, layout::count(&self.layout.new_orders), district)
    }

    fn random(&self, rng: &mut SmallRng, all: u64, district: Option<u32>) -> u64 {
        match (self.granularity, district) {
            (LockGranularity::Rows { .. }, Some(district)) => {
                let (each, district) = (all / u64::from(DISTRICTS), district % DISTRICTS);
                each * u64::from(district) + rng.random_range(0..each)
            }
            _ => rng.random_range(0..all),
        }
    }

    /// Locks of the lines of an existing order: of 5 to 15 lines, or of one part of the lines.
    fn lines(&self, warehouse: u32, order: u64, rng: &mut SmallRng) -> Vec<u64> {
        let count = match self.granularity {
            LockGranularity::Parts => rng.random_range(0..layout::count(&self.layout.lines)),
            LockGranularity::Rows { .. } => rng.random_range(5..=MAX_LINES as u64),
        };
        match self.granularity {
            LockGranularity::Parts => self.lines_of(warehouse, count, 1).collect(),
            LockGranularity::Rows { .. } => self.lines_of(warehouse, order, count).collect(),
        }
    }

    /// Locks of `count` lines of an order; with parts, of a part of the lines.
    fn lines_of(
        &self,
        warehouse: u32,
        order: u64,
        count: u64,
    ) -> impl Iterator<Item = u64> + use<> {
        let (table, base) = (self.layout.lines.clone(), self.warehouse(warehouse));
        let rows = match self.granularity {
            LockGranularity::Parts => order..order + 1,
            LockGranularity::Rows { .. } => {
                let first = order * MAX_LINES as u64;
                first..first + count
            }
        };
        rows.map(move |row| base + layout::of(&table, row))
    }
}

#[cfg(test)]
mod tests;
