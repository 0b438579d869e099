//! G0, write cycle: transactions do not overwrite one another in a cycle.
//!
//! Steps: ww only.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search =
    Search { begin: Link::WriteWrite, go_on: Mask::of(&[Link::WriteWrite]) };
