//! Tests of each transaction and of each condition when broken, on the reference engine; mixed load
//! on it and on an embedded cluster.

use std::sync::Arc;

use super::request::{
    CustomerSelector, NewOrder, Ordered, Payment, RequestParameters, TpccRequest,
};
use super::rows::{self, Record, postings};
use super::scale::{DISTRICTS, Scale, Table};
use super::{Critical, Paths, Tpcc, audit};
use crate::contract::audit::{Audit, Effects};
use crate::contract::config::{Aborted, ClusterConfig, LoadConfig, Routing};
use crate::contract::deployment::{Deployment, Host};
use crate::contract::engine::{AbortReason, Finish, Isolation, TxnEngine, TxnError, TxnKind};
use crate::contract::workload::Workload;
use crate::drive::harness::{self, Options, Outcome};
use crate::drive::progress::Progress;
use crate::engines::lotus::Embedded;
use crate::engines::reference::{Faults, Reference};
use crate::reports::report::Report;

const BOTH: [Paths; 2] = [Paths::Rows, Paths::Ordered];
const TINY: Scale = Scale { warehouses: 2, customers: 10, items: 20 };

/// A company on the reference engine.
struct Company {
    engine: Reference,
    tpcc: Arc<Tpcc>,
    effects: Effects,
}

impl Company {
    fn new(paths: Paths) -> Self {
        let mut engine = Reference::new(1, 1, Faults::default());
        let mut tpcc = Tpcc::new(TINY, Critical::Warehouse, 7).with_paths(paths);
        let specs = tpcc.tables(&ClusterConfig::default());
        let create = |spec| engine.create_table(spec).expect("the reference takes any table");
        let tables: Vec<_> = specs.into_iter().map(create).collect();
        tpcc.attach(&tables);
        for (at, table) in tables.into_iter().enumerate() {
            let row = |row, value: &mut Vec<u8>| tpcc.row(at, row, value);
            engine.load(table, tpcc.rows(at), &row).expect("the reference takes any row");
        }
        Self { engine, tpcc: Arc::new(tpcc), effects: Effects::default() }
    }

    /// Runs one transaction and, if it commits, adds its effect.
    fn run(&mut self, wish: RequestParameters) -> Result<i64, TxnError> {
        let tpcc = Arc::clone(&self.tpcc);
        let task = move |_seat, host: <Reference as Deployment>::Host| {
            let tpcc = Arc::clone(&tpcc);
            async move {
                let mut engine = host.engine().expect("there is a slot");
                let kind = TxnKind::ReadWrite(Isolation::Serializable);
                let mut txn = engine.begin(kind).await?;
                let effect = tpcc.attempt(&mut txn, &TpccRequest(wish)).await?;
                txn.commit().await.map(|_receipt| effect)
            }
        };
        let ended = self.engine.run(1, task).expect("nobody panics").remove(0);
        if let Ok(effect) = ended {
            self.effects.add_committed(effect);
        }
        ended
    }

    /// All records of a type that satisfy `wanted`.
    fn find<R: Record>(&mut self, wanted: impl Fn(&R) -> bool) -> Vec<R> {
        let mut found = Vec::new();
        let table = self.tpcc.tables[R::TABLE as usize];
        let scanned = self.engine.scan(table, &mut |_key, value, _writer| {
            let record = R::read_from_bytes(value).expect("it has the record's length");
            found.extend(wanted(&record).then_some(record));
        });
        scanned.expect("the reference can be read");
        found
    }

    fn one<R: Record>(&mut self, wanted: impl Fn(&R) -> bool) -> R {
        let found = self.find(wanted);
        assert_eq!(found.len(), 1);
        found[0]
    }

