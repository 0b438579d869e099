//! Access paths: customers by last name, a customer's latest order, new orders by age.
//!
//! # Two forms
//! [`Paths`] chooses the form. As *rows*, a path is a hash table whose row leads to its target, and
//! transactions that change the target also write the path's row. *Ordered*, a path is a range of
//! an ordered table; the queue of new orders is then the table of new orders itself.
//!
//! # What is here
//! All differences between the forms in a transaction. The tables of the forms are in `scale`,
//! their rows in `rows`, their checks in `audit/paths.rs`.

use std::ops::Range;

use lotus_mvcc::PrimaryKey;
use serde::Serialize;

use super::access::{Rows, TypedRow};
use super::population::last_name;
use super::rows::{
    CustomersOrder, LatestOrder, NamedCustomer, NewOrder, NextDelivery, Order, Record, postings,
};
use super::scale::{DISTRICTS, Scale, Table};
use crate::contract::engine::{KeyRange, Ordered, Txn, TxnError};

/// Form of the access paths; see the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paths {
    /// Rows of hash tables.
    Rows,
    /// Ranges of ordered tables.
    Ordered,
}

/// A value for each district of a warehouse.
pub(super) type Each<R> = [Option<R>; DISTRICTS as usize];

/// The path to a customer's latest order, as a transaction has declared it.
#[derive(Clone, Copy)]
pub(super) enum Latest {
    Row(TypedRow<LatestOrder>),
    Range,
}

