//! The client: finds the node for a request, sends the request, and retries where a retry is safe.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos, SmallRng};
use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::connection::{Connection, Unanswered};
use crate::error::{CallError, ConnectError, Rejection};
use crate::map::{Choice, Map, Route};
use crate::nodes::NodeLinks;
use crate::reach::reach;
use crate::retry::{Next, Repetition, Tries, TryOutcome, pause};
use crate::scan::Scan;
use crate::transaction::{RetryIdentity, Transaction};
use lotus_protocol::frame;
use lotus_protocol::messages::{
    self, Answer, Bytes, CallId, Directory, Failure, Kind, Op, Table, decode,
};
use lotus_protocol::table_shape::TableShape;

/// Least time that a call waits for an answer beyond its time-out before its outcome counts as
/// unknown: the server answers when the time is up, and the answer has to travel.
const GRACE: Duration = Duration::from_millis(150);
/// Time limit for a node's directory: longer than servers wait for the authority.
const DIRECTORY_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two requests to a doubted node.
const DOUBT_PAUSE: Duration = Duration::from_millis(500);
/// Initial capacity for encoded arguments, in bytes: enough for most calls.
const USUAL_BYTES: usize = 64;

/// A cluster, as an application sees it. Cheap to clone; all clones share the connections, made on
/// demand, at most one per compute node. Must be used within a `tokio` runtime.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<ClientState>,
}

pub(crate) struct ClientState {
    config: Config,
    env: Env,
    rng: Mutex<SmallRng>,
    map: RwLock<Arc<Map>>,
    nodes: NodeLinks,
    /// Number of the next interactive transaction.
    next_number: AtomicU32,
    /// Weak handle for tasks, so that tasks keep no client alive.
    this: Weak<Self>,
}

impl Client {
    /// Connects to the first server that answers, and learns the other servers from it. A server
    /// that has not answered after a moment no longer delays the other servers. A server that is
    /// running and has no room for a newcomer at the moment is tried again for [`Config::timeout`].
    ///
    /// # Errors
    /// [`ConnectError`] of the last server that has failed.
    pub async fn connect(config: Config) -> Result<Self, ConnectError> {
        let env = Env::real(config.seed);
        let (connection, directory) = reach(&config, &env).await?;
        Ok(Self::over(config, env, connection, directory))
    }

    fn over(config: Config, env: Env, connection: Arc<Connection>, directory: Directory) -> Self {
        let (count, node) = (directory.nodes.len(), usize::from(directory.node));
        let rng = Mutex::new(env.rng(0));
        let map = RwLock::new(Arc::new(Map::new(directory)));
        let next_number = AtomicU32::new(0);
        Self {
            shared: Arc::new_cyclic(|this| {
                let of: Weak<ClientState> = Weak::clone(this);
                let told = move |directory| {
                    if let Some(state) = Weak::upgrade(&of) {
                        state.take_in(directory);
                    }
                };
                let nodes = NodeLinks::new(count, node, connection, Arc::new(told));
                let this = Weak::clone(this);
                ClientState { config, env, rng, map, nodes, next_number, this }
            }),
        }
    }

    /// Returns the table of this name, if the last directory fetched has it.
    pub fn table(&self, name: &str) -> Option<TableId> {
        self.shared.map().table(name)
    }

    /// Returns all tables of the last directory fetched, sorted by name.
    pub fn tables(&self) -> Vec<Table> {
        self.shared.map().tables()
    }

