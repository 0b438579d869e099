//! Services of a compute node: stored transactions, for clients, and metrics.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use lotus::{Authority, Cluster};
use lotus_server::{Config, Gauge, Registry, Server};

use super::memory::bind;
use crate::agree::alive::Alive;
use crate::agree::mailbox_server::MailboxServer;
use crate::agree::rest::Rest;
use crate::application::{Application, Opened, open_tables};
use crate::config::file::{ClusterFile, Net};
use crate::config::name::NodeName;
use crate::host::sockets::local_door;
use crate::requests::copier::{Copier, StoppableServer};
use crate::requests::operator::Operator;
use crate::snapshots::marker::Marker;

/// Services that run beside a compute node. Dropping the value stops them.
pub struct Service {
    /// Server for applications; `None` if the file names no address.
    server: Option<Rc<RefCell<StoppableServer>>>,
    /// Parts for further requests: of operators, snapshots, the application.
    others: Vec<Box<dyn MailboxServer>>,
}

impl Service {
    /// Prepares the services of a compute node whose cluster has been loaded. [`Self::open`] admits
    /// applications.
    ///
    /// # Errors
    /// A sentence: the application cannot be opened.
    pub fn start(
        file: &ClusterFile,
        node: NodeName,
        application: &dyn Application,
        cluster: &Arc<Cluster>,
        authority: &Arc<dyn Authority>,
    ) -> Result<Self, String> {
        let mut others: Vec<Box<dyn MailboxServer>> = vec![Box::new(Operator::new(node, cluster))];
        if file.authority.outlives_the_cluster() {
            others.push(Box::new(Alive::new(node)));
        }
        open_tables(file, cluster)?;
        let Opened { procedures, requests } = application.open(file, node, cluster)?;
        others.extend(requests);
        let server = file.serves_applications().then(|| {
            let (file, cluster) = (file.clone(), Arc::clone(cluster));
            StoppableServer::closed(Box::new(move || {
                serve(&file, node, &cluster, procedures.clone())
            }))
        });
        let server = server.map(|server| Rc::new(RefCell::new(server)));
        if let Some(snapshots) = &file.snapshots {
            let copier = Copier::new(
                node,
                cluster,
                authority,
                snapshots,
                application.notes(),
                server.as_ref(),
                Marker::new(node, &file.state),
            );
            others.push(Box::new(copier));
        }
        Ok(Self { server, others })
    }

    /// Admits applications.
    ///
    /// # Errors
    /// A sentence: a port is taken, or a key cannot be read.
    pub fn open(&self) -> Result<(), String> {
        self.server.as_ref().map_or(Ok(()), |server| server.borrow_mut().open())
    }

    /// Keeps applications out until `rest`, an order to all nodes, is over.
    pub fn find(&mut self, rest: Rest) {
        self.others.iter_mut().for_each(|other| other.find(rest));
    }

    /// Answers requests of operators, snapshots and the application.
    pub fn look(&mut self, authority: &dyn Authority) {
        self.others.iter_mut().for_each(|other| other.look(authority));
    }

    /// Answers questions whose asker waits.
    pub fn glance(&mut self, authority: &dyn Authority) {
        self.others.iter_mut().for_each(|other| other.glance(authority));
    }

    /// Adds a polled part.
    pub fn add(&mut self, other: Box<dyn MailboxServer>) {
        self.others.push(other);
    }

    /// Tells all parts of the order to end.
    pub fn end(&mut self, authority: &dyn Authority) {
        self.others.iter_mut().for_each(|other| other.end(authority));
    }

    /// Stops taking calls, and answers calls in flight.
    ///
    /// # Errors
    /// The server's thread has panicked.
    pub fn stop(self) -> Result<(), String> {
        self.server.map_or(Ok(()), |server| server.borrow_mut().close())
    }
}

fn serve(
    file: &ClusterFile,
    node: NodeName,
    cluster: &Arc<Cluster>,
    registry: Registry,
) -> Result<Server, String> {
    let index = usize::from(node.index);
    let own = &file.compute_nodes[index];
    let client = own.client.as_ref().ok_or("this node serves no applications")?;
    let all = file.compute_nodes.iter().filter_map(|node| node.client.as_ref());
    let addresses = all.map(|client| client.address.to_string()).collect();
    let mut config = Config::new(bind(client.listens(), "applications")?, addresses);
    if let Net::Shm { directory } = &file.net {
        let socket = local_door(directory, index, file.compute_nodes.len());
        let why = |error| format!("cannot serve applications of this host: {error}");
        config.local = Some(socket.map_err(why)?);
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
    config.limits.connections = file.applications.connections;
    config.create_tables = file.applications.create_tables;
    config.drop_tables = file.applications.drop_tables;
    config.lasting_tables =
        file.tables.iter().map(|table| table.name.clone().into_owned()).collect();
    config.security = file.clients.security().map_err(|error| error.to_string())?;
    // One more coroutine is left for the engine's own work.
    config.workers = Some(file.settings.coroutines - file.applications.interactive - 1);
    let server = Server::start(Arc::clone(cluster), index, registry, config);
    server.map_err(|error| error.to_string())
}
