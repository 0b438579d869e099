//! Integration tests of the bytes in remote memory, as one program; `loom` needs a setting of its
//! own.

mod oracle;
mod torn_reads;
