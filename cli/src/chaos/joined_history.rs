//! Joins the histories that applications saw in several lives of a cluster into one history. Each
//! life began with the snapshot that ended the life before.
//!
//! # Names of versions
//! A restored row has no writer, and ids of attempts start anew in each life. So an attempt's id is
//! extended by the number of its life, and a read of a restored row is taken to read the last
//! version of the life before: the only version not replaced in that life. If a row was written
//! without being read, the last version may be unknown: such reads are left out.
//!
//! # What it is not
//! A check of values: these are checked elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use lotus::PrimaryKey;
use lotus_benchmarks::history::{Access, Attempt, History, Log, Operation};
use lotus_fabric::ids::{TableId, TxnId};

/// Bits of an attempt's number below the number of its life.
const ATTEMPT_BITS: u32 = 32;

type Row = (TableId, PrimaryKey);

/// Joined history of the lives so far.
#[derive(Default)]
pub struct JoinedHistory {
    count: u64,
    /// Tables, with their ids of the first life.
    tables: Vec<(TableId, String)>,
    log: Log,
    /// Last version of each row written; `None` if unknown.
    last: BTreeMap<Row, Option<TxnId>>,
}

/// Versions of a row that one life wrote, deleted, and replaced.
#[derive(Default)]
struct Written {
    versions: BTreeSet<TxnId>,
    deletions: BTreeSet<TxnId>,
    replaced: BTreeSet<TxnId>,
}

impl JoinedHistory {
    /// Adds the next life.
    pub fn add(&mut self, tables: Vec<(TableId, String)>, logs: Vec<Log>) {
        if self.tables.is_empty() {
            self.tables.clone_from(&tables);
        }
        let mut written: BTreeMap<Row, Written> = BTreeMap::new();
        let mut log = std::mem::take(&mut self.log);
        let names = tables.clone();
        for (attempt, operations) in History::new(tables, logs).attempts() {
            let operations: Vec<Operation> = operations
                .iter()
                .filter_map(|operation| self.translate(&names, *operation))
                .collect();
            note(&mut written, &operations);
            log.add(Attempt { id: self.of_this_life(attempt.id), ..*attempt }, operations);
        }
        self.log = log;
        self.last.extend(written.into_iter().map(|(row, written)| (row, written.last())));
        self.count += 1;
    }

    /// Returns the joined history.
    pub fn into_history(self) -> History {
        History::new(self.tables, vec![self.log])
    }

    fn of_this_life(&self, id: TxnId) -> TxnId {
        let attempt = id.attempt();
        assert!(attempt >> ATTEMPT_BITS == 0, "nobody makes so many attempts in a run");
        TxnId::new(id.incarnation(), id.slot(), self.count << ATTEMPT_BITS | attempt)
    }

    /// Translates an operation to ids valid across all lives; `None` if its version is unknown.
    fn translate(&self, names: &[(TableId, String)], operation: Operation) -> Option<Operation> {
        let name = names.iter().find(|(id, _)| *id == operation.table).map(|(_, name)| name);
        let table = self.tables.iter().find(|(_, known)| Some(known) == name);
        let table = table.map_or(operation.table, |(id, _)| *id);
        let version = match operation.version {
            Some(writer) => Some(self.of_this_life(writer)),
            None => match self.last.get(&(table, operation.key)) {
                Some(last) => Some((*last)?),
                None => None,
            },
        };
        Some(Operation { table, version, ..operation })
    }
}

/// Records the effects of one attempt on rows.
fn note(written: &mut BTreeMap<Row, Written>, operations: &[Operation]) {
    for operation in operations.iter().filter(|operation| operation.access != Access::Read) {
        let Some(version) = operation.version else { continue };
        let row = (operation.table, operation.key);
        let known = written.entry(row).or_default();
        known.versions.insert(version);
        if operation.access == Access::Delete {
            known.deletions.insert(version);
        }
        let read = operations.iter().filter(|read| read.access == Access::Read);
        let read = read.filter(|read| (read.table, read.key) == row);
        let before = read.filter_map(|read| read.version);
        known.replaced.extend(before.filter(|before| *before != version));
    }
}

