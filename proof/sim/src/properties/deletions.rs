//! Deletions in full memory take no memory, and inserts can use the freed memory.

use lotus_benchmarks::AbortReason;
use lotus_benchmarks::history::{Access, History, Operation, Status};
use lotus_benchmarks::stats::Tally;

use crate::scenario::pairs::LEAVES;
use crate::verdict::Violation;

/// Name of the property that deletions take no memory.
pub const DELETIONS: &str = "no deletion fails for want of memory";
/// Name of the property that deletions free memory.
pub const ROOM: &str = "inserts find the room that deletions leave";

/// Number of deletions, beyond the slots that compute nodes keep back for updates, after which an
/// insert must have found room. A judgement: each coordinator may have a few returned slots that
/// have not reached an inserting coordinator.
const MORE: u64 = 24;

/// Violation if a transaction that only deletes failed for want of memory. `names` has the names of
/// all transactions.
pub fn violations(names: &[&str], tally: &Tally) -> Option<Violation> {
    let counts = names.iter().position(|name| *name == LEAVES)?;
    let failed = tally.by_transaction[counts].aborted[AbortReason::MemoryFull.index()];
    (failed > 0).then(|| Violation {
        property: DELETIONS.to_owned(),
        detail: format!("{failed} attempts of {LEAVES} found no memory"),
    })
}

/// Violation if no insert commits after `healed_ns`, on the clients' clock, though more rows are
/// deleted than all compute nodes together keep slots back for updates; only in a run that has
/// filled memory.
pub fn without_room(
    history: &History,
    tally: &Tally,
    kept_back: u64,
    healed_ns: u64,
) -> Option<Violation> {
    if tally.total().aborted[AbortReason::MemoryFull.index()] == 0 {
        return None;
    }
    let committed = history.attempts().filter(|(attempt, _)| attempt.status == Status::Ok);
    let late = committed.filter(|(attempt, _)| attempt.end_ns > healed_ns);
    judge(late.filter_map(|(_, operations)| effect(operations)), kept_back)
}

fn judge(effects: impl Iterator<Item = Effect>, kept_back: u64) -> Option<Violation> {
    let mut deletions = 0;
    for effect in effects {
        match effect {
            Effect::Deletes => deletions += 1,
            Effect::Inserts => return None,
        }
    }
    (deletions >= kept_back + MORE).then(|| Violation {
        property: ROOM.to_owned(),
        detail: format!("{deletions} rows were deleted, {kept_back} slots are kept, none inserted"),
    })
}

/// Effect of an attempt on the number of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Deletes,
    /// Inserts at least one row, beside reads, updates and deletions.
    Inserts,
}

fn effect(operations: &[Operation]) -> Option<Effect> {
    let was_read = |row: &Operation| {
        let same = |read: &&Operation| (read.table, read.key) == (row.table, row.key);
        operations.iter().filter(same).any(|operation| operation.access == Access::Read)
    };
    let inserts = |row: &Operation| row.access == Access::Write && !was_read(row);
    if operations.iter().any(inserts) {
        return Some(Effect::Inserts);
    }
    let deletes = operations.iter().any(|operation| operation.access == Access::Delete);
    deletes.then_some(Effect::Deletes)
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{TableId, TxnId};

    use super::*;

    #[test]
    fn a_deletion_that_finds_no_memory_is_a_violation_and_an_insert_is_none() {
        let names = ["Enter", LEAVES];
        let mut tally = Tally::new(names.len());
        tally.by_transaction[0].aborted[AbortReason::MemoryFull.index()] = 3;
        tally.by_transaction[1].aborted[AbortReason::Logic.index()] = 3;
        assert_eq!(violations(&names, &tally), None);
        tally.by_transaction[1].aborted[AbortReason::MemoryFull.index()] = 2;
        let found = violations(&names, &tally).expect("a violation");
        assert_eq!(found.detail, "2 attempts of Leave found no memory");
        assert_eq!(violations(&["Enter"], &Tally::new(1)), None);
    }

    #[test]
    fn a_row_that_was_read_is_updated_and_another_is_inserted() {
        let version = Some(TxnId::from_raw(1));
        let on =
            |access, key: u64| Operation { access, table: TableId(0), key: key.into(), version };
        let (read, write, delete) = (Access::Read, Access::Write, Access::Delete);
        assert_eq!(effect(&[on(read, 2), on(write, 2)]), None);
        assert_eq!(effect(&[on(read, 2), on(write, 3)]), Some(Effect::Inserts));
        assert_eq!(effect(&[on(read, 2), on(delete, 2)]), Some(Effect::Deletes));
        let swap = [on(read, 2), on(delete, 2), on(write, 3)];
        assert_eq!(effect(&swap), Some(Effect::Inserts));
        assert_eq!(effect(&[on(read, 2)]), None);
    }

    #[test]
    fn more_deletions_than_slots_are_kept_leave_room_for_an_insert() {
        let run = |deletions: usize, inserts: usize| {
            let deleted = std::iter::repeat_n(Effect::Deletes, deletions);
            let inserted = std::iter::repeat_n(Effect::Inserts, inserts);
            judge(deleted.chain(inserted), 14).map(|violation| violation.property)
        };
        assert_eq!(run(37, 0), None);
        assert_eq!(run(38, 0), Some(ROOM.to_owned()));
        assert_eq!(run(90, 1), None);
    }
}
