//! Entry points for made-up bytes: what a snapshot file and the catalogue at the authority may
//! hold when they are not what this program wrote.
//!
//! Fuzz targets (`fuzz/`) and a short deterministic test (`lotus-cli`) call these. Each panics if a
//! reader believes what it should not.

use lotus_mvcc::Naming;

use crate::node::catalogue::{decode, encode, sample};
pub use crate::snapshot::fuzzing::{snapshot, snapshot_sample};

/// Decodes a catalogue of 1 to 4 groups: one that is accepted is what would be written.
pub fn catalogue(bytes: &[u8]) {
    for groups in 1..=4 {
        if let Some((naming, tables)) = decode(bytes, groups, Naming::KNOWN) {
            assert_eq!(encode(naming, &tables), bytes, "another encoding of the same tables");
        }
    }
}

/// A catalogue that is sound, of two groups.
pub fn catalogue_sample() -> Vec<u8> {
    encode(Naming::KNOWN, &sample())
}
