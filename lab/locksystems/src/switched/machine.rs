//! The pool of a machine, shared by the machine's lanes, and the requests waiting there.
//!
//! Every operation runs under one mutex, and does not wait while holding the mutex. Packets that
//! the pool sends on the acting core's channels are sent by that core at once; packets on other
//! channels are kept for their cores, which are woken. News for a task is kept for the task's
//! future.
//!
//! While the machine is stopped for a recovery, the pool is left unchanged: packets are dropped,
//! and actions of the lanes are recorded and carried out when the machine resumes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_locks::word::Mode;

use super::SwitchOptions;
use super::control::Progress;
use super::pages::Page;
use super::places::Places;
use super::standstill::StoppedMachine;
use crate::fisslock::cores::{AGENT_CORE, core_of, task_of};
use crate::fisslock::pool::{Effects, TaskNotice};
use crate::fisslock::report::encode_report;
use crate::fisslock::{AgentPool, Packet};

/// A notice to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestNotice {
    /// The request holds the lock.
    Granted,
    /// The request is in no queue, and may be made again.
    Refused,
    /// Other requests hold the lock.
    Queued,
}

/// A request waiting for a notice.
#[derive(Debug)]
struct Pending {
    lock: u32,
    notice: Option<RequestNotice>,
    /// Whether the request was in a queue at any time.
    was_queued: bool,
    /// Whether the pool has been asked: not while the machine stands still.
    is_asked: bool,
    mode: Mode,
    waker: Option<Waker>,
}

/// Action of a lane, deferred while the machine stands still.
#[derive(PartialEq, Eq, Debug)]
enum Deferred {
    Ask(u32),
    GiveUp { lock: u32, task: u32 },
    Release { lock: u32, task: u32 },
}

/// Data kept by the machine for a core.
#[derive(Clone, Debug, Default)]
struct Core {
    /// Packets for the switch.
    outgoing: Vec<Packet>,
    /// Largest request number used so far; `free_tasks` has the smaller numbers not in use.
    tasks: u32,
    free_tasks: Vec<u32>,
    /// The task that sends the packets.
    sender: Option<Waker>,
}

#[derive(Debug)]
struct MachineState {
    pool: AgentPool,
    cores: Vec<Core>,
    pending: BTreeMap<u32, Pending>,
    /// Whether the agent's core checks for packets to be repeated.
    is_watched: bool,
    /// Epoch of the last finished recovery.
    epoch: u32,
    /// The recovery for which the machine stands still.
    stopped: Option<StoppedMachine>,
    deferred: Vec<Deferred>,
}

/// A machine: the state shared by its lanes.
#[derive(Debug)]
pub struct Machine {
    number: u8,
    locks: u32,
    repeat: Duration,
    state: Mutex<MachineState>,
}

impl Machine {
    /// Creates the machine with a number, counted from 0.
    ///
    /// # Panics
    /// If the machine does not exist.
    pub fn new(number: u8, places: &Places, options: SwitchOptions) -> Self {
        assert!(usize::from(number) < places.machines(), "there is no machine {number}");
        let pool = AgentPool::new(number, options.rules, options.preference, options.repeat_ns());
        let pool = pool.with_homes(options.homes).with_racks(places.racks());
        let state = MachineState {
            pool,
            cores: vec![Core::default(); usize::from(places.cores(number))],
            pending: BTreeMap::new(),
            is_watched: false,
            epoch: 0,
            stopped: None,
            deferred: Vec::new(),
        };
        Self { number, locks: places.locks(), repeat: options.repeat, state: Mutex::new(state) }
    }

    /// The machine's number.
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Number of locks.
    pub(super) const fn locks(&self) -> u32 {
        self.locks
    }

