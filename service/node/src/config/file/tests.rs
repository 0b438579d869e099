//! Reading of valid cluster files, and errors of others.

use super::*;
use crate::config::key::{self, KeyError};
use lotus::{CriticalField, Inline, LockKind};
use std::time::Duration;

const SHM: &str = "\
fabric = \"shm\"
memory = \"64M\"
[[memory_node]]
[[memory_node]]
[[compute_node]]
client = \"127.0.0.1:7311\"
[[compute_node]]
client = \"127.0.0.1:7312\"
[load.smallbank]
accounts = 100
";

const TCP: &str = "\
fabric = \"tcp\"
authority = \"127.0.0.1:7300\"
replicas = 1
[[memory_node]]
address = \"127.0.0.1:7301\"
[[compute_node]]
address = \"127.0.0.1:7302\"
";

/// A key and TLS, inserted before the first node; TLS, inserted before the load.
const BOTH: &str = "key_file = \"k\"\n[tls]\nca = \"\"\ncertificate = \"\"\nkey = \"\"\n\
                    cluster = \"\"\n[[mem";
const TLS: &str = "[tls]\nca = \"\"\ncertificate = \"\"\nkey = \"\"\ncluster = \"\"\n[load";

const METRICS: &str = "metrics = \"127.0.0.1:7313\"";
/// Another node with metrics, inserted before the first node.
const WATCHED: &str = "replicas = 1\n[[compute_node]]\naddress = \"127.0.0.1:7303\"\n\
                       metrics = \"127.0.0.1:7313\"";
/// TLS, appended to the file.
const FILES: &str = "[tls]\nca = \"\"\ncertificate = \"\"\nkey = \"\"\ncluster = \"\"\n";
/// TLS with half of what an application needs, inserted before the first node.
const HALF: &str = "[tls]\nca = \"\"\ncertificate = \"\"\nkey = \"\"\ncluster = \"\"\n\
                    client_key = \"\"\n[[mem";
/// Snapshots with `keep` 0, inserted before the load.
const NO_SNAPSHOTS: &str = "[snapshots]\ndirectory = \"d\"\nkeep = 0\n[load";
/// etcd, inserted before the first node.
const ETCD: &str = "[etcd]\nendpoints = [\"http://10.0.0.1:2379\"]\nprefix = \"/l/\"\n[[mem";

/// Locks without owners, and what depends on owners.
const CACHED: &str = "locks = \"declock\"\nversion_table_cache = 9";
const BALANCED: &str = "balance = true\nlocks = \"cas\"";

fn read(text: &str) -> Result<ClusterFile, FileError> {
    ClusterFile::parse(Path::new("/etc/c.toml"), text, None)
}

#[test]
fn defaults_are_what_the_documentation_says() {
    let file = read(SHM).expect("sound");
    assert_eq!(
        (file.settings.memory_nodes, file.settings.compute_nodes, file.settings.replicas),
        (2, 2, 2)
    );
    assert_eq!((file.settings.coordinators, file.settings.coroutines), (1, 16));
    assert_eq!(
        (file.settings.lock_table_bytes, file.settings.version_table_cache),
        (32 << 20, 64 << 10)
    );
    assert_eq!(file.settings.locks, LockKind::Lotus);
    assert_eq!(file.settings.balance, Some(Duration::from_millis(100)));
    assert_eq!(file.settings.memory_bytes, 64 << 20);
    assert_eq!(file.settings.lease, Some(Duration::from_secs(2)));
    assert_eq!(file.state, Path::new("/etc/c.state"));
    assert_eq!(file.snapshots, None);
    let file = read(&format!("{SHM}[snapshots]\ndirectory = \"kept\"\n")).expect("sound");
    let directory = PathBuf::from("/etc/kept");
    assert_eq!(file.snapshots, Some(Snapshots { directory, keep: 2, if_damaged: IfDamaged::Stop }));
    let socket = Hosted::Unix("/etc/c.state/authority.sock".into());
    assert!(matches!(&file.authority, Place::Hosted(at) if *at == socket), "{:?}", file.authority);
    assert!(file.load.is_some());
    assert!(file.tcp(0).expect("no key to read").is_none());
    assert!(file.serves_applications());
    assert_eq!(file.clients, Trust::Loopback);

    let file = read(TCP).expect("sound");
    let tcp = file.tcp(1).expect("no key to read").expect("this fabric");
    assert_eq!((tcp.nodes, &tcp.served[..]), (2, &[NodeId(1)][..]));
    assert_eq!(tcp.addresses[&NodeId(1)].port(), 7302);
    assert!(!file.serves_applications());
}

