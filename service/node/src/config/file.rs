//! The configuration of a cluster: one file, the same for every node (docs/operations.md).
//!
//! [`ClusterFile::read`] runs all checks that need only the file: an unknown field, a value out of
//! range, a missing or repeated address is an error that names the line. Later errors depend on the
//! machine: ports, memory, directories.

mod addresses;
mod applications;
mod engine;

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use lotus::{ClusterBuilder, MAX_RECORD_BYTES, TableSpec};
use lotus_authority::remote::Security;
use lotus_fabric::ids::NodeId;
use lotus_fabric::tcp;
use lotus_server::{CallRecords, RequiredShape};
use serde::Deserialize;
use toml::Spanned;

use self::addresses::{advertised, is_far};
pub use self::applications::Applications;
use self::applications::WrittenClients;
use super::address::{Advertised, HostPort, Hosted, Unknown};
#[cfg(feature = "etcd")]
use super::authority::Members;
use super::authority::{Place, WrittenEtcd};
use super::error::FileError;
use super::namespaces::Namespaces;
use super::section::{Section, invalid, line};
use super::settings::Settings;
use super::snapshots::{IfDamaged, Snapshots};
use super::tables::{self, WrittenTable};
use super::trust::{TlsFiles, Trust};

/// File name of the authority's socket in the cluster's directory.
const AUTHORITY_SOCKET: &str = "authority.sock";
/// Extension of the applications' key file, unless the file names one.
const CLIENT_KEY_EXTENSION: &str = "client.key";
/// Minimum coroutines of a coordinator that serves applications: one for calls, one for interactive
/// transactions, one for the engine's own work.
const MIN_SERVING_COROUTINES: usize = 3;
/// Permitted bytes of a row that remembers calls: from room for one call to the largest row.
const CALL_BYTES: RangeInclusive<u64> = 256..=MAX_RECORD_BYTES as u64;
/// Divisor of the memory for the default size of call records.
const CALLS_PART: u64 = 8;
/// Versions of a row that remembers calls.
const CALL_VERSIONS: u64 = 2;

