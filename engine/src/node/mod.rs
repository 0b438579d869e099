//! A compute node and its coordinators: their state, and verbs retried until they take effect.
//!
//! The state of each subsystem, for a node or a coordinator, is a type in this folder
//! ([`peers::members::NodeMembers`], [`memory::configuration::Configuration`], …); the logic is in
//! folders further up. Imports from [`crate::api`] alone. No decisions are made here.
//!
//! * `shared`, `coordinator`: state of a process and its nodes, and of one coordinator; `locks`:
//!   the locks configured for the cluster; `control`: set-up and audits;
//! * `peers`, `memory`: other compute nodes, and memory nodes; `agreed`: what is agreed on at the
//!   authority; `time`: timestamps and horizons; `caches`; `threads`: a coordinator's thread;
//! * `verbs`, `messages`: verbs that are retried, and messages between compute nodes.

pub(crate) mod agreed;
pub(crate) mod caches;
pub(crate) mod control;
pub(crate) mod coordinator;
pub(crate) mod locks;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod peers;
pub(crate) mod shared;
pub(crate) mod threads;
pub(crate) mod time;
pub(crate) mod verbs;
