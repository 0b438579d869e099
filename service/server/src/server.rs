//! Starting and stopping: every server has a thread with its own `tokio` runtime.
//!
//! The thread accepts connections, and shows metrics. Admitted clients are given to the
//! coordinators in turn, whose threads read and serve them (`connection`). The server's thread
//! reads requests only within TLS, and runs no transaction.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus::{Cluster, ClusterError, TableId, TableSpec};
use lotus_fabric::env::Env;
use lotus_protocol::handshake::Refusal;
use lotus_protocol::stream::Stream;
use lotus_security::{Lines, Security};
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::call_time;
use crate::calls;
use crate::config::{CallRecords, Config, LocalDoor, StartError};
use crate::connection::{self, AdmittedClient, ClientRegistration, Origin, Turned, add};
use crate::http;
use crate::node::{NodeServer, Parts};
use crate::registry::Registry;
use crate::shared_guests::{GuestPlace, Received, SharedGuests};
use crate::table_admin::{Rights, TableAdmin};
use crate::worker::WorkerTask;

/// Time limit for connections to end once they are closed.
const CLOSING: Duration = Duration::from_secs(1);
/// Time for which a starting server retries while the authority does not answer.
const RECORDS_PATIENCE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, for example when the system has no socket left.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(50);
/// Time for which a client that has begun to speak keeps its place among the guests.
const SPEAKING: Duration = Duration::from_secs(1);
/// Log message for a connection closed to make room for another.
const GAVE_WAY: &str = "closed a connection that had not passed the handshake, for another one";
/// Log message for a connection that was closed because there was no room to wait.
const NO_ROOM: &str = "closed a connection of an address that has too many before the handshake";
/// Connections that wait in the system's queue, if the system allows as many: enough for all
/// clients that begin at the same moment.
const QUEUED: i32 = 4096;

/// The server of one compute node. Dropping the value stops the server.
#[must_use = "a server that is dropped stops"]
pub struct Server {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    /// Dropped when the thread has ended.
    _cluster: Arc<Cluster>,
}

