//! Before a cluster begins: compute nodes report remains of earlier lives on their hosts, and
//! compute node 0 decides the initial data.
//!
//! Nothing is founded before the decision. So if compute node 0 refuses, memory nodes and the other
//! compute nodes go on waiting, and compute node 0 is started again once the operator has decided.

use std::time::Duration;

use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::Env;
use lotus_recovery::membership::{self, MembershipError};
use lotus_security::nonce;
use tracing::info;

use crate::config::file::ClusterFile;
use crate::config::name::{NodeKind, NodeName};
use crate::config::snapshots::Snapshots;
use crate::host::stop::{StartupEnd, Stop};
use crate::snapshots::holding::{HeldFile, Holding};
use crate::snapshots::initial_data::{Evidence, InitialData, decide};
use crate::snapshots::snapshot_files;

/// Number of bits of the ids of clusters and lives.
const ID_BITS: u32 = 48;

/// A starting compute node, in a cluster that may not exist yet.
pub(super) struct Founding<'a> {
    pub(super) file: &'a ClusterFile,
    pub(super) node: NodeName,
    pub(super) stop: &'a Stop,
    pub(super) env: &'a Env,
    /// Time for which compute node 0 waits for the other nodes.
    pub(super) patience: Duration,
}

/// Whether a cluster exists already.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub(super) fn is_founded(authority: &dyn Authority) -> Result<bool, AuthorityError> {
    match membership::read(authority) {
        Ok(_) => Ok(true),
        Err(MembershipError::Authority(error)) => Err(error),
        Err(_) => Ok(false),
    }
}

impl Founding<'_> {
    /// Reads remains of earlier lives on the node's host.
    ///
    /// # Errors
    /// [`StartupEnd::Failed`]: a directory cannot be read.
    pub(super) fn look(&self, snapshots: &Snapshots) -> Result<Holding, StartupEnd> {
        Ok(Holding::look(self.node, &snapshots.directory, &self.file.state)?)
    }

    /// Decides with which data the cluster begins. Waits for the other compute nodes' reports.
    ///
    /// # Errors
    /// [`StartupEnd`].
    pub(super) fn decide(
        &self,
        snapshots: &Snapshots,
        own: &Holding,
        authority: &dyn Authority,
    ) -> Result<InitialData, StartupEnd> {
        let nodes = NodeName::all(self.file).filter(|node| node.kind == NodeKind::Compute);
        let nodes: Vec<NodeName> = nodes.filter(|node| *node != self.node).collect();
        let mut told = Default::default();
        let mut silent = nodes.clone();
        self.stop.wait_until(self.env, self.patience, || {
            // A silent authority is asked again.
            if let Ok(now) = Holding::read_all(&nodes, authority) {
                silent.retain(|node| !now.contains_key(node));
                told = now;
            }
            let names: Vec<String> = silent.iter().map(|node| node.in_words()).collect();
            let names = names.join(", ");
            (!silent.is_empty()).then(|| format!("{names} to say which snapshots there are"))
        })?;
        let others: Vec<Holding> = told.into_values().collect();
        let theirs = others.iter().flat_map(|one| &one.held);
        let is_shared = |held: &&HeldFile| {
            let is_own = own.held.iter().any(|known| known.path == held.path);
            !is_own
                && held.rank.is_some()
                && snapshot_files::held(held.path.clone()).rank == held.rank
        };
        let mut shared: Vec<HeldFile> = theirs.filter(is_shared).cloned().collect();
        shared.dedup();
        let [cluster, id, ..] = nonce().map_err(|error| error.to_string())?;
        let beginning = decide(&Evidence {
            own,
            others: &others,
            silent: &silent,
            shared: &shared,
            directory: &snapshots.directory,
            choice: snapshots.if_damaged,
            drawn: (cluster >> (u64::BITS - ID_BITS), id >> (u64::BITS - ID_BITS)),
        })?;
        info!(life = beginning.life.number, "a life of the cluster begins");
        Ok(beginning)
    }
}
