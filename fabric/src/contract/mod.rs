//! The contract between lanes and back ends: addresses, memory, verbs, and the traits.
//!
//! The lowest room, which imports from no other room. It knows no executors, lanes or back ends.

pub mod counters;
pub mod ids;
pub mod masked;
pub(crate) mod node_set;
pub mod prefetch;
pub mod region;
pub mod transport;
pub mod verbs;
pub mod wide;
