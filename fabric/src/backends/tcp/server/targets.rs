//! The software targets of a process: listening, and the start and end of worker threads.
//!
//! The nodes of a process share workers, so the number of threads depends on the cores given to the
//! process and not on the number of nodes. The first worker listens, performs handshakes and
//! answers control requests.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backends::tcp::config::{Config, StartError};
use crate::backends::tcp::server::target::{Mailbox, Order, Post, TargetNode};
use crate::backends::tcp::server::worker::Worker;
use crate::backends::tcp::socket::SocketWatch;
use crate::contract::ids::NodeId;
use crate::run::env::Env;

/// Connections that wait in the system's queue, where the system allows as many: enough for the
/// lanes of a starting cluster.
const QUEUED: i32 = 4096;

/// The nodes served by this process, and the worker threads. Dropping `Targets` stops the workers
/// and closes every connection.
pub(crate) struct Targets {
    nodes: BTreeMap<NodeId, (Arc<TargetNode>, SocketAddr)>,
    mailboxes: Arc<[Mailbox]>,
    threads: Vec<JoinHandle<()>>,
}

impl Targets {
    /// Listens at the addresses of the served nodes, and starts the workers.
    ///
    /// # Errors
    /// An address is missing or taken, or the system is out of threads or files.
    pub(crate) fn start(config: &Config, env: &Env) -> Result<Self, StartError> {
        let system = StartError::System;
        let mut mailboxes = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..config.workers.get() {
            let (orders, receiver) = crossbeam_channel::unbounded();
            let watch = SocketWatch::new(Duration::ZERO).map_err(system)?;
            mailboxes.push(Mailbox { orders, watch: Arc::new(watch) });
            receivers.push(receiver);
        }
        let mailboxes = Arc::<[Mailbox]>::from(mailboxes);
        let mut nodes = BTreeMap::new();
        let mut posts = Vec::new();
        for (place, &node) in config.served.iter().enumerate() {
            let reached = *config.addresses.get(&node).ok_or(StartError::NoAddress(node))?;
            let address = config.listen.get(&node).copied().unwrap_or(reached);
            let (listener, address) =
                listen(address).map_err(|source| StartError::Listen { node, address, source })?;
            let shared = Arc::new(TargetNode::new(node, place, config, Arc::clone(&mailboxes)));
            nodes.insert(node, (Arc::clone(&shared), address));
            posts.push((shared, listener));
        }
        let shared: Arc<[_]> = posts.iter().map(|(shared, _)| Arc::clone(shared)).collect();
        let mut listeners: Vec<_> = posts.into_iter().map(|(_, listener)| listener).collect();
        let mut targets = Self { nodes, mailboxes, threads: Vec::new() };
        for (index, orders) in receivers.into_iter().enumerate() {
            let post = Post {
                index,
                nodes: Arc::clone(&shared),
                watch: Arc::clone(&targets.mailboxes[index].watch),
                // Only the first worker gets the listeners.
                listeners: std::mem::take(&mut listeners),
                orders,
                waiting: config.waiting,
                limits: config.limits.clone(),
                env: env.clone(),
            };
            let worker = Worker::new(post).map_err(system)?;
            let name = format!("target {index}");
            targets.threads.push(env.spawn(&name, move || worker.run()).map_err(system)?);
        }
        Ok(targets)
    }

    /// Returns a node served by this process.
    pub(crate) fn node(&self, node: NodeId) -> Option<&TargetNode> {
        self.nodes.get(&node).map(|(shared, _)| &**shared)
    }

    /// Returns the listening addresses of the served nodes.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (NodeId, SocketAddr)> {
        self.nodes.iter().map(|(node, (_, address))| (*node, *address))
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.tell(Order::Stop));
        for thread in self.threads.drain(..) {
            // Join fails for a worker that panicked, which has ended as well.
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, QUEUED)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
