//! The smallest whole program: start a cluster in this process, write a row, read it back.

#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use lotus::{Cluster, Isolation, TableSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let greetings =
        cluster.create_table(TableSpec::new("greetings").record_bytes(32).capacity(1_000))?;

    let receipt = cluster
        .run(Isolation::Serializable, move |mut txn| async move {
            txn.insert(greetings, 42, b"hello, disaggregated world")?;
            txn.commit().await
        })
        .wait()?;

    let text = cluster
        .run_read_only(move |mut txn| async move {
            let item = txn.add_ro(greetings, 42)?;
            txn.execute().await?;
            let text = txn.value(item).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            txn.commit().await?;
            Ok(text)
        })
        .wait()?;

    let commit_ts = receipt.commit_ts.map_or(0, |timestamp| timestamp.raw());
    println!("{} (committed at {commit_ts})", text.as_deref().unwrap_or("nothing there"));
    cluster.stop()?;
    Ok(())
}
