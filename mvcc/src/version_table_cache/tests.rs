//! One row, one set, and a set compared with a list.

use lotus_fabric::ids::TxnId;
use proptest::prelude::*;

use super::*;
use crate::Timestamp;
use crate::layout::cvt::Contents;
use crate::naming::KeyMark;

const TABLE: TableId = TableId(1);

/// Cells of a CVT with the versions `from`, `from + 1` and so on.
fn cells(count: usize, from: u64) -> Vec<u64> {
    let cell = |index: usize| {
        let contents = Contents::Value { length: 16 };
        let taken = Cell::NEVER_USED.taken_by(TxnId::from_raw(7), contents, 64 + index as u64);
        let time = Timestamp::new(from + index as u64).expect("63 bits");
        Cell { version: Version::Committed(time), ..taken }.encode()
    };
    (0..count).flat_map(cell).collect()
}

/// Name and mark of row `row`. Rows from 1 << 48 apart share a name.
fn name(row: u64) -> RowName {
    let key = Key(row & (u64::MAX >> 16));
    RowName { key, mark: KeyMark::from_low_bits(row >> 48) }
}

fn keep(cache: &VersionTableCache, key: u64, offset: u64, cells: &[u64]) -> bool {
    cache.keep(TABLE, name(key), offset, cells, || true)
}

fn lookup(cache: &VersionTableCache, key: u64, count: usize) -> Option<(u64, Vec<u64>)> {
    let mut cells = vec![0; count * CELL_WORDS];
    let offset = cache.lookup(TABLE, name(key), &mut cells)?;
    Some((offset, cells))
}

#[test]
fn rows_of_every_width_are_kept_renewed_and_forgotten() {
    for count in 2..=MAX_CELLS {
        let cache = VersionTableCache::with_entries(100);
        assert_eq!(lookup(&cache, 5, count), None);
        assert!(keep(&cache, 5, 72, &cells(count, 10)));
        assert_eq!(lookup(&cache, 5, count), Some((72, cells(count, 10))));
        assert_eq!(cache.lookup(TableId(2), name(5), &mut []), None);
        for index in 0..count {
            let renewed: [u64; CELL_WORDS] = cells(1, 90)[..].try_into().expect("one cell");
            cache.renew(TABLE, name(5), 72, (index, renewed));
            let mut expected = cells(count, 10);
            expected[index * CELL_WORDS..][..CELL_WORDS].copy_from_slice(&renewed);
            assert_eq!(lookup(&cache, 5, count), Some((72, expected)), "{index} of {count}");
            assert!(keep(&cache, 5, 72, &cells(count, 10)));
        }
        cache.forget(TABLE, Key(5));
        cache.renew(TABLE, name(5), 72, (0, [0; CELL_WORDS]));
        assert_eq!(lookup(&cache, 5, count), None);
    }
}

#[test]
fn a_row_being_written_is_never_kept() {
    let cache = VersionTableCache::with_entries(8);
    let invisible =
        Cell::NEVER_USED.taken_by(TxnId::from_raw(7), Contents::Value { length: 16 }, 64).encode();
    let mut torn = cells(1, 3);
    torn[2] ^= 1 << 56;
    for second in [&invisible[..], &torn] {
        for words in [[&cells(1, 5), second].concat(), [second, &cells(1, 5)].concat()] {
            assert!(!keep(&cache, 1, 72, &words));
            assert_eq!(lookup(&cache, 1, 2), None);
        }
    }
    assert!(!cache.keep(TABLE, name(1), 72, &cells(2, 5), || false));
    assert_eq!(lookup(&cache, 1, 2), None);
}

#[test]
fn a_set_gives_up_the_row_that_was_not_used_for_longest() {
    let cache = VersionTableCache::with_entries(1);
    assert_eq!(cache.capacity(), WAYS);
    (0..8).for_each(|key| assert!(keep(&cache, key, 8 + key, &cells(2, 1))));
    assert!(lookup(&cache, 0, 2).is_some());
    assert!(keep(&cache, 100, 8, &cells(2, 1)));
    assert_eq!(lookup(&cache, 1, 2), None);
    // A place that was freed is used before another row has to go.
    cache.forget(TABLE, Key(5));
    assert!(keep(&cache, 101, 8, &cells(2, 1)));
    let kept = [0, 2, 3, 4, 6, 7, 100, 101].map(|key| lookup(&cache, key, 2).is_some());
    assert_eq!(kept, [true; WAYS]);
}

