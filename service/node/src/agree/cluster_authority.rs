//! The authority of a cluster, at the place that the cluster's file names: in the process of memory
//! node 0, or in etcd.
//!
//! # Lives
//! The authority in memory node 0 begins empty and ends with memory node 0, as all data does. The
//! authority has an id, so that nodes do not mistake a later authority for the lost authority: a
//! node [stays](ClusterAuthority::stay) with the first. etcd would remember a cluster after the
//! loss of its memory, and the next cluster would adopt the stale state. So memory node 0 begins a
//! *life* in etcd: memory node 0 writes a key, and the write's version in etcd becomes part of the
//! prefix of all other keys. When memory node 0 ends, or `lotus cluster down` finds that it was
//! killed, and no compute node takes part any more (`alive`), the key records the end, and no node
//! joins until there is a new life. While compute nodes live without memory node 0 the life goes
//! on, and memory node 0 returns to it as any memory node does. A process that takes part learns
//! within seconds that its life was ended, or its authority replaced ([`LostAuthority`]).

use std::time::Duration;

use lotus_authority::remote::{Address, AuthorityServer, ConnectError, RemoteAuthority};
use lotus_authority::{Authority, AuthorityError};
use lotus_authority::{Version, Versioned};
use lotus_fabric::env::Env;

#[cfg(feature = "etcd")]
use super::alive::{self, Others};
#[cfg(feature = "etcd")]
use super::in_etcd::{InEtcd, LastWord};
use crate::config::authority::{PATIENCE, Place};
use crate::config::file::ClusterFile;
#[cfg(feature = "etcd")]
use crate::config::name::NodeName;
use crate::host::stop::{StartupEnd, Stop};

/// Timeout for answers of participating compute nodes. They poll five times a second, but an audit
/// may keep a node busy for long, or etcd may be out of a node's reach.
#[cfg(feature = "etcd")]
const ANSWERING: Duration = Duration::from_secs(20);

/// Error: no new life begins beside a life that may go on.
#[cfg(feature = "etcd")]
fn silent_life(file: &ClusterFile, nodes: &[NodeName]) -> String {
    format!(
        "a life of the cluster has begun in etcd and not ended, and {} does not answer. If all its \
         compute nodes have ended, lotus cluster down --others-have-ended --file {} on this host \
         says so; then start this node again",
        in_words(nodes),
        file.path.display()
    )
}

/// Error: a life is not ended because compute nodes take part in it, or may.
#[cfg(feature = "etcd")]
fn lived_life(file: &ClusterFile, others: &Others) -> String {
    let not_ended = "the life of the cluster in etcd was not ended";
    match others {
        Others::Answer(nodes) => format!(
            "{not_ended}: {} takes part in it. lotus cluster down on the hosts of all nodes ends \
             it, on this one last",
            in_words(nodes)
        ),
        Others::Silent(nodes) => format!(
            "{not_ended}: {} does not answer, and may take part in it. If that has ended, lotus \
             cluster down --others-have-ended --file {} on this host says so",
            in_words(nodes),
            file.path.display()
        ),
        Others::Gone => unreachable!("a life that nothing takes part in is ended"),
    }
}

#[cfg(feature = "etcd")]
fn in_words(nodes: &[NodeName]) -> String {
    let nodes: Vec<String> = nodes.iter().map(|node| node.in_words()).collect();
    nodes.join(", ")
}

/// The operator's statement on compute nodes that do not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silent {
    /// Unknown: the nodes may live.
    MayLive,
    /// The nodes have ended, as the operator says.
    HaveEnded,
}

/// Reason why the authority that a process [stays](ClusterAuthority::stay) with is lost for good,
/// and the cluster with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LostAuthority {
    /// Its process has ended.
    #[error("memory node 0 has ended and another authority is in its place")]
    Replaced,
    /// The life was ended in etcd (I224).
    #[cfg(feature = "etcd")]
    #[error("the life of the cluster in etcd was ended")]
    LifeEnded,
}

