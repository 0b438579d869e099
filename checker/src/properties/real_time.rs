//! Strictness: whatever ended before a transaction started comes before it.
//!
//! Steps: all others, and at least one of real time. For serializable transactions this is strict
//! serializability, for snapshots strong snapshot isolation: all that was committed and answered
//! before the transaction started is in its snapshot.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search = Search { begin: Link::RealTime, go_on: Mask::ALL };
