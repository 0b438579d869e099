//! Transactions of a bank: the accounts that a transaction uses, and how their balances change.

use lotus_benchmarks::smallbank::{SmallBank, SmallBankProfile, SmallBankRequest};
use lotus_benchmarks::workload::{Workload as _, mix};
use lotus_locks::Mode;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::traces::WantedLock;

/// Share of transactions of [`BankWorkload::Transfer`] that only read, in per cent.
const BALANCE_PERCENT: u32 = 90;
/// Largest transfer.
const MAX_TRANSFER: i64 = 100;
/// Initial balance of each account, without the part that depends on the account's number.
const LEAST_INITIAL: i64 = 10_000;

/// Transactions of a bank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BankWorkload {
    /// The six transactions of SmallBank, of which 15 % only read (ShiftLock §4.5).
    SmallBank,
    /// Balances, and 10 % transfers between two accounts (FissLock §7.9).
    Transfer,
}

impl BankWorkload {
    /// Names of the types of transactions.
    pub const fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::SmallBank => SmallBank::TRANSACTIONS,
            Self::Transfer => &["Balance", "Transfer"],
        }
    }
}

/// Change of the balances of a transaction's accounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// The transaction changes nothing.
    Read,
    /// All accounts but the last are emptied into the last.
    Amalgamate,
    /// The first account pays the second, if it has enough.
    Pay(i64),
    /// An amount of either sign is added, if the balance does not become negative.
    Add(i64),
    /// A check is cashed from the second account, with a penalty if both do not cover it.
    Check(i64),
}

/// Fee of a check that is not covered.
const PENALTY: i64 = 1;

/// One transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Index of the transaction's type.
    pub(crate) kind: usize,
    /// The transaction's accounts; the number of an account is the number of its lock.
    pub(crate) accounts: Vec<WantedLock>,
    rule: Rule,
}

/// A change of a balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) account: u64,
    /// Difference from the balance before.
    pub(crate) delta: i64,
    /// The balance afterwards.
    pub(crate) after: i64,
}

impl Plan {
    /// Returns the changes, given the accounts' balances; empty if the transaction is refused.
    pub(crate) fn changes(&self, before: &[i64]) -> Vec<Change> {
        let mut after = before.to_vec();
        match (self.rule, &mut *after) {
            (Rule::Amalgamate, [savings, checking, target]) => {
                *target += *savings + *checking;
                (*savings, *checking) = (0, 0);
            }
            (Rule::Pay(amount), [payer, payee]) if *payer >= amount => {
                *payer -= amount;
                *payee += amount;
            }
            (Rule::Add(amount), [balance]) if *balance + amount >= 0 => *balance += amount,
            (Rule::Check(amount), [savings, checking]) => {
                let covered = *savings + *checking >= amount;
                *checking -= if covered { amount } else { amount + PENALTY };
            }
            _ => {}
        }
        let changes = self.accounts.iter().zip(before.iter().zip(after));
        let changes = changes.map(|(account, (before, after))| Change {
            account: account.lock,
            delta: after - before,
            after,
        });
        changes.filter(|change| change.delta != 0).collect()
    }
}

/// A bank: customers and their business.
#[derive(Clone, Debug)]
pub(crate) struct Bank {
    business: BankWorkload,
    customers: u64,
    seed: u64,
    smallbank: SmallBank,
}

impl Bank {
    /// Creates a bank of `customers` customers, at least two, all equally popular.
    pub(crate) fn new(business: BankWorkload, customers: u64, seed: u64) -> Self {
        let smallbank = SmallBank::new(customers, 0, 0.0, seed);
        Self { business, customers, seed, smallbank }
    }

    /// Number of accounts, and of locks.
    pub(crate) const fn accounts(&self) -> u64 {
        accounts(self.business, self.customers)
    }

    /// Returns the initial balance of an account.
    pub(crate) fn initial(&self, account: u64) -> i64 {
        LEAST_INITIAL + (mix(self.seed ^ mix(account)) % 40_001) as i64
    }

    /// Draws a transaction.
    pub(crate) fn draw(&self, rng: &mut SmallRng) -> Plan {
        match self.business {
            BankWorkload::SmallBank => self.plan(&self.smallbank.draw(rng)),
            BankWorkload::Transfer => {
                let first = rng.random_range(0..self.customers);
                if rng.random_range(0..100) < BALANCE_PERCENT {
                    return plan(0, &[first], &[], Rule::Read);
                }
                // Uniform over the other accounts: the last account replaces the first.
                let drawn = rng.random_range(0..self.customers - 1);
                let second = if drawn == first { self.customers - 1 } else { drawn };
                let amount = rng.random_range(1..=MAX_TRANSFER);
                plan(1, &[], &[first, second], Rule::Pay(amount))
            }
        }
    }

