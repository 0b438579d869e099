//! Integration tests of typed rows, as one program.

mod encoding;
mod tables;
