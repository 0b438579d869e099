//! Requests (clauses 2.4.1 to 2.8.1), and their mix (clause 5.2.3).
//!
//! There are no terminals: a request draws its warehouse, and a district if needed, uniformly.
//! Without keying and think times tpmC measures the engine alone, and cannot be compared with
//! published results.

use std::ops::RangeInclusive;

use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::random::{Constants, NonUniform};
use super::scale::{DISTRICTS, MAX_LINES, Scale};

/// The transactions, in the order of [`MIX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TpccProfile {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// Number of requests of each kind in a hundred.
pub(super) const MIX: [(TpccProfile, u32); 5] = [
    (TpccProfile::NewOrder, 45),
    (TpccProfile::Payment, 43),
    (TpccProfile::OrderStatus, 4),
    (TpccProfile::Delivery, 4),
    (TpccProfile::StockLevel, 4),
];

/// Range of a payment, in cents.
const PAYMENT: RangeInclusive<i64> = 100..=500_000;

/// A transaction with its parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TpccRequest(pub RequestParameters);

impl TpccRequest {
    pub(super) fn kind(&self) -> TpccProfile {
        match self.0 {
            RequestParameters::NewOrder(_) => TpccProfile::NewOrder,
            RequestParameters::Payment(_) => TpccProfile::Payment,
            RequestParameters::OrderStatus(_) => TpccProfile::OrderStatus,
            RequestParameters::Delivery { .. } => TpccProfile::Delivery,
            RequestParameters::StockLevel { .. } => TpccProfile::StockLevel,
        }
    }
}

/// A request with its parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum RequestParameters {
    /// A new order.
    NewOrder(NewOrder),
    /// A payment.
    Payment(Payment),
    /// A question about a customer's last order.
    OrderStatus(CustomerSelector),
    /// Delivery of the oldest orders of a warehouse.
    Delivery {
        /// The warehouse.
        warehouse: u32,
        /// Number of the carrier.
        carrier: u8,
    },
    /// A question about the stock of recently ordered items.
    StockLevel {
        /// The district with the orders.
        district: u32,
        /// Pieces below which the stock of an item is low.
        threshold: u16,
    },
}

/// An order for up to [`MAX_LINES`] items.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct NewOrder {
    /// The customer.
    pub customer: u32,
    lines: [Ordered; MAX_LINES],
    count: u8,
}

impl NewOrder {
    #[cfg(test)]
    pub(super) fn of(customer: u32, lines: &[Ordered]) -> Self {
        let mut all = [Ordered::default(); MAX_LINES];
        all[..lines.len()].copy_from_slice(lines);
        Self { customer, lines: all, count: lines.len() as u8 }
    }

    /// The ordered items.
    pub fn lines(&self) -> &[Ordered] {
        &self.lines[..usize::from(self.count)]
    }
}

/// Pieces of an item from one warehouse. An item without a row rolls the order back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ordered {
    /// The item.
    pub item: u32,
    /// The warehouse that supplies the item.
    pub supplier: u32,
    pub(super) quantity: u8,
}

/// A payment by a customer, at any district.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Payment {
    /// The district that receives the payment.
    pub district: u32,
    /// The customer who pays.
    pub whom: CustomerSelector,
    /// Amount in cents.
    pub(super) amount: i64,
}

/// Identification of a request's customer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum CustomerSelector {
    /// The customer with this number.
    Number(u32),
    /// The middle customer, by first name, among the customers with this last name.
    Name {
        /// The customer's district.
        district: u32,
        /// Number of the last name.
        name: u32,
    },
}

/// Generator of requests.
#[derive(Clone, Debug)]
pub struct Terminals {
    scale: Scale,
    last_name: NonUniform,
    customer: NonUniform,
    item: NonUniform,
}

impl Terminals {
    /// A generator for a company of this size.
    pub fn new(scale: Scale, seed: u64) -> Self {
        let constants = Constants::new(seed);
        Self {
            scale,
            last_name: NonUniform::last_name(&scale, constants.last_name_run),
            customer: NonUniform::customer(&scale, constants.customer),
            item: NonUniform::item(&scale, constants.item),
        }
    }

    #[inline]
    pub(super) fn draw(&self, rng: &mut SmallRng) -> TpccRequest {
        let warehouse = rng.random_range(0..self.scale.warehouses);
        self.draw_at(rng, warehouse)
    }

    /// Draws a request at a terminal of a warehouse.
    #[inline]
    pub fn draw_at(&self, rng: &mut SmallRng, warehouse: u32) -> TpccRequest {
        let district = warehouse * DISTRICTS + rng.random_range(0..DISTRICTS);
        let mut left = rng.random_range(0..100);
        let drawn = MIX.iter().find(|(_, percent)| {
            let within = left < *percent;
            left = left.saturating_sub(*percent);
            within
        });
        let (kind, _) = drawn.expect("the mix adds up to a hundred");
        TpccRequest(match kind {
            TpccProfile::NewOrder => {
                RequestParameters::NewOrder(self.new_order(rng, warehouse, district))
            }
            TpccProfile::Payment => {
                RequestParameters::Payment(self.payment(rng, warehouse, district))
            }
            TpccProfile::OrderStatus => RequestParameters::OrderStatus(self.whom(rng, district)),
            TpccProfile::Delivery => {
                RequestParameters::Delivery { warehouse, carrier: rng.random_range(1..=10) }
            }
            TpccProfile::StockLevel => {
                RequestParameters::StockLevel { district, threshold: rng.random_range(10..=20) }
            }
        })
    }

