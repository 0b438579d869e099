//! A worker: a job that stays in one coroutine slot and serves calls of stored transactions.

use std::sync::Arc;
use std::time::Duration;

use lotus::{
    Abort, Isolation, Nanos, Receipt, Session, SessionView, TableId, Transaction, TxnError,
};
use lotus_protocol::messages::{
    Answer, Bytes, CallId, Failure, Kind, RESULT_BYTES, ScarceResource,
};

use crate::call_time::{self, Stamp, TimeTurn};
use crate::calls::{self, Entry, Full, Memory};
use crate::connection::{AdmittedClient, Origin, attend};
use crate::counters::{Counters, Ending};
use crate::failure;
use crate::node::NodeServer;
use crate::registry::{Stop, Stored};
use crate::ticket::Ticket;
use crate::within::{Alarm, NoOutput, sheltered, within};

/// Longest wait of a directory for tables created on other nodes.
const LEARNING: Duration = Duration::from_secs(1);

/// Longest time for a server's turn in the time of call records.
const KEEPING_TIME: Duration = Duration::from_secs(1);

/// An entry of a worker's queue.
pub(crate) enum WorkerTask {
    Serve(Request),
    /// A connection to be served on the worker's thread.
    Attend(Box<AdmittedClient>),
    /// A client that asks for the directory.
    Tell {
        ticket: Ticket,
        client: Origin,
    },
    /// The server's turn in the time of call records is due.
    KeepTime(TimeTurn),
}

/// A request on its way to a worker.
pub(crate) struct Request {
    pub(crate) ticket: Ticket,
    pub(crate) work: Work,
    pub(crate) arrived: Nanos,
    pub(crate) deadline: Nanos,
}

/// The work that a request asks for.
pub(crate) enum Work {
    Call { stored: Arc<Stored>, arguments: Box<[u8]>, identity: Option<Identity> },
    Outcome(CallId),
}

/// Identity of a call, shared by its repetitions.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) id: CallId,
    pub(crate) fingerprint: u64,
}

/// Serves one coordinator's queue until the queue is closed and empty.
pub(crate) async fn work(node: Arc<NodeServer>, thread: usize, session: Session) {
    let alarm = Alarm::new(session.view());
    let counters = &node.counters[thread];
    let mut worker = Worker { node: &node, counters, session, alarm, result: Vec::new() };
    while let Some(task) = node.queues[thread].pop().await {
        match task {
            WorkerTask::Serve(request) => worker.serve(request).await,
            WorkerTask::Attend(newcomer) => {
                let view = worker.session.view();
                let executor = view.executor();
                executor.spawn(sheltered(attend(*newcomer, thread, executor.clone())));
            }
            WorkerTask::Tell { ticket, client } => {
                let view = worker.session.view();
                let told = tell(Arc::clone(&node), view.clone(), ticket, client);
                view.executor().spawn(sheltered(told));
            }
            WorkerTask::KeepTime(part) => {
                let deadline = worker.session.now().after(KEEPING_TIME);
                let kept = call_time::keep(worker.node, &mut worker.session, part);
                // Without this turn ids are remembered for longer; the next turn may succeed.
                let _ = within(&mut worker.alarm, deadline, kept).await;
            }
        }
    }
}

/// Answers with the directory, once this node knows the tables created by other nodes.
async fn tell(node: Arc<NodeServer>, view: SessionView, ticket: Ticket, client: Origin) {
    let mut alarm = Alarm::new(view.clone());
    let deadline = view.now().after(LEARNING);
    // Without the authority, the client gets the tables known to this node.
    let _ = within(&mut alarm, deadline, view.learn_tables()).await;
    match node.check(None) {
        Ok(()) => ticket.answer_encoded(&node.encoded_directory(client)),
        Err(failure) => ticket.fail(failure),
    }
}

struct Worker<'n> {
    node: &'n NodeServer,
    counters: &'n Counters,
    session: Session,
    alarm: Alarm,
    /// The encoded result of the transaction under way.
    result: Vec<u8>,
}

/// Success of an attempt.
enum Attempt {
    Committed,
    /// The call had been carried out before, with this result.
    Recalled(Vec<u8>),
    Never,
}

/// Failure of an attempt.
enum Miss {
    /// Aborted, or with unknown outcome, according to the engine.
    Engine(TxnError),
    /// Error of the commit: the attempt may have committed.
    Commit(TxnError),
    Rejected(Vec<u8>),
    Failed(Failure),
}

impl From<TxnError> for Miss {
    fn from(error: TxnError) -> Self {
        Self::Engine(error)
    }
}

impl From<Stop> for Miss {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Engine(error) => Self::Engine(error),
            Stop::Rejected(error) => Self::Rejected(error),
            Stop::Arguments(why) => Self::Failed(Failure::Arguments(why)),
            Stop::Result(why) => Self::Failed(Failure::Result(why)),
        }
    }
}