    /// Returns the number of the table of this name; asks a server if the last directory fetched
    /// does not have the table. `None` if the table does not exist.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub async fn open_table(&self, name: &str) -> Result<Option<TableId>, CallError> {
        if let Some(table) = self.table(name) {
            return Ok(Some(table));
        }
        self.refresh().await?;
        Ok(self.table(name))
    }

    /// Creates an empty table, which all nodes serve from then on, and returns its number. If a
    /// table of the same name and shape exists, returns its number; so the call may be repeated,
    /// and several applications may begin with it. The cluster's operator decides whether
    /// applications may create tables (docs/operations.md).
    ///
    /// # Errors
    /// [`CallError::Request`] if the specification is not valid. Otherwise [`CallError::Failed`]:
    /// [`Failure::MayNotCreate`], [`Failure::TableDiffers`], [`Failure::NoRoomForTable`],
    /// [`Failure::InvalidTable`] for a name that begins with `lotus.`, [`Failure::NoAuthority`], or
    /// [`Failure::Conflict`] while a memory node is lost or being filled: no table was created.
    /// After [`CallError::Unknown`] the table may have been created, or may be yet: repeat the
    /// call.
    pub async fn create_table(&self, spec: &TableSpec) -> Result<TableId, CallError> {
        spec.validate().map_err(|error| CallError::Request(error.to_string()))?;
        let shared = &self.shared;
        let target = Target::any(Kind::Serializable);
        let op = |_, timeout_us| Op::CreateTable { table: TableShape::of(spec), timeout_us };
        let timeout = shared.config.timeout;
        // A repetition has no further effect, but an answer is certain of its own try only.
        let asked = shared.carry_out(target, Repetition::Once, timeout, op).await;
        let (_, answer) = asked?;
        match decode(&answer) {
            Ok(Answer::TableCreated(table)) => {
                let created = messages::Table::of(table, spec);
                let mut map = shared.map.write().unwrap_or_else(PoisonError::into_inner);
                *map = Arc::new(map.with(created));
                Ok(TableId(table))
            }
            _ => Err(CallError::Protocol),
        }
    }

    /// Drops a table with all rows, on all nodes: from then on, every request naming the table
    /// fails with [`Failure::UnknownTable`]. The table's memory is given back before this call
    /// returns, or soon after. The cluster's operator decides whether applications may drop tables
    /// (docs/operations.md).
    ///
    /// The call drops the table that has the name now, by its number. So the client may repeat the
    /// call, and never drops a table created meanwhile by another application under the same name.
    ///
    /// # Errors
    /// [`CallError::Failed`]: [`Failure::MayNotDrop`], [`Failure::NotFound`] if no table has this
    /// name, or [`Failure::Refused`] for a table of the system or of the cluster file: nothing was
    /// dropped. After [`CallError::Unknown`] the table may have been dropped: [`Self::refresh`],
    /// and see whether a table with this name and number exists.
    pub async fn drop_table(&self, name: &str) -> Result<(), CallError> {
        let known = self.table(name);
        self.refresh().await?;
        let (shared, map) = (&self.shared, self.shared.map());
        // Without its authority, a node may not know tables created by other nodes.
        let table = map.table(name).or(known).map(|table| table.0);
        let target = Target::any(Kind::Serializable);
        let op = |_, timeout_us| Op::DropTable { name, table, timeout_us };
        let timeout = shared.config.timeout;
        // A repetition has no further effect: a number stands for one table.
        let asked = shared.carry_out(target, Repetition::Once, timeout, op).await;
        let (_, answer) = asked?;
        match decode(&answer) {
            Ok(Answer::TableDropped) => {
                let mut map = shared.map.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(table) = table {
                    *map = Arc::new(map.without(TableId(table)));
                }
                Ok(())
            }
            _ => Err(CallError::Protocol),
        }
    }

    /// Fetches the directory from any node, to learn of tables and stored transactions added since
    /// the last fetch. The server may wait for a tenth of a second, to read the list of tables for
    /// several clients at once; if the authority, which keeps the list, does not answer the server,
    /// tables created by other nodes may be missing.
    ///
    /// # Errors
    /// [`CallError`] if no server answers.
    pub async fn refresh(&self) -> Result<(), CallError> {
        self.shared.refresh().await
    }

    /// Returns a call of the stored transaction of this name, sent when it is awaited.
    pub fn call<A: Serialize, R>(&self, procedure: &str, arguments: &A) -> Call<R> {
        let mut encoded = Vec::with_capacity(USUAL_BYTES);
        let encoding = frame::try_write(&mut encoded, arguments);
        Call {
            shared: Arc::clone(&self.shared),
            procedure: procedure.into(),
            arguments: encoding.map(|()| encoded).map_err(|error| error.to_string()),
            at: None,
            id: None,
            timeout: self.shared.config.timeout,
            result: PhantomData,
        }
    }

    /// Returns the final outcome of the call with this id: its result, or `None` if the call has
    /// not committed and now never will. Ask after errors whose [effect](CallError::effect) is
    /// unknown.
    ///
    /// # Errors
    /// [`CallError::Unsettled`] if the outcome cannot be found out yet; ask again.
    /// [`CallError::Result`] if the call has committed and its result does not decode as this type.
    pub async fn outcome<R: DeserializeOwned>(&self, id: CallId) -> Result<Option<R>, CallError> {
        let shared = &self.shared;
        let target = Target::any(Kind::Serializable);
        let timeout = shared.config.timeout;
        let op = |_, timeout_us| Op::Outcome { id, timeout_us };
        let unsettled = |error| CallError::Unsettled(Box::new(error));
        let asked = shared.carry_out(target, Repetition::Effectless, timeout, op).await;
        let (_, answer) = asked.map_err(unsettled)?;
        match decode(&answer) {
            Ok(Answer::Never) => Ok(None),
            Ok(Answer::Done(Bytes(result))) => decoded(result).map(Some),
            _ => Err(unsettled(CallError::Protocol)),
        }
    }

    /// Returns an interactive transaction: the application takes its steps, one exchange per step.
    /// Nothing is sent before the first execution or the commit.
    ///
    /// A step that meets a conflict is not retried, since only the application can repeat the
    /// earlier steps; its error is [retryable](CallError::is_retryable). [`Client::run`] repeats
    /// the whole transaction by itself.
    pub fn transaction(&self, kind: Kind) -> Transaction {
        Transaction::new(Arc::clone(&self.shared), kind, self.shared.timeout())
    }

    /// Returns a scan of a table: every row that exists at one moment, once, while transactions go
    /// on; of an ordered table in key order, or only the rows of a range. Nothing is sent before
    /// the first page is asked for.
    pub fn scan(&self, table: TableId) -> Scan {
        Scan::new(Arc::clone(&self.shared), table)
    }
}