    /// Time without an acknowledgement after which packets are repeated.
    pub(super) const fn repetition(&self) -> Duration {
        self.repeat
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a lock on a core. Returns the number of the request, which waits for news, and the
    /// packets to be sent by the core.
    pub(super) fn ask(&self, core: u8, lock: u32, mode: Mode, now: Nanos) -> (u32, Vec<Packet>) {
        let state = &mut *self.state();
        let task = state.new_task(core);
        let (notice, was_queued, waker) = (None, false, None);
        let pending = Pending { lock, notice, was_queued, is_asked: false, mode, waker };
        state.pending.insert(task, pending);
        state.do_or_defer(Deferred::Ask(task), now);
        (task, state.take_outgoing(core))
    }

    /// Returns news of a request, and whether the request was in a queue. Without news, `waker` is
    /// woken when news arrives. A request reported as granted or refused is forgotten here.
    pub(super) fn notice(&self, task: u32, waker: &Waker) -> Option<(RequestNotice, bool)> {
        let state = &mut *self.state();
        let pending = state.pending.get_mut(&task)?;
        let Some(notice) = pending.notice.take() else {
            pending.waker = Some(waker.clone());
            return None;
        };
        let was_queued = pending.was_queued;
        if notice != RequestNotice::Queued {
            state.pending.remove(&task);
        }
        if notice == RequestNotice::Refused {
            state.core_of(task).free_tasks.push(task);
        }
        Some((notice, was_queued))
    }

    /// Gives up a request; if the request was granted in the meantime, the lock is released.
    /// Returns the packets to be sent by the request's core.
    pub(super) fn give_up(&self, task: u32, now: Nanos) -> Vec<Packet> {
        let state = &mut *self.state();
        let Some(pending) = state.pending.remove(&task) else { return Vec::new() };
        let lock = pending.lock;
        state.core_of(task).free_tasks.push(task);
        match pending.notice {
            Some(RequestNotice::Granted) => {
                state.do_or_defer(Deferred::Release { lock, task }, now)
            }
            Some(RequestNotice::Refused) => {}
            // Clients that give up while the machine stands still leave no trace.
            _ if !pending.is_asked => {
                state.deferred.retain(|deferred| *deferred != Deferred::Ask(task));
            }
            Some(RequestNotice::Queued) | None => {
                state.do_or_defer(Deferred::GiveUp { lock, task }, now);
            }
        }
        state.take_outgoing(core_of(task))
    }

    /// Releases a lock for its holder. Returns the packets to be sent by the request's core.
    pub(super) fn release(&self, lock: u32, task: u32, now: Nanos) -> Vec<Packet> {
        let state = &mut *self.state();
        state.core_of(task).free_tasks.push(task);
        state.do_or_defer(Deferred::Release { lock, task }, now);
        state.take_outgoing(core_of(task))
    }

    /// Returns whether no request waits, and no packet is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        let state = self.state();
        state.stopped.is_none() && state.pending.is_empty() && state.pool.is_quiet()
    }

    /// Returns whether the machine has neither agents nor requests, holds no lock, and has no
    /// packet in flight.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.stopped.is_none() && state.pending.is_empty() && state.pool.is_idle()
    }

    /// Number of the machine's agents, and of its requests that hold locks or wait; 0 when no lock
    /// is used here.
    pub fn in_use(&self) -> usize {
        self.state().pool.in_use()
    }

    /// Processes packets received by a core. Returns the packets to be sent by the core; `waker` is
    /// woken when further packets are to be sent.
    pub(super) fn turn(
        &self,
        core: u8,
        packets: Vec<Packet>,
        now: Nanos,
        waker: &Waker,
    ) -> Vec<Packet> {
        let state = &mut *self.state();
        if state.stopped.is_none() {
            for packet in packets {
                state.act(core, |pool, out| pool.receive(packet, now.0, out), now);
            }
        }
        state.cores[usize::from(core)].sender = Some(waker.clone());
        state.take_outgoing(core)
    }

    /// Repeats packets of every core not acknowledged in time. To be called by the agent's core,
    /// which sends the repetitions, about twice per repetition time, while [`Self::is_watched`].
    pub(super) fn repeat_lost(&self, now: Nanos) {
        let state = &mut *self.state();
        if state.stopped.is_none() {
            state.act(AGENT_CORE, |pool, out| pool.tick(now.0, out), now);
        }
    }

    /// Returns whether packets may have to be repeated. If not, the agent's core is woken when that
    /// changes.
    pub(super) fn is_watched(&self) -> bool {
        let state = &mut *self.state();
        state.is_watched = !state.pool.is_idle();
        state.is_watched
    }

    /// Stops the machine for a recovery. Returns a page of the report, if the report has so many;
    /// `None` if the recovery is over, or a later recovery has begun.
    pub(super) fn stop(&self, epoch: u32, page: u32) -> Option<Page> {
        let state = &mut *self.state();
        let stopped = state.stopped.as_ref().map_or(state.epoch, StoppedMachine::epoch);
        if epoch < stopped || epoch == state.epoch {
            return None;
        }
        if epoch > stopped {
            let report = encode_report(&state.pool.report());
            state.stopped = Some(StoppedMachine::of(epoch, report));
            // These packets belong to the epoch that ends.
            state.cores.iter_mut().for_each(|core| core.outgoing.clear());
        }
        state.stopped.as_ref()?.page(page)
    }

    /// Accepts a page of the locks with which the machine resumes after a recovery. The machine
    /// resumes with the last page.
    pub(super) fn resume(&self, epoch: u32, page: Page, now: Nanos) -> Progress {
        let state = &mut *self.state();
        let locks = match &mut state.stopped {
            None if state.epoch == epoch => return Progress::Done,
            Some(stopped) if stopped.epoch() == epoch => match stopped.tell(page) {
                Ok(locks) => locks,
                Err(progress) => return progress,
            },
            _ => return Progress::Refused,
        };
        (state.epoch, state.stopped) = (epoch, None);
        // Packets have the low byte of the epoch: no packet may be in flight from an epoch that
        // differs by a multiple of 256.
        state.act(AGENT_CORE, |pool, out| pool.recover(epoch as u8, &locks, now.0, out), now);
        for deferred in std::mem::take(&mut state.deferred) {
            state.carry_out(deferred, now);
        }
        // The cores have not asked for these packets.
        state.cores.iter_mut().filter(|core| !core.outgoing.is_empty()).for_each(Core::wake);
        Progress::Done
    }
}

