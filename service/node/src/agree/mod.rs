//! Values at the authority, by which the processes of a cluster agree. Imports `config` and `host`.
//!
//! * `cluster_authority`, `in_etcd`: the authority, in the process of memory node 0 or in etcd;
//!   `alive`: whether a cluster whose values are in etcd still lives;
//! * `records`: reports of nodes about themselves; `terms`: the common content of nodes' files;
//!   `rest`: the order to rest; `loss`: loss of the remaining nodes when nodes end;
//! * `mailbox`: questions to nodes; `mailbox_server`: the nodes' side of a mailbox.
//!
//! Not in this folder: the membership, kept by the engine (`recovery`, `router`).

pub mod alive;
pub mod cluster_authority;
#[cfg(feature = "etcd")]
pub mod in_etcd;
pub mod loss;
pub mod mailbox;
pub mod mailbox_server;
pub mod records;
pub mod rest;
pub mod terms;
