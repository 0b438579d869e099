//! A lane's client of locks kept by servers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Handle, TaskId};
use lotus_fabric::ids::Endpoint;
use lotus_fabric::rpc::Rpc;
use lotus_locks::word::Mode;
use lotus_locks::{Counts, Member, NotHeld, Peers, Wait, Waiter};

use super::core::{TO_CLIENT, TO_SERVER, tell};
use super::name::{Answer, Ask, Asker, RequestName};
use super::placement::{Placement, SharedTable};
use super::wire;
use crate::locker::Locker;

/// Bounds of the time until an unanswered message is sent again; doubled at every repetition.
/// Longer than a busy server takes to answer.
const AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Time after which a silent server counts as lost. Longer than threads of a busy machine stand
/// still.
const SILENCE: Duration = Duration::from_secs(5);
/// Time between two checks for outstanding requests.
const LOOK: Duration = Duration::from_micros(20);

/// A lane's view of the servers.
#[derive(Clone)]
pub struct Servers {
    /// Placement of the locks.
    pub placement: Placement,
    /// Locks of a core on this lane's own node, used by direct calls.
    pub own: Option<SharedTable>,
    /// Whether a refused request is made again until its deadline.
    pub retries: bool,
}

/// A lane's client of locks kept by servers. Clones share the client.
#[derive(Clone)]
pub struct ServerClient {
    core: Rc<Core>,
}

struct Core {
    rpc: Rpc,
    me: Member,
    peers: Rc<dyn Peers>,
    servers: Servers,
    slots: RefCell<Vec<AskSlot>>,
    free: RefCell<Vec<u16>>,
    counts: Cell<Counts>,
    is_expelled: Cell<bool>,
}

/// A slot and the last request.
#[derive(Clone, Copy, Debug)]
struct AskSlot {
    number: u64,
    said: Option<Answer>,
    task: Option<TaskId>,
}

/// A held lock of a server.
pub struct ServerHeld {
    request: ServerRequest,
}

/// A request under way. Dropped before the end, it leaves in the background.
struct ServerRequest {
    core: Rc<Core>,
    attempt: RequestName,
    has_ended: bool,
}

impl ServerRequest {
    /// Records the end of the request at the server.
    fn end(&mut self) {
        self.has_ended = true;
        self.core.free(self.attempt);
    }
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        if !self.has_ended {
            let (core, attempt) = (Rc::clone(&self.core), self.attempt);
            self.core.say(attempt, Ask::Leave);
            self.core.executor().spawn(async move {
                while core.leave(attempt).await == Err(NotHeld::Unavailable) {}
                core.free(attempt);
            });
        }
    }
}

/// When a message is sent again.
struct Repeats {
    pause: Duration,
    next: Nanos,
    /// Time since which the server has been silent.
    silent_since: Nanos,
}

impl Repeats {
    fn new(now: Nanos) -> Self {
        Self { pause: AGAIN.0, next: now.after(AGAIN.0), silent_since: now }
    }

    fn again(&mut self, now: Nanos) {
        self.pause = (self.pause * 2).min(AGAIN.1);
        self.next = now.after(self.pause);
    }

    fn is_silent(&self, now: Nanos) -> bool {
        now.since(self.silent_since) >= SILENCE
    }
}

impl ServerClient {
    /// Returns the client on the lane of `rpc`, of a member.
    pub fn new(rpc: Rpc, me: Member, peers: Rc<dyn Peers>, servers: Servers) -> Self {
        let core = Rc::new(Core {
            rpc,
            me,
            peers,
            servers,
            slots: RefCell::default(),
            free: RefCell::default(),
            counts: Cell::default(),
            is_expelled: Cell::new(false),
        });
        let listener = Rc::downgrade(&core);
        core.rpc.hear(
            TO_CLIENT,
            Box::new(move |_, bytes| {
                let Some(core) = listener.upgrade() else { return };
                if let Some((attempt, answer)) = wire::decode_answer(bytes) {
                    core.hear(attempt, answer);
                }
            }),
        );
        Self { core }
    }

