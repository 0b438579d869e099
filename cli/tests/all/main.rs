//! Tests of the `lotus` command as a user runs it, as one program.

mod bad_input;
mod bench;
#[cfg(feature = "tcp")]
mod chaos;
mod check;
#[cfg(feature = "tcp")]
mod cluster;
mod common;
mod crates;
#[cfg(feature = "tcp")]
mod documents;
mod floors;
mod language;
mod live;
mod outputs;
mod shm;
#[cfg(feature = "tcp")]
mod snapshots;
mod tidy;
