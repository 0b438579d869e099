//! Facts derived from a history before anything is judged: the role of each operation, the writer
//! of each version read, and the attempts that took effect.
//!
//! # Roles
//! Only an attempt's first read of a row shows the database's version, and only its last write of a
//! row is visible to others. The operations between concern only the attempt itself.
//!
//! # Sources
//! The source of a read is the operation that wrote the version. Versions are unique per row, so
//! the source is unique. Where two operations claim the same version, [`Trace::duplicates`] has
//! both, and the more likely operation is the source.
//!
//! # Attempts that took effect
//! All committed attempts, and every attempt of unknown outcome that a committed attempt has read
//! from, directly or through other attempts of unknown outcome. Further attempts of unknown outcome
//! may have taken effect or not; the assumption that they did not can hide a violation, never
//! invent a violation.

use crate::history::{AttemptIndex, History, Isolation, Kind, OpIndex, RowIndex, Status};

/// No operation.
pub(crate) const NONE: OpIndex = u32::MAX;
/// Writer of a row's initial state.
pub(crate) const INITIAL: OpIndex = u32::MAX - 1;

/// Role of an operation within its attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The first read of a row: shows the database's version.
    Read,
    /// A later read that agrees with the attempt's earlier read or write.
    Repeat,
    /// A later read that disagrees.
    Stray,
    /// The attempt's last write of a row.
    Write,
    /// An earlier write, replaced by the attempt itself.
    Overwritten,
}

/// The operations of each row, in the order of the file.
pub(crate) struct ByRow {
    starts: Vec<u32>,
    ops: Vec<OpIndex>,
}

impl ByRow {
    fn new(history: &History) -> Self {
        let mut starts = vec![0u32; history.row_count() + 1];
        for op in history.ops() {
            starts[op.row as usize + 1] += 1;
        }
        for row in 0..history.row_count() {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut ops = vec![NONE; history.operation_count()];
        for (index, op) in history.ops().iter().enumerate() {
            let place = &mut next[op.row as usize];
            ops[*place as usize] = index as u32;
            *place += 1;
        }
        Self { starts, ops }
    }

    pub(crate) fn ops(&self, row: RowIndex) -> &[OpIndex] {
        &self.ops[self.starts[row as usize] as usize..self.starts[row as usize + 1] as usize]
    }
}

/// A history with the facts derived from it.
pub(crate) struct Trace<'h> {
    pub(crate) history: &'h History,
    pub(crate) by_row: ByRow,
    /// Pairs of operations of different attempts with writes of the same version.
    pub(crate) duplicates: Vec<[OpIndex; 2]>,
    /// Attempt of each operation.
    owner: Vec<AttemptIndex>,
    role: Vec<Role>,
    /// For a read, the attempt's last write of the row; for a write, the attempt's read of the row.
    partner: Vec<OpIndex>,
    /// Write of the version of each read; [`INITIAL`], or [`NONE`] without a write.
    source: Vec<OpIndex>,
    /// Whether each attempt took effect.
    took_effect: Vec<bool>,
}

impl<'h> Trace<'h> {
    pub(crate) fn new(history: &'h History) -> Self {
        let ops = history.operation_count();
        let mut trace = Self {
            history,
            by_row: ByRow::new(history),
            duplicates: Vec::new(),
            owner: vec![0; ops],
            role: vec![Role::Read; ops],
            partner: vec![NONE; ops],
            source: vec![NONE; ops],
            took_effect: vec![false; history.attempts().len()],
        };
        trace.assign_roles();
        trace.find_sources();
        trace.settle();
        trace
    }

    pub(crate) fn owner(&self, op: OpIndex) -> AttemptIndex {
        self.owner[op as usize]
    }

    pub(crate) fn role(&self, op: OpIndex) -> Role {
        self.role[op as usize]
    }

    pub(crate) fn partner(&self, op: OpIndex) -> OpIndex {
        self.partner[op as usize]
    }

    pub(crate) fn source(&self, read: OpIndex) -> OpIndex {
        self.source[read as usize]
    }

    pub(crate) fn took_effect(&self, attempt: AttemptIndex) -> bool {
        self.took_effect[attempt as usize]
    }

    /// Name of an operation's version, for the text of a violation.
    pub(crate) fn version(&self, op: OpIndex) -> String {
        match self.history.op(op).kind {
            Kind::ReadInitial => "the initial state".to_owned(),
            _ => format!("version {}", self.history.op(op).version),
        }
    }

    /// Commit timestamp of the attempt of a write.
    pub(crate) fn commit_ts(&self, write: OpIndex) -> Option<u64> {
        self.history.attempt(self.owner(write)).commit_ts
    }

    /// Whether the operation is the last write of its row by an attempt that took effect.
    pub(crate) fn is_installed(&self, op: OpIndex) -> bool {
        op < INITIAL && self.role(op) == Role::Write && self.took_effect(self.owner(op))
    }

    /// Whether the read returned a state of the row from before its attempt's write: initial, or
    /// installed by another writer. A read of the attempt's own later write is an internal
    /// contradiction and says nothing about the order of versions.
    pub(crate) fn is_sound(&self, read: OpIndex) -> bool {
        let source = self.source(read);
        let is_foreign = |write| self.owner(write) != self.owner(read);
        source == INITIAL || (self.is_installed(source) && is_foreign(source))
    }