#[test]
fn rows_of_one_name_are_kept_apart_and_forgotten_together() {
    let cache = VersionTableCache::with_entries(8);
    let twin = |number: u64| 5 | number << 48;
    for number in 0..3 {
        assert!(keep(&cache, twin(number), 72 * (number + 1), &cells(2, 10 * (number + 1))));
    }
    let seen = || [0, 1, 2].map(|number| lookup(&cache, twin(number), 2));
    let kept = |number: u64, from| Some((72 * (number + 1), cells(2, from)));
    assert_eq!(seen(), [kept(0, 10), kept(1, 20), kept(2, 30)]);
    assert_eq!(lookup(&cache, twin(3), 2), None);
    // The row at another place is another row, though its mark be the same here.
    let renewed: [u64; CELL_WORDS] = cells(1, 90)[..].try_into().expect("one cell");
    cache.renew(TABLE, name(twin(1)), 72, (0, renewed));
    cache.renew(TABLE, name(twin(3)), 72, (0, renewed));
    assert_eq!(seen(), [kept(0, 10), kept(1, 20), kept(2, 30)]);
    cache.renew(TABLE, name(twin(1)), 144, (0, renewed));
    assert_eq!(seen()[1].as_ref().map(|(_, cells)| &cells[..3]), Some(&renewed[..]));
    cache.forget(TABLE, Key(5));
    assert_eq!(seen(), [None, None, None]);
}

#[test]
fn a_shard_is_forgotten_as_a_whole() {
    let cache = VersionTableCache::with_entries(256);
    let key = |row: u64, shard: u64| row << 12 | shard;
    for row in 0..32 {
        (1..3).for_each(|shard| assert!(keep(&cache, key(row, shard), 8, &cells(2, 1))));
    }
    cache.forget_shard(Key(key(0, 1)).shard());
    let mut left = 0;
    cache.for_each(|_, key, _, _| {
        assert_eq!(key.shard(), Key(2).shard());
        left += 1;
    });
    assert!(left > 24, "{left} of 32");
}

#[derive(Clone, Debug)]
enum Step {
    Lookup(u64),
    Keep(u64, u64),
    Renew(u64, usize, u64),
    Forget(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, version) = (0..24u64, 1..1000u64);
    let renew = (key.clone(), 0..3usize, version.clone());
    let step = prop_oneof![
        3 => key.clone().prop_map(Step::Lookup),
        3 => (key.clone(), version).prop_map(|(key, from)| Step::Keep(key, from)),
        1 => renew.prop_map(|(key, cell, at)| Step::Renew(key, cell, at)),
        1 => key.prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// One set behaves like a list in order of use.
    #[test]
    fn a_set_is_a_list_in_order_of_use(steps in steps()) {
        const CELLS: usize = 3;
        let cache = VersionTableCache::with_entries(WAYS);
        let mut model: Vec<(u64, Vec<u64>)> = Vec::new();
        for step in steps {
            match step {
                Step::Lookup(key) => {
                    let position = model.iter().position(|(kept, _)| *kept == key);
                    let row = position.map(|position| model.remove(position));
                    let found = lookup(&cache, key, CELLS).map(|(_, cells)| cells);
                    prop_assert_eq!(found, row.as_ref().map(|(_, cells)| cells.clone()));
                    model.splice(0..0, row);
                }
                Step::Keep(key, from) => {
                    prop_assert!(keep(&cache, key, 8 + key, &cells(CELLS, from)));
                    model.retain(|(kept, _)| *kept != key);
                    model.insert(0, (key, cells(CELLS, from)));
                    model.truncate(WAYS);
                }
                Step::Renew(key, index, at) => {
                    let cell: [u64; CELL_WORDS] = cells(1, at)[..].try_into().expect("one cell");
                    cache.renew(TABLE, name(key), 8 + key, (index, cell));
                    if let Some(position) = model.iter().position(|(kept, _)| *kept == key) {
                        let (_, mut cells) = model.remove(position);
                        cells[index * CELL_WORDS..][..CELL_WORDS].copy_from_slice(&cell);
                        model.insert(0, (key, cells));
                    }
                }
                Step::Forget(key) => {
                    cache.forget(TABLE, Key(key));
                    model.retain(|(kept, _)| *kept != key);
                }
            }
            let mut kept = Vec::new();
            cache.for_each(|_, key, _, cells| kept.push((key.0, cells.to_vec())));
            let mut expected = model.clone();
            kept.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(kept, expected);
        }
    }
}
