//! Requests and replies over datagrams that may be lost, duplicated, delayed or overtaken.
//!
//! # What it is
//! A client that numbers its requests and resends them until a reply comes or the tries run out,
//! and a server that hands requests to handlers by service number. Payloads longer than a datagram
//! travel in fragments. A *notice* is sent once, without a reply.
//!
//! # What it is not
//! RPC does not promise exactly-once. A handler may see a request several times, or long after the
//! caller gave up, so it must be idempotent by the request's contents (the lock server uses
//! transaction ids and watermarks, H9). A timed-out call may have been carried out: its outcome is
//! unknown.
//!
//! # Wire format (little-endian, 16 bytes before the payload)
//! version:8, kind:8 (0 request, 1 reply, 2 notice), service:8, zero:8, fragment:16, fragments:16,
//! id:64.
//! Bytes that do not parse are dropped and counted. The codec is in `wire`.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod slowest;
mod wire;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use lotus_sabotage::{Rule, broken};

use crate::contract::ids::{Endpoint, NodeId};
use crate::lane::Lane;
use crate::run::env::Nanos;
use crate::run::exec::{Handle, TaskId};

pub use slowest::{Slowest, least_tolerance};
pub use wire::MAX_PAYLOAD_BYTES;
use wire::{Header, MessageKind, Reassembly, for_each_datagram};

/// Number of a handler on the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service(pub u8);

/// Retry policy of a call.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Time before the first resend; doubles with every send.
    pub retry_after: Duration,
    /// Upper bound of the time between sends. A bound not longer than `retry_after` keeps the time
    /// constant.
    pub retry_at_most: Duration,
    /// Total number of sends.
    pub tries: u32,
}

impl RetryPolicy {
    /// `tries` tries at a constant interval.
    pub const fn constant(retry_after: Duration, tries: u32) -> Self {
        Self { retry_after, retry_at_most: Duration::ZERO, tries }
    }

    fn back_off(&mut self) {
        self.retry_after = (self.retry_after * 2).min(self.retry_at_most).max(self.retry_after);
    }
}

/// Reason why a call has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// No reply to any try. The request may or may not have been carried out, or may still be
    /// carried out.
    #[error("no reply in time")]
    TimedOut,
    /// The payload exceeds [`MAX_PAYLOAD_BYTES`]; nothing was sent.
    #[error("a payload holds at most {MAX_PAYLOAD_BYTES} bytes")]
    TooLarge,
    /// The lane has too many pending calls; nothing was sent. Try again when some calls have ended.
    #[error("too many calls are pending")]
    TooManyCalls,
}

/// Called with every request for one service.
pub type Handler = Box<dyn FnMut(Responder, &[u8])>;

/// Called with the sender and the payload of every notice for one service.
pub type NoticeHandler = Box<dyn FnMut(Endpoint, &[u8])>;

/// One lane's client and server. Cheap to clone.
#[derive(Clone)]
pub struct Rpc {
    core: Rc<Core>,
}

struct Core {
    lane: Lane,
    calls: RefCell<Calls>,
    handlers: RefCell<Vec<Option<Handler>>>,
    notice_handlers: RefCell<Vec<Option<NoticeHandler>>>,
    reassembly: RefCell<Reassembly>,
    buffers: RefCell<Vec<Vec<u8>>>,
    /// Task that resends overdue requests. Started by the first call.
    sweeper: Cell<Option<TaskId>>,
    /// Time of the next sweep; no call is due earlier.
    next_sweep: Cell<Nanos>,
    malformed: Cell<u64>,
}

#[derive(Default)]
struct Calls {
    slots: Vec<Call>,
    free: Vec<u16>,
    next: u64,
}

struct Call {
    id: u64,
    to: Endpoint,
    service: Service,
    request: Vec<u8>,
    due: Nanos,
    patience: RetryPolicy,
    waiter: Option<TaskId>,
    outcome: Option<Result<Vec<u8>, RpcError>>,
}

/// Sends the reply to one request, now or later. If the responder is dropped unused, the caller
/// times out.
///
/// A responder does not keep the lane alive (I169): a handler, which ends with the lane, may store
/// responders for later replies.
pub struct Responder {
    core: Weak<Core>,
    to: Endpoint,
    service: Service,
    id: u64,
}

impl Responder {
    /// Endpoint of the caller.
    pub fn from(&self) -> Endpoint {
        self.to
    }

