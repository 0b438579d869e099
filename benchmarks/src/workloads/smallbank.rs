//! SmallBank: two tables of accounts and six transactions that move money (LOTUS §8.1).
//!
//! A customer has a savings and a checking account; a record of 16 bytes holds the customer's
//! number and the balance. The rules come from the SmallBank specification (Alomari et al., "The
//! cost of serializability on platforms that use snapshot isolation", ICDE 2008), which names no
//! amounts. Amounts are random here, with larger deposits than withdrawals: Amalgamate keeps
//! emptying the hot accounts, and most payments from hot accounts would otherwise roll back.
//!
//! The audit checks money: initial balances follow from the seed, every committed transaction
//! reports how much money it created or destroyed, and the sum of all accounts must agree exactly.
//!
//! A hot set takes most transactions. Whether a transaction is hot is decided once, for all its
//! customers. Hot customers are scattered over all numbers; otherwise a small bank's hot set would
//! lie in the shards of a single compute node.

use std::ops::Range;

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::audit::{Check, Effects, RowCheck};
use crate::contract::config::ClusterConfig;
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{AbortReason, Item, Txn, TxnError};
use crate::contract::workload::{Access, Workload, mix};
use crate::workloads::kvs::{integer_key, integer_table};
use crate::workloads::zipf::Scatter;

/// Bytes of a record: customer and balance.
pub const RECORD_BYTES: usize = 16;
/// Smallest initial balance of an account.
const LEAST_INITIAL: i64 = 10_000;
/// Number of different initial balances.
const INITIAL_SPREAD: u64 = 40_001;
/// Largest deposit of one transaction.
const MAX_IN: i64 = 100;
/// Largest withdrawal or payment of one transaction.
const MAX_OUT: i64 = 10;
/// Penalty of WriteCheck for an uncovered check.
const PENALTY: i64 = 1;

const SAVINGS: usize = 0;
const CHECKING: usize = 1;
/// The tables' names, in the order of [`Workload::row`]'s table numbers.
const TABLES: [&str; 2] = ["savings", "checking"];

/// The transaction types, in the order of `MIX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SmallBankProfile {
    /// Moves all money of a customer to another one's checking account.
    Amalgamate,
    /// Reads both balances of a customer.
    Balance,
    /// Pays into a checking account.
    DepositChecking,
    /// Moves money between two checking accounts.
    SendPayment,
    /// Pays into a savings account, or out of it.
    TransactSavings,
    /// Cashes a check, with a penalty if both accounts together do not cover it.
    WriteCheck,
}

/// Number of transactions of each type in a hundred.
const MIX: [(SmallBankProfile, u32); 6] = [
    (SmallBankProfile::Amalgamate, 15),
    (SmallBankProfile::Balance, 15),
    (SmallBankProfile::DepositChecking, 15),
    (SmallBankProfile::SendPayment, 25),
    (SmallBankProfile::TransactSavings, 15),
    (SmallBankProfile::WriteCheck, 15),
];

/// `MIX` as a table indexed by percentage, so that drawing a type is one look-up.
const KIND_OF_PERCENT: [SmallBankProfile; 100] = {
    let mut kinds = [SmallBankProfile::Amalgamate; 100];
    let (mut percent, mut entry, mut left) = (0, 0, MIX[0].1);
    while percent < 100 {
        if left == 0 {
            entry += 1;
            left = MIX[entry].1;
        }
        kinds[percent] = MIX[entry].0;
        left -= 1;
        percent += 1;
    }
    kinds
};

/// The SmallBank workload.
#[derive(Clone, Debug)]
pub struct SmallBank {
    tables: [TableId; 2],
    accounts: u64,
    hot_accounts: u64,
    hot_ratio: f64,
    seed: u64,
    /// Maps ranks, of which the first are hot, to customers.
    scatter: Scatter,
}

/// A transaction with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SmallBankRequest {
    /// Type of the transaction.
    pub kind: SmallBankProfile,
    /// The customer.
    pub customer: u64,
    /// Another customer; used by Amalgamate and SendPayment only.
    pub other: u64,
    /// Amount in cents.
    pub amount: i64,
}

impl SmallBank {
    /// Default size of the hot set: 4 % of the accounts, at least two.
    pub fn default_hot_accounts(accounts: u64) -> u64 {
        (accounts / 25).max(2)
    }