    /// The attempts that took effect.
    pub(crate) fn effective(&self) -> impl Iterator<Item = AttemptIndex> {
        self.history.indexes().filter(|attempt| self.took_effect(*attempt))
    }

    /// First reads of rows by attempts that took effect.
    pub(crate) fn reads(&self) -> impl Iterator<Item = OpIndex> {
        let ops = self.effective().flat_map(|attempt| self.history.ops_of(attempt));
        ops.filter(|op| self.role(*op) == Role::Read)
    }

    /// Last writes of rows by attempts that took effect.
    pub(crate) fn writes(&self) -> impl Iterator<Item = OpIndex> {
        let ops = self.effective().flat_map(|attempt| self.history.ops_of(attempt));
        ops.filter(|op| self.role(*op) == Role::Write)
    }

    fn assign_roles(&mut self) {
        // By row: the last attempt on the row, plus one, and the attempt's first read or last
        // write.
        let mut touched = vec![(0u32, NONE); self.history.row_count()];
        for attempt in self.history.indexes() {
            for op in self.history.ops_of(attempt) {
                self.owner[op as usize] = attempt;
                let place = &mut touched[self.history.op(op).row as usize];
                let before = if place.0 == attempt + 1 { place.1 } else { NONE };
                let is_write = self.history.op(op).kind == Kind::Write;
                if is_write || before == NONE {
                    *place = (attempt + 1, op);
                }
                self.role[op as usize] = match (is_write, before) {
                    (true, _) => {
                        self.follow(op, before);
                        Role::Write
                    }
                    (false, NONE) => Role::Read,
                    (false, _) if self.shows(op, before) => Role::Repeat,
                    (false, _) => Role::Stray,
                };
            }
        }
    }

    /// Links a write to the same attempt's read of the row, and marks an earlier write as replaced.
    fn follow(&mut self, write: OpIndex, before: OpIndex) {
        if before == NONE {
            return;
        }
        let read = if self.role(before) == Role::Read {
            before
        } else {
            self.role[before as usize] = Role::Overwritten;
            self.partner(before)
        };
        self.partner[write as usize] = read;
        if read != NONE {
            self.partner[read as usize] = write;
        }
    }

    /// Whether a read shows the version of an earlier operation.
    fn shows(&self, read: OpIndex, before: OpIndex) -> bool {
        let [read, before] = [self.history.op(read), self.history.op(before)];
        let initial = Kind::ReadInitial;
        read.version == before.version && (read.kind == initial) == (before.kind == initial)
    }

    fn find_sources(&mut self) {
        // Version, improbability of the write, operation.
        let mut versions: Vec<(u64, u8, OpIndex)> = Vec::new();
        for row in 0..self.history.row_count() as u32 {
            versions.clear();
            for &op in self.by_row.ops(row) {
                if self.history.op(op).kind == Kind::Write {
                    versions.push((self.history.op(op).version, self.doubt(op), op));
                }
            }
            versions.sort_unstable();
            for pair in versions.windows(2) {
                let ops = [pair[0].2, pair[1].2];
                if pair[0].0 == pair[1].0 && self.owner(ops[0]) != self.owner(ops[1]) {
                    self.duplicates.push(ops);
                }
            }
            for &op in self.by_row.ops(row) {
                let read = self.history.op(op);
                self.source[op as usize] = match read.kind {
                    Kind::Write => NONE,
                    Kind::ReadInitial => INITIAL,
                    Kind::Read => {
                        let first = versions.partition_point(|version| version.0 < read.version);
                        let found = versions.get(first).filter(|found| found.0 == read.version);
                        found.map_or(NONE, |found| found.2)
                    }
                };
            }
        }
    }

    fn doubt(&self, write: OpIndex) -> u8 {
        let status = match self.history.attempt(self.owner(write)).status {
            Status::Committed => 0,
            Status::Unknown => 2,
            Status::Aborted => 4,
        };
        status + u8::from(self.role(write) == Role::Overwritten)
    }

    fn settle(&mut self) {
        let committed =
            |attempt: &AttemptIndex| self.history.attempt(*attempt).status == Status::Committed;
        let mut pending: Vec<AttemptIndex> = self.history.indexes().filter(committed).collect();
        for attempt in &pending {
            self.took_effect[*attempt as usize] = true;
        }
        while let Some(attempt) = pending.pop() {
            for op in self.history.ops_of(attempt) {
                let source = self.source(op);
                if self.role(op) != Role::Read || source >= INITIAL {
                    continue;
                }
                let writer = self.owner(source);
                let unknown = self.history.attempt(writer).status == Status::Unknown;
                if unknown && !self.took_effect(writer) {
                    self.took_effect[writer as usize] = true;
                    pending.push(writer);
                }
            }
        }
    }

    /// Whether an attempt has two points in time, its snapshot and its commit.
    pub(crate) fn has_snapshot_point(&self, attempt: AttemptIndex) -> bool {
        self.history.attempt(attempt).isolation == Isolation::Snapshot
    }
}
