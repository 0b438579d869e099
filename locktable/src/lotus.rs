//! LOTUS's locks as a service: local locks in this node's table, remote locks by RPC (LOTUS §4.1).
//!
//! Coordinator i talks to coordinator i of the owner. The locks of one round from one owner travel
//! in one datagram, together with unacknowledged ends. One background task per owner sends the
//! remaining ends, and repeats them until acknowledged (H10): with a lease as often as nodes beat,
//! so that a lost message holds locks, or keeps an owner suspected, for a part of the lease at
//! most (I238).
//!
//! If nodes have a lease, each coordinator suspects an owner that does not answer soon
//! ([`crate::suspicion`]). Requests to a suspected owner are given up, and until its next answer
//! the owner receives only ends, or an empty request as a probe.
//!
//! With [`LockWait::Ordered`] a request that meets a conflict waits if allowed (`waiting`); without
//! a conflict the two settings behave the same.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{Endpoint, Incarnation, NodeId};
use lotus_fabric::rpc::{PendingCall, RetryPolicy, Rpc, Service, least_tolerance};
use lotus_fabric::transport::MAX_MESSAGE_BYTES;
use lotus_points::point;
use lotus_sabotage::{Rule, broken};

use crate::ends::EndTracker;
use crate::lock_key::{LockKey, LockRequest};
use crate::queue::WaitOrder;
use crate::server::{Arrival, LockHost, LockServer};
use crate::service::{
    HeldLocks, LockError, LockRoutes, LockService, LockWait, NO_OWNER, TakenLock,
};
use crate::slot::Refusal;
use crate::suspicion::{Sent, Silence};
use crate::table::LockTable;
use crate::wire::{self, LockAnswer, Question, RemoteLock, Reply, RequestWriter};

mod silence;
mod waiting;

use waiting::{Asking, Waits};

/// RPC service under which lock servers answer.
pub const LOCK_SERVICE: Service = Service(1);

/// Longest datagram in bytes: leaves room for the RPC header; a message of one fragment has only
/// one chance of being lost.
const DATAGRAM_BYTES: usize = MAX_MESSAGE_BYTES - 64;
/// Largest number of locks in one datagram: half of its bytes, less the heads of datagram and
/// request.
const LOCKS_PER_DATAGRAM: usize = (DATAGRAM_BYTES / 2 - 64) / wire::LOCK_BYTES;
/// Largest number of ends in the second half.
const ENDS_BESIDE_LOCKS: usize = DATAGRAM_BYTES / 2 / wire::ITEM_BYTES;
/// Time after which an unanswered request is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Longest time after which an unacknowledged end, or an unanswered probe, is repeated.
const RESEND_END_AFTER: Duration = Duration::from_millis(20);
/// Least number of times that ends are repeated per lease: as often as nodes beat.
const RESENDS_PER_LEASE: u32 = 8;

/// Lock service of one coordinator. See the module's documentation. Cheap to clone.
pub struct LotusLocks<H> {
    core: Rc<Core<H>>,
}

struct Core<H> {
    table: Arc<LockTable>,
    host: Arc<H>,
    server: Rc<RefCell<LockServer<Arc<H>>>>,
    rpc: Rpc,
    peers: RefCell<Vec<Rc<OwnerState>>>,
    /// Buffer for outgoing requests.
    datagram: RefCell<Vec<u8>>,
    /// Shortest silence after which an owner may be suspected; `None` without a lease, which
    /// disables suspicion.
    tolerance: Option<Duration>,
    /// Retry policy of a datagram of ends.
    ends_patience: RetryPolicy,
    /// Number of suspected peers.
    suspects: Cell<usize>,
    /// Task that checks for silent owners. Started by the first request.
    watch: Cell<Option<TaskId>>,
    /// Time of the next check; no owner can become suspected earlier.
    next_look: Cell<Nanos>,
    /// State of waiting requests; `None` with [`LockWait::None`].
    waits: Option<Waits>,
}

