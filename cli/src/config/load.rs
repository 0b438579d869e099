//! Initial data of a cluster: the tables of a workload of `lotus bench`.

use std::sync::atomic::AtomicU64;

use lotus::{Cluster, ClusterError};
use lotus_benchmarks::config::ClusterConfig;
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::{Critical, Scale, Tpcc};
use lotus_benchmarks::workload::Workload;
use lotus_benchmarks::zipf::KeyChooser;
use lotus_node::{ClusterFile, FileError};
use serde::Deserialize;

/// Seed of initial values; clients that drive the cluster must use the same seed.
pub const SEED: u64 = 1;

/// A workload and its size.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Load {
    /// One table of 8-byte keys and 40-byte values.
    Kvs {
        /// Records.
        keys: u64,
    },
    /// A bank.
    SmallBank {
        /// Customers, each with two accounts.
        accounts: u64,
    },
    /// A registry of mobile subscribers.
    Tatp {
        /// Subscribers.
        subscribers: u64,
    },
    /// A company, sharded by warehouse.
    Tpcc {
        /// Warehouses, each with ten districts.
        warehouses: u32,
        /// Customers of each district.
        #[serde(default = "most_customers")]
        customers_per_district: u32,
        /// Items, which every warehouse has in stock.
        #[serde(default = "most_items")]
        items: u32,
    },
}

fn most_customers() -> u32 {
    Scale::MAX_CUSTOMERS
}

fn most_items() -> u32 {
    Scale::MAX_ITEMS
}

impl Load {
    /// Returns the load described by a cluster's file, if any.
    ///
    /// # Errors
    /// [`FileError::Line`].
    pub fn of(file: &ClusterFile) -> Result<Option<Self>, FileError> {
        file.load.as_ref().map(|section| section.read(Self::check)).transpose()
    }

    /// The workload's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kvs { .. } => Kvs::NAME,
            Self::SmallBank { .. } => SmallBank::NAME,
            Self::Tatp { .. } => Tatp::NAME,
            Self::Tpcc { .. } => Tpcc::NAME,
        }
    }

    /// Checks the size; the error is a sentence.
    fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            let why = || format!("{name} must be from {least} to {most}, not {value}");
            (least..=most).contains(&value).then_some(()).ok_or_else(why)
        };
        match *self {
            Self::Kvs { keys } => within("keys", keys, 1, KeyChooser::MAX_KEYS),
            Self::SmallBank { accounts } => within("accounts", accounts, 2, KeyChooser::MAX_KEYS),
            Self::Tatp { subscribers } => {
                within("subscribers", subscribers, 1, Tatp::MAX_SUBSCRIBERS)
            }
            Self::Tpcc { warehouses, customers_per_district, items } => {
                let most = u64::from(Scale::MAX_WAREHOUSES);
                within("warehouses", warehouses.into(), 1, most)?;
                let most = u64::from(Scale::MAX_CUSTOMERS);
                within("customers_per_district", customers_per_district.into(), 1, most)?;
                within("items", items.into(), 1, u64::from(Scale::MAX_ITEMS))
            }
        }
    }

    /// Creates the workload and passes it to `user`.
    pub fn with<U: Use>(&self, user: U) -> U::Outcome {
        match *self {
            Self::Kvs { keys } => user.of(Kvs::new(keys, 0.0, 0.0)),
            Self::SmallBank { accounts } => user.of(SmallBank::new(accounts, 0, 0.0, SEED)),
            Self::Tatp { subscribers } => user.of(Tatp::new(subscribers, SEED)),
            Self::Tpcc { warehouses, customers_per_district: customers, items } => {
                let scale = Scale { warehouses, customers, items };
                user.of(Tpcc::new(scale, Critical::Warehouse, SEED))
            }
        }
    }

    /// Creates and fills the tables; returns the number of rows.
    ///
    /// # Errors
    /// As [`Cluster::create_table`] and [`Cluster::load`].
    pub fn carry_out(
        &self,
        cluster: &Cluster,
        settings: &ClusterConfig,
    ) -> Result<u64, ClusterError> {
        self.with(Fill { cluster, settings })
    }
}

/// Generic code to run with a workload whose type is known only at run time.
pub trait Use {
    /// Result of the code.
    type Outcome;

    /// Runs the code.
    fn of<W: OnLotus>(self, workload: W) -> Self::Outcome;
}

struct Fill<'a> {
    cluster: &'a Cluster,
    settings: &'a ClusterConfig,
}

impl Use for Fill<'_> {
    type Outcome = Result<u64, ClusterError>;

    fn of<W: OnLotus>(self, mut workload: W) -> Self::Outcome {
        let Self { cluster, settings } = self;
        let tables = workload.tables(settings).into_iter();
        let tables: Vec<_> =
            tables.map(|spec| cluster.create_table(spec)).collect::<Result<_, _>>()?;
        workload.attach(&tables);
        let loaded = AtomicU64::new(0);
        for (index, table) in tables.into_iter().enumerate() {
            let row = |row, value: &mut Vec<u8>| workload.row(index, row, value);
            cluster.load(table, workload.rows(index), &row, &loaded)?;
        }
        Ok(loaded.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = "\
fabric = \"shm\"
[[memory_node]]
[[compute_node]]
[load.smallbank]
accounts = 100
";

    fn load(text: &str) -> Result<Option<Load>, FileError> {
        Load::of(&ClusterFile::parse(Path::new("/etc/c.toml"), text, None)?)
    }

    #[test]
    fn a_load_names_a_workload_and_its_size() {
        assert_eq!(load(FILE).expect("sound"), Some(Load::SmallBank { accounts: 100 }));
        let (without, _) = FILE.split_once("[load").expect("it has one");
        assert_eq!(load(without).expect("sound"), None);
    }

    #[test]
    fn a_wrong_load_is_refused_with_its_line() {
        let cases = [
            ("accounts = 100", "accounts = 1", 4, "accounts must be from 2"),
            ("accounts = 100", "acounts = 100", 5, "acounts"),
            ("load.smallbank", "load.bank", 4, "unknown variant `bank`"),
        ];
        for (from, to, line, said) in cases {
            let refused = load(&FILE.replacen(from, to, 1)).expect_err(to).to_string();
            let named = format!("/etc/c.toml, line {line}: ");
            assert!(refused.starts_with(&named) && refused.contains(said), "{to}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }
}