/// The authority, as reached by every process but its host.
pub enum ClusterAuthority {
    /// Hosted by memory node 0's process.
    Hosted(RemoteAuthority),
    /// Stored in etcd.
    #[cfg(feature = "etcd")]
    Etcd(InEtcd),
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityUnreachable {
    /// No answer, or the cluster has not begun: try again later.
    #[error("{0}")]
    Silent(String),
    /// The authority answers with a refusal.
    #[error("{0}")]
    Refused(String),
}

impl From<ConnectError> for AuthorityUnreachable {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Unreachable { .. } => Self::Silent(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

impl ClusterAuthority {
    /// Creates the authority named by the file, without connecting.
    ///
    /// # Errors
    /// A sentence: keys or certificates are unusable.
    pub fn of(file: &ClusterFile) -> Result<Self, String> {
        match &file.authority {
            Place::Hosted(address) => {
                let security = file.security().map_err(|error| error.to_string())?;
                let address = address.address().map_err(|error| error.to_string())?;
                Ok(Self::Hosted(RemoteAuthority::new(address, security, PATIENCE)))
            }
            #[cfg(feature = "etcd")]
            Place::Etcd(members) => Ok(Self::Etcd(InEtcd::new(members)?)),
        }
    }

    /// Connects now, to report connection errors.
    ///
    /// # Errors
    /// [`AuthorityUnreachable`].
    pub fn connect(&self) -> Result<(), AuthorityUnreachable> {
        match self {
            Self::Hosted(remote) => Ok(remote.connect()?),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.connect(),
        }
    }

    /// Accepts any authority at the configured place, until [`stay`](Self::stay) is called: in
    /// etcd, the last life.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "it does so anyway"))]
    pub fn follow(&self, env: &Env) {
        match self {
            Self::Hosted(_) => {}
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.follow(env),
        }
    }

    /// From now on, accepts only the authority that answers now: an authority that comes back
    /// without its state is a different authority. etcd keeps its state through outages; there,
    /// accepts only the life found.
    pub fn stay(&self, env: &Env) {
        match self {
            Self::Hosted(remote) => remote.stay(env),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.stay(env),
        }
    }

    /// Whether the authority that this process [stays](Self::stay) with is lost for good. Further
    /// questions fail.
    pub fn lost(&self) -> Option<LostAuthority> {
        match self {
            Self::Hosted(remote) => remote.is_replaced().then_some(LostAuthority::Replaced),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.is_over().then_some(LostAuthority::LifeEnded),
        }
    }

    /// Whether the authority's values may belong to another life of the cluster.
    pub const fn has_lives(&self) -> bool {
        match self {
            Self::Hosted(_) => false,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => true,
        }
    }

    /// The life in progress or cut short; `None` for an authority without lives.
    ///
    /// # Errors
    /// [`AuthorityUnreachable`].
    pub fn life(&self) -> Result<Option<Version>, AuthorityUnreachable> {
        match self {
            Self::Hosted(_) => Ok(None),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.last_word().map(LastWord::life),
        }
    }

    /// Ends the current life, unless compute nodes take part (I224). If etcd does not answer, the
    /// life is left unchanged, and the next start of memory node 0 decides.
    ///
    /// # Errors
    /// A sentence: compute nodes take part in the life, or may.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "it ends with its host"))]
    pub fn end_life(&self, file: &ClusterFile, env: &Env, silent: Silent) -> Result<(), String> {
        match self {
            // The hosted authority has ended with its host.
            Self::Hosted(_) => Ok(()),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => {
                if !matches!(etcd.last_word().map(LastWord::life), Ok(Some(_))) {
                    return Ok(());
                }
                match alive::look(file, etcd, env, ANSWERING, || false) {
                    Err(_) => return Ok(()),
                    Ok(Others::Gone) => {}
                    Ok(Others::Silent(_)) if silent == Silent::HaveEnded => {}
                    Ok(others) => return Err(lived_life(file, &others)),
                }
                // After a failure, the next start of memory node 0 reports the life.
                let _ = etcd.end();
                Ok(())
            }
        }
    }

    fn inner(&self) -> &dyn Authority {
        match self {
            Self::Hosted(remote) => remote,
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd,
        }
    }
}

/// The authority named by the file, without connecting.
///
/// # Errors
/// As [`ClusterAuthority::of`].
pub fn authority(file: &ClusterFile) -> Result<ClusterAuthority, String> {
    ClusterAuthority::of(file)
}

impl Authority for ClusterAuthority {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.inner().read(key)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.inner().compare_and_swap(key, expected, value)
    }

    fn changed_since(&self, key: &str, seen: Version) -> Result<Option<Versioned>, AuthorityError> {
        self.inner().changed_since(key, seen)
    }

    fn silence(&self) -> Duration {
        self.inner().silence()
    }
}

/// Memory node 0's part in the authority while it lives.
pub enum Host {
    /// Serves the authority.
    Server(AuthorityServer),
    /// Has begun the cluster's life in etcd.
    #[cfg(feature = "etcd")]
    Etcd(InEtcd),
}

/// Findings of memory node 0 before it lends memory and starts or joins the authority.
pub enum Prepared {
    /// Memory node 0 is to serve the authority, at this address.
    Server(Address),
    /// Memory node 0 is to begin a life in etcd, after this entry.
    #[cfg(feature = "etcd")]
    New(InEtcd, LastWord),
    /// A life in etcd goes on without memory node 0.
    #[cfg(feature = "etcd")]
    Returning(InEtcd),
}

impl Prepared {
    /// Authority of the surviving cluster, if any.
    pub fn running(&self) -> Option<&dyn Authority> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Returning(etcd) => Some(etcd),
            _ => None,
        }
    }
}

