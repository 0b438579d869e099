//! Numbers of the locks of a warehouse, by table.

use std::ops::Range;

use lotus_benchmarks::tpcc::{DISTRICTS, MAX_LINES, Scale};

/// Data that a lock of a TPC-C trace protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockGranularity {
    /// Parts of tables: 121 locks for each warehouse (FissLock §7.1, its public code).
    Parts,
    /// Single rows (DSLR §6.1), of tables that are smaller than the tables of the specification by
    /// a divisor.
    Rows {
        /// The divisor, from 1 to 1000.
        divisor: u32,
    },
}

impl LockGranularity {
    /// Customers of a district and items.
    pub(super) fn scale(self, warehouses: u32) -> Scale {
        let divisor = match self {
            Self::Parts => 1,
            Self::Rows { divisor } => divisor,
        };
        let Scale { customers, items, .. } = Scale::default();
        Scale { warehouses, customers: customers / divisor, items: items / divisor }
    }
}

/// Locks of one warehouse: the range of each table, counted from the first lock of the warehouse.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) districts: Range<u64>,
    pub(super) customers: Range<u64>,
    pub(super) stock: Range<u64>,
    pub(super) orders: Range<u64>,
    pub(super) new_orders: Range<u64>,
    pub(super) histories: Range<u64>,
    pub(super) lines: Range<u64>,
    /// Number of locks of a warehouse. Items are read only, so their locks are not used.
    pub(super) all: u64,
}

impl Layout {
    /// Lays out the locks of a warehouse, with a single lock for customers if `one_for_customers`.
    pub(super) fn new(granularity: LockGranularity, one_for_customers: bool) -> Self {
        let Scale { customers, items, .. } = granularity.scale(1);
        let (customers, items) = (u64::from(DISTRICTS * customers), u64::from(items));
        let (parts, lines) = (10, MAX_LINES as u64);
        // Customers, stock, orders, new orders, histories, lines, items.
        let counts = match granularity {
            LockGranularity::Parts => [30, 30, parts, parts, parts, parts, parts],
            // As many orders as customers, of which three tenths are new.
            LockGranularity::Rows { .. } => {
                let new = customers * 3 / 10;
                [customers, items, customers, new, customers, customers * lines, 0]
            }
        };
        let counts = match (one_for_customers, counts) {
            (true, [_, others @ ..]) => {
                let [stock, orders, new, histories, lines, items] = others;
                [1, stock, orders, new, histories, lines, items]
            }
            (false, counts) => counts,
        };
        let mut end = 1;
        let mut next = |count: u64| {
            let start = end;
            end += count;
            start..end
        };
        let districts = next(DISTRICTS.into());
        let [customers, stock, orders, new_orders, histories, lines, _items] =
            counts.map(&mut next);
        Self { districts, customers, stock, orders, new_orders, histories, lines, all: end }
    }
}

/// The lock of the `row`th row of a table; rows share locks if there are fewer locks than rows.
pub(super) const fn of(table: &Range<u64>, row: u64) -> u64 {
    table.start + row % (table.end - table.start)
}

/// Number of locks of a table.
pub(super) const fn count(table: &Range<u64>) -> u64 {
    table.end - table.start
}
