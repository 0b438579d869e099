//! The authority of a cluster of machines: an etcd cluster.
//!
//! # What it is
//! [`EtcdAuthority`] keeps each value in an etcd key below a configured prefix. A version is the
//! key's modification revision, which etcd counts for the whole store, and a compare-and-swap is an
//! etcd transaction that compares the revision. Reads are linearizable, the default of etcd.
//!
//! # What it is not
//! Not the failure detector: etcd's shortest lease is a second and more (decision 0026). Nodes ask
//! etcd only when the cluster changes, so a cluster goes on without etcd as long as nothing
//! changes: every call returns [`AuthorityError::Unavailable`] within its time limit, and the
//! client reconnects by itself when etcd is back.
//!
//! # Backups
//! An etcd restored from a backup has forgotten later decisions, and repeats revisions. A process
//! that notices the restore ignores etcd's answers from then on ([`EtcdAuthority::has_gone_back`]).
//!
//! # Threads
//! The client is asynchronous and needs a runtime, with one thread. Calls block, as [`Authority`]
//! says: threads that must not block leave calls to other threads. In a task of another tokio
//! runtime methods panic, as blocking calls do.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetResponse, Identity, ResponseHeader,
    TlsOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::runtime::Runtime;

use crate::revision_check::{Broken, RevisionCheck};
use crate::{Authority, AuthorityError, Version, Versioned};

/// Address of etcd, key prefix and credentials.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Members of the etcd cluster, as `http://HOST:PORT`, or `https://` with [`Options::tls`]; one
    /// responding member is enough.
    pub endpoints: Vec<String>,
    /// Prefix of the keys, such as `/lotus/NAME/`: clusters can share an etcd.
    pub prefix: String,
    /// Name and password, if etcd requires them.
    pub user: Option<(String, String)>,
    /// TLS settings, if etcd uses TLS.
    pub tls: Option<Tls>,
    /// Time limit of a call; a slower call counts as unanswered.
    pub timeout: Duration,
}

impl Options {
    /// Options for the etcd cluster with the members `endpoints`: no password, two seconds per
    /// call.
    pub fn new(endpoints: Vec<String>, prefix: impl Into<String>) -> Self {
        let (prefix, timeout) = (prefix.into(), Duration::from_secs(2));
        Self { endpoints, prefix, user: None, tls: None, timeout }
    }
}

/// Certificates and keys for TLS, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// CA certificates that have signed the certificates of etcd's members.
    pub ca: String,
    /// Client certificate and private key, if etcd requires them.
    pub identity: Option<(String, String)>,
}

/// Passwords and keys are not shown.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, prefix, user, tls, timeout } = self;
        f.debug_struct("Options")
            .field("endpoints", endpoints)
            .field("prefix", prefix)
            .field("user", &user.as_ref().map(|(name, _)| name))
            .field("tls", &tls.is_some())
            .field("timeout", timeout)
            .finish()
    }
}

/// Reason why a connection to etcd failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No endpoint answered as etcd does.
    #[error("etcd does not answer at {}: {}", endpoints.join(", "), reason(source))]
    Unreachable {
        /// Endpoints that were tried.
        endpoints: Vec<String>,
        /// Error of the last endpoint.
        source: etcd_client::Error,
    },
    /// etcd answered, and refused this client; correct the configuration.
    #[error("etcd at {} refuses: {reason}", endpoints.join(", "))]
    Refused {
        /// Endpoints that were tried.
        endpoints: Vec<String>,
        /// Message of etcd.
        reason: String,
    },
    /// No endpoint answered in time.
    #[error("etcd does not answer at {} within {timeout:?}", endpoints.join(", "))]
    TimedOut {
        /// Endpoints that were tried.
        endpoints: Vec<String>,
        /// Time limit that passed.
        timeout: Duration,
    },
    /// The system has no thread left for the client.
    #[error("no thread for the client of etcd: {0}")]
    Thread(#[from] std::io::Error),
}

/// Authority kept in an etcd cluster. See the module's documentation.
pub struct EtcdAuthority {
    options: Options,
    client: Client,
    runtime: Runtime,
    revision_check: RevisionCheck,
}

impl fmt::Debug for EtcdAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdAuthority").field("options", &self.options).finish_non_exhaustive()
    }
}

