//! Locations of the switches and the machines.
//!
//! Every rack has a switch and a block of the machines. The switch of one rack decides on a lock
//! ([`rack_of`]); machines of other racks reach that switch through their own, with one more hop.

use std::collections::BTreeSet;

use lotus_fabric::ids::{Endpoint, LaneId};

use crate::fisslock::capacity::{CapacityError, Fallback, Placement};
use crate::fisslock::cores::{AGENT_CORE, CHANNELS, MAX_CLIENT_CORES};
use crate::fisslock::rules::rack_of;

/// Lanes of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineLanes {
    /// First of the two lanes opened by the agent's program.
    pub agent: Endpoint,
    /// First lane of the client cores, on the agent's node; the lanes of further cores follow.
    pub clients: LaneId,
    /// Number of client cores.
    pub cores: u8,
}

impl MachineLanes {
    /// Lane of a core.
    fn core(self, core: u8) -> Option<Endpoint> {
        let lane = |before: u8| LaneId(self.clients.0 + u16::from(before));
        match core.checked_sub(AGENT_CORE + 1) {
            None => Some(self.agent),
            Some(before) => {
                (before < self.cores).then(|| Endpoint { lane: lane(before), ..self.agent })
            }
        }
    }

    fn core_at(self, at: Endpoint) -> Option<u8> {
        (AGENT_CORE..=self.cores).find(|core| self.core(*core) == Some(at))
    }
}

/// The lanes of the switches and of the machines, and the number of locks.
#[derive(Clone, Debug)]
pub struct Places {
    switches: Vec<Endpoint>,
    machines: Vec<MachineLanes>,
    locks: u32,
    /// The lane of a coordinator that is not a machine.
    coordinator: Option<Endpoint>,
}

impl Places {
    /// Creates the places. A rack's switch is named by the first of the two lanes opened by the
    /// switch's program. Machines are numbered as listed and spread evenly over the racks, the
    /// first machines in the first rack.
    ///
    /// # Errors
    /// The numbers of machines, racks, cores or locks exceed the capacity of the switches.
    pub fn new(
        switches: Vec<Endpoint>,
        machines: Vec<MachineLanes>,
        locks: u64,
    ) -> Result<Self, CapacityError> {
        let placement = Placement::new(machines.len(), switches.len(), locks, Fallback::None)?;
        let most = machines.iter().map(|machine| machine.cores).max().unwrap_or(0);
        if most > MAX_CLIENT_CORES {
            return Err(CapacityError::Cores(most.into()));
        }
        Ok(Self { switches, machines, locks: placement.on_switch(), coordinator: None })
    }

    /// Adds a coordinator of recoveries that is not a machine.
    #[must_use]
    pub fn with_coordinator(self, lane: Endpoint) -> Self {
        Self { coordinator: Some(lane), ..self }
    }

    /// Number of racks: at least one.
    pub const fn racks(&self) -> u8 {
        // Racks are at most as many as machines.
        self.switches.len() as u8
    }

    /// Packet lane of a rack's switch.
    ///
    /// # Panics
    /// If the rack does not exist.
    pub fn switch(&self, rack: u8) -> Endpoint {
        self.switches[usize::from(rack)]
    }

    /// Rack of a machine.
    pub(super) const fn rack_of(&self, machine: u8) -> u8 {
        (machine as usize * self.switches.len() / self.machines.len()) as u8
    }

    /// Rack whose switch decides on a lock.
    pub(super) const fn home(&self, lock: u32) -> u8 {
        rack_of(lock, self.racks())
    }

    /// Number of locks decided on by the switch of a rack.
    pub(super) const fn locks_at(&self, rack: u8) -> u32 {
        self.locks.saturating_sub(rack as u32).div_ceil(self.racks() as u32)
    }

    /// Packet lane of the switch in a machine's rack.
    pub(super) fn switch_of(&self, machine: u8) -> Endpoint {
        self.switch(self.rack_of(machine))
    }

    /// Number of machines.
    pub const fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Number of locks.
    pub const fn locks(&self) -> u32 {
        self.locks
    }

    /// Returns whether recovery requests from a lane are carried out: the lane is the
    /// coordinator's, or a machine's control lane.
    pub(super) fn may_coordinate(&self, from: Endpoint) -> bool {
        let mut machines = self.machines.iter();
        let is_its = |machine: &MachineLanes| control_lane(machine.agent) == from;
        self.coordinator == Some(from) || machines.any(is_its)
    }

    /// Packet lane of a machine's agent.
    ///
    /// # Panics
    /// If the machine does not exist.
    pub(super) fn agent(&self, machine: u8) -> Endpoint {
        self.machines[usize::from(machine)].agent
    }

    /// Number of cores of a machine, including the agent's core.
    ///
    /// # Panics
    /// If the machine does not exist.
    pub(super) fn cores(&self, machine: u8) -> u8 {
        self.machines[usize::from(machine)].cores + 1
    }

