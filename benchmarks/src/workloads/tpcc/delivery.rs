//! Delivery (clause 2.7): delivers the oldest undelivered order of every district of a warehouse.
//!
//! One transaction covers all ten districts. The specification allows a transaction per district;
//! the joint transaction is the largest writer of the workload, up to 190 rows, and reaches the
//! engine's limits. A district without an undelivered order is skipped (clause 2.7.4.2).

use super::access::{Rows, TypedRow};
use super::paths::Each;
use super::rows::{Customer, Order, OrderLine};
use super::scale::{DISTRICTS, MAX_LINES, Scale};
use crate::contract::engine::{Txn, TxnError};

/// Rows of an order that is being delivered.
#[derive(Clone, Copy)]
struct Parcel {
    customer: TypedRow<Customer>,
    lines: [Option<TypedRow<OrderLine>>; MAX_LINES],
}

impl<T: Txn> Rows<'_, T> {
    /// Returns the number of delivered orders.
    pub(super) async fn delivery(&mut self, warehouse: u32, carrier: u8) -> Result<i64, TxnError> {
        let orders = self.take_oldest(warehouse).await?;
        let mut parcels: Each<Parcel> = [None; DISTRICTS as usize];
        for (order, parcel) in orders.into_iter().zip(&mut parcels) {
            *parcel = order.map(|order| self.dispatch(order, carrier)).transpose()?;
        }
        self.execute().await?;

        for parcel in parcels.iter().flatten() {
            self.hand_over(parcel)?;
        }
        Ok(parcels.iter().flatten().count() as i64)
    }

    /// Sets the order's carrier, and declares the order's customer and lines.
    fn dispatch(&mut self, order: TypedRow<Order>, carrier: u8) -> Result<Parcel, TxnError> {
        let mut record = self.get(order)?;
        record.carrier = carrier;
        self.put(order, &record)?;
        let (district, number) = (record.district.get(), record.id.get());
        let customer = self.update(self.tpcc.scale.customer_key(record.customer.get()))?;
        let mut lines = [None; MAX_LINES];
        for (line, row) in (1..=u32::from(record.lines)).zip(&mut lines) {
            *row = Some(self.update(Scale::line_key(district, number, line))?);
        }
        Ok(Parcel { customer, lines })
    }

    /// Sets the delivery date of the lines, and charges the customer for the lines.
    fn hand_over(&mut self, parcel: &Parcel) -> Result<(), TxnError> {
        let mut due = 0;
        for row in parcel.lines.into_iter().flatten() {
            let mut line = self.get(row)?;
            line.delivered = self.now();
            due += line.amount.get();
            self.put(row, &line)?;
        }
        let mut customer = self.get(parcel.customer)?;
        customer.balance.set(customer.balance.get() + due);
        customer.deliveries.set(customer.deliveries.get() + 1);
        self.put(parcel.customer, &customer)
    }
}