    fn new_order(&self, rng: &mut SmallRng, warehouse: u32, district: u32) -> NewOrder {
        let customer = self.customer_of(rng, district);
        let count = rng.random_range(5..=MAX_LINES);
        let mut lines = [Ordered::default(); MAX_LINES];
        for line in &mut lines[..count] {
            let remote = rng.random_range(1..=100) == 1;
            *line = Ordered {
                item: self.item.draw(rng) - 1,
                supplier: if remote { self.other_than(rng, warehouse) } else { warehouse },
                quantity: rng.random_range(1..=10),
            };
        }
        if rng.random_range(1..=100) == 1 {
            // The smallest number without an item.
            lines[count - 1].item = self.scale.items;
        }
        NewOrder { customer, lines, count: count as u8 }
    }

    fn payment(&self, rng: &mut SmallRng, warehouse: u32, district: u32) -> Payment {
        let remote = rng.random_range(1..=100) > 85 && self.scale.warehouses > 1;
        let home = if remote {
            self.other_than(rng, warehouse) * DISTRICTS + rng.random_range(0..DISTRICTS)
        } else {
            district
        };
        let amount = rng.random_range(PAYMENT);
        Payment { district, whom: self.whom(rng, home), amount }
    }

    fn whom(&self, rng: &mut SmallRng, district: u32) -> CustomerSelector {
        if rng.random_range(1..=100) <= 60 {
            CustomerSelector::Name { district, name: self.last_name.draw(rng) }
        } else {
            CustomerSelector::Number(self.customer_of(rng, district))
        }
    }

    fn customer_of(&self, rng: &mut SmallRng, district: u32) -> u32 {
        district * self.scale.customers + self.customer.draw(rng) - 1
    }

    /// A different warehouse, chosen uniformly, or `warehouse` if the company has no other.
    fn other_than(&self, rng: &mut SmallRng, warehouse: u32) -> u32 {
        let Some(others @ 1..) = self.scale.warehouses.checked_sub(1) else { return warehouse };
        let drawn = rng.random_range(0..others);
        if drawn == warehouse { others } else { drawn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const DRAWS: u32 = 100_000;

    fn draws(scale: Scale) -> impl Iterator<Item = RequestParameters> {
        let terminals = Terminals::new(scale, 1);
        let mut rng = SmallRng::seed_from_u64(2);
        (0..DRAWS).map(move |_| terminals.draw(&mut rng).0)
    }

    #[track_caller]
    fn assert_share(counted: u32, of: u32, percent: f64) {
        let share = f64::from(counted) * 100.0 / f64::from(of);
        assert!((share - percent).abs() < 0.3 + percent / 50.0, "{share} % instead of {percent} %");
    }

    #[test]
    fn the_mix_is_that_of_the_specification() {
        let mut counts = [0; MIX.len()];
        draws(Scale::default()).for_each(|wish| counts[TpccRequest(wish).kind() as usize] += 1);
        assert_eq!(MIX.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
        for (at, (kind, percent)) in MIX.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_share(counts[at], DRAWS, percent.into());
        }
    }

    #[test]
    fn orders_are_mostly_local_and_now_and_then_wrong() {
        let scale = Scale { warehouses: 7, customers: 50, items: 400 };
        let (mut orders, mut wrong, mut lines, mut remote) = (0, 0, 0, 0);
        for wish in draws(scale) {
            let RequestParameters::NewOrder(order) = wish else { continue };
            assert!((5..=15).contains(&order.lines().len()));
            let home = Scale::warehouse_of(scale.district_of(order.customer));
            assert!(home < scale.warehouses);
            let (last, before) = order.lines().split_last().expect("not empty");
            assert!(before.iter().all(|line| line.item < scale.items));
            orders += 1;
            wrong += u32::from(last.item >= scale.items);
            for line in order.lines() {
                assert!(line.supplier < scale.warehouses && (1..=10).contains(&line.quantity));
                lines += 1;
                remote += u32::from(line.supplier != home);
            }
        }
        assert_share(wrong, orders, 1.0);
        assert_share(remote, lines, 1.0);
    }

    #[test]
    fn payments_are_remote_and_by_name_as_often_as_they_must() {
        for (warehouses, percent) in [(7, 15.0), (1, 0.0)] {
            let scale = Scale { warehouses, customers: 50, items: 400 };
            let (mut payments, mut by_name, mut remote) = (0, 0, 0);
            for wish in draws(scale) {
                let RequestParameters::Payment(payment) = wish else { continue };
                assert!(PAYMENT.contains(&payment.amount));
                let home = match payment.whom {
                    CustomerSelector::Number(customer) => scale.district_of(customer),
                    CustomerSelector::Name { district, name } => {
                        by_name += 1;
                        assert!(name < 50);
                        district
                    }
                };
                payments += 1;
                let (home, here) =
                    (Scale::warehouse_of(home), Scale::warehouse_of(payment.district));
                assert!(home < warehouses && here < warehouses);
                remote += u32::from(home != here);
            }
            assert_share(by_name, payments, 60.0);
            assert_share(remote, payments, percent);
        }
    }
}