/// A call that has not been made yet. Await it.
#[must_use = "nothing is sent before the call is awaited"]
pub struct Call<R> {
    shared: Arc<ClientState>,
    procedure: Box<str>,
    arguments: Result<Vec<u8>, String>,
    at: Option<(TableId, PrimaryKey)>,
    id: Option<CallId>,
    timeout: Duration,
    result: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned> Call<R> {
    /// Names the first row that the transaction touches: the transaction runs on the compute node
    /// that owns this row's lock, where locking costs no message (LOTUS §4.3). Read-only
    /// transactions, which take no locks, still run anywhere.
    pub fn at(mut self, table: TableId, key: impl Into<PrimaryKey>) -> Self {
        self.at = Some((table, key.into()));
        self
    }

    /// Sets the time limit of this call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the call take effect once, however often it is made with this id; later calls return
    /// the first call's result. The client then repeats a possibly lost call by itself. The time
    /// for which a server remembers an id is its operator's setting (docs/clients.md).
    pub fn idempotent(mut self, id: impl Into<CallId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Makes the call. Awaiting the call does the same, with one allocation more.
    ///
    /// # Errors
    /// [`CallError`]; its [effect](CallError::effect) says whether anything was changed.
    pub async fn send(self) -> Result<R, CallError> {
        let shared = &self.shared;
        let arguments = self.arguments.map_err(CallError::Request)?;
        let map = shared.map();
        // A name unknown to this map may have been registered since; the server knows.
        let kind = map.kind(&self.procedure).unwrap_or(Kind::Serializable);
        let shard = self.at.and_then(|(table, key)| map.shard(table, &key));
        let repetition = match self.id {
            _ if kind == Kind::ReadOnly => Repetition::Effectless,
            Some(_) => Repetition::Once,
            None => Repetition::Harmful,
        };
        let op = |shard, timeout_us| {
            Op::Call(messages::Call {
                procedure: &self.procedure,
                arguments: Bytes(&arguments),
                timeout_us,
                shard,
                id: self.id,
            })
        };
        let target = Target { shard, ..Target::any(kind) };
        let timeout = self.timeout;
        let (_, answer) = shared.carry_out(target, repetition, timeout, op).await?;
        match decode(&answer) {
            Ok(Answer::Done(Bytes(result))) => decoded(result),
            Ok(Answer::Rejected(Bytes(error))) => Err(CallError::Rejected(Rejection(error.into()))),
            _ => Err(CallError::Protocol),
        }
    }
}

impl<R: DeserializeOwned + 'static> IntoFuture for Call<R> {
    type Output = Result<R, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

fn decoded<R: DeserializeOwned>(result: &[u8]) -> Result<R, CallError> {
    postcard::from_bytes(result).map_err(|error| CallError::Result(error.to_string()))
}

/// Destination of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// Shard of the first row: its owner is asked first.
    pub(crate) shard: Option<u16>,
    /// Node that is asked first if no owner is asked; `None` for any node.
    pub(crate) near: Option<usize>,
    /// Time that one node has to answer, if shorter than the whole time limit.
    pub(crate) patience: Option<Duration>,
}

impl Target {
    /// Returns the target for any node.
    pub(crate) const fn any(kind: Kind) -> Self {
        Self { kind, shard: None, near: None, patience: None }
    }
}

impl ClientState {
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn now(&self) -> Nanos {
        self.env.now()
    }

