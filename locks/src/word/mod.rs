//! Words of lock objects. A word of zeroes is a free lock, so fresh memory needs no preparation.

mod cas_rw;
mod claim;

pub use cas_rw::{Acquired, CasRwWord};
pub use claim::{Claim, Claimant};