    /// Number of requests under way, including held locks.
    fn outstanding(&self) -> usize {
        self.core.slots.borrow().len() - self.core.free.borrow().len()
    }
}

impl Core {
    fn executor(&self) -> &Handle {
        self.rpc.lane().executor()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Begins a request for a lock; `None` if no slot is free.
    fn begin(self: &Rc<Self>, lock: u64) -> Option<ServerRequest> {
        let slots = &mut *self.slots.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => index,
            None if slots.len() == usize::from(Waiter::SLOTS) => return None,
            None => {
                slots.push(AskSlot { number: 0, said: None, task: None });
                slots.len() as u16 - 1
            }
        };
        let slot = &mut slots[usize::from(index)];
        *slot = AskSlot { number: slot.number + 1, said: None, task: None };
        let asker = Asker::new(self.me.life, self.rpc.lane().at().lane.0, index);
        let attempt = RequestName { asker, number: slot.number, lock };
        Some(ServerRequest { core: Rc::clone(self), attempt, has_ended: false })
    }

    fn free(&self, attempt: RequestName) {
        self.free.borrow_mut().push(attempt.asker.slot());
    }

    /// The core of a lock; `Err` with the table for locks used by direct calls.
    fn server_of(&self, lock: u64) -> Result<Endpoint, &SharedTable> {
        let at = self.servers.placement.core_of(lock);
        match &self.servers.own {
            Some(own) if at.node == self.me.node => Err(own),
            _ => Ok(at),
        }
    }

    fn say(&self, attempt: RequestName, ask: Ask) {
        match self.server_of(attempt.lock) {
            Ok(server) => {
                // The message is short enough.
                let _ = self.rpc.tell(server, TO_SERVER, &wire::encode_ask(attempt, ask));
            }
            Err(own) => {
                let mut said = Vec::new();
                own.lock().ask(attempt, ask, |to, answer| said.push((to, answer)));
                for (to, answer) in said {
                    let asker = to.asker;
                    match asker.life() == self.me.life && asker.lane() == attempt.asker.lane() {
                        true => self.hear(to, answer),
                        false => tell(&self.rpc, &*self.peers, to, answer),
                    }
                }
            }
        }
    }

    /// Handles an answer if it belongs to the slot's last request.
    fn hear(&self, to: RequestName, answer: Answer) {
        if to.asker.life() != self.me.life {
            return;
        }
        let slots = &mut *self.slots.borrow_mut();
        let slot = slots.get_mut(usize::from(to.asker.slot()));
        let Some(slot) = slot.filter(|slot| slot.number == to.number) else { return };
        // A "queued" that arrives after the grant is older than the grant.
        if slot.said == Some(Answer::Granted) && answer == Answer::Queued {
            return;
        }
        slot.said = Some(answer);
        if let Some(task) = slot.task {
            self.executor().wake(task);
        }
    }

    /// The answer to a request since the last check; wakes this task at `next` or earlier.
    fn heard(&self, attempt: RequestName, next: Nanos) -> Option<Answer> {
        let slot = &mut self.slots.borrow_mut()[usize::from(attempt.asker.slot())];
        let said = slot.said.take();
        if said.is_none() {
            let task = self.executor().current();
            slot.task = Some(task);
            self.executor().wake_at(next, task);
        }
        said
    }

    /// Waits for the end of a request after its leave message.
    async fn leave(&self, attempt: RequestName) -> Result<(), NotHeld> {
        let mut repeats = Repeats::new(self.executor().now());
        loop {
            match self.heard(attempt, repeats.next) {
                Some(Answer::Left) => return Ok(()),
                Some(Answer::Expelled) => {
                    self.is_expelled.set(true);
                    return Err(NotHeld::Reset);
                }
                // Sent before the leave.
                Some(Answer::Granted | Answer::Queued | Answer::Refused) => continue,
                None => {}
            }
            let now = self.executor().now();
            if repeats.is_silent(now) {
                return Err(NotHeld::Unavailable);
            }
            if now >= repeats.next {
                self.say(attempt, Ask::Leave);
                repeats.again(now);
                continue;
            }
            self.executor().suspend().await;
        }
    }

