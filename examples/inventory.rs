//! Products in warehouses, found by name, and orders, found by customer: rows that lead to rows.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use lotus::path::{self, Entry, Group};
use lotus::{Abort, Cluster, Isolation, PrimaryKey, TableId, TableSpec, Transaction, TxnError};

const PRODUCTS: [&str; 3] = ["anvil", "bellows", "crucible"];
const WAREHOUSES: u32 = 4;
const IN_EACH: u64 = 25;
const CUSTOMERS: u64 = 5;
const ORDERS: u64 = 120;
const AT_ONCE: usize = 8;

/// Refusal of an order: the warehouses together have too few pieces.
struct SoldOut;

#[derive(Clone, Copy)]
struct Tables {
    /// Number of pieces, by product and warehouse.
    stock: TableId,
    /// Product and number of pieces, by order number.
    orders: TableId,
    /// Unique path from a product's name to its number.
    product_by_name: TableId,
    /// Grouped path from a customer to the numbers of the customer's orders.
    orders_by_customer: TableId,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
    let table = |name, bytes| {
        cluster.create_table(TableSpec::new(name).record_bytes(bytes).key_bytes(31).capacity(1_000))
    };
    let tables = Tables {
        stock: table("stock", 8)?,
        orders: table("orders", 16)?,
        product_by_name: table("product by name", 8)?,
        orders_by_customer: table("orders by customer", 1_000)?,
    };
    let serializable = Isolation::Serializable;
    let open = async move |txn: &mut Transaction| open(txn, tables).await;
    cluster.run(serializable, open).wait()?;

    // Several at once; an order that conflicts with another at the same shelf is run again.
    let place = |order: u64| {
        let name = PRODUCTS[order as usize % PRODUCTS.len()];
        let (customer, pieces) = (order % CUSTOMERS, 1 + order % 7);
        cluster.run(serializable, async move |txn: &mut Transaction| {
            tables.place(txn, order, customer, name, pieces).await
        })
    };
    let mut accepted = 0;
    for first in (0..ORDERS).step_by(AT_ONCE) {
        let placed: Vec<_> = (first..ORDERS).take(AT_ONCE).map(place).collect();
        for order in placed {
            match order.wait() {
                Ok(_) => accepted += 1,
                Err(Abort::Application(SoldOut)) => {}
                Err(Abort::Engine(error)) => return Err(error.into()),
            }
        }
    }
    println!("{accepted} of {ORDERS} orders accepted, {} sold out", ORDERS - accepted);
    assert!(accepted > 0 && accepted < ORDERS, "there is less than they want");

    for customer in 0..CUSTOMERS {
        let cancel = async move |txn: &mut Transaction| tables.cancel_last(txn, customer).await;
        if let Some(order) = cluster.run(serializable, cancel).wait()?.value {
            println!("customer {customer} cancelled order {order}");
        }
    }
    // A reported commit is certain; a little later a scan finds it as well.
    cluster.settle()?;
    check(&cluster, tables)?;
    cluster.stop()?;
    Ok(())
}

/// Fills the shelves.
async fn open(txn: &mut Transaction, tables: Tables) -> Result<(), TxnError> {
    for (product, name) in (0..).zip(PRODUCTS) {
        txn.insert(tables.product_by_name, name_key(name), PrimaryKey::from(product).as_bytes())?;
        for warehouse in 0..WAREHOUSES {
            txn.insert(tables.stock, (product as u32, warehouse), &IN_EACH.to_le_bytes())?;
        }
    }
    Ok(())
}

