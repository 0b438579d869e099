//! A compute node and its coordinators: their state, and verbs retried until they take effect.
//!
//! The state of each subsystem, for a node or a coordinator, is a type in this folder
//! ([`members::NodeMembers`], [`configuration::Configuration`], …); the logic is in folders further
//! up. Imports from [`crate::api`] alone. No decisions are made here.

pub(crate) mod asks;
pub(crate) mod attempts;
pub(crate) mod authority;
pub(crate) mod catalogue;
pub(crate) mod configuration;
pub(crate) mod control;
pub(crate) mod coordinator;
pub(crate) mod council;
pub(crate) mod counted;
pub(crate) mod filled;
pub(crate) mod grace;
pub(crate) mod home;
pub(crate) mod horizon;
pub(crate) mod inner_nodes;
pub(crate) mod label;
pub(crate) mod load_counts;
pub(crate) mod lock_peers;
pub(crate) mod locks;
pub(crate) mod looks;
pub(crate) mod members;
pub(crate) mod memory_life;
pub(crate) mod messages;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod node_numbers;
pub(crate) mod nodes;
pub(crate) mod oracle;
pub(crate) mod owners;
pub(crate) mod placement;
pub(crate) mod pulse;
pub(crate) mod shared;
pub(crate) mod silent;
pub(crate) mod slots;
pub(crate) mod suspects;
pub(crate) mod tables;
pub(crate) mod tasks;
pub(crate) mod timestamps;
pub(crate) mod tombstones;
pub(crate) mod trims;
pub(crate) mod verbs;
pub(crate) mod version_tables;