impl EtcdAuthority {
    /// Connects to etcd, and verifies that etcd answers.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(options: Options) -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lotus-etcd")
            .enable_all()
            .build()?;
        let Options { endpoints, prefix, user, tls, timeout } = &options;
        let mut connect = ConnectOptions::new().with_connect_timeout(*timeout);
        if let Some((name, password)) = user {
            connect = connect.with_user(name, password);
        }
        if let Some(Tls { ca, identity }) = tls {
            let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
            if let Some((certificate, key)) = identity {
                options = options.identity(Identity::from_pem(certificate, key));
            }
            connect = connect.with_tls(options);
        }
        let connected = async {
            let mut client = Client::connect(endpoints, Some(connect)).await?;
            // The client connects lazily: the request forces a connection.
            client.get(prefix.as_str(), None).await?;
            Ok(client)
        };
        let connected = runtime.block_on(async { tokio::time::timeout(*timeout, connected).await });
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(source)) => {
                let endpoints = endpoints.clone();
                return Err(match refusal(&source) {
                    Some(reason) => ConnectError::Refused { endpoints, reason },
                    None => ConnectError::Unreachable { endpoints, source },
                });
            }
            Err(_) => {
                let (endpoints, timeout) = (endpoints.clone(), *timeout);
                return Err(ConnectError::TimedOut { endpoints, timeout });
            }
        };
        Ok(Self { options, client, runtime, revision_check: RevisionCheck::default() })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.options.prefix)
    }

    /// Whether etcd's answers show a restore from a backup, or a replaced etcd, so that earlier
    /// writes are forgotten. Then answers are ignored, and every call returns
    /// [`AuthorityError::Unavailable`].
    pub fn has_gone_back(&self) -> bool {
        self.revision_check.is_broken()
    }

    /// Waits for an answer; `header` extracts its header. After any failure the outcome is unknown.
    fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, etcd_client::Error>>,
        header: impl Fn(&T) -> Option<&ResponseHeader>,
    ) -> Result<T, AuthorityError> {
        let timeout = self.options.timeout;
        let asked = self.revision_check.ask().map_err(|Broken| AuthorityError::Unavailable)?;
        let answer = async { tokio::time::timeout(timeout, question).await };
        let Ok(Ok(answer)) = self.runtime.block_on(answer) else {
            return Err(AuthorityError::Unavailable);
        };
        let header = header(&answer).ok_or(AuthorityError::Unavailable)?;
        let heeded = self.revision_check.heed(asked, header.cluster_id(), header.revision());
        heeded.map(|()| answer).map_err(|Broken| AuthorityError::Unavailable)
    }
}

impl Authority for EtcdAuthority {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        let mut client = self.client.kv_client();
        let answer = self.ask(client.get(self.key(key), None), GetResponse::header)?;
        Ok(answer.kvs().first().map(|found| Versioned {
            version: version(found.mod_revision()),
            value: found.value().to_vec(),
        }))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        let key = self.key(key);
        // A key that does not exist has revision 0, as `Version::ABSENT` says. No key has a version
        // beyond etcd's range.
        let revision = i64::try_from(expected.0).unwrap_or(i64::MAX);
        let write = Txn::new()
            .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, revision)])
            .and_then([TxnOp::put(key.as_str(), value, None)])
            .or_else([TxnOp::get(key, None)]);
        let mut client = self.client.kv_client();
        let answer = self.ask(client.txn(write), TxnResponse::header)?;
        if answer.succeeded() {
            let header = answer.header().ok_or(AuthorityError::Unavailable)?;
            return Ok(version(header.revision()));
        }
        let found = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => found.kvs().first().map(|found| found.mod_revision()),
            _ => None,
        });
        Err(AuthorityError::Conflict { current: found.map_or(Version::ABSENT, version) })
    }
}

/// Message of the innermost error, which names the cause; the outer errors only say that a cause
/// exists.
fn reason(error: &etcd_client::Error) -> String {
    let etcd_client::Error::GRpcStatus(status) = error else { return error.to_string() };
    let mut innermost = status.source();
    while let Some(inner) = innermost.and_then(StdError::source) {
        innermost = Some(inner);
    }
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// etcd's message, if etcd answered but refused the client.
fn refusal(error: &etcd_client::Error) -> Option<String> {
    // Of gRPC's codes: invalid argument (a wrong password), permission denied, unauthenticated.
    const REFUSALS: [i32; 3] = [3, 7, 16];
    match error {
        etcd_client::Error::GRpcStatus(status) if REFUSALS.contains(&(status.code() as i32)) => {
            Some(status.message().to_owned())
        }
        _ => None,
    }
}

/// Converts a revision; etcd counts revisions from 1.
fn version(revision: i64) -> Version {
    Version(revision.unsigned_abs())
}
