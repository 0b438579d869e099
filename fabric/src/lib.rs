//! The fabric: how compute nodes reach memory nodes and other compute nodes.
//!
//! # What it is
//! One contract (docs/verbs.md) with several back ends: registered memory, one-sided verbs in
//! batches, datagrams and RPC, fencing. Also the runtime of a coordinator: an executor for its
//! coroutines, and the only source of time, randomness and threads.
//!
//! # What it is not
//! The fabric knows no records, locks or transactions. It never sleeps on an error and never exits.
//!
//! # Rooms
//! Folders, top floor first. A folder imports only from folders below. `conformance` and `backends`
//! are on one floor.
//!
//! | folder | holds |
//! |---|---|
//! | `conformance` | the test suite that every back end passes |
//! | `backends` | `local`, `shm`, `tcp`, `rdma`, `sim`, and the implementations of machines |
//! | `rpc` | requests and replies over datagrams |
//! | `lane` | a coordinator's path into the fabric |
//! | `run` | time, randomness, threads, the executor, the trait of machines |
//! | `contract` | addresses, memory, verbs, the traits of a back end |
//!
//! # Where to look
//! * [`ids`], [`region`], [`verbs`]: the basic types.
//! * [`lane`]: a coordinator's interface to the fabric; [`exec`]: its executor; [`mod@env`]: time
//!   and randomness.
//! * [`transport`]: the traits that a back end implements. Back ends: [`local`], for a single
//!   process; [`shm`], for processes on one host; `tcp` (a feature), for any network; [`sim`], a
//!   whole cluster on virtual time; `rdma` (a feature), for devices with verbs in hardware.
//! * [`machines`]: the fabric, clocks and cores that a whole cluster runs on.
//! * [`rpc`]: requests and replies over datagrams.
//! * [`conformance`]: the test suite that every back end passes.

pub mod conformance;
pub mod lane;
pub mod rpc;

mod backends;
mod contract;
mod run;

#[cfg(feature = "rdma")]
pub use backends::rdma;
#[cfg(feature = "tcp")]
pub use backends::tcp;
pub use backends::{local, shm, sim};
pub use contract::{counters, ids, masked, prefetch, region, transport, verbs, wide};
pub use lane::trace;
pub use run::{env, exec};

/// The machines of a cluster: a fabric, clocks, and cores that turn executors.
pub mod machines {
    pub use crate::backends::threads::Threads;
    pub use crate::run::machines::{
        Core, CpuCharge, DeliveryModel, Machines, MachinesExt, Program, RequestDelivery, Turn,
    };
}

/// Fuzz targets (`just fuzz`): every decoder of bytes from outside. The functions accept arbitrary
/// bytes and panic if a promise is broken.
#[cfg(fuzzing)]
pub mod fuzzing {
    #[cfg(feature = "tcp")]
    pub use crate::backends::tcp::fuzzing::{tcp_handshake, tcp_verbs};
    pub use crate::rpc::fuzzing::datagrams;
}
