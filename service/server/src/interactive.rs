//! An interactive transaction: a job that stays in one coroutine slot for as long as the client
//! takes, within a limit. The transaction ends with its commit, an error, the limit, or the
//! client's connection; in each case its locks are released (I82).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender};
use lotus::{Item, Nanos, PrimaryKey, Session, SessionView, TableId, Transaction, TxnError};
use lotus_protocol::messages::{
    Action, Answer, Bytes, Excess, Failure, Kind, Op, RESULT_BYTES, ROW_BYTES, Step, StepEnd,
    decode,
};

use crate::counters::Ending;
use crate::failure;
use crate::node::{InteractivePlace, NodeServer};
use crate::numbered::Standing;
use crate::ordered::{self, Outcome};
use crate::retries::Retry;
use crate::ticket::Ticket;
use crate::within::{Alarm, NoOutput, within};
use crate::worker;

/// A step on the way to its transaction, or a page request on the way to its scan.
pub(crate) struct Message {
    pub(crate) ticket: Ticket,
    /// An encoded [`Op`].
    pub(crate) step: Box<[u8]>,
}

/// The connection's handle of an open transaction or scan.
pub(crate) struct Open {
    steps: Sender<Message>,
    over: Over,
}

/// State of a transaction or scan that is over.
#[derive(Clone)]
struct Over {
    expired: Arc<AtomicBool>,
    /// Failure of steps after the transaction's time has run out.
    too_late: Failure,
}

impl Over {
    /// Answers a step that comes too late.
    fn answer(&self, step: Message) {
        step.ticket.fail(match self.expired.load(Ordering::Relaxed) {
            true => self.too_late.clone(),
            false => Failure::NoTransaction,
        });
    }
}

impl Open {
    /// Creates a handle that takes a step at a time, and the inbox of its job. Steps fail with
    /// `too_late` once the job's time has run out.
    pub(crate) fn new(too_late: Failure) -> (Self, Inbox) {
        // One step at a time: a client that sends more does not wait for answers.
        let (steps, inbox) = async_channel::bounded(1);
        let over = Over { expired: Arc::new(AtomicBool::new(false)), too_late };
        (Self { steps, over: over.clone() }, Inbox { steps: inbox, over })
    }

    /// Hands a step over; the ticket is answered in any case.
    pub(crate) fn step(&self, ticket: Ticket, step: &[u8]) {
        if let Err(refused) = self.steps.try_send(Message { ticket, step: step.into() }) {
            self.over.answer(refused.into_inner());
        }
    }

    /// Whether the transaction or scan goes on, and if not, whether it has expired.
    pub(crate) fn standing(&self) -> Standing {
        match (self.steps.is_closed(), self.over.expired.load(Ordering::Relaxed)) {
            (false, _) => Standing::Open,
            (true, true) => Standing::Expired,
            (true, false) => Standing::Over,
        }
    }
}

/// Steps on their way to a job. When the job ends, steps not taken yet are answered.
pub(crate) struct Inbox {
    steps: Receiver<Message>,
    over: Over,
}

impl Inbox {
    /// Returns the next step by `deadline`; `None` when the deadline has passed, of which later
    /// steps are told, or when the client has gone away or has abandoned the transaction.
    pub(crate) async fn next(&self, alarm: &mut Alarm, deadline: Nanos) -> Option<Message> {
        let Ok(message) = within(alarm, deadline, self.steps.recv()).await else {
            self.over.expired.store(true, Ordering::Relaxed);
            return None;
        };
        message.ok()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.steps.close();
        while let Ok(step) = self.steps.try_recv() {
            self.over.answer(step);
        }
    }
}

/// Begins a transaction of this kind in `place`, possibly as the retry of an earlier transaction;
/// its first step is to follow.
pub(crate) fn begin(
    node: &Arc<NodeServer>,
    place: InteractivePlace,
    kind: Kind,
    retry: Retry,
) -> Open {
    let limit_ms = node.limits.hold.as_millis() as u32;
    let (open, inbox) = Open::new(Failure::HeldTooLong { limit_ms });
    let shared = Arc::clone(node);
    let arrived = node.env.now();
    node.submit(place.thread, move |session| async move {
        let held = Held { inbox, deadline: arrived.after(shared.limits.hold), retry };
        let ending = held.serve(&shared, session, kind).await;
        let latency = shared.env.now().since(arrived);
        shared.counters[place.thread].end(ending, latency, None);
        drop(place);
    });
    open
}

