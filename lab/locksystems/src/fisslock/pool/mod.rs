//! The pool of a machine: the machine's agents, and the requests of its tasks (FissLock §4.1,
//! §5.1).
//!
//! A state machine without a clock or a network: every input has the time, in nanoseconds, and adds
//! packets for the switch and news for tasks to [`Effects`]. `arrivals` handles packets, `agents`
//! the arrival and departure of agents.
//!
//! A machine has several cores, whose channels are in [`super::cores`]. ACQUIRE and RELEASE are
//! sent on the channel of the task's core, so that the switch receives a request before the
//! request's withdrawal. Other packets are sent on the channel of the acting core, with one
//! exception: an agent that has closed its lock for readers leaves by the channel used for closing.
//! Otherwise STARVE might arrive after FREE, and close the lock for the next holder's readers.

mod agents;
mod arrivals;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lotus_locks::word::Mode;
use lotus_sabotage::{Rule, broken};

use super::agent::{Admission, Agent};
use super::channel::{Inbox, Outbox};
use super::cores::{AGENT_CORE, Traffic};
use super::packet::{Kind, MAX_WAITERS, Origin, Packet, Participant, Queued};
use super::recovery::{Granted, HostedAgent, MachineReport, Restored};
use super::rules::{ABSENT_NS, Homes, Preference, Rules, STARVE_NS, rack_of};

/// A notice to a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskNotice {
    /// The task holds the lock.
    Granted(u32, u32, Mode),
    /// The task's request is in no queue: the task may ask again.
    Refused(u32, u32),
    /// Other tasks hold the lock. The task waits in the agent's queue, or behind a task of the same
    /// machine in that queue. This notice may come more than once, and just before the grant.
    Queued(u32, u32),
}

/// Packets for the switch, and news for tasks: lock, task, and mode of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Acting core: the core at which a packet has arrived, or the task's core.
    pub core: u8,
    /// Packets, in sending order. Packets on other cores' channels are sent by those cores.
    pub packets: Vec<Packet>,
    /// News, in the order of the events.
    pub told: Vec<TaskNotice>,
}

/// State of a task's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// Queued on the machine; other requests of the machine for the lock go first.
    Local,
    /// At the switch, or in the queue of an agent.
    Waits,
    /// At the switch, or in the queue of an agent; the task has given up.
    GivenUp,
    /// Granted.
    Holds,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    mode: Mode,
    progress: Progress,
}

/// A request sent to the switch. The request is over when its packet is acknowledged and its grant
/// or refusal has arrived.
#[derive(Clone, Copy, Debug, Default)]
struct AtSwitch {
    acknowledged: bool,
    answered: bool,
}

/// A packet waiting for an agent.
#[derive(Clone, Debug)]
struct Parked {
    packet: Packet,
    since: u64,
}

/// Location of a lock's agent, as known to the pool.
#[derive(Clone, Debug)]
enum Hosted {
    /// Here.
    Here(Agent),
    /// Here until the switch has acknowledged the agent's departure packet, `by`.
    Leaving { agent: Agent, by: (Origin, u64), parked: Vec<Parked> },
    /// On its way to this machine, or elsewhere.
    Absent { parked: Vec<Parked> },
}

/// Agents and requests of a machine.
#[derive(Clone, Debug)]
pub struct AgentPool {
    machine: u8,
    rules: Rules,
    preference: Preference,
    homes: Homes,
    racks: u8,
    epoch: u8,
    repeat_ns: u64,
    /// By the rack of the deciding switch, and by channel: every switch counts separately. Created
    /// with the first packet.
    outboxes: BTreeMap<(u8, Origin), Outbox>,
    inboxes: BTreeMap<(u8, Origin), Inbox>,
    hosted: BTreeMap<u32, Hosted>,
    wanted: BTreeMap<(u32, Participant), Wanted>,
    at_switch: BTreeMap<(u32, Participant), AtSwitch>,
    /// Requests waiting behind other requests of the machine, by lock.
    local: BTreeMap<u32, VecDeque<Participant>>,
    /// Locks whose agents, if hosted here, may have waiters. Agents of other locks have no waiters.
    waited_for: BTreeSet<u32>,
    /// Locks whose agents may be absent, with packets parked for them. Agents of other locks are
    /// not absent.
    absent: BTreeSet<u32>,
    nonce: u16,
    starve_at: u64,
}

