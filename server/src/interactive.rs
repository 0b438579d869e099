//! An interactive transaction: a job that stays in one coroutine slot for as long as the client
//! takes, within a limit. It ends with its commit, an error, the limit, or the client's connection;
//! in each case its locks are released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender};
use lotus::{Item, Nanos, PrimaryKey, Seat, Session, SessionView, TableId, Transaction, TxnError};
use lotus_protocol::messages::{
    Action, Answer, Bytes, Excess, Failure, Kind, Op, RESULT_BYTES, ROW_BYTES, Step, StepEnd,
    decode,
};

use crate::counters::Ending;
use crate::failure;
use crate::node::{InteractivePlace, NodeServer};
use crate::numbered::Standing;
use crate::ticket::Ticket;
use crate::within::{Alarm, Cut, within};
use crate::worker;

/// A step on its way to its transaction, or a request for a page on its way to its scan.
pub(crate) struct Message {
    pub(crate) ticket: Ticket,
    /// An [`Op`], encoded.
    pub(crate) step: Box<[u8]>,
}

/// An open transaction or scan, as its connection sees it.
pub(crate) struct Open {
    steps: Sender<Message>,
    over: Over,
}

/// State of a transaction or scan that is over.
#[derive(Clone)]
struct Over {
    expired: Arc<AtomicBool>,
    /// Failure of steps after its time has run out.
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
    /// Makes one that takes a step at a time, and the inbox of its job. Once its time has run out
    /// steps fail with `too_late`.
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

    /// Whether it goes on, and if not, whether it has expired.
    pub(crate) fn standing(&self) -> Standing {
        match (self.steps.is_closed(), self.over.expired.load(Ordering::Relaxed)) {
            (false, _) => Standing::Open,
            (true, true) => Standing::Expired,
            (true, false) => Standing::Over,
        }
    }
}

/// Steps on their way to a job. When the job ends, those that it has not taken are answered.
pub(crate) struct Inbox {
    steps: Receiver<Message>,
    over: Over,
}

impl Inbox {
    /// The next step by `deadline`; `None` when that has passed, which later steps are told, or the
    /// client has gone away or changed its mind.
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

/// Begins a transaction of this kind in `place`; its first step is to follow.
pub(crate) fn begin(node: &Arc<NodeServer>, place: InteractivePlace, kind: Kind) -> Open {
    let limit_ms = node.limits.hold.as_millis() as u32;
    let (open, inbox) = Open::new(Failure::HeldTooLong { limit_ms });
    let seat = Seat { compute_node: node.index, thread: place.thread };
    let shared = Arc::clone(node);
    let arrived = node.env.now();
    let job = move |session| -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let thread = place.thread;
            let held = Held { inbox, deadline: arrived.after(shared.limits.hold) };
            let ending = held.serve(&shared, session, kind).await;
            let latency = shared.env.now().since(arrived);
            shared.counters[thread].end(ending, latency, None);
            drop(place);
        })
    };
    node.host().submit(seat, Box::new(job));
    open
}

struct Held {
    inbox: Inbox,
    deadline: Nanos,
}

/// End of one step.
enum Stepped {
    /// The step was executed; another one may follow.
    Executed(Transaction),
    Over(Ending),
}

impl Held {
    async fn serve(self, node: &NodeServer, mut session: Session, kind: Kind) -> Ending {
        let view = session.view();
        let mut alarm = Alarm::new(view.clone());
        let mut open = None;
        let mut items = Vec::new();
        loop {
            let message = self.inbox.next(&mut alarm, self.deadline).await;
            let Some(Message { mut ticket, step }) = message else { return Ending::Failed };
            let Ok(Op::Step(step)) = decode(&step) else { return Ending::Failed };
            let stepped = async {
                let mut txn = match open.take() {
                    Some(txn) => txn,
                    None => worker::begin(&mut session, kind).await.map_err(failure::of)?,
                };
                let before = items.len();
                act(node, &view, &mut txn, &step, &mut items).await?;
                txn.execute().await.map_err(failure::of)?;
                Ok::<_, Failure>((txn, before))
            };
            let failure = match within(&mut alarm, self.deadline, stepped).await {
                Ok(Ok((txn, before))) => match check_answer(&txn, &step, &items[before..]) {
                    Err(failure) => failure,
                    Ok(()) => match end(txn, &step, &items[before..], ticket).await {
                        Stepped::Executed(txn) => {
                            open = Some(txn);
                            continue;
                        }
                        Stepped::Over(ending) => return ending,
                    },
                },
                Ok(Err(failure)) => failure,
                Err(Cut::Panicked) => Failure::Panicked,
                Err(Cut::Late) => {
                    let limit_ms = node.limits.hold.as_millis() as u32;
                    Failure::HeldTooLong { limit_ms }
                }
            };
            ticket.failed();
            ticket.fail(failure);
            return Ending::Failed;
        }
    }
}

