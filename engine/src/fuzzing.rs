//! Entry points for made-up bytes: contents of a snapshot file, or of the catalogue at the
//! authority, that this program did not write.
//!
//! Called by fuzz targets (`proof/fuzz/`) and a short deterministic test (`lotus-cli`). A function
//! panics if a reader accepts invalid bytes.

use lotus_mvcc::Naming;

use crate::node::agreed::catalogue::{decode, encode, sample};
pub use crate::snapshot::fuzzing::{snapshot, snapshot_sample};

/// Decodes a catalogue of 1 to 4 groups. An accepted catalogue must encode to the same bytes.
pub fn catalogue(bytes: &[u8]) {
    for groups in 1..=4 {
        if let Some((naming, tables)) = decode(bytes, groups, Naming::KNOWN) {
            assert_eq!(encode(naming, &tables), bytes, "another encoding of the same tables");
        }
    }
}

/// A sound catalogue of two groups.
pub fn catalogue_sample() -> Vec<u8> {
    encode(Naming::KNOWN, &sample())
}
