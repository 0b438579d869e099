//! Made-up snapshot files. See [`crate::fuzzing`].

use lotus_fabric::env::Nanos;
use lotus_mvcc::{PrimaryKey, Secret, TableSpec, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{BLOCK_HEAD_BYTES, HEAD_BYTES, Writer, block_head, checksum, magic, push_row};
use super::{SnapshotError, SnapshotHead, SnapshotLabel, SnapshotLife, SnapshotVisitor};
use super::{read_snapshot, read_snapshot_head};

/// Counts the tables and rows, and checks each row against its table.
#[derive(Default)]
struct Checked {
    spec: Option<TableSpec>,
    tables: u32,
    rows: u64,
}

impl SnapshotVisitor for Checked {
    fn secret(&mut self, _: Secret) -> Result<(), SnapshotError> {
        assert_eq!(self.tables, 0, "a secret comes before all tables");
        Ok(())
    }

    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        assert_eq!(spec.validate(), Ok(()), "a table that cannot be made");
        (self.tables, self.spec) = (self.tables + 1, Some(spec));
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        let spec = self.spec.as_ref().expect("a table comes before its rows");
        let stored = spec.stored();
        assert!(
            key.byte_count() <= stored.key_bytes as usize,
            "a key that its table does not hold"
        );
        assert!(value.len() <= stored.value_bytes as usize, "a value that its table does not hold");
        self.rows += spec.rows_in(value);
        Ok(())
    }
}

/// Reads a file; returns whether it is complete.
fn read(bytes: &[u8]) -> bool {
    let head = read_snapshot_head(&mut &*bytes);
    let mut checked = Checked::default();
    let Ok(info) = read_snapshot(&mut &*bytes, &mut checked) else { return false };
    assert_eq!(head.expect("what is whole has a head"), info.head);
    assert_eq!((info.tables, info.rows), (checked.tables, checked.rows));
    assert_eq!(info.bytes, bytes.len() as u64);
    true
}

/// Reads a snapshot file: unchanged; with valid checksums, to reach the code after the checksum
/// check; and as a list of blocks, each `kind:8 bytes:16 payload`, after a format.
pub fn snapshot(bytes: &[u8]) {
    read(bytes);
    let mut sealed = bytes.to_vec();
    seal(&mut sealed);
    read(&sealed);
    let Some((format, mut rest)) = bytes.split_first() else { return };
    let mut file = magic(u32::from(*format)).to_vec();
    let mut before = xxh3_64(&file);
    while let Some(([kind, low, high], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (payload, behind) = behind.split_at(length);
        let head = block_head(&mut before, u32::from(*kind), payload);
        file.extend_from_slice(&head);
        file.extend_from_slice(payload);
        rest = behind;
    }
    read(&file);
}

/// Makes the checksums of all blocks valid.
fn seal(bytes: &mut [u8]) {
    let Some((head, mut rest)) = bytes.split_at_mut_checked(HEAD_BYTES) else { return };
    let mut before = xxh3_64(head);
    while let Some((head, behind)) = rest.split_at_mut_checked(BLOCK_HEAD_BYTES) {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (kind, length) = (word(0), word(4) as usize);
        let Some((payload, behind)) = behind.split_at_mut_checked(length) else { return };
        before = checksum(before, kind, payload);
        head[8..].copy_from_slice(&before.to_le_bytes());
        rest = behind;
    }
}

/// Returns a complete snapshot file.
///
/// # Panics
/// If the file is incomplete.
pub fn snapshot_sample() -> Vec<u8> {
    let timestamp = Timestamp::new(1_000_000).expect("63 bits");
    let life = SnapshotLife { number: 2, cluster: 3, id: 4 };
    let label = SnapshotLabel { life, sequence: 5, taken: Nanos(900_000) };
    let mut bytes = Vec::new();
    let wrote = "memory takes all that is written";
    let mut writer = Writer::begin(&mut bytes, &SnapshotHead { timestamp, label }).expect(wrote);
    writer.secret(Secret::from_seed(7)).expect(wrote);
    for name in ["numbers", "words"] {
        writer.table(&TableSpec::new(name).record_bytes(24).capacity(9)).expect(wrote);
        let mut rows = Vec::new();
        for row in 0..3_u64 {
            push_row(&mut rows, &row.into(), &[row as u8; 20]);
        }
        writer.rows(&rows, 3).expect(wrote);
    }
    writer.end(b"notes".to_vec()).expect(wrote);
    assert!(read(&bytes), "what is written is read back");
    bytes
}
