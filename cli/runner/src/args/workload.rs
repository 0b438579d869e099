//! Flags of each workload of `lotus bench`, besides the common flags.

use clap::Args;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::{Critical, Paths, Scale};
use lotus_benchmarks::ycsb::{Mix, Ycsb};
use lotus_benchmarks::zipf::KeyChooser;

use super::CommonArgs;
use super::values::{one_of, ratio, secs, skew};

/// Flags of the workload kvs.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct KvsArgs {
    /// Records.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=KeyChooser::MAX_KEYS))]
    pub keys: u64,
    /// Share of transactions that update a record.
    #[arg(long, value_name = "RATIO", default_value_t = 0.5, value_parser = ratio)]
    pub update_ratio: f64,
    /// Skew of the keys' popularity; 0 is uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = skew)]
    pub zipf: f64,
    /// Shards of one compute node that are hot, instead of the skew; the others are uniform.
    #[arg(long, value_name = "N", conflicts_with = "zipf")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    pub hot_shards: Option<u64>,
    /// Share of transactions that go to the hot shards.
    #[arg(long, value_name = "RATIO", default_value_t = 0.8, value_parser = ratio)]
    #[arg(requires = "hot_shards")]
    pub hot_ratio: f64,
    /// Interval of the hotspot's jumps to shards of the next compute node, in seconds; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = secs)]
    #[arg(requires = "hot_shards")]
    pub jump: f64,
    /// Flags common to all workloads.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Flags of SmallBank.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct SmallbankArgs {
    /// Customers, each with two accounts.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=KeyChooser::MAX_KEYS))]
    pub accounts: u64,
    /// Customers in the hot set; 0 for none [default: 4 % of the accounts, at least 2].
    #[arg(long, value_name = "N")]
    pub hot_accounts: Option<u64>,
    /// Share of transactions that go to the hot set.
    #[arg(long, value_name = "RATIO", default_value_t = 0.9, value_parser = ratio)]
    pub hot_ratio: f64,
    /// Flags common to all workloads.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Flags of TATP.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct TatpArgs {
    /// Subscribers.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=Tatp::MAX_SUBSCRIBERS))]
    pub subscribers: u64,
    /// Flags common to all workloads.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Flags of TPC-C.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct TpccArgs {
    /// Warehouses, each with ten districts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(Scale::MAX_WAREHOUSES)))]
    pub warehouses: u32,
    /// Customers of each district, and its number of initial orders.
    #[arg(long, value_name = "N", default_value_t = Scale::MAX_CUSTOMERS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(Scale::MAX_CUSTOMERS)))]
    pub customers_per_district: u32,
    /// Items, which every warehouse has in stock.
    #[arg(long, value_name = "N", default_value_t = Scale::MAX_ITEMS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(Scale::MAX_ITEMS)))]
    pub items: u32,
    /// Part of a key that decides the shard, and so which node grants the locks.
    #[arg(long, default_value = "warehouse", value_parser = one_of(CRITICAL_FIELDS))]
    pub critical_field: Critical,
    /// Finds customers by last name, a customer's last order and the oldest new orders by ranges of
    /// ordered tables, instead of rows that lead to them.
    #[arg(long)]
    pub ordered: bool,
    /// Flags common to all workloads.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Flags of YCSB.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct YcsbArgs {
    /// Operations: a and b read and update, c reads, d reads what was inserted last, e reads ranges
    /// and inserts, f reads and modifies what it has read.
    #[arg(long, value_name = "MIX", default_value = "a", value_parser = one_of(&Mix::NAMES))]
    pub mix: Mix,
    /// Records.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=KeyChooser::MAX_KEYS))]
    pub records: u64,
    /// Bytes of each value. Two rows of an ordered table must fit in 15 KiB.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(
        Ycsb::LEAST_VALUE_BYTES as i64..=Ycsb::MOST_VALUE_BYTES as i64
    ))]
    pub value_bytes: u32,
    /// Skew of the records' popularity; 0 is uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = skew)]
    pub zipf: f64,
    /// Keeps the records in an ordered table, as mix e always does.
    #[arg(long)]
    pub ordered: bool,
    /// Flags common to all workloads.
    #[command(flatten)]
    pub common: CommonArgs,
}

const CRITICAL_FIELDS: &[(&str, Critical)] = &[
    (Critical::Warehouse.name(), Critical::Warehouse),
    (Critical::District.name(), Critical::District),
    (Critical::Customer.name(), Critical::Customer),
];

impl TpccArgs {
    /// The size of the company.
    pub fn scale(&self) -> Scale {
        let &Self { warehouses, customers_per_district: customers, items, .. } = self;
        Scale { warehouses, customers, items }
    }

    /// Kind of access paths.
    pub const fn paths(&self) -> Paths {
        if self.ordered { Paths::Ordered } else { Paths::Rows }
    }
}
