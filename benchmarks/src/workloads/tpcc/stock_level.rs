//! StockLevel (clause 2.8): number of items in a district's last twenty orders that run low.
//!
//! The transaction reads about two hundred lines and as many stock rows, from one snapshot. The
//! specification asks only for read committed; a snapshot gives more and takes no locks.

use super::access::{Rows, TypedRow};
use super::rows::{District, Order, OrderLine, Stock};
use super::scale::{MAX_LINES, Scale};
use crate::contract::engine::{Txn, TxnError};

/// Number of recent orders that count.
const ORDERS: usize = 20;
const MOST_LINES: usize = ORDERS * MAX_LINES;

impl<T: Txn> Rows<'_, T> {
    /// Returns the number of items with stock below the threshold.
    pub(super) async fn stock_level(
        &mut self,
        district: u32,
        threshold: u16,
    ) -> Result<usize, TxnError> {
        let row = self.read::<District>(Scale::district_key(district))?;
        self.execute().await?;
        let end = self.get(row)?.next_order.get();
        let first = end.saturating_sub(ORDERS as u32).max(1);

        let mut orders: [Option<TypedRow<Order>>; ORDERS] = [None; ORDERS];
        for (order, row) in (first..end).zip(&mut orders) {
            *row = Some(self.read(Scale::order_key(district, order))?);
        }
        self.execute().await?;

        let mut lines: [Option<TypedRow<OrderLine>>; MOST_LINES] = [None; MOST_LINES];
        let mut free = lines.iter_mut();
        for order in orders.into_iter().flatten() {
            let order = self.get(order)?;
            for (line, row) in (1..=order.lines.into()).zip(&mut free) {
                *row = Some(self.read(Scale::line_key(district, order.id.get(), line))?);
            }
        }
        self.execute().await?;

        let mut items = [u32::MAX; MOST_LINES];
        for (line, item) in lines.into_iter().flatten().zip(&mut items) {
            *item = self.get(line)?.item.get();
        }
        items.sort_unstable();
        let warehouse = Scale::warehouse_of(district);
        let distinct = items.chunk_by(|a, b| a == b).map(|same| same[0]);
        let mut stocks: [Option<TypedRow<Stock>>; MOST_LINES] = [None; MOST_LINES];
        for (item, row) in distinct.filter(|item| *item != u32::MAX).zip(&mut stocks) {
            *row = Some(self.read(Scale::stock_key(warehouse, item))?);
        }
        self.execute().await?;

        let mut low = 0;
        for stock in stocks.into_iter().flatten() {
            low += usize::from(self.get(stock)?.quantity.get() < threshold);
        }
        Ok(low)
    }
}