    /// Sends `payload` back, unless the lane is gone.
    ///
    /// # Panics
    /// If the payload exceeds [`MAX_PAYLOAD_BYTES`].
    pub fn respond(self, payload: &[u8]) {
        assert!(payload.len() <= MAX_PAYLOAD_BYTES, "the reply is too large");
        if let Some(core) = self.core.upgrade() {
            Rpc { core }.send(self.to, MessageKind::Reply, self.service, self.id, payload);
        }
    }
}

/// A reply's payload. Dropping it recycles the buffer.
pub struct Reply {
    rpc: Rpc,
    sent: Nanos,
    payload: Vec<u8>,
}

impl Reply {
    /// Time of the request's last send.
    pub fn sent(&self) -> Nanos {
        self.sent
    }
}

impl std::ops::Deref for Reply {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.rpc.give_back(std::mem::take(&mut self.payload));
    }
}

impl Rpc {
    /// Creates the RPC layer of a lane and takes over the lane's messages.
    pub fn new(lane: Lane) -> Self {
        // Ids from an earlier life of the lane must not repeat (I198): late replies of that life
        // may still be in the network.
        let next = lane.executor().env().begin_counting();
        let core = Core {
            lane: lane.clone(),
            calls: RefCell::new(Calls { next, ..Calls::default() }),
            handlers: RefCell::default(),
            notice_handlers: RefCell::default(),
            reassembly: RefCell::default(),
            buffers: RefCell::default(),
            sweeper: Cell::new(None),
            next_sweep: Cell::new(Nanos::NEVER),
            malformed: Cell::new(0),
        };
        let rpc = Self { core: Rc::new(core) };
        let receiver = Rc::downgrade(&rpc.core);
        lane.on_message(Box::new(move |from, message| {
            if let Some(core) = receiver.upgrade() {
                Self { core }.receive(from, message);
            }
        }));
        rpc
    }

    /// The underlying lane.
    pub fn lane(&self) -> &Lane {
        &self.core.lane
    }

    /// Calls `handler` for every request to `service`; replaces the previous handler. The handler
    /// lives as long as the lane, so it must hold neither the lane nor an [`Rpc`] of the lane.
    pub fn serve(&self, service: Service, handler: Handler) {
        *entry_of(&mut self.core.handlers.borrow_mut(), service) = Some(handler);
    }

    /// Calls `handler` for every notice to `service`; replaces the previous handler. The handler
    /// lives as long as the lane, so it must hold neither the lane nor an [`Rpc`] of the lane. A
    /// handler must not replace itself.
    pub fn hear(&self, service: Service, handler: NoticeHandler) {
        *entry_of(&mut self.core.notice_handlers.borrow_mut(), service) = Some(handler);
    }

