//! FissLock over fabrics: what its locks promise, on threads, over sockets and in simulation, and
//! what they keep when a machine or the switch is lost.
//!
//! `cargo test -p lotus-locksystems --test switched -- --nocapture` prints a line for each trial.
//! The environment variable `LOTUS_LOCK_SEEDS` sets the number of seeds of each simulated family.

mod cluster;
mod families;
mod losses;
mod lossy;
mod one;
mod sizes;
mod strangers;
