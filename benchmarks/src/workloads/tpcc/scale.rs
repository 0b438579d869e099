//! Size of the company, numbering of its parts, and layout of its tables.
//!
//! Warehouses, districts, customers and items are numbered from zero across the whole company, so
//! district 23 is the fourth of warehouse 2. A key names every level from the warehouse down, so
//! that each level can be the critical field and spreads rows evenly. Only orders are numbered
//! within their district, starting from one, as D_NEXT_O_ID counts them.

use lotus_mvcc::{CriticalField, PrimaryKey, TableSpec};

use super::paths::Paths;
use crate::contract::config::{ClusterConfig, Sharding};

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;
/// Most lines of an order.
pub const MAX_LINES: usize = 15;
/// Bytes of a first name.
pub const FIRST_NAME_BYTES: usize = 16;
/// Bytes of a last name, three syllables.
pub const NAME_BYTES: usize = 16;
/// Number of different last names.
pub const LAST_NAMES: u32 = 1000;
/// Index room of growing tables, as a multiple of their initial rows. Tables can grow further, but
/// their bucket chains grow longer.
const ROOM_TO_GROW: u64 = 2;
/// Bytes of a number in a key.
const FIELD_BYTES: u8 = 4;

/// Cardinalities; the defaults come from clause 1.2, with one warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Number of warehouses, each with ten districts.
    pub warehouses: u32,
    /// Customers per district, and also its initial orders: 3,000 in the specification.
    pub customers: u32,
    /// Items, each in stock at every warehouse: 100,000 in the specification.
    pub items: u32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { warehouses: 1, customers: Self::MAX_CUSTOMERS, items: Self::MAX_ITEMS }
    }
}

impl Scale {
    /// Limit of warehouses; 10,000 warehouses have a few billion rows.
    pub const MAX_WAREHOUSES: u32 = 10_000;
    /// Limit of customers per district.
    pub const MAX_CUSTOMERS: u32 = 3_000;
    /// Limit of items.
    pub const MAX_ITEMS: u32 = 100_000;

    /// Number of districts of the company.
    pub(super) const fn districts(&self) -> u32 {
        self.warehouses * DISTRICTS
    }

    /// Initial orders of each district that are delivered: seven of ten.
    pub(super) const fn delivered(&self) -> u32 {
        self.customers * 7 / 10
    }

    /// Last names in use in each district: a thousand, or the number of customers if smaller.
    pub(super) fn last_names(&self) -> u32 {
        self.customers.min(LAST_NAMES)
    }

    /// The warehouse of a district.
    pub const fn warehouse_of(district: u32) -> u32 {
        district / DISTRICTS
    }

    /// The district of a customer.
    pub const fn district_of(&self, customer: u32) -> u32 {
        customer / self.customers
    }

    pub(super) fn warehouse_key(warehouse: u32) -> PrimaryKey {
        warehouse.to_be_bytes().into()
    }

    /// Key of a row that exists once for each district.
    pub(super) fn district_key(district: u32) -> PrimaryKey {
        (Self::warehouse_of(district), district).into()
    }

    /// Key of a row that exists once for each customer.
    pub(super) fn customer_key(&self, customer: u32) -> PrimaryKey {
        let district = self.district_of(customer);
        (Self::warehouse_of(district), district, customer).into()
    }

    /// Key of a payment; the date distinguishes the payments of a customer.
    pub(super) fn payment_key(&self, customer: u32, date: u64) -> PrimaryKey {
        let mut key = [0; 20];
        key[..12].copy_from_slice(self.customer_key(customer).as_bytes());
        key[12..].copy_from_slice(&date.to_be_bytes());
        key.into()
    }

    /// The least key behind all keys of a district, in tables whose keys go on with more fields.
    pub(super) fn key_behind_district(district: u32) -> PrimaryKey {
        // Districts of all warehouses are numbered in one sequence.
        (Self::warehouse_of(district), district + 1).into()
    }

    /// The least key behind all keys of a customer, in tables whose keys go on with more fields.
    pub(super) fn key_behind_customer(&self, customer: u32) -> PrimaryKey {
        let district = self.district_of(customer);
        (Self::warehouse_of(district), district, customer + 1).into()
    }

