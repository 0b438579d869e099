//! Fuzzing entry points for the cluster's file, and for state stored on a host and at the
//! authority.
//!
//! The functions are called by fuzz targets (`proof/fuzz/`), and by the test below with a few
//! thousand mutations of valid samples. Each function panics if a reader accepts invalid input.

use std::fmt::Debug;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::apps::ledger::Ledger;
use crate::apps::loaded::StoredEffects;
use crate::config::load::Load;
use lotus_node::agree::records::Record;
use lotus_node::config::file::ClusterFile;
use lotus_node::host::processes::Process;
use lotus_node::snapshots::holding::{ClusterMark, Holding, KnownSnapshot};
use lotus_node::snapshots::snapshot_files::{Rank, rank_by_name};
use lotus_node::snapshots::{Last, Snapshot};

pub use lotus::fuzzing::{catalogue, catalogue_sample, snapshot, snapshot_sample};

/// Parses a cluster file and its load. An invalid file must be refused with a sentence.
pub fn cluster_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = ClusterFile::parse(Path::new("c.toml"), text, None);
    match file.and_then(|file| Load::of(&file).map(|_| file)) {
        Ok(file) => {
            file.builder().node_count().expect("it was checked when the file was read");
        }
        Err(error) => assert!(error.to_string().contains("c.toml"), "{error}"),
    }
}

/// Reads files of the state directory, names of snapshots, and values at the authority. An accepted
/// value must survive a write and a read unchanged.
pub fn state(bytes: &[u8]) {
    json::<Record>(bytes);
    json::<Ledger>(bytes);
    json::<Snapshot>(bytes);
    json::<Last>(bytes);
    json::<Holding>(bytes);
    json::<ClusterMark>(bytes);
    json::<KnownSnapshot>(bytes);
    json::<StoredEffects>(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(process) = Process::parse(text) {
        assert_eq!(Process::parse(&process.to_line()), Some(process));
    }
    if let Some(Rank { sequence, .. }) = rank_by_name(Path::new(text)) {
        let next = Last::default().next(sequence, 1);
        assert!(next.is_some() || sequence == u64::MAX, "a name that ends the count");
    }
}

fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(found) = serde_json::from_slice::<T>(bytes) else { return };
    let again = serde_json::to_vec(&found).expect("strings and numbers");
    let read: T = serde_json::from_slice(&again).expect("what is written is read");
    assert_eq!(read, found);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lotus_fabric::env::{Env, SmallRng};
    use rand::Rng;

    use super::*;

    /// Mutations of each sample; a fuzzer tries some thousand times as many in a minute.
    const MUTATIONS: usize = 3_000;

    /// Changes some bytes, cuts, repeats or moves a piece, or puts a number at an edge.
    fn mutate(bytes: &mut Vec<u8>, rng: &mut SmallRng) {
        for _ in 0..rng.random_range(1..5) {
            let length = bytes.len();
            let [one, other] = [(); 2].map(|()| rng.random_range(0..=length));
            let piece = one.min(other)..one.max(other).min(one.min(other) + 40);
            match rng.random_range(0..6) {
                0 if one < length => bytes[one] ^= 1 << rng.random_range(0..8),
                1 if one < length => bytes[one] = rng.random(),
                2 => bytes.truncate(one),
                3 => drop(bytes.drain(piece)),
                4 => {
                    let piece = bytes[piece].to_vec();
                    let at = rng.random_range(0..=length);
                    bytes.splice(at..at, piece);
                }
                _ => {
                    let edges = [0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 24, u32::MAX];
                    let edge = edges[rng.random_range(0..edges.len())].to_le_bytes();
                    let end = length.min(one + edge.len());
                    bytes[one..end].copy_from_slice(&edge[..end - one]);
                }
            }
        }
    }

    fn try_all(samples: &[Vec<u8>], reader: impl Fn(&[u8])) {
        let mut rng = Env::real(7).rng(0);
        for sample in samples {
            reader(sample);
            for _ in 0..MUTATIONS {
                let mut bytes = sample.clone();
                mutate(&mut bytes, &mut rng);
                reader(&bytes);
            }
        }
    }

    fn examples() -> Vec<Vec<u8>> {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
        let entries = fs::read_dir(examples).expect("it is there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == "toml"));
        paths.retain(|path| !path.ends_with("Cargo.toml"));
        paths.sort();
        paths.iter().map(|path| fs::read(path).expect("readable")).collect()
    }

    #[test]
    fn a_snapshot_that_is_made_up_is_refused_or_what_it_says() {
        try_all(&[snapshot_sample()], snapshot);
    }

    #[test]
    fn a_catalogue_that_is_made_up_is_refused_or_what_would_be_written() {
        try_all(&[catalogue_sample()], catalogue);
    }

    #[test]
    fn a_cluster_file_that_is_made_up_is_refused_with_a_sentence() {
        let examples = examples();
        assert!(examples.len() > 1, "there are some");
        for example in &examples {
            let text = std::str::from_utf8(example).expect("text");
            assert!(ClusterFile::parse(Path::new("c.toml"), text, None).is_ok());
        }
        try_all(&examples, cluster_file);
    }

    #[test]
    fn state_that_is_made_up_is_refused_or_says_the_same_again() {
        let last = Last { sequence: 7, timestamp: u64::MAX };
        let snapshot = r#"{"path":"a/b","sequence":7,"timestamp":9,"time":"2026","tables":1,
            "rows":2,"bytes":3,"left_out":["a/c: it was cut off"]}"#;
        let samples = [
            serde_json::to_vec(&last).expect("numbers"),
            serde_json::to_vec(&StoredEffects::default()).expect("numbers"),
            serde_json::to_vec(&Ledger::default()).expect("numbers"),
            snapshot.as_bytes().to_vec(),
            b"1234 98765\n".to_vec(),
            b"0000000007-2026-06-22T121344Z.snapshot".to_vec(),
        ];
        assert!(serde_json::from_slice::<Snapshot>(&samples[3]).is_ok());
        try_all(&samples, state);
    }
}
