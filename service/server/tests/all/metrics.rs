//! Metrics and health, as a scraper sees them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

use lotus::Cluster;
use lotus_server::Gauge;

use crate::common::{ACCOUNTS, Bank, balance, get, get_as, run, value};

const PAUSE: Duration = Duration::from_millis(1);
/// A lease in which a few beats come.
const LEASE: Duration = Duration::from_secs(4);

/// A bank of one compute node with a lease and a gauge of its own, and its metrics address.
fn watched() -> (Bank, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Mutex::new(Some(listener));
    let builder = Cluster::embedded().compute_nodes(1).memory_nodes(1).replicas(1);
    let builder = builder.lock_table_bytes(1 << 16).lease(Some(LEASE));
    let bank = Bank::over(builder.start().unwrap(), |config| {
        config.metrics = metrics.lock().unwrap().take();
        let gauge = |name, value| Gauge {
            name,
            help: "A figure of the program's own",
            label: Some(("of", "one".to_owned())),
            read: Box::new(move || value),
        };
        config.gauges = vec![gauge("flavour", Some(7.0)), gauge("unknown", None)];
    });
    (bank, at)
}

/// Asserts that procedures, the lease, the build, and the gauges of the program are shown.
#[track_caller]
fn the_process_shows_itself(text: &str) {
    let own = [
        ("lotus_procedure_duration_seconds_count{procedure=\"balance\"}", 10.0),
        ("lotus_procedure_duration_seconds_count{procedure=\"deposit\"}", 5.0),
        ("lotus_procedure_duration_seconds_bucket{le=\"+Inf\",procedure=\"transfer\"}", 1.0),
        ("lotus_procedure_duration_seconds_count{procedure=\"stall\"}", 0.0),
        (&format!("lotus_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0),
        ("lotus_lease_seconds", 4.0),
        ("lotus_flavour{of=\"one\"}", 7.0),
    ];
    for (name, expected) in own {
        assert!((value(text, name) - expected).abs() < 0.001, "{name} in {text}");
    }
    let margin = value(text, "lotus_lease_margin_seconds");
    assert!(margin > 0.0 && margin <= 4.0, "{margin}");
    assert!(value(text, "lotus_uptime_seconds") > 0.0);
    assert!(value(text, "process_cpu_seconds_total") > 0.0);
    assert!(value(text, "process_resident_memory_bytes") > 1e6);
    assert!(!text.contains("lotus_unknown"), "a gauge without a value is not shown");
}

#[test]
fn what_has_happened_can_be_seen() {
    let (bank, at) = watched();
    // The first beat has landed.
    let landed = || bank.cluster.node_figures(0).lease_left.is_some();
    let beats = (0..30_000).any(|_| {
        std::thread::park_timeout(PAUSE);
        landed()
    });
    assert!(beats);
    assert_eq!(bank.servers[0].metrics_address(), Some(at));
    run(async {
        let client = bank.client().await;
        for account in 0..10 {
            balance(&client, account).await.unwrap();
        }
        for _ in 0..5 {
            client.call::<_, u64>("deposit", &(1_u64, 1_u64)).await.unwrap();
        }
        assert!(client.call::<_, u64>("transfer", &(1_u64, 2_u64, 9_999_u64)).await.is_err());
    });
    let health = get(at, "/health");
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("serving\n"), "{health}");
    let text = get(at, "/metrics");
    let expected = [
        ("lotus_transactions_total{outcome=\"committed\"}", 15.0),
        ("lotus_transactions_total{outcome=\"rejected\"}", 1.0),
        ("lotus_transaction_duration_seconds_count", 16.0),
        ("lotus_transaction_duration_seconds_bucket{le=\"+Inf\"}", 16.0),
        ("lotus_shards_owned", 4096.0),
        ("lotus_locks_held", 0.0),
        ("lotus_lock_slots", 8192.0),
        ("lotus_takes_part", 1.0),
        ("lotus_nodes_expelled", 0.0),
        ("lotus_memory_nodes_silent", 0.0),
        ("lotus_memory_node_answers{memory_node=\"mn-0\"}", 1.0),
        ("lotus_memory_nodes_lost", 0.0),
        ("lotus_memory_nodes_joining", 0.0),
        ("lotus_memory_nodes_out_of_reach", 0.0),
        ("lotus_locks_asked_total{keeper=\"elsewhere\"}", 0.0),
        ("lotus_shards_moved_total", 0.0),
        ("lotus_hand_overs_total", 0.0),
        ("lotus_hand_over_interruption_seconds_total", 0.0),
        ("lotus_clients_total{fate=\"admitted\"}", 1.0),
        ("lotus_table_rows{table=\"accounts\"}", ACCOUNTS as f64),
    ];
    for (name, expected) in expected {
        assert!((value(&text, name) - expected).abs() < 0.5, "{name} is {}", value(&text, name));
    }
    let memory =
        |metric: &str, label: &str| value(&text, &format!("lotus_{metric}_bytes{{{label}}}"));
    let node = "memory_node=\"mn-0\"";
    let allocated = memory("memory_allocated", node);
    assert!(allocated > 0.0 && allocated < memory("memory_limit", node), "{allocated}");
    let accounts = "table=\"accounts\"";
    assert!(memory("table_allocated", accounts) > memory("table_free", accounts));
    let parts =
        ["index", "overflow", "record"].map(|part| memory(&format!("table_{part}"), accounts));
    let sum: f64 = parts.iter().sum();
    assert!((sum - memory("table_allocated", accounts)).abs() < 0.5 && parts[0] > 0.0, "{parts:?}");
    let free = memory("memory_unallocated", node);
    assert!((free + allocated - memory("memory_limit", node)).abs() < 0.5, "{free}");
    let group = "group=\"0\"";
    assert!((memory("group_unallocated", group) - free).abs() < 0.5, "one node, one group");
    assert!((memory("group_allocated", group) - allocated).abs() < 0.5);
    assert!(memory("group_free", group) >= memory("table_free", accounts));
    assert!(value(&text, "lotus_table_rows_age_seconds") < 10.0);
    let moving = [
        "lotus_verbs_total{kind=\"read\"}",
        "lotus_verbs_total{kind=\"write\"}",
        "lotus_locks_asked_total{keeper=\"here\"}",
        "lotus_cache_lookups_total{cache=\"addresses\"}",
    ];
    for name in moving {
        assert!(value(&text, name) > 0.0, "{name}");
    }
    the_process_shows_itself(&text);
    assert!(get(at, "/nothing").starts_with("HTTP/1.1 404"));
}

/// Regression: buckets were named by a product's rounding, as `0.009999999999999999`, and scrapers
/// without an `Accept` header got OpenMetrics under the plain format's names.
#[test]
fn everybody_is_told_in_his_own_words() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Mutex::new(Some(listener));
    let _bank = Bank::open_with(1, |config| config.metrics = metrics.lock().unwrap().take());
    let plain = get(at, "/metrics");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("# TYPE lotus_transactions_total counter\n"), "{plain}");
    assert!(plain.contains("\nlotus_transactions_total{outcome=\"committed\"} 0\n"), "{plain}");
    assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    let open = get_as(at, "/metrics", "application/openmetrics-text; version=1.0.0");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.contains("# TYPE lotus_transactions counter\n"), "{open}");
    assert!(open.trim_end().ends_with("# EOF"), "{open}");
    for text in [plain, open] {
        let bounds: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("lotus_transaction_duration_seconds_bucket{le=\""))
            .filter_map(|rest| rest.split_once('"'))
            .map(|(bound, _)| bound)
            .collect();
        assert_eq!(bounds.len(), 19, "{text}");
        let longest = bounds.iter().map(|bound| bound.len()).max();
        assert!(longest <= Some("0.00001".len()), "{bounds:?}");
        assert!(bounds.contains(&"0.01") && bounds.contains(&"+Inf"), "{bounds:?}");
    }
}

/// A stored transaction blocks the thread of the only coordinator, which also beats, for longer
/// than the lease. Its name is known meanwhile, the node is not healthy, and it stays a member.
#[test]
fn a_stored_transaction_that_blocks_a_thread_is_named() {
    let (bank, at) = watched();
    std::thread::scope(|scope| {
        let block = async {
            let client = bank.client().await;
            let call = client.call::<_, ()>("block", &5_000_u64);
            call.timeout(Duration::from_secs(50)).await
        };
        let blocking = scope.spawn(|| run(block));
        while !get(at, "/health").ends_with("a transaction blocks a thread\n") {
            assert!(!blocking.is_finished(), "it was not seen");
            std::thread::park_timeout(PAUSE);
        }
        assert_eq!(bank.cluster.held_up()[0].what, "\"block\"");
        blocking.join().unwrap().unwrap();
    });
    while !get(at, "/health").ends_with("serving\n") {
        std::thread::park_timeout(PAUSE);
    }
    assert!(bank.cluster.takes_part(0));
}
