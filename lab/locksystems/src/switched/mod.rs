//! FissLock over a fabric: the switch and the machines as programs, and locks for the machines'
//! lanes.
//!
//! # What it is
//! The protocol of [`crate::fisslock`] with a network, clocks and tasks. The *switch* is a program
//! on one core ([`SwitchProgram`]); on simulated fabrics, the program's node may be declared a
//! switch. Every machine has an *agent's* core ([`AgentProgram`]), which receives requests for the
//! machine's agents and repeats lost packets, and client cores, which take locks through one
//! [`SwitchedLocker`] each. The cores share the machine's pool ([`Machine`]). [`recover`] carries
//! out a recovery from lost machines or from a lost switch.
//!
//! # What it is not
//! The module makes no decisions about locks: those are in [`crate::fisslock`]. Nor does the module
//! detect losses or fence lost nodes: the caller of [`recover`] has done both.
//!
//! # Who sends
//! The switch accepts the packets of a channel in order, and drops packets ahead of their turn. Two
//! lanes sharing a channel would number packets in one order and send them in another. Every lane
//! therefore has its own channels ([`crate::fisslock::cores`]), and only that lane sends there for
//! the first time: if another core queues packets for the channel, the lane is woken to send them.
//! Repetitions are sent by the agent's core; of two copies, the switch takes the first.
//!
//! # Rooms
//! `places`: the lanes of switches and machines; `machine`: the pool of a machine, and its
//! requests; `agent`, `switch`: the programs; `locker`: a lane's locks; `port`: packets sent and
//! received by a lane; `control`: messages of a recovery, with `pages` for long contents;
//! `standstill`: a machine stopped for a recovery; `coordinator`: the steps of a recovery, and when
//! one begins.

mod agent;
mod control;
mod coordinator;
mod locker;
mod machine;
mod pages;
mod places;
mod port;
mod standstill;
mod switch;

use std::time::Duration;

use crate::fisslock::{Homes, Preference, Rules};

pub use agent::AgentProgram;
pub use coordinator::{Recovered, RecoveryError, recover, recover_losses};
pub use locker::{SwitchedHold, SwitchedLocker};
pub use machine::Machine;
pub use places::{MachineLanes, Places};
pub use port::PACKETS;
pub use switch::{Start, SwitchProgram};

/// Options common to the switch and every machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchOptions {
    /// Preference between readers and writers.
    pub preference: Preference,
    /// Machines at which agents stay while their locks are free.
    pub homes: Homes,
    /// Time without an acknowledgement after which a machine repeats packets: a few round trips of
    /// the fabric.
    pub repeat: Duration,
    /// The rules of the protocol: [`Rules::CLOSED`], except to demonstrate the consequences of
    /// other rules.
    pub rules: Rules,
}

impl SwitchOptions {
    /// Options with readers preferred, no homes for agents, packets repeated after `repeat`, and
    /// every hole closed.
    pub const fn repeating_after(repeat: Duration) -> Self {
        let (preference, homes) = (Preference::Readers, Homes::Nowhere);
        Self { preference, homes, repeat, rules: Rules::CLOSED }
    }

    fn repeat_ns(self) -> u64 {
        u64::try_from(self.repeat.as_nanos()).unwrap_or(u64::MAX)
    }
}
