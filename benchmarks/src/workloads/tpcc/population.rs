//! Initial contents of the database (clause 4.3.3.1): every row is a function of its number and the
//! seed.
//!
//! Some properties are drawn once and shared by all districts: the customers' last names, the
//! customer of each order, and the order's number of lines. These properties take tens of kilobytes
//! whatever the number of warehouses, and make every row cheap to compute. All other properties are
//! drawn row by row.

use lotus_mvcc::PrimaryKey;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::random::{Constants, NonUniform, Rolls};
use super::rows::{
    Address, Customer, CustomersOrder, District, History, Item, LOADED, LatestOrder, Moment,
    NamedCustomer, NewOrder, NextDelivery, Order, OrderLine, Record, Stock, Warehouse, postings,
};
use super::scale::{DISTRICTS, FIRST_NAME_BYTES, NAME_BYTES, Scale, Table};

/// Initial payment of a customer, in cents.
pub(super) const FIRST_PAYMENT: i64 = 1_000;
/// Credit limit of a customer, in cents.
const CREDIT_LIMIT: i64 = 5_000_000;
/// The largest amount of an order line, in cents.
const MAX_LINE_AMOUNT: u64 = 999_999;
/// Quantity in each line of an initial order.
const QUANTITY: u8 = 5;
/// One row in `ONE_IN` has bad credit, or "ORIGINAL" in its data.
const ONE_IN: u64 = 10;

/// Syllables of last names (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// Last name of a number below a thousand, padded with zeroes.
pub(super) fn last_name(number: u32) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let mut end = 0;
    for digit in [number / 100, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES[digit as usize].as_bytes();
        name[end..end + syllable.len()].copy_from_slice(syllable);
        end += syllable.len();
    }
    name
}

/// Initial contents of the database; see the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Population {
    scale: Scale,
    seed: u64,
    /// Last name of each customer of a district.
    names: Vec<u32>,
    /// Customers of a district ordered by name, and the index where each name begins.
    by_name: Vec<u32>,
    name_starts: Vec<usize>,
    /// Customer of each order of a district, and order of each customer; both from zero.
    customer_of: Vec<u32>,
    order_of: Vec<u32>,
    /// Number of lines before each order of a district, and at the end the number of all lines.
    line_starts: Vec<u32>,
}

impl Population {
    pub(super) fn new(scale: Scale, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let draw = NonUniform::last_name(&scale, Constants::new(seed).last_name_load);
        let used = scale.last_names();
        let name = |customer| if customer < used { customer } else { draw.draw(&mut rng) };
        let names: Vec<u32> = (0..scale.customers).map(name).collect();
        let mut by_name: Vec<u32> = (0..scale.customers).collect();
        by_name.sort_by_key(|customer| names[*customer as usize]);
        let start = |name| by_name.partition_point(|c| names[*c as usize] < name);
        let name_starts = (0..=used).map(start).collect();
        let mut customer_of: Vec<u32> = (0..scale.customers).collect();
        customer_of.shuffle(&mut rng);
        let mut order_of = vec![0; customer_of.len()];
        for (order, customer) in customer_of.iter().enumerate() {
            order_of[*customer as usize] = order as u32;
        }
        let mut line_starts = vec![0];
        for order in 0..scale.customers as usize {
            line_starts.push(line_starts[order] + rng.random_range(5..=15));
        }
        Self { scale, seed, names, by_name, name_starts, customer_of, order_of, line_starts }
    }

    /// Largest number of customers of a district that share a name.
    pub(super) fn most_of_one_name(&self) -> usize {
        let counts = self.name_starts.windows(2).map(|ends| ends[1] - ends[0]);
        counts.max().expect("there are names")
    }

    /// Number of rows that a table begins with.
    pub(super) fn rows(&self, table: Table) -> u64 {
        let (Scale { warehouses, customers, items }, districts) =
            (self.scale, self.scale.districts());
        let each = match table {
            Table::Warehouse => return warehouses.into(),
            Table::Item => return items.into(),
            Table::Stock => return u64::from(warehouses) * u64::from(items),
            Table::District | Table::NextDelivery => 1,
            Table::Customer
            | Table::History
            | Table::Order
            | Table::LatestOrder
            | Table::NamedCustomer
            | Table::CustomersOrder => customers,
            Table::NewOrder => customers - self.scale.delivered(),
            Table::OrderLine => self.lines_of_district(),
            Table::CustomersByName => self.scale.last_names(),
        };
        u64::from(districts) * u64::from(each)
    }

