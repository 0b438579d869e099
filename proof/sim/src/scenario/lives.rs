//! Successive lives of a cluster: each life is restored from the snapshot of the previous life.
//!
//! # What it is
//! Part of a scenario; `drive::lives` carries it out, in separate worlds. Per-life state starts
//! equal in each life: the seed, the incarnations, the counters. The data persists and grows with
//! each life.

use serde::{Deserialize, Serialize};

/// Maximum number of lives, and of rows of each, that a run has time for.
const MOST_LIVES: u32 = 8;
const MOST_ROWS: u32 = 10_000;
/// Longest value that is certain to fit an ordered table.
const LONGEST: u32 = 2_000;
/// Maximum number of clients of a coordinator: a node with two coordinators has room for as many
/// slots.
const MOST_CLIENTS: u32 = 200;

/// Lives of a cluster, and the rows that each life adds. None by default.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Lives {
    /// Number of lives; 0 for no cluster, and 1 for no restoration.
    pub lives: u32,
    /// Rows of the ordered table loaded before the first life.
    pub loaded: u32,
    /// Rows added to a table in each life.
    pub rows: u32,
    /// Bytes of each value. The longer the values, the more new nodes a tree needs.
    pub value_bytes: u32,
    /// Clients of each coordinator. The more clients and the shorter the values, the more clients
    /// write to one leaf.
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