impl Server {
    /// Serves clients on behalf of compute node `node` of `cluster`, from now on.
    ///
    /// The first server of a cluster creates the table of call records. Workers take coroutine
    /// slots at once and keep them.
    ///
    /// # Errors
    /// [`StartError`] says what to change.
    pub fn start(
        cluster: Arc<Cluster>,
        node: usize,
        registry: Registry,
        config: Config,
    ) -> Result<Self, StartError> {
        config.check(node, cluster.config())?;
        if cluster.coordinators().all(|coordinator_id| coordinator_id.compute_node != node) {
            return Err(StartError::Elsewhere { node });
        }
        let (workers, interactive) =
            (config.workers(cluster.config()), config.interactive(cluster.config()));
        let (local, local_addresses) =
            config.local.map(|LocalDoor { listener, nodes }| (listener, nodes)).unzip();
        let rights = Rights {
            create: config.create_tables,
            drop: config.drop_tables,
            lasting: config.lasting_tables,
        };
        let is_needed = rights.create || rights.drop;
        let clock = cluster.machines().outside();
        let table_admin = || TableAdmin::start(Arc::downgrade(&cluster), node, &clock, rights);
        let (calls, call_records) = records_table(&cluster, config.call_records)?;
        let shared = NodeServer::new(Parts {
            calls,
            table_admin: is_needed.then(table_admin).transpose()?,
            cluster: Arc::clone(&cluster),
            index: node,
            registry,
            gauges: config.gauges,
            limits: config.limits,
            call_records,
            interactive_limit: interactive,
            addresses: config.nodes,
            local_addresses: local_addresses.unwrap_or_default(),
        });
        let address = config.listener.local_addr()?;
        config.listener.set_nonblocking(true)?;
        rustix::net::listen(&config.listener, QUEUED).map_err(io::Error::from)?;
        if let Some(listener) = &local {
            listener.set_nonblocking(true)?;
            rustix::net::listen(listener, QUEUED).map_err(io::Error::from)?;
        }
        let metrics = config.metrics.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
        if let Some(listener) = &config.metrics {
            listener.set_nonblocking(true)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let security = Arc::new(config.security);
        let sockets = BoundSockets { clients: config.listener, local, metrics: config.metrics };
        let served = Arc::clone(&shared);
        let body = move || runtime.block_on(run(served, sockets, security, stopped));
        let thread = Env::real(0).spawn(&format!("lotus-server-{node}"), body)?;
        shared.start_workers(workers);
        tracing::info!(node, %address, workers, "serving clients");
        Ok(Self { address, metrics, stop, thread: Some(thread), _cluster: cluster })
    }

    /// Address for clients.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address at which metrics and health are served, if any.
    pub const fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Refuses new requests, answers the requests in flight, and closes all connections. Blocks
    /// until done: not to be called on a thread of an async runtime.
    ///
    /// # Errors
    /// The server's thread had panicked.
    pub fn stop(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Fails if the thread has already ended.
        let _ = self.stop.send(true);
        thread.join().map_err(|_| io::Error::other("the server's thread has panicked"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error cannot be reported any more.
        let _ = self.join();
    }
}

/// Returns the table of call records, which the first server creates, and the settings with the
/// table's shape.
fn records_table(
    cluster: &Cluster,
    records: CallRecords,
) -> Result<(TableId, CallRecords), StartError> {
    let known = || cluster.tables().into_iter().find(|(_, spec)| spec.name == calls::TABLE);
    let taken = |(id, spec): (TableId, TableSpec)| Ok((id, records.of(&spec)?));
    if let Some(found) = known() {
        return taken(found);
    }
    let spec = TableSpec::new(calls::TABLE).record_bytes(records.row_bytes).capacity(records.rows);
    match cluster.create_table_within(spec.clone(), RECORDS_PATIENCE) {
        // Another server was faster.
        Err(ClusterError::TableExists(name)) => {
            known().map_or(Err(ClusterError::TableExists(name).into()), taken)
        }
        made => taken((made?, spec)),
    }
}

/// Bound sockets of the server.
struct BoundSockets {
    clients: std::net::TcpListener,
    local: Option<std::os::unix::net::UnixListener>,
    metrics: Option<std::net::TcpListener>,
}

async fn run(
    node: Arc<NodeServer>,
    BoundSockets { clients, local, metrics }: BoundSockets,
    security: Arc<Security>,
    mut stopped: watch::Receiver<bool>,
) {
    let timekeeper = tokio::spawn(call_time::ask_now_and_then(Arc::clone(&node), stopped.clone()));
    let mut metrics = metrics.map(|listener| {
        let shown = Arc::clone(&node);
        tokio::spawn(http::serve(shown, listener, node.env.clone(), stopped.clone()))
    });
    let local = local.map(UnixListener::from_std).transpose();
    let mut network = ClientPort::new(&node);
    let mut here = ClientPort::new(&node);
    match TcpListener::from_std(clients).and_then(|clients| Ok((clients, local?))) {
        Ok((clients, local)) => {
            let acceptor = Acceptor { node: &node, security, number: AtomicU64::new(0) };
            let from_here = async {
                match local {
                    Some(listener) => acceptor.stand(&listener, &mut here).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = acceptor.stand(&clients, &mut network) => {}
                () = from_here => {}
                // An error means a dropped `Server`, with the same effect.
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
        Err(error) => tracing::error!(node = node.index, %error, "the listener cannot be used"),
    }
    [&network, &here].iter().for_each(|port| port.guests.clear());
    node.drain(node.limits.drain).await;
    let ended = async {
        for port in [&mut network, &mut here] {
            while port.tasks.join_next().await.is_some() {}
        }
        node.left().await;
        // A panic in the task has been reported already.
        let _ = timekeeper.await;
        if let Some(metrics) = &mut metrics {
            let _ = metrics.await;
        }
    };
    // Tasks still running are dropped with the set.
    if tokio::time::timeout(CLOSING, ended).await.is_err() {
        node.cut();
    }
    tracing::info!(node = node.index, "stopped");
}

/// A port for clients, and the tasks of the clients that came through it.
struct ClientPort {
    guests: SharedGuests,
    tasks: JoinSet<()>,
}

impl ClientPort {
    fn new(node: &NodeServer) -> Self {
        Self { guests: SharedGuests::new(node.limits.guests, &node.env), tasks: JoinSet::new() }
    }
}

/// A socket that accepts clients.
trait Listener {
    async fn accept(&self) -> io::Result<(Arrival, Origin)>;
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Arrival, Origin)> {
        let (socket, address) = Self::accept(self).await?;
        Ok((Arrival::FromNetwork(socket), Origin::Network(address)))
    }
}

impl Listener for UnixListener {
    async fn accept(&self) -> io::Result<(Arrival, Origin)> {
        Ok((Arrival::FromThisHost(Self::accept(self).await?.0), Origin::ThisHost))
    }
}

/// Accepts clients, and admits them within the limit of guests.
struct Acceptor<'n> {
    node: &'n Arc<NodeServer>,
    security: Arc<Security>,
    /// Number of the last connection, at any port.
    number: AtomicU64,
}

impl Acceptor<'_> {
    async fn stand(&self, listener: &impl Listener, port: &mut ClientPort) {
        let node = self.node;
        let mut lines = Lines::default();
        let accept = || async {
            let (arrival, client) = listener.accept().await?;
            Ok((client.source(), (arrival, client)))
        };
        loop {
            while port.tasks.try_join_next().is_some() {}
            let ((arrival, client), place) = match port.guests.receive(&mut lines, accept).await {
                Ok(Received::Guest { newcomer, place, in_anothers }) => {
                    if in_anothers {
                        note_crowd(node, newcomer.1, GAVE_WAY);
                    }
                    (newcomer, place)
                }
                Ok(Received::Surplus((_, client))) => {
                    note_crowd(node, client, NO_ROOM);
                    continue;
                }
                Err(error) => {
                    if let Some(kept_back) = node.complaints.may_say("sockets", node.env.now()) {
                        let node = node.index;
                        tracing::warn!(node, %error, kept_back, "cannot accept a connection");
                    }
                    tokio::time::sleep(OUT_OF_SOCKETS).await;
                    continue;
                }
            };
            let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
            let security = Arc::clone(&self.security);
            let guest = place.id;
            let served = receive(Arc::clone(node), security, arrival, client, number, place);
            let task = port.tasks.spawn(served);
            port.guests.serve(guest, task);
        }
    }
}

/// Counts and logs a connection that was closed because there were too many, with the message
/// `what`; `client` is the closed connection, or the connection that took the place.
fn note_crowd(node: &NodeServer, client: Origin, what: &str) {
    add(&node.connection_counters.turned_away);
    if let Some(kept_back) = node.complaints.may_say("guests", node.env.now()) {
        let node = node.index;
        tracing::warn!(node, %client, kept_back, "{what}");
    }
}

/// An accepted connection.
enum Arrival {
    FromNetwork(TcpStream),
    FromThisHost(UnixStream),
}

impl Arrival {
    /// Waits until the client has sent a byte, or has hung up.
    async fn speaks(&self) -> io::Result<()> {
        // The readiness of a socket is a guess, and may be wrong for a silent socket.
        match self {
            Self::FromNetwork(socket) => socket.async_io(Interest::READABLE, || peek(socket)).await,
            Self::FromThisHost(socket) => {
                socket.async_io(Interest::READABLE, || peek(socket)).await
            }
        }
    }
}

/// Checks whether a byte can be read.
fn peek(socket: impl AsFd) -> io::Result<()> {
    rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK)?;
    Ok(())
}

/// Admits one connection and hands the connection to a coordinator; a connection within TLS is
/// served to its end here.
async fn receive(
    node: Arc<NodeServer>,
    security: Arc<Security>,
    arrival: Arrival,
    client: Origin,
    number: u64,
    place: GuestPlace,
) {
    let greeting = node.limits.greeting;
    match tokio::time::timeout(greeting, arrival.speaks()).await {
        Ok(Ok(())) => place.keep(SPEAKING.min(greeting)),
        Ok(Err(error)) => return connection::note_turned(&node, &error.into(), client),
        Err(_) => return connection::note_turned(&node, &Turned::Slow, client),
    }
    let stream = match arrival {
        Arrival::FromNetwork(socket) => Stream::incoming(socket, &security),
        Arrival::FromThisHost(socket) => Ok(Stream::Local(socket)),
    };
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(node = node.index, %client, %error, "a connection cannot be used");
            return;
        }
    };
    let room = || {
        if node.is_draining() || !node.cluster().takes_part(node.index) {
            return Err(Refusal::Leaving);
        }
        let has_room = node.connections() < node.limits.connections;
        has_room.then_some(()).ok_or(Refusal::Full)
    };
    let admitted = connection::admit(&node, &mut stream, client, security.key(), room);
    let incoming = match admitted.await {
        Ok(incoming) => incoming,
        Err(turned) => return connection::note_turned(&node, &turned, client),
    };
    drop(place);
    let home = number as usize % node.queues.len();
    let registration = ClientRegistration::enter(&node, number, client, home);
    let socket = match stream {
        Stream::Plain(socket) => socket.into_std().map(OwnedFd::from),
        Stream::Local(socket) => socket.into_std().map(OwnedFd::from),
        Stream::Sealed(_) => {
            return connection::serve(&mut stream, incoming, &registration, home).await;
        }
    };
    match socket {
        Ok(stream) => {
            let newcomer = Box::new(AdmittedClient { stream, incoming, registration });
            // If the coordinator has no worker left, the push closes the connection.
            node.queues[home].push_all(&mut vec![WorkerTask::Attend(newcomer)]);
        }
        Err(error) => tracing::debug!(node = node.index, %client, %error, "gone already"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Strangers once kept their places for as long as clients that speak: their sockets seemed to
    /// be readable.
    #[test]
    fn a_silent_client_does_not_speak() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (accepted, _) = TcpListener::accept(&listener).await.unwrap();
            let (mut near, here) = UnixStream::pair().unwrap();
            let arrivals = [Arrival::FromNetwork(accepted), Arrival::FromThisHost(here)];
            for arrival in &arrivals {
                let spoken = tokio::time::timeout(Duration::from_millis(50), arrival.speaks());
                assert!(spoken.await.is_err());
            }
            client.write_all(b"a").await.unwrap();
            near.write_all(b"a").await.unwrap();
            for arrival in &arrivals {
                arrival.speaks().await.unwrap();
            }
        });
    }
}