    /// Appends row `row` of a table to `value`, and returns its key.
    pub(super) fn row(&self, table: Table, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        let number = row as u32;
        // Splits a row number into the number of its district or warehouse and the number within.
        let within = |count: u32| {
            let count = u64::from(count);
            ((row / count) as u32, (row % count) as u32)
        };
        match table {
            Table::Warehouse => self.write(self.warehouse(number), value),
            Table::District => self.write(self.district(number), value),
            Table::Customer => self.write(self.customer(number), value),
            Table::History => self.write(self.history(number), value),
            Table::Item => self.write(self.item(number), value),
            Table::LatestOrder => self.write(self.latest_order(number), value),
            Table::NextDelivery => self.write(self.next_delivery(number), value),
            Table::NamedCustomer => {
                let (district, at) = within(self.scale.customers);
                let customer = district * self.scale.customers + self.by_name[at as usize];
                self.write(self.named_customer(customer), value)
            }
            Table::CustomersOrder => {
                let LatestOrder { customer, order } = self.latest_order(number);
                self.write(CustomersOrder { customer, order }, value)
            }
            Table::NewOrder => {
                let delivered = self.scale.delivered();
                let (district, at) = within(self.scale.customers - delivered);
                let (district, order) = (district.into(), (delivered + at + 1).into());
                self.write(NewOrder { district, order }, value)
            }
            Table::Order => {
                let (district, at) = within(self.scale.customers);
                self.write(self.order(district, at + 1), value)
            }
            Table::OrderLine => {
                let (district, at) = within(self.lines_of_district());
                let order = self.line_starts.partition_point(|start| *start <= at) as u32;
                let line = at - self.line_starts[order as usize - 1] + 1;
                self.write(self.order_line(district, order, line), value)
            }
            Table::Stock => {
                let (warehouse, item) = within(self.scale.items);
                self.write(self.stock(warehouse, item), value)
            }
            Table::CustomersByName => {
                let (district, name) = within(self.scale.last_names());
                self.write_postings(district, name, value);
                Scale::name_key(district, &last_name(name))
            }
        }
    }

    fn write<R: Record>(&self, record: R, value: &mut Vec<u8>) -> PrimaryKey {
        value.extend_from_slice(record.as_bytes());
        record.key(&self.scale)
    }

    fn rolls(&self, table: Table, row: u64) -> Rolls {
        Rolls::new(self.seed, table as u64, row)
    }

    fn warehouse(&self, id: u32) -> Warehouse {
        let mut rolls = self.rolls(Table::Warehouse, id.into());
        Warehouse {
            id: id.into(),
            name: rolls.text(6),
            address: address(&mut rolls),
            tax: (rolls.within(0, 2000) as u16).into(),
            ytd: (i64::from(DISTRICTS * self.scale.customers) * FIRST_PAYMENT).into(),
        }
    }

    pub(super) fn district(&self, id: u32) -> District {
        let mut rolls = self.rolls(Table::District, id.into());
        District {
            id: id.into(),
            name: rolls.text(6),
            address: address(&mut rolls),
            tax: (rolls.within(0, 2000) as u16).into(),
            ytd: (i64::from(self.scale.customers) * FIRST_PAYMENT).into(),
            next_order: (self.scale.customers + 1).into(),
        }
    }

    /// First name of a customer: drawn first, because it orders the customers with one last name.
    fn first_name(&self, id: u32) -> ([u8; FIRST_NAME_BYTES], Rolls) {
        let mut rolls = self.rolls(Table::Customer, id.into());
        (rolls.text(8), rolls)
    }

    pub(super) fn customer(&self, id: u32) -> Customer {
        let (first, mut rolls) = self.first_name(id);
        let bad = rolls.within(1, ONE_IN) == 1;
        Customer {
            id: id.into(),
            first,
            middle: *b"OE",
            last: last_name(self.names[(id % self.scale.customers) as usize]),
            address: address(&mut rolls),
            phone: rolls.digits(),
            since: LOADED,
            credit: if bad { *b"BC" } else { *b"GC" },
            credit_limit: CREDIT_LIMIT.into(),
            discount: (rolls.within(0, 5000) as u16).into(),
            balance: (-FIRST_PAYMENT).into(),
            paid: FIRST_PAYMENT.into(),
            payments: 1.into(),
            deliveries: 0.into(),
            data: rolls.text(300),
        }
    }

    fn history(&self, customer: u32) -> History {
        let mut rolls = self.rolls(Table::History, customer.into());
        History {
            customer: customer.into(),
            district: self.scale.district_of(customer).into(),
            date: LOADED,
            amount: FIRST_PAYMENT.into(),
            data: rolls.text(12),
        }
    }