    /// Sends a notice to `to` once, without a reply. The notice may be lost, duplicated, delayed or
    /// overtaken.
    ///
    /// # Errors
    /// [`RpcError::TooLarge`]; nothing was sent.
    pub fn tell(&self, to: Endpoint, service: Service, payload: &[u8]) -> Result<(), RpcError> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(RpcError::TooLarge);
        }
        let calls = &mut *self.core.calls.borrow_mut();
        // The number distinguishes the fragments of different notices.
        calls.next += 1;
        let id = calls.next << SLOT_BITS;
        self.send(to, MessageKind::Notice, service, id, payload);
        Ok(())
    }

    /// Number of dropped messages that did not parse or named no service.
    pub fn malformed(&self) -> u64 {
        self.core.malformed.get()
    }

    /// Sends a request to `to` now; the future waits for the reply. So several calls can be pending
    /// before the first is awaited.
    ///
    /// The future fails with [`RpcError`]; after `TimedOut` the request's effect is unknown.
    /// Dropping the future only stops waiting.
    pub fn call(
        &self,
        to: Endpoint,
        service: Service,
        payload: &[u8],
        patience: RetryPolicy,
    ) -> PendingCall {
        let id = self.start(to, service, payload, patience);
        if let Ok(id) = id {
            self.send(to, MessageKind::Request, service, id, payload);
        }
        PendingCall { rpc: self.clone(), id }
    }

    fn start(
        &self,
        to: Endpoint,
        service: Service,
        payload: &[u8],
        patience: RetryPolicy,
    ) -> Result<u64, RpcError> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(RpcError::TooLarge);
        }
        let calls = &mut *self.core.calls.borrow_mut();
        let slot = match calls.free.pop() {
            Some(slot) => slot,
            None if calls.slots.len() < 1 << SLOT_BITS => calls.slots.len() as u16,
            None => return Err(RpcError::TooManyCalls),
        };
        calls.next += 1;
        let id = calls.next << SLOT_BITS | u64::from(slot);
        let due = self.core.lane.executor().now().after(patience.retry_after);
        let mut request = self.buffer();
        request.extend_from_slice(payload);
        let outcome = None;
        let call = Call { id, to, service, request, due, patience, waiter: None, outcome };
        if usize::from(slot) == calls.slots.len() {
            calls.slots.push(call);
        } else {
            calls.slots[usize::from(slot)] = call;
        }
        self.sweep_at(due);
        Ok(id)
    }

    fn send(&self, to: Endpoint, kind: MessageKind, service: Service, id: u64, payload: &[u8]) {
        let header = Header { kind, service, fragment: 0, fragments: 1, id };
        let mut message = self.buffer();
        let send = |datagram: &[u8]| self.core.lane.send(to, datagram);
        for_each_datagram(header, payload, &mut message, send);
        self.give_back(message);
    }

    fn receive(&self, from: Endpoint, message: &[u8]) {
        let Some((header, part)) = Header::decode(message) else { return self.count_malformed() };
        if header.fragments == 1 {
            return self.dispatch(from, header, part);
        }
        let whole = self.core.reassembly.borrow_mut().add(from, header, part);
        if let Some(whole) = whole {
            self.dispatch(from, header, &whole);
            self.core.reassembly.borrow_mut().recycle(whole);
        }
    }

    fn dispatch(&self, from: Endpoint, header: Header, payload: &[u8]) {
        match header.kind {
            MessageKind::Reply => self.finish(from, header.id, payload),
            MessageKind::Request => {
                let mut handlers = self.core.handlers.borrow_mut();
                let handler = handlers.get_mut(usize::from(header.service.0));
                let Some(Some(handler)) = handler else { return self.count_malformed() };
                let Header { service, id, .. } = header;
                let core = Rc::downgrade(&self.core);
                handler(Responder { core, to: from, service, id }, payload);
            }
            MessageKind::Notice => {
                let mut handlers = self.core.notice_handlers.borrow_mut();
                let handler = handlers.get_mut(usize::from(header.service.0));
                let Some(Some(handler)) = handler else { return self.count_malformed() };
                handler(from, payload);
            }
        }
    }

    fn count_malformed(&self) {
        self.core.malformed.set(self.core.malformed.get() + 1);
    }

    /// Ends the call `id` if `from` is its target and the call has no outcome yet.
    fn finish(&self, from: Endpoint, id: u64, payload: &[u8]) {
        let mut calls = self.core.calls.borrow_mut();
        let Some(call) = calls.slots.get_mut(slot_of(id)) else { return };
        let other = call.id != id && !broken(Rule::RepliesNameTheirCall);
        if other || call.to != from || call.outcome.is_some() {
            return;
        }
        let mut reply = self.buffer();
        reply.extend_from_slice(payload);
        call.outcome = Some(Ok(reply));
        if let Some(task) = call.waiter {
            self.core.lane.executor().wake(task);
        }
    }

    /// Ends every pending call to `node` with `TimedOut`. Used when no reply will come, or a reply
    /// would no longer count.
    pub fn give_up(&self, node: NodeId) {
        for call in &mut self.core.calls.borrow_mut().slots {
            if call.id != IDLE && call.to.node == node && call.outcome.is_none() {
                call.outcome = Some(Err(RpcError::TimedOut));
                call.waiter.into_iter().for_each(|task| self.core.lane.executor().wake(task));
            }
        }
    }

    /// Wakes every task waiting for a reply from `to`; the task can then check whether to go on
    /// waiting.
    pub fn wake_waiting(&self, to: Endpoint) {
        for call in &self.core.calls.borrow().slots {
            if call.id != IDLE && call.to == to && call.outcome.is_none() {
                call.waiter.into_iter().for_each(|task| self.core.lane.executor().wake(task));
            }
        }
    }

    fn buffer(&self) -> Vec<u8> {
        self.core.buffers.borrow_mut().pop().unwrap_or_default()
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.core.buffers.borrow_mut().push(buffer);
    }

    /// Schedules a sweep for `due` or earlier.
    fn sweep_at(&self, due: Nanos) {
        let core = &*self.core;
        if due >= core.next_sweep.get() {
            return;
        }
        core.next_sweep.set(due);
        let executor = core.lane.executor();
        let sweeper = core
            .sweeper
            .get()
            .unwrap_or_else(|| executor.spawn(sweep(Rc::downgrade(&self.core), executor.clone())));
        core.sweeper.set(Some(sweeper));
        executor.wake_at(due, sweeper);
    }

    /// Resends overdue requests, or ends their calls after the last try. Returns the time of the
    /// next sweep.
    fn sweep(&self, now: Nanos) -> Option<Nanos> {
        let executor = self.core.lane.executor();
        let mut next: Option<Nanos> = None;
        let count = self.core.calls.borrow().slots.len();
        for slot in 0..count {
            let mut calls = self.core.calls.borrow_mut();
            let call = &mut calls.slots[slot];
            if call.id == IDLE || call.outcome.is_some() {
                continue;
            }
            let overdue = call.due <= now;
            if overdue {
                call.patience.tries = call.patience.tries.saturating_sub(1);
                if call.patience.tries == 0 {
                    call.outcome = Some(Err(RpcError::TimedOut));
                    call.waiter.into_iter().for_each(|task| executor.wake(task));
                    continue;
                }
                call.patience.back_off();
                call.due = now.after(call.patience.retry_after);
            }
            next = Some(next.map_or(call.due, |next| next.min(call.due)));
            if overdue {
                let (to, service, id) = (call.to, call.service, call.id);
                let request = std::mem::take(&mut call.request);
                drop(calls);
                self.send(to, MessageKind::Request, service, id, &request);
                self.core.calls.borrow_mut().slots[slot].request = request;
            }
        }
        next
    }
}

