//! The crash matrix: every fault point, at each of its places, with every involved node struck once
//! by a crash and once by a pause.
//!
//! # What it is
//! [`FaultPoint`] lists the steps; [`concerns`] names the roles that may be struck at a step, or
//! the reason against a strike. Both lists are total, so [`all`] omits no case without a reason
//! (I157). A [`Coordinate`] is one way to strike; its [`scenario`](Coordinate::scenario) is a small
//! cluster for a few milliseconds, judged like every run.
//!
//! # What counts
//! A run without the strike proves nothing; if no run has the strike, the result is
//! [`Cell::NoRun`].
//!
//! # What it is not
//! A random search: the swarm ([`crate::campaigns::swarm`]) finds combinations that no list
//! foresees.

mod on_memory;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lotus_benchmarks::config::{Inline, LockWait, Locks, Routing, Timestamps};
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MemoryFate, Rates, Scheduled, When};
use lotus_points::{Family, FaultPoint, Pieces, Place};

use crate::drive::run::{Budget, run};
use crate::scenario::authority::AuthorityDelays;
use crate::scenario::format::{Load, Network, Scenario, ScenarioError, Topology, Workload};
use crate::scenario::lives::Lives;
use crate::scenario::strike::{Strike, StrikeFault, Victim};
use crate::verdict::Violation;

/// Role of a struck node in the step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Compute node that runs the transaction.
    Coordinator,
    /// Compute node that grants or hands over the locks.
    LockOwner,
    /// Compute node that receives the shard's locks, or a lock on a memory node.
    Receiver,
    /// Compute node that survives a loss and carries out the recovery.
    Recoverer,
    /// Memory node with the primary, which serves reads.
    PrimaryMemory,
    /// Memory node with a backup.
    BackupMemory,
    /// Compute node that serves timestamps, or is about to.
    Oracle,
}

impl Role {
    /// All roles, in the order in which pairs of them are named.
    pub const ALL: &[Self] = &[
        Self::Coordinator,
        Self::LockOwner,
        Self::Receiver,
        Self::Recoverer,
        Self::PrimaryMemory,
        Self::BackupMemory,
        Self::Oracle,
    ];

    /// Name in tables and coordinates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::LockOwner => "lock-owner",
            Self::Receiver => "receiver",
            Self::Recoverer => "recoverer",
            Self::PrimaryMemory => "primary",
            Self::BackupMemory => "backup",
            Self::Oracle => "oracle",
        }
    }
}

const FREE: &str = "no lock is asked for yet";
const DRY: &str = "locks touch no memory node";
const OVER: &str = "everything is visible on all replicas";
const DRAWN: &str = "its timestamp is drawn, or it needs none";
const DEAD: &str = "who ran the transaction is dead already, or not concerned";
const OWN_FAMILY: &str = "that is a step of another sequence";
const NO_MEMORY: &str = "no memory node is asked";
const PROCESSES: &str = "processes take that step: `lotus cluster matrix` strikes there";
const ALONE: &str = "nobody but who passes has a part in it";

