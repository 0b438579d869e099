//! The rules of the protocol: as published, and as kept here.

/// How the switch treats the numbers of packets from servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbering {
    /// Numbers are ignored, as in the public code: a repeated packet has its effect twice.
    Ignored,
    /// Numbers up to the largest that arrived are repetitions, which are processed without an
    /// update (FissLock §4.2): a packet that was overtaken never has its effect.
    Largest,
    /// The number after the last is processed, earlier ones are repetitions, later ones dropped.
    InOrder,
}

/// Choices where the published protocol leaves a hole; `true` is the one that closes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Requests have a number, which grants echo; a grant of an earlier request is answered by
    /// RELEASE. Otherwise it is taken for the grant of the task's present request.
    pub nonces: bool,
    /// A machine has one request of a lock at the switch, until the agent has counted it; other
    /// tasks wait on the machine. So at most 255 shared grants of a lock are under way, and the
    /// incarnation, of 8 bits, cannot come round.
    pub one_request: bool,
    /// Treatment of packets that are repeated or overtaken.
    pub numbering: Numbering,
    /// An empty agent starts from the incarnation of its grant, because the Check stage counts the
    /// first shared request too. Otherwise it starts from zero.
    pub first_counts: bool,
    /// A pool keeps an agent until the switch has acknowledged its FREE. Otherwise it forgets the
    /// agent when it sends the packet.
    pub keeps_freed: bool,
    /// The switch answers a repeated packet as it did the first time, from a record of the last
    /// [`WINDOW`] decisions of each origin. Otherwise it acknowledges it, and the packets that the
    /// switch has sent for the first one are lost for good if they were lost once.
    pub replays: bool,
    /// A task that gives up withdraws its request from the queue and awaits what became of it.
    /// Otherwise it sends RELEASE, forgets the request and asks again; the switch frees the lock if
    /// the packet comes from the agent's machine and says that no agent has arrived.
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
    /// Rules that exclude under loss, repetition, delay and reordering of packets.
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

/// Machines at which agents stay while their locks are free: FissLock-Local (§7.4), for locks that
/// one machine uses more than the others.
///
/// A request of a lock's home is exclusive at the switch, whatever its mode is. Once the agent is
/// at home it stays: requests of the home need no packet, and those of others the switch sends to
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Homes {
    /// Agents are freed with their locks.
    #[default]
    Nowhere,
    /// Each machine is the home of a block of locks, in order.
    Blocks {
        /// Number of locks.
        locks: u32,
        /// Number of machines.
        machines: u8,
    },
}

impl Homes {
    /// Whether a machine is the home of a lock.
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

/// Rack whose switch decides on a lock.
///
/// # Panics
/// If there are no racks.
pub const fn rack_of(lock: u32, racks: u8) -> u8 {
    (lock % racks as u32) as u8
}

/// Most packets of one origin that are sent and not acknowledged.
pub const WINDOW: u32 = 32;
/// Most bounces of a request whose agent is absent, through the switch.
pub const MAX_TRIES: u8 = 16;
/// Nanoseconds for which a request is queued for an absent agent after that.
pub const ABSENT_NS: u64 = 1_000_000;
/// Nanoseconds between looks of an agent for writers that readers starve.
pub const STARVE_NS: u64 = 100_000;
