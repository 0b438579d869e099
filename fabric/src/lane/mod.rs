//! A coordinator's path into the fabric: batches of verbs and messages, as futures.
//!
//! A [`Lane`] belongs to one thread and one executor. The lane builds [`Batch`]es from a pool of
//! registered buffers, hands them to the back end's [`Transport`], and wakes the waiting task when
//! a batch completes. Dropping the future of a batch is always safe: the batch stays with the back
//! end until its verbs are done; only then do the buffers return to the pool.
//!
//! Users hold the types of `batch`; the back end reports events to `sink`.

mod batch;
mod sink;
pub mod trace;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

pub use batch::{Batch, BatchError, BatchResult, Completed, Posted};

use crate::contract::counters::VerbCounters;
use crate::contract::ids::{Endpoint, NodeId};
use crate::contract::region::Chunk;
use crate::contract::transport::{MAX_MESSAGE_BYTES, Token, Transport};
use crate::contract::verbs::{CHUNK_WORDS, Capabilities, VerbError, Work};
use crate::lane::trace::{Recorder, Trace};
use crate::run::exec::{Driver, Handle, TaskId};

/// Largest number of verbs in flight on one lane; further batches wait.
pub const MAX_VERBS_IN_FLIGHT: usize = 8192;
/// Number of chunks by which the arena grows; they fill one huge page.
const CHUNKS_PER_SLAB: usize = 127;

/// Called with the sender and the bytes of every received message.
pub type MessageHandler = Box<dyn FnMut(Endpoint, &[u8])>;

/// A coordinator's path into the fabric. Cheap to clone; the clones share one lane.
#[derive(Clone)]
pub struct Lane {
    core: Rc<Core>,
}

struct Core {
    at: Endpoint,
    executor: Handle,
    capabilities: Capabilities,
    transport: RefCell<Box<dyn Transport>>,
    state: RefCell<State>,
    messages: RefCell<Messages>,
    /// Separate from `messages`, because a handler may send and so cause further messages.
    handler: RefCell<Option<MessageHandler>>,
}

#[derive(Default)]
struct State {
    entries: Entries,
    pool: Pool,
    verbs_in_flight: usize,
    /// Batches and reconnects not yet posted because too many verbs are in flight.
    waiting: VecDeque<(Token, Deferred)>,
    counters: VerbCounters,
    recorder: Option<Recorder>,
}

enum Deferred {
    Batch(Box<Work>),
    /// Queued behind the batches, so that no earlier batch takes effect after the reconnect (H22).
    Reconnect(NodeId),
}

/// Messages received while polling the transport. A handler may send, so messages are delivered
/// only after the transport is no longer borrowed.
#[derive(Default)]
struct Messages {
    inbound: VecDeque<(Endpoint, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

/// Batches and reconnects not yet collected by their futures.
#[derive(Default)]
struct Entries {
    slots: Vec<Entry>,
    free: Vec<Token>,
}

/// State of one token. Flat, not an enum with payloads, so every step touches one field.
struct Entry {
    stage: Stage,
    /// Task to wake when the stage is `Awaited`.
    waiter: TaskId,
    /// The batch, once completed.
    work: Option<Box<Work>>,
    /// Result of a reconnect.
    reconnected: Result<(), VerbError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    InFlight,
    Awaited,
    /// The future was dropped; the buffers return to the pool on completion (I33).
    Abandoned,
    Done,
}

/// Result of a token.
enum Outcome {
    Batch(Box<Work>),
    Reconnected(Result<(), VerbError>),
}

impl Entries {
    #[inline]
    fn add(&mut self) -> Token {
        let Some(token) = self.free.pop() else { return self.grow() };
        self.slots[token.0 as usize].stage = Stage::InFlight;
        token
    }

    #[cold]
    fn grow(&mut self) -> Token {
        let stage = Stage::InFlight;
        self.slots.push(Entry { stage, waiter: TaskId::NONE, work: None, reconnected: Ok(()) });
        Token(self.slots.len() as u32 - 1)
    }

    /// Takes the token's outcome and frees the token; without an outcome, registers `task` as the
    /// waiter.
    #[inline(always)]
    fn take_or_wait(&mut self, token: Token, task: TaskId) -> Option<Outcome> {
        let entry = &mut self.slots[token.0 as usize];
        if entry.stage != Stage::Done {
            entry.stage = Stage::Awaited;
            entry.waiter = task;
            return None;
        }
        entry.stage = Stage::Free;
        self.free.push(token);
        Some(match entry.work.take() {
            Some(work) => Outcome::Batch(work),
            None => Outcome::Reconnected(entry.reconnected),
        })
    }

    /// Records the token's outcome. Returns the waiting task, or the outcome itself if the token
    /// was abandoned.
    #[inline(always)]
    fn finish(&mut self, token: Token, outcome: Outcome) -> Result<Option<TaskId>, Outcome> {
        let entry = &mut self.slots[token.0 as usize];
        let stage = std::mem::replace(&mut entry.stage, Stage::Done);
        assert!(!matches!(stage, Stage::Free | Stage::Done), "a token ends once");
        if stage == Stage::Abandoned {
            entry.stage = Stage::Free;
            self.free.push(token);
            return Err(outcome);
        }
        match outcome {
            Outcome::Batch(work) => entry.work = Some(work),
            Outcome::Reconnected(result) => entry.reconnected = result,
        }
        Ok((stage == Stage::Awaited).then_some(entry.waiter))
    }

    /// Abandons the token. Returns the outcome if it is already known.
    fn abandon(&mut self, token: Token) -> Option<Outcome> {
        let outcome = self.take_or_wait(token, TaskId::NONE);
        if outcome.is_none() {
            self.slots[token.0 as usize].stage = Stage::Abandoned;
        }
        outcome
    }
}

/// Registered buffers and empty batches, ready for use.
#[derive(Default)]
struct Pool {
    chunks: Vec<Chunk>,
    #[expect(
        clippy::vec_box,
        reason = "batches travel as boxes; out of them they would be copied"
    )]
    works: Vec<Box<Work>>,
    chunks_carved: usize,
}

