//! A compute node dies while eight threads move money between accounts. The other nodes settle its
//! transactions, inherit its locks, and go on; no money is lost or gained.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use std::time::Duration;

use lotus::{Cluster, Isolation, Item, TableId, TableSpec, Transaction, TxnError};

const ACCOUNTS: u64 = 1_000;
/// Time for which a node may be silent. Long, as its threads share cores with the threads of all
/// other nodes here.
const LEASE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = &Cluster::embedded().compute_nodes(3).replicas(3).lease(Some(LEASE)).start()?;
    let accounts =
        cluster.create_table(TableSpec::new("accounts").record_bytes(8).capacity(ACCOUNTS))?;
    let open = |row: u64, value: &mut Vec<u8>| (value.extend(100_i64.to_le_bytes()), row.into()).1;
    cluster.load(accounts, ACCOUNTS, &open, &Default::default())?;
    std::thread::scope(|scope| {
        let start = |teller| scope.spawn(move || work(cluster, accounts, teller));
        let tellers: Vec<_> = (0..8).map(start).collect();
        transfer(cluster, accounts, 0, 1)?;
        println!("compute node 1 dies");
        cluster.kill(1);
        let ended: Vec<_> = tellers.into_iter().map(|teller| teller.join()).collect();
        for unclear in ended {
            println!("a teller is done; {} transfers went unanswered", unclear.expect("no panic")?);
        }
        Ok::<_, TxnError>(())
    })?;
    cluster.settle()?;
    println!("there were {}, and there are {}", 100 * ACCOUNTS, total(cluster, accounts)?);
    for finding in cluster.audit()? {
        println!("{:>7}  {}", if finding.passed { "yes" } else { "NO" }, finding.name);
    }
    Ok(())
}

/// Runs one teller's day: a thousand transfers. Returns the number of transfers with an unknown
/// outcome.
fn work(cluster: &Cluster, accounts: TableId, teller: u64) -> Result<u64, TxnError> {
    let mut unclear = 0;
    for number in 0..1_000 {
        let (from, to) = ((teller * 7919 + number * 31) % ACCOUNTS, (number * 17 + 1) % ACCOUNTS);
        match transfer(cluster, accounts, from, to) {
            // The node died before or after the commit. Never repeat the transfer blindly.
            Err(TxnError::Unknown(_) | TxnError::Fenced) => unclear += 1,
            outcome => outcome?,
        }
    }
    Ok(unclear)
}

fn transfer(cluster: &Cluster, accounts: TableId, from: u64, to: u64) -> Result<(), TxnError> {
    let body = async move |txn: &mut Transaction| {
        let (payer, payee) = (txn.add_rw(accounts, from)?, txn.add_rw(accounts, to)?);
        txn.execute().await?;
        txn.put(payer, &(balance(txn, payer) - 5).to_le_bytes())?;
        txn.put(payee, &(balance(txn, payee) + 5).to_le_bytes())?;
        Ok::<(), TxnError>(())
    };
    let wanted = || cluster.run_at(accounts, from, Isolation::Serializable, body)?.wait();
    loop {
        match wanted() {
            // The lock is not served until the dead node's shards have heirs.
            Err(error) if error.is_retryable() => {}
            outcome => return outcome.map(drop),
        }
    }
}

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