    /// A bank of `accounts` customers. The first `hot_accounts` ranks take a share `hot_ratio` of
    /// the transactions (0 = no hot set). Initial balances follow from `seed`.
    ///
    /// # Panics
    /// If there are fewer than two accounts or more than 2^32, exactly one hot account or more hot
    /// accounts than accounts, or `hot_ratio` is not in 0..=1.
    pub fn new(accounts: u64, hot_accounts: u64, hot_ratio: f64, seed: u64) -> Self {
        assert!(accounts >= 2, "a payment needs two accounts");
        assert!(hot_accounts != 1 && hot_accounts <= accounts, "{hot_accounts} hot accounts");
        assert!((0.0..=1.0).contains(&hot_ratio), "a ratio of {hot_ratio}");
        let tables = [TableId(0), TableId(1)];
        Self { tables, accounts, hot_accounts, hot_ratio, seed, scatter: Scatter::new(accounts) }
    }

    /// Ranks that a transaction chooses from. Cold transactions exclude the hot ranks, unless fewer
    /// than two would be left.
    #[inline]
    fn population(&self, hot: bool) -> Range<u64> {
        if hot {
            0..self.hot_accounts
        } else if self.accounts - self.hot_accounts >= 2 {
            self.hot_accounts..self.accounts
        } else {
            0..self.accounts
        }
    }

    /// Two different ranks, both hot or both cold.
    #[inline]
    fn draw_ranks(&self, rng: &mut SmallRng) -> (u64, u64) {
        let hot = self.hot_accounts > 0 && rng.random::<f64>() < self.hot_ratio;
        let population = self.population(hot);
        let first = rng.random_range(population.clone());
        // Uniform over the other ranks: the last rank replaces `first`.
        let drawn = rng.random_range(population.start..population.end - 1);
        (first, if drawn == first { population.end - 1 } else { drawn })
    }

    fn initial_balance(&self, table: usize, account: u64) -> i64 {
        let random = mix(self.seed ^ mix(account << 1 | table as u64));
        LEAST_INITIAL + (random % INITIAL_SPREAD) as i64
    }

    fn initial_sum(&self) -> i128 {
        let sum_of = |table| (0..self.accounts).map(move |a| self.initial_balance(table, a));
        sum_of(SAVINGS).chain(sum_of(CHECKING)).map(i128::from).sum()
    }

    /// Moves all money of one customer to the checking account of another customer.
    async fn amalgamate<T: Txn>(&self, txn: &mut T, r: &SmallBankRequest) -> Result<i64, TxnError> {
        let savings = Account::add_rw(txn, self.tables[SAVINGS], r.customer)?;
        let checking = Account::add_rw(txn, self.tables[CHECKING], r.customer)?;
        let target = Account::add_rw(txn, self.tables[CHECKING], r.other)?;
        txn.execute().await?;
        let total = savings.balance(txn)? + checking.balance(txn)?;
        let after = target.balance(txn)? + total;
        savings.set(txn, 0)?;
        checking.set(txn, 0)?;
        target.set(txn, after)?;
        Ok(0)
    }

    /// Reads both accounts of a customer.
    async fn balance<T: Txn>(&self, txn: &mut T, r: &SmallBankRequest) -> Result<i64, TxnError> {
        let savings = Account::add_ro(txn, self.tables[SAVINGS], r.customer)?;
        let checking = Account::add_ro(txn, self.tables[CHECKING], r.customer)?;
        txn.execute().await?;
        savings.balance(txn)?;
        checking.balance(txn)?;
        Ok(0)
    }

    /// Pays into the checking account.
    async fn deposit_checking<T: Txn>(
        &self,
        txn: &mut T,
        r: &SmallBankRequest,
    ) -> Result<i64, TxnError> {
        let checking = Account::add_rw(txn, self.tables[CHECKING], r.customer)?;
        txn.execute().await?;
        let before = checking.balance(txn)?;
        checking.set(txn, before + r.amount)?;
        Ok(r.amount)
    }

