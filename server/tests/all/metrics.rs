//! Metrics and health, as a scraper sees them.

use std::net::TcpListener;
use std::sync::Mutex;

use crate::common::{Bank, balance, get, run, value};

#[test]
fn what_has_happened_can_be_seen() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Mutex::new(Some(listener));
    let bank = Bank::open_with(1, |config| config.metrics = metrics.lock().unwrap().take());
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
        ("lotus_memory_nodes_lost", 0.0),
        ("lotus_memory_nodes_joining", 0.0),
        ("lotus_memory_nodes_out_of_reach", 0.0),
        ("lotus_locks_asked_total{keeper=\"elsewhere\"}", 0.0),
        ("lotus_shards_moved_total", 0.0),
        ("lotus_hand_overs_total", 0.0),
        ("lotus_hand_over_interruption_seconds_total", 0.0),
        ("lotus_clients_total{fate=\"admitted\"}", 1.0),
    ];
    for (name, expected) in expected {
        assert!((value(&text, name) - expected).abs() < 0.5, "{name} is {}", value(&text, name));
    }
    let moving = [
        "lotus_verbs_total{kind=\"read\"}",
        "lotus_verbs_total{kind=\"write\"}",
        "lotus_locks_asked_total{keeper=\"here\"}",
        "lotus_cache_lookups_total{cache=\"addresses\"}",
    ];
    for name in moving {
        assert!(value(&text, name) > 0.0, "{name}");
    }
    assert!(text.trim_end().ends_with("# EOF"));
    assert!(get(at, "/nothing").starts_with("HTTP/1.1 404"));
}