/// Bits of the slot in a call's id; the higher bits count calls.
const SLOT_BITS: u32 = 13;

fn slot_of(id: u64) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

/// Returns a service's entry in a list of handlers, which grows if necessary.
fn entry_of<T>(handlers: &mut Vec<Option<T>>, service: Service) -> &mut Option<T> {
    let index = usize::from(service.0);
    if handlers.len() <= index {
        handlers.resize_with(index + 1, || None);
    }
    &mut handlers[index]
}

/// The id of an unused slot.
const IDLE: u64 = 0;

/// Task that resends or ends unanswered calls while the lane's RPC exists. Woken early by the timer
/// of an ended call, the task goes back to sleep without setting a timer.
async fn sweep(core: Weak<Core>, executor: Handle) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let rpc = Rpc { core };
        let now = executor.now();
        if now >= rpc.core.next_sweep.get() {
            rpc.core.next_sweep.set(Nanos::NEVER);
            rpc.sweep(now).into_iter().for_each(|due| rpc.sweep_at(due));
        }
        drop(rpc);
        executor.suspend().await;
    }
}

/// A sent request; see [`Rpc::call`].
#[must_use = "await it to learn the reply"]
pub struct PendingCall {
    rpc: Rpc,
    /// The call's id, or the reason why nothing was sent.
    id: Result<u64, RpcError>,
}

impl std::fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingCall").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Future for PendingCall {
    type Output = Result<Reply, RpcError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &*self.rpc.core;
        let mut calls = core.calls.borrow_mut();
        let call = &mut calls.slots[slot_of(self.id?)];
        match call.outcome.take() {
            Some(outcome) => {
                let waited = call.patience.retry_after.as_nanos() as u64;
                let sent = Nanos(call.due.0.saturating_sub(waited));
                Poll::Ready(outcome.map(|payload| Reply { rpc: self.rpc.clone(), sent, payload }))
            }
            None => {
                call.waiter = Some(core.lane.executor().current());
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Ok(id) = self.id else { return };
        let slot = slot_of(id);
        let mut calls = self.rpc.core.calls.borrow_mut();
        let call = &mut calls.slots[slot];
        call.id = IDLE;
        let request = std::mem::take(&mut call.request);
        let outcome = call.outcome.take();
        calls.free.push(slot as u16);
        drop(calls);
        self.rpc.give_back(request);
        if let Some(Ok(reply)) = outcome {
            self.rpc.give_back(reply);
        }
    }
}