    /// The order to which the path of [`CUSTOMER`] leads.
    fn latest_order(&mut self) -> Option<u32> {
        match self.tpcc.paths {
            Paths::Rows => {
                let leads = self.one::<rows::LatestOrder>(|row| row.customer.get() == CUSTOMER);
                Some(leads.order.get())
            }
            Paths::Ordered => {
                let orders =
                    self.find::<rows::CustomersOrder>(|row| row.customer.get() == CUSTOMER);
                orders.iter().map(|row| row.order.get()).max()
            }
        }
    }

    /// Overwrites or adds a record without the engine.
    fn smuggle<R: Record>(&mut self, record: R) {
        let table = self.tpcc.tables[R::TABLE as usize];
        let key = record.key(&self.tpcc.scale);
        let bytes = record.as_bytes();
        let row = |_row, value: &mut Vec<u8>| {
            value.extend_from_slice(bytes);
            key
        };
        self.engine.load(table, 1, &row).expect("the reference takes any row");
    }

    /// Removes the first row of a table without the engine.
    fn lose(&mut self, table: Table) {
        self.engine.lose_first(self.tpcc.tables[table as usize]);
    }

    /// Names of the failing checks, up to the colon.
    fn failing(&mut self, orders_at_once: u64) -> Vec<String> {
        let checks = audit::audit(&self.tpcc, &mut self.engine, &self.effects, orders_at_once);
        let checks = checks.expect("the reference can be read");
        assert_eq!(checks.len(), 17);
        let failing = checks.iter().filter(|check| !check.passed);
        failing.map(|check| check.name.split(':').next().expect("a name").to_owned()).collect()
    }
}

fn line(item: u32, supplier: u32, quantity: u8) -> Ordered {
    Ordered { item, supplier, quantity }
}

fn order(customer: u32, lines: &[Ordered]) -> RequestParameters {
    RequestParameters::NewOrder(NewOrder::of(customer, lines))
}

/// A customer of the fourth district, which belongs to the first warehouse.
const CUSTOMER: u32 = 34;
const DISTRICT: u32 = 3;

#[test]
fn a_new_order_takes_stock_and_leads_its_district() {
    for paths in BOTH {
        let mut company = Company::new(paths);
        let stock = |company: &mut Company, warehouse: u32, item: u32| {
            company.one::<rows::Stock>(|row| {
                (row.warehouse.get(), row.item.get()) == (warehouse, item)
            })
        };
        let before = [stock(&mut company, 0, 4), stock(&mut company, 1, 9)];
        // Two lines take from one stock row, and one from another warehouse's.
        let lines = [line(4, 0, 10), line(9, 1, 3), line(4, 0, 7)];
        assert_eq!(company.run(order(CUSTOMER, &lines)), Ok(1));

        let district = company.one::<rows::District>(|row| row.id.get() == DISTRICT);
        assert_eq!(district.next_order.get(), 12);
        let placed =
            company.one::<rows::Order>(|row| (row.district.get(), row.id.get()) == (3, 11));
        assert_eq!((placed.customer.get(), placed.lines, placed.all_local), (CUSTOMER, 3, 0));
        assert_eq!(placed.carrier, 0);
        assert_eq!(company.latest_order(), Some(11));
        company.one::<rows::NewOrder>(|row| (row.district.get(), row.order.get()) == (3, 11));
        let written = company
            .find::<rows::OrderLine>(|row| (row.district.get(), row.order.get()) == (DISTRICT, 11));
        let as_asked =
            |row: &rows::OrderLine| line(row.item.get(), row.supplier.get(), row.quantity);
        assert!(written.iter().map(as_asked).eq(lines));
        let price = company.one::<rows::Item>(|row| row.id.get() == 9).price;
        assert_eq!(written[1].amount.get(), 3 * i64::from(price.get()));
        assert_eq!(written[1].district_info, before[1].districts[3]);

        let after = [stock(&mut company, 0, 4), stock(&mut company, 1, 9)];
        for (before, after, (ytd, orders, remote)) in
            [(before[0], after[0], (17, 2, 0)), (before[1], after[1], (3, 1, 1))]
        {
            assert_eq!(after.ytd.get(), ytd);
            assert_eq!((after.orders.get(), after.remote_orders.get()), (orders, remote));
            let left = u64::from(after.quantity.get());
            assert_eq!((left + ytd) % 91, u64::from(before.quantity.get()) % 91);
            assert!(left >= 10);
        }
        assert_eq!(company.failing(audit::ORDERS_AT_ONCE), [""; 0]);
    }
}