impl AgentPool {
    /// Creates the pool of a machine, which repeats packets after `repeat_ns` nanoseconds without
    /// an acknowledgement.
    pub const fn new(machine: u8, rules: Rules, preference: Preference, repeat_ns: u64) -> Self {
        Self {
            machine,
            rules,
            preference,
            homes: Homes::Nowhere,
            racks: 1,
            epoch: 0,
            repeat_ns,
            outboxes: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            hosted: BTreeMap::new(),
            wanted: BTreeMap::new(),
            at_switch: BTreeMap::new(),
            local: BTreeMap::new(),
            waited_for: BTreeSet::new(),
            absent: BTreeSet::new(),
            nonce: 0,
            starve_at: 0,
        }
    }

    /// Sets the homes of locks, which have to be the same on every machine.
    #[must_use]
    pub fn with_homes(self, homes: Homes) -> Self {
        Self { homes, ..self }
    }

    /// Sets the number of racks, with a switch in each.
    ///
    /// # Panics
    /// If `racks` is 0.
    #[must_use]
    pub fn with_racks(self, racks: u8) -> Self {
        assert!(racks > 0, "there is a switch");
        Self { racks, ..self }
    }

    /// Returns the key of a channel to the switch that decides on a lock.
    fn channel(&self, lock: u32, origin: Origin) -> (u8, Origin) {
        (rack_of(lock, self.racks), origin)
    }

    fn is_home(&self, lock: u32) -> bool {
        self.homes.is_home(self.machine, lock)
    }

    /// Requests a lock for a task that neither holds the lock nor waits for it. The request has a
    /// nonce of its own, which the grant echoes (I312). On the agent's machine, the agent decides
    /// without the switch.
    pub fn acquire(&mut self, lock: u32, task: u32, mode: Mode, now: u64, out: &mut Effects) {
        let nonces = self.rules.nonces && !broken(Rule::GrantsEchoNonces);
        let nonce = if nonces { self.nonce.wrapping_add(1) } else { 0 };
        self.nonce = nonce;
        let who = Participant { machine: self.machine, task, nonce };
        let progress = Progress::Local;
        self.wanted.insert((lock, who), Wanted { mode, progress });
        self.local.entry(lock).or_default().push_back(who);
        self.ask_local(lock, now, out);
        let mut at_switch = self.at_switch.range(requests_of(lock));
        if at_switch.any(|(other, state)| other.1 != who && state.acknowledged) {
            out.told.push(TaskNotice::Queued(lock, task));
        }
    }

    /// Releases a lock held by a task.
    ///
    /// # Panics
    /// If the task does not hold the lock.
    pub fn release(&mut self, lock: u32, task: u32, now: u64, out: &mut Effects) {
        let holds = |wanted: &Wanted| wanted.progress == Progress::Holds;
        let (who, mode) = self.request_of(lock, task, holds).expect("the task holds the lock");
        self.wanted.remove(&(lock, who));
        self.leave(lock, who, mode, now, out);
    }

