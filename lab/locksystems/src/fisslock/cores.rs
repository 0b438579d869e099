//! Cores of a machine: the channels on which cores send, and the core to which each packet goes.
//!
//! Core [`AGENT_CORE`] receives requests for the machine's agents. Every other core runs tasks: the
//! core sends their requests and receives their grants (FissLock §7.1). A core has two channels
//! with separate numbering: the channel of *requests* carries ACQUIRE and RELEASE of the core's
//! tasks, the channel of *agents* every other packet. An agent thus never waits for window space
//! behind requests, because some requests wait for an agent before they are acknowledged.
//!
//! The agents' core repeats the packets of every channel, and receives the packets that result from
//! a repetition. A task's core may therefore end before its packets are acknowledged.

use super::packet::{Kind, Origin, Packet, Participant};

/// Core that receives requests for the agents of a machine.
pub const AGENT_CORE: u8 = 0;
/// Maximum number of cores of a machine: 8 bits name a channel.
pub const MAX_CORES: u8 = 128;
/// Maximum number of client cores of a machine.
pub const MAX_CLIENT_CORES: u8 = MAX_CORES - 1;
/// Number of channels of a core.
pub const CHANNELS: u16 = 2;
/// Bits of a task's number without the core.
const TASK_BITS: u32 = 24;
/// Maximum number of tasks of a core.
pub const MAX_TASKS: u32 = 1 << TASK_BITS;

/// Traffic class of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// ACQUIRE and RELEASE of tasks.
    Requests = 0,
    /// Packets of agents, and packets forwarded to agents.
    Agents = 1,
}

/// Returns the task with a number, from 0, on a core.
///
/// # Panics
/// If the number is not below [`MAX_TASKS`].
pub const fn task_of(core: u8, number: u32) -> u32 {
    assert!(number < MAX_TASKS, "a core has fewer tasks");
    (core as u32) << TASK_BITS | number
}

/// Core of a task.
pub const fn core_of(task: u32) -> u8 {
    (task >> TASK_BITS) as u8
}

impl Participant {
    /// Core of the task.
    pub const fn core(self) -> u8 {
        core_of(self.task)
    }
}

impl Origin {
    /// A channel of a core.
    pub const fn of(machine: u8, core: u8, traffic: Traffic) -> Self {
        debug_assert!(core < MAX_CORES);
        Self { machine, channel: core * CHANNELS as u8 + traffic as u8 }
    }

    /// Core that sends.
    pub const fn core(self) -> u8 {
        self.channel / CHANNELS as u8
    }
}

impl Packet {
    /// Core to which the switch sends the packet, on the machine named by the decision: answers go
    /// to the sender, grants and refusals to the task's core, requests to the agents' core.
    pub const fn destination(&self) -> u8 {
        match self.kind {
            _ if self.repeated => AGENT_CORE,
            Kind::Ack => self.origin.core(),
            _ if self.refused => self.origin.core(),
            Kind::Grant | Kind::Refuse => self.who.core(),
            Kind::Acquire | Kind::Release | Kind::Free | Kind::Starve => AGENT_CORE,
        }
    }

    /// Core that sends the packet when the core `acting` acts: the channel's core for a first
    /// transmission, otherwise the acting core. Acknowledgements have no channel.
    pub(crate) const fn sender(&self, acting: u8) -> u8 {
        match self.kind {
            Kind::Ack => acting,
            _ if self.repeated => acting,
            _ => self.origin.core(),
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use lotus_locks::word::Mode;

    #[test]
    fn a_core_has_two_channels_and_tasks_of_its_own() {
        let channels =
            |core| [Traffic::Requests, Traffic::Agents].map(|of| Origin::of(1, core, of).channel);
        assert_eq!((channels(0), channels(3), channels(127)), ([0, 1], [6, 7], [254, 255]));
        for core in [0, 3, 127] {
            assert_eq!(Origin::of(1, core, Traffic::Agents).core(), core);
            assert_eq!(core_of(task_of(core, MAX_TASKS - 1)), core);
        }
    }

    #[test]
    fn answers_go_to_the_sender_and_grants_to_the_task() {
        let who = Participant { machine: 1, task: task_of(5, 9), nonce: 0 };
        let origin = Origin::of(2, 3, Traffic::Agents);
        let to = |kind, refused| {
            let packet = Packet::new(kind, 0, who, Mode::Shared);
            Packet { origin, refused, ..packet }.destination()
        };
        assert_eq!((to(Kind::Ack, false), to(Kind::Grant, true), to(Kind::Free, true)), (3, 3, 3));
        assert_eq!((to(Kind::Grant, false), to(Kind::Refuse, false)), (5, 5));
        assert_eq!(to(Kind::Acquire, false), AGENT_CORE);
        assert_eq!(to(Kind::Release, false), AGENT_CORE);
        let grant =
            Packet { origin, repeated: true, ..Packet::new(Kind::Grant, 0, who, Mode::Shared) };
        assert_eq!(
            (grant.destination(), grant.sender(0)),
            (AGENT_CORE, 0),
            "the task's may be over"
        );
    }
}
