//! Tests of the `lotus-lab` command as a user runs it, as one program.

mod bad_input;
mod bench;
mod common;
mod figures;
mod redis;
#[path = "../../../locksystems/tests/servers/redis_server.rs"]
mod redis_server;
mod runs;
mod sim;
