//! Fault points of locks on memory nodes: the lock systems that pass a point, and the struck roles.
//!
//! A lock is reset after a lost node has used it. So the first victim dies while holding a lock or,
//! if the second strike is a pause, while waiting for a lock.

use lotus_benchmarks::config::Locks;
use lotus_points::{Family, FaultPoint};

use super::{Coordinate, Manner, OWN_FAMILY, Role};

/// Kinds of locks that pass a point in different ways; at most points, the protocol's own locks
/// represent all kinds.
pub(super) const fn systems(point: FaultPoint) -> &'static [Locks] {
    use FaultPoint as P;
    match (point.family(), point) {
        (_, P::QueueJoined) => &[Locks::Declock, Locks::ShiftLock, Locks::Dslr],
        (_, P::TurnAwaited | P::NextUntold | P::NextTold) => &[Locks::ShiftLock, Locks::Declock],
        (_, P::EntriesZeroed) => &[Locks::Declock],
        (_, P::LocksAbandoned | P::LocksLeft | P::LocksResumed) | (Family::MemoryLock, _) => {
            &[Locks::Cas, Locks::Dslr, Locks::ShiftLock, Locks::Declock]
        }
        (Family::LockReset, _) => &[Locks::Dslr, Locks::ShiftLock, Locks::Declock],
        _ => &[Locks::Lotus],
    }
}

/// Name of locks in coordinates; `None` for the protocol's own.
pub(super) const fn name(locks: Locks) -> Option<&'static str> {
    match locks {
        Locks::Lotus => None,
        Locks::Cas => Some("cas"),
        Locks::Dslr => Some("dslr"),
        Locks::ShiftLock => Some("shiftlock"),
        Locks::Declock => Some("declock"),
        Locks::IdealRdma => Some("ideal-rdma"),
    }
}

/// Checks that striking a node of this role at a step of a use makes sense.
///
/// # Errors
/// The reason why it makes no sense.
pub(super) const fn concerns_use(point: FaultPoint, role: Role) -> Result<(), &'static str> {
    match (role, point) {
        (Role::Coordinator | Role::PrimaryMemory, _)
        | (Role::Receiver, FaultPoint::NextUntold | FaultPoint::NextTold) => Ok(()),
        (Role::Receiver, _) => Err("no other node is told of that step"),
        (Role::BackupMemory, _) => Err("the words of locks are on the primary"),
        (Role::LockOwner, _) => Err("locks on memory nodes have no owner"),
        (Role::Recoverer | Role::Oracle, _) => Err(OWN_FAMILY),
    }
}

/// Whether the step is taken only where several transactions want one lock.
pub(super) const fn is_crowded(point: FaultPoint) -> bool {
    use FaultPoint as P;
    let waits = matches!(point, P::QueueJoined | P::TurnAwaited | P::TurnSeen);
    let tells = matches!(point, P::NextUntold | P::NextTold);
    waits || tells || matches!(point.family(), Family::LockReset)
}

impl Coordinate {
    /// Step at which the first node dies, using a lock that is reset afterwards.
    pub(super) const fn first_user(&self) -> FaultPoint {
        match self.manner {
            Manner::Crash => FaultPoint::LocksGranted,
            Manner::Pause => FaultPoint::QueueJoined,
        }
    }
}
