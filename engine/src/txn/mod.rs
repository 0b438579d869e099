//! A transaction: its data, execution and commit.
//!
//! [`session`] begins transactions in a [`slot`] of a coordinator; [`transaction`] is the handle,
//! [`body`] its buffers; [`read`] executes, [`reserve`] takes slots, [`commit`] writes. Imports
//! from [`crate::space`] and below.

pub(crate) mod body;
pub(crate) mod commit;
mod explain;
pub(crate) mod fetch;
mod grow;
mod links;
#[cfg(feature = "may")]
pub mod may;
pub(crate) mod older;
pub mod ordered;
pub(crate) mod piece;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod reserve;
pub(crate) mod retry;
pub(crate) mod rows;
pub(crate) mod session;
pub(crate) mod slot;
pub(crate) mod submit;
pub(crate) mod transaction;
mod typed;
pub(crate) mod unknown_tables;
