//! The shape of a lane's posted batches: addresses and sizes, without the data.
//!
//! Replayed with the same number of coroutines and no protocol, a trace shows the throughput of the
//! fabric alone: the *floor*, against which the engine is measured (`docs/glossary.md`).

use crate::contract::ids::{NodeSet, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::verbs::{Op, WorkRequest};
use crate::contract::wide::WideSwap;
use crate::lane::{BatchError, Lane};
use crate::run::exec::TaskId;

/// One recorded verb. Data and operands are dropped: their values do not affect the cost of a
/// replay.
#[derive(Clone, Copy, Debug)]
struct Verb {
    addr: RemoteAddr,
    bytes: u32,
    op: Shape,
    /// Further nodes of a WRITE.
    also: NodeSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Read,
    ReadStable,
    Write,
    WriteWord,
    CompareAndSwap,
    FetchAndAdd,
    MaskedCompareAndSwap,
    MaskedFetchAndAdd,
    WideCompareAndSwap,
    WideFetchAndAdd,
}

/// Swaps that compare nothing and replace nothing, for replays.
const KEEPS: MaskedSwap = MaskedSwap { compare: 0, compare_mask: 0, swap: 0, swap_mask: 0 };
const WIDE_KEEPS: WideSwap = WideSwap { compare: 0, compare_mask: 0, swap: 0, swap_mask: 0 };

/// Verbs of whole transactions, in batches, in the order in which the transactions ended.
#[derive(Default)]
pub struct Trace {
    verbs: Vec<Verb>,
    /// End of each batch in `verbs`.
    batches: Vec<u32>,
    /// End of each transaction in `batches`.
    transactions: Vec<u32>,
}

impl Trace {
    /// Number of transactions recorded.
    pub fn transaction_count(&self) -> usize {
        self.transactions.len()
    }

    /// Moves the batches of `other` to the end of the trace.
    fn append(&mut self, other: &mut Self) {
        let base = self.verbs.len() as u32;
        self.verbs.append(&mut other.verbs);
        self.batches.extend(other.batches.drain(..).map(|end| base + end));
    }

    /// Number of verbs recorded.
    pub fn verb_count(&self) -> usize {
        self.verbs.iter().map(|verb| 1 + verb.also.len()).sum()
    }

    /// Posts the verbs of transaction `index` batch by batch, awaiting every batch.
    ///
    /// WRITEs carry zeroes or leftovers: replay only over memory with contents no longer needed.
    ///
    /// # Errors
    /// Failure of a batch.
    ///
    /// # Panics
    /// If there is no transaction `index`.
    pub async fn replay(&self, lane: &Lane, index: usize) -> Result<(), BatchError> {
        let first = if index == 0 { 0 } else { self.transactions[index - 1] as usize };
        for batch_index in first..self.transactions[index] as usize {
            let start = if batch_index == 0 { 0 } else { self.batches[batch_index - 1] as usize };
            let verbs = &self.verbs[start..self.batches[batch_index] as usize];
            let mut batch = lane.batch();
            let writes = verbs.iter().filter(|verb| verb.op == Shape::Write);
            let staged = batch.stage(writes.map(|verb| verb.bytes as usize).max().unwrap_or(0));
            for verb in verbs {
                let bytes = verb.bytes as usize;
                let (region, offset) = (verb.addr.region(), verb.addr.offset());
                match verb.op {
                    Shape::Read => _ = batch.read(verb.addr, bytes),
                    Shape::ReadStable => _ = batch.read_stable(verb.addr, bytes),
                    Shape::Write => {
                        batch.write_all(verb.nodes(), region, offset, staged.prefix(bytes));
                    }
                    Shape::WriteWord => batch.write_word_all(verb.nodes(), region, offset, 0),
                    Shape::CompareAndSwap => _ = batch.compare_and_swap(verb.addr, 0, 0),
                    Shape::FetchAndAdd => _ = batch.fetch_and_add(verb.addr, 0),
                    Shape::MaskedCompareAndSwap => {
                        _ = batch.masked_compare_and_swap(verb.addr, KEEPS);
                    }
                    Shape::MaskedFetchAndAdd => _ = batch.masked_fetch_and_add(verb.addr, 0, 0),
                    Shape::WideCompareAndSwap => {
                        _ = batch.wide_compare_and_swap(verb.addr, WIDE_KEEPS);
                    }
                    Shape::WideFetchAndAdd => _ = batch.wide_fetch_and_add(verb.addr, 0, 0),
                }
            }
            batch.post().await?;
        }
        Ok(())
    }
}

/// Records batches at posting. Coroutines interleave, so the recorder has an open transaction per
/// coroutine.
pub(crate) struct Recorder {
    trace: Trace,
    open: Vec<(TaskId, Trace)>,
    /// Work done between transactions, counted with the next transaction that ends.
    errands: Trace,
    max_verbs: usize,
}

impl Recorder {
    pub(crate) fn new(max_verbs: usize) -> Self {
        let (trace, errands) = (Trace::default(), Trace::default());
        Self { trace, open: Vec::new(), errands, max_verbs }
    }

    pub(crate) fn batch(&mut self, task: TaskId, requests: &[WorkRequest]) {
        if self.trace.verbs.len() >= self.max_verbs {
            return;
        }
        let index = self.open.iter().position(|(owner, _)| *owner == task).unwrap_or_else(|| {
            self.open.push((task, Trace::default()));
            self.open.len() - 1
        });
        let open = &mut self.open[index].1;
        open.verbs.extend(requests.iter().map(Verb::of));
        open.batches.push(open.verbs.len() as u32);
    }

    pub(crate) fn end_transaction(&mut self, task: TaskId) {
        let Some((_, open)) = self.open.iter_mut().find(|(owner, _)| *owner == task) else {
            return;
        };
        self.trace.append(&mut self.errands);
        self.trace.append(open);
        self.trace.transactions.push(self.trace.batches.len() as u32);
    }

    /// Ends work of `task` outside of transactions, but caused by transactions.
    pub(crate) fn end_errand(&mut self, task: TaskId) {
        if let Some((_, open)) = self.open.iter_mut().find(|(owner, _)| *owner == task) {
            self.errands.append(open);
        }
    }

    pub(crate) fn finish(self) -> Trace {
        self.trace
    }
}

impl Verb {
    /// All nodes of a WRITE.
    fn nodes(&self) -> NodeSet {
        self.also.or(self.addr.node().into())
    }

    fn of(request: &WorkRequest) -> Self {
        let op = match request.op {
            Op::Read => Shape::Read,
            Op::ReadStable => Shape::ReadStable,
            Op::Write => Shape::Write,
            Op::WriteWord { .. } => Shape::WriteWord,
            Op::CompareAndSwap { .. } => Shape::CompareAndSwap,
            Op::FetchAndAdd { .. } => Shape::FetchAndAdd,
            Op::MaskedCompareAndSwap => Shape::MaskedCompareAndSwap,
            Op::MaskedFetchAndAdd { .. } => Shape::MaskedFetchAndAdd,
            Op::WideCompareAndSwap => Shape::WideCompareAndSwap,
            Op::WideFetchAndAdd => Shape::WideFetchAndAdd,
        };
        let bytes = request.bytes() as u32;
        Self { addr: request.addr, bytes, op, also: request.also }
    }
}
