//! Return of an expelled node as another life (docs/recovery.md, "Return").
//!
//! # What it is
//! The rules of `recovery/src/membership/lives.rs` and `engine/src/cluster/rejoin.rs`, as far as
//! they bear on locks, logs and memory: when a life is taken in, its initial state, and when the
//! other node knows of it. A life is part of the name of each of its attempts, and memory nodes
//! refuse lives.
//!
//! # First lives
//! A node that is not started at first is a member without a process. Its first process takes its
//! place, or a member gives it up; one of the two words is written, once. A node with a place that
//! was given up is expelled, and may come as one that returns
//! (`engine/src/membership/absent.rs`).
//!
//! # What it is not
//! Shards are not given back, so a node that has returned asks the other one for every lock. Left
//! out are beats, floors, owners' words, and the race of two processes for one place.

use crate::locks::{commits_on_lost, other};
use crate::rules::{Rule, World};
use crate::state::{KEYS, LIVES, Late, Phase, Place, Recovery, State, Txn};

impl World {
    /// Whether a node's first process may come.
    pub fn may_come(&self, state: &State, node: usize) -> bool {
        state.nodes[node].place == Place::Free
    }

    pub fn come(&self, state: &mut State, node: usize) {
        let it = &mut state.nodes[node];
        (it.place, it.dead) = (Place::Taken, false);
    }

    /// Whether a member may stop waiting for a node's first process.
    pub fn may_give_up(&self, state: &State, node: usize) -> bool {
        let waits = state.nodes[node].place == Place::Free;
        waits && state.nodes[other(node)].is_member() && !self.breaks(Rule::TheAbsentAreExpelled)
    }

    pub fn give_up(&self, state: &mut State, node: usize) {
        state.nodes[node].place = Place::Nobodys;
    }

    /// Whether another life of a node may be taken in: every expelled node is resolved, all live
    /// nodes know of the expulsions, and the node owns no row.
    pub fn may_return(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        let possible = state.faults.returns > 0 && it.expelled && usize::from(it.life) + 1 < LIVES;
        let settled = || {
            let mut nodes = state.nodes.iter().zip(&state.recoveries);
            nodes.all(|(node, recovery)| !node.expelled || recovery.resolved)
        };
        let survivor = &state.nodes[other(node)];
        let known = || {
            let knows = survivor.notices_loss && !commits_on_lost(state, other(node));
            survivor.is_member() && knows
        };
        let owns_nothing = || state.locks.iter().all(|lock| usize::from(lock.owner) != node);
        possible && (settled() && known() && owns_nothing() || self.breaks(Rule::ReturnsWait))
    }

    /// Starts the node's next life: it knows nothing, and has locked and granted nothing.
    pub fn come_back(&self, state: &mut State, node: usize) {
        state.faults.returns -= 1;
        let txn = state.txn(node);
        let lost = state.nodes[other(node)].expelled;
        let it = &mut state.nodes[node];
        if self.breaks(Rule::FencesLast) {
            it.late = Some(Late { txn, phase: it.phase });
            state.memory.iter_mut().for_each(|memory| memory.fenced[node] = 0);
        }
        (it.dead, it.expelled, it.attempt) = (false, false, 0);
        (it.phase, it.notices_loss, it.life) = (Phase::Resting, lost, it.life + 1);
        if !self.breaks(Rule::ReturnsWait) {
            state.recoveries[node] = Recovery::default();
        }
        for key in 0..KEYS {
            let lock = &mut state.locks[key];
            if usize::from(lock.owner) == node {
                (lock.holder, lock.over) = (None, 0);
            }
        }
    }

    /// Whether a node has yet to hear that the other one has returned.
    pub fn may_welcome(&self, state: &State, node: usize) -> bool {
        let (it, back) = (&state.nodes[node], &state.nodes[other(node)]);
        it.is_member() && it.notices_loss && !back.expelled && back.life > 0
    }

    /// Makes a node serve the other one's new life, which has no finished attempts yet.
    pub fn welcome(&self, state: &mut State, node: usize) {
        state.nodes[node].notices_loss = false;
        if self.breaks(Rule::LivesDiffer) {
            return;
        }
        let own = state.locks.iter_mut().filter(|lock| usize::from(lock.owner) == node);
        own.for_each(|lock| lock.over = 0);
    }

    /// Whether a node may begin anything: all live nodes know of its life.
    pub fn is_known(&self, state: &State, node: usize) -> bool {
        let (it, other) = (&state.nodes[node], &state.nodes[other(node)]);
        it.life == 0 || !other.is_member() || !other.notices_loss
    }

    /// An attempt, as lock tables and messages name it.
    pub fn named(&self, txn: Txn) -> Txn {
        if self.breaks(Rule::LivesDiffer) { Txn { life: 0, ..txn } } else { txn }
    }

    /// Whether a verb that an earlier life has posted can still land.
    pub fn may_land_late(&self, state: &State, node: usize, at: usize) -> bool {
        let late = state.nodes[node].late;
        late.is_some_and(|late| self.may_take_effect(state, late.txn, late.phase, at))
    }

    pub fn land_late(&self, state: &mut State, node: usize, at: usize) {
        if let Some(Late { txn, phase }) = state.nodes[node].late {
            let phase = self.take_effect(state, txn, phase, at);
            state.nodes[node].late = Some(Late { txn, phase });
        }
    }
}