impl Tables {
    /// Accepts an order if the warehouses together have enough pieces.
    async fn place(
        self,
        txn: &mut Transaction,
        order: u64,
        customer: u64,
        name: &str,
        pieces: u64,
    ) -> Result<(), Abort<SoldOut>> {
        // First the rows with known keys, then the rows found through them.
        let by_name = txn.add_ro(self.product_by_name, name_key(name))?;
        let by_customer = txn.add_rw(self.orders_by_customer, customer)?;
        txn.execute().await?;
        let product = path::target(txn.value(by_name))?.map_or(0, |key| number(key.as_bytes()));
        let mut shelves = Vec::new();
        for warehouse in 0..WAREHOUSES {
            shelves.push(txn.add_rw(self.stock, (product as u32, warehouse))?);
        }
        txn.execute().await?;

        let mut missing = pieces;
        for shelf in shelves {
            let there = count(txn.value(shelf));
            let taken = missing.min(there);
            if taken > 0 {
                txn.put(shelf, &(there - taken).to_le_bytes())?;
            }
            missing -= taken;
        }
        if missing > 0 {
            // An error aborts the transaction, so the shelves keep their pieces.
            return Err(Abort::Application(SoldOut));
        }
        txn.insert(self.orders, order, &[product.to_le_bytes(), pieces.to_le_bytes()].concat())?;
        txn.link(by_customer, &Entry::by_key(order))?;
        Ok(())
    }

    /// Cancels a customer's last order. Returns the order's number, if there was an order.
    async fn cancel_last(
        self,
        txn: &mut Transaction,
        customer: u64,
    ) -> Result<Option<u64>, TxnError> {
        let by_customer = txn.add_rw(self.orders_by_customer, customer)?;
        txn.execute().await?;
        let Some(Entry { key, .. }) = Group::read(txn.value(by_customer))?.last() else {
            return Ok(None);
        };
        let order = txn.add_rw(self.orders, key)?;
        txn.execute().await?;
        let (product, pieces) = ordered(txn.value(order).unwrap_or_default());
        let shelf = txn.add_rw(self.stock, (product as u32, 0))?;
        txn.execute().await?;
        let there = count(txn.value(shelf));
        txn.put(shelf, &(there + pieces).to_le_bytes())?;
        txn.delete(order)?;
        txn.unlink(by_customer, &Entry::by_key(key))?;
        Ok(Some(number(key.as_bytes())))
    }
}

/// Checks that every piece is on a shelf or in an order, and every order belongs to its customer.
fn check(cluster: &Cluster, tables: Tables) -> Result<(), Box<dyn std::error::Error>> {
    let (mut shelved, mut sold, mut orders, mut linked) = (0, 0, Vec::new(), Vec::new());
    cluster.audit_scan(tables.stock, &mut |_, pieces, _| shelved += count(Some(pieces)))?;
    cluster.audit_scan(tables.orders, &mut |order, value, _| {
        sold += ordered(value).1;
        orders.push(*order);
    })?;
    cluster.audit_scan(tables.orders_by_customer, &mut |customer, group, _| {
        let group = Group::read(Some(group)).expect("only groups are in this table");
        for Entry { key, .. } in group.iter() {
            assert_eq!(number(key.as_bytes()) % CUSTOMERS, number(customer.as_bytes()));
            linked.push(key);
        }
    })?;
    println!("{shelved} pieces on shelves and {sold} in {} orders", orders.len());
    assert_eq!(shelved + sold, PRODUCTS.len() as u64 * u64::from(WAREHOUSES) * IN_EACH);
    orders.sort_unstable();
    linked.sort_unstable();
    assert_eq!(orders, linked, "every order is in one group, and nothing else is");
    assert!(cluster.audit()?.iter().all(|finding| finding.passed), "the audit failed");
    Ok(())
}

fn name_key(name: &str) -> PrimaryKey {
    PrimaryKey::try_from(name.as_bytes()).expect("names of products are short")
}

/// Decodes the number in a key.
fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("keys are numbers of eight bytes"))
}

/// Decodes the number of pieces on a shelf; zero without a shelf.
fn count(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("counts have eight bytes")))
}

/// Decodes the product and number of pieces of an order.
fn ordered(value: &[u8]) -> (u64, u64) {
    let (product, pieces) = value.split_at(8);
    (count(Some(product)), count(Some(pieces)))
}
