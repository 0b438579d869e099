//! NewOrder (clause 2.4): inserts the order and its lines, and takes the pieces from stock.
//!
//! The price with taxes and discount would be displayed and not stored, so it is not computed; the
//! rows that the price depends on are read.

use super::access::{Rows, TypedRow};
use super::request::{NewOrder, Ordered};
use super::rows::{self, Customer, District, Item, Moment, Order, OrderLine, Stock, Warehouse};
use super::scale::{DISTRICTS, MAX_LINES, Scale};
use crate::contract::engine::{AbortReason, Txn, TxnError};

/// Pieces that refill the stock, and the least quantity that must remain without a refill.
const REFILL: u16 = 91;
const LEAST_LEFT: u16 = 10;

impl<T: Txn> Rows<'_, T> {
    pub(super) async fn new_order(&mut self, wish: &NewOrder) -> Result<i64, TxnError> {
        let scale = self.tpcc.scale;
        let lines = wish.lines();
        let district_id = scale.district_of(wish.customer);
        let warehouse_id = Scale::warehouse_of(district_id);

        let district = self.update::<District>(Scale::district_key(district_id))?;
        let warehouse = self.read::<Warehouse>(Scale::warehouse_key(warehouse_id))?;
        let customer = self.read::<Customer>(scale.customer_key(wish.customer))?;
        let latest = self.declare_new_latest(wish.customer)?;
        let goods = self.declare_goods(lines)?;
        self.execute().await?;

        self.get(warehouse)?;
        self.get(customer)?;
        let mut counter: District = self.get(district)?;
        let order = counter.next_order.get();
        counter.next_order.set(order + 1);
        self.put(district, &counter)?;
        let all_local = lines.iter().all(|line| line.supplier == warehouse_id);
        self.insert(&Order {
            district: district_id.into(),
            id: order.into(),
            customer: wish.customer.into(),
            entered: self.now(),
            carrier: 0,
            lines: lines.len() as u8,
            all_local: all_local.into(),
        })?;
        self.add_lines(district_id, order, lines, &goods)?;
        // Last: locks of leaves, which many orders share, are held as briefly as possible.
        let new = rows::NewOrder { district: district_id.into(), order: order.into() };
        self.lead_to_new(latest, wish.customer, &new).await?;
        Ok(1)
    }

    /// Declares item and stock of every line. Lines of the same item and supplier share the rows.
    fn declare_goods(&mut self, lines: &[Ordered]) -> Result<[Option<Goods>; MAX_LINES], TxnError> {
        let mut goods = [None; MAX_LINES];
        for (at, line) in lines.iter().enumerate() {
            let same = |other: &Ordered| (other.item, other.supplier) == (line.item, line.supplier);
            goods[at] = match lines[..at].iter().position(same) {
                Some(first) => goods[first],
                None => Some(Goods {
                    item: self.read(Scale::item_key(line.item))?,
                    stock: self.update(Scale::stock_key(line.supplier, line.item))?,
                    first: at,
                }),
            };
        }
        Ok(goods)
    }

    /// Takes the lines from stock, one after the other. An item that does not exist rolls back the
    /// whole order, when most of the work is done (clause 2.4.2.3).
    fn add_lines(
        &mut self,
        district: u32,
        order: u32,
        lines: &[Ordered],
        goods: &[Option<Goods>; MAX_LINES],
    ) -> Result<(), TxnError> {
        // Stock after the lines so far, for several lines that take from the same row.
        let mut stocks: [Option<Stock>; MAX_LINES] = [None; MAX_LINES];
        for (at, line) in lines.iter().enumerate() {
            let goods = goods[at].expect("every line has goods");
            let Some(item) = self.find::<Item>(goods.item)? else {
                return Err(TxnError::Aborted(AbortReason::Logic));
            };
            let mut stock = match stocks[goods.first] {
                Some(stock) => stock,
                None => self.get(goods.stock)?,
            };
            let remote = line.supplier != Scale::warehouse_of(district);
            take(&mut stock, line.quantity.into(), remote);
            self.put(goods.stock, &stock)?;
            stocks[goods.first] = Some(stock);
            self.insert(&OrderLine {
                district: district.into(),
                order: order.into(),
                number: at as u8 + 1,
                item: line.item.into(),
                supplier: line.supplier.into(),
                delivered: Moment::ZERO,
                quantity: line.quantity,
                amount: (i64::from(line.quantity) * i64::from(item.price.get())).into(),
                district_info: stock.districts[(district % DISTRICTS) as usize],
            })?;
        }
        Ok(())
    }
}

/// Rows of a line, and the index of the first line with the same rows.
#[derive(Clone, Copy)]
struct Goods {
    item: TypedRow<Item>,
    stock: TypedRow<Stock>,
    first: usize,
}

/// Takes pieces out of the stock (clause 2.4.2.2).
fn take(stock: &mut Stock, quantity: u16, remote: bool) {
    let before = stock.quantity.get();
    let refill = if before >= quantity + LEAST_LEFT { 0 } else { REFILL };
    stock.quantity.set(before + refill - quantity);
    stock.ytd.set(stock.ytd.get() + u64::from(quantity));
    stock.orders.set(stock.orders.get() + 1);
    stock.remote_orders.set(stock.remote_orders.get() + u32::from(remote));
}