impl Pool {
    fn chunk(&mut self) -> Chunk {
        self.chunks.pop().unwrap_or_else(|| {
            let grown = Chunk::carve(CHUNKS_PER_SLAB, CHUNK_WORDS);
            self.chunks = grown.expect("the system has two mebibytes of address space left");
            self.chunks_carved += CHUNKS_PER_SLAB;
            self.chunks.pop().expect("just carved")
        })
    }

    #[inline]
    fn put_back(&mut self, mut work: Box<Work>) {
        if work.clear() {
            self.take_chunks(&mut work);
        }
        self.works.push(work);
    }

    #[cold]
    fn take_chunks(&mut self, work: &mut Work) {
        self.chunks.extend(work.spare_chunks());
    }
}

impl State {
    fn has_room(&self, verbs: usize) -> bool {
        self.verbs_in_flight == 0 || self.verbs_in_flight + verbs <= MAX_VERBS_IN_FLIGHT
    }
}

impl Lane {
    /// Wraps an opened transport. The caller adds [`Lane::driver`] to the executor.
    pub fn new(at: Endpoint, executor: Handle, transport: Box<dyn Transport>) -> Self {
        let core = Core {
            at,
            executor,
            capabilities: transport.capabilities(),
            transport: RefCell::new(transport),
            state: RefCell::default(),
            messages: RefCell::default(),
            handler: RefCell::new(None),
        };
        Self { core: Rc::new(core) }
    }

    /// Driver through which the executor takes in completions and messages of the lane.
    pub fn driver(&self) -> impl Driver + use<> {
        sink::LaneDriver { lane: self.clone() }
    }

    /// The lane's own address.
    pub fn at(&self) -> Endpoint {
        self.core.at
    }

    /// The executor that drives the lane.
    pub fn executor(&self) -> &Handle {
        &self.core.executor
    }

    /// Optional abilities of the back end beyond the common contract.
    pub fn capabilities(&self) -> Capabilities {
        self.core.capabilities
    }

    /// An empty batch.
    #[inline]
    pub fn batch(&self) -> Batch {
        let work = self.core.state.borrow_mut().pool.works.pop().unwrap_or_default();
        Batch::new(Rc::clone(&self.core), work)
    }

    /// Closes the connection to `node` and makes a new connection. After completion, verbs posted
    /// before the reconnect can no longer take effect, and verbs to the node work again (H22).
    ///
    /// # Errors
    /// `Unreachable` or `Revoked`; the connection stays broken.
    pub fn reconnect(&self, node: NodeId) -> impl Future<Output = Result<(), VerbError>> + use<> {
        let mut transport = self.core.transport.borrow_mut();
        let state = &mut *self.core.state.borrow_mut();
        let token = state.entries.add();
        if state.waiting.is_empty() {
            transport.reconnect(token, node);
        } else {
            state.waiting.push_back((token, Deferred::Reconnect(node)));
        }
        let mut waiting = Waiting::new(Rc::clone(&self.core), token);
        std::future::poll_fn(move |_| {
            let Some(outcome) = waiting.poll() else { return Poll::Pending };
            waiting.core = None;
            match outcome {
                Outcome::Reconnected(result) => Poll::Ready(result),
                Outcome::Batch(_) => unreachable!("the token names a reconnect"),
            }
        })
    }

