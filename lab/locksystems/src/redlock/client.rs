//! A lane's client of RedLock: tries, deletions, and holds that may have expired.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::{Handle, TaskId};
use lotus_locks::word::{Claimant, Mode};
use lotus_locks::{Counts, NotHeld, Wait};
use rand::Rng;

use super::redis::{Command, CommandName, Token};
use super::rules::{RedisReply, Times, TryVerdict, is_heard, valid_until, verdict};
use crate::locker::Locker;
use crate::servers::Asker;

/// Bounds of the time until an unanswered command is sent again, where messages are lost; doubled
/// at every repetition. Longer than a server takes for the commands of all clients ahead.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(50));
/// Time after which silent servers count as lost. Longer than threads of a busy machine stand
/// still.
const SILENCE: Duration = Duration::from_secs(5);
/// Time between two checks for outstanding commands.
const LOOK: Duration = Duration::from_micros(20);

/// Link to the servers. Their replies are delivered to the lane's [`Replies`].
pub trait RedisLink {
    /// Number of servers.
    fn servers(&self) -> usize;

    /// Whether commands and replies may be lost, and the client repeats commands. Servers must then
    /// carry out every command once ([`super::Sessions`]).
    fn is_lossy(&self) -> bool;

    /// Sends a command to a server.
    fn send(&self, server: usize, name: CommandName, command: Command);
}

/// Receiver of the servers' replies to a lane.
#[derive(Clone)]
pub struct Replies(Weak<Core>);

impl Replies {
    /// Handles a server's reply. A duplicate or late reply changes nothing.
    pub fn hear(&self, server: usize, name: CommandName, reply: RedisReply) {
        if let Some(core) = self.0.upgrade() {
            core.hear(server, name, reply);
        }
    }
}

/// A lane's client of RedLock. Clones share the client.
#[derive(Clone)]
pub struct RedLockClient {
    core: Rc<Core>,
}

struct Core {
    executor: Handle,
    life: Claimant,
    lane: u16,
    times: Times,
    link: Box<dyn RedisLink>,
    rng: RefCell<SmallRng>,
    slots: RefCell<Vec<CommandSlot>>,
    free: RefCell<Vec<u16>>,
    counts: Cell<Counts>,
}

/// A slot and the last command.
struct CommandSlot {
    number: u64,
    answers: Vec<Option<RedisReply>>,
    task: Option<TaskId>,
}

/// A lock held for as long as it is valid.
pub struct RedLockHeld {
    tried: Try,
    valid_until: Nanos,
}

/// A try to set a key. Dropping it before the end deletes the key in the background.
struct Try {
    core: Rc<Core>,
    slot: u16,
    command: Command,
    began: Nanos,
    has_ended: bool,
}

impl Try {
    /// Records the answers of all servers to the deletion.
    fn end(&mut self) {
        self.has_ended = true;
        self.core.free.borrow_mut().push(self.slot);
    }

    /// Sends the deletion of the key to all servers, unless sent before.
    fn delete(&mut self) {
        if let Command::Set { key, token, .. } = self.command {
            self.command = Command::Delete { key, token };
            self.core.begin_command(self.slot, self.command);
        }
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.delete();
        let (core, slot, command) = (Rc::clone(&self.core), self.slot, self.command);
        self.core.executor.spawn(async move {
            // Silent servers drop the key when its time to live is over.
            core.ask(slot, command, core.forgets(), |answers| !answers.contains(&None)).await;
            core.free.borrow_mut().push(slot);
        });
    }
}

impl RedLockClient {
    /// Returns the client of a lane of a node, in one of the node's lives. `rng` draws the tokens,
    /// and must be a random stream of this lane only. `link` makes the link to the servers.
    pub fn new(
        executor: Handle,
        (life, lane): (Claimant, u16),
        times: Times,
        rng: SmallRng,
        link: impl FnOnce(Replies) -> Box<dyn RedisLink>,
    ) -> Self {
        let core = Rc::new_cyclic(|core| Core {
            executor,
            life,
            lane,
            times,
            link: link(Replies(core.clone())),
            rng: RefCell::new(rng),
            slots: RefCell::default(),
            free: RefCell::default(),
            counts: Cell::default(),
        });
        Self { core }
    }

