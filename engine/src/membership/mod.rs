//! Membership of compute nodes: leases, expulsion, recovery, the oracle (H2, H15, H18).
//!
//! Imports from [`crate::memory_nodes`] and below. The rules are in `lotus_recovery`; this folder
//! carries out the rules.

pub(crate) mod absent;
pub(crate) mod floors;
pub(crate) mod members;
pub(crate) mod oracle;
pub(crate) mod recover;
pub(crate) mod watch;
