//! The consistency conditions of clause 3.3.2, and checks beyond them.
//!
//! # Method
//! Tables are scanned row by row, in any order, and summed per warehouse, district, customer and
//! order (`books`); then sums are compared. An order takes eight bytes for that. If there are very
//! many orders, districts are audited in portions, each with its own scans, so that memory stays
//! bounded.
//!
//! # Checks beyond the conditions
//! The conditions do not cover stock, access paths, or transactions that vanish as a whole. Stock
//! is summed with a random multiplier for each item: the sums agree with those of the order lines
//! only if every single row does, except with a chance of one in 2^64.

use std::ops::Range;

use lotus_mvcc::PrimaryKey;
use zerocopy::IntoBytes;

use super::Tpcc;
use super::population::{FIRST_PAYMENT, Population};
use super::rows::{
    Customer, District, History, Item, LatestOrder, NewOrder, NextDelivery, Order, OrderLine,
    Record, Stock, Warehouse, postings,
};
use super::scale::{DISTRICTS, Scale, Table};
use crate::contract::audit::{Check, Effects, RowCheck};
use crate::contract::deployment::{DeployError, Deployment};

mod books;
mod conditions;

use books::{Books, Sales, WarehouseBook};
use conditions::Conditions;

/// Number of orders that are audited at once: 128 MiB.
pub(super) const ORDERS_AT_ONCE: u64 = 1 << 24;
/// Pieces that a refill adds to stock: the quantity modulo this follows from the pieces sold.
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
        let table = self.tpcc.tables[R::TABLE as usize];
        self.deployment.scan(table, &mut |key, value, _writer| {
            seen += 1;
            let record = R::ref_from_bytes(value).ok().filter(|record| record.key(scale) == *key);
            rows.see(record.is_some(), || {
                format!("{} {key:?} has the record {value:02x?}", R::TABLE.name())
            });
            record.into_iter().for_each(&mut see);
        })?;
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

    /// Judges the customers of the districts of `books`, after everything else has been added.
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

    /// Checks latest orders and next deliveries of the districts of `books`.
    fn paths(&mut self, books: &Books, paths: &mut RowCheck) -> Result<(), DeployError> {
        let mut compare = |what: &str, id: u32, leads_to: u32, should: Option<u32>| {
            let Some(should) = should else { return };
            paths.see(leads_to == should, || {
                format!("{what} {id} leads to order {leads_to} instead of {should}")
            });
        };
        self.scan(|row: &LatestOrder| {
            let id = row.customer.get();
            compare("customer", id, row.order.get(), books.latest_order(id));
        })?;
        self.scan(|row: &NextDelivery| {
            let id = row.district.get();
            compare("district", id, row.order.get(), books.next_delivery(id));
        })
    }

    /// Checks customers by name: each list has the right name and order, and all lists together
    /// name every customer.
    fn names(&mut self, paths: &mut RowCheck) -> Result<(), DeployError> {
        let Tpcc { scale, population, .. } = self.tpcc;
        let table = self.tpcc.tables[Table::CustomersByName as usize];
        let (mut lists, mut listed) = (0, 0);
        self.deployment.scan(table, &mut |key, value, _writer| {
            lists += 1;
            listed += (value.len() / postings::ENTRY_BYTES) as u64;
            paths.see(is_right_list(population, scale, key, value), || {
                format!("name {key:?} leads to the customers {value:02x?}")
            });
        })?;
        let (all_lists, all) =
            (population.rows(Table::CustomersByName), population.rows(Table::Customer));
        paths.see((lists, listed) == (all_lists, all), || {
            format!("{lists} of {all_lists} names lead to {listed} of {all} customers")
        });
        Ok(())
    }

    fn items(&mut self, constant: &mut RowCheck) -> Result<(), DeployError> {
        let population = &self.tpcc.population;
        self.scan(|row: &Item| {
            let id = row.id.get();
            let same = row.as_bytes() == population.item(id).as_bytes();
            constant.see(same, || format!("item {id} has changed"));
        })
    }

    /// Checks stock against the pieces sold of it.
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

/// Whether a list consists of customers with the key's district and name, ordered by first name.
fn is_right_list(population: &Population, scale: &Scale, key: &PrimaryKey, list: &[u8]) -> bool {
    let (entries, rest) = list.as_chunks::<{ postings::ENTRY_BYTES }>();
    let mut before = None;
    let in_order = entries.iter().all(|entry| {
        let id = u32::from_le_bytes(*entry);
        if id >= scale.districts() * scale.customers {
            return false;
        }
        let customer = population.customer(id);
        let here = Scale::name_key(scale.district_of(id), &customer.last) == *key;
        let place = Some((customer.first, id));
        let follows = before < place;
        before = place;
        here && follows
    });
    rest.is_empty() && !entries.is_empty() && in_order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_cover_all_districts_and_keep_to_their_size() {
        let tpcc = Tpcc::new(Scale { warehouses: 2, customers: 3, items: 1 }, CRITICAL, 1);
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
