//! The consistency conditions of clause 3.3.2, and checks beyond them.
//!
//! # Method
//! Tables are scanned row by row, in any order, and summed per warehouse, district, customer and
//! order (`books`); then sums are compared. The sums of an order take eight bytes. If there are
//! very many orders, districts are audited in portions, each with its own scans, so that memory
//! stays bounded.
//!
//! # Checks beyond the conditions
//! The conditions do not cover stock, access paths, or transactions that vanish as a whole. Stock
//! is summed with a random multiplier for each item: the sums agree with the sums of the order
//! lines only if every single row does, except with a chance of one in 2^64.

use std::ops::Range;

use lotus_mvcc::PrimaryKey;
use zerocopy::IntoBytes;

use super::Tpcc;
use super::population::FIRST_PAYMENT;
use super::rows::{
    Customer, District, History, Item, NewOrder, Order, OrderLine, Record, Stock, Warehouse,
};
use super::scale::DISTRICTS;
use crate::contract::audit::{Check, Effects, RowCheck};
use crate::contract::deployment::{DeployError, Deployment};

mod books;
mod conditions;
mod paths;

use books::{Books, Sales, WarehouseBook};
use conditions::Conditions;

/// Number of orders that are audited at once: 128 MiB.
pub(super) const ORDERS_AT_ONCE: u64 = 1 << 24;
/// Pieces that a refill adds to stock: the quantity modulo `REFILL` follows from the pieces sold.
const REFILL: u64 = 91;

/// Audits all data, about `orders_at_once` orders at a time.
///
/// # Errors
/// [`DeployError`] if the data cannot be read.
pub(super) fn audit<D: Deployment>(
    tpcc: &Tpcc,
    deployment: &mut D,
    effects: &Effects,
    orders_at_once: u64,
) -> Result<Vec<Check>, DeployError> {
    let mut scanner = Scanner { tpcc, deployment, rows: RowCheck::default(), expected: 0 };
    let mut conditions = Conditions::default();
    let mut paths = RowCheck::default();
    let mut constant = RowCheck::default();
    let mut warehouses = scanner.warehouses()?;
    let districts = scanner.districts(&mut warehouses)?;
    let mut deliveries = 0;
    for portion in portions(&districts, orders_at_once) {
        let mut books = Books::new(tpcc.scale, portion, &districts);
        scanner.fill(&mut books, &mut warehouses, &mut conditions)?;
        scanner.paths(&books, &mut paths)?;
        scanner.customers(&mut books, &mut conditions, &mut constant)?;
        books.judge(&mut conditions);
        deliveries += books.deliveries();
    }
    conditions.judge_warehouses(&warehouses);
    scanner.names(&mut paths)?;
    scanner.items(&mut constant)?;
    let stock = scanner.stock(&warehouses)?;

    let scale = &tpcc.scale;
    let taken: i128 = warehouses.iter().map(|book| i128::from(book.ytd)).sum();
    let placed: i128 = districts.iter().map(|row| i128::from(row.next_order.get()) - 1).sum();
    let customers = i128::from(scale.districts()) * i128::from(scale.customers);
    let mut checks = conditions.checks();
    checks.push(stock);
    checks.push(paths.check_all("tpcc-paths: access paths lead to their rows"));
    checks.push(constant.check_all("tpcc-constant: what nobody changes is as it was"));
    checks.push(scanner.rows.check("tpcc-rows: every row carries its key", scanner.expected));
    checks.push(effects.explain(
        "tpcc-balance: cents paid, orders placed and orders delivered",
        customers * i128::from(FIRST_PAYMENT) + customers,
        taken + placed + i128::from(deliveries),
    ));
    Ok(checks)
}

/// Ranges of districts with up to `orders_at_once` orders each, but at least one district.
fn portions(districts: &[District], orders_at_once: u64) -> Vec<Range<u32>> {
    let mut portions: Vec<Range<u32>> = Vec::new();
    let mut orders = 0;
    for (at, district) in (0..).zip(districts) {
        let more = u64::from(district.next_order.get());
        orders += more;
        match portions.last_mut() {
            Some(last) if orders <= orders_at_once => last.end = at + 1,
            _ => {
                orders = more;
                portions.push(at..at + 1);
            }
        }
    }
    portions
}

/// Scans tables, and counts their rows.
struct Scanner<'a, D> {
    tpcc: &'a Tpcc,
    deployment: &'a mut D,
    /// Check that rows carry their keys, and the expected number of rows.
    rows: RowCheck,
    expected: u64,
}