impl Worker<'_> {
    async fn serve(&mut self, request: Request) {
        let Request { mut ticket, work, arrived, deadline } = request;
        let outcome = self.carry_out(&mut ticket, &work, deadline).await;
        let ending = match &outcome {
            Ok(_) => Ending::Committed,
            Err(Miss::Rejected(_)) => Ending::Rejected,
            Err(Miss::Failed(Failure::Unknown)) => Ending::Unknown,
            Err(_) => Ending::Failed,
        };
        let procedure = match &work {
            Work::Call { stored, .. } => Some(stored.place),
            Work::Outcome(_) => None,
        };
        self.counters.end(ending, self.session.now().since(arrived), procedure);
        ticket.answer(&match &outcome {
            Ok(Attempt::Committed) => Answer::Done(Bytes(&self.result)),
            Ok(Attempt::Recalled(result)) => Answer::Done(Bytes(result)),
            Ok(Attempt::Never) => Answer::Never,
            Err(Miss::Rejected(error)) => Answer::Rejected(Bytes(error)),
            Err(Miss::Engine(error)) => Answer::Failed(failure::of(error.clone())),
            Err(Miss::Commit(error)) => Answer::Failed(failure::of_commit(error.clone())),
            Err(Miss::Failed(failure)) => Answer::Failed(failure.clone()),
        });
    }

    /// Tries until there is an answer or the deadline has passed.
    async fn carry_out(
        &mut self,
        ticket: &mut Ticket,
        work: &Work,
        deadline: Nanos,
    ) -> Result<Attempt, Miss> {
        self.session.new_transaction();
        if let Work::Call { stored, .. } = work {
            // The transaction's code may hold up the thread, or never end.
            self.session.name_work(&stored.name);
        }
        let (mut attempts, mut has_looked) = (0, false);
        // Converted to a failure only if no attempt follows.
        let mut last = None;
        if !ticket.may_be_answered() {
            return Err(Miss::Failed(Failure::Busy(ScarceResource::Answers)));
        }
        loop {
            // Also before the first attempt: a call that has waited too long is not begun.
            if self.alarm.recent() >= deadline {
                return Err(Miss::Failed(last.map_or(Failure::Timeout, failure::of)));
            }
            let miss = match self.attempt(ticket, work, deadline).await {
                Ok(attempt) => return Ok(attempt),
                Err(miss) => miss,
            };
            let error = match miss {
                // Once per call: all tables are learned together.
                Miss::Engine(TxnError::UnknownTable(table)) if !has_looked => {
                    has_looked = true;
                    let (view, alarm) = (self.session.view(), &mut self.alarm);
                    match within(alarm, deadline, view.learn_table(table)).await {
                        Ok(learned) => learned?,
                        Err(_) => return Err(Miss::Failed(Failure::Timeout)),
                    }
                    continue;
                }
                Miss::Engine(error) | Miss::Commit(error) if error.is_retryable() => error,
                Miss::Commit(error) => return Err(Miss::Failed(failure::of_commit(error))),
                other => return Err(other),
            };
            ticket.failed();
            self.counters.abort(&error);
            if matches!(error, TxnError::Timeout) {
                self.node.check_memory().map_err(Miss::Failed)?;
            }
            last = Some(error);
            self.session.back_off(attempts).await;
            attempts += 1;
        }
    }

    async fn attempt(
        &mut self,
        ticket: &mut Ticket,
        work: &Work,
        deadline: Nanos,
    ) -> Result<Attempt, Miss> {
        self.result.clear();
        let Self { node, session, alarm, result, .. } = self;
        let run = async {
            let has_record = !matches!(work, Work::Call { identity: None, .. });
            if has_record && node.call_time.stamp().is_none() {
                call_time::keep(node, session, TimeTurn::Begin).await?;
                session.new_transaction();
            }
            let kind = match work {
                Work::Call { stored, .. } => stored.kind,
                Work::Outcome(_) => Kind::Serializable,
            };
            let mut txn = begin(session, kind).await?;
            let done = prepare(node, &mut txn, work, result).await?;
            Ok::<_, Miss>((txn, done))
        };
        let (txn, done) = match within(alarm, deadline, run).await {
            Ok(run) => run?,
            Err(NoOutput::Late) => {
                node.check_memory().map_err(Miss::Failed)?;
                return Err(Miss::Failed(Failure::Timeout));
            }
            Err(NoOutput::Panicked) => return Err(Miss::Failed(Failure::Panicked)),
        };
        match done {
            Prepared::Recalled(attempt) => Ok(attempt),
            Prepared::ToCommit(attempt) => {
                ticket.commits();
                let _: Receipt = txn.commit().await.map_err(Miss::Commit)?;
                Ok(attempt)
            }
        }
    }
}