#[test]
fn an_order_for_an_unused_item_changes_nothing() {
    let mut company = Company::new(Paths::Rows);
    let ended = company.run(order(CUSTOMER, &[line(1, 0, 1), line(TINY.items, 0, 1)]));
    assert_eq!(ended, Err(TxnError::Aborted(AbortReason::Logic)));
    assert_eq!(company.find::<rows::Order>(|row| row.id.get() > TINY.customers).len(), 0);
    assert_eq!(company.find::<rows::Stock>(|row| row.ytd.get() > 0).len(), 0);
    assert_eq!(company.failing(audit::ORDERS_AT_ONCE), [""; 0]);
}

#[test]
fn a_payment_goes_to_all_who_are_owed_it() {
    for paths in BOTH {
        let mut company = Company::new(paths);
        // Paid in a district of the other warehouse, by a customer identified by name.
        let namesakes = company.find::<rows::Customer>(|row| {
            (30..40).contains(&row.id.get()) && row.last == super::population::last_name(4)
        });
        let mut list = Vec::new();
        let mut sorted = namesakes.clone();
        sorted.sort_by_key(|row| (row.first, row.id.get()));
        sorted.iter().for_each(|row| postings::push(&mut list, row.id.get()));
        let middle = postings::middle(&list).expect("somebody has the name");
        let whom = CustomerSelector::Name { district: DISTRICT, name: 4 };
        assert_eq!(
            company.run(RequestParameters::Payment(Payment { district: 12, whom, amount: 777 })),
            Ok(777)
        );

        let first = 10 * 1_000;
        let warehouse = company.one::<rows::Warehouse>(|row| row.id.get() == 1);
        assert_eq!(warehouse.ytd.get(), 10 * first + 777);
        let district = company.one::<rows::District>(|row| row.id.get() == 12);
        assert_eq!(district.ytd.get(), first + 777);
        let customer = company.one::<rows::Customer>(|row| row.id.get() == middle);
        assert_eq!((customer.balance.get(), customer.paid.get()), (-1_777, 1_777));
        assert_eq!(customer.payments.get(), 2);
        let payment = company.one::<rows::History>(|row| row.date != rows::LOADED);
        assert_eq!((payment.customer.get(), payment.district.get()), (middle, 12));
        assert_eq!(payment.amount.get(), 777);
        assert_eq!(&payment.data[..10], &warehouse.name);
        assert_eq!(company.failing(audit::ORDERS_AT_ONCE), [""; 0]);
    }
}

#[test]
fn bad_credit_is_noted_and_good_is_not() {
    let mut company = Company::new(Paths::Rows);
    let before = company.find::<rows::Customer>(|_| true);
    let of = |credit: &[u8; 2]| *before.iter().find(|row| &row.credit == credit).expect("some");
    for (before, noted) in [(of(b"GC"), false), (of(b"BC"), true)] {
        let (id, district) = (before.id.get(), 5);
        let pay = Payment { district, whom: CustomerSelector::Number(id), amount: 100 };
        assert_eq!(company.run(RequestParameters::Payment(pay)), Ok(100));
        let after = company.one::<rows::Customer>(|row| row.id.get() == id);
        let note = format!("{id} 5 100|");
        assert_eq!(after.data.starts_with(note.as_bytes()), noted);
        let kept = if noted { note.len() } else { 0 };
        assert_eq!(after.data[kept..], before.data[..before.data.len() - kept]);
    }
}

