//! How large the company is, how its parts are numbered, and what its tables look like.
//!
//! Warehouses, districts, customers and items are numbered from zero across the whole company, so
//! district 23 is the third of warehouse 2. A key names every level from the warehouse down, so
//! each level can be the critical field and spreads rows evenly. Only orders are numbered within
//! their district, and from one, as D_NEXT_O_ID counts them.

use lotus_mvcc::{CriticalField, PrimaryKey, TableSpec};

use crate::config::{ClusterConfig, Sharding};

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;
/// The most lines of an order.
pub const MAX_LINES: usize = 15;
/// Bytes of a last name, three syllables.
pub const NAME_BYTES: usize = 16;
/// Last names that customers can have.
pub const LAST_NAMES: u32 = 1000;
/// Rows of growing tables for which the index has room, for each row that they begin with. There
/// is no end to them after that, but their chains of buckets grow longer.
const ROOM_TO_GROW: u64 = 2;
/// Bytes of a number in a key.
const FIELD_BYTES: u8 = 4;

/// Cardinalities; those of clause 1.2 by default, with one warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Warehouses, each with ten districts.
    pub warehouses: u32,
    /// Customers of a district, and orders that it begins with: 3,000 in the specification.
    pub customers: u32,
    /// Items, which every warehouse has in stock: 100,000 in the specification.
    pub items: u32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { warehouses: 1, customers: Self::MAX_CUSTOMERS, items: Self::MAX_ITEMS }
    }
}

impl Scale {
    /// The most warehouses; so many have a few billion rows.
    pub const MAX_WAREHOUSES: u32 = 10_000;
    /// The most customers of a district.
    pub const MAX_CUSTOMERS: u32 = 3_000;
    /// The most items.
    pub const MAX_ITEMS: u32 = 100_000;

    /// All districts.
    pub(super) const fn districts(&self) -> u32 {
        self.warehouses * DISTRICTS
    }

    /// Orders that are delivered in each district from the start: seven of ten.
    pub(super) const fn delivered(&self) -> u32 {
        self.customers * 7 / 10
    }

    /// Last names that there are in each district: a thousand, unless customers are fewer.
    pub(super) fn last_names(&self) -> u32 {
        self.customers.min(LAST_NAMES)
    }

    pub(super) const fn warehouse_of(district: u32) -> u32 {
        district / DISTRICTS
    }

    pub(super) const fn district_of(&self, customer: u32) -> u32 {
        customer / self.customers
    }

    pub(super) fn warehouse_key(warehouse: u32) -> PrimaryKey {
        warehouse.to_be_bytes().into()
    }

    /// The key of what there is one of in each district.
    pub(super) fn district_key(district: u32) -> PrimaryKey {
        (Self::warehouse_of(district), district).into()
    }

    /// The key of what there is one of for each customer.
    pub(super) fn customer_key(&self, customer: u32) -> PrimaryKey {
        let district = self.district_of(customer);
        (Self::warehouse_of(district), district, customer).into()
    }

    /// The key of a payment of the customer, which its date tells from others.
    pub(super) fn payment_key(&self, customer: u32, date: u64) -> PrimaryKey {
        let mut key = [0; 20];
        key[..12].copy_from_slice(self.customer_key(customer).as_bytes());
        key[12..].copy_from_slice(&date.to_be_bytes());
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

/// Which level of the company decides the shard of a row (LOTUS §4.2, Fig. 22).
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Critical {
    /// The warehouse: nearly all locks of a transaction are at one compute node.
    Warehouse,
    /// The district.
    District,
    /// The customer. Rows that belong to no customer go by their district.
    Customer,
}

/// The tables, in the order of [`Table::ALL`]: nine of the specification, three paths to them.
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
    /// The customers of one last name in a district, by first name.
    CustomersByName,
    /// A customer's latest order.
    LatestOrder,
    /// A district's oldest undelivered order.
    NextDelivery,
}

impl Table {
    pub(super) const COUNT: usize = 12;
    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::Warehouse,
        Self::District,
        Self::Customer,
        Self::History,
        Self::NewOrder,
        Self::Order,
        Self::OrderLine,
        Self::Item,
        Self::Stock,
        Self::CustomersByName,
        Self::LatestOrder,
        Self::NextDelivery,
    ];

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
            Self::CustomersByName => "customers_by_name",
            Self::LatestOrder => "latest_order",
            Self::NextDelivery => "next_delivery",
        }
    }

    const fn key_bytes(self) -> u32 {
        match self {
            Self::Warehouse | Self::Item => 4,
            Self::District | Self::NextDelivery | Self::Stock => 8,
            Self::Customer | Self::NewOrder | Self::Order | Self::LatestOrder => 12,
            Self::OrderLine => 16,
            Self::History => 20,
            Self::CustomersByName => 8 + NAME_BYTES as u32,
        }
    }

    /// The levels that lead its key.
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
        matches!(self, Self::History | Self::NewOrder | Self::Order | Self::OrderLine)
    }

    /// The table of a company of this size that begins with `rows` rows.
    pub(super) fn spec(
        self,
        scale: &Scale,
        (rows, record_bytes): (u64, usize),
        critical: Critical,
        cluster: &ClusterConfig,
    ) -> TableSpec {
        let rows = rows.max(1);
        let capacity = if self.grows() { rows * ROOM_TO_GROW } else { rows };
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
        let spec = TableSpec::new(self.name());
        spec.record_bytes(record_bytes as u32)
            .key_bytes(self.key_bytes())
            .capacity(capacity)
            .versions(cluster.versions)
            .critical_field(field)
            // No more than there are values, or the index keeps room in shards that stay empty.
            .shards(values.min(u64::from(MAX_SHARDS)) as u32)
    }
}

/// Shards that a table can spread over.
const MAX_SHARDS: u16 = lotus_fabric::ids::ShardId::COUNT;

impl Critical {
    /// How many values the field takes.
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