struct Held {
    inbox: Inbox,
    deadline: Nanos,
    retry: Retry,
}

/// End of one step.
enum Stepped {
    /// The step was executed; another step may follow.
    Executed(Transaction),
    Over(Ending),
}

impl Held {
    async fn serve(mut self, node: &NodeServer, mut session: Session, kind: Kind) -> Ending {
        self.retry.refusal().into_iter().for_each(|refusal| session.retries(refusal));
        let view = session.view();
        let mut alarm = Alarm::new(view.clone());
        let mut open = None;
        let mut held = Rows::default();
        loop {
            let message = self.inbox.next(&mut alarm, self.deadline).await;
            let Some(Message { mut ticket, step }) = message else { return Ending::Failed };
            let Ok(Op::Step(step)) = decode(&step) else { return Ending::Failed };
            let stepped = async {
                let mut txn = match open.take() {
                    Some(txn) => txn,
                    None => worker::begin(&mut session, kind).await.map_err(failure::of)?,
                };
                let before = held.items.len();
                act(node, &view, &mut txn, &step, &mut held).await?;
                txn.execute().await.map_err(failure::of)?;
                let found = find(node, &view, &mut txn, &step.end, &mut held).await?;
                check_answer(&txn, &step, &held.items[before..], found.as_ref())?;
                Ok::<_, Failure>((txn, before, found))
            };
            let failure = match within(&mut alarm, self.deadline, stepped).await {
                Ok(Ok((txn, before, found))) => {
                    match end(txn, &step, &held.items[before..], found, ticket).await {
                        Stepped::Executed(txn) => {
                            open = Some(txn);
                            continue;
                        }
                        Stepped::Over(ending) => return ending,
                    }
                }
                Ok(Err(failure)) => failure,
                Err(NoOutput::Panicked) => Failure::Panicked,
                Err(NoOutput::Late) => {
                    let limit_ms = node.limits.hold.as_millis() as u32;
                    Failure::HeldTooLong { limit_ms }
                }
            };
            // Before the client gets the answer, because it may begin anew at once.
            session.refusal().into_iter().for_each(|refusal| self.retry.keep(refusal));
            ticket.failed();
            ticket.fail(failure);
            return Ending::Failed;
        }
    }
}

/// Rows of a transaction, as counted by the client.
#[derive(Default)]
struct Rows {
    /// The engine has one item for a row added twice.
    items: Vec<Item>,
    /// Number of changes of ordered tables.
    changes: usize,
}

impl Rows {
    /// Checks that the number of rows, with `more` added, is within the limit.
    fn check(&self, node: &NodeServer, txn: &Transaction, more: usize) -> Result<(), Failure> {
        let rows = self.items.len().max(txn.row_count()) + self.changes + more;
        let limit = node.limits.rows;
        let too_large = Failure::TooLarge { excess: Excess::Rows, limit: limit as u32 };
        if rows > limit { Err(too_large) } else { Ok(()) }
    }
}

/// Checks that the values read by the step fit in an answer.
fn check_answer(
    txn: &Transaction,
    step: &Step<'_>,
    added: &[Item],
    found: Option<&Outcome>,
) -> Result<(), Failure> {
    if step.end == StepEnd::Commit {
        return Ok(());
    }
    let bytes = |item: &Item| ROW_BYTES + txn.value(*item).map_or(0, <[u8]>::len);
    let found = found.map_or(0, Outcome::bytes);
    let fits = added.iter().map(bytes).sum::<usize>() + found <= RESULT_BYTES;
    let limit = RESULT_BYTES as u32;
    fits.then_some(()).ok_or(Failure::TooLarge { excess: Excess::AnswerBytes, limit })
}

/// Answers an execution, or commits.
async fn end(
    txn: Transaction,
    step: &Step<'_>,
    added: &[Item],
    found: Option<Outcome>,
    mut ticket: Ticket,
) -> Stepped {
    if step.end != StepEnd::Commit {
        let added = added.iter().map(|item| txn.value(*item).map(Bytes)).collect();
        match &found {
            None => ticket.answer(&Answer::Executed(added)),
            Some(found) => ticket.answer(&Answer::Found { added, found: found.shown() }),
        }
        return Stepped::Executed(txn);
    }
    ticket.commits();
    match txn.commit().await {
        Ok(receipt) => {
            ticket.answer(&Answer::Committed(receipt.commit_ts.map(lotus::Timestamp::raw)));
            Stepped::Over(Ending::Committed)
        }
        Err(error) => {
            let failure = failure::of_commit(error);
            let unknown = failure == Failure::Unknown;
            ticket.fail(failure);
            Stepped::Over(if unknown { Ending::Unknown } else { Ending::Failed })
        }
    }
}