    /// Ends a task's wait for a lock; the task may ask again. Does nothing if the task does not
    /// wait. As published, the RELEASE makes the switch free the lock if the agent is not here.
    pub fn give_up(&mut self, lock: u32, task: u32, now: u64, out: &mut Effects) {
        let waits = |wanted: &Wanted| matches!(wanted.progress, Progress::Local | Progress::Waits);
        let Some((who, mode)) = self.request_of(lock, task, waits) else { return };
        let key = (lock, who);
        if let Some(local) = self.local.get_mut(&lock)
            && local.contains(&who)
        {
            local.retain(|other| *other != who);
            self.wanted.remove(&key);
            return;
        }
        if let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock)
            && agent.withdraw(who)
        {
            self.wanted.remove(&key);
            return self.answered(lock, who, now, out);
        }
        let mut release = Packet::new(Kind::Release, lock, who, mode);
        if self.rules.withdraws {
            self.wanted.insert(key, Wanted { mode, progress: Progress::GivenUp });
        } else {
            self.wanted.remove(&key);
            self.at_switch.remove(&key);
            release.absent = true;
        }
        self.request(release, now, out);
    }

    /// Handles the passing of time: repeats packets, refuses requests that have waited too long for
    /// an absent agent, and makes agents look for starving writers.
    pub fn tick(&mut self, now: u64, out: &mut Effects) {
        for outbox in self.outboxes.values_mut() {
            outbox.tick(now, &mut out.packets);
        }
        self.refuse_stale(now, out);
        if self.starve_at <= now {
            self.starve_at = now + STARVE_NS;
            for lock in std::mem::take(&mut self.waited_for) {
                self.note_waiters(lock);
                self.look_for_writers(lock, now, out);
            }
        }
    }

    /// Returns whether the machine has no requests, no packets in flight, and no agents except
    /// agents resting at home.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty()
            && self.at_switch.is_empty()
            && self.outboxes.values().all(Outbox::is_empty)
            && self.hosted.iter().all(|(lock, hosted)| self.rests(*lock, hosted))
    }

    /// Returns whether no request waits for an answer, and no packet is in flight. Tasks may hold
    /// locks.
    pub fn is_quiet(&self) -> bool {
        self.wanted.values().all(|wanted| wanted.progress == Progress::Holds)
            && self.at_switch.is_empty()
            && self.outboxes.values().all(Outbox::is_empty)
    }

    /// Number of agents here, leaving or awaited, except resting agents, plus the number of
    /// requests that hold locks or wait.
    pub fn in_use(&self) -> usize {
        let resting =
            self.hosted.iter().filter(|(lock, hosted)| self.rests(**lock, hosted)).count();
        self.hosted.len() - resting + self.wanted.len()
    }

    /// Returns whether an agent rests.
    fn rests(&self, lock: u32, hosted: &Hosted) -> bool {
        match hosted {
            Hosted::Here(agent) => self.is_home(lock) && agent.is_resting(),
            Hosted::Leaving { .. } | Hosted::Absent { .. } => false,
        }
    }

    /// Returns the agent of a lock, if the agent is here and not about to leave.
    pub fn agent(&self, lock: u32) -> Option<&Agent> {
        match self.hosted.get(&lock) {
            Some(Hosted::Here(agent)) => Some(agent),
            _ => None,
        }
    }

    /// Returns the machine's state for a recovery (FissLock §5.3, S1). The pool must not be used
    /// between this call and [`AgentPool::recover`].
    pub fn report(&self) -> MachineReport {
        let of = |agent: &Agent, leaves| {
            let queue = agent.queue.iter().copied().collect();
            HostedAgent { queue, leaves }
        };
        let agents = self.hosted.iter().filter_map(|(&lock, hosted)| match hosted {
            Hosted::Here(agent) => Some((lock, of(agent, false))),
            Hosted::Leaving { agent, .. } => Some((lock, of(agent, true))),
            Hosted::Absent { .. } => None,
        });
        let requests = self.wanted.iter().filter_map(|(&(lock, who), wanted)| {
            let granted = match wanted.progress {
                Progress::Holds => Granted::Holds,
                Progress::Waits | Progress::Local => Granted::Waits,
                Progress::GivenUp => return None,
            };
            Some((lock, who, wanted.mode, granted))
        });
        MachineReport {
            machine: self.machine,
            agents: agents.collect(),
            requests: requests.collect(),
        }
    }

    /// Resumes after a recovery, in a new epoch, with the restored locks (S2); the locks that
    /// concern the machine suffice ([`concerning`](super::recovery::concerning)).
    pub fn recover(
        &mut self,
        epoch: u8,
        locks: &BTreeMap<u32, Restored>,
        now: u64,
        out: &mut Effects,
    ) {
        self.epoch = epoch;
        self.outboxes.clear();
        self.inboxes.clear();
        self.at_switch.clear();
        self.local.clear();
        self.hosted.clear();
        self.waited_for.clear();
        self.absent.clear();
        self.wanted.retain(|_, wanted| wanted.progress != Progress::GivenUp);
        for wanted in self.wanted.values_mut().filter(|w| w.progress == Progress::Local) {
            wanted.progress = Progress::Waits;
        }
        for (&lock, restored) in locks {
            if restored.agent_at == self.machine {
                self.host_restored(lock, restored, now, out);
            }
            for &who in &restored.holders {
                if who.machine == self.machine {
                    self.grant(lock, who, now, out);
                }
            }
            self.prefer_writers(lock, now, out);
        }
    }

    /// Hosts a restored agent. Tasks that waited on their machines now wait in the agent's queue as
    /// well, as far as the queue has room.
    fn host_restored(&mut self, lock: u32, restored: &Restored, now: u64, out: &mut Effects) {
        let mut agent = restored.agent();
        let surplus = agent.queue.split_off(agent.queue.len().min(MAX_WAITERS));
        self.hosted.insert(lock, Hosted::Here(agent));
        self.note_waiters(lock);
        for Queued { who, mode } in surplus {
            self.refuse(lock, who, mode, now, out);
        }
    }

    /// Returns the task's request for a lock in a state that satisfies `is`, and the request's
    /// mode.
    fn request_of(
        &self,
        lock: u32,
        task: u32,
        is: impl Fn(&Wanted) -> bool,
    ) -> Option<(Participant, Mode)> {
        let of = |nonce| (lock, Participant { machine: self.machine, task, nonce });
        let mut all = self.wanted.range(of(0)..=of(u16::MAX));
        all.find(|(_, wanted)| is(wanted)).map(|((_, who), wanted)| (*who, wanted.mode))
    }

    /// Sends a packet of a task: a request, or a RELEASE.
    fn request(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        self.send(packet.who.core(), Traffic::Requests, packet, now, out);
    }

    /// Sends a packet of an agent, or a forwarded packet. Returns the packet's channel and number.
    fn send_as_agent(
        &mut self,
        core: u8,
        packet: Packet,
        now: u64,
        out: &mut Effects,
    ) -> (Origin, u64) {
        self.send(core, Traffic::Agents, packet, now, out)
    }

    fn send(
        &mut self,
        core: u8,
        traffic: Traffic,
        packet: Packet,
        now: u64,
        out: &mut Effects,
    ) -> (Origin, u64) {
        let (origin, epoch) = (Origin::of(self.machine, core, traffic), self.epoch);
        let new = || Outbox::new(origin, epoch, self.repeat_ns);
        let key = self.channel(packet.lock, origin);
        let outbox = self.outboxes.entry(key).or_insert_with(new);
        (origin, outbox.send(packet, now, &mut out.packets))
    }

    /// Asks for the lock on behalf of tasks that wait on this machine: asks the agent if it is
    /// here, otherwise the switch, for one task at a time.
    fn ask_local(&mut self, lock: u32, now: u64, out: &mut Effects) {
        while let Some(&who) = self.local.get(&lock).and_then(VecDeque::front) {
            let is_asking = self.at_switch.range(requests_of(lock)).next().is_some();
            match self.hosted.get(&lock) {
                Some(Hosted::Leaving { .. }) => return,
                Some(Hosted::Here(_)) => {}
                _ if is_asking && self.rules.one_request => return,
                _ => {}
            }
            self.local.entry(lock).or_default().pop_front();
            let Some(wanted) = self.wanted.get_mut(&(lock, who)) else { continue };
            if wanted.progress != Progress::Local {
                // As published, the grant of an earlier request of the task was taken for this
                // request's grant.
                continue;
            }
            wanted.progress = Progress::Waits;
            let mode = wanted.mode;
            let is_home = self.is_home(lock);
            if let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) {
                let asked = if is_home && agent.is_resting() {
                    agent.take(who, mode);
                    Admission::Joins
                } else {
                    agent.ask(who, mode, self.preference)
                };
                self.asked(asked, lock, who, mode, now, out);
            } else {
                self.at_switch.insert((lock, who), AtSwitch::default());
                let mode = if is_home { Mode::Exclusive } else { mode };
                let packet = Packet::new(Kind::Acquire, lock, who, mode);
                self.request(packet, now, out);
            }
        }
        self.local.remove(&lock);
    }

    /// Tells a task the agent's answer, through the switch if the task is on another machine.
    fn asked(
        &mut self,
        asked: Admission,
        lock: u32,
        who: Participant,
        mode: Mode,
        now: u64,
        out: &mut Effects,
    ) {
        match asked {
            Admission::Joins => self.grant_holder(lock, who, now, out),
            Admission::Full => self.refuse(lock, who, mode, now, out),
            Admission::Waits if who.machine == self.machine => {
                out.told.push(TaskNotice::Queued(lock, who.task));
                self.waits_at_agent(lock, now, out);
            }
            Admission::Waits => self.waits_at_agent(lock, now, out),
        }
    }

    /// Notes a lock whose agent is here and has waiters.
    fn note_waiters(&mut self, lock: u32) {
        if let Some(Hosted::Here(agent)) = self.hosted.get(&lock)
            && !agent.queue.is_empty()
        {
            self.waited_for.insert(lock);
        }
    }

    /// Handles a request that starts to wait at the agent, which is here.
    fn waits_at_agent(&mut self, lock: u32, now: u64, out: &mut Effects) {
        self.waited_for.insert(lock);
        match self.preference {
            // Writers are preferred from now on: the switch has to learn of a writer that asked
            // here.
            Preference::Writers => self.look_for_writers(lock, now, out),
            Preference::Readers => {}
        }
    }

    /// Grants the lock to a task of this machine, if the task still wants the lock. Returns whether
    /// the task does.
    fn grant(&mut self, lock: u32, who: Participant, now: u64, out: &mut Effects) -> bool {
        let key = (lock, who);
        let Some(wanted) = self.wanted.get_mut(&key) else {
            self.answered(lock, who, now, out);
            return false;
        };
        let (progress, mode) = (wanted.progress, wanted.mode);
        wanted.progress = Progress::Holds;
        match progress {
            Progress::GivenUp => {
                self.wanted.remove(&key);
            }
            Progress::Waits | Progress::Local => {
                out.told.push(TaskNotice::Granted(lock, who.task, mode));
            }
            Progress::Holds => {}
        }
        self.answered(lock, who, now, out);
        progress != Progress::GivenUp
    }

    /// Handles a request of this machine that was acknowledged without a grant: the request is in a
    /// queue, and the requests behind it wait as well.
    fn queued(&self, lock: u32, who: Participant, out: &mut Effects) {
        let is_answered = |state: &AtSwitch| state.answered;
        if self.at_switch.get(&(lock, who)).is_none_or(is_answered) {
            return;
        }
        let behind = self.local.get(&lock).into_iter().flatten();
        let all = std::iter::once(&who).chain(behind);
        out.told.extend(all.map(|who| TaskNotice::Queued(lock, who.task)));
    }

    /// Notes that a request of this machine has its answer.
    fn answered(&mut self, lock: u32, who: Participant, now: u64, out: &mut Effects) {
        self.at_switch_is(lock, who, |state| state.answered = true, now, out);
    }

    /// Updates the state of a request at the switch. When the request is over, the next request is
    /// sent.
    fn at_switch_is(
        &mut self,
        lock: u32,
        who: Participant,
        note: impl FnOnce(&mut AtSwitch),
        now: u64,
        out: &mut Effects,
    ) {
        let Some(state) = self.at_switch.get_mut(&(lock, who)) else { return };
        note(state);
        if state.acknowledged && state.answered {
            self.at_switch.remove(&(lock, who));
            self.ask_local(lock, now, out);
        }
    }
}

/// Returns the key range of the requests for a lock.
const fn requests_of(lock: u32) -> std::ops::RangeInclusive<(u32, Participant)> {
    let least = Participant { machine: 0, task: 0, nonce: 0 };
    let most = Participant { machine: u8::MAX, task: u32::MAX, nonce: u16::MAX };
    (lock, least)..=(lock, most)
}

/// Returns whether a packet has waited too long for its agent.
const fn is_stale(parked: &Parked, now: u64) -> bool {
    now.saturating_sub(parked.since) >= ABSENT_NS
}
