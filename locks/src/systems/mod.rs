//! The lock systems: state machines over the words of their locks, one file each.

mod cas;
mod cas_rw;
mod choice;
mod dslr;
mod mcs;

pub use cas::{Cas, CasUse};
pub use cas_rw::{CasRw, CasRwUse, Release};
pub use choice::{Choice, Kind, UnknownKind, Visitor};
pub use dslr::{Dslr, DslrUse, Polling};
pub use mcs::{Mcs, McsUse};
