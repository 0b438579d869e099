//! An interactive transaction. The application takes the steps: one exchange per execution, per
//! operation on an ordered table with a result, and for the commit.
//!
//! The transaction occupies a coroutine slot of one compute node, on one connection. The server
//! aborts a transaction after the loss of its connection or after its time limit, so a vanished
//! client leaves no lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_mvcc::shown::{ShownKey, ShownName};
use lotus_mvcc::table::MAX_RECORD_BYTES;
use lotus_rows::path::{Entry, Group};

use crate::client::{ClientState, Target};
use crate::connection::{Connection, Unanswered};
use crate::error::CallError;
use crate::ordered::OrderedTable;
use crate::retry::Repetition;
use lotus_protocol::messages::{
    Action, Answer, Begin, Bytes, Failure, Found, Kind, Op, REQUEST_BYTES, Step, StepEnd, decode,
};

/// One row of one transaction, numbered in the order of addition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item(u32);

/// Bytes of keys and values above which planned actions are sent in several steps: every server
/// takes requests of at least [`REQUEST_BYTES`].
const STEP_BYTES: usize = REQUEST_BYTES / 2;
/// Bytes of an action beside its key and value, at most.
const ACTION_BYTES: usize = 16;

const _: () = assert!(
    STEP_BYTES + MAX_RECORD_BYTES as usize + 4 * u8::MAX as usize + 64 <= REQUEST_BYTES,
    "a step that one action has made longer than it should be fits in a request"
);

/// A change or a new row for the next step.
#[derive(Debug)]
pub(crate) enum Planned {
    Read(TableId, PrimaryKey),
    Write(TableId, PrimaryKey),
    Insert(TableId, PrimaryKey, Vec<u8>),
    Put(Item, Vec<u8>),
    Delete(Item),
    Upsert(Item, Vec<u8>),
    OrderedPut(TableId, Vec<u8>, Vec<u8>),
    OrderedInsert(TableId, Vec<u8>, Vec<u8>),
}

impl Planned {
    fn action(&self) -> Action<'_> {
        match self {
            Self::Read(table, key) => Action::Read { table: table.0, key: Bytes(key.as_bytes()) },
            Self::Write(table, key) => Action::Write { table: table.0, key: Bytes(key.as_bytes()) },
            Self::Insert(table, key, value) => {
                let (key, value) = (Bytes(key.as_bytes()), Bytes(value));
                Action::Insert { table: table.0, key, value }
            }
            Self::Put(item, value) => Action::Put { item: item.0, value: Bytes(value) },
            Self::Delete(item) => Action::Delete { item: item.0 },
            Self::Upsert(item, value) => Action::Upsert { item: item.0, value: Bytes(value) },
            Self::OrderedPut(table, key, value) => {
                Action::OrderedPut { table: table.0, key: Bytes(key), value: Bytes(value) }
            }
            Self::OrderedInsert(table, key, value) => {
                Action::OrderedInsert { table: table.0, key: Bytes(key), value: Bytes(value) }
            }
        }
    }

    /// Returns the most bytes that the action takes in a request.
    fn bytes(&self) -> usize {
        let contents = match self {
            Self::Read(_, key) | Self::Write(_, key) => key.byte_count(),
            Self::Insert(_, key, value) => key.byte_count() + value.len(),
            Self::Put(_, value) | Self::Upsert(_, value) => value.len(),
            Self::Delete(_) => 0,
            Self::OrderedPut(_, key, value) | Self::OrderedInsert(_, key, value) => {
                key.len() + value.len()
            }
        };
        ACTION_BYTES + contents
    }

    /// Returns the row that the action adds, if any.
    const fn added(&self) -> Option<(TableId, PrimaryKey)> {
        match self {
            Self::Read(table, key) | Self::Write(table, key) | Self::Insert(table, key, _) => {
                Some((*table, *key))
            }
            Self::Put(..)
            | Self::Delete(_)
            | Self::Upsert(..)
            | Self::OrderedPut(..)
            | Self::OrderedInsert(..) => None,
        }
    }
}

