//! The order in which the versions of each row were written.
//!
//! # Two sources
//! - **Chains**: the write of an attempt that read a version directly follows the version.
//! - **Commit timestamps** of the writers.
//!
//! Chains take precedence, and timestamps only order whole chains, by the first timestamp in each.
//! So a wrong timestamp does not change the order within a chain. Instead the chain's timestamps do
//! not grow, which [`version_order`](crate::properties::version_order) detects.
//!
//! # Chains without a place
//! A chain without any timestamp that does not begin at the initial state has no place among the
//! other chains and stays apart. The dependencies within the chain are true, but further
//! dependencies may be missing.
//!
//! Where two attempts claim the place after one version, the attempt with the lower timestamp gets
//! the place. The other attempt becomes the head of another chain, and
//! [`lost_update`](crate::properties::lost_update) reports the conflict.

use crate::history::{OpIndex, RowIndex};
use crate::trace::{INITIAL, NONE, Trace};

/// The versions of every row, linked in the order of their writes.
pub(crate) struct WriteOrder {
    /// First version of each row after the initial state.
    first: Vec<OpIndex>,
    /// Next version of the row, for each write.
    next: Vec<OpIndex>,
    /// Previous version of the row, for each write; [`INITIAL`] for the first version.
    previous: Vec<OpIndex>,
}

/// A sequence of versions, ordered by updates.
struct Chain {
    /// Position among the chains of its row.
    rank: Rank,
    head: OpIndex,
    tail: OpIndex,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Begins at the initial state.
    First,
    /// First commit timestamp of the chain.
    At(u64),
    /// Has no commit timestamp.
    Open,
}

impl WriteOrder {
    pub(crate) fn new(trace: &Trace<'_>) -> Self {
        let (rows, ops) = (trace.history.row_count(), trace.history.operation_count());
        let mut order =
            Self { first: vec![NONE; rows], next: vec![NONE; ops], previous: vec![NONE; ops] };
        let mut placed = vec![false; ops];
        let mut versions: Vec<(u64, OpIndex)> = Vec::new();
        let mut chains = Vec::new();
        for row in 0..rows as u32 {
            versions.clear();
            for &op in trace.by_row.ops(row) {
                if trace.is_installed(op) {
                    versions.push((trace.commit_ts(op).unwrap_or(u64::MAX), op));
                }
            }
            versions.sort_unstable();
            order.link_updates(trace, row, &versions);
            order.collect_chains(trace, &versions, &mut placed, &mut chains);
            order.join(row, &mut chains);
        }
        order
    }

    /// The version directly after `version` of `row`; [`NONE`] for the last version.
    pub(crate) fn after(&self, row: RowIndex, version: OpIndex) -> OpIndex {
        if version == INITIAL { self.first[row as usize] } else { self.next[version as usize] }
    }

    /// The version directly before; [`INITIAL`], or [`NONE`] if unknown.
    pub(crate) fn before(&self, version: OpIndex) -> OpIndex {
        self.previous[version as usize]
    }

    /// Versions of the row from `start` on, including `start`.
    pub(crate) fn from(&self, start: OpIndex) -> impl Iterator<Item = OpIndex> {
        let known = |op: OpIndex| (op != NONE).then_some(op);
        std::iter::successors(known(start), move |op| known(self.next[*op as usize]))
    }

    /// Links every version written by an update to the version that the update read.
    fn link_updates(&mut self, trace: &Trace<'_>, row: RowIndex, versions: &[(u64, OpIndex)]) {
        for &(_, write) in versions {
            let read = trace.partner(write);
            if read == NONE || !trace.is_sound(read) {
                continue;
            }
            let base = trace.source(read);
            let place = match base {
                INITIAL => &mut self.first[row as usize],
                base => &mut self.next[base as usize],
            };
            if *place == NONE {
                *place = write;
                self.previous[write as usize] = base;
            }
        }
    }

    fn collect_chains(
        &mut self,
        trace: &Trace<'_>,
        versions: &[(u64, OpIndex)],
        placed: &mut [bool],
        chains: &mut Vec<Chain>,
    ) {
        chains.clear();
        // Versions that no head leads to form a circle: an attempt read a version that depends on
        // its own write. The second pass cuts the circle at an arbitrary place.
        for only_heads in [true, false] {
            for &(_, head) in versions {
                // No previous version, or the initial state.
                let is_head = self.previous[head as usize] >= INITIAL;
                if !placed[head as usize] && (is_head || !only_heads) {
                    chains.push(self.cut_chain(trace, head, placed));
                }
            }
        }
    }

    /// Cuts off the chain from `head` on; `head` becomes a chain's head.
    fn cut_chain(&mut self, trace: &Trace<'_>, head: OpIndex, placed: &mut [bool]) -> Chain {
        let mut rank = Rank::Open;
        let mut tail = head;
        for op in self.from(head) {
            if placed[op as usize] {
                break;
            }
            placed[op as usize] = true;
            tail = op;
            if let (Rank::Open, Some(commit_ts)) = (rank, trace.commit_ts(op)) {
                rank = Rank::At(commit_ts);
            }
        }
        self.next[tail as usize] = NONE;
        if self.previous[head as usize] == INITIAL {
            rank = Rank::First;
        } else {
            self.previous[head as usize] = NONE;
        }
        Chain { rank, head, tail }
    }

    /// Links the chains of a row, ordered by rank.
    fn join(&mut self, row: RowIndex, chains: &mut Vec<Chain>) {
        chains.retain(|chain| chain.rank != Rank::Open);
        chains.sort_by_key(|chain| chain.rank);
        let Some(first) = chains.first() else { return };
        self.first[row as usize] = first.head;
        self.previous[first.head as usize] = INITIAL;
        for pair in chains.windows(2) {
            self.next[pair[0].tail as usize] = pair[1].head;
            self.previous[pair[1].head as usize] = pair[0].tail;
        }
    }
}
