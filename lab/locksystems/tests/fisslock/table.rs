//! Machines and a switch, with the packets between them in the test's hand.

use std::collections::BTreeMap;

use lotus_locks::Mode;
use lotus_locksystems::fisslock::cores::{AGENT_CORE, core_of};
use lotus_locksystems::fisslock::packet::{Kind, Packet};
use lotus_locksystems::fisslock::pool::{Effects, TaskNotice};
use lotus_locksystems::fisslock::recovery::{concerning, metadata, restore};
use lotus_locksystems::fisslock::{AgentPool, Decider, Homes, Pipeline, Preference, Rules};

/// Channels of a machine: of its agents' core, and of at most three others.
const CHANNELS: u16 = 8;
/// Nanoseconds after which machines repeat packets.
pub const REPEAT_NS: u64 = 20_000;

/// A packet under way: to a machine, or to the switch.
#[derive(Clone, Debug)]
pub struct Flying {
    /// The machine; none is the switch.
    pub to: Option<u8>,
    /// The packet.
    pub packet: Packet,
}

impl Flying {
    /// Whether it is of that kind and goes to the switch.
    pub fn leaves(&self, kind: Kind) -> bool {
        self.to.is_none() && self.packet.kind == kind
    }

    /// Whether it is of that kind and goes to that machine.
    pub fn reaches(&self, machine: u8, kind: Kind) -> bool {
        self.to == Some(machine) && self.packet.kind == kind
    }
}

/// Machines, the switch, and what is between them.
pub struct Table {
    /// Pools by machine.
    pub pools: Vec<AgentPool>,
    /// The switch.
    pub decider: Decider,
    /// The switch as a pipeline, which must decide alike. Only with the closed rules.
    pipeline: Option<Pipeline>,
    /// Packets under way, the oldest first.
    pub wire: Vec<Flying>,
    /// News that tasks have not taken: machine and news.
    pub told: Vec<(u8, TaskNotice)>,
    /// Holders: modes by lock, machine and task.
    pub inside: BTreeMap<(u32, u8, u32), Mode>,
    /// Exclusion that was violated, in a sentence each.
    pub violations: Vec<String>,
    /// Packets that have reached the switch, by kind.
    pub at_switch: BTreeMap<Kind, u32>,
    /// Time in nanoseconds.
    pub now: u64,
}

impl Table {
    /// Machines and a switch of so many locks.
    pub fn new(machines: u8, locks: u32, rules: Rules, preference: Preference) -> Self {
        Self::with_homes(machines, locks, rules, preference, Homes::Nowhere)
    }

    /// The same with homes of locks.
    pub fn with_homes(
        machines: u8,
        locks: u32,
        rules: Rules,
        preference: Preference,
        homes: Homes,
    ) -> Self {
        let pool =
            |machine| AgentPool::new(machine, rules, preference, REPEAT_NS).with_homes(homes);
        let pipeline = (rules == Rules::CLOSED).then(|| Pipeline::new(locks, CHANNELS, preference));
        Self {
            pools: (0..machines).map(pool).collect(),
            decider: Decider::new(locks, rules, preference),
            pipeline,
            wire: Vec::new(),
            told: Vec::new(),
            inside: BTreeMap::new(),
            violations: Vec::new(),
            at_switch: BTreeMap::new(),
            now: 0,
        }
    }

    /// One lock, and readers preferred.
    pub fn small(machines: u8, rules: Rules) -> Self {
        Self::new(machines, 1, rules, Preference::Readers)
    }

    /// Does something with a pool, on its agents' core, and carries out what it asks for.
    pub fn with(&mut self, machine: u8, act: impl FnOnce(&mut AgentPool, u64, &mut Effects)) {
        self.with_core(machine, AGENT_CORE, act);
    }

    /// The same on a core.
    fn with_core(
        &mut self,
        machine: u8,
        core: u8,
        act: impl FnOnce(&mut AgentPool, u64, &mut Effects),
    ) {
        let mut out = Effects { core, ..Effects::default() };
        act(&mut self.pools[usize::from(machine)], self.now, &mut out);
        // Through the bytes, as a network would have it.
        let packets = out
            .packets
            .iter()
            .map(|packet| Packet::decode(&packet.encode()).expect("the bytes of a packet"));
        self.wire.extend(packets.map(|packet| Flying { to: None, packet }));
        for told in out.told {
            if let TaskNotice::Granted(lock, task, mode) = told {
                self.enter(lock, machine, task, mode);
            }
            // A test that asks knows it already.
            if !matches!(told, TaskNotice::Queued(..)) {
                self.told.push((machine, told));
            }
        }
    }