    /// Number of channels of the machine with the most channels.
    pub(super) fn channels(&self) -> u16 {
        let cores = (0..self.machines.len()).map(|machine| self.cores(machine as u8)).max();
        u16::from(cores.unwrap_or(0)) * CHANNELS
    }

    /// Packet lane of a machine's core; `None` if the machine has no such core.
    pub(super) fn core(&self, machine: u8, core: u8) -> Option<Endpoint> {
        self.machines.get(usize::from(machine))?.core(core)
    }

    /// Core of a machine with a given lane.
    pub(super) fn core_at(&self, machine: u8, at: Endpoint) -> Option<u8> {
        self.machines.get(usize::from(machine))?.core_at(at)
    }

    /// Packet lanes of every core in a rack.
    pub(super) fn cores_in(&self, rack: u8) -> BTreeSet<Endpoint> {
        let machines = (0..self.machines.len() as u8).filter(|of| self.rack_of(*of) == rack);
        let lanes = |machine: u8| {
            let machine = self.machines[usize::from(machine)];
            (AGENT_CORE..=machine.cores).filter_map(move |core| machine.core(core))
        };
        machines.flat_map(lanes).collect()
    }
}

/// Returns the lane for recovery messages that accompanies a lane for packets.
pub(super) const fn control_lane(packets: Endpoint) -> Endpoint {
    Endpoint { lane: LaneId(packets.lane.0 + 1), ..packets }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use lotus_fabric::ids::NodeId;

    use super::*;

    fn at(node: u16, lane: u16) -> Endpoint {
        Endpoint { node: NodeId(node), lane: LaneId(lane) }
    }

    fn places(racks: u16, machines: u16, cores: u8, locks: u64) -> Result<Places, CapacityError> {
        let machine = |node| MachineLanes { agent: at(node, 0), clients: LaneId(2), cores };
        let switches = (1000..1000 + racks).map(|node| at(node, 0)).collect();
        Places::new(switches, (1..=machines).map(machine).collect(), locks)
    }

    #[test]
    fn a_switch_has_no_numbers_for_more_machines_and_no_room_for_more_locks() {
        let fits = places(1, 255, 127, 1_680_000).expect("it has");
        assert_eq!((fits.machines(), fits.locks(), fits.channels()), (255, 1_680_000, 256));
        let refused = |machines, cores, locks| {
            places(1, machines, cores, locks).expect_err("too many").to_string()
        };
        assert_eq!(refused(256, 1, 1), "a FissLock switch serves 1 to 255 machines, not 256");
        assert!(refused(1, 1, 1_680_001).contains("room for 1680000 locks"));
        assert_eq!(refused(1, 128, 1), "a FissLock machine has at most 127 client cores, not 128");
    }

    #[test]
    fn machines_coordinate_and_one_that_is_named() {
        let places = places(1, 2, 3, 1).expect("few");
        assert!(places.may_coordinate(control_lane(at(2, 0))) && !places.may_coordinate(at(2, 0)));
        let stranger = at(256, 0);
        assert!(!places.may_coordinate(stranger));
        assert!(places.with_coordinator(stranger).may_coordinate(stranger));
    }

    #[test]
    fn cores_are_lanes_of_their_machine() {
        let places = places(1, 2, 3, 1).expect("few");
        let lanes: Vec<_> = (0..5).map(|core| places.core(1, core)).collect();
        let expected = [at(2, 0), at(2, 2), at(2, 3), at(2, 4)].map(Some);
        assert_eq!(lanes, [&expected[..], &[None]].concat());
        assert_eq!(places.core(2, 0), None, "there are two machines");
        assert_eq!((places.core_at(1, at(2, 3)), places.core_at(0, at(2, 3))), (Some(2), None));
        let all = places.cores_in(0);
        assert!(all.len() == 8 && all.contains(&at(1, 0)) && all.contains(&at(2, 4)));
        assert!(!all.contains(&at(2, 1)), "for control");
    }
    #[test]
    fn racks_have_blocks_of_machines_and_locks_in_turn() {
        let places = places(3, 7, 1, 10).expect("few");
        let racks: Vec<_> = (0..7).map(|machine| places.rack_of(machine)).collect();
        assert_eq!(racks, [0, 0, 0, 1, 1, 2, 2]);
        let homes: Vec<_> = (0..10).map(|lock| places.home(lock)).collect();
        assert_eq!(homes, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        assert_eq!([0, 1, 2].map(|rack| places.locks_at(rack)), [4, 3, 3]);
        assert_eq!(places.switch_of(6), at(1002, 0));
        assert_eq!([0, 1, 2].map(|rack| places.cores_in(rack).len()), [6, 4, 4]);
        let few = super::tests::places(3, 3, 1, 1).expect("few");
        assert_eq!([0, 1, 2].map(|rack| few.locks_at(rack)), [1, 0, 0]);
    }
}