/// Files of containers name hosts that are found later, and nodes listen at all addresses.
#[test]
fn nodes_listen_elsewhere_than_where_others_are_told() {
    let text = TCP.replacen("replicas", "key_file = \"k\"\nreplicas", 1);
    let bind = "address = \"mn-0.invalid:7301\"\nbind = \"0.0.0.0:7401\"";
    let text = text.replacen("address = \"127.0.0.1:7301\"", bind, 1);
    let client = "7302\"\nclient = \"cn-0.invalid:7500\"\nclient_bind = \"[::]:7500\"";
    let file = read(&text.replacen("7302\"", client, 1)).expect("sound");
    let Net::Tcp { addresses, .. } = &file.net else { panic!("another fabric") };
    let written = |at: &HostPort| at.to_string();
    let memory = &addresses[&NodeId(0)];
    assert_eq!(written(&memory.address), "mn-0.invalid:7301");
    assert_eq!(written(memory.listens()), "0.0.0.0:7401");
    let compute = &addresses[&NodeId(1)];
    assert_eq!(compute.listens(), &compute.address);
    let client = file.compute_nodes[0].client.as_ref().expect("it is named");
    assert_eq!(
        (written(&client.address), written(client.listens())),
        ("cn-0.invalid:7500".to_owned(), "[::]:7500".to_owned(),)
    );
    let unknown = file.look_up_names().expect_err("there is no such host").to_string();
    assert!(unknown.contains("mn-0.invalid:7301"), "{unknown}");
}

/// Applications are not let in by the nodes' key, unless the file says so.
#[test]
fn applications_have_a_secret_of_their_own() {
    let clients = |text: &str| read(text).expect("sound").clients;
    let served = TCP.replacen("7302\"", "7302\"\nclient = \"127.0.0.1:7312\"", 1);
    let keyed = served.replacen("replicas", "key_file = \"k.secret\"\nreplicas", 1);
    assert_eq!(clients(&served), Trust::Loopback);
    assert_eq!(clients(&keyed), Trust::KeyFile("/etc/k.client.key".into()));
    let other = keyed.replacen("replicas", "client_key_file = \"c\"\nreplicas", 1);
    assert_eq!(clients(&other), Trust::KeyFile("/etc/c".into()));

    let sealed = served.clone() + FILES;
    assert!(matches!(clients(&sealed), Trust::Tls(_)));
    let file = read(&sealed).expect("sound");
    let refused = file.as_application().expect_err("nothing to show").to_string();
    assert!(refused.contains("names no client_certificate"), "{refused}");
    let file = read(&(sealed + "client_certificate = \"c\"\nclient_key = \"c\"\n"));
    assert!(matches!(file.expect("sound").application, Some(Trust::Tls(_))));
    let both = served.replacen("replicas", "client_key_file = \"c\"\nreplicas", 1) + FILES;
    assert_eq!(clients(&both), Trust::KeyFile("/etc/c".into()));
}

#[test]
fn tables_of_the_file_have_the_defaults_of_the_engine() {
    let file = read(SHM).expect("sound");
    assert!(
        file.tables.is_empty()
            && !file.applications.create_tables
            && !file.applications.drop_tables
    );
    let tables = "[clients]\ncreate_tables = true\ndrop_tables = true\n\
                  [[table]]\nname = \"orders\"\nrecord_bytes = 16\ncapacity = 100\n\
                  [[table]]\nname = \"stock\"\nrecord_bytes = 320\nkey_bytes = 12\n\
                  capacity = 1_000\nversions = 3\ncritical_field = { start = 2, len = 4 }\n\
                  shards = 5\ninline = \"never\"\n";
    let file = read(&(SHM.to_owned() + tables)).expect("sound");
    let stock = TableSpec::new("stock")
        .record_bytes(320)
        .key_bytes(12)
        .capacity(1_000)
        .versions(3)
        .critical_field(CriticalField::Bytes { start: 2, len: 4 })
        .shards(5)
        .inline(Inline::Never);
    let orders = TableSpec::new("orders").record_bytes(16).capacity(100);
    assert_eq!(file.tables, [orders, stock]);
    assert!(file.applications.create_tables && file.applications.drop_tables);
}