    fn enter(&mut self, lock: u32, machine: u8, task: u32, mode: Mode) {
        let others = self.inside.range((lock, 0, 0)..=(lock, u8::MAX, u32::MAX));
        for (&(_, beside, other), &held) in others {
            if mode != Mode::Shared || held != Mode::Shared {
                self.violations.push(format!(
                    "lock {lock}: {machine}.{task} ({mode:?}) beside {beside}.{other} ({held:?})"
                ));
            }
        }
        self.inside.insert((lock, machine, task), mode);
    }

    /// A task asks for a lock.
    pub fn ask(&mut self, machine: u8, task: u32, lock: u32, mode: Mode) {
        let core = core_of(task);
        self.with_core(machine, core, |pool, now, out| pool.acquire(lock, task, mode, now, out));
    }

    /// A holder releases a lock.
    pub fn release(&mut self, machine: u8, task: u32, lock: u32) {
        assert!(self.inside.remove(&(lock, machine, task)).is_some(), "it holds the lock");
        let core = core_of(task);
        self.with_core(machine, core, |pool, now, out| pool.release(lock, task, now, out));
    }

    /// A waiter gives up.
    pub fn give_up(&mut self, machine: u8, task: u32, lock: u32) {
        let core = core_of(task);
        self.with_core(machine, core, |pool, now, out| pool.give_up(lock, task, now, out));
    }

    /// Delivers a packet.
    pub fn deliver(&mut self, flying: Flying) {
        let Some(machine) = flying.to else {
            *self.at_switch.entry(flying.packet.kind).or_default() += 1;
            let routed = self.decider.process(&flying.packet);
            if let Some(pipeline) = &mut self.pipeline {
                assert_eq!(pipeline.process(&flying.packet), routed, "the pipeline decides alike");
            }
            let to = |(machine, packet)| Flying { to: Some(machine), packet };
            return self.wire.extend(routed.into_iter().map(to));
        };
        let core = flying.packet.destination();
        self.with_core(machine, core, |pool, now, out| pool.receive(flying.packet, now, out));
    }

    /// Recovers from the death of a machine (S1 to S3).
    pub fn recover(&mut self, dead: u8) {
        let survivors = |machine: &u8| *machine != dead;
        let machines = (0..self.pools.len() as u8).filter(survivors);
        let report = |machine: u8| self.pools[usize::from(machine)].report();
        let reports: Vec<_> = machines.clone().map(report).collect();
        let locks = restore(&reports);
        self.inside.retain(|(_, machine, _), _| *machine != dead);
        let at_switch = metadata(&locks);
        self.decider.recover(1, &[dead], &at_switch);
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.recover(1, &[dead], &at_switch);
        }
        for machine in machines {
            let locks = concerning(machine, &locks);
            self.with(machine, |pool, now, out| pool.recover(1, &locks, now, out));
        }
    }

    /// Takes the packets that match out of the network.
    pub fn take(&mut self, is_it: impl Fn(&Flying) -> bool) -> Vec<Flying> {
        let (taken, left) = std::mem::take(&mut self.wire).into_iter().partition(is_it);
        self.wire = left;
        taken
    }

    /// Delivers the packets that match, and returns how many there were.
    pub fn deliver_where(&mut self, is_it: impl Fn(&Flying) -> bool) -> usize {
        let taken = self.take(is_it);
        let count = taken.len();
        taken.into_iter().for_each(|flying| self.deliver(flying));
        count
    }

    /// Delivers all packets in order, until none is under way.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.wire.is_empty() {
                return;
            }
            let first = self.wire.remove(0);
            self.deliver(first);
        }
        panic!("packets go round");
    }

    /// Lets time pass, and has machines repeat packets.
    pub fn pass(&mut self, ns: u64) {
        self.now += ns;
        for machine in 0..self.pools.len() as u8 {
            self.with(machine, |pool, now, out| pool.tick(now, out));
        }
    }

    /// Lets so much time pass that all is repeated and arrives, often.
    pub fn recover_losses(&mut self) {
        for _ in 0..100 {
            self.pass(REPEAT_NS);
            self.settle();
        }
    }

    /// Whether a task holds a lock.
    pub fn holds(&self, machine: u8, task: u32, lock: u32) -> bool {
        self.inside.contains_key(&(lock, machine, task))
    }

    /// Packets of a kind that have reached the switch.
    pub fn count(&self, kind: Kind) -> u32 {
        self.at_switch.get(&kind).copied().unwrap_or(0)
    }

    /// Whether nothing is held, waited for or under way.
    pub fn is_idle(&self) -> bool {
        self.wire.is_empty() && self.pools.iter().all(AgentPool::is_idle)
    }
}