impl Core {
    fn wake(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

impl MachineState {
    /// Returns a number not used by a request. The number is the core's most recently freed number,
    /// whose old grant may be in flight: nonces tell the requests apart.
    fn new_task(&mut self, core: u8) -> u32 {
        let of = &mut self.cores[usize::from(core)];
        of.free_tasks.pop().unwrap_or_else(|| {
            of.tasks += 1;
            task_of(core, of.tasks)
        })
    }

    /// Returns the core of a request.
    fn core_of(&mut self, task: u32) -> &mut Core {
        &mut self.cores[usize::from(core_of(task))]
    }

    fn take_outgoing(&mut self, core: u8) -> Vec<Packet> {
        std::mem::take(&mut self.cores[usize::from(core)].outgoing)
    }

    fn do_or_defer(&mut self, what: Deferred, now: Nanos) {
        if self.stopped.is_some() {
            self.deferred.push(what);
        } else {
            self.carry_out(what, now);
        }
    }

    fn carry_out(&mut self, what: Deferred, now: Nanos) {
        match what {
            Deferred::Ask(task) => {
                // The request may have been given up in the meantime, and a later request may have
                // its number.
                let pending = self.pending.get_mut(&task).filter(|pending| !pending.is_asked);
                let Some(pending) = pending else { return };
                pending.is_asked = true;
                let (lock, mode) = (pending.lock, pending.mode);
                self.act(
                    core_of(task),
                    |pool, out| pool.acquire(lock, task, mode, now.0, out),
                    now,
                );
            }
            Deferred::GiveUp { lock, task } => {
                self.act(core_of(task), |pool, out| pool.give_up(lock, task, now.0, out), now);
            }
            Deferred::Release { lock, task } => {
                self.act(core_of(task), |pool, out| pool.release(lock, task, now.0, out), now);
            }
        }
    }

    /// Performs an operation on the pool for a core, and passes on the effects.
    fn act(&mut self, core: u8, act: impl FnOnce(&mut AgentPool, &mut Effects), now: Nanos) {
        let mut out = Effects { core, ..Effects::default() };
        act(&mut self.pool, &mut out);
        let mut at = 0;
        while at < out.told.len() {
            let told = out.told[at];
            at += 1;
            match told {
                TaskNotice::Granted(lock, task, _)
                    if !self.tell(lock, task, RequestNotice::Granted) =>
                {
                    // The request was given up while the machine stood still.
                    self.pool.release(lock, task, now.0, &mut out);
                }
                TaskNotice::Refused(lock, task) => {
                    _ = self.tell(lock, task, RequestNotice::Refused)
                }
                TaskNotice::Granted(..) | TaskNotice::Queued(..) => {}
            }
        }
        // After the grants, because a request may be told of both at once.
        for told in &out.told {
            if let TaskNotice::Queued(lock, task) = *told {
                self.tell(lock, task, RequestNotice::Queued);
            }
        }
        for packet in out.packets {
            let sends = packet.sender(core);
            let of = &mut self.cores[usize::from(sends)];
            of.outgoing.push(packet);
            if sends != core {
                of.wake();
            }
        }
        if !self.is_watched && !self.pool.is_idle() {
            self.is_watched = true;
            self.cores[usize::from(AGENT_CORE)].wake();
        }
    }

    /// Tells news to a request that has been asked of the pool. Returns whether the request exists.
    fn tell(&mut self, lock: u32, task: u32, notice: RequestNotice) -> bool {
        let asked = |pending: &&mut Pending| pending.is_asked && pending.lock == lock;
        let Some(pending) = self.pending.get_mut(&task).filter(asked) else { return false };
        if notice == RequestNotice::Queued {
            let is_known = pending.was_queued || pending.notice.is_some();
            pending.was_queued |= pending.notice.is_none();
            if is_known {
                return true;
            }
        }
        pending.notice = Some(notice);
        if let Some(waker) = pending.waker.take() {
            waker.wake();
        }
        true
    }
}