#[test]
fn an_order_s_status_is_that_of_the_latest() {
    for paths in BOTH {
        let mut company = Company::new(paths);
        assert_eq!(company.run(order(CUSTOMER, &[line(1, 0, 1)])), Ok(1));
        for whom in [
            CustomerSelector::Number(CUSTOMER),
            CustomerSelector::Name { district: DISTRICT, name: 4 },
        ] {
            assert_eq!(company.run(RequestParameters::OrderStatus(whom)), Ok(0));
        }
        // An access path that leads to another customer's order, or to none, is noticed.
        let customer = CUSTOMER.into();
        match paths {
            Paths::Rows => company.smuggle(rows::LatestOrder { customer, order: 10.into() }),
            Paths::Ordered => company.smuggle(rows::CustomersOrder { customer, order: 12.into() }),
        }
        let order = (DISTRICT, 10);
        let other = company.one::<rows::Order>(|row| (row.district.get(), row.id.get()) == order);
        assert_ne!(other.customer.get(), CUSTOMER);
        let ended = company.run(RequestParameters::OrderStatus(CustomerSelector::Number(CUSTOMER)));
        assert!(matches!(ended, Err(TxnError::Fatal(_))), "{ended:?}");
    }
}

#[test]
fn deliveries_take_the_oldest_orders_until_none_are_left() {
    for paths in BOTH {
        let mut company = Company::new(paths);
        let amount = |company: &mut Company, order: u32| -> i64 {
            let lines = company.find::<rows::OrderLine>(|row| {
                (row.district.get(), row.order.get()) == (DISTRICT, order)
            });
            lines.iter().map(|line| line.amount.get()).sum()
        };
        for oldest in 8..=10 {
            let due = amount(&mut company, oldest);
            assert_eq!(
                company.run(RequestParameters::Delivery { warehouse: 0, carrier: 6 }),
                Ok(10)
            );
            let delivered = company
                .one::<rows::Order>(|row| (row.district.get(), row.id.get()) == (DISTRICT, oldest));
            assert_eq!(delivered.carrier, 6);
            let id = delivered.customer.get();
            let customer = company.one::<rows::Customer>(|row| row.id.get() == id);
            assert_eq!((customer.balance.get(), customer.deliveries.get()), (due - 1_000, 1));
        }
        // Only the fourth district has an undelivered order.
        assert_eq!(company.run(order(CUSTOMER, &[line(1, 0, 1)])), Ok(1));
        for expected in [1, 0] {
            assert_eq!(
                company.run(RequestParameters::Delivery { warehouse: 0, carrier: 1 }),
                Ok(expected)
            );
            assert_eq!(company.failing(audit::ORDERS_AT_ONCE), [""; 0]);
        }
        assert_eq!(company.find::<rows::NewOrder>(|row| row.district.get() < 10).len(), 0);
    }
}

#[test]
fn the_stock_level_counts_what_runs_low() {
    let mut company = Company::new(Paths::Rows);
    let district = 4;
    let mut items: Vec<u32> = company
        .find::<rows::OrderLine>(|row| row.district.get() == district)
        .iter()
        .map(|line| line.item.get())
        .collect();
    items.sort_unstable();
    items.dedup();
    for threshold in [0, 30, 60, 101] {
        let low = company.find::<rows::Stock>(|row| {
            row.warehouse.get() == 0
                && items.binary_search(&row.item.get()).is_ok()
                && row.quantity.get() < threshold
        });
        let expected = low.len();
        let tpcc = Arc::clone(&company.tpcc);
        let task = move |_seat, host: <Reference as Deployment>::Host| {
            let tpcc = Arc::clone(&tpcc);
            async move {
                let mut engine = host.engine().expect("there is a slot");
                let mut txn = engine.begin(TxnKind::ReadOnly).await?;
                let mut rows = super::Rows { tpcc: &tpcc, txn: &mut txn };
                rows.stock_level(district, threshold).await
            }
        };
        let counted = company.engine.run(1, task).expect("nobody panics").remove(0);
        assert_eq!(counted, Ok(expected), "{threshold}");
    }
}

