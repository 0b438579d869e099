//! The fabric's integration tests, as one program; `rdma` defines a libibverbs and is separate.

mod common;
mod conformance_teeth;
mod lane;
mod rpc;
mod shm;
mod sim;
#[cfg(feature = "tcp")]
mod tcp;
