//! Tests of the format: what is written is read back, and what is damaged is found.

use super::*;

const SPEC: TableSpec = TableSpec::new("numbers").record_bytes(4).capacity(9);

fn at(time: u64) -> SnapshotHead {
    let timestamp = Timestamp::new(time).expect("63 bits");
    let life = SnapshotLife { number: 2, cluster: 3, id: 4 };
    SnapshotHead { timestamp, label: SnapshotLabel { life, sequence: 5, taken: Nanos(70) } }
}

/// Two tables, three rows.
fn sample(timestamp: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&mut bytes, &at(timestamp)).expect("memory takes it");
    writer.table(&SPEC).expect("memory takes it");
    for row in 1..=2_u32 {
        let mut payload = Vec::new();
        push_row(&mut payload, &u64::from(row).into(), &row.to_le_bytes());
        writer.rows(&payload, 1).expect("memory takes it");
    }
    writer.table(&TableSpec::new("empty").record_bytes(1).capacity(1)).expect("so it does");
    let info = writer.end(b"notes".to_vec()).expect("memory takes it");
    assert_eq!(info.bytes, bytes.len() as u64);
    bytes
}

/// Names of the tables, and rows by table.
#[derive(Default, PartialEq, Eq, Debug)]
struct Seen(Vec<String>, Vec<(usize, PrimaryKey, Vec<u8>)>);

impl SnapshotVisitor for Seen {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.0.push(spec.name.into_owned());
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        self.1.push((self.0.len(), key, value.to_vec()));
        Ok(())
    }
}

fn read(mut bytes: &[u8]) -> Result<SnapshotInfo, SnapshotError> {
    read_snapshot(&mut bytes, &mut ())
}

#[test]
fn what_is_written_is_read_back() {
    let bytes = sample(77);
    let mut seen = Seen::default();
    let info = read_snapshot(&mut &bytes[..], &mut seen).expect("it is sound");
    let notes = b"notes".to_vec();
    let head = at(77);
    let length = bytes.len() as u64;
    assert_eq!(info, SnapshotInfo { head, tables: 2, rows: 2, bytes: length, notes });
    assert_eq!(read_snapshot_head(&mut &bytes[..]).expect("it is sound"), head);
    let rows = [(1, 1.into(), vec![1, 0, 0, 0]), (1, 2.into(), vec![2, 0, 0, 0])];
    assert_eq!(seen, Seen(vec!["numbers".to_owned(), "empty".to_owned()], rows.to_vec()));
}

/// Returns a file in the format without labels: one table, one row.
fn unlabelled(timestamp: u64) -> Vec<u8> {
    let mut bytes = magic(UNLABELLED).to_vec();
    let mut before = xxh3_64(&bytes);
    let (mut table, mut rows) = (Vec::new(), Vec::new());
    encode_spec(&SPEC, &mut table);
    push_row(&mut rows, &3.into(), &[9; 4]);
    let end = [&1_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), b"notes"].concat();
    let begin = timestamp.to_le_bytes().to_vec();
    for (kind, payload) in [(BEGIN, begin), (TABLE, table), (ROWS, rows), (END, end)] {
        bytes.extend(block_head(&mut before, kind, &payload));
        bytes.extend(payload);
    }
    bytes
}

#[test]
fn a_file_without_a_label_is_read_as_the_first_of_all() {
    let bytes = unlabelled(77);
    let mut seen = Seen::default();
    let info = read_snapshot(&mut &bytes[..], &mut seen).expect("it is sound");
    let label = SnapshotLabel { taken: Nanos(77), ..SnapshotLabel::default() };
    assert_eq!(info.head, SnapshotHead { timestamp: at(77).timestamp, label });
    assert_eq!((info.rows, info.notes), (1, b"notes".to_vec()));
    assert_eq!(seen.1, [(1, 3.into(), vec![9; 4])]);
    assert_eq!(read_snapshot_head(&mut &bytes[..]).expect("it is sound"), info.head);
    // It has no label, which a file of the later format must have.
    let mut later = bytes;
    later[8] = FORMAT as u8;
    assert!(matches!(read(&later), Err(SnapshotError::Damaged)));
    later[8] = FORMAT as u8 + 1;
    let refused = read(&later).expect_err("nobody knows that format");
    let why = "it has format 6, and this program reads formats up to 5";
    assert_eq!(refused.to_string(), why);
}

/// Numbers of dropped tables that a file names.
#[derive(Default)]
struct Numbers(Vec<u32>);

impl SnapshotVisitor for Numbers {
    fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
        self.0.push(0);
        Ok(())
    }

    fn dropped(&mut self, count: u32) -> Result<(), SnapshotError> {
        self.0.push(count);
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }
}