/// A change without the engine, and the checks that must fail for it.
type Damage = (&'static [&'static str], fn(&mut Company));

/// Changes one record of a type.
fn change<R: Record>(company: &mut Company, wanted: fn(&R) -> bool, change: fn(&mut R)) {
    let mut record = company.find(wanted)[0];
    change(&mut record);
    company.smuggle(record);
}

const DAMAGES: &[Damage] = &[
    (&["tpcc-3.3.2.1", "tpcc-3.3.2.8", "tpcc-balance"], |company| {
        change::<rows::Warehouse>(company, |_| true, |row| row.ytd += 1);
    }),
    (&["tpcc-3.3.2.2", "tpcc-balance"], |company| {
        change::<rows::District>(company, |_| true, |row| row.next_order += 1);
    }),
    (&["tpcc-3.3.2.4", "tpcc-3.3.2.6"], |company| {
        change::<rows::Order>(company, |_| true, |row| row.lines += 1);
    }),
    (&["tpcc-3.3.2.5", "tpcc-3.3.2.7"], |company| {
        change::<rows::Order>(company, |row| row.carrier == 0, |row| row.carrier = 3);
    }),
    (&["tpcc-3.3.2.4", "tpcc-3.3.2.6"], |company| {
        let mut line = company.find::<rows::OrderLine>(|_| true)[0];
        line.number = 99;
        company.smuggle(line);
    }),
    (&["tpcc-3.3.2.7"], |company| {
        let paid = |row: &rows::OrderLine| row.delivered == rows::LOADED;
        change::<rows::OrderLine>(company, paid, |row| row.delivered.set(0));
    }),
    (&["tpcc-3.3.2.8", "tpcc-3.3.2.9", "tpcc-3.3.2.10"], |company| {
        change::<rows::History>(company, |_| true, |row| row.amount += 1);
    }),
    (&["tpcc-3.3.2.1", "tpcc-3.3.2.9"], |company| {
        change::<rows::District>(company, |_| true, |row| row.ytd += 1);
    }),
    (&["tpcc-3.3.2.10", "tpcc-3.3.2.12"], |company| {
        change::<rows::Customer>(company, |_| true, |row| row.balance += 1);
    }),
    (&["tpcc-3.3.2.11", "tpcc-balance"], |company| {
        change::<rows::Customer>(company, |_| true, |row| row.deliveries += 1);
    }),
    (&["tpcc-3.3.2.12"], |company| {
        change::<rows::Customer>(company, |_| true, |row| row.paid += 1);
    }),
    (&["tpcc-stock"], |company| {
        change::<rows::Stock>(company, |_| true, |row| row.quantity -= 1);
    }),
    (&["tpcc-stock"], |company| {
        change::<rows::Stock>(company, |_| true, |row| row.orders += 1);
    }),
    (&["tpcc-constant"], |company| {
        change::<rows::Item>(company, |_| true, |row| row.price += 1);
    }),
    (&["tpcc-constant"], |company| {
        change::<rows::Customer>(company, |_| true, |row| row.first[0] ^= 1);
    }),
    (&["tpcc-constant", "tpcc-rows"], |company| {
        company.smuggle(rows::Item { id: TINY.items.into(), ..company.tpcc.population.item(0) });
    }),
];

/// Damages to paths that are rows.
const DAMAGED_ROWS: &[Damage] = &[
    // The first order becomes new again, while the following ones are not.
    (&["tpcc-3.3.2.3", "tpcc-3.3.2.5", "tpcc-3.3.2.11", "tpcc-paths"], |company| {
        company.smuggle(rows::NewOrder { district: 0.into(), order: 1.into() });
    }),
    (&["tpcc-paths"], |company| {
        change::<rows::LatestOrder>(company, |_| true, |row| row.order += 1);
    }),
    (&["tpcc-paths"], |company| {
        change::<rows::NextDelivery>(company, |_| true, |row| row.order += 1);
    }),
];

