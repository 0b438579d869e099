//! The application of `lotus cn`: the workload loaded into the cluster.

use std::sync::Arc;

use lotus::{Authority, Cluster, ClusterError};
use lotus_authority::AuthorityError;
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_node::application::{Application, Notes, Opened};
use lotus_node::{ClusterFile, NodeName};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::ledger::{self, Ledger};
use super::node_tasks::{self, NodeTaskServer};
use crate::config::load::{Load, Use};
use crate::config::shape;
use lotus_runner::applications::load::{Aborts, registry};

/// A workload as an application of a cluster; without a workload, clients find no stored
/// transactions.
pub struct Loaded(pub Option<Load>);

impl Application for Loaded {
    fn fill(&self, file: &ClusterFile, cluster: &Cluster) -> Result<(), String> {
        let Some(load) = &self.0 else { return Ok(()) };
        info!(workload = load.name(), "loading");
        let rows = load.carry_out(cluster, &shape(file)).map_err(|error| match error {
            ClusterError::OutOfMemory { .. } => format!(
                "{}: memory is too small for load.{}: {error}; raise memory, or load less",
                file.path.display(),
                load.name()
            ),
            error => error.to_string(),
        })?;
        info!(workload = load.name(), rows, "loaded");
        Ok(())
    }

    fn open(
        &self,
        file: &ClusterFile,
        node: NodeName,
        cluster: &Arc<Cluster>,
    ) -> Result<Opened, String> {
        match &self.0 {
            Some(load) => load.with(Open { file, node, cluster }),
            None => Ok(Opened::default()),
        }
    }

    fn notes(&self) -> Arc<dyn Notes> {
        Arc::new(Effects)
    }
}

/// Opens the workload's tables, and registers its stored transactions.
struct Open<'a> {
    file: &'a ClusterFile,
    node: NodeName,
    cluster: &'a Arc<Cluster>,
}

impl Use for Open<'_> {
    type Outcome = Result<Opened, String>;

    fn of<W: OnLotus>(self, mut workload: W) -> Self::Outcome {
        let Self { file, node, cluster } = self;
        let specs = workload.tables(&shape(file)).into_iter();
        let tables: Result<Vec<_>, _> = specs.map(|spec| cluster.open_table(&spec.name)).collect();
        workload.attach(&tables.map_err(|error| error.to_string())?);
        let (workload, aborts) = (Arc::new(workload), Arc::new(Aborts::new(W::TRANSACTIONS.len())));
        let procedures = registry(&workload, &aborts);
        let (cluster, mailbox) = (Arc::clone(cluster), node_tasks::mailbox(node));
        let node_tasks = NodeTaskServer { mailbox, cluster, workload, aborts };
        Ok(Opened { procedures, requests: vec![Box::new(node_tasks)] })
    }
}

/// Effects of benchmarks on balances. Snapshots include the effects, so that a cluster started from
/// a snapshot can judge its balances.
struct Effects;

/// Effects of benchmarks as stored in a snapshot.
#[derive(PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoredEffects {
    benchmarks: Ledger,
}

impl Notes for Effects {
    fn before(&self, authority: &dyn Authority) -> Result<Vec<u8>, AuthorityError> {
        ledger::read(authority).map(|benchmarks| encode(&StoredEffects { benchmarks }))
    }

    fn after(&self, authority: &dyn Authority, before: &[u8]) -> Vec<u8> {
        // A benchmark that began or ended meanwhile may have written before the snapshot's
        // timestamp.
        if self.before(authority).is_ok_and(|after| after == before) {
            return before.to_vec();
        }
        let benchmarks = decode(before).benchmarks;
        let open = benchmarks.open.max(1);
        encode(&StoredEffects { benchmarks: Ledger { open, ..benchmarks } })
    }

    fn restore(&self, authority: &dyn Authority, stored: &[u8]) -> Result<(), AuthorityError> {
        ledger::restore(authority, &decode(stored).benchmarks)
    }
}

fn encode(stored: &StoredEffects) -> Vec<u8> {
    serde_json::to_vec(stored).expect("strings and numbers")
}

/// Effects stored in a snapshot; the default if another program took the snapshot.
fn decode(bytes: &[u8]) -> StoredEffects {
    serde_json::from_slice(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_authority::EmbeddedAuthority;

    #[test]
    fn a_benchmark_that_begins_during_a_snapshot_is_open_in_it() {
        let authority = EmbeddedAuthority::new();
        let open = |before: &[u8]| decode(&Effects.after(&authority, before)).benchmarks.open;
        let none = Effects.before(&authority).expect("it answers");
        assert_eq!(open(&none), 0);
        ledger::open(&authority).expect("it answers");
        let one = Effects.before(&authority).expect("it answers");
        assert_eq!((open(&none), open(&one)), (1, 1));
        ledger::close(&authority, &Default::default()).expect("it answers");
        assert_eq!(
            (open(&none), open(&one)),
            (0, 1),
            "it has ended without effects, or may have any"
        );
    }
}