    fn plan(&self, request: &SmallBankRequest) -> Plan {
        let &SmallBankRequest { kind, customer, other, amount } = request;
        let (savings, checking) = (customer, self.customers + customer);
        let target = self.customers + other;
        let (reads, writes, rule) = match kind {
            SmallBankProfile::Amalgamate => {
                (vec![], vec![savings, checking, target], Rule::Amalgamate)
            }
            SmallBankProfile::Balance => (vec![savings, checking], vec![], Rule::Read),
            SmallBankProfile::DepositChecking => (vec![], vec![checking], Rule::Add(amount)),
            SmallBankProfile::SendPayment => (vec![], vec![checking, target], Rule::Pay(amount)),
            SmallBankProfile::TransactSavings => (vec![], vec![savings], Rule::Add(amount)),
            SmallBankProfile::WriteCheck => (vec![savings], vec![checking], Rule::Check(amount)),
        };
        plan(kind as usize, &reads, &writes, rule)
    }
}

/// Number of accounts of `customers` customers.
pub(crate) const fn accounts(business: BankWorkload, customers: u64) -> u64 {
    match business {
        // Savings, then checking accounts.
        BankWorkload::SmallBank => 2 * customers,
        BankWorkload::Transfer => customers,
    }
}

fn plan(kind: usize, reads: &[u64], writes: &[u64], rule: Rule) -> Plan {
    let want = |mode| move |account: &u64| WantedLock { lock: *account, mode };
    let reads = reads.iter().map(want(Mode::Shared));
    let accounts = reads.chain(writes.iter().map(want(Mode::Exclusive))).collect();
    Plan { kind, accounts, rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn changes(rule: Rule, before: &[i64]) -> Vec<(u64, i64, i64)> {
        let accounts: Vec<u64> = (10..).take(before.len()).collect();
        let changes = plan(0, &[], &accounts, rule).changes(before);
        changes.iter().map(|change| (change.account, change.delta, change.after)).collect()
    }

    #[test]
    fn balances_change_by_the_rules() {
        assert_eq!(changes(Rule::Read, &[5, 6]), []);
        let all = [(10, -5, 0), (11, -6, 0), (12, 11, 12)];
        assert_eq!(changes(Rule::Amalgamate, &[5, 6, 1]), all);
        assert_eq!(changes(Rule::Amalgamate, &[0, 0, 1]), []);
        assert_eq!(changes(Rule::Pay(5), &[5, 6]), [(10, -5, 0), (11, 5, 11)]);
        assert_eq!(changes(Rule::Pay(6), &[5, 6]), []);
        assert_eq!(changes(Rule::Add(-5), &[5]), [(10, -5, 0)]);
        assert_eq!(changes(Rule::Add(-6), &[5]), []);
        assert_eq!(changes(Rule::Check(8), &[3, 5]), [(11, -8, -3)]);
        assert_eq!(changes(Rule::Check(9), &[3, 5]), [(11, -10, -5)]);
    }

    #[test]
    fn shares_of_writers_are_as_published() {
        for (business, percent) in [(BankWorkload::SmallBank, 85.0), (BankWorkload::Transfer, 10.0)]
        {
            let bank = Bank::new(business, 50, 1);
            let mut rng = SmallRng::seed_from_u64(1);
            let plans: Vec<_> = (0..20_000).map(|_| bank.draw(&mut rng)).collect();
            let writes = |plan: &&Plan| plan.accounts.iter().any(|w| w.mode == Mode::Exclusive);
            let share = 100.0 * plans.iter().filter(writes).count() as f64 / 20_000.0;
            assert!((share - percent).abs() < 1.0, "{business:?}: {share} %");
            for plan in &plans {
                assert!(plan.kind < business.kinds().len());
                let mut locks: Vec<_> = plan.accounts.iter().map(|want| want.lock).collect();
                locks.sort_unstable();
                let count = locks.len();
                locks.dedup();
                assert_eq!(count, locks.len(), "{plan:?}");
                assert!(locks.iter().all(|lock| *lock < bank.accounts()));
            }
        }
    }

    #[test]
    fn only_deposits_and_withdrawals_change_the_sum() {
        let bank = Bank::new(BankWorkload::SmallBank, 20, 1);
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..2000 {
            let plan = bank.draw(&mut rng);
            let before = vec![1000; plan.accounts.len()];
            let sum: i64 = plan.changes(&before).iter().map(|change| change.delta).sum();
            let moves =
                matches!(plan.rule, Rule::Read | Rule::Amalgamate | Rule::Pay(_) | Rule::Add(0));
            assert_eq!(sum == 0, moves, "{plan:?}");
        }
    }
}