    /// Number of held locks, and of tries and deletions under way.
    fn outstanding(&self) -> usize {
        self.core.slots.borrow().len() - self.core.free.borrow().len()
    }
}

impl Core {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Begins a try; `None` if no slot is free.
    fn begin(self: &Rc<Self>, key: u64) -> Option<Try> {
        let slots = self.slots.borrow().len();
        let free = self.free.borrow_mut().pop();
        let slot = match free {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(slots).ok()?;
                let answers = vec![None; self.link.servers()];
                self.slots.borrow_mut().push(CommandSlot { number: 0, answers, task: None });
                slot
            }
        };
        let token = Token(self.rng.borrow_mut().random());
        let command = Command::Set { key, token, ttl: self.times.ttl };
        let began = self.executor.now();
        self.begin_command(slot, command);
        Some(Try { core: Rc::clone(self), slot, command, began, has_ended: false })
    }

    /// Begins a slot's next command on all servers.
    fn begin_command(&self, slot: u16, command: Command) {
        let index = usize::from(slot);
        {
            let slot = &mut self.slots.borrow_mut()[index];
            slot.number += 1;
            slot.answers.fill(None);
            slot.task = None;
        }
        self.say(slot, command);
    }

    /// Sends a slot's command to the servers without an answer.
    fn say(&self, slot: u16, command: Command) {
        let asker = Asker::new(self.life, self.lane, slot);
        let index = usize::from(slot);
        for server in 0..self.link.servers() {
            let number = {
                let slot = &self.slots.borrow()[index];
                slot.answers[server].is_none().then_some(slot.number)
            };
            if let Some(number) = number {
                self.link.send(server, CommandName { asker, number }, command);
            }
        }
    }

    fn hear(&self, server: usize, name: CommandName, reply: RedisReply) {
        let CommandName { asker, number } = name;
        if (asker.life(), asker.lane()) != (self.life, self.lane) {
            return;
        }
        let slots = &mut *self.slots.borrow_mut();
        let slot = slots.get_mut(usize::from(asker.slot()));
        let Some(slot) = slot.filter(|slot| slot.number == number) else { return };
        let Some(answer) = slot.answers.get_mut(server) else { return };
        *answer = Some(reply);
        if let Some(task) = slot.task {
            self.executor.wake(task);
        }
    }

    /// Waits until the answers to a slot's command suffice, or until `until`.
    async fn ask(
        &self,
        slot: u16,
        command: Command,
        until: Nanos,
        is_over: impl Fn(&[Option<RedisReply>]) -> bool,
    ) -> Vec<Option<RedisReply>> {
        let (mut pause, mut next) = (AGAIN.0, Nanos::NEVER);
        if self.link.is_lossy() {
            next = self.executor.now().after(pause);
        }
        loop {
            let task = self.executor.current();
            let answers = {
                let slot = &mut self.slots.borrow_mut()[usize::from(slot)];
                slot.task = Some(task);
                slot.answers.clone()
            };
            let now = self.executor.now();
            if is_over(&answers) || now >= until {
                return answers;
            }
            if now >= next {
                self.say(slot, command);
                self.count(|counts| counts.retries += 1);
                pause = (pause * 2).min(AGAIN.1);
                next = now.after(pause);
            }
            self.executor.wake_at(next.min(until), task);
            self.executor.suspend().await;
        }
    }

    /// Time limit for repeating a deletion that begins now. By then an undeleted key has expired,
    /// or its server counts as lost.
    fn forgets(&self) -> Nanos {
        self.executor.now().after(self.times.ttl.min(SILENCE))
    }

    async fn acquire(self: Rc<Self>, lock: u64, wait: Wait) -> Result<RedLockHeld, NotHeld> {
        let until = match wait {
            Wait::No => Nanos::NEVER,
            Wait::Until(until) => until,
        };
        let mut silent_since = self.executor.now();
        loop {
            let tried = self.begin(lock).ok_or(NotHeld::TooMany)?;
            let (slot, command, began) = (tried.slot, tried.command, tried.began);
            let gives_up = self.times.gives_up(began).min(until);
            let is_over = |answers: &[_]| verdict(answers) != TryVerdict::Open;
            let answers = self.ask(slot, command, gives_up, is_over).await;
            let (said, now) = (verdict(&answers), self.executor.now());
            if said == TryVerdict::Got
                && let Some(valid_until) = valid_until(began, now, self.times)
            {
                self.count(|counts| counts.acquired += 1);
                return Ok(RedLockHeld { tried, valid_until });
            }
            // Deletes the key on every server.
            drop(tried);
            if said == TryVerdict::Lost {
                return Err(NotHeld::Unavailable);
            }
            if now >= until {
                self.count(|counts| counts.timed_out += 1);
                return Err(NotHeld::TimedOut);
            }
            let is_heard = is_heard(&answers);
            if is_heard {
                silent_since = now;
            }
            let is_silent = !is_heard && now.since(silent_since) >= SILENCE;
            match wait {
                Wait::No if is_heard => return Err(NotHeld::Conflict),
                Wait::No => return Err(NotHeld::Unavailable),
                Wait::Until(_) if is_silent => return Err(NotHeld::Unavailable),
                Wait::Until(_) => {}
            }
            self.count(|counts| {
                counts.waited += 1;
                counts.retries += 1;
            });
            let most = self.times.pause.as_nanos() as u64;
            let pause = Duration::from_nanos(self.rng.borrow_mut().random_range(0..=most));
            let resumes = now.after(pause).min(until);
            self.executor.sleep_until(resumes).await;
            if resumes >= until {
                self.count(|counts| counts.timed_out += 1);
                return Err(NotHeld::TimedOut);
            }
        }
    }
}

