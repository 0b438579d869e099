//! Locks whose state is in words of memory nodes: bit layouts, and decisions about them.
//!
//! # What it is
//! The ground of lock systems that compute nodes operate by verbs alone, as those of DSLR, DecLock
//! and ShiftLock do. [`word`] has the layouts, and what a lock says to whoever finds it so;
//! [`reset`] has the steps by which a lock is freed whose state nobody can know any more, because
//! compute nodes died with it or an atomic had no answer.
//!
//! # What it is not
//! No lock system yet: nothing here posts a verb or sends a message. The locks of the engine are in
//! `lotus-locktable`.
//!
//! # Fencing
//! The published systems take a lock from a holder that is late, and do not keep that holder from
//! acting on. Here nothing is taken from anybody who can still act (H2, H4): a lock is reset when
//! each of its users has answered that it is done with it, or can reach the memory no more.

#![forbid(unsafe_code)]

pub mod reset;
pub mod word;
