//! Ten thousand customers, each a straight-line function in its own `may` coroutine instead of a
//! thread: `cargo run --release --features may --example may`.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use lotus::may::wait;
use lotus::{Cluster, Isolation, Item, TableId, TableSpec, Transaction, TxnError};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const CUSTOMERS: u64 = 10_000;
const PAYMENTS: u64 = 5;
const OPENING_BALANCE: u64 = 100;

#[expect(clippy::disallowed_methods, reason = "an application may ask the machine for the time")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = &Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let spec = TableSpec::new("accounts").record_bytes(8).capacity(CUSTOMERS);
    let accounts = cluster.create_table(spec)?;
    let open = |customer: u64, balance: &mut Vec<u8>| {
        balance.extend(OPENING_BALANCE.to_le_bytes());
        customer.into()
    };
    cluster.load(accounts, CUSTOMERS, &open, &Default::default())?;

    let started = std::time::Instant::now();
    let spent = may::coroutine::scope(|scope| {
        let start = |me| may::go!(scope, move || shop(cluster, accounts, me));
        let customers: Vec<_> = (0..CUSTOMERS).map(start).collect();
        customers.into_iter().map(|customer| customer.join()).sum::<Result<u64, TxnError>>()
    })?;
    let per_second = (CUSTOMERS * PAYMENTS) as f64 / started.elapsed().as_secs_f64();
    println!("{CUSTOMERS} coroutines × {PAYMENTS} payments, {per_second:.0} a second");

    cluster.settle()?;
    let mut total = 0;
    cluster.audit_scan(accounts, &mut |_, balance, _| total += decode(balance))?;
    println!("{spent} changed hands, {total} are in the accounts");
    assert_eq!(total, CUSTOMERS * OPENING_BALANCE, "money came or went");
    for finding in cluster.audit()? {
        assert!(finding.passed, "{finding:?}");
        println!("{}: {}", finding.name, finding.detail);
    }
    Ok(())
}

/// Runs one customer's day: spends at most half of the remaining money at every shop. Returns the
/// total spent.
fn shop(cluster: &Cluster, accounts: TableId, me: u64) -> Result<u64, TxnError> {
    let mut rng = SmallRng::seed_from_u64(me);
    let (mut spent, mut left) = (0, OPENING_BALANCE);
    for _ in 0..PAYMENTS {
        let price = rng.random_range(0..=left / 2);
        let to = (me + rng.random_range(1..CUSTOMERS)) % CUSTOMERS;
        let payment = async move |txn: &mut Transaction| pay(txn, accounts, me, to, price).await;
        left = wait(cluster.run_at(accounts, me, Isolation::Serializable, payment)?)?.value;
        spent += price;
    }
    Ok(spent)
}

/// Moves `price` between two accounts and returns the payer's balance. Only the payer spends, and
/// never more than the balance, so no account is overdrawn.
async fn pay(
    txn: &mut Transaction,
    accounts: TableId,
    from: u64,
    to: u64,
    price: u64,
) -> Result<u64, TxnError> {
    let (payer, payee) = (txn.add_rw(accounts, from)?, txn.add_rw(accounts, to)?);
    txn.execute().await?;
    let left = balance(txn, payer) - price;
    txn.put(payer, &left.to_le_bytes())?;
    txn.put(payee, &(balance(txn, payee) + price).to_le_bytes())?;
    Ok(left)
}

fn balance(txn: &Transaction, account: Item) -> u64 {
    decode(txn.value(account).expect("no account is ever closed"))
}

fn decode(balance: &[u8]) -> u64 {
    u64::from_le_bytes(balance.try_into().expect("a balance is eight bytes"))
}
