//! The rules of waiting, case by case.

use super::*;
use crate::lock_key::LockMode::{Read, Write};
use lotus_fabric::ids::{Key, TableId};

const A: LockKey = LockKey::row(TableId(1), Key(1));

fn order(table: u16, space: LockSpace, key: u64) -> WaitOrder {
    WaitOrder::of(&LockKey { table: TableId(table), space, key: Key(key) })
}

#[test]
fn buckets_come_last_and_the_first_tables_after_later_ones() {
    use LockSpace::{Bucket, Row};
    let ascending = [
        order(9, Row, 3),
        order(9, Row, u64::MAX),
        order(1, Row, 0),
        order(0, Row, 7),
        order(9, Bucket, 0),
        order(0, Bucket, 0),
    ];
    assert!(ascending.is_sorted_by(|one, next| one < next));
}

#[test]
fn a_transaction_waits_only_above_what_it_holds() {
    let at = |key| order(1, LockSpace::Row, key);
    // (highest held, wanted, may wait)
    let cases = [
        (None, at(1), true),
        (Some(at(1)), at(2), true),
        (Some(at(2)), at(2), false),
        (Some(at(3)), at(2), false),
    ];
    for (highest, wanted, may) in cases {
        assert_eq!(may_wait(highest, wanted), may, "{highest:?} {wanted:?}");
    }
    let names = [3, 1, 2].map(|key| LockKey::row(TableId(1), Key(key)));
    assert_eq!(highest(&names), Some(at(3)));
    assert_eq!(highest([]), None);
}

#[test]
fn requests_join_behind_all_that_are_as_old() {
    // (ages in the queue, own, place)
    let cases: [(&[u64], u64, usize); 5] =
        [(&[], 5, 0), (&[1, 2], 5, 2), (&[1, 5, 5, 9], 5, 3), (&[6, 7], 5, 0), (&[5], 5, 1)];
    for (ages, since, place) in cases {
        let ages = ages.iter().map(|age| Nanos(*age));
        assert_eq!(place_in_queue(ages, Nanos(since)), place, "{since}");
    }
}

#[test]
fn a_waiting_request_is_granted_in_its_turn_or_refused_for_good() {
    use WaitVerdict::{Grant as Granted, Refuse, Wait};
    let (free, written, read) = (Counter::FREE, Counter::WRITTEN, Counter::read_by);
    let none = OwnLocks::default();
    let twin = OwnLocks { name: None, records: 1 };
    // (counter, my locks in the slot, mode, name held by others, overtakes, verdict)
    let cases = [
        (free, none, Write, false, false, Granted(Grant::Acquired, written)),
        (free, none, Read, false, false, Granted(Grant::Acquired, read(1))),
        (read(1), none, Read, true, false, Granted(Grant::Acquired, read(2))),
        // A reader behind a writer that waits.
        (read(1), none, Read, true, true, Wait),
        (free, none, Write, false, true, Wait),
        (read(1), none, Write, true, false, Wait),
        (written, none, Read, true, false, Wait),
        (written, none, Write, true, false, Wait),
        // Only names that look the same are held: their order says nothing about this one.
        (written, none, Write, false, false, Refuse),
        (read(2), none, Write, false, false, Refuse),
        (read(2), twin, Write, false, false, Refuse),
        // Its own other name is in the slot.
        (written, twin, Write, false, false, Granted(Grant::Acquired, written)),
        (read(127), none, Read, true, false, Wait),
    ];
    for (counter, mine, mode, held, overtakes, verdict) in cases {
        let request = LockRequest { name: A, mode };
        let decided = judge(counter, mine, request, held, overtakes);
        assert_eq!(decided, verdict, "{counter:?} {mine:?} {mode:?} {held} {overtakes}");
    }
}
