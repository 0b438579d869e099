//! Connections to the compute nodes, one to each, and which nodes are doubted.
//!
//! # Connecting
//! A connection is made when it is needed, by a task of its own. All requests that need it
//! meanwhile wait for that one attempt, each for as long as its own time allows, and share its
//! failure.
//!
//! # Doubt
//! A node that gave no answer in time, or could not be reached, is doubted: requests go elsewhere
//! while there is another node, until it has answered again. It may stand still, be cut off or be
//! dead; the cluster goes on without it, and so do its clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use tokio::sync::watch;

use crate::config::Config;
use crate::connection::Connection;
use lotus_protocol::messages::Directory;

/// Time for which a node is doubted without further looks at it, as when a runtime has ended.
const DOUBT: Duration = Duration::from_secs(15);

/// Result of an attempt to connect, for all requests that wait for it.
type Attempted = Result<Arc<Connection>, Arc<str>>;

/// Takes in the directory that a node tells when it is connected to. The cluster may have been
/// started anew since the last one: shards have other owners then, in epochs that begin again.
pub(crate) type Told = Arc<dyn Fn(Directory) + Send + Sync>;

/// The compute nodes, in the directory's order.
pub(crate) struct NodeLinks {
    nodes: Vec<Arc<NodeLink>>,
    told: Told,
}

#[derive(Default)]
struct NodeLink {
    connection: Mutex<Option<Arc<Connection>>>,
    /// The last attempt to connect.
    attempt: Mutex<Option<watch::Receiver<Option<Attempted>>>>,
    /// Time until which it is doubted.
    doubted: AtomicU64,
}

impl NodeLinks {
    /// Links to as many nodes, with a connection to one of them.
    pub(crate) fn new(
        count: usize,
        connected: usize,
        connection: Arc<Connection>,
        told: Told,
    ) -> Self {
        let nodes: Vec<Arc<NodeLink>> = (0..count).map(|_| Arc::default()).collect();
        match nodes.get(connected) {
            Some(node) => *lock(&node.connection) = Some(connection),
            None => connection.close(),
        }
        Self { nodes, told }
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Index of the node at the other end of a connection, unless there is a newer one.
    pub(crate) fn at_end_of(&self, connection: &Connection) -> Option<usize> {
        let is_it = |known: &Arc<Connection>| std::ptr::eq(Arc::as_ptr(known), connection);
        self.nodes.iter().position(|node| lock(&node.connection).as_ref().is_some_and(is_it))
    }

    /// The working connection to a node, made now if there is none. Waits for at most `patience`;
    /// an attempt that takes longer goes on.
    ///
    /// # Errors
    /// A sentence.
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
        let mut attempt = node.attempt(address, config, env, &self.told);
        let ended = tokio::time::timeout(patience, attempt.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(outcome)) => match &*outcome {
                Some(Ok(connection)) => Ok(Arc::clone(connection)),
                Some(Err(why)) => Err(why.to_string()),
                None => Err(format!("{address} cannot be reached")),
            },
            // The runtime that it was begun on has ended.
            Ok(Err(_)) => Err(format!("{address}: the attempt to connect was cut short")),
            Err(_) => Err(format!("{address} cannot be reached within {patience:?}")),
        }
    }

    /// Doubts a node from `now` on, until it is trusted or the doubt was not renewed for
    /// [`DOUBT`]; returns whether it was trusted before.
    pub(crate) fn doubt(&self, node: usize, now: Nanos) -> bool {
        // Relaxed: a request that still goes there does no harm.
        self.nodes[node].doubted.swap(now.after(DOUBT).0, Ordering::Relaxed) <= now.0
    }

    /// Trusts a node again, which has answered.
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

    /// The attempt to connect that is under way; begins one if there is none.
    fn attempt(
        self: &Arc<Self>,
        address: &str,
        config: &Config,
        env: &Env,
        told: &Told,
    ) -> watch::Receiver<Option<Attempted>> {
        let mut attempt = lock(&self.attempt);
        if let Some(connection) = self.working() {
            return watch::channel(Some(Ok(connection))).1;
        }
        // An attempt that has ended without a result, with its runtime, is none.
        let goes_on = |attempt: &&watch::Receiver<Option<Attempted>>| {
            attempt.borrow().is_none() && attempt.has_changed().is_ok()
        };
        if let Some(attempt) = attempt.as_ref().filter(goes_on) {
            return attempt.clone();
        }
        let (ended, begun) = watch::channel(None);
        *attempt = Some(begun.clone());
        let (address, config, env) = (address.to_owned(), config.clone(), env.clone());
        let told = Arc::clone(told);
        // The task keeps no client alive.
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let opened = Connection::open(&address, &config, &env).await;
            let outcome = opened.map(|(connection, directory)| {
                told(directory);
                connection
            });
            if let Ok(connection) = &outcome {
                match node.upgrade() {
                    Some(node) => *lock(&node.connection) = Some(Arc::clone(connection)),
                    None => connection.close(),
                }
            }
            // No request may wait any more.
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
