//! Where the switch and the machines are.

use std::collections::BTreeSet;

use lotus_fabric::ids::{Endpoint, LaneId};

use crate::fisslock::capacity::{CapacityError, Fallback, Placement};
use crate::fisslock::cores::{AGENT_CORE, CHANNELS, MAX_CLIENT_CORES};

/// Lanes of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineLanes {
    /// First of the two lanes that the agent's program opens.
    pub agent: Endpoint,
    /// First lane of the clients' cores, on the agent's node; the others follow it.
    pub clients: LaneId,
    /// Number of clients' cores.
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

/// The lanes of the switch and of the machines, and the number of locks.
#[derive(Clone, Debug)]
pub struct Places {
    switch: Endpoint,
    machines: Vec<MachineLanes>,
    locks: u32,
}

impl Places {
    /// A switch, by the first of the two lanes that its program opens, and its machines, which are
    /// numbered as they are listed.
    ///
    /// # Errors
    /// There are more machines, cores or locks than a switch serves.
    pub fn new(
        switch: Endpoint,
        machines: Vec<MachineLanes>,
        locks: u64,
    ) -> Result<Self, CapacityError> {
        let placement = Placement::new(machines.len(), locks, Fallback::None)?;
        let most = machines.iter().map(|machine| machine.cores).max().unwrap_or(0);
        if most > MAX_CLIENT_CORES {
            return Err(CapacityError::Cores(most.into()));
        }
        Ok(Self { switch, machines, locks: placement.on_switch() })
    }

    /// Packet lane of the switch.
    pub const fn switch(&self) -> Endpoint {
        self.switch
    }

    /// Number of machines.
    pub const fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Number of locks.
    pub const fn locks(&self) -> u32 {
        self.locks
    }

    /// Packet lane of a machine's agent.
    ///
    /// # Panics
    /// If there is no such machine.
    pub(super) fn agent(&self, machine: u8) -> Endpoint {
        self.machines[usize::from(machine)].agent
    }

    /// Number of cores of a machine, with its agent's.
    ///
    /// # Panics
    /// If there is no such machine.
    pub(super) fn cores(&self, machine: u8) -> u8 {
        self.machines[usize::from(machine)].cores + 1
    }

    /// Number of channels of the machine that has most.
    pub(super) fn channels(&self) -> u16 {
        let cores = (0..self.machines.len()).map(|machine| self.cores(machine as u8)).max();
        u16::from(cores.unwrap_or(0)) * CHANNELS
    }

    /// Packet lane of a machine's core, if there is such a core.
    pub(super) fn core(&self, machine: u8, core: u8) -> Option<Endpoint> {
        self.machines.get(usize::from(machine))?.core(core)
    }

    /// Core of a machine that has that lane.
    pub(super) fn core_at(&self, machine: u8, at: Endpoint) -> Option<u8> {
        self.machines.get(usize::from(machine))?.core_at(at)
    }

    /// Packet lanes of all machines' cores.
    pub(super) fn all_cores(&self) -> BTreeSet<Endpoint> {
        let lanes = |machine: &MachineLanes| {
            let machine = *machine;
            (AGENT_CORE..=machine.cores).filter_map(move |core| machine.core(core))
        };
        self.machines.iter().flat_map(lanes).collect()
    }
}

/// The lane for messages of recoveries beside a lane for packets.
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

    fn places(machines: u16, cores: u8, locks: u64) -> Result<Places, CapacityError> {
        let machine = |node| MachineLanes { agent: at(node, 0), clients: LaneId(2), cores };
        Places::new(at(0, 0), (1..=machines).map(machine).collect(), locks)
    }

    #[test]
    fn a_switch_has_no_numbers_for_more_machines_and_no_room_for_more_locks() {
        let fits = places(255, 127, 1_680_000).expect("it has");
        assert_eq!((fits.machines(), fits.locks(), fits.channels()), (255, 1_680_000, 256));
        let refused = |machines, cores, locks| {
            places(machines, cores, locks).expect_err("too many").to_string()
        };
        assert_eq!(refused(256, 1, 1), "a FissLock switch serves 1 to 255 machines, not 256");
        assert!(refused(1, 1, 1_680_001).contains("room for 1680000 locks"));
        assert_eq!(refused(1, 128, 1), "a FissLock machine has at most 127 client cores, not 128");
    }

    #[test]
    fn cores_are_lanes_of_their_machine() {
        let places = places(2, 3, 1).expect("few");
        let lanes: Vec<_> = (0..5).map(|core| places.core(1, core)).collect();
        let expected = [at(2, 0), at(2, 2), at(2, 3), at(2, 4)].map(Some);
        assert_eq!(lanes, [&expected[..], &[None]].concat());
        assert_eq!(places.core(2, 0), None, "there are two machines");
        assert_eq!((places.core_at(1, at(2, 3)), places.core_at(0, at(2, 3))), (Some(2), None));
        let all = places.all_cores();
        assert!(all.len() == 8 && all.contains(&at(1, 0)) && all.contains(&at(2, 4)));
        assert!(!all.contains(&at(2, 1)), "for control");
    }
}