/// Checks that a strike on this role at this point makes sense.
///
/// # Errors
/// The reason why it makes no sense.
pub fn concerns(point: FaultPoint, role: Role) -> Result<(), &'static str> {
    match point.family() {
        Family::Transaction => concerns_transaction(point, role),
        Family::MemoryLock => on_memory::concerns_use(point, role),
        Family::LockReset => match role {
            Role::Recoverer | Role::LockOwner | Role::PrimaryMemory | Role::BackupMemory => Ok(()),
            Role::Coordinator => Err(DEAD),
            Role::Receiver | Role::Oracle => Err(OWN_FAMILY),
        },
        Family::Membership => match role {
            Role::Recoverer | Role::LockOwner | Role::PrimaryMemory | Role::BackupMemory => Ok(()),
            Role::Coordinator => Err(DEAD),
            Role::Receiver | Role::Oracle => Err(OWN_FAMILY),
        },
        Family::Recovery => match role {
            Role::Recoverer | Role::LockOwner | Role::PrimaryMemory | Role::BackupMemory => Ok(()),
            Role::Coordinator => Err(DEAD),
            Role::Receiver | Role::Oracle => Err(OWN_FAMILY),
        },
        Family::MemoryLoss => match role {
            Role::Recoverer | Role::LockOwner | Role::PrimaryMemory | Role::BackupMemory => Ok(()),
            Role::Coordinator => Err("whoever commits passes these steps as a survivor does"),
            Role::Receiver | Role::Oracle => Err(OWN_FAMILY),
        },
        Family::Oracle => match (point, role) {
            (FaultPoint::Turn, Role::Coordinator) => Ok(()),
            (FaultPoint::Turn, Role::Oracle) => {
                Err("who passes has turned to it, and asks it next")
            }
            (_, Role::Oracle) => Ok(()),
            (FaultPoint::OracleFence, Role::PrimaryMemory | Role::BackupMemory) => Ok(()),
            (_, Role::PrimaryMemory | Role::BackupMemory) => Err(NO_MEMORY),
            (_, Role::Coordinator | Role::Recoverer) => Err(ALONE),
            (_, Role::LockOwner | Role::Receiver) => Err(OWN_FAMILY),
        },
        Family::Clearing => match role {
            Role::Recoverer | Role::LockOwner | Role::PrimaryMemory | Role::BackupMemory => Ok(()),
            Role::Coordinator => {
                Err("whoever writes the table passes these steps as a member does")
            }
            Role::Receiver | Role::Oracle => Err(OWN_FAMILY),
        },
        Family::Start | Family::Snapshot | Family::Rest => Err(PROCESSES),
        Family::Upkeep => match (point, role) {
            (_, Role::Coordinator | Role::LockOwner) => Ok(()),
            (
                FaultPoint::TrimReleased | FaultPoint::PurgeReleased,
                Role::PrimaryMemory | Role::BackupMemory,
            ) => Err(OVER),
            (_, Role::PrimaryMemory | Role::BackupMemory) => Ok(()),
            (_, Role::Oracle) => Err(DRAWN),
            (_, Role::Receiver | Role::Recoverer) => Err(OWN_FAMILY),
        },
        Family::HandOver => match (point, role) {
            (_, Role::LockOwner) => Ok(()),
            (FaultPoint::AskedToYield, Role::Receiver) => Err("it has no part in that"),
            (_, Role::Receiver) => Ok(()),
            (FaultPoint::Drained | FaultPoint::Given, Role::PrimaryMemory | Role::BackupMemory) => {
                Ok(())
            }
            (_, Role::PrimaryMemory | Role::BackupMemory) => Err(NO_MEMORY),
            (_, Role::Coordinator) => Err("it learns of the new owner as it learns of any"),
            (_, Role::Recoverer | Role::Oracle) => Err(OWN_FAMILY),
        },
    }
}

fn concerns_transaction(point: FaultPoint, role: Role) -> Result<(), &'static str> {
    use FaultPoint as P;
    match role {
        Role::Coordinator => Ok(()),
        Role::LockOwner if point == P::Begin => Err(FREE),
        Role::LockOwner => Ok(()),
        Role::PrimaryMemory | Role::BackupMemory => match point {
            P::Begin | P::LocksRequested | P::LocksGranted => Err(DRY),
            P::LockAwaited | P::WaitEnded => Err(DRY),
            P::LocksReleased | P::UnlockSent | P::UnlockAcknowledged => Err(OVER),
            _ => Ok(()),
        },
        Role::Oracle => match point {
            P::CellsPosted | P::CellsLanded | P::TimestampDrawn => Ok(()),
            _ => Err(DRAWN),
        },
        Role::Receiver | Role::Recoverer => Err(OWN_FAMILY),
    }
}

/// Whether a step has a piece at this place, in any cluster of the matrix.
fn exists(point: FaultPoint, place: Place, outcome: RecoveryOutcome) -> bool {
    let two = match point {
        // One of three memory nodes is lost, so two pieces remain.
        FaultPoint::CarryOver => true,
        // A commit that goes forward is repaired on the two backups first.
        FaultPoint::Repair => outcome == RecoveryOutcome::Forward,
        _ => false,
    };
    !(two && place == Place::Middle) && Place::of(point.pieces()).contains(&place)
}

/// Outcome of the recovered transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecoveryOutcome {
    /// Undone.
    Back,
    /// Finished: the transaction is already visible somewhere.
    Forward,
}

impl RecoveryOutcome {
    /// Outcomes that make a difference to a step.
    fn of(point: FaultPoint) -> &'static [Self] {
        use FaultPoint as P;
        match point {
            P::DecisionMade | P::DecisionRecorded | P::Repair | P::Done => {
                &[Self::Back, Self::Forward]
            }
            _ => &[Self::Back],
        }
    }
}

/// Manner of a strike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Manner {
    /// Nodes end.
    Crash,
    /// Compute nodes pause for three leases; memory nodes are out of reach until the storm is over.
    Pause,
}