    /// Returns the time limit of calls without a limit of their own.
    pub(crate) const fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Returns a number for an interactive transaction; it wraps around after four billion.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a number for the attempts of an interactive transaction, and a node for attempts
    /// that may run on any node.
    pub(crate) fn retry_identity(&self) -> RetryIdentity {
        let near = self.random(self.nodes.count() as u64) as usize;
        RetryIdentity { number: self.next_number(), near }
    }

    /// Sends a request until it has a final answer. `op` builds the request from the shard, if the
    /// shard's owner is asked, and the remaining time in microseconds.
    pub(crate) async fn carry_out<'a>(
        &self,
        target: Target,
        repetition: Repetition,
        timeout: Duration,
        op: impl Fn(Option<u16>, u32) -> Op<'a>,
    ) -> Result<(Arc<Connection>, Vec<u8>), CallError> {
        let mut route = Route::default();
        let mut tries = Tries::of(repetition);
        let mut pauses = 0;
        let mut obstacle = CallError::Failed(Failure::Timeout);
        let mut now = self.env.now();
        let deadline = now.after(timeout);
        loop {
            let left = deadline.since(now);
            if left.is_zero() {
                return Err(tries.at_last(obstacle));
            }
            // Connecting to a node may have brought a newer map.
            let map = self.map();
            let shard = target.shard.filter(|_| target.kind != Kind::ReadOnly);
            let owner = shard.and_then(|shard| map.owner(shard));
            let nodes = self.nodes.count();
            let any = || self.random(nodes as u64) as usize;
            let preferred = owner.or(target.near).unwrap_or_else(any);
            let doubted = |node| self.nodes.is_doubted(node, now);
            let Some(Choice { node, preferred }) = route.choose(preferred, nodes, doubted) else {
                route.forgive();
                self.pause(&mut pauses).await;
                now = self.env.now();
                continue;
            };
            // Only the presumed owner checks its ownership of the shard; a stand-in serves any
            // shard.
            let asked = shard.filter(|_| preferred && owner.is_some());
            let until = target.patience.map_or(deadline, |each| deadline.min(now.after(each)));
            let op = || {
                let left = deadline.since(self.env.now()).as_micros();
                op(asked, u32::try_from(left).unwrap_or(u32::MAX))
            };
            // Leaves time for another node if this node cannot be reached.
            let connecting = if nodes > 1 { left / 2 } else { left };
            let address = &map.nodes[node];
            let answered = self.try_once(node, address, connecting, op, until.after(GRACE)).await;
            let answer = match &answered {
                Ok((_, message)) => decode(message).map_err(|_| CallError::Protocol)?,
                Err(_) => Answer::Never,
            };
            let outcome = match &answered {
                Ok(_) => TryOutcome::Answered(&answer),
                Err(Unreached::Not(why)) => TryOutcome::NotSent(why.clone()),
                Err(Unreached::TooLong(why)) => return Err(CallError::Request(why.clone())),
                Err(Unreached::Lost) => TryOutcome::Lost,
                Err(Unreached::Late) if until < deadline => TryOutcome::Silent,
                Err(Unreached::Late) => TryOutcome::Late,
            };
            match tries.next(&outcome) {
                Next::Finish => return answered.map_err(|_| CallError::Protocol),
                Next::Fail(error) => return Err(error),
                Next::Elsewhere(why) => {
                    route.avoid(node);
                    obstacle = CallError::Unreachable(why);
                }
                Next::Reroute { shard, owner, epoch } => {
                    map.learn(shard, owner, epoch);
                    // No owner, or two nodes naming each other as owner: give the nodes time.
                    if owner.is_none() || map.owner(shard) == Some(node) {
                        self.pause(&mut pauses).await;
                    }
                }
                Next::Pause(why) => {
                    obstacle = why;
                    self.pause(&mut pauses).await;
                }
            }
            now = self.env.now();
        }
    }

    /// Fetches the directory again.
    async fn refresh(&self) -> Result<(), CallError> {
        // A node sends the directory soon, or another node will.
        let target = Target { patience: Some(DIRECTORY_PATIENCE), ..Target::any(Kind::ReadOnly) };
        let timeout = self.config.timeout;
        let op = |_, _| Op::Directory;
        let asked = self.carry_out(target, Repetition::Effectless, timeout, op).await;
        let (_, answer) = asked?;
        self.learn(&answer).then_some(()).ok_or(CallError::Protocol)
    }

    /// Takes in an answer; returns whether it is a directory of this cluster.
    fn learn(&self, answer: &[u8]) -> bool {
        let Ok(Answer::Directory(directory)) = decode(answer) else { return false };
        self.take_in(*directory)
    }