    /// Key of an order among the orders of its customer.
    pub(super) fn customers_order_key(&self, customer: u32, order: u32) -> PrimaryKey {
        let district = self.district_of(customer);
        (Self::warehouse_of(district), district, customer, order).into()
    }

    /// The least key of the customers with a last name; the key contains the number of the name.
    pub(super) fn names_from(district: u32, name: u32) -> PrimaryKey {
        (Self::warehouse_of(district), district, name).into()
    }

    /// Key of a customer among the customers with one last name, by first name.
    pub(super) fn named_customer_key(
        &self,
        customer: u32,
        name: u32,
        first: &[u8; FIRST_NAME_BYTES],
    ) -> PrimaryKey {
        let district = self.district_of(customer);
        let mut key = [0; 12 + FIRST_NAME_BYTES + 2];
        key[..12].copy_from_slice(Self::names_from(district, name).as_bytes());
        key[12..12 + FIRST_NAME_BYTES].copy_from_slice(first);
        // The number within the district: two bytes are enough, and a key has no more room.
        let within = (customer % self.customers) as u16;
        key[12 + FIRST_NAME_BYTES..].copy_from_slice(&within.to_be_bytes());
        key.into()
    }

    pub(super) fn order_key(district: u32, order: u32) -> PrimaryKey {
        (Self::warehouse_of(district), district, order).into()
    }

    pub(super) fn line_key(district: u32, order: u32, line: u32) -> PrimaryKey {
        (Self::warehouse_of(district), district, order, line).into()
    }

    pub(super) fn item_key(item: u32) -> PrimaryKey {
        item.to_be_bytes().into()
    }

    pub(super) fn stock_key(warehouse: u32, item: u32) -> PrimaryKey {
        (warehouse, item).into()
    }

    pub(super) fn name_key(district: u32, last: &[u8; NAME_BYTES]) -> PrimaryKey {
        let mut key = [0; 8 + NAME_BYTES];
        key[..4].copy_from_slice(&Self::warehouse_of(district).to_be_bytes());
        key[4..8].copy_from_slice(&district.to_be_bytes());
        key[8..].copy_from_slice(last);
        key.into()
    }
}

/// Level of the company that decides the shard of a row (LOTUS §4.2, Fig. 22).
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Critical {
    /// The warehouse: nearly all locks of a transaction have the same owner.
    Warehouse,
    /// The district.
    District,
    /// The customer; rows that belong to no customer use their district.
    Customer,
}

/// The tables: the nine tables of the specification, and access paths; each form of [`Paths`] has
/// some of the access paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    Warehouse,
    District,
    Customer,
    History,
    NewOrder,
    Order,
    OrderLine,
    Item,
    Stock,
    /// Customers with one last name in a district, by first name.
    CustomersByName,
    /// A customer's latest order.
    LatestOrder,
    /// A district's oldest undelivered order.
    NextDelivery,
    /// Customers of a district by last and first name.
    NamedCustomer,
    /// Orders by customer.
    CustomersOrder,
}

impl Table {
    pub(super) const COUNT: usize = 14;

