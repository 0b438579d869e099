//! The cluster's configuration store: small versioned values, changed by compare-and-swap.
//!
//! # What it is
//! [`Authority`], the contract: values by key, each with a version, read and swapped.
//! Implementations are in this process ([`EmbeddedAuthority`]), in another process (`remote`, a
//! feature), or in an etcd cluster (`etcd`, a feature). [`conformance`] checks any other
//! implementation, and [`testing`] loses questions and answers.
//!
//! # What it is not
//! Membership, tables or settings: the engine and `lotus-recovery` define the meaning of the
//! values. No transaction asks the authority, which is the control path.

#![forbid(unsafe_code)]

pub mod conformance;
mod contract;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(any(feature = "etcd", test))]
mod revision_check;
#[doc(hidden)]
pub mod testing;

pub use contract::{
    Authority, AuthorityError, EmbeddedAuthority, IncarnationError, Version, Versioned,
    allocate_incarnation,
};