/// The file's contents, before the checks. docs/operations.md describes every field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    fabric: Spanned<FabricName>,
    program: Option<PathBuf>,
    directory: Option<Spanned<PathBuf>>,
    key_file: Option<Spanned<PathBuf>>,
    client_key_file: Option<PathBuf>,
    tls: Option<Spanned<TlsFiles>>,
    authority: Option<Spanned<HostPort>>,
    authority_bind: Option<Spanned<HostPort>>,
    etcd: Option<Spanned<WrittenEtcd>>,
    replicas: Option<Spanned<u64>>,
    memory: Option<Spanned<String>>,
    lease_ms: Option<Spanned<u64>>,
    coordinators: Option<Spanned<u64>>,
    coroutines: Option<Spanned<u64>>,
    lock_table: Option<Spanned<String>>,
    version_table_cache: Option<Spanned<u64>>,
    balance: Option<Spanned<bool>>,
    locks: Option<Spanned<String>>,
    memory_node: Vec<Spanned<WrittenMemory>>,
    compute_node: Vec<Spanned<WrittenCompute>>,
    load: Option<Spanned<toml::Table>>,
    snapshots: Option<WrittenSnapshots>,
    calls: Option<WrittenCalls>,
    clients: Option<WrittenClients>,
    #[serde(default)]
    table: Vec<Spanned<WrittenTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCalls {
    rows: Option<Spanned<u64>>,
    row_bytes: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSnapshots {
    directory: PathBuf,
    keep: Option<Spanned<u64>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FabricName {
    Shm,
    Tcp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMemory {
    address: Option<Spanned<HostPort>>,
    bind: Option<Spanned<HostPort>>,
    metrics: Option<Spanned<HostPort>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCompute {
    address: Option<Spanned<HostPort>>,
    bind: Option<Spanned<HostPort>>,
    client: Option<Spanned<HostPort>>,
    client_bind: Option<Spanned<HostPort>>,
    metrics: Option<Spanned<HostPort>>,
}

/// Transport between the nodes.
#[derive(Clone, Debug)]
pub enum Net {
    /// Shared memory, through sockets in a directory.
    Shm {
        /// Directory of the sockets.
        directory: PathBuf,
    },
    /// TCP, at the nodes' addresses.
    Tcp {
        /// Address of every node, memory nodes first.
        addresses: BTreeMap<NodeId, Advertised>,
        /// Credentials by which nodes admit each other.
        trust: Trust,
    },
}

/// Memory node: settings that the fabric does not need.
#[derive(Clone, Debug)]
pub struct MemoryNode {
    /// Address of the node's metrics, if served.
    pub metrics: Option<HostPort>,
}

/// Compute node: settings that the fabric does not need.
#[derive(Clone, Debug)]
pub struct ComputeNode {
    /// Address for applications, if the node serves applications.
    pub client: Option<Advertised>,
    /// Address of the node's metrics, if served.
    pub metrics: Option<HostPort>,
}

/// A checked description of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Directory of this host for process ids, logs and, for `shm`, sockets.
    pub state: PathBuf,
    /// Program that runs the compute nodes, in place of `lotus cn`.
    pub program: Option<PathBuf>,
    /// Transport between the nodes.
    pub net: Net,
    /// The memory nodes.
    pub memory_nodes: Vec<MemoryNode>,
    /// The compute nodes.
    pub compute_nodes: Vec<ComputeNode>,
    /// Place of the authority.
    pub authority: Place,
    /// Credentials by which compute nodes admit applications.
    pub clients: Trust,
    /// Credentials that this host shows as an application.
    application: Option<Trust>,
    /// Table `[load]`, if present: the initial data of a new cluster, in the terms of its nodes'
    /// program.
    pub load: Option<Section>,
    /// Directory of snapshots and how many to keep, if the cluster takes snapshots.
    pub snapshots: Option<Snapshots>,
    /// Size of the table that remembers calls with an id.
    pub calls: CallRecords,
    /// Tables of a new cluster, besides the tables of its nodes' program.
    pub tables: Vec<TableSpec>,
    /// Rights and limits of applications.
    pub applications: Applications,
    /// Settings of the engine and of the nodes' memory.
    pub settings: Settings,
    /// Network namespaces to start nodes in; not in the file. `None` for this process's namespace.
    pub namespaces: Option<Namespaces>,
}

impl ClusterFile {
    /// Reads and checks a file. `state` replaces the state directory, which is beside the file by
    /// default.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read(path: &Path, state: Option<&Path>) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text, state)
    }

    /// Checks the text of a file, which is read from `path`.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn parse(path: &Path, text: &str, state: Option<&Path>) -> Result<Self, FileError> {
        let reader = Reader { path, text };
        let written: Written = toml::from_str(text)
            .map_err(|error| reader.wrong(error.span().unwrap_or(0..0), error.message()))?;
        let beside = path.with_extension("state");
        let state = state.map_or(beside, Path::to_owned);
        let net = reader.net(&written, &state)?;
        let settings = reader.settings(&written)?;
        reader.check_engine(&written, &settings)?;
        let plain = |at: &Option<Spanned<HostPort>>| at.as_ref().map(|at| at.as_ref().clone());
        let memory_nodes = written.memory_node.iter();
        let memory_nodes =
            memory_nodes.map(|node| MemoryNode { metrics: plain(&node.as_ref().metrics) });
        let memory_nodes = memory_nodes.collect();
        let compute_nodes = written.compute_node.iter().map(|node| {
            let node = node.as_ref();
            ComputeNode {
                client: advertised(&node.client, &node.client_bind),
                metrics: plain(&node.metrics),
            }
        });
        let compute_nodes = compute_nodes.collect();
        let authority = reader.authority(&written, &net)?;
        let (clients, application) = reader.clients(&written, &net)?;
        reader.check_applications(&written, &settings, &clients)?;
        let snapshots = reader.snapshots(&written)?;
        let calls = reader.calls(&written, &settings)?;
        let tables = tables::specs(&written.table).map_err(|(at, why)| reader.wrong(at, &why))?;
        let applications = reader.applications(&written, &settings)?;
        let load = written.load.map(|load| Section::new(path, text, load.span().start));
        // Contains a slash: a bare name would be looked up in PATH.
        let beside = |program| Path::new(".").join(reader.home()).join(program);
        let program = written.program.map(beside);
        let path = path.to_owned();
        Ok(Self {
            path,
            state,
            program,
            net,
            memory_nodes,
            compute_nodes,
            authority,
            clients,
            application,
            load,
            snapshots,
            calls,
            tables,
            applications,
            settings,
            namespaces: None,
        })
    }

    /// Builder of the engine with these settings.
    pub fn builder(&self) -> ClusterBuilder {
        self.settings.builder()
    }

    /// Number of memory and compute nodes.
    pub fn node_count(&self) -> u16 {
        (self.settings.memory_nodes + self.settings.compute_nodes) as u16
    }

    /// Credentials by which nodes admit each other.
    ///
    /// # Errors
    /// [`FileError::Key`], or an error in the TLS files.
    pub fn security(&self) -> Result<Security, FileError> {
        match &self.net {
            Net::Tcp { trust, .. } => trust.security(),
            Net::Shm { .. } => Ok(Security::PlainOnLoopback),
        }
    }

    /// Whether compute nodes serve applications: all nodes or none.
    pub fn serves_applications(&self) -> bool {
        self.compute_nodes.iter().any(|node| node.client.is_some())
    }

    /// Credentials that this host shows to compute nodes as an application.
    ///
    /// # Errors
    /// [`FileError`]: a file is unusable, or the cluster file names no credentials.
    pub fn as_application(&self) -> Result<Security, FileError> {
        match &self.application {
            Some(trust) => trust.security(),
            None => Err(FileError::NoClient(self.path.clone())),
        }
    }

    /// Resolves the host names that a node needs. A later look-up may differ.
    ///
    /// # Errors
    /// [`Unknown`]: a name cannot be resolved here, perhaps not yet.
    pub fn look_up_names(&self) -> Result<(), Unknown> {
        match &self.authority {
            Place::Hosted(hosted) => drop(hosted.address()?),
            #[cfg(feature = "etcd")]
            Place::Etcd(_) => {}
        }
        match &self.net {
            Net::Shm { .. } => Ok(()),
            Net::Tcp { addresses, .. } => {
                addresses.values().try_for_each(|at| at.address.look_up().map(drop))
            }
        }
    }

    /// Configuration of the `tcp` fabric for a process that serves `node`; `None` on `shm`.
    ///
    /// # Errors
    /// [`FileError::Key`], [`FileError::Unknown`].
    pub fn tcp(&self, node: u16) -> Result<Option<tcp::Config>, FileError> {
        let Net::Tcp { addresses, .. } = &self.net else { return Ok(None) };
        let reached = addresses.iter().map(|(node, at)| Ok((*node, at.address.look_up()?)));
        let served = NodeId(node);
        let listens = addresses.get(&served).and_then(|at| at.bind.as_ref());
        let listens = listens.map(|bind| Ok((served, bind.look_up()?)));
        Ok(Some(tcp::Config {
            addresses: reached.collect::<Result<_, FileError>>()?,
            listen: listens.into_iter().collect::<Result<_, FileError>>()?,
            served: vec![served],
            security: self.security()?,
            ..tcp::Config::loopback(self.node_count())
        }))
    }
}

/// Checks the contents; finds the lines of errors.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, span: Range<usize>, why: &str) -> FileError {
        invalid(self.path, line(self.text, span.start), why)
    }

    /// Error at a field, or at the top of the file if the field is not written.
    fn at<T>(&self, field: Option<&Spanned<T>>, why: &str) -> FileError {
        self.wrong(field.map_or(0..0, Spanned::span), why)
    }

    fn number(
        &self,
        field: &Option<Spanned<u64>>,
        default: u64,
        range: RangeInclusive<u64>,
        name: &str,
    ) -> Result<u64, FileError> {
        let value = field.as_ref().map_or(default, |field| *field.as_ref());
        let (least, most) = (range.start(), range.end());
        let why = || format!("{name} must be from {least} to {most}, not {value}");
        range.contains(&value).then_some(value).ok_or_else(|| self.at(field.as_ref(), &why()))
    }

    fn snapshots(&self, written: &Written) -> Result<Option<Snapshots>, FileError> {
        let Some(snapshots) = &written.snapshots else { return Ok(None) };
        let keep = self.number(&snapshots.keep, 2, 1..=1000, "keep")? as usize;
        let directory = self.home().join(&snapshots.directory);
        Ok(Some(Snapshots { directory, keep, if_damaged: IfDamaged::Stop }))
    }

    /// Records of calls: by default few enough to take at most an eighth of the memory. A cluster
    /// that already has records keeps the shape, and an explicit setting must match.
    fn calls(&self, written: &Written, settings: &Settings) -> Result<CallRecords, FileError> {
        let usual = CallRecords::default();
        let unwritten = WrittenCalls::default();
        let WrittenCalls { rows, row_bytes } = written.calls.as_ref().unwrap_or(&unwritten);
        let (usual_bytes, is_written) = (usual.row_bytes.into(), row_bytes.is_some());
        let row_bytes = self.number(row_bytes, usual_bytes, CALL_BYTES, "row_bytes")?;
        let fit = settings.memory_bytes / CALLS_PART / (CALL_VERSIONS * row_bytes);
        let required = RequiredShape {
            rows: rows.as_ref().map(|rows| *rows.as_ref()),
            row_bytes: is_written.then_some(row_bytes as u32),
        };
        let rows = self.number(rows, usual.rows.min(fit).max(1), 1..=1 << 24, "rows")?;
        Ok(CallRecords { rows, row_bytes: row_bytes as u32, required, ..usual })
    }

    fn bytes(
        &self,
        field: &Option<Spanned<String>>,
        default: &str,
        parse: fn(&str) -> Result<u64, String>,
        name: &str,
    ) -> Result<u64, FileError> {
        let text = field.as_ref().map_or(default, |field| field.as_ref());
        parse(text).map_err(|why| self.at(field.as_ref(), &format!("{name}: {why}")))
    }

    fn net(&self, written: &Written, state: &Path) -> Result<Net, FileError> {
        self.check_addresses(written)?;
        let home = self.home();
        let place = |path: &Spanned<PathBuf>| home.join(path.as_ref());
        if *written.fabric.as_ref() == FabricName::Shm {
            let directory = written.directory.as_ref().map_or(state.to_owned(), place);
            return Ok(Net::Shm { directory });
        }
        let missing = |span, what: &str| self.wrong(span, &format!("{what} needs an address"));
        let memory = written.memory_node.iter().map(|node| {
            let WrittenMemory { address, bind, .. } = node.as_ref();
            let missing = || missing(node.span(), "this memory_node");
            advertised(address, bind).ok_or_else(missing)
        });
        let compute = written.compute_node.iter().map(|node| {
            let WrittenCompute { address, bind, .. } = node.as_ref();
            let missing = || missing(node.span(), "this compute_node");
            advertised(address, bind).ok_or_else(missing)
        });
        let all = memory.chain(compute).collect::<Result<Vec<_>, _>>()?;
        let authority = advertised(&written.authority, &written.authority_bind);
        let trust = match (&written.key_file, &written.tls) {
            (Some(key), Some(_)) => {
                return Err(self.wrong(key.span(), "a cluster has a key_file or tls, not both"));
            }
            (Some(key), None) => Trust::KeyFile(place(key)),
            (None, Some(tls)) => Trust::Tls(tls.as_ref().of_node(home)),
            (None, None) => Trust::Loopback,
        };
        let both = |at: &Advertised| [Some(at.address.clone()), at.bind.clone()];
        let far = all.iter().chain(&authority).flat_map(both).flatten().find(is_far);
        if let (Trust::Loopback, Some(far)) = (&trust, far) {
            let why = format!("{far} is beyond loopback, so the cluster needs a key_file or tls");
            return Err(self.wrong(written.fabric.span(), &why));
        }
        let addresses = (0..).map(NodeId).zip(all).collect();
        Ok(Net::Tcp { addresses, trust })
    }

    /// Place of the authority.
    fn authority(&self, written: &Written, net: &Net) -> Result<Place, FileError> {
        match (&written.etcd, &written.authority, net) {
            (Some(etcd), Some(_), _) => {
                Err(self.wrong(etcd.span(), "a cluster has an authority or etcd, not both"))
            }
            (Some(etcd), None, _) => self.etcd(etcd),
            (None, Some(address), _) => {
                let address = address.as_ref().clone();
                let bind = written.authority_bind.as_ref().map(|at| at.as_ref().clone());
                Ok(Place::Hosted(Hosted::Tcp(Advertised { address, bind })))
            }
            (None, None, Net::Shm { directory }) => {
                Ok(Place::Hosted(Hosted::Unix(directory.join(AUTHORITY_SOCKET))))
            }
            (None, None, Net::Tcp { .. }) => Err(self.wrong(0..0, "authority needs an address")),
        }
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd(&self, written: &Spanned<WrittenEtcd>) -> Result<Place, FileError> {
        let why = "this build has no etcd: build lotus with the feature etcd";
        Err(self.wrong(written.span(), why))
    }

    #[cfg(feature = "etcd")]
    fn etcd(&self, written: &Spanned<WrittenEtcd>) -> Result<Place, FileError> {
        let etcd = written.as_ref();
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        let is_sealed = etcd.endpoints.iter().any(|url| url.starts_with("https://"));
        let why = if etcd.endpoints.is_empty() || !etcd.endpoints.iter().all(is_url) {
            "endpoints are http://HOST:PORT or https://HOST:PORT, one at least"
        } else if !etcd.prefix.ends_with('/') {
            "a prefix ends with a slash"
        } else if etcd.user.is_some() != etcd.password_file.is_some() {
            "a user needs a password_file, and the other way round"
        } else if is_sealed != etcd.ca.is_some() {
            "https needs a ca, and the other way round"
        } else if etcd.certificate.is_some() != etcd.key.is_some() {
            "a certificate needs a key, and the other way round"
        } else {
            return Ok(Place::Etcd(Members::new(etcd, self.home())));
        };
        Err(self.wrong(written.span(), why))
    }

    /// Credentials by which compute nodes admit applications, and credentials that this host shows
    /// as an application.
    fn clients(&self, written: &Written, net: &Net) -> Result<(Trust, Option<Trust>), FileError> {
        let with_key = |path: PathBuf| (Trust::KeyFile(path.clone()), Some(Trust::KeyFile(path)));
        let serves = written.compute_node.iter().any(|node| node.as_ref().client.is_some());
        Ok(match (&written.client_key_file, net, &written.tls) {
            (Some(key), ..) => with_key(self.home().join(key)),
            // Beside the nodes' own key, which no application should have.
            (None, Net::Tcp { trust: Trust::KeyFile(key), .. }, _) if serves => {
                with_key(key.with_extension(CLIENT_KEY_EXTENSION))
            }
            (None, Net::Tcp { trust: trust @ Trust::Tls(_), .. }, Some(tls)) => {
                let own = tls.as_ref().of_application(self.home());
                let own = own.map_err(|why| self.wrong(tls.span(), why))?;
                (trust.clone(), own.map(Trust::Tls))
            }
            _ => (Trust::Loopback, Some(Trust::Loopback)),
        })
    }

    fn home(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Checks that client addresses, metrics, credentials and coroutines fit together.
    fn check_applications(
        &self,
        written: &Written,
        settings: &Settings,
        trust: &Trust,
    ) -> Result<(), FileError> {
        let clients = || {
            let nodes = written.compute_node.iter().map(Spanned::as_ref);
            nodes.flat_map(|node| [node.client.as_ref(), node.client_bind.as_ref()]).flatten()
        };
        let serves = clients().next().is_some();
        let far = clients().find(|at| is_far(at.as_ref()));
        if let (Trust::Loopback, Some(far)) = (trust, far) {
            let address = far.as_ref();
            let why = format!("{address} is beyond loopback: a client_key_file is missing");
            return Err(self.wrong(far.span(), &why));
        }
        if serves && settings.coroutines < MIN_SERVING_COROUTINES {
            let why = format!(
                "nodes that serve applications need at least {MIN_SERVING_COROUTINES} coroutines"
            );
            return Err(self.at(written.coroutines.as_ref(), &why));
        }
        for node in &written.compute_node {
            let why = match node.as_ref() {
                WrittenCompute { client: None, .. } if serves => {
                    "applications are served by all compute nodes, with a client address, or none"
                }
                WrittenCompute { client: None, metrics: Some(_), .. } => {
                    "metrics are served beside applications: a client address is missing"
                }
                _ => continue,
            };
            return Err(self.wrong(node.span(), why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