/// A remote compute node that was asked for locks.
struct OwnerState {
    at: Endpoint,
    ends: RefCell<EndTracker>,
    sender: Cell<Option<TaskId>>,
    /// Whether the node was expelled: its locks are void, and it acknowledges no ends.
    lost: Cell<bool>,
    silence: RefCell<Silence>,
}

impl<H> Clone for LotusLocks<H> {
    fn clone(&self) -> Self {
        Self { core: Rc::clone(&self.core) }
    }
}

impl<H: LockHost + LockRoutes + 'static> LotusLocks<H> {
    /// Creates the service of one coordinator, which from now on also answers its peers. Owners
    /// that have been silent for a part of the `lease` are suspected; without a lease, never.
    pub fn new(
        table: Arc<LockTable>,
        host: Arc<H>,
        rpc: Rpc,
        lease: Option<Duration>,
        wait: LockWait,
    ) -> Self {
        let waits = (wait == LockWait::Ordered).then(Waits::default);
        let mut server = LockServer::new(Arc::clone(&table), Arc::clone(&host));
        if let Some(waits) = &waits {
            server = server.waiting_with(waits.outcomes());
        }
        let server = Rc::new(RefCell::new(server));
        let answering = Rc::clone(&server);
        let mut reply = vec![0; MAX_MESSAGE_BYTES];
        // The environment's clock, not the executor's: the handler must not keep the lane alive.
        let (env, waits_here) = (rpc.lane().executor().env().clone(), waits.is_some());
        rpc.serve(
            LOCK_SERVICE,
            Box::new(move |responder, datagram| {
                // A malformed datagram is ignored; its sender runs into a timeout.
                let at = if waits_here { env.now() } else { Nanos(0) };
                let arrival = Arrival { from: responder.from(), at };
                let handled = answering.borrow_mut().handle(arrival, datagram, &mut reply);
                if let Ok(bytes) = handled {
                    responder.respond(&reply[..bytes]);
                }
            }),
        );
        let datagram = RefCell::new(vec![0; DATAGRAM_BYTES]);
        let core = Core {
            table,
            host,
            server,
            rpc,
            peers: RefCell::default(),
            datagram,
            tolerance: lease.map(least_tolerance),
            ends_patience: ends_patience(lease),
            suspects: Cell::new(0),
            watch: Cell::new(None),
            next_look: Cell::new(Nanos::NEVER),
            waits,
        };
        let core = Rc::new(core);
        waiting::serve(&core);
        Self { core }
    }

    /// Refuses requests of an expelled incarnation from now on (H4, H8).
    pub fn refuse(&self, incarnation: Incarnation) {
        self.core.server.borrow_mut().refuse(incarnation);
    }

    /// Drops all ends for an expelled node, whose lock table is gone, and stops waiting for its
    /// answers (I156).
    pub fn forget(&self, node: NodeId) {
        let peer = self.peer(node);
        peer.lost.set(true);
        peer.ends.borrow_mut().clear();
        self.core.rpc.give_up(node);
        self.core.wake_waits();
        let suspected = peer.silence.borrow_mut().acquit();
        self.core.trust_again(&peer, suspected);
    }

    /// Resumes sending ends to a returned node, a new life with a new lock table.
    pub fn remember(&self, node: NodeId) {
        let peers = self.core.peers.borrow();
        peers.iter().filter(|peer| peer.at.node == node).for_each(|peer| peer.lost.set(false));
    }

    /// Number of unacknowledged ends, over all owners.
    pub fn unacknowledged_ends(&self) -> usize {
        self.core.peers.borrow().iter().map(|peer| peer.ends.borrow().unacknowledged()).sum()
    }

    /// Number of owners suspected of being dead and not expelled.
    pub fn suspects(&self) -> usize {
        self.core.suspects.get()
    }

    /// Whether an owner is suspected of being dead.
    #[inline]
    fn is_suspected(&self, owner: NodeId) -> bool {
        self.core.suspects.get() > 0 && self.peer(owner).silence.borrow().is_suspected()
    }

    fn peer(&self, node: NodeId) -> Rc<OwnerState> {
        let at = Endpoint { node, lane: self.core.rpc.lane().at().lane };
        let mut peers = self.core.peers.borrow_mut();
        if let Some(peer) = peers.iter().find(|peer| peer.at == at) {
            return Rc::clone(peer);
        }
        let resend = self.core.ends_patience.retry_after;
        let ends = EndTracker::new(resend.as_nanos() as u64);
        let (sender, lost) = (Cell::new(None), Cell::new(false));
        let (ends, silence) = (RefCell::new(ends), RefCell::default());
        let peer = Rc::new(OwnerState { at, ends, sender, lost, silence });
        let executor = self.core.rpc.lane().executor();
        let sender = executor.spawn(send_ends(Rc::clone(&self.core), Rc::clone(&peer)));
        peer.sender.set(Some(sender));
        peers.push(Rc::clone(&peer));
        peer
    }

    /// Takes the locks of `wanted` that this node owns; lists the remote locks with their owners.
    /// Refuses a lock without an owner at once (I75).
    ///
    /// Looks up the owner of each lock once: the map may change between two look-ups, and a lock
    /// that is remote in the first and local in the second would not be taken at all.
    #[inline]
    fn acquire_local(&self, held: &mut HeldLocks, wanted: &[LockRequest]) -> Result<(), LockError> {
        let (host, table) = (&*self.core.host, &*self.core.table);
        let this_node = host.this_node();
        let txn = held.txn();
        held.remote.clear();
        for request in wanted {
            let (owner, shard_epoch) = host.owner(request.name.shard());
            let lock = TakenLock { request: *request, owner, shard_epoch };
            if owner != this_node {
                if owner == NO_OWNER {
                    return Err(LockError::Unowned(request.name));
                }
                held.remote.push(lock);
                continue;
            }
            table.try_lock(txn, *request).map_err(|refusal| refused(request.name, refusal))?;
            held.taken.push(lock);
            // I44, after the lock was taken: either the scan of a hand-over sees the lock, or this
            // check sees the hand-over.
            if !host.owns(request.name.shard(), shard_epoch) {
                return Err(LockError::Moved(request.name));
            }
        }
        Ok(())
    }

    /// Asks every remote owner for its part of [`HeldLocks::remote`]. The request may wait if it is
    /// the only request, and above all locks of the attempt.
    fn ask_all(&self, held: &mut HeldLocks, round: u16, timeout: Duration) {
        held.asked.clear();
        let mut remote = std::mem::take(&mut held.remote);
        let mut asking = Asking::new(round, timeout);
        if self.core.waits.is_some() {
            let order = |lock: &TakenLock| (lock.owner, WaitOrder::of(&lock.request.name));
            remote.sort_unstable_by_key(order);
            asking.waits = self.may_wait_for_all(held, &remote);
        } else {
            remote.sort_unstable_by_key(|lock| lock.owner);
        }
        for part in remote.chunk_by(|one, other| one.owner == other.owner) {
            self.ask(held, &asking, part);
        }
        held.remote = remote;
    }

    /// Asks one owner for `locks`, in fragments that fit in one datagram.
    fn ask(&self, held: &mut HeldLocks, asking: &Asking, locks: &[TakenLock]) {
        if !held.contacted.contains(&locks[0].owner) {
            held.contacted.push(locks[0].owner);
        }
        let mut start = held.asked.last().map_or(0, |asked| asked.locks.end);
        for (fragment, part) in locks.chunks(LOCKS_PER_DATAGRAM).enumerate() {
            let fragment = asking.fragment + fragment as u16;
            let question = Question { txn: held.txn(), round: asking.round, fragment };
            let (call, sent) = self.send(question, held.since, asking, part);
            let expects = || self.core.expect_outcome(question, asking.timeout);
            let wait = if asking.waits { expects() } else { None };
            let locks = start..start + part.len();
            start = locks.end;
            held.asked.push(RemoteRequest {
                question,
                locks,
                sent,
                call: Some(call),
                wait,
                outcome: None,
            });
        }
    }

    /// Sends one question to the owner of its locks.
    fn send(
        &self,
        question: Question,
        since: Option<Nanos>,
        asking: &Asking,
        locks: &[TakenLock],
    ) -> (PendingCall, Sent) {
        let core = &self.core;
        let peer = self.peer(locks[0].owner);
        let now = core.rpc.lane().executor().recent();
        let remote = locks.iter().map(|lock| {
            let TakenLock { request, shard_epoch, .. } = *lock;
            RemoteLock { request, shard_epoch }
        });
        let mut datagram = core.datagram.borrow_mut();
        let mut writer = RequestWriter::new(&mut datagram);
        // Ends first: they may release the requested locks or make room for them.
        peer.ends.borrow_mut().write_due(now.0, ENDS_BESIDE_LOCKS, &mut writer);
        let written = match asking.waits {
            true => writer.lock_or_wait(question, waiting::age_us(since, now), remote),
            false => writer.lock(question, remote),
        };
        written.expect("half a datagram fits");
        let bytes = writer.finish(core.host.configuration_epoch());
        let patience = patience(asking.timeout);
        let call = core.rpc.call(peer.at, LOCK_SERVICE, &datagram[..bytes], patience);
        (call, core.asks(&peer))
    }

    /// Waits for all answers.
    async fn answers(&self, held: &mut HeldLocks) -> Result<(), LockError> {
        loop {
            match std::future::poll_fn(|cx| self.poll_answers(held, cx)).await {
                Some(outcome) => return outcome,
                None => point!(self.core.host.this_node().0, LockAwaited),
            }
        }
    }

    /// Polls all answers, and continues after a refusal, because granted locks must be known.
    /// `None` once a request has begun to wait.
    ///
    /// Keeps all state in `held`, so that the futures of local acquisitions stay small.
    fn poll_answers(
        &self,
        held: &mut HeldLocks,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(), LockError>>> {
        let (since, abandoned) = (held.since, held.is_abandoned());
        let HeldLocks { asked, remote, taken, .. } = held;
        for asked in asked.iter_mut().filter(|asked| asked.outcome.is_none()) {
            let locks = &remote[asked.locks.clone()];
            let Poll::Ready(answer) = self.poll_answer(asked, locks, since, abandoned, cx) else {
                continue;
            };
            let outcome = answer.and_then(|answer| self.granted(answer, locks));
            if outcome.is_ok() {
                taken.extend_from_slice(locks);
            }
            asked.outcome = Some(outcome);
        }
        if asked.iter().any(|asked| asked.outcome.is_none()) {
            let begun = asked.iter_mut().any(|asked| waiting::begins(&mut asked.wait));
            return if begun { Poll::Ready(None) } else { Poll::Pending };
        }
        let outcomes = asked.drain(..).filter_map(|asked| asked.outcome);
        Poll::Ready(Some(outcomes.fold(Ok(()), Result::and)))
    }

    /// Polls one unanswered question.
    fn poll_answer(
        &self,
        asked: &mut RemoteRequest,
        locks: &[TakenLock],
        since: Option<Nanos>,
        abandoned: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<LockAnswer, LockError>> {
        if asked.wait.is_some()
            && let Some(outcome) = self.poll_wait(asked, locks, since, abandoned)
        {
            return Poll::Ready(outcome);
        }
        let owner = locks[0].owner;
        let Some(call) = &mut asked.call else { return Poll::Pending };
        let Poll::Ready(reply) = Pin::new(call).poll(cx) else {
            if self.is_suspected(owner) {
                return Poll::Ready(Err(LockError::Suspected(locks[0].request.name)));
            }
            return Poll::Pending;
        };
        asked.call = None;
        let reply = reply.map_err(|_| LockError::TimedOut);
        match reply.and_then(|reply| self.answer(owner, asked, &reply)) {
            Ok(LockAnswer::Waiting) if asked.wait.is_some() => {
                self.core.ask_again_later(asked);
                Poll::Pending
            }
            answer => Poll::Ready(answer),
        }
    }

    /// Returns the answer to one question, among the replies in a datagram.
    fn answer(
        &self,
        owner: NodeId,
        asked: &RemoteRequest,
        replies: &[u8],
    ) -> Result<LockAnswer, LockError> {
        let peer = self.peer(owner);
        self.core.hears(&peer, asked.sent);
        let mut found = None;
        // Malformed replies are ignored.
        for reply in wire::replies(replies).map_while(Result::ok) {
            peer.ends.borrow_mut().learn(&reply);
            if let Reply::Lock { question, answer } = reply
                && question == asked.question
            {
                found = Some(answer);
            }
        }
        found.ok_or(LockError::TimedOut)
    }

    /// Converts an owner's answer to a request for `locks` into a result.
    fn granted(&self, answer: LockAnswer, locks: &[TakenLock]) -> Result<(), LockError> {
        let name = |index: u16| locks[usize::from(index).min(locks.len() - 1)].request.name;
        match answer {
            LockAnswer::Granted => Ok(()),
            LockAnswer::Refused { index, refusal } => Err(refused(name(index), refusal)),
            LockAnswer::WrongOwner { index, owner, shard_epoch } => {
                let name = name(index);
                self.core.host.learn(name.shard(), owner, shard_epoch);
                Err(LockError::Moved(name))
            }
            // A request is stale only if its own end has overtaken it, and then its answer is not
            // awaited. Only a request that may wait is answered *waiting*.
            LockAnswer::Stale | LockAnswer::Waiting => Err(LockError::TimedOut),
            LockAnswer::Expelled => Err(LockError::Expelled),
        }
    }
}

/// A question under way, and the range of its remote locks.
#[derive(Debug)]
pub(crate) struct RemoteRequest {
    question: Question,
    locks: Range<usize>,
    sent: Sent,
    /// The unanswered request, if any.
    call: Option<PendingCall>,
    /// State of the wait, if the request may wait.
    wait: Option<waiting::RemoteWait>,
    outcome: Option<Result<(), LockError>>,
}

#[cold]
fn refused(name: LockKey, refusal: Refusal) -> LockError {
    match refusal {
        Refusal::Conflict => LockError::Conflict(name),
        Refusal::OwnBucketFull => LockError::OwnBucketFull(name),
        _ => LockError::Full(name),
    }
}

/// Retry policy with as many tries as fit in `time`.
fn patience(time: Duration) -> RetryPolicy {
    let retry_after = RETRY_AFTER.min(time);
    let tries = time.as_nanos().div_ceil(retry_after.as_nanos().max(1)).clamp(1, 1 << 16);
    RetryPolicy::constant(retry_after, tries as u32)
}

/// Retry policy of a datagram of ends, given the nodes' lease.
fn ends_patience(lease: Option<Duration>) -> RetryPolicy {
    match lease {
        None => RetryPolicy::constant(RESEND_END_AFTER, 1),
        Some(lease) => {
            let resend = (lease / RESENDS_PER_LEASE).min(RESEND_END_AFTER);
            RetryPolicy::constant(resend, RESENDS_PER_LEASE)
        }
    }
}

impl<H: LockHost + LockRoutes + 'static> LockService for LotusLocks<H> {
    #[inline]
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        if held.in_order && self.core.waits.is_some() {
            // Boxed, like all rare paths, to keep the future of the common path small.
            return Box::pin(self.acquire_in_order(held, round, wanted, timeout)).await;
        }
        let before = held.taken.len();
        // Local locks first: they cost no messages, and a local conflict saves the messages.
        let timeout = match self.acquire_local(held, wanted) {
            Ok(()) => timeout,
            Err(LockError::Conflict(_)) if self.core.waits.is_some() => {
                Box::pin(self.wait_for_local(held, before, wanted, timeout)).await?
            }
            Err(error) => return Err(error),
        };
        if held.remote.is_empty() {
            return Ok(());
        }
        if let Some(lock) = held.remote.iter().find(|lock| self.is_suspected(lock.owner)) {
            return Err(LockError::Suspected(lock.request.name));
        }
        self.ask_all(held, round, timeout);
        point!(self.core.host.this_node().0, LocksRequested);
        self.answers(held).await
    }

    fn release(&self, held: &mut HeldLocks) {
        let this_node = self.core.host.this_node();
        let txn = held.txn();
        if broken(Rule::EndsReachAllAsked) {
            held.contacted.retain(|asked| held.taken.iter().any(|lock| lock.owner == *asked));
        }
        // The locks were taken long ago: fetch their cache lines in parallel.
        for taken in held.taken.iter().skip(1).filter(|taken| taken.owner == this_node) {
            self.prefetch(&taken.request.name);
        }
        for taken in held.taken.drain(..) {
            if taken.owner == this_node {
                self.core.table.unlock(txn, &taken.request.name);
            }
        }
        if !held.contacted.is_empty() {
            self.core.expect_no_more(txn);
        }
        for owner in held.contacted.drain(..) {
            let peer = self.peer(owner);
            if peer.lost.get() {
                continue;
            }
            peer.ends.borrow_mut().end(txn);
            if let Some(sender) = peer.sender.get() {
                self.core.rpc.lane().executor().wake(sender);
            }
        }
    }

    #[inline]
    fn prefetch(&self, name: &LockKey) {
        self.core.table.prefetch(name);
    }
}

