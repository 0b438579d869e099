//! Locks of TPC-C, counted and by table.

use lotus_locks::Mode;
use rand::SeedableRng;

use super::*;

const DRAWS: usize = 20_000;
const ALONE: Origin = Origin { node: 0, nodes: 1 };

fn draws(trace: &TpccTrace, at: Origin) -> Vec<Transaction> {
    let mut rng = SmallRng::seed_from_u64(1);
    (0..DRAWS).map(|_| trace.draw(&mut rng, at)).collect()
}

fn writers_percent(all: &[Transaction]) -> f64 {
    let wants = || all.iter().flat_map(|transaction| &transaction.wants);
    let writers = wants().filter(|want| want.mode == Mode::Exclusive).count();
    100.0 * writers as f64 / wants().count() as f64
}

/// The published number ends with the last lock that is wanted: the ten locks of the items of the
/// last warehouse never are.
#[test]
fn there_are_as_many_locks_as_published() {
    let trace = TpccTrace::new(500, LockGranularity::Parts, 1);
    assert_eq!(trace.locks(), 500 * 121);
    assert_eq!(trace.locks() - 10, 60_490);
    assert_eq!(trace.layout.stock.end + 50, trace.layout.all);
    assert_eq!(trace.layout.lines.end + 10, trace.layout.all);
    let most = draws(&trace, ALONE).iter().flat_map(|one| &one.wants).map(|want| want.lock).max();
    assert!(most < Some(60_490), "{most:?}");
}

#[test]
fn most_requests_write_as_published() {
    let percent = writers_percent(&draws(&TpccTrace::new(500, LockGranularity::Parts, 1), ALONE));
    assert!((percent - 86.5).abs() < 0.5, "{percent} % of the requests write");
}

#[test]
fn rows_are_as_many_as_the_specification_says() {
    let locks = |divisor| TpccTrace::new(1, LockGranularity::Rows { divisor }, 1).locks();
    let [customers, stock, lines] = [30_000, 100_000, 450_000];
    let (orders, new_orders, histories) = (30_000, 9_000, 30_000);
    let all = 1 + 10 + customers + stock + orders + new_orders + histories + lines;
    assert_eq!(locks(1), all);
    assert_eq!(locks(10), 11 + (all - 11) / 10);
}

/// Locks of a transaction by table: warehouse, districts, customers, stock, orders, new orders,
/// histories, lines; readers and writers.
fn by_table(trace: &TpccTrace, one: &Transaction) -> [[usize; 2]; 8] {
    let Layout { districts, customers, stock, orders, new_orders, histories, lines, all } =
        &trace.layout;
    let tables = [&(0..1), districts, customers, stock, orders, new_orders, histories, lines];
    tables.map(|table| {
        [Mode::Shared, Mode::Exclusive].map(|mode| {
            let is_in =
                |want: &&WantedLock| want.mode == mode && table.contains(&(want.lock % all));
            one.wants.iter().filter(is_in).count()
        })
    })
}

#[test]
fn each_type_locks_the_tables_that_it_uses() {
    const NONE: [usize; 2] = [0, 0];
    for granularity in [LockGranularity::Parts, LockGranularity::Rows { divisor: 10 }] {
        let trace = TpccTrace::new(7, granularity, 1);
        let (lines, is_parts) = (4..=15, granularity == LockGranularity::Parts);
        for one in draws(&trace, ALONE) {
            let found = by_table(&trace, &one);
            let fits = match (one.kind, found) {
                (0, [[1, 0], [0, 1], [1, 0], [0, stock], [0, 1], [0, 1], NONE, [0, count]]) => {
                    (1..=15).contains(&stock)
                        && if is_parts { count == 1 } else { (5..=15).contains(&count) }
                }
                (1, [[0, 1], [0, 1], [0, 1], NONE, NONE, NONE, [0, 1], NONE]) => true,
                (2, [NONE, NONE, [1, 0], NONE, [1, 0], NONE, NONE, [count, 0]]) => {
                    if is_parts {
                        count == 1
                    } else {
                        lines.contains(&count)
                    }
                }
                (
                    3,
                    [NONE, NONE, [0, customers], NONE, [0, orders], [0, new], NONE, read_or_write],
                ) => {
                    let all = [customers, orders, new];
                    match read_or_write {
                        [1, 0] => is_parts && all == [1, 1, 1],
                        [0, 50..=150] => !is_parts && all == [10, 10, 10],
                        _ => false,
                    }
                }
                (4, [NONE, [1, 0], NONE, [stock, 0], NONE, NONE, NONE, [count, 0]]) => {
                    (stock, count) == if is_parts { (1, 1) } else { (0, 0) }
                }
                _ => false,
            };
            assert!(fits, "{granularity:?}, {}: {found:?}", TpccTrace::KINDS[one.kind]);
        }
    }
}

/// Scans read under the one lock that each warehouse has for its customers, and so do others.
#[test]
fn scans_lock_the_customers_of_all_warehouses() {
    let time = Duration::from_millis(70);
    for granularity in [LockGranularity::Parts, LockGranularity::Rows { divisor: 10 }] {
        let plain = TpccTrace::new(4, granularity, 1);
        let fewer = plain.layout.customers.end - plain.layout.customers.start - 1;
        let trace = plain.clone().with_scans(Scans { share: 0.1, time });
        assert_eq!(trace.locks(), plain.locks() - 4 * fewer);
        assert_eq!(trace.kinds()[SCAN], "CustomerScan");
        let all = draws(&trace, ALONE);
        let scans = all.iter().filter(|one| one.kind == SCAN);
        let share = scans.clone().count() as f64 / all.len() as f64;
        assert!((share - 0.1).abs() < 0.01, "{share}");
        for scan in scans {
            assert!(by_table(&trace, scan)[2] == [4, 0] && scan.wants.len() == 4, "{scan:?}");
            assert_eq!(trace.execution(scan.kind), Some(time));
        }
        assert_eq!(trace.execution(0), None);
        let payment = all.iter().find(|one| one.kind == 1).expect("there are some");
        assert_eq!(by_table(&trace, payment)[2], [0, 1]);
    }
}

#[test]
fn clients_use_the_warehouses_of_their_node_and_few_others() {
    let trace = TpccTrace::new(20, LockGranularity::Parts, 1);
    for node in 0..4 {
        let own = (node * 5 * trace.layout.all)..((node + 1) * 5 * trace.layout.all);
        let all = draws(&trace, Origin { node, nodes: 4 });
        let homes = all.iter().filter(|one| own.contains(&one.wants[0].lock)).count();
        assert_eq!(homes, all.len(), "the first lock is at home, or a customer's who pays there");
        let is_away = |one: &&Transaction| one.wants.iter().any(|want| !own.contains(&want.lock));
        let away = 100.0 * all.iter().filter(is_away).count() as f64 / all.len() as f64;
        assert!((5.0..15.0).contains(&away), "{away} % go elsewhere");
    }
    let crowd = draws(&TpccTrace::new(1, LockGranularity::Parts, 1), Origin { node: 2, nodes: 3 });
    assert!(crowd.iter().flat_map(|one| &one.wants).all(|want| want.lock < 121));
}