    /// Asks once. The request has ended unless the lock is held or the call fails with an error
    /// other than [`NotHeld::Conflict`] and [`NotHeld::Expelled`].
    async fn ask(&self, attempt: RequestName, mode: Mode, wait: Wait) -> Result<(), NotHeld> {
        let until = match wait {
            Wait::No => Nanos::NEVER,
            Wait::Until(until) => until,
        };
        let ask = Ask::Acquire { mode, waits: wait != Wait::No };
        self.say(attempt, ask);
        let mut repeats = Repeats::new(self.executor().now());
        let mut has_waited = false;
        loop {
            match self.heard(attempt, repeats.next.min(until)) {
                Some(Answer::Granted) => return Ok(()),
                Some(Answer::Refused) => return Err(NotHeld::Conflict),
                Some(Answer::Expelled) => return Err(NotHeld::Expelled),
                Some(Answer::Queued) => {
                    repeats.silent_since = self.executor().now();
                    let first = !std::mem::replace(&mut has_waited, true);
                    self.count(|counts| counts.waited += u64::from(first));
                    continue;
                }
                Some(Answer::Left) => unreachable!("{attempt:?} leaves later"),
                None => {}
            }
            let now = self.executor().now();
            if now >= until {
                return Err(NotHeld::TimedOut);
            }
            if repeats.is_silent(now) {
                return Err(NotHeld::Unavailable);
            }
            if now >= repeats.next {
                self.say(attempt, ask);
                repeats.again(now);
                self.count(|counts| counts.retries += 1);
                continue;
            }
            self.executor().suspend().await;
        }
    }

    async fn acquire(
        self: Rc<Self>,
        lock: u64,
        mode: Mode,
        wait: Wait,
    ) -> Result<ServerHeld, NotHeld> {
        loop {
            if self.is_expelled.get() {
                return Err(NotHeld::Expelled);
            }
            let mut request = self.begin(lock).ok_or(NotHeld::TooMany)?;
            let attempt = request.attempt;
            match self.ask(attempt, mode, wait).await {
                Ok(()) => {
                    self.count(|counts| counts.acquired += 1);
                    return Ok(ServerHeld { request });
                }
                Err(why @ (NotHeld::Conflict | NotHeld::Expelled)) => {
                    request.end();
                    if why == NotHeld::Expelled {
                        self.is_expelled.set(true);
                    }
                    let may_retry = match wait {
                        Wait::No => false,
                        Wait::Until(until) => self.executor().now() < until,
                    };
                    if !(self.servers.retries && why == NotHeld::Conflict && may_retry) {
                        let is_late = self.servers.retries && wait != Wait::No;
                        let is_late = is_late && why == NotHeld::Conflict;
                        self.count(|counts| counts.timed_out += u64::from(is_late));
                        return Err(if is_late { NotHeld::TimedOut } else { why });
                    }
                    self.count(|counts| {
                        counts.waited += 1;
                        counts.retries += 1;
                    });
                }
                Err(why) => {
                    self.count(|counts| counts.timed_out += u64::from(why == NotHeld::TimedOut));
                    return Err(why);
                }
            }
        }
    }
}

/// Waits for the end of a request after its leave message.
async fn released(mut request: ServerRequest) -> Result<(), NotHeld> {
    let left = request.core.leave(request.attempt).await;
    // A silent server gets the leave message again and again.
    if left != Err(NotHeld::Unavailable) {
        request.end();
    }
    left
}

impl Locker for ServerClient {
    type Held = ServerHeld;

    fn acquire(
        &self,
        lock: u64,
        mode: Mode,
        wait: Wait,
    ) -> impl Future<Output = Result<ServerHeld, NotHeld>> {
        Rc::clone(&self.core).acquire(lock, mode, wait)
    }

    fn release(&self, held: ServerHeld) -> impl Future<Output = Result<(), NotHeld>> {
        self.core.say(held.request.attempt, Ask::Leave);
        released(held.request)
    }

    fn counts(&self) -> Counts {
        self.core.counts.get()
    }

    async fn quiet(&self) {
        while self.outstanding() > 0 {
            self.core.executor().sleep(LOOK).await;
        }
    }
}
