//! Entries survive encoding and decoding, and anything but a whole entry is refused.

use super::*;
use lotus_fabric::ids::Incarnation;
use proptest::prelude::*;

fn txn(attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).unwrap(), 2, attempt)
}

fn write(index: u64) -> LoggedWrite {
    let kinds = [WriteKind::Update, WriteKind::Insert, WriteKind::Delete];
    LoggedWrite {
        group: index as u8,
        table: TableId(u16::MAX - index as u16),
        kind: kinds[index as usize % 3],
        cvt: MAX_OFFSET - 72 * index,
        cell: (index % 7) as u8,
        record: 64 * index,
    }
}

fn entry(attempt: u64, writes: u64) -> Vec<u64> {
    let mut words = vec![0; entry_words(writes as usize)];
    let used = LogEntry::encode(
        &mut words,
        txn(attempt),
        Epoch(9),
        (0..writes as u16).map(|index| write(index.into())),
    );
    assert_eq!(used, words.len());
    words
}

#[test]
fn the_words_are_where_the_essay_says() {
    let first = LoggedWrite {
        group: 0xAB,
        table: TableId(0x1234),
        kind: WriteKind::Delete,
        cvt: 0x11_2233_4455,
        cell: 0x0C,
        record: 0x66_7788_99AA,
    };
    let mut words = [0; 6];
    LogEntry::encode(&mut words, txn(5), Epoch(0xDEAD_BEEF), [first]);
    assert_eq!(words[0], txn(5).raw());
    assert_eq!(words[1], 0x0100_0001_DEAD_BEEF);
    assert_eq!(words[3], 0);
    assert_eq!(words[4], 0x030C_AB11_2233_4455);
    assert_eq!(words[5], 0x0012_3466_7788_99AA);
}

#[test]
fn what_is_not_an_entry_says_why() {
    let whole = entry(1, 3);
    let with = |index: usize, word: u64| {
        let mut words = whole.clone();
        words[index] = word;
        LogEntry::decode(&words).map(|entry| entry.decision())
    };
    let cases = [
        ("never used", with(0, 0), Err(LogError::Empty)),
        ("the shape has not landed", with(1, 0), Err(LogError::Torn)),
        ("another format", with(1, whole[1] ^ 3 << 56), Err(LogError::Format { found: 2 })),
        ("longer than its slot", with(1, whole[1] + (1 << 32)), Err(LogError::Torn)),
        ("the checksum has not landed", with(2, 0), Err(LogError::Torn)),
        ("a write has not landed", with(7, 0), Err(LogError::Torn)),
        ("rolled back", with(3, 1), Ok(DecisionWord::Back)),
        ("rolled forward", with(3, 2), Ok(DecisionWord::Forward(Timestamp::new(2).unwrap()))),
        ("resolved", with(3, u64::MAX), Ok(DecisionWord::Done)),
        ("no decision has the top bit", with(3, 1 << 63), Err(LogError::Format { found: 1 })),
    ];
    for (what, got, expected) in cases {
        assert_eq!(got, expected, "{what}");
    }
    assert!(matches!(LogEntry::decode(&whole[..3]), Err(LogError::Torn)));
}

/// A checksum shows that words belong together, not that they make sense.
#[test]
fn a_well_summed_entry_with_unknown_contents_is_of_another_format() {
    let broken = [(0, 1 << 63), (1, 1 << 48), (4, 0xFF << 56), (5, 1 << 63)];
    for (index, flipped) in broken {
        let mut words = entry(1, 2);
        words[index] ^= flipped;
        let (header, body) = words.split_at(HEADER_WORDS);
        words[CHECKSUM_WORD] = checksum(header, body);
        assert!(matches!(LogEntry::decode(&words), Err(LogError::Format { found: 1 })));
    }
}

#[test]
fn slots_tile_the_region_in_whole_lines() {
    let geometry = LogGeometry::new(3, 16, DEFAULT_MAX_WRITES).unwrap();
    assert_eq!(geometry.slot_bytes(), 8256);
    let offsets = (0..3).flat_map(|node| (0..16).map(move |slot| geometry.offset(node, slot)));
    assert!(offsets.eq((0..48).map(|index| index * 8256)));
    assert_eq!(geometry.region_bytes(), 48 * 8256);
}

#[test]
fn senseless_geometries_are_refused() {
    for (compute_nodes, slots, max_writes) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let refused = LogGeometry::new(compute_nodes, slots, max_writes);
        assert_eq!(refused, Err(GeometryError::Zero));
    }
    assert!(LogGeometry::new(64, 1024, 1).is_ok());
    let refused = LogGeometry::new(64, 1025, 1);
    assert_eq!(refused, Err(GeometryError::TooManySlots { slots: 1025 }));
}

#[test]
#[should_panic(expected = "no such log slot")]
fn a_slot_of_another_node_is_out_of_reach() {
    LogGeometry::new(2, 4, 1).unwrap().offset(0, 4);
}

proptest! {
    #[test]
    fn entries_survive_the_trip(
        attempt in 0..=TxnId::MAX_ATTEMPT,
        writes in 1_u64..=512,
        leftover in any::<u64>(),
    ) {
        let mut words = entry(attempt, writes);
        words.push(leftover);
        let read = LogEntry::decode(&words).unwrap();
        prop_assert_eq!((read.txn(), read.epoch()), (txn(attempt), Epoch(9)));
        prop_assert_eq!(read.decision(), DecisionWord::Undecided);
        prop_assert!(read.writes().eq((0..writes).map(write)));
    }

    /// H16: a mix of an entry with its predecessor is neither of the two, unless the missing words
    /// made no difference.
    #[test]
    fn h16_a_mix_of_two_entries_is_not_an_entry(
        old_writes in 1_u64..6,
        new_writes in 1_u64..6,
        landed in proptest::collection::vec(any::<bool>(), entry_words(6)),
    ) {
        let (old, new) = (entry(1, old_writes), entry(2, new_writes));
        let mut slot = vec![0; entry_words(6)];
        slot[..old.len()].copy_from_slice(&old);
        for (index, &word) in new.iter().enumerate() {
            if landed[index] {
                slot[index] = word;
            }
        }
        let whole = |entry: &[u64]| slot[..entry.len()] == *entry;
        let read = LogEntry::decode(&slot).map(|entry| entry.txn());
        let expected = match () {
            () if whole(&new) => Ok(txn(2)),
            () if whole(&old) => Ok(txn(1)),
            () => Err(LogError::Torn),
        };
        prop_assert_eq!(read, expected);
    }
}
