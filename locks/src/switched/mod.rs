//! FissLock over a fabric: the switch and the machines as programs, and locks for their lanes.
//!
//! # What it is
//! The protocol of [`crate::fisslock`] with a network, clocks and tasks. The *switch* is a program
//! of one core ([`SwitchProgram`]); on simulated fabrics its node may be declared a switch. Each
//! machine has one *agent's* core ([`AgentProgram`]) with the lane for all packets of the machine.
//! The lanes of a machine share its pool ([`Machine`]); a lane takes locks through a
//! [`SwitchedLocker`]. [`recover`] carries out a recovery from lost machines or from a lost switch.
//!
//! # What it is not
//! It decides nothing about locks: that is in [`crate::fisslock`]. It neither detects losses nor
//! fences the lost: a caller of [`recover`] has done both.
//!
//! # Why one lane sends for a machine
//! The switch takes the packets of an origin in order, and drops those ahead of their turn. Two
//! lanes would number their packets in one order and send them in another.
//!
//! # Rooms
//! `machine`: the pool of a machine, and its requests; `agent`, `switch`: the programs; `locker`: a
//! lane's locks; `inbox`: packets that come to a lane; `control`: messages of a recovery, with
//! `pages` of what is long; `standstill`: a machine that waits for its end; `coordinator`: its
//! steps, and when it begins.

mod agent;
mod control;
mod coordinator;
mod inbox;
mod locker;
mod machine;
mod pages;
mod standstill;
mod switch;

use std::time::Duration;

use lotus_fabric::ids::{Endpoint, LaneId};

use crate::fisslock::capacity::{CapacityError, Fallback, Placement};
use crate::fisslock::{Homes, Preference, Rules};

pub use agent::AgentProgram;
pub use coordinator::{Recovered, RecoveryError, recover, recover_losses};
pub use locker::{SwitchedHold, SwitchedLocker};
pub use machine::Machine;
pub use switch::{Start, SwitchProgram};

/// The lanes of the switch and of the machines, and the number of locks.
#[derive(Clone, Debug)]
pub struct Places {
    switch: Endpoint,
    machines: Vec<Endpoint>,
    locks: u32,
    /// The lane of a coordinator that is no machine.
    coordinator: Option<Endpoint>,
}

impl Places {
    /// A switch and its machines: for each the first of two lanes that its program opens. The
    /// machines are numbered as they are listed.
    ///
    /// # Errors
    /// There are more machines or locks than a switch serves.
    pub fn new(
        switch: Endpoint,
        machines: Vec<Endpoint>,
        locks: u64,
    ) -> Result<Self, CapacityError> {
        let placement = Placement::new(machines.len(), locks, Fallback::None)?;
        Ok(Self { switch, machines, locks: placement.on_switch(), coordinator: None })
    }

    /// The same places, with a coordinator of recoveries that is none of the machines.
    #[must_use]
    pub fn with_coordinator(self, lane: Endpoint) -> Self {
        Self { coordinator: Some(lane), ..self }
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

    /// Whether what a lane asks for a recovery is done: that of the coordinator, and the control
    /// lanes of the machines.
    fn may_coordinate(&self, from: Endpoint) -> bool {
        let mut machines = self.machines.iter();
        self.coordinator == Some(from) || machines.any(|packets| control_lane(*packets) == from)
    }

    /// Packet lane of a machine, if there is such a machine.
    fn machine(&self, number: u8) -> Option<Endpoint> {
        self.machines.get(usize::from(number)).copied()
    }
}

/// The lane for messages of recoveries beside a lane for packets.
const fn control_lane(packets: Endpoint) -> Endpoint {
    Endpoint { lane: LaneId(packets.lane.0 + 1), ..packets }
}

/// Choices that the switch and all machines have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchOptions {
    /// Preference between readers and writers.
    pub preference: Preference,
    /// Machines at which agents stay while their locks are free.
    pub homes: Homes,
    /// Time without an acknowledgement after which a machine repeats its packets: some round trips
    /// of the fabric.
    pub repeat: Duration,
    /// The rules of the protocol: [`Rules::CLOSED`], but for showing what others lead to.
    pub rules: Rules,
}

impl SwitchOptions {
    /// Readers are preferred, agents have no homes, packets are repeated after `repeat`, and all
    /// holes are closed.
    pub const fn repeating_after(repeat: Duration) -> Self {
        let (preference, homes) = (Preference::Readers, Homes::Nowhere);
        Self { preference, homes, repeat, rules: Rules::CLOSED }
    }

    fn repeat_ns(self) -> u64 {
        u64::try_from(self.repeat.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use lotus_fabric::ids::NodeId;

    use super::*;

    #[test]
    fn a_switch_has_no_numbers_for_more_machines_and_no_room_for_more_locks() {
        let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
        let places = |machines, locks| Places::new(at(0), (1..=machines).map(at).collect(), locks);
        let fits = places(255, 1_680_000).expect("it has");
        assert_eq!((fits.machines(), fits.locks()), (255, 1_680_000));
        assert_eq!(fits.machine(254), Some(at(255)));
        assert!(fits.may_coordinate(control_lane(at(255))) && !fits.may_coordinate(at(255)));
        let stranger = at(256);
        assert!(!fits.may_coordinate(stranger));
        assert!(fits.with_coordinator(stranger).may_coordinate(stranger));
        let refused = |machines, locks| places(machines, locks).expect_err("too many").to_string();
        assert_eq!(refused(256, 1), "a FissLock switch serves 1 to 255 machines, not 256");
        assert!(refused(1, 1_680_001).contains("room for 1680000 locks"));
    }
}
