//! Payment (clause 2.5): a customer pays, a district and its warehouse take the money.

use std::io::Write as _;

use super::access::Rows;
use super::request::{CustomerSelector, Payment};
use super::rows::{CUSTOMER_DATA, Customer, District, History, Warehouse};
use super::scale::Scale;
use crate::contract::engine::{Txn, TxnError};

impl<T: Txn> Rows<'_, T> {
    pub(super) async fn payment(&mut self, wish: &Payment) -> Result<i64, TxnError> {
        let id = self.find_customer(wish.whom).await?;
        let warehouse_id = Scale::warehouse_of(wish.district);
        let warehouse = self.update::<Warehouse>(Scale::warehouse_key(warehouse_id))?;
        let district = self.update::<District>(Scale::district_key(wish.district))?;
        let customer = self.update::<Customer>(self.tpcc.scale.customer_key(id))?;
        let mut payment = History {
            customer: id.into(),
            district: wish.district.into(),
            date: self.now(),
            amount: wish.amount.into(),
            data: [0; 24],
        };
        let history = self.insert(&payment)?;
        self.execute().await?;

        let mut taking: Warehouse = self.get(warehouse)?;
        taking.ytd.set(taking.ytd.get() + wish.amount);
        self.put(warehouse, &taking)?;
        let mut here: District = self.get(district)?;
        here.ytd.set(here.ytd.get() + wish.amount);
        self.put(district, &here)?;
        let mut paying: Customer = self.get(customer)?;
        pay(&mut paying, wish);
        self.put(customer, &paying)?;
        payment.data[..10].copy_from_slice(&taking.name);
        payment.data[14..].copy_from_slice(&here.name);
        self.put(history, &payment)?;
        Ok(wish.amount)
    }

    /// Number of the customer that a request names; looked up if the request gives the last name.
    pub(super) async fn find_customer(&mut self, whom: CustomerSelector) -> Result<u32, TxnError> {
        match whom {
            CustomerSelector::Number(customer) => Ok(customer),
            CustomerSelector::Name { district, name } => self.middle_of_name(district, name).await,
        }
    }
}

fn pay(customer: &mut Customer, wish: &Payment) {
    customer.balance.set(customer.balance.get() - wish.amount);
    customer.paid.set(customer.paid.get() + wish.amount);
    customer.payments.set(customer.payments.get() + 1);
    if &customer.credit == b"BC" {
        note(customer, wish);
    }
}

/// Prepends payer, district and amount to the data of a customer with bad credit, and cuts off the
/// end of the data (clause 2.5.2.2).
fn note(customer: &mut Customer, wish: &Payment) {
    let mut data = [0; CUSTOMER_DATA];
    let mut left = &mut data[..];
    let (id, district, amount) = (customer.id.get(), wish.district, wish.amount);
    // The numbers of customer and district replace the five numbers of the specification.
    write!(left, "{id} {district} {amount}|").expect("three numbers fit");
    let noted = CUSTOMER_DATA - left.len();
    data[noted..].copy_from_slice(&customer.data[..CUSTOMER_DATA - noted]);
    customer.data = data;
}
