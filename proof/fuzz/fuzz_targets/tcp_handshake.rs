//! The start of a connection to a target, from an untrusted peer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_fabric::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::tcp_handshake(bytes));
