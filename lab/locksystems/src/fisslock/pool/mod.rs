//! The pool of a machine: its agents, and the requests of its tasks (FissLock §4.1, §5.1).
//!
//! A state machine without a clock or a network: each input has the time, in nanoseconds, and adds
//! to [`Effects`] the packets for the switch and what tasks are told. `arrivals` has what packets
//! do, `agents` how agents come and go.
//!
//! A machine has several cores, whose channels are in [`super::cores`]. ACQUIRE and RELEASE are
//! sent on the channel of the task's core, so that the switch hears a request before its
//! withdrawal. All else is sent on the channel of the core that acts, with one exception: an agent
//! that has closed its lock for readers leaves by the channel on which it has closed it. Otherwise
//! STARVE might come after FREE, and close the lock for the next holder's readers.

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

/// News for a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It holds the lock.
    Granted(u32, u32, Mode),
    /// Its request is in no queue: it may ask again.
    Refused(u32, u32),
    /// Others hold the lock, and it waits in the queue of the agent, or for another task of the
    /// machine that does. It may come more than once, and just before the grant.
    Queued(u32, u32),
}

/// Packets for the switch, and news: lock, task, and mode of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Core that acts: the one that a packet has come to, or that of the task.
    pub core: u8,
    /// Packets, in the order in which they are sent. Those of other cores' channels are sent by
    /// these cores.
    pub packets: Vec<Packet>,
    /// News, in the order of the events.
    pub told: Vec<Told>,
}

/// State of a task's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// Before other requests of the machine for that lock, which go first.
    Local,
    /// At the switch, or in the queue of an agent.
    Waits,
    /// As before; the task has given up.
    GivenUp,
    /// Granted.
    Holds,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    mode: Mode,
    progress: Progress,
}

/// A request that was sent to the switch. It is over when its packet is acknowledged and its grant
/// or refusal has come.
#[derive(Clone, Copy, Debug, Default)]
struct AtSwitch {
    acknowledged: bool,
    answered: bool,
}

/// A packet that waits for an agent.
#[derive(Clone, Debug)]
struct Parked {
    packet: Packet,
    since: u64,
}

/// Where a lock's agent is, as its pool knows.
#[derive(Clone, Debug)]
enum Hosted {
    /// Here.
    Here(Agent),
    /// Here until the switch has acknowledged the packet by which it leaves.
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
    /// By the rack whose switch decides, and channel: each switch counts for itself. There from the
    /// first packet on.
    outboxes: BTreeMap<(u8, Origin), Outbox>,
    inboxes: BTreeMap<(u8, Origin), Inbox>,
    hosted: BTreeMap<u32, Hosted>,
    wanted: BTreeMap<(u32, Participant), Wanted>,
    at_switch: BTreeMap<(u32, Participant), AtSwitch>,
    /// Requests that wait for others of the machine, by lock.
    local: BTreeMap<u32, VecDeque<Participant>>,
    /// Locks whose agents, if they are here, may have waiters; all others have none.
    waited_for: BTreeSet<u32>,
    /// Locks whose agents may be absent, with packets that wait for them; no other agents are.
    absent: BTreeSet<u32>,
    nonce: u16,
    starve_at: u64,
}

impl AgentPool {
    /// The pool of a machine, which repeats packets after `repeat_ns` nanoseconds without an
    /// acknowledgement.
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

    /// The pool with homes of locks: those of all machines are the same.
    #[must_use]
    pub fn with_homes(self, homes: Homes) -> Self {
        Self { homes, ..self }
    }