impl<T: Txn> Rows<'_, T> {
    /// Number of the middle customer, by first name, with a given last name (clause 2.5.2.2).
    pub(super) async fn middle_of_name(
        &mut self,
        district: u32,
        name: u32,
    ) -> Result<u32, TxnError> {
        let middle = match self.tpcc.paths {
            Paths::Rows => {
                let table = self.tpcc.tables[Table::CustomersByName as usize];
                let key = Scale::name_key(district, &last_name(name));
                let list = self.txn.add_ro(table, key)?;
                self.execute().await?;
                self.txn.value(list).and_then(postings::middle)
            }
            Paths::Ordered => {
                let (from, until) =
                    (Scale::names_from(district, name), Scale::names_from(district, name + 1));
                let mut list = Vec::new();
                let see = |named: NamedCustomer| postings::push(&mut list, named.customer.get());
                self.range(&from, &until, Pick::All, see).await?;
                postings::middle(&list)
            }
        };
        middle.ok_or_else(|| {
            let name = String::from_utf8_lossy(&last_name(name)).into_owned();
            TxnError::Fatal(format!("name {name} of district {district} leads to no customer"))
        })
    }

    /// Declares the path to a customer's latest order, to read it.
    pub(super) fn declare_latest(&mut self, customer: u32) -> Result<Latest, TxnError> {
        Ok(match self.tpcc.paths {
            Paths::Rows => Latest::Row(self.read(self.tpcc.scale.customer_key(customer))?),
            Paths::Ordered => Latest::Range,
        })
    }

    /// Number of a customer's latest order, whose path was declared and executed.
    pub(super) async fn latest_order(
        &mut self,
        latest: Latest,
        customer: u32,
    ) -> Result<u32, TxnError> {
        if let Latest::Row(row) = latest {
            return Ok(self.get(row)?.order.get());
        }
        let from = self.tpcc.scale.customer_key(customer);
        let until = self.tpcc.scale.key_behind_customer(customer);
        let mut number = None;
        let see = |placed: CustomersOrder| number = Some(placed.order.get());
        self.range(&from, &until, Pick::Last, see).await?;
        number.ok_or_else(|| TxnError::Fatal(format!("customer {customer} has no order")))
    }

    /// Declares the path to a customer's latest order, to lead it to a new one.
    pub(super) fn declare_new_latest(&mut self, customer: u32) -> Result<Latest, TxnError> {
        Ok(match self.tpcc.paths {
            Paths::Rows => Latest::Row(self.update(self.tpcc.scale.customer_key(customer))?),
            Paths::Ordered => Latest::Range,
        })
    }

    /// Leads the paths to a new order: the path of the customer, which was declared and executed,
    /// and the path of the district.
    pub(super) async fn lead_to_new(
        &mut self,
        latest: Latest,
        customer: u32,
        new: &NewOrder,
    ) -> Result<(), TxnError> {
        match latest {
            Latest::Row(row) => {
                let mut path = self.get(row)?;
                path.order = new.order;
                self.put(row, &path)?;
                self.insert(new)?;
            }
            Latest::Range => {
                let placed = CustomersOrder { customer: customer.into(), order: new.order };
                // One round for both rows.
                self.declare_ordered(&placed).await?;
                self.declare_ordered(new).await?;
                self.insert_ordered(&placed).await?;
                self.insert_ordered(new).await?;
            }
        }
        Ok(())
    }

    /// Takes the oldest new order of each district of a warehouse out of its queue. Returns the
    /// orders' rows, to be updated; no row for an empty queue.
    pub(super) async fn take_oldest(
        &mut self,
        warehouse: u32,
    ) -> Result<Each<TypedRow<Order>>, TxnError> {
        let districts = warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS;
        match self.tpcc.paths {
            Paths::Rows => self.take_by_rows(districts).await,
            Paths::Ordered => self.take_from_queues(districts).await,
        }
    }

    async fn take_by_rows(
        &mut self,
        districts: Range<u32>,
    ) -> Result<Each<TypedRow<Order>>, TxnError> {
        let mut next: Each<TypedRow<NextDelivery>> = [None; DISTRICTS as usize];
        for (district, next) in districts.clone().zip(&mut next) {
            *next = Some(self.update(Scale::district_key(district))?);
        }
        self.execute().await?;

        let mut oldest: Each<(u32, TypedRow<NewOrder>, TypedRow<Order>)> =
            [None; DISTRICTS as usize];
        for ((district, next), oldest) in districts.clone().zip(next).zip(&mut oldest) {
            let number = self.get(next.expect("of every district"))?.order.get();
            let key = Scale::order_key(district, number);
            *oldest = Some((number, self.update(key)?, self.update(key)?));
        }
        self.execute().await?;

        let mut taken = [None; DISTRICTS as usize];
        for (((district, next), oldest), taken) in districts.zip(next).zip(oldest).zip(&mut taken) {
            let (next, (number, new, order)) = next.zip(oldest).expect("of every district");
            if self.find(new)?.is_some() {
                self.delete(new)?;
                let following =
                    NextDelivery { district: district.into(), order: (number + 1).into() };
                self.put(next, &following)?;
                *taken = Some(order);
            }
        }
        Ok(taken)
    }

    async fn take_from_queues(
        &mut self,
        districts: Range<u32>,
    ) -> Result<Each<TypedRow<Order>>, TxnError> {
        // One round for the first leaves of all queues.
        for district in districts.clone() {
            let from = Scale::order_key(district, 0);
            let declare = Ordered::Declare { key: from.as_bytes(), for_update: true };
            self.change::<NewOrder>(declare).await?;
        }
        let mut oldest: Each<NewOrder> = [None; DISTRICTS as usize];
        for (district, oldest) in districts.zip(&mut oldest) {
            let (from, until) =
                (Scale::order_key(district, 0), Scale::key_behind_district(district));
            let see = |new: NewOrder| *oldest = Some(new);
            self.range(&from, &until, Pick::FirstToTake, see).await?;
        }
        let mut taken = [None; DISTRICTS as usize];
        for (new, taken) in oldest.into_iter().zip(&mut taken) {
            let Some(new) = new else { continue };
            self.delete_ordered(&new).await?;
            *taken = Some(new.key(&self.tpcc.scale));
        }
        // Not before: another operation on the queues would execute them, in a round of its own.
        let mut orders = [None; DISTRICTS as usize];
        for (key, order) in taken.into_iter().zip(&mut orders) {
            *order = key.map(|key| self.update(key)).transpose()?;
        }
        self.execute().await?;
        Ok(orders)
    }

    /// Reads records of an ordered table, from one key up to another.
    async fn range<R: Record>(
        &mut self,
        from: &PrimaryKey,
        until: &PrimaryKey,
        pick: Pick,
        mut see: impl FnMut(R),
    ) -> Result<(), TxnError> {
        let range = KeyRange {
            from: from.as_bytes(),
            until: Some(until.as_bytes()),
            reverse: pick == Pick::Last,
            limit: if pick == Pick::All { usize::MAX } else { 1 },
            for_update: pick == Pick::FirstToTake,
        };
        let scale = &self.tpcc.scale;
        let mut right = Ok(());
        let visit = &mut |key: &[u8], value: &[u8]| match R::read_from_bytes(value) {
            Ok(record) if record.key(scale).as_bytes() == key => see(record),
            _ => {
                let table = R::TABLE.name();
                right = Err(TxnError::Fatal(format!("{table} {key:02x?} has {value:02x?}")));
            }
        };
        let table = self.tpcc.tables[R::TABLE as usize];
        self.txn.ordered(table, Ordered::Range(range), visit).await?;
        right
    }

    async fn declare_ordered<R: Record>(&mut self, record: &R) -> Result<(), TxnError> {
        let key = record.key(&self.tpcc.scale);
        let declare = Ordered::Declare { key: key.as_bytes(), for_update: true };
        self.change::<R>(declare).await.map(|_none| ())
    }

    async fn insert_ordered<R: Record>(&mut self, record: &R) -> Result<(), TxnError> {
        let key = record.key(&self.tpcc.scale);
        let insert = Ordered::Insert { key: key.as_bytes(), value: record.as_bytes() };
        self.change::<R>(insert).await.map(|_one| ())
    }

    async fn delete_ordered<R: Record>(&mut self, record: &R) -> Result<(), TxnError> {
        let key = record.key(&self.tpcc.scale);
        let deleted = self.change::<R>(Ordered::Delete { key: key.as_bytes() }).await?;
        let (table, complaint) = (R::TABLE.name(), "was read, and is not there to be deleted");
        (deleted == 1)
            .then_some(())
            .ok_or_else(|| TxnError::Fatal(format!("{table} {key:?} {complaint}")))
    }

    async fn change<R: Record>(&mut self, change: Ordered<'_>) -> Result<usize, TxnError> {
        let table = self.tpcc.tables[R::TABLE as usize];
        self.txn.ordered(table, change, &mut |_, _| {}).await
    }
}

/// Rows of a range that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pick {
    All,
    /// The last row.
    Last,
    /// The first row, which will be deleted.
    FirstToTake,
}