    /// The tables of a form of access paths, in the order in which they are created.
    pub(super) const fn of(paths: Paths) -> &'static [Self] {
        const SPECIFIED: [Table; 9] = [
            Table::Warehouse,
            Table::District,
            Table::Customer,
            Table::History,
            Table::NewOrder,
            Table::Order,
            Table::OrderLine,
            Table::Item,
            Table::Stock,
        ];
        const fn with<const ALL: usize>(paths: &[Table]) -> [Table; ALL] {
            let mut all = [Table::Warehouse; ALL];
            let (specified, rest) = all.split_at_mut(SPECIFIED.len());
            specified.copy_from_slice(&SPECIFIED);
            rest.copy_from_slice(paths);
            all
        }
        const ROWS: [Table; 12] =
            with(&[Table::CustomersByName, Table::LatestOrder, Table::NextDelivery]);
        const ORDERED: [Table; 11] = with(&[Table::NamedCustomer, Table::CustomersOrder]);
        match paths {
            Paths::Rows => &ROWS,
            Paths::Ordered => &ORDERED,
        }
    }

    /// Whether the table is an ordered table.
    pub(super) const fn is_ordered(self, paths: Paths) -> bool {
        match self {
            Self::NamedCustomer | Self::CustomersOrder => true,
            Self::NewOrder => matches!(paths, Paths::Ordered),
            _ => false,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Warehouse => "warehouse",
            Self::District => "district",
            Self::Customer => "customer",
            Self::History => "history",
            Self::NewOrder => "new_order",
            Self::Order => "order",
            Self::OrderLine => "order_line",
            Self::Item => "item",
            Self::Stock => "stock",
            Self::CustomersByName | Self::NamedCustomer => "customers_by_name",
            Self::CustomersOrder => "orders_by_customer",
            Self::LatestOrder => "latest_order",
            Self::NextDelivery => "next_delivery",
        }
    }

    const fn key_bytes(self) -> u32 {
        match self {
            Self::Warehouse | Self::Item => 4,
            Self::District | Self::NextDelivery | Self::Stock => 8,
            Self::Customer | Self::NewOrder | Self::Order | Self::LatestOrder => 12,
            Self::OrderLine | Self::CustomersOrder => 16,
            Self::NamedCustomer => 12 + FIRST_NAME_BYTES as u32 + 2,
            Self::History => 20,
            Self::CustomersByName => 8 + NAME_BYTES as u32,
        }
    }

    /// Levels at the beginning of the key.
    const fn levels(self) -> &'static [Critical] {
        use Critical::{Customer, District, Warehouse};
        match self {
            Self::Item => &[],
            Self::Warehouse | Self::Stock => &[Warehouse],
            Self::Customer | Self::History | Self::LatestOrder => &[Warehouse, District, Customer],
            _ => &[Warehouse, District],
        }
    }

    pub(super) const fn grows(self) -> bool {
        matches!(
            self,
            Self::History | Self::NewOrder | Self::Order | Self::OrderLine | Self::CustomersOrder
        )
    }

    /// Specification of the table, given its initial number of rows and the size of a record.
    pub(super) fn spec(
        self,
        scale: &Scale,
        (rows, record_bytes): (u64, usize),
        (paths, critical): (Paths, Critical),
        cluster: &ClusterConfig,
    ) -> TableSpec {
        let rows = rows.max(1);
        let capacity = if self.grows() { rows * ROOM_TO_GROW } else { rows };
        let spec = TableSpec::new(self.name())
            .record_bytes(record_bytes as u32)
            .key_bytes(self.key_bytes())
            .capacity(capacity)
            .versions(cluster.versions);
        if self.is_ordered(paths) {
            return spec.ordered();
        }
        let wanted = match cluster.sharding {
            Sharding::App => critical as usize + 1,
            Sharding::Hash => 0,
        };
        let levels = &self.levels()[..wanted.min(self.levels().len())];
        let (field, values) = match levels.last() {
            None => (CriticalField::Hashed, rows),
            Some(level) => {
                let start = FIELD_BYTES * (levels.len() as u8 - 1);
                (CriticalField::Bytes { start, len: FIELD_BYTES }, level.values(scale))
            }
        };
        spec.inline(cluster.inline.into())
            .critical_field(field)
            // More shards than values would waste index room on shards that stay empty.
            .shards(values.min(u64::from(MAX_SHARDS)) as u32)
    }
}

/// Largest number of shards that a table can spread over.
const MAX_SHARDS: u16 = lotus_fabric::ids::ShardId::COUNT;

impl Critical {
    /// Number of values of the field.
    fn values(self, scale: &Scale) -> u64 {
        let districts = u64::from(scale.districts());
        match self {
            Self::Warehouse => u64::from(scale.warehouses),
            Self::District => districts,
            Self::Customer => districts * u64::from(scale.customers),
        }
    }

    /// The name that flags and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warehouse => "warehouse",
            Self::District => "district",
            Self::Customer => "customer",
        }
    }
}
