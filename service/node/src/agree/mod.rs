//! Values at the authority, by which the processes of a cluster agree. Imports `config` and `host`.
//!
//! * `seat`, `in_etcd`: the authority, in the process of memory node 0 or in etcd; `alive`: whether
//!   a cluster still lives whose values are in etcd;
//! * `records`: reports of nodes about themselves; `terms`: what their files have in common;
//!   `rest`: the order to rest; `loss`: what others lose with nodes that end;
//! * `mailbox`: questions to nodes; `look`: the nodes' side of it.
//!
//! Not here: the membership, which the engine agrees on by itself (`recovery`, `router`).

pub mod alive;
#[cfg(feature = "etcd")]
pub mod in_etcd;
pub mod look;
pub mod loss;
pub mod mailbox;
pub mod records;
pub mod rest;
pub mod seat;
pub mod terms;
