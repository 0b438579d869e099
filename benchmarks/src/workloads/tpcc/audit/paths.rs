//! Checks of the access paths: paths lead to their targets, and every target has a path.
//!
//! The queue of new orders has no check here in its ordered form: the queue is the table of new
//! orders, which the specification's conditions 2, 3 and 5 cover.

use lotus_mvcc::PrimaryKey;
use zerocopy::IntoBytes;

use super::Scanner;
use super::books::Books;
use crate::contract::audit::RowCheck;
use crate::contract::deployment::{DeployError, Deployment};
use crate::workloads::tpcc::Tpcc;
use crate::workloads::tpcc::paths::Paths;
use crate::workloads::tpcc::population::Population;
use crate::workloads::tpcc::rows::{
    CustomersOrder, LatestOrder, NamedCustomer, NextDelivery, postings,
};
use crate::workloads::tpcc::scale::{Scale, Table};

impl<D: Deployment> Scanner<'_, D> {
    /// Checks the paths to orders of the districts of `books`.
    pub(super) fn paths(&mut self, books: &Books, paths: &mut RowCheck) -> Result<(), DeployError> {
        match self.tpcc.paths {
            Paths::Rows => self.latest_and_next(books, paths),
            Paths::Ordered => self.orders_by_customer(books, paths),
        }
    }

    fn latest_and_next(&mut self, books: &Books, paths: &mut RowCheck) -> Result<(), DeployError> {
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

    /// Checks that there are as many rows as orders, and that each row is an order of its customer.
    /// No two rows share a key, so every order has a row.
    fn orders_by_customer(
        &mut self,
        books: &Books,
        paths: &mut RowCheck,
    ) -> Result<(), DeployError> {
        let mut listed = 0;
        self.scan(|row: &CustomersOrder| {
            let (customer, order) = (row.customer.get(), row.order.get());
            let Some(has_placed) = books.has_placed(customer, order) else { return };
            listed += 1;
            paths.see(has_placed, || format!("customer {customer} did not place order {order}"));
        })?;
        let orders = books.orders();
        paths.see(listed == orders, || {
            format!("{orders} orders were placed, and {listed} are listed by customer")
        });
        Ok(())
    }

    /// Checks that the names lead to every customer, by first name.
    pub(super) fn names(&mut self, paths: &mut RowCheck) -> Result<(), DeployError> {
        match self.tpcc.paths {
            Paths::Rows => self.lists_of_names(paths),
            Paths::Ordered => self.named_customers(paths),
        }
    }

    /// Checks that lists have the right name and order, and together name every customer.
    fn lists_of_names(&mut self, paths: &mut RowCheck) -> Result<(), DeployError> {
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

    /// Checks that rows match their customers. The scan counts the rows, and no two rows share a
    /// key.
    fn named_customers(&mut self, paths: &mut RowCheck) -> Result<(), DeployError> {
        let Tpcc { scale, population, .. } = self.tpcc;
        let all = scale.districts() * scale.customers;
        let mut listed = 0;
        self.scan(|row: &NamedCustomer| {
            listed += 1;
            let customer = row.customer.get();
            let right =
                customer < all && row.as_bytes() == population.named_customer(customer).as_bytes();
            paths.see(right, || format!("a name leads to customer {customer}, who has another"));
        })?;
        paths.see(listed == all, || format!("names lead to {listed} of {all} customers"));
        Ok(())
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