#[test]
fn the_example_with_tables_is_sound() {
    let file = read(include_str!("../../../../../examples/tables.toml")).expect("sound");
    let names: Vec<&str> = file.tables.iter().map(|table| &*table.name).collect();
    assert_eq!(names, ["customers", "purchases", "names"]);
    assert!(file.applications.create_tables && file.settings.memory_nodes == 2);
}

#[test]
fn a_wrong_table_is_named_with_the_line_of_its_wrong_key() {
    const TABLE: &str = "[[table]]\nname = \"t\"\nrecord_bytes = 16\ncapacity = 100\n\
                         key_bytes = 9\nversions = 3\nshards = 5\ninline = \"auto\"\n\
                         critical_field = { start = 0, len = 4 }\n";
    let cases = [
        ("name = \"t\"\n", "", 1, "missing field `name`"),
        ("record_bytes = 16\n", "", 1, "missing field `record_bytes`"),
        ("capacity = 100\n", "", 1, "missing field `capacity`"),
        ("name = \"t\"", "name = \"\"", 2, "a table needs a name"),
        ("name = \"t\"", "name = \"lotus.t\"", 2, "lotus.t: names that begin with"),
        (
            "record_bytes = 16",
            "record_bytes = 16000",
            3,
            "record_bytes must be 1 to 15360, not 16000",
        ),
        ("record_bytes = 16", "record_bytes = -1", 3, "-1"),
        ("record_bytes = 16", "record_bytes = \"16\"", 3, "invalid type: string"),
        ("capacity = 100", "capacity = 0", 4, "capacity must be 1 to 2^36 rows, not 0"),
        (
            "key_bytes = 9",
            "key_bytes = 32",
            5,
            "key_bytes must be 1 to 31, not 32; only ordered tables take more",
        ),
        ("versions = 3", "versions = 1", 6, "versions must be 2 to 8, not 1"),
        ("shards = 5", "shards = 4097", 7, "shards must be 1 to 4096, not 4097"),
        ("\"auto\"", "\"always\"", 8, "unknown variant `always`"),
        ("len = 4", "len = 10", 9, "critical field (10 bytes from 0)"),
        ("len = 4", "length = 4", 9, "unknown field `length`"),
        ("shards = 5", "shard = 5", 7, "unknown field `shard`"),
        ("key_bytes = 9\n", "key_bytes = 2\n", 9, "lie within the key's 2"),
        ("shards = 5", "shards = 5\nordered = true", 10, "an ordered table has no critical field"),
        ("shards = 5", "shards = 5\nordered = 1", 8, "invalid type: integer"),
    ];
    let before = SHM.lines().count();
    for (from, to, line, said) in cases {
        assert!(TABLE.contains(from), "{from}");
        let text = SHM.to_owned() + &TABLE.replacen(from, to, 1);
        let refused = read(&text).expect_err(to).to_string();
        let named = format!("/etc/c.toml, line {}: ", before + line);
        assert!(refused.starts_with(&named) && refused.contains(said), "{to}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    let twice = read(&(SHM.to_owned() + TABLE + TABLE)).expect_err("one name").to_string();
    assert!(twice.contains(&format!("line {}: t is named twice", before + 11)), "{twice}");
    for right in ["create_tables", "drop_tables"] {
        let served = format!("[clients]\n{right} = true\n");
        let unserved =
            read(&(TCP.to_owned() + &served)).expect_err("no client address").to_string();
        let said = "line 9: clients create and drop tables at compute nodes";
        assert!(unserved.contains(said), "{unserved}");
    }
}

#[test]
fn a_quarter_of_the_coroutines_is_for_interactive_transactions_unless_the_file_says_otherwise() {
    let interactive = |coroutines: u64, clients: &str| {
        let given = format!("coroutines = {coroutines}\nmemory = ");
        let text = SHM.replacen("memory = ", &given, 1) + clients;
        read(&text).map(|file| file.applications.interactive).map_err(|error| error.to_string())
    };
    for (coroutines, usual) in [(3, 1), (4, 1), (16, 4), (64, 16)] {
        assert_eq!(interactive(coroutines, ""), Ok(usual));
    }
    assert_eq!(interactive(16, "[clients]\ninteractive = 14\n"), Ok(14));
    for wrong in [0, 15] {
        let refused = interactive(16, &format!("[clients]\ninteractive = {wrong}\n"));
        let refused = refused.expect_err("one is for calls, and one for the engine");
        assert!(refused.contains("interactive must be from 1 to 14"), "{refused}");
    }
    let unserved = read(&(TCP.to_owned() + "[clients]\ninteractive = 1\n"));
    let unserved = unserved.expect_err("no client address").to_string();
    assert!(unserved.contains("line 9: interactive transactions run at"), "{unserved}");
}

/// One replacement in a file, the line that is wrong then, and the error.
/// A benchmark filled a memory of 64 MiB with records of its calls.
#[test]
fn records_of_calls_take_a_small_part_of_the_memory_unless_the_file_says_otherwise() {
    let calls = |to: &str| read(&SHM.replacen("memory = \"64M\"", to, 1)).expect(to).calls;
    for (memory, bytes) in [("64M", 64 << 20), ("256M", 256 << 20)] {
        let CallRecords { rows, row_bytes, .. } = calls(&format!("memory = {memory:?}"));
        let taken = rows * u64::from(row_bytes) * CALL_VERSIONS;
        assert!((bytes / 9..=bytes / 8).contains(&taken), "{memory}: {taken}");
    }
    assert_eq!(calls("memory = \"4G\"").rows, CallRecords::default().rows);
    assert_eq!(calls("memory = \"64M\"\ncalls = { rows = 30000 }").rows, 30_000);
}

/// The default depends on the memory, so a larger memory hid the records of a restored cluster.
#[test]
fn only_what_the_file_says_of_records_of_calls_must_be_so_in_a_cluster_that_has_some() {
    for (written, rows, row_bytes) in [
        ("memory = \"64M\"", None, None),
        ("memory = \"64M\"\ncalls = { rows = 30000 }", Some(30_000), None),
        ("memory = \"64M\"\ncalls = { row_bytes = 256 }", None, Some(256)),
    ] {
        let file = read(&SHM.replacen("memory = \"64M\"", written, 1)).expect(written);
        assert_eq!(file.calls.required, RequiredShape { rows, row_bytes }, "{written}");
    }
}

#[test]
fn whatever_is_wrong_is_named_with_its_line() {
    let cases: &[(&str, &str, &str, usize, &str)] = &[
        (SHM, "fabric = \"shm\"", "", 1, "missing field `fabric`"),
        (SHM, "\"shm\"", "\"rdma\"", 1, "unknown variant `rdma`"),
        (SHM, "\"shm\"", "\"shm", 1, "string"),
        (SHM, "memory = \"64M\"", "memroy = \"64M\"", 2, "unknown field `memroy`"),
        (SHM, "\"64M\"", "64", 2, "string"),
        (SHM, "\"64M\"", "\"64X\"", 2, "memory: it is not a number of bytes"),
        (SHM, "memory = \"64M\"", "replicas = 3", 2, "3 replicas do not fit on 2 memory nodes"),
        (SHM, "memory = \"64M\"", "replicas = 0", 2, "replicas must be from 1 to 8"),
        (SHM, "memory = \"64M\"", "replicas = -1", 2, "-1"),
        (SHM, "memory = \"64M\"", "lease_ms = 5", 2, "at least 20"),
        (SHM, "memory = \"64M\"", "coordinators = 65", 2, "from 1 to 64"),
        (SHM, "memory = \"64M\"", "coroutines = 0", 2, "from 1 to 64"),
        (SHM, "memory = \"64M\"", "lock_table = \"1\"", 2, "lock_table"),
        (SHM, "memory = \"64M\"", "locks = \"mcs\"", 2, "locks must be one of \"lotus\", \"cas\""),
        (SHM, "memory = \"64M\"", "locks = 7", 2, "string"),
        (SHM, "memory = \"64M\"", CACHED, 3, "version_table_cache needs LOTUS's locks"),
        (SHM, "memory = \"64M\"", BALANCED, 2, "balance needs LOTUS's locks"),
        (SHM, "memory = \"64M\"", "key_file = \"k\"", 2, "on tcp only"),
        (SHM, "memory = \"64M\"", "authority = \"127.0.0.1:1\"", 2, "on tcp only"),
        (
            SHM,
            "client = \"127.0.0.1:7311\"",
            "client = \"here\"",
            6,
            "no address: they are HOST:PORT",
        ),
        (SHM, "client = \"127.0.0.1:7311\"", "client = \"[::1]:0\"", 6, "needs a port"),
        (SHM, "client =", "address =", 6, "on tcp only"),
        (SHM, "client =", "bind =", 6, "on tcp only"),
        (SHM, "memory = \"64M\"", "authority_bind = \"127.0.0.1:1\"", 2, "on tcp only"),
        (SHM, "127.0.0.1:7311", "0.0.0.0:7311", 6, "nobody can connect to 0.0.0.0:7311"),
        (TCP, "127.0.0.1:7302", "[::]:7302", 7, "nobody can connect to [::]:7302"),
        (TCP, "127.0.0.1:7300", "0.0.0.0:7300", 2, "to bind, client_bind or authority_bind"),
        (SHM, "client =", "client_bind =", 6, "needs the address that other nodes are told"),
        (TCP, "replicas = 1", "authority_bind = \"127.0.0.1:0\"", 3, "needs a port"),
        (TCP, "replicas = 1", "authority_bind = \"0.0.0.0:7300\"", 1, "needs a key_file"),
        (TCP, "7302\"", "7302\"\nbind = \"0.0.0.0:7302\"", 1, "0.0.0.0:7302 is beyond loopback"),
        (TCP, "127.0.0.1:7302", "cn-0.example:7302", 1, "cn-0.example:7302 is beyond loopback"),
        (SHM, "7312", "7311", 8, "127.0.0.1:7311 is named twice"),
        (SHM, "client = \"127.0.0.1:7312\"", "", 7, "by all compute nodes"),
        (SHM, "client = \"127.0.0.1:7311\"", METRICS, 5, "by all compute nodes"),
        (TCP, "replicas = 1", WATCHED, 4, "a client address is missing"),
        (SHM, "memory = \"64M\"", "coroutines = 2", 2, "at least 3 coroutines"),
        (SHM, "127.0.0.1:7312", "10.0.0.1:7312", 8, "beyond loopback: a client_key_file"),
        (TCP, "[[mem", HALF, 4, "a client_certificate needs a client_key"),
        (SHM, "[load", NO_SNAPSHOTS, 11, "keep must be from 1 to 1000, not 0"),
        (
            SHM,
            "[load",
            "[calls]\nrow_bytes = 16000\n[load",
            10,
            "row_bytes must be from 256 to 15360",
        ),
        (SHM, "[load", "[calls]\nrows = 0\n[load", 10, "rows must be from 1 to"),
        (SHM, "client =", "klient =", 6, "unknown field `klient`"),
        (TCP, "authority = \"127.0.0.1:7300\"", "", 1, "authority needs an address"),
        (TCP, "address = \"127.0.0.1:7301\"", "", 4, "this memory_node needs an address"),
        (TCP, "address = \"127.0.0.1:7302\"", "", 6, "this compute_node needs an address"),
        (TCP, "7302", "7301", 7, "127.0.0.1:7301 is named twice"),
        (TCP, "7302", "7300", 2, "127.0.0.1:7300 is named twice"),
        (TCP, "127.0.0.1:7302", "10.0.0.1:7302", 1, "needs a key_file"),
        (TCP, "[[mem", BOTH, 4, "not both"),
        (SHM, "[load", TLS, 9, "on tcp only"),
        (TCP, "replicas = 1", "directory = \"d\"", 3, "on shm only"),
        #[cfg(not(feature = "etcd"))]
        (SHM, "[[mem", ETCD, 3, "build lotus with the feature etcd"),
        #[cfg(feature = "etcd")]
        (TCP, "[[mem", ETCD, 4, "an authority or etcd, not both"),
    ];
    for (sound, from, to, line, said) in cases {
        assert!(sound.contains(from), "{from}");
        let refused = read(&sound.replacen(from, to, 1)).expect_err(to).to_string();
        let named = format!("/etc/c.toml, line {line}: ");
        assert!(refused.starts_with(&named) && refused.contains(said), "{to}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}

#[test]
fn settings_that_do_not_add_up_are_refused_as_well() {
    let crowded = SHM.replacen("memory = \"64M\"", "coordinators = 64\ncoroutines = 64", 1);
    let refused = read(&crowded).expect_err("too many coroutines").to_string();
    assert!(refused.contains("at most"), "{refused}");
}

#[test]
fn a_file_names_the_lock_system_and_what_depends_on_owners_is_off_without_them() {
    let locks = [
        ("lotus", LockKind::Lotus),
        ("cas", LockKind::Cas),
        ("dslr", LockKind::Dslr),
        ("shiftlock", LockKind::ShiftLock),
        ("declock", LockKind::Declock),
    ];
    for (name, kind) in locks {
        let written = format!("locks = \"{name}\"\nmemory");
        let settings = read(&SHM.replacen("memory", &written, 1)).expect("sound").settings;
        assert_eq!(settings.locks, kind, "{name}");
        let owned = kind == LockKind::Lotus;
        let off = (settings.version_table_cache == 0, settings.balance.is_none());
        assert_eq!(off, (!owned, !owned), "{name}");
        let all_off = format!("version_table_cache = 0\nbalance = false\n{written}");
        read(&SHM.replacen("memory", &all_off, 1)).expect("what is off is off");
    }
}

#[test]
fn a_lock_system_that_cannot_count_so_many_requests_is_refused_at_its_line() {
    let node = |client: u16| format!("[[compute_node]]\nclient = \"127.0.0.1:{client}\"\n");
    let nodes: String = (8000..8020).map(node).collect();
    let crowded = format!("coordinators = 15\ncoroutines = 64\nlocks = \"declock\"\n{SHM}{nodes}");
    let crowded = crowded.replace("[load.smallbank]\naccounts = 100\n", "");
    let refused = read(&crowded).expect_err("too many requests").to_string();
    let named = "/etc/c.toml, line 3: locks = \"declock\": ";
    assert!(refused.starts_with(named) && refused.contains("may meet at a lock"), "{refused}");
    read(&crowded.replace("declock", "lotus")).expect("they do not meet there");
}

#[test]
fn a_key_is_read_only_where_it_is_a_secret() {
    let directory = std::env::temp_dir().join(format!("lotus-key-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("key");
    assert!(matches!(key::read(&path), Err(KeyError::Read { .. })));
    key::make(&path).expect("it can be made");
    let made = key::read(&path).expect("32 bytes");
    key::make(&path).expect("it is there");
    assert_eq!(key::read(&path).expect("the same"), made);
    let public = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&path, public).expect("it is ours");
    assert!(matches!(key::read(&path), Err(KeyError::Public(_))));
    std::fs::remove_dir_all(&directory).expect("it is ours");
}

#[cfg(feature = "etcd")]
#[test]
fn what_is_said_of_etcd_makes_sense_or_is_named() {
    let with = |etcd: &str| SHM.replacen("[[mem", &format!("[etcd]\n{etcd}\n[[mem"), 1);
    let sound = "endpoints = [\"http://a:1\", \"http://b:1\"]\nprefix = \"/l/\"";
    let file = read(&with(sound)).expect("sound");
    assert!(matches!(file.authority, Place::Etcd(_)));
    let cases = [
        ("endpoints = []\nprefix = \"/l/\"", "one at least"),
        ("endpoints = [\"10.0.0.1:2379\"]\nprefix = \"/l/\"", "http://HOST:PORT"),
        ("endpoints = [\"http://a:1\"]", "missing field `prefix`"),
        ("endpoints = [\"http://a:1\"]\nprefix = \"l\"", "ends with a slash"),
        ("endpoints = [\"https://a:1\"]\nprefix = \"/l/\"", "https needs a ca"),
        (&format!("{sound}\nuser = \"u\""), "a user needs a password_file"),
        (&format!("{sound}\ncertificate = \"c\""), "a certificate needs a key"),
        (&format!("{sound}\nport = 1"), "unknown field `port`"),
    ];
    for (etcd, said) in cases {
        let refused = read(&with(etcd)).expect_err(etcd).to_string();
        assert!(refused.starts_with("/etc/c.toml, line ") && refused.contains(said), "{refused}");
    }
}

/// A bare name was looked up in PATH where the file was named without a folder.
#[test]
fn a_program_is_found_beside_the_file() {
    let text = "fabric = \"shm\"\nprogram = \"orders\"\nmemory = \"64M\"\n[[memory_node]]\n\
                [[compute_node]]\n";
    for (file, program) in [("c.toml", "./orders"), ("/etc/c.toml", "/etc/orders")] {
        let parsed = ClusterFile::parse(Path::new(file), text, None).expect("sound");
        assert_eq!(parsed.program.map(PathBuf::into_os_string), Some(program.into()), "{file}");
    }
}
