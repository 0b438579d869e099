//! OrderStatus (clause 2.6): a customer's balance, and the latest order with its lines.

use super::access::{Rows, TypedRow};
use super::request::CustomerSelector;
use super::rows::{Customer, Order, OrderLine};
use super::scale::{MAX_LINES, Scale};
use crate::contract::engine::{Txn, TxnError};

impl<T: Txn> Rows<'_, T> {
    pub(super) async fn order_status(&mut self, whom: CustomerSelector) -> Result<(), TxnError> {
        let scale = self.tpcc.scale;
        let id = self.find_customer(whom).await?;
        let district = scale.district_of(id);
        let customer = self.read::<Customer>(scale.customer_key(id))?;
        let latest = self.declare_latest(id)?;
        self.execute().await?;
        self.get(customer)?;
        let number = self.latest_order(latest, id).await?;

        let order = self.read::<Order>(Scale::order_key(district, number))?;
        self.execute().await?;
        let order = self.get(order)?;
        if order.customer.get() != id {
            return Err(TxnError::Fatal(format!("customer {id} did not place order {number}")));
        }

        let mut lines: [Option<TypedRow<OrderLine>>; MAX_LINES] = [None; MAX_LINES];
        for (line, row) in (1..=order.lines.into()).zip(&mut lines) {
            *row = Some(self.read(Scale::line_key(district, number, line))?);
        }
        self.execute().await?;
        for line in lines.into_iter().flatten() {
            self.get(line)?;
        }
        Ok(())
    }
}
