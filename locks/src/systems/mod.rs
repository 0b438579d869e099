//! The lock systems: state machines over the words of their locks, one file each.

mod cas;
mod cas_rw;
mod choice;
mod declock;
mod drtm;
mod dslr;
mod dslr_u;
mod mcs;
mod ncosed;
mod rma_rw;
mod shiftlock;

pub use cas::{Cas, CasUse};
pub use cas_rw::{CasRw, CasRwUse, Release};
pub use choice::{Choice, Kind, UnknownKind, Unoffered, Visitor};
pub use declock::{Declock, DeclockUse};
pub use drtm::{Drtm, DrtmUse};
pub use dslr::{Dslr, DslrTimes, DslrUse, Polling};
pub use dslr_u::{DslrU, UpdateUse};
pub use mcs::{Mcs, McsUse};
pub use ncosed::{Ncosed, NcosedUse};
pub use rma_rw::{RmaRw, RmaRwUse};
pub use shiftlock::{ShiftLock, ShiftLockWide, ShiftUse, Shifts};
