//! Steps 3 to 9 of a transaction (docs/protocol.md): read, post, land, timestamp, visible.
//!
//! # What it is
//! The order of `engine/src/txn/commit.rs`. A batch is posted at once and lands verb by verb: in
//! order on each memory node, in any order between them, until the node is refused there. It lands
//! whether its coordinator is still alive or not.
//!
//! # What is one step here
//! Reading all rows and posting the data; the last verb of a batch, drawing the timestamp and
//! posting the next one; telling the caller. Events in between would find in memory the state
//! before or after, and telling the caller earlier makes the properties stricter.
//!
//! # What it is not
//! Records, inserts, deletes, purges, log entries that land in part.

use crate::locks::other;
use crate::rules::{Rule, World};
use crate::state::{
    Batch, CELLS, Entry, KEYS, Phase, Place, REPLICAS, Row, State, Txn, Verdict, Word, newest,
};

/// A verb of a commit's batch.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Log,
    Tag(usize),
    Show(usize, u8),
}

/// The memory node of a row's primary.
pub fn primary(key: usize) -> usize {
    key
}

/// Cell that the next version takes: one without a version, or the oldest.
fn victim(row: &Row) -> u8 {
    (0..CELLS as u8).min_by_key(|cell| row[usize::from(*cell)].time()).unwrap_or(0)
}

impl World {
    /// Verbs of a batch for one memory node, in order.
    fn verbs(&self, node: usize, batch: Batch, at: usize) -> Vec<Verb> {
        let writes = || self.writes(node);
        match batch {
            Batch::Data if self.breaks(Rule::LogBeforeCells) => {
                writes().map(Verb::Tag).chain([Verb::Log]).collect()
            }
            Batch::Data => [Verb::Log].into_iter().chain(writes().map(Verb::Tag)).collect(),
            Batch::Backups(time) => {
                let all = self.breaks(Rule::BackupsFirst);
                let here = writes().filter(|key| all || primary(*key) != at);
                here.map(|key| Verb::Show(key, time)).collect()
            }
            Batch::Primaries(time) => {
                let here = writes().filter(|key| primary(*key) == at);
                here.map(|key| Verb::Show(key, time)).collect()
            }
        }
    }

    /// Whether a node has all its locks and reaches the primaries of its rows.
    pub fn may_post(&self, state: &State, node: usize) -> bool {
        let Phase::Locking(grants) = state.nodes[node].phase else { return false };
        let reached = |key: usize| {
            let memory = &state.memory[primary(key)];
            !memory.lost && memory.fenced[node] <= state.nodes[node].life
        };
        !state.nodes[node].dead
            && self.writes(node).all(|key| grants[key].is_some() && reached(key))
    }

    /// Steps 3 to 6: reads the rows, chooses cells and posts the data; or gives up, because a row
    /// is in doubt or a lock does not count any more.
    pub fn post(&self, state: &mut State, node: usize) {
        let Phase::Locking(grants) = state.nodes[node].phase else { return };
        // Also when its granter has returned: the row has had another owner since.
        let is_over = |key: usize| {
            let kept = usize::from(state.locks[key].owner) == other(node);
            grants[key] == Some(other(node) as u8) && (state.nodes[node].notices_loss || !kept)
        };
        let lock_is_lost = (0..KEYS).any(is_over) && !self.breaks(Rule::LostLocksEndAttempts);
        let row = |key: usize| state.memory[primary(key)].rows[key];
        let in_doubt = |key: usize| row(key).iter().any(|word| word.writer().is_some());
        if lock_is_lost || self.writes(node).any(in_doubt) {
            return self.unlock(state, node);
        }
        let mut cells = [None; KEYS];
        let mut base = [0; KEYS];
        for key in self.writes(node) {
            cells[key] = Some(victim(&row(key)));
            base[key] = newest(&row(key));
        }
        let txn = state.txn(node);
        state.outcome(txn).base = base;
        let landed = [0; REPLICAS];
        state.nodes[node].phase = Phase::Posted { batch: Batch::Data, cells, grants, landed };
    }

