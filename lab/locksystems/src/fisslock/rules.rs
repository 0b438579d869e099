//! The rules of the protocol: as published, and as used here.

/// How the switch treats packet numbers of machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbering {
    /// Numbers are ignored, as in the public code: a repeated packet takes effect twice.
    Ignored,
    /// Numbers up to the largest arrived are repetitions, processed without an update (FissLock
    /// §4.2): an overtaken packet never takes effect.
    Largest,
    /// Only the number after the last is processed; earlier numbers are repetitions, later numbers
    /// are dropped.
    InOrder,
}

/// Settings for the holes of the published protocol; `true` closes the hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Requests have a number, echoed by grants; a grant of an earlier request is answered by
    /// RELEASE. Otherwise such a grant is taken for the grant of the task's present request.
    pub nonces: bool,
    /// A machine has at most one request for a lock at the switch, until the agent has counted the
    /// request; other tasks wait on the machine. At most 255 shared grants of a lock are therefore
    /// in flight, and the 8-bit incarnation cannot wrap.
    pub one_request: bool,
    /// Treatment of repeated and overtaken packets.
    pub numbering: Numbering,
    /// An empty agent starts from the incarnation of its grant, because the Check stage also counts
    /// the first shared request. Otherwise the agent starts from zero.
    pub first_counts: bool,
    /// A pool keeps an agent until the switch has acknowledged the agent's FREE. Otherwise the pool
    /// forgets the agent on sending FREE.
    pub keeps_freed: bool,
    /// The switch answers a repeated packet with the original decision, from a record of the last
    /// [`WINDOW`] decisions of each origin. Otherwise packets sent for the original are lost for
    /// good if they were lost once: a switch that numbers packets in order only acknowledges the
    /// repetition; another one decides again without an update.
    pub replays: bool,
    /// A task that gives up withdraws its request from the queue and awaits the outcome. Otherwise
    /// the task sends RELEASE, forgets the request and may ask again; the switch frees the lock if
    /// the RELEASE comes from the agent's machine and says that no agent has arrived.
    pub withdraws: bool,
}

impl Rules {
    /// The rules of FissLock §4, with the paper's numbers.
    pub const PUBLISHED: Self = Self {
        nonces: false,
        one_request: false,
        numbering: Numbering::Largest,
        first_counts: false,
        keeps_freed: false,
        replays: false,
        withdraws: false,
    };
    /// Rules that preserve mutual exclusion under loss, repetition, delay and reordering of
    /// packets.
    pub const CLOSED: Self = Self {
        nonces: true,
        one_request: true,
        numbering: Numbering::InOrder,
        first_counts: true,
        keeps_freed: true,
        replays: true,
        withdraws: true,
    };
}

/// Preference between readers and writers (FissLock §6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preference {
    /// A reader joins readers although a writer waits, until the agent has set the starvation bit.
    Readers,
    /// No reader joins while a writer waits.
    Writers,
}

/// Machines at which agents stay while their locks are free: FissLock-Local (§7.4), for locks used
/// by one machine more than by others.
///
/// A request from a lock's home is exclusive at the switch, whatever the requested mode. Once the
/// agent is at home, the agent stays there: requests from the home need no packet, and the switch
/// forwards requests from other machines to the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Homes {
    /// Agents are freed together with their locks.
    #[default]
    Nowhere,
    /// Each machine is the home of a contiguous block of locks.
    Blocks {
        /// Number of locks.
        locks: u32,
        /// Number of machines.
        machines: u8,
    },
}

impl Homes {
    /// Returns whether a machine is the home of a lock.
    pub(crate) fn is_home(self, machine: u8, lock: u32) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Blocks { locks, machines } => {
                let home = u64::from(lock) * u64::from(machines) / u64::from(locks.max(1));
                home == u64::from(machine)
            }
        }
    }
}

/// Returns the rack whose switch decides on a lock.
///
/// # Panics
/// If `racks` is 0.
pub const fn rack_of(lock: u32, racks: u8) -> u8 {
    (lock % racks as u32) as u8
}

/// Maximum number of unacknowledged packets of one origin.
pub const WINDOW: u32 = 32;
/// Maximum number of times a request is bounced through the switch because the agent is absent.
pub const MAX_TRIES: u8 = 16;
/// Nanoseconds for which a request is queued for an absent agent after [`MAX_TRIES`] bounces.
pub const ABSENT_NS: u64 = 1_000_000;
/// Nanoseconds between an agent's checks for writers starved by readers.
pub const STARVE_NS: u64 = 100_000;
