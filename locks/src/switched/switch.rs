//! The switch as a program: the pipeline for packets, and its control plane for recoveries.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use lotus_fabric::exec::Executor;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::{Fabric, FabricError};

use super::SwitchOptions;
use super::agent::{SERVICE, open_lane};
use super::control::{ControlRequest, encode_done};
use super::places::{Places, control_lane};
use super::port::{Port, Relay};
use crate::fisslock::report::Locks;
use crate::fisslock::{Decider, Packet, Pipeline, Rules};

/// Beginning of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// No machine has asked for a lock before: all are free.
    First,
    /// It was there before, and has lost its state: it drops all packets until a recovery has told
    /// it what is held.
    Again,
}

/// What decides on packets: the pipeline, which has the closed rules only, or for others the table.
enum Deciding {
    Pipeline(Box<Pipeline>),
    Table(Decider),
}

impl Deciding {
    fn new(locks: u32, channels: u16, options: SwitchOptions) -> Self {
        let SwitchOptions { preference, rules, .. } = options;
        match rules == Rules::CLOSED {
            true => Self::Pipeline(Box::new(Pipeline::new(locks, channels, preference))),
            false => Self::Table(Decider::new(locks, rules, preference)),
        }
    }

    fn process(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        match self {
            Self::Pipeline(pipeline) => pipeline.process(packet),
            Self::Table(decider) => decider.process(packet),
        }
    }

    fn recover(&mut self, epoch: u8, dead: &[u8], locks: &Locks) {
        match self {
            Self::Pipeline(pipeline) => pipeline.recover(epoch, dead, locks),
            Self::Table(decider) => decider.recover(epoch, dead, locks),
        }
    }
}

/// State of the switch, which its control plane rewrites.
struct SwitchState {
    /// Its locks have numbers of their own: every so many of all, as there are racks.
    deciding: Deciding,
    places: Places,
    rack: u8,
    /// Tells one life of the switch from another.
    life: u64,
    /// Epoch of the last recovery; none before the first one of a switch that has lost its state.
    epoch: Option<u32>,
}

impl SwitchState {
    /// Decides on a packet of a lock of this switch: the machines that packets go to.
    fn process(&mut self, packet: Packet) -> Vec<(u8, Packet)> {
        if self.epoch.is_none() {
            return Vec::new();
        }
        let (lock, racks) = (packet.lock, u32::from(self.places.racks()));
        let mut routed = self.deciding.process(&Packet { lock: lock / racks, ..packet });
        routed.iter_mut().for_each(|(_, packet)| packet.lock = lock);
        routed
    }

    /// Begins an epoch: whether it has, now or before. A request for an earlier life is late: the
    /// machines have gone on since.
    fn rewrite(&mut self, epoch: u32, life: u64, dead: &[u8], locks: &Locks) -> bool {
        let is_known =
            |lock: &u32| *lock < self.places.locks() && self.places.home(*lock) == self.rack;
        let is_known = locks.keys().all(is_known);
        if life != self.life || !is_known || self.epoch.is_some_and(|later| epoch < later) {
            return false;
        }
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            let racks = u32::from(self.places.racks());
            let own = locks.iter().map(|(lock, restored)| (lock / racks, restored.clone()));
            self.deciding.recover(epoch as u8, dead, &own.collect());
        }
        true
    }
}

/// The program of the switch's core.
pub struct SwitchProgram {
    state: Rc<RefCell<SwitchState>>,
    places: Places,
    rack: u8,
    /// For its machines.
    machines: Port,
    /// For the other switches.
    switches: Port<Relay>,
    control: Rpc,
}

impl SwitchProgram {
    /// Opens the lanes of a rack's switch, the one of its place and the next.
    ///
    /// # Errors
    /// The fabric refuses.
    ///
    /// # Panics
    /// If there is no such rack.
    pub fn open(
        rack: u8,
        start: Start,
        places: &Places,
        options: SwitchOptions,
        executor: &mut Executor,
        fabric: &dyn Fabric,
    ) -> Result<Self, FabricError> {
        let (at, cores) = (places.switch(rack), places.cores_in(rack));
        let others: Vec<_> = (0..places.racks()).map(|rack| places.switch(rack)).collect();
        let lane = Rpc::new(open_lane(at, executor, fabric)?);
        let machines = Port::of(lane.clone(), None, move |from| cores.contains(&from));
        let switches = Port::of(lane, None, move |from| others.contains(&from));
        let control = Rpc::new(open_lane(control_lane(at), executor, fabric)?);
        let state = Rc::new(RefCell::new(SwitchState {
            deciding: Deciding::new(places.locks_at(rack), places.channels(), options),
            places: places.clone(),
            rack,
            life: executor.handle().env().begin_counting(),
            epoch: (start == Start::First).then_some(0),
        }));
        let asked = Rc::clone(&state);
        control.serve(
            SERVICE,
            Box::new(move |responder, bytes| {
                let mut state = asked.borrow_mut();
                match ControlRequest::decode(bytes) {
                    Some(ControlRequest::Life) => responder.respond(&state.life.to_le_bytes()),
                    Some(ControlRequest::Rewrite { epoch, life, dead, locks }) => {
                        let is_done = state.rewrite(epoch, life, &dead, &locks);
                        responder.respond(&encode_done(is_done));
                    }
                    Some(ControlRequest::Stop { .. } | ControlRequest::Resume { .. }) | None => {}
                }
            }),
        );
        Ok(Self { state, places: places.clone(), rack, machines, switches, control })
    }