/// Splits off the actions remaining after a first step of at most [`STEP_BYTES`] plus one action;
/// `None` if no action remains.
fn split_off(planned: &mut Vec<Planned>) -> Option<Vec<Planned>> {
    let mut bytes = 0;
    let full = planned.iter().position(|one| {
        bytes += one.bytes();
        bytes > STEP_BYTES
    });
    let next = full? + 1;
    (next < planned.len()).then(|| planned.split_off(next))
}

/// A row added by a transaction, one per item.
#[derive(Clone, Copy)]
struct Added {
    table: TableId,
    key: PrimaryKey,
    /// Whether the row is locked to write.
    writes: bool,
}

/// State of a transaction on its server.
#[derive(Clone)]
enum ServerState {
    /// Not begun: no step was sent.
    Nowhere,
    /// In progress on this connection, under this number.
    At(Arc<Connection>, u32),
    /// Ended.
    Over,
}

/// A transaction in progress. Dropping the transaction aborts it.
#[must_use = "a transaction that is dropped has no effect"]
pub struct Transaction {
    shared: Arc<ClientState>,
    kind: Kind,
    server_state: ServerState,
    /// Time limit of the first step.
    timeout: Duration,
    /// Number and node shared with other attempts, if the transaction may have several attempts.
    retry_identity: Option<RetryIdentity>,
    /// Error that has ended the transaction.
    ended_by: Option<CallError>,
    /// Whether a step is under way. Stays true after a drop of the step's future: the actions sent
    /// with the step, or the server's answer, are lost, and no step may follow.
    stepping: bool,
    planned: Vec<Planned>,
    /// Values read, by item; shorter than the list of items while some are not executed.
    values: Vec<Option<Box<[u8]>>>,
    items: u32,
    added: Vec<Added>,
    /// Rows changed by the transaction, with their latest value; `None` if the transaction deletes
    /// the row.
    changes: BTreeMap<(TableId, PrimaryKey), Option<Box<[u8]>>>,
}

/// Returns the error of a transaction whose step was dropped before its answer came.
fn step_dropped() -> CallError {
    let why = "a step of the transaction was given up before its answer came";
    CallError::Failed(Failure::Conflict(why.to_owned()))
}

/// Identity shared by the attempts of one transaction, by which a server recognizes a retry and
/// finds the locks refused to the previous attempt.
#[derive(Clone, Copy)]
pub(crate) struct RetryIdentity {
    pub(crate) number: u32,
    /// Node of the transaction if its first row has no owner.
    pub(crate) near: usize,
}

impl Transaction {
    pub(crate) fn new(shared: Arc<ClientState>, kind: Kind, timeout: Duration) -> Self {
        Self {
            shared,
            kind,
            server_state: ServerState::Nowhere,
            timeout,
            retry_identity: None,
            ended_by: None,
            stepping: false,
            planned: Vec::new(),
            values: Vec::new(),
            items: 0,
            added: Vec::new(),
            changes: BTreeMap::new(),
        }
    }

    /// Makes the transaction one of possibly several attempts.
    pub(crate) const fn of(mut self, retry_identity: RetryIdentity) -> Self {
        self.retry_identity = Some(retry_identity);
        self
    }

    /// Adds a row to be read. The first row decides where the transaction runs.
    pub fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Item {
        self.add(Planned::Read(table, key.into()))
    }

    /// Adds a row to be read and perhaps written.
    pub fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Item {
        self.add(Planned::Write(table, key.into()))
    }