/// One way to strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coordinate {
    /// Step at which the strike happens.
    pub point: FaultPoint,
    /// Piece of the step after which the strike happens.
    pub place: Place,
    /// Crash or pause.
    pub manner: Manner,
    /// Node that is struck.
    pub role: Role,
    /// Second node, struck at the same moment.
    pub also: Option<Role>,
    /// Outcome of the recovered transaction, for steps of recovery.
    pub outcome: RecoveryOutcome,
    /// Locks of the transactions.
    pub locks: Locks,
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.point.name())?;
        if self.point.pieces() == Pieces::Several {
            write!(f, "/{}", self.place.name())?;
        }
        let manner = match self.manner {
            Manner::Crash => "crash",
            Manner::Pause => "pause",
        };
        write!(f, "/{manner}/{}", self.role.name())?;
        if let Some(also) = self.also {
            write!(f, "+{}", also.name())?;
        }
        if self.outcome == RecoveryOutcome::Forward {
            f.write_str("/forward")?;
        }
        on_memory::name(self.locks).map_or(Ok(()), |name| write!(f, "/{name}"))
    }
}

/// Every point that a simulated cluster passes.
pub fn points() -> impl Iterator<Item = FaultPoint> {
    let simulated = |point: &FaultPoint| !point.family().is_of_processes();
    FaultPoint::ALL.iter().copied().filter(simulated)
}

/// Every coordinate: point by point, each role alone by a crash and by a pause, and every pair of
/// roles by a crash.
pub fn all() -> Vec<Coordinate> {
    let mut all = Vec::new();
    for point in points() {
        for locks in on_memory::systems(point).iter().copied() {
            for outcome in RecoveryOutcome::of(point).iter().copied() {
                let places = Place::ALL.iter().copied();
                for place in places.filter(|place| exists(point, *place, outcome)) {
                    let (manner, role, also) = (Manner::Crash, Role::Coordinator, None);
                    let one = Coordinate { point, place, manner, role, also, outcome, locks };
                    all.extend(one.with_roles());
                }
            }
        }
    }
    all
}

/// Checks that two roles, in the order of [`Role::ALL`], may be struck at once.
///
/// # Errors
/// The reason against striking both.
pub fn both(point: FaultPoint, one: Role, other: Role) -> Result<(), &'static str> {
    match (one, other) {
        (Role::LockOwner, Role::Oracle) => Err("in the clusters of the matrix they are one node"),
        (Role::PrimaryMemory, Role::BackupMemory) if point.family() == Family::MemoryLoss => {
            Err("no copy would be left")
        }
        _ => Ok(()),
    }
}

/// A single coordinate for each point: a crash of its first role in [`Role::ALL`], at its first
/// place, with a different kind of locks than at the previous point.
pub fn short() -> Vec<Coordinate> {
    let all = all();
    let first = |(turn, point)| {
        let systems = on_memory::systems(point);
        let locks = systems[turn % systems.len()];
        all.iter().copied().find(|one| one.point == point && one.locks == locks)
    };
    points().enumerate().filter_map(first).collect()
}

const LEASE_US: u64 = 500;
const PAUSE_US: u64 = 3 * LEASE_US;
/// Time by which all nodes are at work.
const WARM_US: u64 = 400;
/// Time at which a lost memory node returns, if at all; the node has been given up by then.
const RETURN_US: u64 = 2_000;
const STORM_US: u64 = 5_000;
const CALM_US: u64 = 4_000;
/// Number of memory nodes, which is the node id of the first compute node.
const MEMORY: u16 = 3;
/// The first compute node: owner of the only shard in single-shard clusters, and server of
/// timestamps.
const OWNER: NodeId = NodeId(MEMORY);
/// Compute node at which strikes hit transactions.
const COORDINATOR: NodeId = NodeId(MEMORY + 1);
/// Compute node that dies first, at points that follow a death.
const DEAD_NODE: NodeId = NodeId(MEMORY + 4);

impl Coordinate {
    /// This step and place with each role alone, and with every pair of roles.
    fn with_roles(self) -> Vec<Self> {
        let concerned = |role: &Role| concerns(self.point, *role).is_ok();
        let roles: Vec<Role> = Role::ALL.iter().copied().filter(concerned).collect();
        let mut all = Vec::new();
        for (rank, role) in roles.iter().copied().enumerate() {
            let alone = Self { role, ..self };
            all.extend([alone, Self { manner: Manner::Pause, ..alone }]);
            let others = roles[rank + 1..].iter().copied();
            let others = others.filter(|other| both(self.point, role, *other).is_ok());
            all.extend(others.map(|other| Self { also: Some(other), ..alone }));
        }
        all
    }