/// Reason for an action's failure.
enum ActionError {
    Engine(TxnError),
    Other(Failure),
}

impl From<TxnError> for ActionError {
    fn from(error: TxnError) -> Self {
        Self::Engine(error)
    }
}

impl ActionError {
    fn failure(self) -> Failure {
        match self {
            Self::Engine(error) => failure::of(error),
            Self::Other(failure) => failure,
        }
    }
}

/// Carries out a step's actions.
async fn act(
    node: &NodeServer,
    view: &SessionView,
    txn: &mut Transaction,
    step: &Step<'_>,
    held: &mut Rows,
) -> Result<(), Failure> {
    for action in &step.actions {
        let acted = match act_once(node, txn, action, held).await {
            // Another node may have created the table. The action has changed nothing.
            Err(ActionError::Engine(TxnError::UnknownTable(table))) => {
                view.learn_table(table).await.map_err(failure::of)?;
                act_once(node, txn, action, held).await
            }
            acted => acted,
        };
        acted.map_err(ActionError::failure)?;
    }
    Ok(())
}

/// Carries out one action.
async fn act_once(
    node: &NodeServer,
    txn: &mut Transaction,
    action: &Action<'_>,
    held: &mut Rows,
) -> Result<(), ActionError> {
    let key = |Bytes(bytes): Bytes<'_>| {
        let key = PrimaryKey::try_from(bytes);
        key.map_err(|error| ActionError::Other(Failure::Refused(error.to_string())))
    };
    let table = |number| open_to_clients(node, number).map_err(ActionError::Engine);
    let known = |item: u32| {
        let foreign = || Failure::Refused("the item belongs to another transaction".to_owned());
        held.items.get(item as usize).copied().ok_or_else(|| ActionError::Other(foreign()))
    };
    let is_of_item =
        matches!(action, Action::Put { .. } | Action::Delete { .. } | Action::Upsert { .. });
    if !is_of_item {
        held.check(node, txn, 1).map_err(ActionError::Other)?;
    }
    let added = match *action {
        Action::Read { table: t, key: k } => txn.add_ro(table(t)?, key(k)?)?,
        Action::Write { table: t, key: k } => txn.add_rw(table(t)?, key(k)?)?,
        Action::Insert { table: t, key: k, value: Bytes(value) } => {
            txn.insert(table(t)?, key(k)?, value)?
        }
        Action::Put { item, value: Bytes(value) } => return Ok(txn.put(known(item)?, value)?),
        Action::Delete { item } => return Ok(txn.delete(known(item)?)?),
        Action::Upsert { item, value: Bytes(value) } => {
            return Ok(txn.upsert(known(item)?, value)?);
        }
        Action::OrderedPut { table: t, key: Bytes(key), value: Bytes(value) } => {
            txn.ordered(table(t)?)?.put(key, value).await?;
            held.changes += 1;
            return Ok(());
        }
        Action::OrderedInsert { table: t, key: Bytes(key), value: Bytes(value) } => {
            txn.ordered(table(t)?)?.insert(key, value).await?;
            held.changes += 1;
            return Ok(());
        }
    };
    held.items.push(added);
    Ok(())
}

/// Carries out the operation on an ordered table that ends a step, if any.
async fn find(
    node: &NodeServer,
    view: &SessionView,
    txn: &mut Transaction,
    end: &StepEnd<'_>,
    held: &mut Rows,
) -> Result<Option<Outcome>, Failure> {
    let Some(number) = ordered::table_of(end) else { return Ok(None) };
    held.check(node, txn, 0)?;
    let table = open_to_clients(node, number).map_err(failure::of)?;
    let found = match ordered::find(txn, table, end).await {
        // As for an action.
        Err(TxnError::UnknownTable(table)) => {
            view.learn_table(table).await.map_err(failure::of)?;
            ordered::find(txn, table, end).await
        }
        found => found,
    };
    let found = found.map_err(failure::of)?;
    held.changes += usize::from(matches!(found, Some(Outcome::Deleted(true))));
    held.check(node, txn, 0)?;
    Ok(found)
}

/// Returns the table with this number, except for the server's own table of call records.
fn open_to_clients(node: &NodeServer, number: u16) -> Result<TableId, TxnError> {
    let table = TableId(number);
    if table == node.calls { Err(TxnError::UnknownTable(table)) } else { Ok(table) }
}