/// The next step after a transaction's code has run.
enum Prepared {
    /// No commit: the call was carried out before.
    Recalled(Attempt),
    ToCommit(Attempt),
}

pub(crate) async fn begin(session: &mut Session, kind: Kind) -> Result<Transaction, TxnError> {
    match kind {
        Kind::ReadOnly => session.begin_read_only().await,
        Kind::Serializable => session.begin(Isolation::Serializable).await,
        Kind::Snapshot => session.begin(Isolation::Snapshot).await,
    }
}

/// Runs an attempt, except for its commit.
async fn prepare(
    node: &NodeServer,
    txn: &mut Transaction,
    work: &Work,
    result: &mut Vec<u8>,
) -> Result<Prepared, Miss> {
    match work {
        Work::Call { stored, arguments, identity: None } => {
            run(stored, txn, arguments, result).await?;
            Ok(Prepared::ToCommit(Attempt::Committed))
        }
        Work::Call { stored, arguments, identity: Some(Identity { id, fingerprint }) } => {
            let record = CallRecord::open(node, txn, *id).await?;
            match calls::recall(record.row(txn), *id, Some(*fingerprint)) {
                Memory::Nothing => {}
                Memory::Done(before) => {
                    return Ok(Prepared::Recalled(Attempt::Recalled(before)));
                }
                Memory::GivenUp => return Err(Miss::Failed(Failure::GivenUp)),
                Memory::Taken => return Err(Miss::Failed(Failure::IdTaken)),
            }
            run(stored, txn, arguments, result).await?;
            record.write(txn, *id, *fingerprint, Some(result))?;
            Ok(Prepared::ToCommit(Attempt::Committed))
        }
        Work::Outcome(id) => {
            let record = CallRecord::open(node, txn, *id).await?;
            match calls::recall(record.row(txn), *id, None) {
                Memory::Done(before) => Ok(Prepared::Recalled(Attempt::Recalled(before))),
                Memory::GivenUp => Ok(Prepared::Recalled(Attempt::Never)),
                Memory::Nothing | Memory::Taken => {
                    record.write(txn, *id, 0, None)?;
                    Ok(Prepared::ToCommit(Attempt::Never))
                }
            }
        }
    }
}

/// Runs a transaction's own code, and judges its end by the rule for embedded transactions. A
/// result that does not fit in an answer is an error.
async fn run(
    stored: &Stored,
    txn: &mut Transaction,
    arguments: &[u8],
    result: &mut Vec<u8>,
) -> Result<(), Stop> {
    let fits = |what: &str, bytes: usize| match bytes {
        bytes if bytes <= RESULT_BYTES => Ok(()),
        _ => Err(Stop::Result(format!(
            "{what} has {bytes} bytes, and an answer has room for {RESULT_BYTES}"
        ))),
    };
    let returned = stored.procedure.run(txn, arguments, result).await;
    match Abort::judge(returned, txn.ended_by()) {
        Ok(()) => fits("it", result.len()),
        Err(Abort::Engine(error)) => Err(Stop::Engine(error)),
        Err(Abort::Application(Stop::Rejected(error))) => {
            fits("its error", error.len()).and(Err(Stop::Rejected(error)))
        }
        Err(Abort::Application(stop)) => Err(stop),
    }
}

/// The row that remembers a call, locked to be written.
struct CallRecord {
    item: lotus::Item,
    row_bytes: usize,
    stamp: Stamp,
}

impl CallRecord {
    async fn open(node: &NodeServer, txn: &mut Transaction, id: CallId) -> Result<Self, TxnError> {
        let (table, records): (TableId, _) = (node.calls, node.call_records);
        let item = txn.add_rw(table, calls::row_of(id, records.rows))?;
        txn.execute().await?;
        let row_bytes = records.row_bytes as usize;
        // The stamp is known before the first attempt, and never forgotten.
        let stamp = node.call_time.stamp().unwrap_or_default();
        Ok(Self { item, row_bytes, stamp })
    }

    fn row<'t>(&self, txn: &'t Transaction) -> &'t [u8] {
        txn.value(self.item).unwrap_or_default()
    }

    fn write(
        &self,
        txn: &mut Transaction,
        id: CallId,
        fingerprint: u64,
        result: Option<&[u8]>,
    ) -> Result<(), Miss> {
        let Stamp { at_ms, expired_ms } = self.stamp;
        let entry = Entry { id, fingerprint, result, now_ms: at_ms };
        let row = calls::remember(self.row(txn), entry, expired_ms, self.row_bytes);
        let row = row.map_err(|full| {
            Miss::Failed(match full {
                Full::ForNow => Failure::Busy(ScarceResource::CallIds),
                Full::ForEver => {
                    let limit = calls::room_for_results(self.row_bytes);
                    Failure::Result(format!("a record of a call has at most {limit} bytes"))
                }
            })
        })?;
        Ok(txn.upsert(self.item, &row)?)
    }
}