    /// Sends a datagram, which may be lost, duplicated, delayed or overtaken.
    ///
    /// # Panics
    /// If the datagram is longer than [`MAX_MESSAGE_BYTES`].
    pub fn send(&self, to: Endpoint, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "a message holds at most 4 KiB");
        self.core.state.borrow_mut().counters.count_message(bytes.len());
        self.core.transport.borrow_mut().send(to, bytes);
    }

    /// Calls `handler` for every message from now on; replaces the previous handler.
    ///
    /// # Panics
    /// If called by a handler.
    pub fn on_message(&self, handler: MessageHandler) {
        *self.core.handler.borrow_mut() = Some(handler);
    }

    /// Counts of the verbs and messages posted so far.
    pub fn counters(&self) -> VerbCounters {
        self.core.state.borrow().counters.clone()
    }

    /// Bytes of registered buffers, in use or not. Grows only when the peak number of buffers in
    /// use grows.
    pub fn arena_bytes(&self) -> usize {
        self.core.state.borrow().pool.chunks_carved * crate::contract::verbs::MAX_VERB_BYTES
    }

    /// Records the shape of every batch from now on, for [`Lane::take_trace`].
    pub fn start_recording(&self, max_verbs: usize) {
        self.core.state.borrow_mut().recorder = Some(Recorder::new(max_verbs));
    }

    /// Marks the end of a transaction of the current task, if the lane is recording.
    #[inline]
    pub fn mark_transaction(&self) {
        if let Some(recorder) = &mut self.core.state.borrow_mut().recorder {
            recorder.end_transaction(self.core.executor.current());
        }
    }

    /// Marks the end of work of the current task outside of transactions, but caused by
    /// transactions: the recording adds the work to the next transaction that ends.
    pub fn mark_errand(&self) {
        if let Some(recorder) = &mut self.core.state.borrow_mut().recorder {
            recorder.end_errand(self.core.executor.current());
        }
    }

    /// Stops recording and returns the trace.
    pub fn take_trace(&self) -> Option<Trace> {
        self.core.state.borrow_mut().recorder.take().map(Recorder::finish)
    }
}

impl Core {
    /// Returns a batch's buffers to the pool.
    #[inline]
    fn put_back(&self, work: Box<Work>) {
        self.state.borrow_mut().pool.put_back(work);
    }

    /// An empty chunk for a batch.
    #[cold]
    fn new_chunk(&self) -> Chunk {
        self.state.borrow_mut().pool.chunk()
    }

    #[cold]
    fn abandon(&self, token: Token) {
        let state = &mut *self.state.borrow_mut();
        if let Some(Outcome::Batch(work)) = state.entries.abandon(token) {
            state.pool.put_back(work);
        }
    }

    #[inline]
    fn post(&self, mut work: Box<Work>) -> Token {
        let state = &mut *self.state.borrow_mut();
        let verbs = work.verb_count();
        if verbs == 0 {
            let token = state.entries.add();
            let _nobody_waits_yet = state.entries.finish(token, Outcome::Batch(work));
            return token;
        }
        state.counters += work.count();
        if let Some(recorder) = &mut state.recorder {
            recorder.batch(self.executor.current(), work.requests());
        }
        if !self.capabilities.several_nodes {
            work.split_by_node();
        }
        let token = state.entries.add();
        if state.waiting.is_empty() && state.has_room(verbs) {
            state.verbs_in_flight += verbs;
            self.transport.borrow_mut().post(token, work);
        } else {
            state.waiting.push_back((token, Deferred::Batch(work)));
        }
        token
    }
}

/// Future of a token; abandons the token when dropped.
struct Waiting {
    /// `None` once the outcome was taken: from then on the token may name another batch or
    /// reconnect.
    core: Option<Rc<Core>>,
    token: Token,
}

impl Waiting {
    #[inline]
    fn new(core: Rc<Core>, token: Token) -> Self {
        Self { core: Some(core), token }
    }

    /// Returns the token's outcome; then the caller must also take `core`.
    ///
    /// # Panics
    /// If polled again after completion.
    #[inline(always)]
    fn poll(&self) -> Option<Outcome> {
        let core = self.core.as_ref().expect("polled after completion");
        core.state.borrow_mut().entries.take_or_wait(self.token, core.executor.current())
    }
}

impl Waiting {
    /// Returns the outcome of a batch's token. Not inlined: otherwise every `await` of a batch
    /// would contain a copy.
    #[inline(never)]
    fn poll_batch(&self) -> Option<Box<Work>> {
        self.poll().map(|outcome| match outcome {
            Outcome::Batch(work) => work,
            Outcome::Reconnected(_) => unreachable!("the token names a batch"),
        })
    }
}

impl Drop for Waiting {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.abandon(self.token);
        }
    }
}
