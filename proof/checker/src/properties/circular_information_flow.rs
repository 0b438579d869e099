//! G1c, circular information flow: no transaction depends on one that depends on it.
//!
//! Steps: wr and ww, at least one wr.

use crate::graph::{Link, Mask};
use crate::search::Search;

pub(crate) const SEARCH: Search =
    Search { begin: Link::WriteRead, go_on: Mask::of(&[Link::WriteWrite, Link::WriteRead]) };
