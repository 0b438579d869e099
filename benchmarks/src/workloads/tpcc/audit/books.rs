//! Sums over the rows of some districts, and their comparison.
//!
//! Rows of other districts are skipped, as they belong to another portion. Rows that must not exist
//! are skipped too, such as an order beyond its district's counter; a sum then shows the
//! difference.

use std::ops::Range;

use super::super::rows::{Customer, District, History, Moment, NewOrder, Order, OrderLine, Stock};
use super::super::scale::{DISTRICTS, Scale};
use super::conditions::Conditions;
use crate::contract::workload::mix;

/// Sums of a warehouse.
#[derive(Clone, Default)]
pub(super) struct WarehouseBook {
    pub(super) ytd: i64,
    pub(super) districts_ytd: i64,
    pub(super) paid: i64,
    pub(super) sold: Sales,
}

/// Pieces and lines sold of all items, as sums with a random multiplier for each item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sales {
    pieces: u64,
    lines: u64,
}

impl Sales {
    pub(super) fn add_line(&mut self, line: &OrderLine) {
        self.add(line.item.get(), line.quantity.into(), 1);
    }

    pub(super) fn add_stock(&mut self, stock: &Stock) {
        self.add(stock.item.get(), stock.ytd.get(), stock.orders.get().into());
    }

    fn add(&mut self, item: u32, pieces: u64, lines: u64) {
        let multiple = mix(u64::from(item) + 1);
        self.pieces = self.pieces.wrapping_add(pieces.wrapping_mul(multiple));
        self.lines = self.lines.wrapping_add(lines.wrapping_mul(multiple));
    }
}

/// Sums of a district.
struct DistrictBook {
    next_order: u32,
    ytd: i64,
    paid: i64,
    orders: u64,
    max_order: u32,
    /// Sum of the line counts that orders state, and number of lines found.
    said: u64,
    lines: u64,
    new_orders: u64,
    /// Numbers of the oldest and the latest new order.
    new: Option<(u32, u32)>,
    deliveries: u64,
    by_number: Vec<OrderBook>,
}

/// Properties of an order number, whether the order exists or not.
#[derive(Clone, Copy, Default)]
struct OrderBook {
    /// Number of the customer plus one; zero if there is no order.
    customer: u32,
    said: u8,
    lines: u8,
    has_carrier: bool,
    is_new: bool,
}

const _: () = assert!(size_of::<OrderBook>() == 8);

/// Sums of a customer.
#[derive(Clone, Copy, Default)]
struct CustomerBook {
    /// Sum of the amounts of delivered lines.
    due: i64,
    paid: i64,
    latest_order: u32,
}

/// Sums of some districts.
pub(super) struct Books {
    scale: Scale,
    first: u32,
    districts: Vec<DistrictBook>,
    customers: Vec<CustomerBook>,
}

impl Books {
    pub(super) fn new(scale: Scale, portion: Range<u32>, districts: &[District]) -> Self {
        let book = |id: u32| {
            let district = &districts[id as usize];
            DistrictBook {
                next_order: district.next_order.get(),
                ytd: district.ytd.get(),
                paid: 0,
                orders: 0,
                max_order: 0,
                said: 0,
                lines: 0,
                new_orders: 0,
                new: None,
                deliveries: 0,
                by_number: Vec::new(),
            }
        };
        let customers = portion.len() * scale.customers as usize;
        Self {
            scale,
            first: portion.start,
            districts: portion.map(book).collect(),
            customers: vec![CustomerBook::default(); customers],
        }
    }

    fn district(&mut self, id: u32) -> Option<&mut DistrictBook> {
        self.districts.get_mut(id.checked_sub(self.first)? as usize)
    }

    fn customer_at(&self, id: u32) -> Option<usize> {
        let at = id.checked_sub(self.first * self.scale.customers)? as usize;
        (at < self.customers.len()).then_some(at)
    }

    pub(super) fn add_order(&mut self, row: &Order) {
        let (id, customer) = (row.id.get(), row.customer.get());
        let Some(district) = self.district(row.district.get()) else { return };
        district.orders += 1;
        district.max_order = district.max_order.max(id);
        district.said += u64::from(row.lines);
        if let Some(order) = district.order(id) {
            order.customer = customer.wrapping_add(1);
            order.said = row.lines;
            order.has_carrier = row.carrier != 0;
        }
        if let Some(at) = self.customer_at(customer) {
            let latest = &mut self.customers[at].latest_order;
            *latest = id.max(*latest);
        }
    }

    pub(super) fn add_new_order(&mut self, row: &NewOrder) {
        let id = row.order.get();
        let Some(district) = self.district(row.district.get()) else { return };
        district.new_orders += 1;
        let (oldest, latest) = district.new.unwrap_or((id, id));
        district.new = Some((oldest.min(id), latest.max(id)));
        if let Some(order) = district.order(id) {
            order.is_new = true;
        }
    }

    /// Adds a line; orders must have been added before. Returns whether the line belongs to these
    /// districts.
    pub(super) fn add_line(&mut self, row: &OrderLine, conditions: &mut Conditions) -> bool {
        let (district_id, order_id) = (row.district.get(), row.order.get());
        let Some(district) = self.district(district_id) else { return false };
        district.lines += 1;
        let Some(order) = district.order(order_id) else { return true };
        order.lines = order.lines.saturating_add(1);
        let (carrier, customer) = (order.has_carrier, order.customer);
        let delivered = row.delivered != Moment::ZERO;
        conditions.see(7, delivered == carrier, || {
            let (number, delivered) = (row.number, row.delivered);
            format!(
                "line {number} of order {order_id} of district {district_id} has the delivery \
                 date {delivered}, and a carrier: {carrier}"
            )
        });
        let customer = customer.checked_sub(1).and_then(|id| self.customer_at(id));
        if let (true, Some(at)) = (delivered, customer) {
            self.customers[at].due += row.amount.get();
        }
        true
    }

