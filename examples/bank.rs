//! Eight threads move money between accounts while another thread adds up all balances, always to
//! the same total.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use lotus::{Cluster, Isolation, Item, TableId, TableSpec, Transaction, TxnError};

const ACCOUNTS: u64 = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = &Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let accounts =
        cluster.create_table(TableSpec::new("accounts").record_bytes(8).capacity(1_000))?;
    let open = |row: u64, value: &mut Vec<u8>| (value.extend(100_i64.to_le_bytes()), row.into()).1;
    cluster.load(accounts, ACCOUNTS, &open, &Default::default())?;
    std::thread::scope(|scope| {
        let start = |teller| scope.spawn(move || work(cluster, accounts, teller));
        let tellers: Vec<_> = (0..8).map(start).collect();
        let mut totals = 0;
        while !tellers.iter().all(|teller| teller.is_finished()) {
            assert_eq!(total(cluster, accounts)?, 100 * ACCOUNTS as i64, "money came or went");
            totals += 1;
        }
        println!("{totals} totals during 8000 transfers, all of them {}", 100 * ACCOUNTS);
        tellers.into_iter().try_for_each(|teller| teller.join().expect("no teller panics"))
    })?;
    cluster.settle()?;
    assert!(cluster.audit()?.iter().all(|finding| finding.passed), "the audit failed");
    Ok(())
}

/// Runs one teller's day: a thousand transfers between accounts that may be overdrawn.
fn work(cluster: &Cluster, accounts: TableId, teller: u64) -> Result<(), TxnError> {
    for number in 0..1_000 {
        let (from, to) = ((teller * 7919 + number * 31) % ACCOUNTS, (number * 17 + 1) % ACCOUNTS);
        let transfer = async move |txn: &mut Transaction| {
            let (payer, payee) = (txn.add_rw(accounts, from)?, txn.add_rw(accounts, to)?);
            txn.execute().await?;
            txn.put(payer, &(balance(txn, payer) - 5).to_le_bytes())?;
            txn.put(payee, &(balance(txn, payee) + 5).to_le_bytes())?;
            Ok::<(), TxnError>(())
        };
        cluster.run_at(accounts, from, Isolation::Serializable, transfer)?.wait()?;
    }
    Ok(())
}

/// Returns the sum of all accounts at a single moment.
fn total(cluster: &Cluster, accounts: TableId) -> Result<i64, TxnError> {
    let add_up = async move |txn: &mut Transaction| {
        let all: Result<Vec<_>, _> = (0..ACCOUNTS).map(|row| txn.add_ro(accounts, row)).collect();
        txn.execute().await?;
        Ok(all?.into_iter().map(|account| balance(txn, account)).sum())
    };
    cluster.run_read_only(add_up).wait().map(|read| read.value)
}

fn balance(txn: &Transaction, account: Item) -> i64 {
    let bytes = txn.value(account).expect("no account is ever closed");
    i64::from_le_bytes(bytes.try_into().expect("a balance is eight bytes"))
}