impl<D: Deployment> Scanner<'_, D> {
    /// Passes every record of a table that carries its key to `see`.
    fn scan<R: Record>(&mut self, mut see: impl FnMut(&R)) -> Result<(), DeployError> {
        let (scale, rows) = (&self.tpcc.scale, &mut self.rows);
        let mut seen = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            seen += 1;
            let carries = |record: &&R| record.key(scale).as_bytes() == key;
            let record = R::ref_from_bytes(value).ok().filter(carries);
            rows.see(record.is_some(), || {
                format!("{} {key:02x?} has the record {value:02x?}", R::TABLE.name())
            });
            record.into_iter().for_each(&mut see);
        };
        let table = self.tpcc.tables[R::TABLE as usize];
        match R::TABLE.is_ordered(self.tpcc.paths) {
            true => self.deployment.scan_ordered(table, &mut visit)?,
            false => {
                let visit = &mut |key: &PrimaryKey, value: &[u8], _| visit(key.as_bytes(), value);
                self.deployment.scan(table, visit)?;
            }
        }
        // The conditions judge the number of rows of growing tables.
        let fixed = self.tpcc.population.rows(R::TABLE);
        self.expected += if R::TABLE.grows() { seen } else { fixed };
        Ok(())
    }

    fn warehouses(&mut self) -> Result<Vec<WarehouseBook>, DeployError> {
        let mut books = vec![WarehouseBook::default(); self.tpcc.scale.warehouses as usize];
        self.scan(|row: &Warehouse| {
            if let Some(book) = books.get_mut(row.id.get() as usize) {
                book.ytd = row.ytd.get();
            }
        })?;
        Ok(books)
    }

    fn districts(
        &mut self,
        warehouses: &mut [WarehouseBook],
    ) -> Result<Vec<District>, DeployError> {
        let missing = self.tpcc.population.district(0);
        let mut districts = vec![missing; self.tpcc.scale.districts() as usize];
        self.scan(|row: &District| {
            let id = row.id.get();
            if let Some(district) = districts.get_mut(id as usize) {
                *district = *row;
                warehouses[(id / DISTRICTS) as usize].districts_ytd += row.ytd.get();
            }
        })?;
        Ok(districts)
    }

    /// Adds orders, lines and payments of the districts of `books`.
    fn fill(
        &mut self,
        books: &mut Books,
        warehouses: &mut [WarehouseBook],
        conditions: &mut Conditions,
    ) -> Result<(), DeployError> {
        let loaded = self.tpcc.scale.customers;
        self.scan(|row: &Order| books.add_order(row))?;
        self.scan(|row: &NewOrder| books.add_new_order(row))?;
        self.scan(|row: &OrderLine| {
            if books.add_line(row, conditions) && row.order.get() > loaded {
                let supplier = warehouses.get_mut(row.supplier.get() as usize);
                supplier.into_iter().for_each(|book| book.sold.add_line(row));
            }
        })?;
        self.scan(|row: &History| {
            if books.add_payment(row) {
                warehouses[(row.district.get() / DISTRICTS) as usize].paid += row.amount.get();
            }
        })
    }

    /// Judges the customers of the districts of `books`, after all other rows have been added.
    fn customers(
        &mut self,
        books: &mut Books,
        conditions: &mut Conditions,
        constant: &mut RowCheck,
    ) -> Result<(), DeployError> {
        let population = &self.tpcc.population;
        self.scan(|row: &Customer| {
            if books.judge_customer(row, conditions) {
                let before = population.customer(row.id.get());
                let same = (row.first, row.last) == (before.first, before.last);
                constant.see(same, || format!("customer {} has another name", row.id));
            }
        })
    }

    fn items(&mut self, constant: &mut RowCheck) -> Result<(), DeployError> {
        let population = &self.tpcc.population;
        self.scan(|row: &Item| {
            let id = row.id.get();
            let same = row.as_bytes() == population.item(id).as_bytes();
            constant.see(same, || format!("item {id} has changed"));
        })
    }

    /// Checks stock rows against the pieces sold.
    fn stock(&mut self, warehouses: &[WarehouseBook]) -> Result<Check, DeployError> {
        let population = &self.tpcc.population;
        let mut stock = RowCheck::default();
        let mut taken = vec![Sales::default(); warehouses.len()];
        self.scan(|row: &Stock| {
            let (warehouse, item) = (row.warehouse.get(), row.item.get());
            if let Some(taken) = taken.get_mut(warehouse as usize) {
                taken.add_stock(row);
            }
            let (before, _) = population.stock_quantity(warehouse, item);
            let quantity = u64::from(row.quantity.get());
            let right = (10..=100).contains(&quantity)
                && (quantity + row.ytd.get()) % REFILL == u64::from(before) % REFILL;
            stock.see(right, || {
                let ytd = row.ytd;
                format!("{quantity} of item {item} in warehouse {warehouse}, {ytd} sold")
            });
        })?;
        for (warehouse, (book, taken)) in warehouses.iter().zip(taken).enumerate() {
            stock.see(book.sold == taken, || {
                format!("warehouse {warehouse} sold {:?} and delivered {taken:?}", book.sold)
            });
        }
        Ok(stock.check_all("tpcc-stock: stock is what orders have left of it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_cover_all_districts_and_keep_to_their_size() {
        let tpcc = Tpcc::new(
            crate::workloads::tpcc::Scale { warehouses: 2, customers: 3, items: 1 },
            CRITICAL,
            1,
        );
        let mut districts: Vec<District> = (0..20).map(|id| tpcc.population.district(id)).collect();
        districts[7].next_order.set(u32::MAX);
        for (at_once, count) in [(1, 20), (4, 20), (8, 11), (1 << 40, 1)] {
            let portions = portions(&districts, at_once);
            assert_eq!(portions.len(), count, "{at_once}: {portions:?}");
            assert!(portions.iter().cloned().flatten().eq(0..20));
        }
    }

    const CRITICAL: crate::workloads::tpcc::Critical = crate::workloads::tpcc::Critical::Warehouse;
}
