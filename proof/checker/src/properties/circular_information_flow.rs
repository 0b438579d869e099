//! G1c, circular information flow: no two transactions depend on each other, directly or
//! indirectly.
//!
//! Steps: wr and ww, with at least one wr.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search =
    Search { begin: Link::WriteRead, go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead]) };
