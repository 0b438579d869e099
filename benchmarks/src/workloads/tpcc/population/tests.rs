//! Tests of the initial contents against the cardinalities and ranges of clause 4.3.3.1.

use std::collections::{BTreeMap, BTreeSet};

use super::super::paths::Paths;
use super::super::scale::LAST_NAMES;
use super::*;

/// All rows of a table as records, with their keys checked.
fn rows<R: Record>(population: &Population) -> impl Iterator<Item = R> + '_ {
    (0..population.rows(R::TABLE)).map(|row| {
        let mut value = Vec::new();
        let key = population.row(R::TABLE, row, &mut value);
        let record = R::read_from_bytes(&value).expect("it has the record's length");
        assert_eq!(record.key(&population.scale), key);
        record
    })
}

#[test]
fn a_full_warehouse_has_the_rows_of_the_specification() {
    let population = Population::new(Scale::default(), 1);
    for (table, expected) in [
        (Table::Warehouse, 1),
        (Table::District, 10),
        (Table::Customer, 30_000),
        (Table::History, 30_000),
        (Table::NewOrder, 9_000),
        (Table::Order, 30_000),
        (Table::Item, 100_000),
        (Table::Stock, 100_000),
        (Table::CustomersByName, 10_000),
        (Table::LatestOrder, 30_000),
        (Table::NextDelivery, 10),
        (Table::NamedCustomer, 30_000),
        (Table::CustomersOrder, 30_000),
    ] {
        assert_eq!(population.rows(table), expected, "{table:?}");
    }
    let lines = population.rows(Table::OrderLine);
    assert!((290_000..310_000).contains(&lines), "{lines}");
    let most = population.most_of_one_name();
    assert!((10..150).contains(&most), "{most}");
}

#[test]
fn keys_are_unique_and_rows_fit_their_tables() {
    let scale = Scale { warehouses: 2, customers: 40, items: 30 };
    let tpcc = super::super::Tpcc::new(scale, super::super::Critical::District, 3);
    let both = Table::of(Paths::Rows).iter().chain(Table::of(Paths::Ordered));
    for table in both.copied() {
        let mut keys = BTreeSet::new();
        for row in 0..tpcc.population.rows(table) {
            let (mut value, mut again) = (Vec::new(), Vec::new());
            let key = tpcc.population.row(table, row, &mut value);
            assert!(keys.insert(key), "{table:?} {key:?} comes twice");
            assert_eq!(tpcc.population.row(table, row, &mut again), key);
            assert_eq!(value, again, "a row is a function of its number");
            assert!(value.len() <= tpcc.record_bytes(table), "{table:?}");
        }
    }
}

#[test]
fn names_are_made_of_syllables() {
    for (number, name) in [(0, "BARBARBAR"), (371, "PRICALLYOUGHT"), (999, "EINGEINGEING")] {
        let padded = last_name(number);
        assert_eq!(&padded[..name.len()], name.as_bytes());
        assert!(padded[name.len()..].iter().all(|byte| *byte == 0));
    }
    let all: BTreeSet<_> = (0..LAST_NAMES).map(last_name).collect();
    assert_eq!(all.len(), LAST_NAMES as usize);
}

#[test]
fn customers_are_as_specified() {
    let population = Population::new(Scale::default(), 5);
    let mut bad = 0;
    for (id, customer) in (0..).zip(rows::<Customer>(&population).take(6_000)) {
        assert_eq!(customer.id.get(), id);
        if id % 3_000 < 1_000 {
            assert_eq!(customer.last, last_name(id % 3_000));
        }
        assert!(customer.discount.get() <= 5_000);
        assert!(customer.address.zip.ends_with(b"11111"));
        bad += u32::from(&customer.credit == b"BC");
    }
    assert!((500..700).contains(&bad), "{bad} of 6000 have bad credit");
    let original = |item: &Item| item.data.windows(8).any(|eight| eight == b"ORIGINAL");
    let originals = rows::<Item>(&population).filter(original).count();
    assert!((9_500..10_500).contains(&originals), "{originals} of 100000 are original");
    assert!(rows::<Item>(&population).all(|item| (100..=10_000).contains(&item.price.get())));
    let in_stock = rows::<Stock>(&population).all(|row| (10..=100).contains(&row.quantity.get()));
    assert!(in_stock);
}

#[test]
fn orders_are_those_of_all_customers_and_three_in_ten_are_new() {
    let scale = Scale { warehouses: 1, customers: 50, items: 20 };
    let population = Population::new(scale, 9);
    let mut latest = BTreeMap::new();
    let mut lines = BTreeMap::new();
    for order in rows::<Order>(&population) {
        let (district, id) = (order.district.get(), order.id.get());
        assert_eq!(scale.district_of(order.customer.get()), district);
        assert!((5..=15).contains(&order.lines));
        assert_eq!(order.carrier == 0, id > 35);
        assert_eq!(latest.insert(order.customer.get(), id), None, "each customer has one");
        lines.insert((district, id), u32::from(order.lines));
    }
    assert_eq!(latest.len(), 500);
    let paths = rows::<LatestOrder>(&population);
    assert!(paths.map(|row| (row.customer.get(), row.order.get())).eq(latest));
    let new: Vec<u32> = rows::<NewOrder>(&population).map(|row| row.order.get()).collect();
    assert_eq!(new, (36..=50).collect::<Vec<u32>>().repeat(10));
    for line in rows::<OrderLine>(&population) {
        let order = (line.district.get(), line.order.get());
        let left = lines.get_mut(&order).expect("the order exists");
        *left -= 1;
        let delivered = order.1 <= 35;
        assert_eq!(line.delivered != Moment::ZERO, delivered);
        assert_eq!(line.amount.get() == 0, delivered);
        assert!(line.item.get() < 20 && line.quantity == 5);
    }
    assert!(lines.values().all(|left| *left == 0));
}