/// Waits until a majority has answered the deletion of a key, which was sent before.
async fn released(mut tried: Try, was_late: bool) -> Result<(), NotHeld> {
    let core = Rc::clone(&tried.core);
    let forgets = core.forgets();
    let is_over = |answers: &[_]| verdict(answers) != TryVerdict::Open;
    let answers = core.ask(tried.slot, tried.command, forgets, is_over).await;
    if !answers.contains(&None) {
        tried.end();
    }
    match verdict(&answers) {
        _ if was_late => Err(NotHeld::Reset),
        TryVerdict::Got => Ok(()),
        TryVerdict::Refused => Err(NotHeld::Reset),
        // Released in time; the key has expired since.
        TryVerdict::Open if core.times.ttl <= SILENCE => Ok(()),
        TryVerdict::Open | TryVerdict::Lost => Err(NotHeld::Unavailable),
    }
}

impl Locker for RedLockClient {
    type Held = RedLockHeld;

    /// The mode makes no difference: a lock has one holder.
    fn acquire(
        &self,
        lock: u64,
        _mode: Mode,
        wait: Wait,
    ) -> impl Future<Output = Result<RedLockHeld, NotHeld>> {
        Rc::clone(&self.core).acquire(lock, wait)
    }

    fn is_valid(&self, held: &RedLockHeld) -> bool {
        self.core.executor.now() < held.valid_until
    }

    fn release(&self, held: RedLockHeld) -> impl Future<Output = Result<(), NotHeld>> {
        let was_late = !self.is_valid(&held);
        let mut tried = held.tried;
        tried.delete();
        released(tried, was_late)
    }

    fn counts(&self) -> Counts {
        self.core.counts.get()
    }

    async fn quiet(&self) {
        while self.outstanding() > 0 {
            self.core.executor.sleep(LOOK).await;
        }
    }
}
