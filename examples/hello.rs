//! The smallest whole program: start a cluster in this process, write a row, read it back.

#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use lotus::{Cluster, Isolation, TableSpec, Transaction, TxnError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let greetings =
        cluster.create_table(TableSpec::new("greetings").record_bytes(32).capacity(1_000))?;

    // A body that returns `Ok` commits; a body that returns an error changes nothing.
    let written = cluster
        .run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.insert(greetings, 42, b"hello, disaggregated world")?;
            Ok::<(), TxnError>(())
        })
        .wait()?;

    let read = cluster
        .run_read_only(async move |txn: &mut Transaction| {
            let item = txn.add_ro(greetings, 42)?;
            txn.execute().await?;
            let text = txn.value(item).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            Ok::<_, TxnError>(text)
        })
        .wait()?;

    let text = read.value.as_deref().unwrap_or("nothing there");
    let commit_ts = written.receipt.commit_ts.map_or(0, |timestamp| timestamp.raw());
    println!("{text} (committed at {commit_ts})");
    cluster.stop()?;
    Ok(())
}
