//! Lock requests, their answers, ends, and a survivor's treatment of the locks of a lost node.
//!
//! # What it is
//! The rules of `locktable/src/server.rs` and `engine/src/membership/members.rs`, as far as they
//! bear on recovery: one lock for each row, held to write, in the table of its owner. The steps are
//! those of docs/protocol.md (2 and 10) and docs/recovery.md (3, 4, 9 and 10).
//!
//! # What it is not
//! The lock table itself, which has tests and a model of its own in `locktable`.

use crate::rules::{Rule, World};
use crate::state::{Grants, KEYS, Message, MessageKind, Phase, State, Txn};

/// The only other node.
pub fn other(node: usize) -> usize {
    1 - node
}

impl World {
    /// Whether a node can begin its next attempt: the locks that it owns itself are free (else it
    /// would try again), and the other locks have a serving owner.
    pub fn may_begin(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        let served = |key: usize| {
            let lock = &state.locks[key];
            match usize::from(lock.owner) == node {
                true => lock.holder.is_none(),
                false => (usize::from(lock.owner) == key || it.life > 0) && !it.notices_loss,
            }
        };
        let rests = !it.dead && it.phase == Phase::Resting && self.is_known(state, node);
        rests && it.attempt < self.attempts[node] && self.writes(node).all(served)
    }

    /// Step 2: takes local locks and asks for remote ones.
    pub fn begin(&self, state: &mut State, node: usize) {
        state.nodes[node].attempt += 1;
        let txn = state.txn(node);
        let mut grants: Grants = [None; KEYS];
        for key in self.writes(node) {
            let lock = &mut state.locks[key];
            if usize::from(lock.owner) == node {
                lock.holder = Some(txn);
                grants[key] = Some(node as u8);
            } else {
                state.network.send(MessageKind::Request, txn, key);
            }
        }
        state.nodes[node].phase = Phase::Locking(grants);
    }

    /// Whether a node, or its application, may give up waiting for locks.
    pub fn may_time_out(&self, state: &State, node: usize) -> bool {
        !state.nodes[node].dead && matches!(state.nodes[node].phase, Phase::Locking(_))
    }

    /// Whether a node has made everything visible, and still has its locks.
    pub fn may_unlock(&self, state: &State, node: usize) -> bool {
        !state.nodes[node].dead && matches!(state.nodes[node].phase, Phase::Visible(_))
    }

    /// Delivers a message, perhaps not for the first time.
    pub fn deliver(&self, state: &mut State, message: Message) {
        let Message { kind, txn, key } = message;
        match kind {
            MessageKind::Request => self.request(state, txn, usize::from(key)),
            MessageKind::End => self.end(state, txn, usize::from(key)),
            MessageKind::Granted | MessageKind::Refused => self.answer(state, message),
        }
    }

    /// Whether the other node is alive and owns the lock of a row.
    fn serves(&self, state: &State, txn: Txn, key: usize) -> bool {
        let owner = other(usize::from(txn.node));
        !state.nodes[owner].dead && usize::from(state.locks[key].owner) == owner
    }

    /// Whether the other node knows that an attempt's node is expelled, or its life over.
    fn is_refused(&self, state: &State, txn: Txn) -> bool {
        let node = usize::from(txn.node);
        let over = self.named(txn).life < self.named(state.txn(node)).life;
        over || state.nodes[other(node)].notices_loss
    }

    fn request(&self, state: &mut State, txn: Txn, key: usize) {
        if !self.serves(state, txn, key) {
            return;
        }
        if self.is_refused(state, txn) && !self.breaks(Rule::TheExpelledAreRefused) {
            return;
        }
        let txn = self.named(txn);
        let lock = &mut state.locks[key];
        if txn.attempt <= lock.over && !self.breaks(Rule::StaleRequestsAreRefused) {
            return;
        }
        let earlier = lock.holder.filter(|holder| holder.node == txn.node && *holder != txn);
        if earlier.is_some_and(|holder| holder.attempt < txn.attempt) {
            lock.holder = None;
        }
        lock.over = lock.over.max(txn.attempt - 1);
        let holder = *lock.holder.get_or_insert(txn);
        let answer = if holder == txn { MessageKind::Granted } else { MessageKind::Refused };
        state.network.send(answer, txn, key);
    }

