//! Services of a compute node's daemon: stored transactions of the workload that the cluster was
//! loaded with, for applications, and metrics.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use lotus::{Authority, Cluster, Machines};
use lotus_benchmarks::workload::Workload;
use lotus_server::{Config, Gauge, Registry, Server};

use super::copier::{Copier, Door};
use super::errands::{self, Errands};
use super::memory::bind;
use super::operator::Operator;
use crate::agree::alive::Alive;
use crate::agree::look::Look;
use crate::agree::rest::Rest;
use crate::apps::load::{Aborts, local_door, registry};
use crate::config::file::{ClusterFile, Net};
use crate::config::load::Use;
use crate::config::node::Node;

/// Services that run beside a compute node. Dropping it stops them.
pub struct Service {
    /// Server for applications; `None` where the file names no address.
    door: Option<Rc<RefCell<Door>>>,
    /// Parts that answer other requests: of benchmarks, operators, snapshots.
    others: Vec<Box<dyn Look>>,
}

impl Service {
    /// Prepares the services of a compute node whose cluster has been loaded. Applications are let
    /// in by [`Self::open`].
    ///
    /// # Errors
    /// A sentence: a table is missing.
    pub fn start<M>(
        file: &ClusterFile,
        node: Node,
        cluster: &Arc<Cluster<M>>,
        authority: &Arc<dyn Authority>,
    ) -> Result<Self, String>
    where
        M: Machines + 'static,
        Cluster<M>: Send + Sync,
    {
        let mut others: Vec<Box<dyn Look>> = vec![Box::new(Operator::new(node, cluster))];
        if file.authority.outlives_the_cluster() {
            others.push(Box::new(Alive::new(node)));
        }
        let registry = match &file.load {
            Some(load) => {
                let (registry, errands) = load.with(Prepare { file, node, cluster })?;
                others.push(errands);
                registry
            }
            None => Registry::new(),
        };
        let door = file.serves_applications().then(|| {
            let (file, cluster) = (file.clone(), Arc::clone(cluster));
            Door::closed(Box::new(move || serve(&file, node, &cluster, registry.clone())))
        });
        let door = door.map(|door| Rc::new(RefCell::new(door)));
        if let Some(snapshots) = &file.snapshots {
            let copier = Copier::new(node, cluster, authority, snapshots, door.as_ref());
            others.push(Box::new(copier));
        }
        Ok(Self { door, others })
    }

    /// Lets applications in.
    ///
    /// # Errors
    /// A sentence: a port is taken, or a key cannot be read.
    pub fn open(&self) -> Result<(), String> {
        self.door.as_ref().map_or(Ok(()), |door| door.borrow_mut().open())
    }

    /// Keeps applications out until `rest` is over, which all nodes were told of.
    pub fn find(&mut self, rest: Rest) {
        self.others.iter_mut().for_each(|other| other.find(rest));
    }

    /// Answers requests of benchmarks, operators and snapshots.
    pub fn look(&mut self, authority: &dyn Authority) {
        self.others.iter_mut().for_each(|other| other.look(authority));
    }

    /// Stops taking calls, and answers those in flight.
    ///
    /// # Errors
    /// The server's thread has panicked.
    pub fn stop(self) -> Result<(), String> {
        self.door.map_or(Ok(()), |door| door.borrow_mut().close())
    }
}

/// Opens the workload's tables, and registers its stored transactions.
struct Prepare<'a, M: Machines> {
    file: &'a ClusterFile,
    node: Node,
    cluster: &'a Arc<Cluster<M>>,
}

impl<M: Machines + 'static> Use for Prepare<'_, M>
where
    Cluster<M>: Send + Sync,
{
    type Outcome = Result<(Registry, Box<dyn Look>), String>;

    fn of<W: Workload>(self, mut workload: W) -> Self::Outcome {
        let Self { file, node, cluster } = self;
        let specs = workload.tables(&file.settings).into_iter();
        let tables: Result<Vec<_>, _> = specs.map(|spec| cluster.open_table(&spec.name)).collect();
        workload.attach(&tables.map_err(|error| error.to_string())?);
        let (workload, aborts) = (Arc::new(workload), Arc::new(Aborts::new(W::TRANSACTIONS.len())));
        let registry = registry(&workload, &aborts);
        let (cluster, mailbox) = (Arc::clone(cluster), errands::mailbox(node));
        Ok((registry, Box::new(Errands { mailbox, cluster, workload, aborts })))
    }
}

fn serve<M>(
    file: &ClusterFile,
    node: Node,
    cluster: &Arc<Cluster<M>>,
    registry: Registry,
) -> Result<Server, String>
where
    M: Machines + 'static,
    Cluster<M>: Send + Sync,
{
    let index = usize::from(node.index);
    let own = &file.compute_nodes[index];
    let client = own.client.as_ref().ok_or("this node serves no applications")?;
    let all = file.compute_nodes.iter().filter_map(|node| node.client.as_ref());
    let addresses = all.map(|client| client.address.to_string()).collect();
    let mut config = Config::new(bind(client.listens(), "applications")?, addresses);
    if let Net::Shm { directory } = &file.net {
        let door = local_door(directory, index, file.compute_nodes.len());
        let why = |error| format!("cannot serve applications of this host: {error}");
        config.local = Some(door.map_err(why)?);
    }
    config.metrics = own.metrics.as_ref().map(|address| bind(address, "metrics")).transpose()?;
    if let Some(snapshots) = file.snapshots.clone() {
        let env = cluster.machines().outside();
        let age = move || snapshots.newest_age(env.now()).map(|age| age.as_secs_f64());
        config.gauges.push(Gauge {
            name: "snapshot_age_seconds",
            help: "How long ago the newest snapshot on this host was taken",
            label: None,
            read: Box::new(age),
        });
    }
    config.call_records = file.calls;
    config.security = file.clients.security().map_err(|error| error.to_string())?;
    // One coroutine is left for interactive transactions, and one for the engine's own work.
    config.workers = Some(file.settings.coroutines - 2);
    let server = Server::start(Arc::clone(cluster), index, registry, config);
    server.map_err(|error| error.to_string())
}