    /// Adds a row that does not exist yet. If the row exists, the next step ends the transaction
    /// with [`Failure::AlreadyExists`].
    pub fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: impl Into<Vec<u8>>,
    ) -> Item {
        let value = value.into();
        let item = self.add(Planned::Insert(table, key.into(), value.clone()));
        self.change(item, Some(value));
        item
    }

    /// Sets the value that the commit will write.
    pub fn put(&mut self, item: Item, value: impl Into<Vec<u8>>) {
        let value = value.into();
        self.change(item, Some(value.clone()));
        self.planned.push(Planned::Put(item, value));
    }

    /// Sets the value that the commit will write, and inserts the row if it does not exist. The
    /// item must have been added for writing and executed: only the execution finds out whether the
    /// row exists. Otherwise the next step ends the transaction with [`Failure::Refused`].
    pub fn upsert(&mut self, item: Item, value: impl Into<Vec<u8>>) {
        let value = value.into();
        self.change(item, Some(value.clone()));
        self.planned.push(Planned::Upsert(item, value));
    }

    /// Deletes the row when the transaction commits.
    pub fn delete(&mut self, item: Item) {
        self.change(item, None);
        self.planned.push(Planned::Delete(item));
    }

    /// Returns the value of a row: the value put by this transaction, or else the value read.
    /// `None` if the row does not exist, was deleted, or has not been executed yet.
    pub fn value(&self, item: Item) -> Option<&[u8]> {
        let index = item.0 as usize;
        let row = self.added.get(index).map(|added| (added.table, added.key));
        match row.and_then(|row| self.changes.get(&row)) {
            Some(changed) => changed.as_deref(),
            None => self.values.get(index)?.as_deref(),
        }
    }

    /// Adds an entry to the group in a row of a grouped [`path`](crate::path), and the row if it
    /// does not exist. The item must have been added for writing and executed.
    ///
    /// # Errors
    /// [`CallError::Path`]; [`CallError::Request`] if the item has not been executed. Nothing was
    /// changed then, and the transaction goes on.
    pub fn link(&mut self, item: Item, entry: &Entry<'_>) -> Result<(), CallError> {
        let limit = self.value_limit(item);
        let value = self.group(item)?.with(entry, limit)?;
        self.upsert(item, value);
        Ok(())
    }

    /// Removes an entry from the group in a row of a grouped [`path`](crate::path); the row stays.
    /// The item must have been added for writing and executed.
    ///
    /// # Errors
    /// As [`Self::link`].
    pub fn unlink(&mut self, item: Item, entry: &Entry<'_>) -> Result<(), CallError> {
        let value = self.group(item)?.without(entry)?;
        self.upsert(item, value);
        Ok(())
    }

    /// Returns the group in an executed row.
    fn group(&self, item: Item) -> Result<Group<'_>, CallError> {
        if !self.is_executed(item) {
            return Err(CallError::Request("a group that was not executed".to_owned()));
        }
        Ok(Group::read(self.value(item))?)
    }

    /// Returns the largest value of an item's table, or of any table if this client does not know
    /// the table.
    fn value_limit(&self, item: Item) -> usize {
        let table = self.added.get(item.0 as usize).map(|added| added.table);
        let limit = table.and_then(|table| self.shared.map().record_bytes(table));
        limit.unwrap_or(MAX_RECORD_BYTES as usize)
    }

    /// Returns an ordered table, to be read and changed within this transaction.
    ///
    /// If no other row was added before its first step, the transaction runs on any node: a row of
    /// an ordered table has no shard of its own.
    pub const fn ordered(&mut self, table: TableId) -> OrderedTable<'_> {
        OrderedTable::new(self, table)
    }

    /// Locks and reads the rows added since the last execution. May be called repeatedly.
    ///
    /// If the future is dropped before it is ready, the transaction is over, as after a conflict.
    ///
    /// # Errors
    /// [`CallError`]; the transaction is then over and had no effect. If the error is
    /// [retryable](CallError::is_retryable), as [`Failure::Conflict`] is, begin anew;
    /// [`Client::run`](crate::Client::run) does so by itself.
    pub async fn execute(&mut self) -> Result<(), CallError> {
        let answer = self.step(StepEnd::Execute).await?;
        let Ok(Answer::Executed(values)) = decode(&answer) else { return self.over() };
        self.take_in(values, self.items as usize)
    }

    /// Ends a step with an operation on an ordered table; returns `judge` of the operation's
    /// result, which is `None` for a result that does not fit the operation.
    pub(crate) async fn find<T>(
        &mut self,
        end: StepEnd<'_>,
        judge: impl FnOnce(Found<'_>) -> Option<T>,
    ) -> Result<T, CallError> {
        let answer = self.step(end).await?;
        let Ok(Answer::Found { added, found }) = decode(&answer) else { return self.over() };
        self.take_in(added, self.items as usize)?;
        match judge(found) {
            Some(found) => Ok(found),
            None => self.over(),
        }
    }

    /// Takes in the values of the rows executed by a step; after the step, `executed` rows have
    /// values.
    fn take_in(
        &mut self,
        values: Vec<Option<Bytes<'_>>>,
        executed: usize,
    ) -> Result<(), CallError> {
        self.values.extend(values.into_iter().map(|value| value.map(|Bytes(value)| value.into())));
        if self.values.len() == executed { Ok(()) } else { self.over() }
    }

    /// Adds a change to the next step.
    pub(crate) fn plan(&mut self, change: Planned) {
        self.planned.push(change);
    }

    /// Makes all changes visible atomically, or no change at all; returns the commit timestamp, if
    /// anything was written. Rows not executed yet are executed first.
    ///
    /// # Errors
    /// [`CallError`]; its [effect](CallError::effect) says whether the transaction has committed.
    pub async fn commit(mut self) -> Result<Option<u64>, CallError> {
        let answer = self.step(StepEnd::Commit).await?;
        self.server_state = ServerState::Over;
        match decode(&answer) {
            Ok(Answer::Committed(timestamp)) => Ok(timestamp),
            _ => Err(CallError::Protocol),
        }
    }

    /// Aborts the transaction; none of its changes is ever visible.
    pub fn abort(self) {}

    /// Returns the last item of a row, locked to write if `writes`; `None` if there is no such
    /// item.
    pub(crate) fn item_of(&self, table: TableId, key: PrimaryKey, writes: bool) -> Option<Item> {
        let is_it =
            |added: &Added| added.table == table && added.key == key && (added.writes || !writes);
        self.added.iter().rposition(is_it).map(|index| Item(index as u32))
    }

    /// Whether the item was executed.
    pub(crate) fn is_executed(&self, item: Item) -> bool {
        (item.0 as usize) < self.values.len()
    }

    /// Records the value with which the transaction leaves a row.
    fn change(&mut self, item: Item, value: Option<Vec<u8>>) {
        if let Some(added) = self.added.get(item.0 as usize) {
            let value = value.map(Vec::into_boxed_slice);
            self.changes.insert((added.table, added.key), value);
        }
    }

    fn add(&mut self, planned: Planned) -> Item {
        let writes = !matches!(planned, Planned::Read(..));
        let row = planned.added();
        self.added.extend(row.map(|(table, key)| Added { table, key, writes }));
        self.planned.push(planned);
        self.items += 1;
        Item(self.items - 1)
    }

    /// Takes a step. An error ends the transaction, and so does an earlier step whose future was
    /// dropped.
    async fn step(&mut self, end: StepEnd<'_>) -> Result<Vec<u8>, CallError> {
        if self.stepping {
            return Err(self.ended(step_dropped()));
        }
        self.stepping = true;
        let stepped = self.steps(end).await;
        self.stepping = false;
        stepped
    }

    /// Takes a step, after executions of planned actions that do not fit into its request.
    async fn steps(&mut self, end: StepEnd<'_>) -> Result<Vec<u8>, CallError> {
        let mut planned = std::mem::take(&mut self.planned);
        // The server would end the connection over an action of this length.
        if let Some(bytes) = planned.iter().map(Planned::bytes).find(|bytes| *bytes > STEP_BYTES) {
            let why =
                format!("a row of {bytes} bytes, where values have {MAX_RECORD_BYTES} at most");
            return Err(self.ended(CallError::Failed(Failure::Refused(why))));
        }
        while let Some(rest) = split_off(&mut planned) {
            let some = std::mem::replace(&mut planned, rest);
            let executed = self.values.len() + some.iter().filter_map(Planned::added).count();
            let answer = self.step_of(&some, StepEnd::Execute).await?;
            let Ok(Answer::Executed(values)) = decode(&answer) else { return self.over() };
            self.take_in(values, executed)?;
        }
        self.step_of(&planned, end).await
    }

    /// Takes a step with these actions.
    async fn step_of(
        &mut self,
        planned: &[Planned],
        end: StepEnd<'_>,
    ) -> Result<Vec<u8>, CallError> {
        let stepped = match self.server_state.clone() {
            ServerState::At(connection, number) => {
                let actions = planned.iter().map(Planned::action).collect();
                let op = Op::Step(Step { txn: number, begin: None, actions, end });
                self.go_on(&connection, op, end).await
            }
            ServerState::Nowhere => self.begin(planned, end).await,
            ServerState::Over => return Err(CallError::Failed(Failure::NoTransaction)),
        };
        stepped.map_err(|error| self.ended(error))
    }

    /// Takes the first step, on the node that owns the first row's lock.
    async fn begin(&mut self, planned: &[Planned], end: StepEnd<'_>) -> Result<Vec<u8>, CallError> {
        let first = planned.iter().find_map(Planned::added);
        let map = self.shared.map();
        let shard = first.and_then(|(table, key)| map.shard(table, &key));
        let near = self.retry_identity.map(|retry_identity| retry_identity.near);
        let target = Target { shard, near, ..Target::any(self.kind) };
        let number = self.retry_identity.map(|retry_identity| retry_identity.number);
        let number = number.unwrap_or_else(|| self.shared.next_number());
        let kind = self.kind;
        let op = |shard, _| {
            let actions = planned.iter().map(Planned::action).collect();
            Op::Step(Step { txn: number, begin: Some(Begin { kind, shard }), actions, end })
        };
        // After a lost connection the server undoes an execution; a commit may have taken effect.
        let repetition = match self.may_commit(end) {
            true => Repetition::Harmful,
            false => Repetition::Effectless,
        };
        let begun = self.shared.carry_out(target, repetition, self.timeout, op).await;
        let (connection, answer) = begun?;
        self.server_state = ServerState::At(connection, number);
        Ok(answer)
    }

    /// Whether a step that was sent may have taken effect although no answer came. A server that
    /// loses the connection aborts its open transactions.
    fn may_commit(&self, end: StepEnd<'_>) -> bool {
        matches!(end, StepEnd::Commit) && self.kind != Kind::ReadOnly
    }

    async fn go_on(
        &self,
        connection: &Connection,
        op: Op<'_>,
        end: StepEnd<'_>,
    ) -> Result<Vec<u8>, CallError> {
        let answer = self.shared.ask(connection, op).await;
        let answer = answer.map_err(|unanswered| match unanswered {
            Unanswered::Lost | Unanswered::Late if self.may_commit(end) => CallError::Unknown,
            unanswered => self.shared.effectless(unanswered),
        })?;
        match decode(&answer) {
            Ok(Answer::Failed(Failure::Unknown)) => Err(CallError::Unknown),
            Ok(Answer::Failed(failure)) => Err(CallError::Failed(failure)),
            Ok(_) => Ok(answer),
            Err(_) => Err(CallError::Protocol),
        }
    }

    /// Ends the transaction after an answer that does not fit the request.
    pub(crate) fn over<T>(&mut self) -> Result<T, CallError> {
        Err(self.ended(CallError::Protocol))
    }

    /// Ends the transaction. Its server has also ended the transaction, or ends it on noticing the
    /// lost connection.
    fn ended(&mut self, error: CallError) -> CallError {
        self.stepping = false;
        self.abandon();
        self.ended_by = Some(error.clone());
        error
    }

    /// Ends the transaction as a server does, because a row to be inserted already exists.
    pub(crate) fn end_at_row(&mut self, table: TableId, key: &[u8]) -> CallError {
        let name = self.shared.map().name_of(table);
        let name = name.unwrap_or_else(|| table.0.to_string());
        let exists = format!("table {} already has row {}", ShownName(&name), ShownKey(key));
        self.ended(CallError::Failed(Failure::AlreadyExists(exists)))
    }

    /// Returns the error that has ended the transaction, if any.
    pub(crate) fn ended_by(&self) -> Option<CallError> {
        self.ended_by.clone().or_else(|| self.stepping.then(step_dropped))
    }

    fn abandon(&mut self) {
        if let ServerState::At(connection, number) =
            std::mem::replace(&mut self.server_state, ServerState::Over)
        {
            connection.tell(&Op::Abandon { txn: number });
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.abandon();
    }
}
