//! FissLock over a fabric: the switch and the machines as programs, and locks for their lanes.
//!
//! # What it is
//! The protocol of [`crate::fisslock`] with a network, clocks and tasks. The *switch* is a program
//! of one core ([`SwitchProgram`]); on simulated fabrics its node may be declared a switch. Each
//! machine has an *agent's* core ([`AgentProgram`]), which hears what others want of the machine's
//! agents and repeats lost packets, and cores of clients, which take locks through a
//! [`SwitchedLocker`] each. All share the machine's pool ([`Machine`]). [`recover`] carries out a
//! recovery from lost machines or from a lost switch.
//!
//! # What it is not
//! It decides nothing about locks: that is in [`crate::fisslock`]. It neither detects losses nor
//! fences the lost: a caller of [`recover`] has done both.
//!
//! # Who sends
//! The switch takes the packets of a channel in order, and drops those ahead of their turn. Two
//! lanes would number their packets in one order and send them in another, so each lane has
//! channels of its own ([`crate::fisslock::cores`]), and alone sends there for the first time: what
//! another core wants sent there, the lane is woken to send. Repetitions are sent by the agent's
//! core; of two copies the switch takes the first.
//!
//! # Rooms
//! `places`: the lanes of all; `machine`: the pool of a machine, and its requests; `agent`,
//! `switch`: the programs; `locker`: a lane's locks; `port`: packets that a lane sends and gets;
//! `control`: messages of a recovery, with `pages` of what is long; `standstill`: a machine that
//! waits for its end; `coordinator`: its steps, and when it begins.

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
