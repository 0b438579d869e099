//! Flags of `lotus-lab bench bank`.

use clap::Args;
use lotus_loads::bank::{BankLoad, BankWorkload};

use super::locks::{LockRunArgs, SystemArgs};
use lotus_runner::args::values::{micros, one_of};

const BUSINESS: &[(&str, BankWorkload)] =
    &[("smallbank", BankWorkload::SmallBank), ("transfer", BankWorkload::Transfer)];

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct BankArgs {
    /// Transactions: SmallBank's six, or 90 % balances and 10 % transfers.
    #[arg(value_parser = one_of(BUSINESS))]
    pub business: BankWorkload,
    #[command(flatten)]
    pub system: SystemArgs,
    /// Customers; of SmallBank each has two accounts.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=BankLoad::MAX_CUSTOMERS))]
    pub accounts: u64,
    /// Time that the server's one core takes for a request, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = micros)]
    pub request_us: f64,
    /// Time after which an acquisition is given up, and its transaction begun again, in
    /// microseconds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    pub timeout_us: u64,
    #[command(flatten)]
    pub run: LockRunArgs,
}
