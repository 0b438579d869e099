//! The lock systems: state machines over the words of their locks, one file each.

mod cas;
mod cas_rw;
mod choice;
mod declock;
mod dslr;
mod dslr_u;
mod mcs;

pub use cas::{Cas, CasUse};
pub use cas_rw::{CasRw, CasRwUse, Release};
pub use choice::{Choice, Kind, UnknownKind, Unpublished, Visitor};
pub use declock::{Declock, DeclockUse};
pub use dslr::{Dslr, DslrTimes, DslrUse, Polling};
pub use dslr_u::{DslrU, UpdateUse};
pub use mcs::{Mcs, McsUse};
