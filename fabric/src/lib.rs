//! The fabric: how compute nodes reach memory nodes and each other.
//!
//! # What it is
//! One contract (docs/verbs.md) with several back ends: registered memory, one-sided verbs in
//! batches, datagrams and RPC, fencing; plus what every coordinator runs on: an executor for its
//! coroutines and the only source of time, randomness and threads.
//!
//! # What it is not
//! It knows no records, locks or transactions. It never sleeps on an error and never exits.
//!
//! # Where to look
//! * [`ids`], [`region`], [`verbs`]: the basic types.
//! * [`lane`]: a coordinator's interface to the fabric; [`exec`]: its executor; [`mod@env`]: time
//!   and randomness.
//! * [`transport`]: the traits that a back end implements. Back ends: [`local`], for a single
//!   process; [`shm`], for processes on one host; `tcp` (a feature), for any network; [`sim`], a
//!   whole cluster on virtual time; `rdma` (a feature), for devices that carry out verbs
//!   themselves.
//! * [`machines`]: the fabric, clocks and cores that a whole cluster runs on.
//! * [`rpc`]: requests and replies over datagrams.
//! * [`conformance`]: the test suite that every back end passes.

pub mod conformance;
mod copies;
pub mod counters;
pub mod env;
pub mod exec;
pub mod ids;
pub mod lane;
pub mod local;
pub mod machines;
pub mod prefetch;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod region;
pub mod rpc;
pub mod shm;
pub mod sim;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod trace;
pub mod transport;
pub mod verbs;

/// Fuzz targets (`just fuzz`): everything that decodes bytes from outside. Each function accepts
/// any bytes, and panics where a promise is broken.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::rpc::fuzzing::datagrams;
    #[cfg(feature = "tcp")]
    pub use crate::tcp::fuzzing::{tcp_handshake, tcp_verbs};
}