impl Written {
    /// Last version of the row; `None` if there are several candidates. Deletions count only if no
    /// other version is left.
    fn last(&self) -> Option<TxnId> {
        let left = || self.versions.difference(&self.replaced).copied();
        let mut there = left().filter(|version| !self.deletions.contains(version));
        match (there.next(), there.next()) {
            (Some(last), None) => Some(last),
            (Some(_), Some(_)) => None,
            (None, _) => left().last(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_benchmarks::engine::{Isolation, Receipt};
    use lotus_benchmarks::history::Status;
    use lotus_fabric::ids::Incarnation;

    fn id(attempt: u64) -> TxnId {
        TxnId::new(Incarnation::new(1).expect("it fits"), 3, attempt)
    }

    fn attempt(id: TxnId) -> Attempt {
        Attempt {
            id,
            session: 0,
            start_ns: id.attempt(),
            end_ns: id.attempt() + 1,
            isolation: Isolation::Serializable,
            status: Status::Ok,
            receipt: Receipt::default(),
        }
    }

    /// Access of an attempt, its key, and the version.
    type Done = (Access, u64, Option<u64>);

    /// Attempts on one table with this id.
    fn life(table: u16, attempts: &[(u64, &[Done])]) -> (Vec<(TableId, String)>, Vec<Log>) {
        let table = TableId(table);
        let mut log = Log::default();
        for (number, operations) in attempts {
            let operation = |(access, key, version): &(Access, u64, Option<u64>)| Operation {
                access: *access,
                table,
                key: (*key).into(),
                version: version.map(id),
            };
            log.add(attempt(id(*number)), operations.iter().map(operation));
        }
        (vec![(table, "rows".to_owned())], vec![log])
    }

    fn versions(lives: JoinedHistory) -> Vec<Vec<Option<u64>>> {
        let history = lives.into_history();
        let versions = |(_, operations): (_, &[Operation])| {
            operations.iter().map(|op| op.version.map(TxnId::attempt)).collect()
        };
        history.attempts().map(versions).collect()
    }

    #[test]
    fn who_reads_a_restored_row_reads_what_was_written_last() {
        use Access::{Delete, Read, Write};
        let mut lives = JoinedHistory::default();
        let (tables, logs) = life(
            7,
            &[
                // In the order in which they ended, which is not that of the versions.
                (2, &[(Read, 1, Some(1)), (Write, 1, Some(2))]),
                (1, &[(Read, 1, None), (Write, 1, Some(1))]),
                (3, &[(Write, 5, Some(3))]),
                (4, &[(Read, 5, Some(3)), (Delete, 5, Some(4))]),
                (5, &[(Write, 5, Some(5))]),
                (6, &[(Write, 6, Some(6))]),
                (7, &[(Write, 6, Some(7))]),
            ],
        );
        lives.add(tables, logs);
        let (tables, logs) = life(
            9,
            &[
                (1, &[(Read, 1, None), (Write, 1, Some(1))]),
                (2, &[(Read, 1, Some(1)), (Read, 2, None), (Read, 5, None), (Read, 6, None)]),
            ],
        );
        lives.add(tables, logs);
        let (tables, logs) = life(9, &[(1, &[(Read, 1, None), (Read, 5, None)])]);
        lives.add(tables, logs);
        let second = |attempt: u64| Some(1 << ATTEMPT_BITS | attempt);
        assert_eq!(
            versions(lives)[7..],
            [
                vec![Some(2), second(1)],
                // Which of two blind writes was the last one is not known.
                vec![second(1), None, Some(5)],
                vec![second(1), Some(5)],
            ]
        );
    }
}