/// Sends unacknowledged ends to `peer`, for as long as the coordinator lives.
async fn send_ends<H>(core: Rc<Core<H>>, peer: Rc<OwnerState>)
where
    H: LockHost + LockRoutes + 'static,
{
    let executor = core.rpc.lane().executor().clone();
    loop {
        let due = peer.ends.borrow().next_due_ns();
        match due {
            None if !peer.silence.borrow().is_suspected() => executor.suspend().await,
            Some(due) if due > executor.now().0 => {
                // Not a sleep: a newly added end is due at once, and wakes this task.
                executor.wake_at(Nanos(due), executor.current());
                executor.suspend().await;
            }
            _ => {
                // Yields for one round of the coroutines: further ends join the datagram, or a lock
                // request carries these ends.
                executor.yield_now().await;
                let Some((call, sent)) = call_ends(&core, &peer) else { continue };
                point!(core.rpc.lane().at().node.0, UnlockSent);
                if let Ok(replies) = call.await {
                    core.hears(&peer, sent.again(replies.sent()));
                    point!(core.rpc.lane().at().node.0, UnlockAcknowledged);
                    let mut ends = peer.ends.borrow_mut();
                    wire::replies(&replies).map_while(Result::ok).for_each(|r| ends.learn(&r));
                }
            }
        }
    }
}

/// Sends the ends that are due, or an empty request as a probe if the peer is suspected and has no
/// pending ends. `None` if no datagram was sent.
fn call_ends<H>(core: &Rc<Core<H>>, peer: &OwnerState) -> Option<(PendingCall, Sent)>
where
    H: LockHost + LockRoutes + 'static,
{
    let mut datagram = core.datagram.borrow_mut();
    let mut writer = RequestWriter::new(&mut datagram);
    let now_ns = core.rpc.lane().executor().now().0;
    let written = peer.ends.borrow_mut().write_due(now_ns, usize::MAX, &mut writer);
    let probes = peer.silence.borrow().is_suspected() && peer.ends.borrow().unacknowledged() == 0;
    if written == 0 && !probes {
        return None;
    }
    let bytes = writer.finish(core.host.configuration_epoch());
    let mut patience = core.ends_patience;
    if broken(Rule::EndsAreRepeated) {
        patience.tries = 1;
    }
    let call = core.rpc.call(peer.at, LOCK_SERVICE, &datagram[..bytes], patience);
    Some((call, core.asks(peer)))
}
