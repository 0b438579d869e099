//! Lives of a cluster, one after the other: each is restored from what the one before has left.
//!
//! # What it is
//! Part of a scenario; `drive::lives` carries it out, in worlds of their own. All that a cluster
//! begins anew in each life begins alike: the seed, the incarnations, the counters. The data goes
//! on, and each life adds to it.

use serde::{Deserialize, Serialize};

/// Most lives, and most rows of each, that a run takes the time for.
const MOST_LIVES: u32 = 8;
const MOST_ROWS: u32 = 10_000;
/// Longest value that an ordered table may have for sure.
const LONGEST: u32 = 2_000;
/// Most clients of a coordinator: as many slots fit a node with two of them.
const MOST_CLIENTS: u32 = 200;

/// Lives of a cluster, and what each adds to its tables. By default there are none.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Lives {
    /// Number of lives; 0 for none, and 1 to restore nothing.
    pub lives: u32,
    /// Rows that the ordered table is loaded with before the first life.
    pub loaded: u32,
    /// Rows that each life adds to each table.
    pub rows: u32,
    /// Bytes of each value. The longer, the more new nodes a tree needs.
    pub value_bytes: u32,
    /// Clients of each coordinator. The more, and the shorter the values, the more of them write to
    /// one leaf.
    pub clients: u32,
    /// Number of times in each life that a compute node crashes and returns.
    pub returns: u32,
}

impl Lives {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a run is short enough, and its values fit.
    pub(crate) fn is_sound(&self) -> bool {
        let rows = self.rows.max(self.loaded);
        let sound = self.lives <= MOST_LIVES && rows <= MOST_ROWS;
        let clients = self.is_none() || (1..=MOST_CLIENTS).contains(&self.clients);
        sound && clients && self.value_bytes <= LONGEST && self.returns <= MOST_LIVES
    }
}