    /// The scenario in which the strike happens.
    pub fn scenario(&self) -> Scenario {
        let (family, point) = (self.point.family(), self.point);
        let moves = family == Family::HandOver;
        let oracle = family == Family::Oracle || self.has(Role::Oracle);
        let waits = matches!(point, FaultPoint::LockAwaited | FaultPoint::WaitEnded);
        let crowded = waits || point == FaultPoint::AskedToYield || on_memory::is_crowded(point);
        let inserts = point == FaultPoint::Promote;
        let upkeep = family == Family::Upkeep;
        let drops = family == Family::Clearing;
        let bank = Workload::Smallbank {
            accounts: if crowded { 4 } else { 40 },
            hot_accounts: 0,
            hot_ratio: 0.0,
        };
        let cluster = Topology {
            compute_nodes: 5,
            coroutines: 3,
            memory_nodes: usize::from(MEMORY),
            // With one shard the primary and the owner of all locks are known beforehand.
            shards: if moves || oracle { 16 } else { 1 },
            timestamps: if oracle { Timestamps::Oracle } else { Timestamps::Clock },
            lock_wait: if waits { LockWait::Ordered } else { LockWait::None },
            locks: self.locks,
            lease_us: LEASE_US,
            moves_us: if moves { 150 } else { 0 },
            drops_us: if drops { 200 } else { 0 },
            drain_us: if crowded && moves { 1 } else { 200 },
            // Few enough to be filled by the rows of `Pairs`.
            group_slabs: if upkeep { 5 } else { Topology::default().group_slabs },
            inline: self.inline(),
            ..Topology::default()
        };
        let workload = match point {
            _ if self.splits_nodes() => Workload::Bins { bins: 40 },
            _ if inserts => Workload::Tatp { subscribers: 200 },
            _ if upkeep => Workload::Pairs { pairs: 80, made_for: 0, record_bytes: 8192 },
            _ => bank,
        };
        Scenario {
            name: format!("matrix {self}"),
            story: String::new(),
            hazards: Vec::new(),
            storm_us: STORM_US,
            calm_us: CALM_US,
            steady: false,
            authority: AuthorityDelays::default(),
            lives: Lives::default(),
            cluster,
            workload,
            // Most transactions run on a different node than the owner of their locks.
            load: Load { routing: Routing::Random, ..Load::default() },
            network: Network { verb_timeout_us: 100, ..Network::default() },
            rates: Rates::default(),
            schedule: self.schedule(),
            strikes: self.strikes(),
        }
    }

    /// Whether the transactions change trees: at the points of trees, and at a quarter of the other
    /// coordinates that need no particular rows.
    fn splits_nodes(&self) -> bool {
        use FaultPoint as P;
        let waits = matches!(self.point, P::LockAwaited | P::WaitEnded);
        let some = (self.place as usize + self.role as usize + self.manner as usize) % 4 == 3;
        match self.point {
            P::NodeSplit | P::NodesMerged => true,
            point => point.family() == Family::Transaction && !waits && some,
        }
    }

    /// Place of small records: with every other coordinate beside their cells, except at the point
    /// between a record and its cell.
    fn inline(&self) -> Inline {
        let odd = (self.place as usize + self.role as usize + self.manner as usize) % 2 == 1;
        let apart = odd || self.point == FaultPoint::RecordsPosted;
        if apart { Inline::Never } else { Inline::Auto }
    }

    fn has(&self, role: Role) -> bool {
        self.role == role || self.also == Some(role)
    }

    /// Faults that must happen before the strike.
    fn schedule(&self) -> Vec<Scheduled> {
        let crash = |node: NodeId, memory| {
            let when = When::At(std::time::Duration::from_micros(2 * WARM_US));
            vec![Scheduled { when, fault: Fault::Crash { node, memory } }]
        };
        match (self.point.family(), self.point) {
            (Family::MemoryLoss, FaultPoint::LocksResumed) => {
                let node = NodeId(0);
                let when = When::At(std::time::Duration::from_micros(RETURN_US));
                let back = Scheduled { when, fault: Fault::Restart { node } };
                crash(node, MemoryFate::Lost).into_iter().chain([back]).collect()
            }
            (Family::MemoryLoss, _) => crash(NodeId(0), MemoryFate::Lost),
            (Family::Oracle, FaultPoint::Answer) => Vec::new(),
            (Family::Oracle, _) => crash(OWNER, MemoryFate::Kept),
            (Family::Membership, FaultPoint::Beat) => Vec::new(),
            (Family::Membership, _) => crash(DEAD_NODE, MemoryFate::Kept),
            (
                Family::Transaction
                | Family::MemoryLock
                | Family::LockReset
                | Family::Recovery
                | Family::HandOver
                | Family::Upkeep
                | Family::Clearing,
                _,
            ) => Vec::new(),
            (Family::Start | Family::Snapshot | Family::Rest, _) => Vec::new(),
        }
    }