/// Damages to paths that are ranges.
const DAMAGED_RANGES: &[Damage] = &[
    // The queue is the table of new orders.
    (&["tpcc-3.3.2.3", "tpcc-3.3.2.5", "tpcc-3.3.2.11"], |company| {
        company.smuggle(rows::NewOrder { district: 0.into(), order: 1.into() });
    }),
    // An order that was not placed.
    (&["tpcc-paths"], |company| {
        company.smuggle(rows::CustomersOrder { customer: CUSTOMER.into(), order: 12.into() });
    }),
    // An order of another customer.
    (&["tpcc-paths"], |company| {
        let of_others = |row: &rows::Order| row.customer.get() == 0;
        let order = company.find::<rows::Order>(of_others)[0].id;
        company.smuggle(rows::CustomersOrder { customer: 1.into(), order });
    }),
    // An order without a path.
    (&["tpcc-paths"], |company| company.lose(rows::CustomersOrder::TABLE)),
    // A customer without a name, one with two, and one with that of another.
    (&["tpcc-paths", "tpcc-rows"], |company| company.lose(rows::NamedCustomer::TABLE)),
    (&["tpcc-paths", "tpcc-rows"], |company| {
        let mut named = company.find::<rows::NamedCustomer>(|_| true)[0];
        named.first[0] ^= 1;
        company.smuggle(named);
    }),
    (&["tpcc-paths", "tpcc-rows"], |company| {
        let mut named = company.find::<rows::NamedCustomer>(|_| true)[0];
        named.customer = (TINY.warehouses * DISTRICTS * TINY.customers).into();
        company.smuggle(named);
    }),
];

#[test]
fn every_damage_is_noticed_by_the_checks_that_are_meant_to() {
    let mut caught = std::collections::BTreeSet::new();
    let of_rows = DAMAGES.iter().chain(DAMAGED_ROWS).map(|damage| (Paths::Rows, damage));
    let of_ranges = DAMAGES.iter().chain(DAMAGED_RANGES).map(|damage| (Paths::Ordered, damage));
    for (at, (paths, (expected, damage))) in of_rows.chain(of_ranges).enumerate() {
        let mut company = Company::new(paths);
        assert_eq!(company.run(order(CUSTOMER, &[line(1, 0, 4), line(2, 1, 4)])), Ok(1));
        assert_eq!(company.run(RequestParameters::Delivery { warehouse: 0, carrier: 1 }), Ok(10));
        assert_eq!(company.failing(audit::ORDERS_AT_ONCE), [""; 0]);
        damage(&mut company);
        // Audit all orders at once, and in portions of a few districts.
        for orders_at_once in [audit::ORDERS_AT_ONCE, 30] {
            let failing = company.failing(orders_at_once);
            assert_eq!(failing, *expected, "damage {at} with {paths:?}");
            caught.extend(failing);
        }
    }
    let conditions = (1..=12).map(|number| format!("tpcc-3.3.2.{number}"));
    assert!(conditions.into_iter().all(|name| caught.contains(&name)), "{caught:?}");
}

fn options(isolation: Isolation) -> Options {
    Options {
        cluster: ClusterConfig {
            coroutines: 6,
            lock_table_bytes: 1 << 20,
            ..ClusterConfig::default()
        },
        load: LoadConfig {
            isolation,
            other_isolation: 0.0,
            routing: Routing::Hybrid,
            aborted: Aborted::Retry,
            secs: 0.005,
            warmup_secs: 0.0,
            rate_tps: None,
            seed: 1,
            in_flight: None,
            move_us: None,
            timeline_us: None,
            txns: None,
        },
        audit: true,
        floor: false,
        history: false,
    }
}

