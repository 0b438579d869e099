//! A node, and the life of its cluster: the life's initial file and data, and its end with the
//! authority.

use std::sync::Arc;

use lotus::Cluster;
use lotus_authority::Authority;
use lotus_fabric::env::Env;
use tracing::error;

use super::founding::{Founding, is_founded};
use super::process::{Daemon, PATIENCE};
use super::service::Service;
use crate::agree::cluster_authority::{ClusterAuthority, Host, LostAuthority};
use crate::agree::loss;
use crate::agree::terms::Terms;
use crate::host::stop::StartupEnd;
use crate::snapshots::initial_data::InitialData;

/// The authority, as seen by a memory node.
pub(super) enum AuthorityAccess<'a> {
    /// The authority is in this process, or memory node 0 has begun the life in etcd.
    Host(&'a Host),
    /// The authority is elsewhere.
    Guest(&'a ClusterAuthority),
}

impl AuthorityAccess<'_> {
    pub(super) fn authority(&self) -> &dyn Authority {
        match self {
            Self::Host(host) => host.store(),
            Self::Guest(authority) => *authority,
        }
    }

    /// Number of connections refused by an authority in this process; otherwise 0.
    pub(super) fn refused(&self) -> u64 {
        match self {
            Self::Host(host) => host.refused(),
            Self::Guest(_) => 0,
        }
    }

    /// Whether the authority is lost for good.
    fn lost(&self) -> Option<LostAuthority> {
        match self {
            Self::Host(host) => host.lost(),
            Self::Guest(authority) => authority.lost(),
        }
    }

    /// Whether nodes of an earlier cluster without authority have called here.
    pub(super) fn is_called_by_an_earlier_life(&self) -> bool {
        match self {
            Self::Host(host) => host.is_called_by_an_earlier_life(),
            Self::Guest(_) => false,
        }
    }
}

/// Bond of a memory node to an authority: made when the authority's cluster uses the node's memory.
///
/// Compute nodes end when the authority is lost, perhaps before a new authority is in place. The
/// memory node stays, and tells the new authority of the earlier cluster.
#[derive(Default)]
pub(super) struct AuthorityBond {
    stays: bool,
    is_lost: bool,
}

impl AuthorityBond {
    /// Ties the node, once a cluster `uses` the node's memory, to the last answering authority: the
    /// node reported serving to this authority. Must be called before the authority is asked again.
    pub(super) fn make(&mut self, access: &AuthorityAccess<'_>, uses: bool, env: &Env) {
        let AuthorityAccess::Guest(authority) = access else { return };
        if uses && !self.stays {
            authority.stay(env);
            self.stays = true;
        }
    }

    /// Logs an error once the bound authority is lost.
    pub(super) fn look(&mut self, access: &AuthorityAccess<'_>) {
        let Some(lost) = access.lost().filter(|_| !self.is_lost) else { return };
        error!(
            "{lost}: the memory of this node is of a cluster that is over. lotus cluster down \
             --no-snapshot ends it"
        );
        self.is_lost = true;
    }
}

impl Daemon<'_> {
    /// Checks that the cluster, if founded, was founded with a file like this node's.
    pub(super) fn check_file(&self, authority: &dyn Authority) -> Result<(), StartupEnd> {
        if !self.ask(|| is_founded(authority))? {
            return Ok(());
        }
        let made = self.ask(|| Terms::read(authority))?;
        match made.and_then(|made| made.difference(&Terms::of(self.file))) {
            Some(why) => Err(StartupEnd::Failed(format!("{}: {why}", self.file.path.display()))),
            None => Ok(()),
        }
    }

    /// Reports remains of earlier lives on this host to compute node 0, unless the cluster exists.
    pub(super) fn tell_what_there_is(&self, authority: &dyn Authority) -> Result<(), StartupEnd> {
        let Some(snapshots) = &self.file.snapshots else { return Ok(()) };
        if self.ask(|| is_founded(authority))? {
            return Ok(());
        }
        let holding = self.founding().look(snapshots)?;
        self.ask(|| holding.publish(authority))
    }

    /// Decides, as compute node 0, the initial data of the cluster, unless it exists.
    pub(super) fn beginning(
        &self,
        authority: &dyn Authority,
    ) -> Result<Option<InitialData>, StartupEnd> {
        let Some(snapshots) = &self.file.snapshots else { return Ok(None) };
        if self.node.index != 0 || self.ask(|| is_founded(authority))? {
            return Ok(None);
        }
        let founding = self.founding();
        let own = founding.look(snapshots)?;
        founding.decide(snapshots, &own, authority).map(Some)
    }

    fn founding(&self) -> Founding<'_> {
        let Self { file, node, stop, env, .. } = self;
        Founding { file, node: *node, stop, env, patience: PATIENCE }
    }

    /// Logs, as an error, what the cluster loses with this memory node, which ends as told.
    pub(super) fn say_loss(&self, authority: &dyn Authority) {
        // A silent authority is reported right after this.
        if let Ok(Some(loss)) = loss::look(self.file, authority, &[self.node]) {
            error!("{loss}");
        }
    }

    /// Ends this node, since the cluster has lost its authority for good, before a further
    /// acknowledgement. Transactions are cut short: no node would ever recover them.
    pub(super) fn leave(
        &self,
        service: Service,
        cluster: Arc<Cluster>,
        lost: LostAuthority,
    ) -> Result<(), StartupEnd> {
        error!(node = %self.node, %lost, "the cluster's state is gone");
        std::mem::forget((service, cluster));
        Err(StartupEnd::Failed(format!(
            "{lost}: no node knows this cluster any more, and what is committed now could not be \
             kept. lotus cluster down --no-snapshot on all hosts ends what is left, and lotus \
             cluster up begins with the last snapshot, if there is one"
        )))
    }
}