    /// Adds a payment. Returns whether the payment was made in these districts; the customer may
    /// belong to other districts.
    pub(super) fn add_payment(&mut self, row: &History) -> bool {
        if let Some(at) = self.customer_at(row.customer.get()) {
            self.customers[at].paid += row.amount.get();
        }
        let Some(district) = self.district(row.district.get()) else { return false };
        district.paid += row.amount.get();
        true
    }

    /// Judges a customer, after all other rows have been added. Returns whether the customer
    /// belongs to these districts.
    pub(super) fn judge_customer(&mut self, row: &Customer, conditions: &mut Conditions) -> bool {
        let id = row.id.get();
        let Some(at) = self.customer_at(id) else { return false };
        let CustomerBook { due, paid, .. } = self.customers[at];
        let (balance, ytd) = (row.balance.get(), row.paid.get());
        conditions.see(10, balance == due - paid, || {
            format!("customer {id} has {balance}, was charged {due} and has paid {paid}")
        });
        conditions.see(12, balance + ytd == due, || {
            format!("customer {id} has {balance} after paying {ytd}, and was charged {due}")
        });
        let home = self.scale.district_of(id);
        if let Some(district) = self.district(home) {
            district.deliveries += u64::from(row.deliveries.get());
        }
        true
    }

    /// Latest order of a customer of these districts.
    pub(super) fn latest_order(&self, customer: u32) -> Option<u32> {
        self.customer_at(customer).map(|at| self.customers[at].latest_order)
    }

    /// Whether a customer has placed this order; `None` for customers of other districts.
    pub(super) fn has_placed(&self, customer: u32, order: u32) -> Option<bool> {
        self.customer_at(customer)?;
        let district = self.scale.district_of(customer).checked_sub(self.first)? as usize;
        let orders = &self.districts.get(district)?.by_number;
        let order = order.checked_sub(1).and_then(|at| orders.get(at as usize));
        Some(order.is_some_and(|order| order.customer == customer + 1))
    }

    /// Number of orders of these districts.
    pub(super) fn orders(&self) -> u64 {
        self.districts.iter().map(|district| district.orders).sum()
    }

    /// Oldest undelivered order of one of these districts, or the district's next order number if
    /// all orders are delivered.
    pub(super) fn next_delivery(&self, district: u32) -> Option<u32> {
        let district = self.districts.get(district.checked_sub(self.first)? as usize)?;
        Some(district.new.map_or(district.next_order, |(oldest, _)| oldest))
    }

    /// Delivered orders of these districts, as counted by their customers.
    pub(super) fn deliveries(&self) -> u64 {
        self.districts.iter().map(|district| district.deliveries).sum()
    }

    pub(super) fn judge(&self, conditions: &mut Conditions) {
        for (id, district) in (self.first..).zip(&self.districts) {
            district.judge(id, self.scale.delivered(), conditions);
            for (number, order) in (1_u32..).zip(&district.by_number) {
                order.judge(id, number, conditions);
            }
        }
    }
}

impl DistrictBook {
    /// Entry of an order number; `None` if the district has not assigned the number.
    fn order(&mut self, number: u32) -> Option<&mut OrderBook> {
        let at = number.checked_sub(1)? as usize;
        if number >= self.next_order {
            return None;
        }
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, OrderBook::default());
        }
        Some(&mut self.by_number[at])
    }

    fn judge(&self, id: u32, delivered: u32, conditions: &mut Conditions) {
        let &Self { next_order, ytd, paid, orders, max_order, said, lines, .. } = self;
        let &Self { new_orders, new, deliveries, .. } = self;
        let warehouse = id / DISTRICTS;
        let latest = new.map_or(max_order, |(_, latest)| latest);
        let last = next_order.wrapping_sub(1);
        conditions.see(2, last == max_order && last == latest, || {
            format!(
                "district {id} of warehouse {warehouse} has given {last} numbers; the last order \
                 is {max_order}, the last new one {latest}"
            )
        });
        let span = new.map_or(0, |(oldest, latest)| u64::from(latest - oldest) + 1);
        conditions.see(3, span == new_orders, || {
            format!("the new orders of district {id} span {span} numbers and are {new_orders}")
        });
        conditions.see(4, said == lines, || {
            format!("the orders of district {id} have {said} lines, and {lines} are there")
        });
        conditions.see(9, ytd == paid, || {
            format!("district {id} has taken {ytd}, and {paid} was paid there")
        });
        let count = i128::from(orders) - i128::from(new_orders) - i128::from(deliveries);
        conditions.see(11, count == i128::from(delivered), || {
            format!(
                "district {id} has {orders} orders, {new_orders} of them new, and delivered \
                 {deliveries} besides the first {delivered}"
            )
        });
    }
}

impl OrderBook {
    fn judge(&self, district: u32, number: u32, conditions: &mut Conditions) {
        let &Self { customer, said, lines, has_carrier, is_new } = self;
        let exists = customer != 0;
        if !exists && !is_new && lines == 0 {
            // Condition 11 reports the missing order.
            return;
        }
        conditions.see(5, exists && has_carrier != is_new, || {
            format!(
                "order {number} of district {district} (exists: {exists}) has a carrier: \
                 {has_carrier}, is new: {is_new}"
            )
        });
        conditions.see(6, said == lines, || {
            format!("order {number} of district {district} has {said} lines; {lines} are there")
        });
    }
}