    /// Whether a verb of a node's batch can take effect on a memory node.
    pub fn may_land(&self, state: &State, node: usize, at: usize) -> bool {
        let it = &state.nodes[node];
        self.may_take_effect(state, state.txn(node), it.phase, at)
    }

    /// Whether the next verb of this attempt's batch can take effect on a memory node.
    pub fn may_take_effect(&self, state: &State, txn: Txn, phase: Phase, at: usize) -> bool {
        let Phase::Posted { batch, landed, .. } = phase else { return false };
        let (memory, node) = (&state.memory[at], usize::from(txn.node));
        let left = usize::from(landed[at]) < self.verbs(node, batch, at).len();
        left && !memory.lost && memory.fenced[node] <= txn.life
    }

    /// Lets the next verb take effect; if it was the batch's last, a living coordinator goes on.
    pub fn land(&self, state: &mut State, node: usize, at: usize) {
        let phase = state.nodes[node].phase;
        state.nodes[node].phase = self.take_effect(state, state.txn(node), phase, at);
        if !state.nodes[node].dead {
            self.go_on(state, node);
        }
    }

    /// Lets the next verb of an attempt's batch take effect; returns the remaining batch.
    pub fn take_effect(&self, state: &mut State, txn: Txn, phase: Phase, at: usize) -> Phase {
        let Phase::Posted { batch, cells, grants, mut landed } = phase else { return phase };
        let node = usize::from(txn.node);
        let verb = self.verbs(node, batch, at)[usize::from(landed[at])];
        landed[at] += 1;
        let cell = |key: usize| usize::from(cells[key].expect("a cell was chosen"));
        let memory = &mut state.memory[at];
        match verb {
            Verb::Log => {
                let verdict = Verdict::Undecided;
                let named = match self.breaks(Rule::LogNamesAll) {
                    true => [cells[0], None],
                    false => cells,
                };
                let Txn { life, attempt, .. } = txn;
                let entry = Entry { life, attempt, cells: named, verdict };
                memory.logs[node] = Some(entry);
            }
            Verb::Tag(key) => memory.rows[key][cell(key)] = Word::tag(txn),
            Verb::Show(key, time) => {
                memory.rows[key][cell(key)] = Word::at(time);
                if primary(key) == at {
                    state.outcome(txn).shown = true;
                }
            }
        }
        Phase::Posted { batch, cells, grants, landed }
    }

    /// Steps 7 to 9, as far as batches have landed everywhere. A lost memory node answers nothing,
    /// so coordinators that need it wait.
    fn go_on(&self, state: &mut State, node: usize) {
        let txn = state.txn(node);
        let Phase::Posted { batch, cells, grants, landed } = state.nodes[node].phase else {
            return;
        };
        let has_landed = |at: usize| usize::from(landed[at]) == self.verbs(node, batch, at).len();
        if !(0..REPLICAS).all(has_landed) {
            return;
        }
        let next = match batch {
            Batch::Data => {
                state.clock += 1;
                let time = state.clock;
                let outcome = state.outcome(txn);
                outcome.time = time;
                outcome.told = self.breaks(Rule::RepliesWait);
                Batch::Backups(time)
            }
            Batch::Backups(time) => {
                state.outcome(txn).told = true;
                Batch::Primaries(time)
            }
            Batch::Primaries(_) => return state.nodes[node].phase = Phase::Visible(grants),
        };
        let none = self.breaks(Rule::BackupsFirst) && matches!(next, Batch::Primaries(_));
        state.nodes[node].phase = match none {
            true => Phase::Visible(grants),
            false => Phase::Posted { batch: next, cells, grants, landed: [0; REPLICAS] },
        };
    }

    /// Whether a compute node may die.
    pub fn may_die(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        let left = if it.life == 0 { state.faults.deaths } else { state.faults.relapses };
        left > 0 && !it.dead && it.place != Place::Free
    }

    /// Kills a compute node. Its batch may still land.
    pub fn die(&self, state: &mut State, node: usize) {
        match state.nodes[node].life {
            0 => state.faults.deaths -= 1,
            _ => state.faults.relapses -= 1,
        }
        let it = &mut state.nodes[node];
        it.dead = true;
        if !matches!(it.phase, Phase::Posted { .. }) {
            it.phase = Phase::Resting;
        }
    }
}