    fn order(&self, district: u32, id: u32) -> Order {
        let at = id as usize - 1;
        let mut rolls = self.rolls(Table::Order, u64::from(district) << 32 | u64::from(id));
        let delivered = id <= self.scale.delivered();
        Order {
            district: district.into(),
            id: id.into(),
            customer: (district * self.scale.customers + self.customer_of[at]).into(),
            entered: LOADED,
            carrier: if delivered { rolls.within(1, 10) as u8 } else { 0 },
            lines: (self.line_starts[at + 1] - self.line_starts[at]) as u8,
            all_local: 1,
        }
    }

    fn lines_of_district(&self) -> u32 {
        self.line_starts[self.scale.customers as usize]
    }

    fn order_line(&self, district: u32, order: u32, number: u32) -> OrderLine {
        let line = u64::from(order) << 8 | u64::from(number);
        let mut rolls = self.rolls(Table::OrderLine, u64::from(district) << 32 | line);
        let delivered = order <= self.scale.delivered();
        let amount = if delivered { 0 } else { rolls.within(1, MAX_LINE_AMOUNT) as i64 };
        OrderLine {
            district: district.into(),
            order: order.into(),
            number: number as u8,
            item: (rolls.within(0, u64::from(self.scale.items) - 1) as u32).into(),
            supplier: Scale::warehouse_of(district).into(),
            delivered: if delivered { LOADED } else { Moment::ZERO },
            quantity: QUANTITY,
            amount: amount.into(),
            district_info: rolls.text(24),
        }
    }

    pub(super) fn item(&self, id: u32) -> Item {
        let mut rolls = self.rolls(Table::Item, id.into());
        Item {
            id: id.into(),
            image: (rolls.within(1, 10_000) as u32).into(),
            name: rolls.text(14),
            price: (rolls.within(100, 10_000) as u32).into(),
            data: goods(&mut rolls),
        }
    }

    /// S_QUANTITY of a stock row, which is drawn first, and the generator of the other fields.
    pub(super) fn stock_quantity(&self, warehouse: u32, item: u32) -> (u16, Rolls) {
        let mut rolls = self.rolls(Table::Stock, u64::from(warehouse) << 32 | u64::from(item));
        (rolls.within(10, 100) as u16, rolls)
    }

    fn stock(&self, warehouse: u32, item: u32) -> Stock {
        let (quantity, mut rolls) = self.stock_quantity(warehouse, item);
        Stock {
            warehouse: warehouse.into(),
            item: item.into(),
            quantity: quantity.into(),
            districts: std::array::from_fn(|_| rolls.text(24)),
            ytd: 0.into(),
            orders: 0.into(),
            remote_orders: 0.into(),
            data: goods(&mut rolls),
        }
    }

    fn latest_order(&self, customer: u32) -> LatestOrder {
        let order = self.order_of[(customer % self.scale.customers) as usize] + 1;
        LatestOrder { customer: customer.into(), order: order.into() }
    }

    /// Row that leads from a customer's names to the customer.
    pub(super) fn named_customer(&self, customer: u32) -> NamedCustomer {
        let name = self.names[(customer % self.scale.customers) as usize];
        let (first, _) = self.first_name(customer);
        NamedCustomer { name: name.into(), first, customer: customer.into() }
    }

    fn next_delivery(&self, district: u32) -> NextDelivery {
        NextDelivery { district: district.into(), order: (self.scale.delivered() + 1).into() }
    }

    fn write_postings(&self, district: u32, name: u32, value: &mut Vec<u8>) {
        let name = name as usize;
        let namesakes = &self.by_name[self.name_starts[name]..self.name_starts[name + 1]];
        let first = district * self.scale.customers;
        let mut sorted: Vec<u32> = namesakes.iter().map(|customer| first + customer).collect();
        sorted.sort_by_cached_key(|customer| self.first_name(*customer).0);
        sorted.into_iter().for_each(|customer| postings::push(value, customer));
    }
}

fn address(rolls: &mut Rolls) -> Address {
    let mut zip = *b"000011111";
    zip[..4].copy_from_slice(&rolls.digits::<4>());
    let [street_1, street_2, city] = std::array::from_fn(|_| rolls.text(10));
    Address { street_1, street_2, city, state: rolls.text(2), zip }
}

/// I_DATA or S_DATA: one row in ten contains "ORIGINAL" somewhere.
fn goods(rolls: &mut Rolls) -> [u8; 50] {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let mut data: [u8; 50] = rolls.text(26);
    if rolls.within(1, ONE_IN) == 1 {
        let length = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
        let at = rolls.within(0, (length - ORIGINAL.len()) as u64) as usize;
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

#[cfg(test)]
mod tests;
