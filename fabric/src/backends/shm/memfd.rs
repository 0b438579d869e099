//! Unnamed files that hold shared memory; the kernel frees them when no process holds them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use crate::contract::region::{HUGE_PAGE_BYTES, Memory};

/// Unit of the sizes of shared memory.
pub(super) const PAGE_BYTES: usize = 4096;

/// Creates a zeroed file of at least `bytes`, of reserved huge pages if enough are free.
pub(super) fn large(bytes: usize) -> io::Result<OwnedFd> {
    let length = bytes.max(1).checked_next_multiple_of(HUGE_PAGE_BYTES);
    let length = length.filter(|length| i64::try_from(*length).is_ok());
    let length = length.ok_or(io::ErrorKind::OutOfMemory)?;
    // Mapping the file once reserves the pages for the file's lifetime: otherwise a later access
    // could find no free page, and kill the process.
    let huge = create(length, MemfdFlags::HUGETLB)
        .and_then(|file| Memory::of_file(&file).map(|_reserved| file));
    huge.or_else(|_| create(length, MemfdFlags::empty()))
}

/// Creates a zeroed file of exactly `bytes`, a multiple of the page size.
pub(super) fn small(bytes: usize) -> io::Result<OwnedFd> {
    create(bytes, MemfdFlags::empty())
}

fn create(bytes: usize, pages: MemfdFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    let file = rustix::fs::memfd_create("lotus", flags)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    // Mappings rely on the file's size; see `region`.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Opens a read-only descriptor of the same file.
pub(super) fn read_only(file: &impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::region::View;

    #[test]
    fn two_mappings_show_one_memory() {
        let file = large(1).expect("a file");
        let (one, other) = (Memory::of_file(&file).expect("maps"), View::of_file(&file));
        one.write(3, &[7]);
        assert_eq!(other.expect("maps").load(3), 7);
        assert_eq!(one.bytes(), HUGE_PAGE_BYTES);
    }

    #[test]
    fn a_file_for_reading_cannot_be_mapped_for_writing() {
        let file = small(PAGE_BYTES).expect("a file");
        let reading = read_only(&file).expect("the same file");
        assert!(View::of_file(&reading).is_ok());
        assert!(Memory::of_file(&reading).is_err());
    }

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let file = rustix::fs::memfd_create("lotus", MemfdFlags::ALLOW_SEALING).expect("a file");
        assert!(View::of_file(&file).is_err(), "empty");
        rustix::fs::ftruncate(&file, 4096).expect("grows");
        assert!(View::of_file(&file).is_err(), "not sealed");
        let sealed = small(PAGE_BYTES).expect("a file");
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err(), "sealed");
    }
}
