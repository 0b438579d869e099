//! The records, field by field (clause 1.3): numbers and texts of fixed size, little-endian, no
//! padding.
//!
//! Money is in cents, rates in hundredths of a per cent, and texts are padded with zeroes. Dates of
//! the specification are [`Moment`]s: workloads know no time, so the id of the writing attempt
//! stands for the time. Every record carries the fields of its key, so that a read, and the audit,
//! can verify that the record belongs to its row.

use lotus_mvcc::PrimaryKey;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::scale::{DISTRICTS, FIRST_NAME_BYTES, NAME_BYTES, Scale, Table};

/// A date and time: zero for no date, [`LOADED`], or the id of the attempt that set the date.
pub(super) type Moment = U64;
/// Date of the initial population: a number that no attempt has.
pub(super) const LOADED: Moment = Moment::new(u64::MAX);
/// Bytes of C_DATA.
pub(super) const CUSTOMER_DATA: usize = 500;

/// A record of a table.
pub(super) trait Record:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy
{
    /// Table of the record.
    const TABLE: Table;

    /// Key of the record's row.
    fn key(&self, scale: &Scale) -> PrimaryKey;
}

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }
    )*};
}

records! {
    /// Postal address.
    Address {
        street_1: [u8; 20],
        street_2: [u8; 20],
        city: [u8; 20],
        state: [u8; 2],
        zip: [u8; 9],
    }

    Warehouse {
        id: U32,
        name: [u8; 10],
        address: Address,
        tax: U16,
        ytd: I64,
    }

    District {
        id: U32,
        name: [u8; 10],
        address: Address,
        tax: U16,
        ytd: I64,
        next_order: U32,
    }

    Customer {
        id: U32,
        first: [u8; FIRST_NAME_BYTES],
        middle: [u8; 2],
        last: [u8; NAME_BYTES],
        address: Address,
        phone: [u8; 16],
        since: Moment,
        credit: [u8; 2],
        credit_limit: I64,
        discount: U16,
        balance: I64,
        paid: I64,
        payments: U32,
        deliveries: U32,
        data: [u8; CUSTOMER_DATA],
    }

    /// A payment by a customer, at any district. The specification gives a payment no key. The key
    /// chosen here is known before the first read, so that no round trip is lost while the
    /// warehouse is locked.
    History {
        customer: U32,
        district: U32,
        date: Moment,
        amount: I64,
        data: [u8; 24],
    }

    NewOrder {
        district: U32,
        order: U32,
    }

    /// An order; `carrier` is zero while the order has no carrier.
    Order {
        district: U32,
        id: U32,
        customer: U32,
        entered: Moment,
        carrier: u8,
        lines: u8,
        all_local: u8,
    }

    OrderLine {
        district: U32,
        order: U32,
        number: u8,
        item: U32,
        supplier: U32,
        delivered: Moment,
        quantity: u8,
        amount: I64,
        district_info: [u8; 24],
    }

    Item {
        id: U32,
        image: U32,
        name: [u8; 24],
        price: U32,
        data: [u8; 50],
    }

    Stock {
        warehouse: U32,
        item: U32,
        quantity: U16,
        districts: [[u8; 24]; DISTRICTS as usize],
        ytd: U64,
        orders: U32,
        remote_orders: U32,
        data: [u8; 50],
    }

    LatestOrder {
        customer: U32,
        order: U32,
    }

    NextDelivery {
        district: U32,
        order: U32,
    }

    /// A customer in the list of a last name.
    NamedCustomer {
        name: U32,
        first: [u8; FIRST_NAME_BYTES],
        customer: U32,
    }

    /// An order in the list of its customer.
    CustomersOrder {
        customer: U32,
        order: U32,
    }
}

macro_rules! keys {
    ($($record:ident($this:ident, $scale:ident) => $key:expr;)*) => {$(
        impl Record for $record {
            const TABLE: Table = Table::$record;

            #[inline]
            fn key(&self, $scale: &Scale) -> PrimaryKey {
                let $this = self;
                $key
            }
        }
    )*};
}

keys! {
    Warehouse(row, _scale) => Scale::warehouse_key(row.id.get());
    District(row, _scale) => Scale::district_key(row.id.get());
    Customer(row, scale) => scale.customer_key(row.id.get());
    History(row, scale) => scale.payment_key(row.customer.get(), row.date.get());
    NewOrder(row, _scale) => Scale::order_key(row.district.get(), row.order.get());
    Order(row, _scale) => Scale::order_key(row.district.get(), row.id.get());
    OrderLine(row, _scale) =>
        Scale::line_key(row.district.get(), row.order.get(), row.number.into());
    Item(row, _scale) => Scale::item_key(row.id.get());
    Stock(row, _scale) => Scale::stock_key(row.warehouse.get(), row.item.get());
    LatestOrder(row, scale) => scale.customer_key(row.customer.get());
    NextDelivery(row, _scale) => Scale::district_key(row.district.get());
    NamedCustomer(row, scale) =>
        scale.named_customer_key(row.customer.get(), row.name.get(), &row.first);
    CustomersOrder(row, scale) =>
        scale.customers_order_key(row.customer.get(), row.order.get());
}

/// Customers with one last name: their numbers, four bytes each, in the order of their first names.
pub(super) mod postings {
    /// Bytes of an entry.
    pub(in super::super) const ENTRY_BYTES: usize = size_of::<u32>();

    /// The middle customer of the list, rounded up (clause 2.5.2.2); `None` if the list is empty or
    /// its length is wrong.
    pub(in super::super) fn middle(list: &[u8]) -> Option<u32> {
        let (entries, rest) = list.as_chunks::<ENTRY_BYTES>();
        let at = entries.len().checked_sub(1)? / 2;
        rest.is_empty().then(|| u32::from_le_bytes(entries[at]))
    }

    /// Appends a customer to the list.
    pub(in super::super) fn push(list: &mut Vec<u8>, customer: u32) {
        list.extend_from_slice(&customer.to_le_bytes());
    }
}

const _: () = assert!(size_of::<Customer>() == 669 && size_of::<Stock>() == 316);

#[cfg(test)]
mod tests {
    use super::postings;

    #[test]
    fn the_middle_is_rounded_up() {
        let mut list = Vec::new();
        assert_eq!(postings::middle(&list), None);
        for (number, middle) in [(10, 10), (11, 10), (12, 11), (13, 11), (14, 12)] {
            postings::push(&mut list, number);
            assert_eq!(postings::middle(&list), Some(middle));
        }
        assert_eq!(postings::middle(&list[1..]), None);
    }
}