    /// Pays from one checking account to another; rolls back if the payer has too little money.
    async fn send_payment<T: Txn>(
        &self,
        txn: &mut T,
        r: &SmallBankRequest,
    ) -> Result<i64, TxnError> {
        let payer = Account::add_rw(txn, self.tables[CHECKING], r.customer)?;
        let payee = Account::add_rw(txn, self.tables[CHECKING], r.other)?;
        txn.execute().await?;
        let (has, had) = (payer.balance(txn)?, payee.balance(txn)?);
        if has < r.amount {
            return Err(TxnError::Aborted(AbortReason::Logic));
        }
        payer.set(txn, has - r.amount)?;
        payee.set(txn, had + r.amount)?;
        Ok(0)
    }

    /// Changes the savings by an amount of either sign; rolls back instead of overdrawing the
    /// savings.
    async fn transact_savings<T: Txn>(
        &self,
        txn: &mut T,
        r: &SmallBankRequest,
    ) -> Result<i64, TxnError> {
        let savings = Account::add_rw(txn, self.tables[SAVINGS], r.customer)?;
        txn.execute().await?;
        let after = savings.balance(txn)? + r.amount;
        if after < 0 {
            return Err(TxnError::Aborted(AbortReason::Logic));
        }
        savings.set(txn, after)?;
        Ok(r.amount)
    }

    /// Cashes a check, with a penalty if both accounts together do not cover it.
    async fn write_check<T: Txn>(
        &self,
        txn: &mut T,
        r: &SmallBankRequest,
    ) -> Result<i64, TxnError> {
        let savings = Account::add_ro(txn, self.tables[SAVINGS], r.customer)?;
        let checking = Account::add_rw(txn, self.tables[CHECKING], r.customer)?;
        txn.execute().await?;
        let before = checking.balance(txn)?;
        let covered = savings.balance(txn)? + before >= r.amount;
        let charge = if covered { r.amount } else { r.amount + PENALTY };
        checking.set(txn, before - charge)?;
        Ok(-charge)
    }
}

/// One record of a transaction, and the customer that it must belong to.
struct Account {
    item: Item,
    customer: u64,
}

impl Account {
    #[inline]
    fn add_ro<T: Txn>(txn: &mut T, table: TableId, customer: u64) -> Result<Self, TxnError> {
        Ok(Self { item: txn.add_ro(table, customer)?, customer })
    }

    #[inline]
    fn add_rw<T: Txn>(txn: &mut T, table: TableId, customer: u64) -> Result<Self, TxnError> {
        Ok(Self { item: txn.add_rw(table, customer)?, customer })
    }

    /// The balance that was read.
    #[inline]
    fn balance<T: Txn>(&self, txn: &T) -> Result<i64, TxnError> {
        match txn.value(self.item).and_then(decode) {
            Some((customer, balance)) if customer == self.customer => Ok(balance),
            _ => Err(TxnError::Fatal(complaint(self.customer, txn.value(self.item)))),
        }
    }

    #[inline]
    fn set<T: Txn>(&self, txn: &mut T, balance: i64) -> Result<(), TxnError> {
        txn.put(self.item, &encode(self.customer, balance))
    }
}

#[inline]
fn encode(customer: u64, balance: i64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&customer.to_le_bytes());
    record[8..].copy_from_slice(&balance.to_le_bytes());
    record
}

/// Customer and balance; `None` if the record has another length.
#[inline]
fn decode(record: &[u8]) -> Option<(u64, i64)> {
    let (customer, balance) = record.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*customer), i64::from_le_bytes(balance.try_into().ok()?)))
}

#[cold]
fn complaint(customer: u64, record: Option<&[u8]>) -> String {
    format!("customer {customer} has the record {record:02x?}")
}

impl Workload for SmallBank {
    type Request = SmallBankRequest;

