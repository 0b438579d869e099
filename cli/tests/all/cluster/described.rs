//! Descriptions of small clusters, each in a directory of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::text;
use crate::common::{self, host, lotus, show_if_failed};

/// Settings of all clusters here: small nodes, and a lease for a busy machine.
const SMALL: &str = "replicas = 2\nmemory = \"64M\"\nlock_table = \"1M\"\ncoroutines = 4\n\
                     lease_ms = 3000\n";
/// Little room for ids of calls: the default takes more than the memory has.
const LOAD: &str = "[calls]\nrows = 4096\n[load.smallbank]\naccounts = 200\n";

/// Metrics port of the first compute node.
pub const METRICS: u16 = 7600;

/// Metrics port of the first memory node.
pub const MEMORY_METRICS: u16 = 7700;

/// A description of a cluster in a directory of its own. Dropping it ends what it has started.
pub struct Described {
    pub directory: PathBuf,
}

impl Described {
    pub fn new(name: &str, description: &str) -> Self {
        let name = format!("lotus-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a fresh directory");
        fs::write(directory.join("c.toml"), description).expect("it is ours");
        Self { directory }
    }

    pub fn shm(name: &str) -> Self {
        let nodes = "[[memory_node]]\n[[memory_node]]\n[[compute_node]]\n[[compute_node]]\n";
        Self::new(name, &format!("fabric = \"shm\"\n{SMALL}{nodes}{LOAD}"))
    }

    pub fn tcp(name: &str) -> (Self, Ipv4Addr) {
        Self::tcp_with(name, "key_file = \"key\"\n", "")
    }

    /// A cluster over `shm`, with compute nodes that applications reach.
    pub fn serving(name: &str) -> (Self, Ipv4Addr) {
        let host = host();
        let node = |index: u16| {
            let (client, metrics) = (7500 + index, METRICS + index);
            format!(
                "[[compute_node]]\nclient = \"{host}:{client}\"\nmetrics = \"{host}:{metrics}\"\n"
            )
        };
        let nodes = ["[[memory_node]]\n[[memory_node]]\n".to_owned(), node(0), node(1)].concat();
        let head = "fabric = \"shm\"\nclient_key_file = \"key\"\n";
        (Self::new(name, &format!("{head}{SMALL}{nodes}{LOAD}")), host)
    }

    /// A cluster over TCP, with compute nodes that applications reach.
    pub fn serving_tcp(name: &str) -> (Self, Ipv4Addr) {
        let (described, host) = Self::tcp(name);
        let mut file = fs::read_to_string(described.file()).expect("it is ours");
        for (port, index) in [(7403, 0), (7404, 1)] {
            let at = format!("address = \"{host}:{port}\"\n");
            let (client, metrics) = (7500 + index, METRICS + index);
            let served = format!("client = \"{host}:{client}\"\nmetrics = \"{host}:{metrics}\"\n");
            file = file.replace(&at, &format!("{at}{served}"));
        }
        fs::write(described.file(), file).expect("it is ours");
        (described, host)
    }

    /// Gives memory nodes metrics ports, from [`MEMORY_METRICS`] on.
    pub fn with_memory_metrics(self, host: Ipv4Addr) -> Self {
        let file = fs::read_to_string(self.file()).expect("it is ours");
        let mut parts = file.split("[[memory_node]]\n");
        let mut all = parts.next().unwrap_or_default().to_owned();
        for (part, port) in parts.zip(MEMORY_METRICS..) {
            all += &format!("[[memory_node]]\nmetrics = \"{host}:{port}\"\n{part}");
        }
        fs::write(self.file(), all).expect("it is ours");
        self
    }

    /// Adds a third memory node, at `host` if nodes have addresses.
    pub fn with_three_memory_nodes(self, host: Option<Ipv4Addr>) -> Self {
        let file = fs::read_to_string(self.file()).expect("it is ours");
        let address = host.map_or(String::new(), |host| format!("address = \"{host}:7405\"\n"));
        fs::write(self.file(), format!("{file}[[memory_node]]\n{address}")).expect("it is ours");
        self
    }

    /// Adds a third memory node, at `host` if nodes have addresses, and a third copy.
    pub fn with_three_copies(self, host: Option<Ipv4Addr>) -> Self {
        let file = fs::read_to_string(self.file()).expect("it is ours");
        fs::write(self.file(), file.replace("replicas = 2", "replicas = 3")).expect("it is ours");
        self.with_three_memory_nodes(host)
    }

    pub fn tcp_with(name: &str, head: &str, tail: &str) -> (Self, Ipv4Addr) {
        let host = host();
        let node = |kind, port| format!("[[{kind}_node]]\naddress = \"{host}:{port}\"\n");
        let nodes = [
            node("memory", 7401),
            node("memory", 7402),
            node("compute", 7403),
            node("compute", 7404),
        ];
        let (nodes, authority) = (nodes.concat(), format!("authority = \"{host}:7400\"\n"));
        let head = format!("fabric = \"tcp\"\n{head}{authority}");
        (Self::new(name, &format!("{head}{SMALL}{nodes}{LOAD}{tail}")), host)
    }

    pub fn file(&self) -> String {
        self.directory.join("c.toml").into_os_string().into_string().expect("UTF-8")
    }

    pub fn cluster(&self, arguments: &[&str]) -> Output {
        // A busy machine may need longer than the minute that is the default.
        let waits = arguments.first() == Some(&"up") && !arguments.contains(&"--wait");
        let patience: &[&str] = if waits { &["--wait", "600"] } else { &[] };
        lotus(&[&["cluster"], arguments, patience, &["--file", &self.file()]].concat())
    }

    /// Output of a command, which must succeed.
    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.cluster(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output), self.logs());
        String::from_utf8(output.stdout).expect("text")
    }

    pub fn status(&self) -> Value {
        let output = self.cluster(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let healthy = status["healthy"] == true;
        assert_eq!(output.status.code(), Some(i32::from(!healthy)), "{status}");
        status
    }

    pub fn logs(&self) -> String {
        common::logs(&self.directory)
    }

    /// Files that are left beside logs, and marks that the cluster has lived.
    pub fn left(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.join("c.state")).expect("the logs stay");
        let names = files.map(|entry| entry.expect("readable").file_name().into_string());
        let names = names.map(|name| name.expect("UTF-8"));
        let stays = |name: &String| [".log", ".lived"].iter().any(|end| name.ends_with(end));
        names.filter(|name| !stays(name) && name != "lock").collect()
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        show_if_failed(|| self.logs());
        // A failed test leaves nothing running.
        let _ = self.cluster(&["down", "--discard"]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}