    /// The control plane's lane.
    pub const fn control(&self) -> &Rpc {
        &self.control
    }

    /// Processes packets for ever.
    pub async fn run(self) {
        poll_fn(|_| {
            self.machines.read_here();
            self.switches.read_here();
            for packet in self.machines.take() {
                match self.places.home(packet.lock) {
                    home if home == self.rack => self.decide(packet),
                    home => self.switches.send(self.places.switch(home), &Relay::Up(packet)),
                }
            }
            for relay in self.switches.take() {
                match relay {
                    // Others are not for this switch.
                    Relay::Up(packet) if self.places.home(packet.lock) == self.rack => {
                        self.decide(packet);
                    }
                    Relay::Up(_) => {}
                    Relay::Down(machine, packet) => self.deliver(machine, &packet),
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Decides on a packet of one of its locks.
    fn decide(&self, packet: Packet) {
        let routed = self.state.borrow_mut().process(packet);
        // A packet may name any machine as that of its task.
        let is_there = |(machine, _): &(u8, _)| usize::from(*machine) < self.places.machines();
        for (machine, packet) in routed.into_iter().filter(is_there) {
            let rack = self.places.rack_of(machine);
            if rack == self.rack {
                self.deliver(machine, &packet);
            } else {
                self.switches.send(self.places.switch(rack), &Relay::Down(machine, packet));
            }
        }
    }

    /// Sends a packet to a machine, if it is in this rack.
    fn deliver(&self, machine: u8, packet: &Packet) {
        let is_here = self.places.rack_of(machine) == self.rack;
        let core = self.places.core(machine, packet.destination());
        if let Some(to) = core.filter(|_| is_here) {
            self.machines.send(to, packet);
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

    use super::*;
    use crate::fisslock::packet::{Kind, Origin, Participant};
    use crate::fisslock::recovery::Restored;
    use crate::switched::MachineLanes;
    use crate::word::Mode;

    /// Two racks of a machine each, and five locks.
    fn places() -> Places {
        let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
        let machine = |node| MachineLanes { agent: at(node), clients: LaneId(2), cores: 1 };
        Places::new(vec![at(8), at(9)], vec![machine(0), machine(1)], 5).expect("few")
    }

    fn state(epoch: Option<u32>) -> SwitchState {
        SwitchState {
            deciding: Deciding::new(2, 4, SwitchOptions::repeating_after(Duration::ZERO)),
            places: places(),
            rack: 1,
            life: 7,
            epoch,
        }
    }

    fn held(switch: &SwitchState) -> Option<bool> {
        match &switch.deciding {
            Deciding::Pipeline(pipeline) => Some(pipeline.lock(0).held),
            Deciding::Table(_) => None,
        }
    }

    fn request(epoch: u8, sequence: u32) -> Packet {
        let who = Participant { machine: 1, task: 1, nonce: 1 };
        let origin = Origin { machine: 1, channel: 0 };
        Packet { epoch, sequence, origin, ..Packet::new(Kind::Acquire, 1, who, Mode::Exclusive) }
    }

    #[test]
    fn a_switch_that_has_lost_its_state_grants_nothing_before_a_recovery() {
        let mut switch = state(None);
        assert_eq!(switch.process(request(0, 1)), []);
        assert!(switch.rewrite(5, 7, &[], &Locks::new()));
        assert_eq!(switch.process(request(0, 1)), [], "of an earlier epoch");
        assert_eq!(switch.process(request(5, 1)).len(), 1);
    }

    #[test]
    fn a_rewrite_that_comes_late_or_again_changes_nothing() {
        let mut switch = state(Some(0));
        assert!(switch.rewrite(2, 7, &[], &Locks::new()));
        assert_eq!(switch.process(request(2, 1)).len(), 1);
        assert_eq!(held(&switch), Some(true));
        assert!(switch.rewrite(2, 7, &[], &Locks::new()), "it is so");
        assert!(!switch.rewrite(1, 7, &[], &Locks::new()), "an earlier recovery");
        assert!(!switch.rewrite(3, 6, &[], &Locks::new()), "an earlier life");
        assert_eq!(held(&switch), Some(true), "it was not rewritten");
    }
    #[test]
    fn a_switch_counts_its_own_locks_and_is_told_of_no_others() {
        let who = Participant { machine: 0, task: 1, nonce: 1 };
        let holders = BTreeSet::from([who]);
        let mode = Mode::Exclusive;
        let restored = Restored { mode, agent_at: 0, holders, waiters: Vec::new() };
        let told = |lock| Locks::from([(lock, restored.clone())]);
        let mut switch = state(Some(0));
        for (epoch, lock) in [(1, 0), (2, 4), (3, 5), (4, 7)] {
            assert!(!switch.rewrite(epoch, 7, &[], &told(lock)), "lock {lock} is none of its own");
        }
        assert!(switch.rewrite(5, 7, &[], &told(3)), "its second");
        assert_eq!(held(&switch), Some(false));
        let routed = switch.process(Packet { lock: 3, ..request(5, 1) });
        assert_eq!(routed.len(), 1);
        assert_eq!((routed[0].0, routed[0].1.lock), (0, 3), "for the agent, by the lock's number");
    }
}