    const NAME: &'static str = "smallbank";
    const TRANSACTIONS: &'static [&'static str] = &[
        "Amalgamate",
        "Balance",
        "DepositChecking",
        "SendPayment",
        "TransactSavings",
        "WriteCheck",
    ];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        let table = |name| integer_table(name, RECORD_BYTES, self.accounts, cluster);
        TABLES.map(table).into()
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.tables = [tables[SAVINGS], tables[CHECKING]];
    }

    fn rows(&self, _table: usize) -> u64 {
        self.accounts
    }

    fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        value.extend_from_slice(&encode(row, self.initial_balance(table, row)));
        row.into()
    }

    #[inline]
    fn draw(&self, rng: &mut SmallRng) -> SmallBankRequest {
        let kind = KIND_OF_PERCENT[rng.random_range(0..KIND_OF_PERCENT.len())];
        let (first, second) = self.draw_ranks(rng);
        let (least, most) = match kind {
            SmallBankProfile::DepositChecking => (1, MAX_IN),
            SmallBankProfile::TransactSavings => (-MAX_OUT, MAX_IN),
            _ => (1, MAX_OUT),
        };
        SmallBankRequest {
            kind,
            customer: self.scatter.apply(first),
            other: self.scatter.apply(second),
            amount: rng.random_range(least..=most),
        }
    }

    #[inline]
    fn kind(request: &SmallBankRequest) -> usize {
        request.kind as usize
    }

    #[inline]
    fn access(request: &SmallBankRequest) -> Access {
        match request.kind {
            SmallBankProfile::Balance => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    #[inline]
    fn first_record(&self, request: &SmallBankRequest) -> (TableId, PrimaryKey) {
        // Both tables of a customer share their shard, so either record will do.
        (self.tables[CHECKING], request.customer.into())
    }

    async fn attempt<T: Txn>(
        &self,
        txn: &mut T,
        request: &SmallBankRequest,
    ) -> Result<i64, TxnError> {
        match request.kind {
            SmallBankProfile::Amalgamate => self.amalgamate(txn, request).await,
            SmallBankProfile::Balance => self.balance(txn, request).await,
            SmallBankProfile::DepositChecking => self.deposit_checking(txn, request).await,
            SmallBankProfile::SendPayment => self.send_payment(txn, request).await,
            SmallBankProfile::TransactSavings => self.transact_savings(txn, request).await,
            SmallBankProfile::WriteCheck => self.write_check(txn, request).await,
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        let mut checks = Vec::new();
        let mut found = 0_i128;
        for (table, name) in self.tables.into_iter().zip(TABLES) {
            let mut rows = RowCheck::default();
            deployment.scan(table, &mut |key, record, _writer| {
                let key = integer_key(key).unwrap_or(u64::MAX);
                let account = decode(record).filter(|(customer, _)| *customer == key);
                found += account.map_or(0, |(_, balance)| i128::from(balance));
                let right = key < self.accounts && account.is_some();
                rows.see(right, || complaint(key, Some(record)));
            })?;
            let property = format!("every {name} record carries its customer");
            checks.push(rows.check(property, self.accounts));
        }
        checks.push(effects.explain("the sum of all balances", self.initial_sum(), found));
        Ok(checks)
    }

    fn settings(&self) -> serde_json::Value {
        json!({
            "accounts": self.accounts,
            "hot_accounts": self.hot_accounts,
            "hot_ratio": self.hot_ratio,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    #[test]
    fn the_mix_adds_up_and_matches_the_names() {
        assert_eq!(MIX.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
        for (at, (kind, percent)) in MIX.into_iter().enumerate() {
            assert_eq!(format!("{kind:?}"), SmallBank::TRANSACTIONS[at]);
            assert_eq!(kind as usize, at);
            let drawn = KIND_OF_PERCENT.iter().filter(|k| **k == kind).count();
            assert_eq!(drawn, percent as usize, "{kind:?}");
        }
    }

    #[test]
    fn the_hot_set_takes_its_share() {
        let bank = SmallBank::new(1000, 40, 0.9, 1);
        let mut rng = SmallRng::seed_from_u64(5);
        let hot = (0..20_000).filter(|_| bank.draw_ranks(&mut rng).0 < 40).count();
        assert!((hot as f64 / 20_000.0 - 0.9).abs() < 0.01, "{hot}");
    }

    proptest! {
        #[test]
        fn customers_exist_and_differ_and_are_alike(
            accounts in 2..50_u64, hot in 0..50_u64, seed: u64,
        ) {
            prop_assume!(hot != 1 && hot <= accounts);
            let bank = SmallBank::new(accounts, hot, 0.5, 0);
            let mut rng = SmallRng::seed_from_u64(seed);
            for _ in 0..100 {
                let (first, second) = bank.draw_ranks(&mut rng);
                prop_assert!(first < accounts && second < accounts && first != second);
                if accounts - hot >= 2 {
                    prop_assert_eq!(first < hot, second < hot);
                }
                let SmallBankRequest { customer, other, .. } = bank.draw(&mut rng);
                prop_assert!(customer < accounts && other < accounts && customer != other);
            }
        }
    }
}