impl Host {
    /// Checks whether a cluster goes on without memory node 0, which is possible only with etcd: no
    /// life begins beside another (I178). Waits for etcd, without ending a life.
    ///
    /// # Errors
    /// [`StartupEnd`].
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "nobody is waited for"))]
    pub fn prepare(
        file: &ClusterFile,
        env: &Env,
        patience: Duration,
        stop: &Stop,
    ) -> Result<Prepared, StartupEnd> {
        match &file.authority {
            Place::Hosted(address) => {
                let address = address.listens().map_err(|error| error.to_string())?;
                Ok(Prepared::Server(address))
            }
            #[cfg(feature = "etcd")]
            Place::Etcd(members) => {
                let etcd = InEtcd::new(members)?;
                let mut word = etcd.last_word();
                stop.wait_until(env, patience, || match &word {
                    Err(AuthorityUnreachable::Silent(why)) => {
                        let missing = Some(why.clone());
                        word = etcd.last_word();
                        missing
                    }
                    _ => None,
                })?;
                let sentence = |error: AuthorityUnreachable| error.to_string();
                let word = word.map_err(sentence)?;
                let is_told = || stop.is_told();
                let others = match word.life() {
                    Some(_) => alive::look(file, &etcd, env, ANSWERING, is_told),
                    None => Ok(Others::Gone),
                };
                if is_told() {
                    return Err(StartupEnd::Told);
                }
                match others.map_err(|error| error.to_string())? {
                    Others::Answer(_) => {
                        tracing::info!(etcd = %members, "returning to a cluster that goes on");
                        Ok(Prepared::Returning(etcd))
                    }
                    Others::Gone => Ok(Prepared::New(etcd, word)),
                    Others::Silent(nodes) => Err(silent_life(file, &nodes).into()),
                }
            }
        }
    }

    /// Starts the authority in the process of memory node 0, or begins a life in etcd, or returns
    /// to a life that goes on.
    ///
    /// # Errors
    /// [`StartupEnd`].
    pub fn start(file: &ClusterFile, env: &Env, prepared: Prepared) -> Result<Self, StartupEnd> {
        match prepared {
            Prepared::Server(address) => {
                let security = file.security().map_err(|error| error.to_string())?;
                let server = AuthorityServer::start(address, &security, env);
                let server = server.map_err(|error| error.to_string())?;
                tracing::info!(address = %server.address(), "hosting the authority");
                Ok(Self::Server(server))
            }
            #[cfg(feature = "etcd")]
            Prepared::New(etcd, word) => {
                etcd.begin(word).map_err(|error| error.to_string())?;
                tracing::info!("a new life of the cluster has begun in etcd");
                etcd.stay(env);
                Ok(Self::Etcd(etcd))
            }
            #[cfg(feature = "etcd")]
            Prepared::Returning(etcd) => {
                etcd.stay(env);
                Ok(Self::Etcd(etcd))
            }
        }
    }

    /// Whether the authority is lost for good; see [`ClusterAuthority::lost`].
    pub fn lost(&self) -> Option<LostAuthority> {
        match self {
            Self::Server(_) => None,
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.is_over().then_some(LostAuthority::LifeEnded),
        }
    }

    /// The authority's values.
    pub fn store(&self) -> &dyn Authority {
        match self {
            Self::Server(server) => server.store(),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd,
        }
    }

    /// Whether processes of an earlier cluster, whose authority was here, have called.
    pub fn is_called_by_an_earlier_life(&self) -> bool {
        match self {
            Self::Server(server) => server.is_called_by_an_earlier_life(),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => false,
        }
    }

    /// Number of connections refused by the authority; 0 if served elsewhere.
    pub fn refused(&self) -> u64 {
        match self {
            Self::Server(server) => server.refused(),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => 0,
        }
    }

    /// Ends the cluster's life, unless compute nodes live.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "nobody outlives it"))]
    pub fn end(&self, file: &ClusterFile, env: &Env) {
        match self {
            // The server ends when it is dropped.
            Self::Server(_) => {}
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) if etcd.is_over() => {}
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => match alive::look(file, etcd, env, PATIENCE, || false) {
                Ok(Others::Gone) => {
                    if let Err(error) = etcd.end() {
                        tracing::warn!(%error, "etcd does not know that the cluster has ended");
                    }
                }
                Ok(others) => tracing::info!(?others, "the cluster goes on without this node"),
                Err(error) => {
                    tracing::warn!(%error, "etcd does not say whether the cluster goes on");
                }
            },
        }
    }
}
