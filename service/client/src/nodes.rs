//! Connections to the compute nodes, at most one per node, and the doubted nodes.
//!
//! # Connecting
//! A separate task makes a connection when a request needs it. Requests that need the connection
//! meanwhile wait for the same attempt, within their own time limits, and share the attempt's
//! failure.
//!
//! # Doubt
//! A node that gave no answer in time, or could not be reached, is doubted: requests avoid the
//! node, while there is another node, until it has answered again. The node may be stalled, cut off
//! or dead; the cluster goes on without the node, and so do its clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use tokio::sync::watch;

use crate::config::Config;
use crate::connection::Connection;
use lotus_protocol::messages::Directory;

/// Time after which a doubt ends unless renewed, for example because the runtime has ended.
const DOUBT: Duration = Duration::from_secs(15);

/// Result of an attempt to connect, for all requests that wait for the attempt.
type Attempted = Result<Arc<Connection>, Arc<str>>;

/// Takes in the directory that a node sends on connection. The cluster may have restarted since the
/// last directory: a restart changes the shards' owners, and epochs begin again.
pub(crate) type DirectoryListener = Arc<dyn Fn(Directory) + Send + Sync>;

/// The compute nodes, in the directory's order.
pub(crate) struct NodeLinks {
    nodes: Vec<Arc<NodeLink>>,
    listener: DirectoryListener,
}

#[derive(Default)]
struct NodeLink {
    connection: Mutex<Option<Arc<Connection>>>,
    /// The last attempt to connect.
    attempt: Mutex<Option<watch::Receiver<Option<Attempted>>>>,
    /// Time until which the node is doubted.
    doubted: AtomicU64,
}

impl NodeLinks {
    /// Creates links to `count` nodes, with a connection to one of the nodes.
    pub(crate) fn new(
        count: usize,
        connected: usize,
        connection: Arc<Connection>,
        listener: DirectoryListener,
    ) -> Self {
        let nodes: Vec<Arc<NodeLink>> = (0..count).map(|_| Arc::default()).collect();
        match nodes.get(connected) {
            Some(node) => *lock(&node.connection) = Some(connection),
            None => connection.close(),
        }
        Self { nodes, listener }
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the index of the node at the other end of a connection, unless the node has a newer
    /// connection.
    pub(crate) fn at_end_of(&self, connection: &Connection) -> Option<usize> {
        let is_it = |known: &Arc<Connection>| std::ptr::eq(Arc::as_ptr(known), connection);
        self.nodes.iter().position(|node| lock(&node.connection).as_ref().is_some_and(is_it))
    }

    /// Returns the working connection to a node, making a connection if there is none. Waits for at
    /// most `patience`; an attempt that takes longer goes on.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) async fn connect(
        &self,
        node: usize,
        address: &str,
        patience: Duration,
        config: &Config,
        env: &Env,
    ) -> Result<Arc<Connection>, String> {
        let node = &self.nodes[node];
        if let Some(connection) = node.working() {
            return Ok(connection);
        }
        let mut attempt = node.attempt(address, config, env, &self.listener);
        let ended = tokio::time::timeout(patience, attempt.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(outcome)) => match &*outcome {
                Some(Ok(connection)) => Ok(Arc::clone(connection)),
                Some(Err(why)) => Err(why.to_string()),
                None => Err(format!("{address} cannot be reached")),
            },
            // The runtime on which the attempt began has ended.
            Ok(Err(_)) => Err(format!("{address}: the attempt to connect was cut short")),
            Err(_) => Err(format!("{address} cannot be reached within {patience:?}")),
        }
    }

    /// Doubts a node from `now` on, until the node is trusted or the doubt was not renewed for
    /// [`DOUBT`]; returns whether the node was trusted before.
    pub(crate) fn doubt(&self, node: usize, now: Nanos) -> bool {
        // Relaxed: a request that still goes to the node does no harm.
        self.nodes[node].doubted.swap(now.after(DOUBT).0, Ordering::Relaxed) <= now.0
    }

    /// Trusts a node again after an answer.
    pub(crate) fn trust(&self, node: usize) {
        self.nodes[node].doubted.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_doubted(&self, node: usize, now: Nanos) -> bool {
        self.nodes[node].doubted.load(Ordering::Relaxed) > now.0
    }
}

impl NodeLink {
    fn working(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).as_ref().filter(|known| !known.is_lost()).map(Arc::clone)
    }

    /// Returns the attempt to connect that is under way; begins an attempt if there is none.
    fn attempt(
        self: &Arc<Self>,
        address: &str,
        config: &Config,
        env: &Env,
        listener: &DirectoryListener,
    ) -> watch::Receiver<Option<Attempted>> {
        let mut attempt = lock(&self.attempt);
        if let Some(connection) = self.working() {
            return watch::channel(Some(Ok(connection))).1;
        }
        // An attempt that ended without a result, together with its runtime, does not count.
        let goes_on = |attempt: &&watch::Receiver<Option<Attempted>>| {
            attempt.borrow().is_none() && attempt.has_changed().is_ok()
        };
        if let Some(attempt) = attempt.as_ref().filter(goes_on) {
            return attempt.clone();
        }
        let (ended, begun) = watch::channel(None);
        *attempt = Some(begun.clone());
        let (address, config, env) = (address.to_owned(), config.clone(), env.clone());
        let listener = Arc::clone(listener);
        // The task keeps no client alive.
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let opened = Connection::open(&address, &config, &env).await;
            let outcome = opened.map(|(connection, directory)| {
                listener(directory);
                connection
            });
            if let Ok(connection) = &outcome {
                match node.upgrade() {
                    Some(node) => *lock(&node.connection) = Some(Arc::clone(connection)),
                    None => connection.close(),
                }
            }
            // Possibly no request is waiting any more.
            let _ = ended.send(Some(outcome.map_err(|error| error.to_string().into())));
        });
        begun
    }
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        if let Some(connection) = lock(&self.connection).take() {
            connection.close();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