fn bench<D: Deployment>(mut deployment: D, tpcc: Tpcc, options: &Options) -> Outcome {
    let progress = Arc::new(Progress::new(2, |_| ()));
    harness::run(&mut deployment, tpcc, options, &progress).expect("it runs")
}

fn audit_of(outcome: &Outcome) -> &Audit {
    outcome.audit.as_ref().expect("it was asked for")
}

#[test]
fn a_mixed_load_on_the_reference_passes_and_reports_new_orders_a_minute() {
    for (unknown_every, paths) in [(0, Paths::Rows), (20, Paths::Rows), (0, Paths::Ordered)] {
        let faults = Faults { unknown_every, ..Faults::default() };
        let tpcc = Tpcc::new(TINY, Critical::District, 3).with_paths(paths);
        let options = options(Isolation::Serializable);
        let outcome = bench(Reference::new(2, 1, faults), tpcc, &options);
        assert!(audit_of(&outcome).passed, "{:?}", audit_of(&outcome));
        assert_eq!(outcome.tally.total().unknown > 0, unknown_every > 0);
        for (name, counts) in outcome.transactions.iter().zip(&outcome.tally.by_transaction) {
            assert!(counts.committed > 0, "{name} never committed");
        }
        let orders = outcome.tally.by_transaction[0].committed as f64;
        let report = Report::new(&options, &outcome);
        let json = serde_json::to_value(&report).expect("it is plain data");
        let per_minute = json["tpmC"].as_f64().expect("a number");
        assert!((per_minute * outcome.elapsed_s / 60.0 - orders).abs() < 1e-3, "{per_minute}");
        assert!(report.table().contains("tpmC"));
        assert_eq!(json["config"]["critical_field"], "district");
    }
}

#[test]
fn transactions_that_vanish_as_a_whole_fail_the_balance() {
    let faults = Faults { lose_every: 50, ..Faults::default() };
    let tpcc = Tpcc::new(TINY, Critical::District, 3);
    let outcome = bench(Reference::new(2, 1, faults), tpcc, &options(Isolation::Serializable));
    let failed = audit_of(&outcome).checks.iter().filter(|check| !check.passed);
    assert!(failed.map(|check| &check.name).any(|name| name.starts_with("tpcc-balance")));
}

#[test]
fn a_mixed_load_on_an_embedded_cluster_passes_whatever_the_critical_field_and_paths() {
    for (critical, isolation, paths) in [
        (Critical::Warehouse, Isolation::Serializable, Paths::Rows),
        (Critical::District, Isolation::Snapshot, Paths::Rows),
        (Critical::Customer, Isolation::Serializable, Paths::Rows),
        (Critical::Warehouse, Isolation::Serializable, Paths::Ordered),
        (Critical::Warehouse, Isolation::Snapshot, Paths::Ordered),
    ] {
        let options = options(isolation);
        let cluster = Embedded::start(&options.cluster, &options.load).expect("it starts");
        let tpcc = Tpcc::new(TINY, critical, 3).with_paths(paths);
        let outcome = bench(cluster, tpcc, &options);
        let audit = audit_of(&outcome);
        assert!(audit.passed, "{critical:?} {isolation:?} {paths:?}: {audit:?}");
        assert!(outcome.tally.all_committed > 0);
    }
}

#[test]
fn shards_follow_the_critical_field() {
    let cluster = ClusterConfig::default();
    for (critical, shards) in [
        (Critical::Warehouse, [2, 2, 2, 2, 20]),
        (Critical::District, [2, 20, 20, 2, 20]),
        (Critical::Customer, [2, 20, 200, 2, 20]),
    ] {
        let specs = Tpcc::new(TINY, critical, 3).tables(&cluster);
        let of = |table: Table| specs[table as usize].shards;
        let tables = [Table::Warehouse, Table::Order, Table::Customer, Table::Stock, Table::Item];
        assert_eq!(tables.map(of), shards, "{critical:?}");
        assert!(specs.iter().all(|spec| spec.validate().is_ok()));
    }
}
