//! Cluster descriptions in TOML.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::cluster_file(bytes));