    fn answer(&self, state: &mut State, message: Message) {
        let Message { kind, txn, key } = message;
        let now = self.named(state.txn(usize::from(txn.node))) == self.named(txn);
        let node = &mut state.nodes[usize::from(txn.node)];
        let Phase::Locking(grants) = &mut node.phase else { return };
        let grant = &mut grants[usize::from(key)];
        if node.dead || !now || grant.is_some() {
            return;
        }
        if kind == MessageKind::Granted {
            *grant = Some(other(usize::from(txn.node)) as u8);
        } else {
            self.unlock(state, usize::from(txn.node));
        }
    }

    fn end(&self, state: &mut State, txn: Txn, key: usize) {
        if !self.serves(state, txn, key) || self.is_refused(state, txn) {
            return;
        }
        let txn = self.named(txn);
        let lock = &mut state.locks[key];
        lock.over = lock.over.max(txn.attempt);
        let covers = |holder: Txn| holder.node == txn.node && holder.attempt <= txn.attempt;
        if lock.holder.is_some_and(covers) {
            lock.holder = None;
        }
    }

    /// Step 10, and the end of an attempt that fails: every owner that was asked is told, whether
    /// it has granted anything or not.
    pub fn unlock(&self, state: &mut State, node: usize) {
        let txn = state.txn(node);
        for key in self.writes(node) {
            let lock = &mut state.locks[key];
            if key != node || txn.life > 0 {
                state.network.send(MessageKind::End, txn, key);
            }
            if usize::from(lock.owner) == node && lock.holder == Some(txn) {
                lock.holder = None;
            }
        }
        state.nodes[node].phase = Phase::Resting;
    }

    /// Whether a survivor has not heard yet that the other node is expelled.
    pub fn may_take_note(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        it.is_member() && state.nodes[other(node)].expelled && !it.notices_loss
    }

    /// Whether a survivor may drop the locks of the other node from its table (step 9).
    pub fn may_drop_locks(&self, state: &State, node: usize) -> bool {
        let (it, lost) = (&state.nodes[node], &state.nodes[other(node)]);
        // Everything of a replaced life is settled, and all have taken note.
        let replaced = it.dropped < lost.life;
        let settled =
            state.recoveries[other(node)].resolved || self.breaks(Rule::LocksOutlastRecovery);
        let is_out = it.dropped == lost.life && lost.expelled && it.notices_loss && settled;
        it.is_member() && (replaced || is_out)
    }

    pub fn drop_locks(&self, state: &mut State, node: usize) {
        let life = state.nodes[node].dropped;
        state.nodes[node].dropped += 1;
        let of_lost = |txn: Txn| usize::from(txn.node) == other(node) && txn.life == life;
        for lock in &mut state.locks {
            if usize::from(lock.owner) == node && lock.holder.is_some_and(of_lost) {
                lock.holder = None;
            }
        }
    }

    /// Whether an end has yet to arrive: it is repeated until it has. Other messages may be lost.
    pub fn must_arrive(&self, state: &State, message: Message) -> bool {
        let (txn, key) = (message.txn, usize::from(message.key));
        let awaited = self.serves(state, txn, key) && !self.is_refused(state, txn);
        let arrived = txn.attempt <= state.locks[key].over;
        message.kind == MessageKind::End && awaited && !arrived
    }

    /// Whether a survivor may take over the other one's row (step 10): every expelled node is
    /// resolved, and none of the survivor's own earlier commits rests on its locks (step 4).
    pub fn may_adopt(&self, state: &State, node: usize, key: usize) -> bool {
        let lost = other(node);
        let mut out = (0..state.nodes.len()).filter(|node| state.nodes[*node].expelled);
        let settled = out.all(|node| state.recoveries[node].resolved);
        let it = &state.nodes[node];
        let ready = settled && !commits_on_lost(state, node) || self.breaks(Rule::AdoptionWaits);
        let orphaned = usize::from(state.locks[key].owner) == lost && state.nodes[lost].expelled;
        it.is_member() && it.notices_loss && orphaned && ready
    }

    pub fn adopt(&self, state: &mut State, node: usize, key: usize) {
        let lock = &mut state.locks[key];
        lock.owner = node as u8;
        lock.holder = None;
        lock.over = 0;
    }
}

/// Whether a commit of this node is under way on locks that the other one has granted.
pub fn commits_on_lost(state: &State, node: usize) -> bool {
    match state.nodes[node].phase {
        Phase::Posted { grants, .. } | Phase::Visible(grants) => granted_by(grants, other(node)),
        Phase::Resting | Phase::Locking(_) => false,
    }
}

/// Whether any of the locks was granted by this node.
fn granted_by(grants: Grants, node: usize) -> bool {
    grants.contains(&Some(node as u8))
}
