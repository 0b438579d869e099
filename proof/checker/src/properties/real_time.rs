//! Strictness: a transaction that ended before another started comes before it (I56).
//!
//! Steps: all kinds, and at least one real-time step. For serializable transactions this is strict
//! serializability, for snapshots strong snapshot isolation: the snapshot contains every
//! transaction whose commit was answered before the start.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search = Search { begin: Link::RealTime, go_on: Mask::ALL };