    fn strikes(&self) -> Vec<Strike> {
        let blow = match self.manner {
            Manner::Crash => StrikeFault::Crash,
            Manner::Pause => StrikeFault::Pause(PAUSE_US),
        };
        let family = self.point.family();
        let own = matches!(family, Family::Transaction | Family::MemoryLock | Family::Upkeep);
        // The owner passes the end of a wait; its peer is the requester.
        let passer = if self.point == FaultPoint::WaitEnded { OWNER } else { COORDINATOR };
        let by = own.then_some(passer);
        let roles = [Some(self.role), self.also].into_iter().flatten();
        let strike = Strike {
            point: self.point,
            place: self.place,
            passage: 1,
            after_us: WARM_US,
            by,
            victims: roles.map(|role| self.victim(role)).collect(),
            blow,
        };
        let first = match family {
            Family::Recovery => Some(self.first_death()),
            Family::LockReset => Some(Strike { point: self.first_user(), ..self.first_death() }),
            _ => None,
        };
        first.into_iter().chain([strike]).collect()
    }

    /// Strike that leaves a transaction in doubt.
    fn first_death(&self) -> Strike {
        let point = match self.outcome {
            RecoveryOutcome::Back => FaultPoint::CellsLanded,
            RecoveryOutcome::Forward => FaultPoint::VisibleOnBackups,
        };
        Strike {
            point,
            place: Place::First,
            passage: 1,
            after_us: WARM_US,
            by: Some(DEAD_NODE),
            victims: vec![Victim::Passer],
            blow: StrikeFault::Crash,
        }
    }

    /// Node of a role, in the cluster of this coordinate.
    fn victim(&self, role: Role) -> Victim {
        let family = self.point.family();
        match role {
            Role::Coordinator if self.point == FaultPoint::WaitEnded => Victim::Peer,
            Role::Coordinator | Role::Recoverer => Victim::Passer,
            Role::LockOwner if family == Family::HandOver => Victim::Passer,
            Role::LockOwner => Victim::Node(OWNER),
            Role::Receiver => Victim::Peer,
            Role::Oracle if family == Family::Oracle => Victim::Passer,
            Role::Oracle => Victim::Node(OWNER),
            // The first memory node is lost already: the next node is promoted.
            Role::PrimaryMemory if family == Family::MemoryLoss => Victim::Node(NodeId(1)),
            Role::PrimaryMemory => Victim::Node(NodeId(0)),
            Role::BackupMemory if family == Family::MemoryLoss => Victim::Node(NodeId(2)),
            Role::BackupMemory => Victim::Node(NodeId(1)),
        }
    }
}

/// Result of one coordinate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cell {
    /// The strike happened with this seed, and all properties held.
    Passed(u64),
    /// A property did not hold with this seed, whether the strike happened or not.
    Violated(u64, Vec<Violation>),
    /// The strike happened with no seed.
    NoRun,
}

/// Runs one coordinate, seed by seed until the strike happens or a property does not hold.
///
/// # Errors
/// `Impossible`, if the coordinate's scenario cannot be run at all.
pub fn strike(coordinate: &Coordinate, seeds: std::ops::Range<u64>) -> Result<Cell, ScenarioError> {
    let scenario = coordinate.scenario();
    for seed in seeds {
        let outcome = run(&scenario, seed, Budget::default(), None)?;
        if !outcome.is_clean() {
            return Ok(Cell::Violated(seed, outcome.violations));
        }
        if outcome.figures.strikes == scenario.strikes.len() as u64 {
            return Ok(Cell::Passed(seed));
        }
    }
    Ok(Cell::NoRun)
}

/// Runs the coordinates on `workers` threads, and calls `after` with each result; returns all
/// results in order.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
///
/// # Panics
/// If `after` does.
pub fn strike_all(
    coordinates: &[Coordinate],
    seeds: std::ops::Range<u64>,
    workers: usize,
    after: impl Fn(&Coordinate, &Cell) + Sync,
) -> Result<Vec<Cell>, ScenarioError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    Env::real(0).in_parallel(workers.max(1), |_| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(coordinate) = coordinates.get(index) else { return };
            let cell = strike(coordinate, seeds.clone());
            if let Ok(cell) = &cell {
                after(coordinate, cell);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, cell));
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, cell)| cell).collect()
}

/// Number of seeds without the strike after which a coordinate is given up.
pub const SEEDS: u64 = 8;