/// Whether what the step has read fits in an answer.
fn check_answer(txn: &Transaction, step: &Step<'_>, added: &[Item]) -> Result<(), Failure> {
    if step.end == StepEnd::Commit {
        return Ok(());
    }
    let bytes = |item: &Item| ROW_BYTES + txn.value(*item).map_or(0, <[u8]>::len);
    let fits = added.iter().map(bytes).sum::<usize>() <= RESULT_BYTES;
    let limit = RESULT_BYTES as u32;
    fits.then_some(()).ok_or(Failure::TooLarge { excess: Excess::AnswerBytes, limit })
}

/// Answers an execution, or commits.
async fn end(txn: Transaction, step: &Step<'_>, added: &[Item], mut ticket: Ticket) -> Stepped {
    if step.end == StepEnd::Execute {
        let values = added.iter().map(|item| txn.value(*item).map(Bytes)).collect();
        ticket.answer(&Answer::Executed(values));
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

/// Carries out a step's actions. `items` are the rows as the client counts them: the engine has one
/// item for a row that is added twice.
async fn act(
    node: &NodeServer,
    view: &SessionView,
    txn: &mut Transaction,
    step: &Step<'_>,
    items: &mut Vec<Item>,
) -> Result<(), Failure> {
    for action in &step.actions {
        let acted = match act_once(node, txn, action, items) {
            // Another node may have created it. The action has changed nothing.
            Err(ActionError::Engine(TxnError::UnknownTable(table))) => {
                view.learn_table(table).await.map_err(failure::of)?;
                act_once(node, txn, action, items)
            }
            acted => acted,
        };
        let added = acted.map_err(|refused| match refused {
            ActionError::Engine(error) => failure::of(error),
            ActionError::Other(failure) => failure,
        });
        items.extend(added?);
    }
    Ok(())
}

/// Carries out one action; returns the row that it adds, if it adds one.
fn act_once(
    node: &NodeServer,
    txn: &mut Transaction,
    action: &Action<'_>,
    items: &[Item],
) -> Result<Option<Item>, ActionError> {
    let key = |Bytes(bytes): Bytes<'_>| {
        let key = PrimaryKey::try_from(bytes);
        key.map_err(|error| ActionError::Other(Failure::Refused(error.to_string())))
    };
    // The records of calls are the server's own.
    let table = |number: u16| match TableId(number) {
        table if table == node.calls => {
            Err(ActionError::Other(failure::of(TxnError::UnknownTable(table))))
        }
        table => Ok(table),
    };
    let known = |item: u32| {
        let foreign = || Failure::Refused("the item belongs to another transaction".to_owned());
        items.get(item as usize).copied().ok_or_else(|| ActionError::Other(foreign()))
    };
    let adds =
        !matches!(action, Action::Put { .. } | Action::Delete { .. } | Action::Upsert { .. });
    if adds && items.len() >= node.limits.rows {
        let limit = node.limits.rows as u32;
        return Err(ActionError::Other(Failure::TooLarge { excess: Excess::Rows, limit }));
    }
    Ok(match *action {
        Action::Read { table: t, key: k } => Some(txn.add_ro(table(t)?, key(k)?)?),
        Action::Write { table: t, key: k } => Some(txn.add_rw(table(t)?, key(k)?)?),
        Action::Insert { table: t, key: k, value: Bytes(value) } => {
            Some(txn.insert(table(t)?, key(k)?, value)?)
        }
        Action::Put { item, value: Bytes(value) } => {
            txn.put(known(item)?, value)?;
            None
        }
        Action::Delete { item } => {
            txn.delete(known(item)?)?;
            None
        }
        Action::Upsert { item, value: Bytes(value) } => {
            txn.upsert(known(item)?, value)?;
            None
        }
    })
}
