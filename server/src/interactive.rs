//! An interactive transaction: a job that stays in one coroutine slot for as long as the client
//! takes, within a limit. It ends with its commit, an error, the limit, or the client's connection;
//! in each case its locks are released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender};
use lotus::{Item, Nanos, PrimaryKey, Seat, Session, TableId, Transaction, TxnError};
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

/// A step on its way to its transaction.
pub(crate) struct Message {
    ticket: Ticket,
    /// An [`Op::Step`], encoded.
    step: Box<[u8]>,
}

/// An open transaction, as its connection sees it.
pub(crate) struct Open {
    steps: Sender<Message>,
    expired: Arc<AtomicBool>,
}

impl Open {
    /// Hands a step over; the ticket is answered in any case.
    pub(crate) fn step(&self, ticket: Ticket, step: &[u8], hold_ms: u32) {
        if let Err(refused) = self.steps.try_send(Message { ticket, step: step.into() }) {
            let is_expired = self.expired.load(Ordering::Relaxed);
            refused.into_inner().ticket.fail(match is_expired {
                true => Failure::HeldTooLong { limit_ms: hold_ms },
                false => Failure::NoTransaction,
            });
        }
    }

    /// Whether it goes on, and if not, whether it has expired.
    pub(crate) fn standing(&self) -> Standing {
        match (self.steps.is_closed(), self.expired.load(Ordering::Relaxed)) {
            (false, _) => Standing::Open,
            (true, true) => Standing::Expired,
            (true, false) => Standing::Over,
        }
    }
}

/// Begins a transaction of this kind in `place`; its first step is to follow.
pub(crate) fn begin(node: &Arc<NodeServer>, place: InteractivePlace, kind: Kind) -> Open {
    // One step at a time: a client that sends more does not wait for answers.
    let (steps, inbox) = async_channel::bounded(1);
    let expired = Arc::new(AtomicBool::new(false));
    let seat = Seat { compute_node: node.index, thread: place.thread };
    let (shared, flag) = (Arc::clone(node), Arc::clone(&expired));
    let arrived = node.env.now();
    let job = move |session| -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let thread = place.thread;
            let held = Held { inbox, expired: flag, deadline: arrived.after(shared.limits.hold) };
            let ending = held.serve(&shared, session, kind).await;
            let latency = shared.env.now().since(arrived);
            shared.counters[thread].end(ending, latency, None);
            drop(place);
        })
    };
    node.host().submit(seat, Box::new(job));
    Open { steps, expired }
}

struct Held {
    inbox: Receiver<Message>,
    expired: Arc<AtomicBool>,
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
        let mut alarm = Alarm::new(session.view());
        let mut open = None;
        let mut items = Vec::new();
        loop {
            let Ok(message) = within(&mut alarm, self.deadline, self.inbox.recv()).await else {
                // The next step, if one comes, learns why.
                self.expired.store(true, Ordering::Relaxed);
                return Ending::Failed;
            };
            // The client has gone away, or changed its mind.
            let Ok(Message { mut ticket, step }) = message else { return Ending::Failed };
            let Ok(Op::Step(step)) = decode(&step) else { return Ending::Failed };
            let stepped = async {
                let mut txn = match open.take() {
                    Some(txn) => txn,
                    None => worker::begin(&mut session, kind).await.map_err(failure::of)?,
                };
                let before = items.len();
                act(node, &mut txn, &step, &mut items)?;
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

/// Carries out a step's actions. `items` are the rows as the client counts them: the engine has one
/// item for a row that is added twice.
fn act(
    node: &NodeServer,
    txn: &mut Transaction,
    step: &Step<'_>,
    items: &mut Vec<Item>,
) -> Result<(), Failure> {
    let key = |Bytes(bytes): Bytes<'_>| {
        PrimaryKey::try_from(bytes).map_err(|error| Failure::Refused(error.to_string()))
    };
    // The records of calls are the server's own.
    let table = |number: u16| match TableId(number) {
        table if table == node.calls => Err(failure::of(TxnError::UnknownTable(table))),
        table => Ok(table),
    };
    let known = |items: &[Item], item: u32| {
        let foreign = || Failure::Refused("the item belongs to another transaction".to_owned());
        items.get(item as usize).copied().ok_or_else(foreign)
    };
    for action in &step.actions {
        let adds =
            !matches!(action, Action::Put { .. } | Action::Delete { .. } | Action::Upsert { .. });
        if adds && items.len() >= node.limits.rows {
            return Err(Failure::TooLarge { excess: Excess::Rows, limit: node.limits.rows as u32 });
        }
        let added = match *action {
            Action::Read { table: t, key: k } => txn.add_ro(table(t)?, key(k)?).map(Some),
            Action::Write { table: t, key: k } => txn.add_rw(table(t)?, key(k)?).map(Some),
            Action::Insert { table: t, key: k, value: Bytes(value) } => {
                txn.insert(table(t)?, key(k)?, value).map(Some)
            }
            Action::Put { item, value: Bytes(value) } => {
                txn.put(known(items, item)?, value).map(|()| None)
            }
            Action::Delete { item } => txn.delete(known(items, item)?).map(|()| None),
            Action::Upsert { item, value: Bytes(value) } => {
                txn.upsert(known(items, item)?, value).map(|()| None)
            }
        };
        items.extend(added.map_err(failure::of)?);
    }
    Ok(())
}