    /// The pool with a switch in each of so many racks.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn with_racks(self, racks: u8) -> Self {
        assert!(racks > 0, "there is a switch");
        Self { racks, ..self }
    }

    /// Key of a channel to the switch that decides on a lock.
    fn channel(&self, lock: u32, origin: Origin) -> (u8, Origin) {
        (rack_of(lock, self.racks), origin)
    }

    fn is_home(&self, lock: u32) -> bool {
        self.homes.is_home(self.machine, lock)
    }

    /// A task asks for a lock that it neither holds nor waits for. On the agent's machine, the
    /// agent decides without the switch.
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
            out.told.push(Told::Queued(lock, task));
        }
    }

    /// The task that holds a lock releases it.
    ///
    /// # Panics
    /// If it does not hold the lock.
    pub fn release(&mut self, lock: u32, task: u32, now: u64, out: &mut Effects) {
        let holds = |wanted: &Wanted| wanted.progress == Progress::Holds;
        let (who, mode) = self.request_of(lock, task, holds).expect("the task holds the lock");
        self.wanted.remove(&(lock, who));
        self.leave(lock, who, mode, now, out);
    }

    /// A task does not wait for a lock any more, and may ask again. Nothing happens if it does not
    /// wait. As published, its RELEASE has the switch free the lock if the agent is not here.
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

    /// Time has passed: repeats packets, refuses what waited too long for an absent agent, and has
    /// agents look for starving writers.
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

    /// Whether the machine has neither requests nor packets under way, nor agents but those that
    /// rest at home.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty()
            && self.at_switch.is_empty()
            && self.outboxes.values().all(Outbox::is_empty)
            && self.hosted.iter().all(|(lock, hosted)| self.rests(*lock, hosted))
    }

    /// Whether no request waits for its answer, and no packet is under way. Tasks may hold locks.
    pub fn is_quiet(&self) -> bool {
        self.wanted.values().all(|wanted| wanted.progress == Progress::Holds)
            && self.at_switch.is_empty()
            && self.outboxes.values().all(Outbox::is_empty)
    }

    /// Agents that are here or leave, but for those that rest, and requests that hold locks or wait
    /// for them.
    pub fn in_use(&self) -> usize {
        let resting =
            self.hosted.iter().filter(|(lock, hosted)| self.rests(**lock, hosted)).count();
        self.hosted.len() - resting + self.wanted.len()
    }

    /// Whether an agent rests.
    fn rests(&self, lock: u32, hosted: &Hosted) -> bool {
        match hosted {
            Hosted::Here(agent) => self.is_home(lock) && agent.is_resting(),
            Hosted::Leaving { .. } | Hosted::Absent { .. } => false,
        }
    }

    /// The agent of a lock, if it is here and not about to leave.
    pub fn agent(&self, lock: u32) -> Option<&Agent> {
        match self.hosted.get(&lock) {
            Some(Hosted::Here(agent)) => Some(agent),
            _ => None,
        }
    }

    /// The machine's state for a recovery (FissLock §5.3, S1). Nothing may happen between it and
    /// [`AgentPool::recover`].
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

    /// Goes on after a recovery, in a new epoch, with the locks that were restored (S2): those that
    /// concern it suffice ([`concerning`](super::recovery::concerning)).
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

    /// Hosts an agent that was restored. Those that waited on their machines wait there now as
    /// well, as far as there is room.
    fn host_restored(&mut self, lock: u32, restored: &Restored, now: u64, out: &mut Effects) {
        let mut agent = restored.agent();
        let surplus = agent.queue.split_off(agent.queue.len().min(MAX_WAITERS));
        self.hosted.insert(lock, Hosted::Here(agent));
        self.note_waiters(lock);
        for Queued { who, mode } in surplus {
            self.refuse(lock, who, mode, now, out);
        }
    }

    /// The request of a task for a lock whose state is asked for, and its mode.
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

    /// Sends a packet of a task: its request, or its RELEASE.
    fn request(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        self.send(packet.who.core(), Traffic::Requests, packet, now, out);
    }

    /// Sends a packet of an agent, or one that is sent on: its channel and number.
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

    /// Asks for the lock for tasks that wait on this machine: the agent if it is here, else the
    /// switch, for one of them at a time.
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
                // As published, the grant of an earlier request of the task was taken for its own.
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

    /// Tells a task of the agent's answer, through the switch if it is on another machine.
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
                out.told.push(Told::Queued(lock, who.task));
                self.waits_at_agent(lock, now, out);
            }
            Admission::Waits => self.waits_at_agent(lock, now, out),
        }
    }

    /// Notes whether the agent of a lock is here and has waiters.
    fn note_waiters(&mut self, lock: u32) {
        if let Some(Hosted::Here(agent)) = self.hosted.get(&lock)
            && !agent.queue.is_empty()
        {
            self.waited_for.insert(lock);
        }
    }

    /// A request waits at the agent, which is here.
    fn waits_at_agent(&mut self, lock: u32, now: u64, out: &mut Effects) {
        self.waited_for.insert(lock);
        match self.preference {
            // Writers are preferred from now on: the switch has to know of one that asked here.
            Preference::Writers => self.look_for_writers(lock, now, out),
            Preference::Readers => {}
        }
    }

    /// Grants the lock to a task of this machine, if it still wants it: whether it does.
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
                out.told.push(Told::Granted(lock, who.task, mode));
            }
            Progress::Holds => {}
        }
        self.answered(lock, who, now, out);
        progress != Progress::GivenUp
    }

    /// A request of this machine was acknowledged without a grant: it is in a queue, and those
    /// behind it wait as well.
    fn queued(&self, lock: u32, who: Participant, out: &mut Effects) {
        let is_answered = |state: &AtSwitch| state.answered;
        if self.at_switch.get(&(lock, who)).is_none_or(is_answered) {
            return;
        }
        let behind = self.local.get(&lock).into_iter().flatten();
        let all = std::iter::once(&who).chain(behind);
        out.told.extend(all.map(|who| Told::Queued(lock, who.task)));
    }

    /// A request of this machine has its answer.
    fn answered(&mut self, lock: u32, who: Participant, now: u64, out: &mut Effects) {
        self.at_switch_is(lock, who, |state| state.answered = true, now, out);
    }

    /// Notes what has become of a request at the switch. When it is over, the next one is sent.
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

/// All requests of a lock.
const fn requests_of(lock: u32) -> std::ops::RangeInclusive<(u32, Participant)> {
    let least = Participant { machine: 0, task: 0, nonce: 0 };
    let most = Participant { machine: u8::MAX, task: u32::MAX, nonce: u16::MAX };
    (lock, least)..=(lock, most)
}

/// Whether a packet has waited too long for its agent.
const fn is_stale(parked: &Parked, now: u64) -> bool {
    now.saturating_sub(parked.since) >= ABSENT_NS
}
