//! Lock systems on memory nodes that transactions do not use: state machines over the words of
//! their locks, one file each; and the choice of any system by its name.

mod cas_rw;
mod choice;
mod drtm;
mod dslr_u;
mod mcs;
mod ncosed;
mod rma_rw;

pub use cas_rw::{CasRw, CasRwUse, Release};
pub use choice::{Choice, Kind, UnknownKind, UnsupportedOption};
pub use drtm::{Drtm, DrtmUse};
pub use dslr_u::{DslrU, UpdateUse};
pub use mcs::{Mcs, McsUse};
pub use ncosed::{Ncosed, NcosedUse};
pub use rma_rw::{RmaRw, RmaRwUse};
