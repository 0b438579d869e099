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
//! * [`ids`], [`region`], [`verbs`]: the nouns.
//! * [`lane`]: what a coordinator uses; [`exec`]: what it runs on; [`mod@env`]: time and
//!   randomness.
//! * [`transport`]: what a back end implements; [`local`]: the one for a single process; [`shm`]:
//!   for processes on one host; `tcp` (a feature): for any network; [`sim`]: a whole cluster on
//!   virtual time; `rdma` (a feature): for devices that carry out verbs themselves.
//! * [`machines`]: what a whole cluster runs on.
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

/// Everything that decodes bytes from outside, for a fuzzer (`just fuzz`). Each function takes any
/// bytes at all, and panics where a promise is broken.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::rpc::fuzzing::datagrams;
    #[cfg(feature = "tcp")]
    pub use crate::tcp::fuzzing::{tcp_handshake, tcp_verbs};
}
