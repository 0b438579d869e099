//! The lock systems: state machines over the words of their locks, one file each.

mod cas;
mod choice;
mod declock;
mod dslr;
mod shiftlock;

pub use cas::{Cas, CasUse};
pub use choice::{ObjectBytes, ServiceLocks, Visitor};
pub use declock::{Declock, DeclockUse};
pub use dslr::{Dslr, DslrTimes, DslrUse, Polling};
pub use shiftlock::{ShiftLock, ShiftLockWide, ShiftUse, Shifts};
