//! Records of calls with an id, at servers with other settings, or other clocks, than those that
//! wrote them.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::common::raw::Raw;
use crate::common::{ACCOUNTS, INITIAL, load, procedures, run};
use lotus::{Authority, Cluster, Nanos, TableId, Threads, TimestampKind};
use lotus_authority::EmbeddedAuthority;
use lotus_client::{CallId, Client};
use lotus_fabric::env::{Clock, Env};
use lotus_fabric::local::LocalFabric;
use lotus_protocol::frame;
use lotus_protocol::messages::{self, Answer, Bytes, Call, Op, decode};
use lotus_server::{CallRecords, Config, RequiredShape, Server, StartError};

const DAY: Duration = Duration::from_secs(24 * 3600);
const PATIENCE: Duration = Duration::from_secs(30);

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn serve(cluster: &Arc<Cluster>, table: TableId, records: CallRecords) -> Result<Server, String> {
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    let config = Config { call_records: records, ..Config::new(listener, vec![address]) };
    let server = Server::start(Arc::clone(cluster), 0, procedures(table), config);
    server.map_err(|error| {
        assert!(matches!(error, StartError::CallRecords { .. }), "{error}");
        error.to_string()
    })
}

/// The default of `[calls] rows` depends on the memory, so a cluster that was restored with more
/// memory looked for its records in other rows, and carried calls out again.
#[test]
fn calls_are_known_to_servers_whose_settings_have_another_number_of_rows() {
    let builder = Cluster::embedded().memory_nodes(1).replicas(1).lock_table_bytes(1 << 16);
    let cluster = builder.start().unwrap();
    let table = load(&cluster);
    let cluster = Arc::new(cluster);
    let usual = CallRecords::default();
    for (rows, row_bytes) in [(16, 256), (64, 256), (3, 2048)] {
        let server = serve(&cluster, table, CallRecords { rows, row_bytes, ..usual }).unwrap();
        run(async {
            let config = lotus_client::Config::new(server.address().to_string());
            let client = Client::connect(config).await.unwrap();
            for id in 0..40_u64 {
                let call = client.call::<_, u64>("deposit", &(id % ACCOUNTS, 1_u64));
                let after = call.idempotent(u128::from(id)).await.unwrap();
                assert_eq!(after, INITIAL + 1, "call {id}, {rows} rows");
                let outcome = client.outcome::<u64>(CallId::from(u128::from(id))).await;
                assert_eq!(outcome.unwrap(), Some(INITIAL + 1));
            }
        });
        server.stop().unwrap();
    }
    for (rows, row_bytes, said) in [
        (Some(64), None, "rows = 64, but the cluster's table of call records was made with 16"),
        (None, Some(2048), "row_bytes = 2048, but"),
    ] {
        let required = RequiredShape { rows, row_bytes };
        let refused = serve(&cluster, table, CallRecords { required, ..usual });
        let refused = refused.err().expect("the table has another shape");
        assert!(refused.contains(said), "{refused}");
    }
    let required = RequiredShape { rows: Some(16), row_bytes: Some(256) };
    serve(&cluster, table, CallRecords { required, ..usual }).unwrap().stop().unwrap();
}

/// The machine's clock, ahead of itself.
struct Ahead(Env, Duration);

impl Clock for Ahead {
    fn now(&self) -> Nanos {
        self.0.now().after(self.1)
    }
}

/// Calls a deposit of one, with this id; returns the balance after it.
fn deposit(server: &Server, id: u64) -> u64 {
    let (mut arguments, mut out) = (Vec::new(), Vec::new());
    frame::write(&mut arguments, &(id % ACCOUNTS, 1_u64));
    let call = Call {
        procedure: "deposit",
        arguments: Bytes(&arguments),
        timeout_us: 10_000_000,
        shard: None,
        id: Some(CallId::from(u128::from(id))),
    };
    messages::send(&mut out, 1, &Op::Call(call));
    let mut raw = Raw::admitted(server.address());
    raw.stream.write_all(&out).unwrap();
    let frame = raw.next().unwrap();
    let (_, message) = messages::split(&frame).unwrap();
    match decode(message).unwrap() {
        Answer::Done(Bytes(result)) => decode(result).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A compute node with a clock that was ahead by more than the retention took the records of the
/// others' calls for expired.
#[test]
fn a_node_with_a_clock_that_is_ahead_forgets_no_calls_of_others() {
    let authority: Arc<dyn Authority> = Arc::new(EmbeddedAuthority::new());
    let fabric = LocalFabric::new(3);
    let parts = [Duration::ZERO, 100 * DAY].into_iter().enumerate().map(|(node, ahead)| {
        let builder = Cluster::embedded()
            .memory_nodes(1)
            .compute_nodes(2)
            .replicas(1)
            .lock_table_bytes(1 << 16)
            .timestamps(TimestampKind::Oracle)
            .part([node], Arc::clone(&authority), PATIENCE);
        let env = Env::with_clock(Arc::new(Ahead(Env::real(0), ahead)), 0);
        Arc::new(builder.start_on(Threads::over(fabric.clone(), env)).unwrap())
    });
    let parts: Vec<Arc<Cluster>> = parts.collect();
    let table = load(&parts[0]);
    parts[1].open_table("accounts").unwrap();
    let servers: Vec<Server> = (0..2)
        .map(|node| {
            let mut config = Config::new(listen(), vec![String::new(); 2]);
            config.call_records.rows = 1;
            Server::start(Arc::clone(&parts[node]), node, procedures(table), config).unwrap()
        })
        .collect();
    for id in 0..8 {
        assert_eq!(deposit(&servers[(id % 2) as usize], id), INITIAL + 1);
    }
    for id in 0..8 {
        for server in &servers {
            assert_eq!(deposit(server, id), INITIAL + 1, "call {id} was carried out again");
        }
    }
}
