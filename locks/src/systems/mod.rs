//! The lock systems: state machines over the words of their locks, one file each.

mod cas;
mod cas_rw;
mod choice;
mod dslr;
mod dslr_u;
mod mcs;
mod shiftlock;

pub use cas::{Cas, CasUse};
pub use cas_rw::{CasRw, CasRwUse, Release};
pub use choice::{Choice, Kind, UnknownKind, Unpublished, Visitor};
pub use dslr::{Dslr, DslrTimes, DslrUse, Polling};
pub use dslr_u::{DslrU, UpdateUse};
pub use mcs::{Mcs, McsUse};
pub use shiftlock::{ShiftLock, ShiftUse};