#[test]
fn numbers_of_dropped_tables_are_told_from_the_third_format_on() {
    let written = |counts: [u32; 2]| {
        let mut bytes = Vec::new();
        let mut writer = Writer::begin(&mut bytes, &at(77)).expect("memory takes it");
        writer.dropped(counts[0]).expect("memory takes it");
        writer.table(&SPEC).expect("memory takes it");
        writer.dropped(counts[1]).expect("memory takes it");
        writer.end(Vec::new()).expect("memory takes it");
        bytes
    };
    let (bytes, mut seen) = (written([2, 7]), Numbers::default());
    let info = read_snapshot(&mut &bytes[..], &mut seen).expect("it is sound");
    assert_eq!((info.tables, seen.0), (1, vec![2, 0, 7]));
    for counts in [[0, 7], [1 << 16, 7]] {
        assert!(matches!(read(&written(counts)), Err(SnapshotError::Damaged)), "{counts:?}");
    }
    let mut earlier = magic(WITHOUT_DROPPED).to_vec();
    let mut before = xxh3_64(&earlier);
    for (kind, payload) in [(BEGIN, &at(77).encode()[..]), (DROPPED, &[1, 0, 0, 0])] {
        earlier.extend(block_head(&mut before, kind, payload));
        earlier.extend(payload);
    }
    assert!(matches!(read(&earlier), Err(SnapshotError::Damaged)));
}

/// Secrets that a file names.
#[derive(Default)]
struct Secrets(Vec<Secret>);

impl SnapshotVisitor for Secrets {
    fn secret(&mut self, secret: Secret) -> Result<(), SnapshotError> {
        self.0.push(secret);
        Ok(())
    }

    fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }
}

#[test]
fn the_secret_comes_once_and_first_from_the_fifth_format_on() {
    let secret = Secret::from_seed(7).to_bytes();
    let file = |format: u32, blocks: &[(u32, &[u8])]| {
        let mut bytes = magic(format).to_vec();
        let mut before = xxh3_64(&bytes);
        for (kind, payload) in [&[(BEGIN, &at(77).encode()[..])], blocks].concat() {
            bytes.extend(block_head(&mut before, kind, payload));
            bytes.extend(payload);
        }
        let mut seen = Secrets::default();
        read_snapshot(&mut &bytes[..], &mut seen).map(|_| seen.0)
    };
    let mut spec = Vec::new();
    encode_spec(&SPEC, &mut spec);
    let (end, end_of_one) = ([0; 12], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let sound = file(FORMAT, &[(SECRET, &secret), (END, &end)]).expect("it is sound");
    assert_eq!(sound, [Secret::from_seed(7)]);
    assert_eq!(file(FORMAT, &[(END, &end)]).expect("it is sound"), []);
    let refused = [
        file(WITHOUT_SECRET, &[(SECRET, &secret), (END, &end)]),
        file(FORMAT, &[(SECRET, &secret), (SECRET, &secret), (END, &end)]),
        file(FORMAT, &[(SECRET, &secret[1..]), (END, &end)]),
        file(FORMAT, &[(TABLE, &spec), (SECRET, &secret), (END, &end_of_one)]),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(SnapshotError::Damaged)), "{refused:?}");
    }
}

#[test]
fn every_cut_is_found() {
    let bytes = sample(77);
    for end in 0..bytes.len() {
        assert!(matches!(read(&bytes[..end]), Err(SnapshotError::Cut)), "cut at {end}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(read(&longer), Err(SnapshotError::Damaged)));
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = sample(77);
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let refused = read(&flipped).expect_err("it is not what was written");
        let as_it_should = match bit / 8 {
            0..8 => matches!(refused, SnapshotError::Foreign),
            // Of an earlier format, whose files have other checksums.
            8 if (UNLABELLED..FORMAT).contains(&flipped[8].into()) => {
                matches!(refused, SnapshotError::Damaged)
            }
            8..12 => matches!(refused, SnapshotError::OtherFormat { .. }),
            _ => matches!(refused, SnapshotError::Damaged | SnapshotError::Cut),
        };
        assert!(as_it_should, "bit {bit}: {refused}");
    }
}

/// Blocks that are whole but in the wrong place.
#[test]
fn blocks_of_another_place_or_snapshot_are_found() {
    let (one, other) = (sample(77), sample(78));
    let length = |at: usize| u32::from_le_bytes(one[at + 4..at + 8].try_into().unwrap());
    let mut starts = vec![HEAD_BYTES];
    while let Some(next) = starts.last().filter(|at| **at < one.len()) {
        starts.push(next + BLOCK_HEAD_BYTES + length(*next) as usize);
    }
    assert_eq!((starts.len(), starts.last()), (7, Some(&one.len())));
    let block = |index: usize| &one[starts[index]..starts[index + 1]];
    let without = [&one[..starts[2]], &one[starts[3]..]].concat();
    let swapped = [&one[..starts[2]], block(3), block(2), &one[starts[4]..]].concat();
    let twice = [&one[..starts[3]], block(2), &one[starts[3]..]].concat();
    let mixed = [&one[..starts[3]], &other[starts[3]..]].concat();
    for bytes in [without, swapped, twice, mixed] {
        assert!(matches!(read(&bytes), Err(SnapshotError::Damaged)));
    }
}

#[test]
fn a_row_that_its_table_does_not_hold_is_found() {
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&mut bytes, &at(1)).expect("memory takes it");
    writer.table(&SPEC).expect("memory takes it");
    let mut payload = Vec::new();
    push_row(&mut payload, &1.into(), &[0; 5]);
    writer.rows(&payload, 1).expect("memory takes it");
    writer.end(Vec::new()).expect("memory takes it");
    assert!(matches!(read(&bytes), Err(SnapshotError::Damaged)));
}
