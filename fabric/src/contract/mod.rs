//! The contract between lanes and back ends: addresses, memory, verbs, and the traits.
//!
//! The lowest room: it imports from no other. It knows neither executors nor lanes, and no back
//! end.

pub mod counters;
pub mod ids;
pub mod masked;
pub(crate) mod node_set;
pub mod prefetch;
pub mod region;
pub mod transport;
pub mod verbs;
pub mod wide;