    /// Takes in a directory; returns whether it may belong to this cluster.
    fn take_in(&self, directory: Directory) -> bool {
        // The number of connections is fixed, one per node of the first directory.
        let is_same = directory.nodes.len() == self.nodes.count();
        if is_same {
            let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
            *map = Arc::new(Map::new(directory));
        }
        is_same
    }

    /// Doubts a node that did not answer in time or could not be reached: requests avoid the node,
    /// and a task learns the owners of its shards, from other nodes if there are any, until the
    /// node has answered again.
    fn doubt(&self, node: usize) {
        if self.nodes.doubt(node, self.env.now()) {
            tokio::spawn(look_after(Weak::clone(&self.this), node));
        }
    }

    /// Returns the index of the node at the other end of a connection, unless the node has a newer
    /// connection.
    pub(crate) fn node_of(&self, connection: &Connection) -> Option<usize> {
        self.nodes.at_end_of(connection)
    }

    /// Sends the next step of an interactive transaction, or the next request of a scan, on its
    /// connection.
    pub(crate) async fn ask(
        &self,
        connection: &Connection,
        op: Op<'_>,
    ) -> Result<Vec<u8>, Unanswered> {
        let until = self.env.now().after(self.config.timeout);
        let answered = connection.ask(|| op, &self.env, until).await;
        if let (Err(Unanswered::Late), Some(node)) = (&answered, self.node_of(connection)) {
            self.doubt(node);
        }
        answered
    }

    /// Returns the error of a request without an answer that had no effect, or has none any more.
    pub(crate) fn effectless(&self, unanswered: Unanswered) -> CallError {
        match unanswered {
            Unanswered::TooLong(bytes) => CallError::Request(too_long(bytes, &self.config)),
            Unanswered::Late => CallError::Failed(Failure::Timeout),
            Unanswered::NotSent | Unanswered::Lost => {
                CallError::Unreachable("the connection was lost".to_owned())
            }
        }
    }

    /// Sends a request to a node once: connects within `connecting`, and waits for the answer until
    /// `until`.
    async fn try_once<'o>(
        &self,
        node: usize,
        address: &str,
        connecting: Duration,
        op: impl FnOnce() -> Op<'o>,
        until: Nanos,
    ) -> Result<(Arc<Connection>, Vec<u8>), Unreached> {
        let (config, env) = (&self.config, &self.env);
        let connection = match self.nodes.connect(node, address, connecting, config, env).await {
            Ok(connection) => connection,
            Err(why) => {
                self.doubt(node);
                return Err(Unreached::Not(why));
            }
        };
        match connection.ask(op, env, until).await {
            Ok(answer) => Ok((connection, answer)),
            Err(Unanswered::NotSent) => {
                let why = "the connection is lost, or had no room for the request in time";
                Err(Unreached::Not(why.into()))
            }
            Err(Unanswered::TooLong(bytes)) => Err(Unreached::TooLong(too_long(bytes, config))),
            Err(Unanswered::Lost) => Err(Unreached::Lost),
            Err(Unanswered::Late) => {
                self.doubt(node);
                Err(Unreached::Late)
            }
        }
    }

    /// Waits a random time, with a bound that grows with the number of pauses.
    pub(crate) async fn pause(&self, pauses: &mut u32) {
        tokio::time::sleep(pause(pauses, |below| self.random(below))).await;
    }

    fn random(&self, below: u64) -> u64 {
        lock(&self.rng).random_range(0..below.max(1))
    }
}

/// Fetches directories while a node is doubted, from other nodes if there are any, and asks the
/// doubted node for a directory; trusts the node once it has sent its directory.
async fn look_after(client: Weak<ClientState>, node: usize) {
    while let Some(shared) = client.upgrade() {
        shared.nodes.doubt(node, shared.now());
        // Without a directory, the map stays as it is.
        let _ = shared.refresh().await;
        let map = shared.map();
        let until = shared.now().after(DIRECTORY_PATIENCE);
        let (op, address) = (|| Op::Directory, &map.nodes[node]);
        let asked = shared.try_once(node, address, DIRECTORY_PATIENCE, op, until).await;
        if asked.is_ok_and(|(_, answer)| shared.learn(&answer)) {
            return shared.nodes.trust(node);
        }
        drop(shared);
        tokio::time::sleep(DOUBT_PAUSE).await;
    }
}

/// Reason for a node's missing answer.
enum Unreached {
    Not(String),
    TooLong(String),
    Lost,
    Late,
}

/// Returns a sentence about a request longer than servers take.
fn too_long(bytes: usize, config: &Config) -> String {
    format!("it has {bytes} bytes, where a request has {} at most", config.request_bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
