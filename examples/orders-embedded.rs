//! The order service within one process: the transactions of `shop.rs` on an embedded cluster. On a
//! cluster of processes the same functions are stored transactions (`orders-node`).

#![expect(clippy::print_stdout, reason = "an example shows what it did")]

mod orders;
mod shop;

use lotus::{Abort, Cluster, Isolation, Transaction};

use orders::{Order, Refused, Restock};
use shop::{Shop, TABLES};

const BOOKS: u64 = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let mut tables = Vec::new();
    for spec in TABLES {
        tables.push(cluster.create_table(spec)?);
    }
    let shop = Shop::new([tables[0], tables[1], tables[2]]);

    let restocked = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        shop.restock(txn, Restock { item: BOOKS, pieces: 10 }).await
    });
    println!("{} pieces are in stock", restocked.wait()?.value.stocked);

    // Four orders at a time; an order is retried while it conflicts with another.
    let placed: Vec<_> = (1..=4)
        .map(|number| {
            let order = Order { number, item: BOOKS, pieces: 3 };
            let placed = cluster.run(Isolation::Serializable, {
                async move |txn: &mut Transaction| shop.order(txn, order.clone()).await
            });
            (number, placed)
        })
        .collect();
    for (number, placed) in placed {
        match placed.wait() {
            Ok(placed) => println!("order {number}: {} pieces stay", placed.value),
            Err(Abort::Application(Refused::SoldOut { left })) => {
                println!("order {number}: refused, {left} pieces are left");
            }
            Err(Abort::Application(Refused::Taken)) => println!("order {number}: taken"),
            Err(Abort::Engine(error)) => return Err(error.into()),
        }
    }

    let last = cluster.run_read_only(async move |txn: &mut Transaction| {
        let item = shop.find_item(txn, BOOKS).await?.unwrap_or_default();
        let orders = shop.last_orders(txn, BOOKS).await?;
        for order in &orders {
            assert_eq!(shop.find_order(txn, order.number).await?.as_ref(), Some(order));
        }
        Ok::<_, Abort>((item, orders))
    });
    let (item, orders) = last.wait()?.value;
    println!("{} of {} pieces are ordered; the last orders:", item.ordered, item.stocked);
    let mut pieces = 0;
    for order in orders {
        println!("  {} of {} pieces", order.number, order.pieces);
        pieces += order.pieces;
    }
    assert_eq!(pieces, item.ordered, "orders and items change together");
    cluster.stop()?;
    Ok(())
}
