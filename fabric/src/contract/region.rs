//! Registered memory: the only code that accesses bytes shared with other nodes.
//!
//! # What it is
//! [`Memory`] is a mapping, seen as atomic 8-byte words; [`View`] is a read-only mapping. A node's
//! *regions* are mappings plus [`Rights`]; a coordinator's *arena* is `Memory` cut into [`Chunk`]s
//! with a single owner per chunk.
//!
//! # What it is not
//! The module knows nothing of nodes, epochs or verbs: back ends check them before an access.
//!
//! # Why the orderings are what they are
//! Several threads (initiators on the `local` and `shm` back ends, the target on `tcp`) read and
//! write one region concurrently, without locks. Every access goes through [`AtomicU64`], so data
//! races are impossible, and an aligned word never tears (I28). Loads are `Acquire` and stores are
//! `Release`; on x86-64 both compile to plain moves. The layers above rely on two guarantees:
//!
//! * a reader that sees a word of a verb also sees every verb that the writer completed earlier, so
//!   a visible version word implies its record (`docs/protocol.md`);
//! * [`Memory::read_stable`], which copies until two passes agree, returns a snapshot: words that
//!   were current at one moment. If a writer stopped half-way, the snapshot mixes new and old
//!   words; the contract says "any words, in any order" (H14), and readers check.
//!
//! Read-modify-writes are `AcqRel`: operations on one word are ordered (I28).
//!
//! # Memory shared with other processes
//! The guarantees hold across processes as well: eight-byte atomics are lock-free, so they act on
//! the physical word, whatever the addresses of the mappings. A killed process leaves a prefix of
//! its stores behind, never half a word. Values stored by other processes are not trusted: any
//! value is legal for an atomic word, and the layer that interprets the words checks them. Another
//! process must not be able to take the memory away, because an access to a page beyond the end of
//! a file kills the process. So only files sealed against shrinking are mapped.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::prefetch;

/// Bytes in a word, the unit of every remote access.
pub const WORD_BYTES: usize = 8;
/// Bytes in a cache line.
pub const LINE_BYTES: usize = 64;

/// Kinds of access that a region grants to other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// READ is allowed.
    pub read: bool,
    /// WRITE is allowed.
    pub write: bool,
    /// Compare-and-swap and fetch-and-add are allowed.
    pub atomic: bool,
}

impl Rights {
    /// READ, WRITE and atomics.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };
    /// READ alone.
    pub const READ_ONLY: Self = Self { read: true, write: false, atomic: false };
}

/// A read-only mapping, addressed by word.
pub struct View {
    words: NonNull<AtomicU64>,
    word_count: usize,
}

// SAFETY: the words are atomics, and the mapping lives until the last owner drops it; `View` is not
// bound to a thread.
unsafe impl Send for View {}
// SAFETY: as above; shared access goes through `&AtomicU64`.
unsafe impl Sync for View {}

/// One page-aligned mapping, addressed by word.
///
/// Pages are backed lazily, by huge pages if the machine has them.
pub struct Memory {
    /// The mapping; unlike other views, a view inside `Memory` is writable.
    view: View,
}

impl View {
    /// Maps a whole shared file for reading.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is empty or not sealed against shrinking; otherwise the
    /// operating system's error.
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        Self::map_file(file, rustix::mm::ProtFlags::READ)
    }

    fn map_file(file: impl AsFd, protection: rustix::mm::ProtFlags) -> io::Result<Self> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        use rustix::mm::{Advice, MapFlags, madvise, mmap};
        let bytes = fstat(&file)?.st_size as usize;
        let whole = bytes > 0 && bytes.is_multiple_of(WORD_BYTES);
        if !whole || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let null = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this
        // process. Other processes also store to the mapped words, and this process accesses the
        // words as atomics. The file had `bytes` bytes at `fstat`, and the seal forbids shrinking.
        let mapped = unsafe { mmap(null, bytes, protection, MapFlags::SHARED, file, 0) }?;
        let words = NonNull::new(mapped.cast()).expect("mmap does not return null");
        let view = Self { words, word_count: bytes / WORD_BYTES };
        // SAFETY: the range is the mapping just made; the advice is optional.
        let _ = unsafe { madvise(mapped, bytes, Advice::LinuxHugepage) };
        // SAFETY: as above. A child process must not inherit the mapping: after the end of a
        // process, no descendant may store to the region on its behalf (H2).
        unsafe { madvise(mapped, bytes, Advice::LinuxDontFork) }?;
        Ok(view)
    }

    /// Bytes in the mapping.
    pub fn bytes(&self) -> usize {
        self.word_count * WORD_BYTES
    }

    /// Loads the word at `index` with sequential consistency.
    ///
    /// # Panics
    /// If `index` is outside the mapping.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.slice(index, 1)[0].load(Ordering::SeqCst)
    }

    /// Copies the words from `first` on into `into`, in ascending order.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub fn read(&self, first: usize, into: &mut [u64]) {
        self.words(first, into.len()).read(into);
    }

    /// Like [`View::read`], repeated until two passes in a row agree (H14).
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub fn read_stable(&self, first: usize, into: &mut [u64]) {
        self.words(first, into.len()).read_stable(into);
    }

    /// Hints that the words from `first` on will soon be read. Does nothing outside the mapping.
    #[inline]
    pub fn prefetch(&self, first: usize, words: usize) {
        self.for_each_line(first, words, prefetch::line);
    }

    #[inline]
    fn for_each_line(&self, first: usize, words: usize, visit: impl Fn(*const u8)) {
        if first >= self.word_count || words > self.word_count - first {
            return;
        }
        let base = self.words.as_ptr().cast::<u8>().cast_const();
        // The mapping starts at a page, so lines of the mapping are lines of memory.
        let mut line = first * WORD_BYTES / LINE_BYTES * LINE_BYTES;
        while line < (first + words) * WORD_BYTES {
            visit(base.wrapping_add(line));
            line += LINE_BYTES;
        }
    }

    /// All words of the mapping. Only loads are allowed, unless the view is inside a `Memory`.
    #[inline]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lives as long as `self` and holds initialised (zeroed) words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.word_count) }
    }

    /// The `words` words from `first` on: for a reading verb, or for a writing verb if the view is
    /// inside a `Memory`.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub(crate) fn words(&self, first: usize, words: usize) -> Words<'_> {
        Words(self.slice(first, words))
    }

    #[inline]
    fn slice(&self, first: usize, words: usize) -> &[AtomicU64] {
        let range = first..first.saturating_add(words);
        self.all().get(range).expect("access outside the mapping")
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with `bytes` bytes, and no reference outlives `self`.
        // Unmapping can only fail for arguments that are not a mapping.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.bytes()) };
    }
}

impl Memory {
    /// Maps `bytes` of zeroed memory, rounded up to whole huge pages, private to the process.
    ///
    /// Tries reserved huge pages first, then transparent huge pages; without either, ordinary pages
    /// are used.
    ///
    /// # Errors
    /// The operating system's error when the address space is exhausted.
    ///
    /// # Panics
    /// If `bytes` is zero.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        assert!(bytes > 0, "an empty mapping has no address");
        let length = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let lazy = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // Without NORESERVE: unless the kernel reserves the huge pages now, a later access faults.
        let huge = MapFlags::PRIVATE | MapFlags::HUGETLB;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice has no aliases.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, protection, huge)
                .or_else(|_| mmap_anonymous(std::ptr::null_mut(), length, protection, lazy))
        }?;
        // SAFETY: the range is the mapping just made. The advice is optional, so failure (a kernel
        // without transparent huge pages) is ignored.
        let _ = unsafe { madvise(mapped, length, Advice::LinuxHugepage) };
        let words = NonNull::new(mapped.cast()).expect("mmap does not return null");
        Ok(Self { view: View { words, word_count: length / WORD_BYTES } })
    }

    /// Maps a whole shared file. Huge pages of a file are reserved now, or the call fails.
    ///
    /// # Errors
    /// As [`View::of_file`], and if the file may not be written.
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        use rustix::mm::ProtFlags;
        Ok(Self { view: View::map_file(file, ProtFlags::READ | ProtFlags::WRITE)? })
    }

    /// Read-only view of the mapping.
    #[inline]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Bytes in the mapping, at least the requested number.
    pub fn bytes(&self) -> usize {
        self.view.bytes()
    }

    /// The word at `index`.
    ///
    /// # Panics
    /// If `index` is outside the mapping.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.view.slice(index, 1)[0]
    }

    /// See [`View::read`].
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub fn read(&self, first: usize, into: &mut [u64]) {
        self.view.read(first, into);
    }

    /// See [`View::read_stable`].
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub fn read_stable(&self, first: usize, into: &mut [u64]) {
        self.view.read_stable(first, into);
    }

    /// Copies `from` into the words from `first` on, in ascending order.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[inline]
    pub fn write(&self, first: usize, from: &[u64]) {
        self.view.words(first, from.len()).write(from);
    }

    /// Stores `new` if the word at `index` holds `expected`; returns the word's previous value.
    ///
    /// # Panics
    /// If `index` is outside the mapping.
    #[inline]
    pub fn compare_and_swap(&self, index: usize, expected: u64, new: u64) -> u64 {
        let word = self.word(index);
        match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Adds `addend` (wrapping) to the word at `index`; returns the word's previous value.
    ///
    /// # Panics
    /// If `index` is outside the mapping.
    #[inline]
    pub fn fetch_and_add(&self, index: usize, addend: u64) -> u64 {
        self.word(index).fetch_add(addend, Ordering::AcqRel)
    }

    /// Atomically replaces the word at `index` by the result of `change`, or leaves the word if the
    /// result is `None`; returns the word's previous value. `change` is called again whenever a
    /// concurrent writer has changed the word.
    ///
    /// # Panics
    /// If `index` is outside the mapping.
    #[inline]
    pub fn update(&self, index: usize, change: impl FnMut(u64) -> Option<u64>) -> u64 {
        update(self.word(index), change)
    }

    /// See [`View::prefetch`].
    #[inline]
    pub fn prefetch(&self, first: usize, words: usize) {
        self.view.prefetch(first, words);
    }

    /// Hints that the words from `first` on will soon be written. Does nothing outside the mapping.
    #[inline]
    pub fn prefetch_for_write(&self, first: usize, words: usize) {
        self.view.for_each_line(first, words, prefetch::line_for_write);
    }

    /// Backs the `bytes` from `offset` on with pages, so that later accesses do not fault. The
    /// contents do not change. Does nothing outside the mapping, or on a kernel without support.
    pub fn prefault(&self, offset: usize, bytes: usize) {
        use rustix::mm::{Advice, madvise};
        let end = offset.saturating_add(bytes).min(self.bytes());
        let offset = offset / PAGE_BYTES * PAGE_BYTES;
        if offset < end {
            // SAFETY: the range is inside the mapping, which lives as long as `self`. Populating a
            // page is like an atomic read and write-back of one of its words.
            let _ = unsafe {
                let from = self.view.words.as_ptr().cast::<u8>().add(offset);
                madvise(from.cast(), end - offset, Advice::LinuxPopulateWrite)
            };
        }
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];

    /// All words of the mapping; the first word begins a page.
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        self.view.all()
    }
}

/// Bytes in a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;

/// Words copied in one step of a loop. The compiler unrolls a step, but may not vectorise atomics;
/// most copies have a few words.
const STEP_WORDS: usize = 4;

/// Visits words and their copies side by side, in ascending order. Does nothing without words.
#[inline]
fn in_steps(words: &[AtomicU64], copies: &mut [u64], mut visit: impl FnMut(&AtomicU64, &mut u64)) {
    let copies = &mut copies[..words.len()];
    let (steps, rest) = words.as_chunks::<STEP_WORDS>();
    let (step_copies, rest_copies) = copies.as_chunks_mut::<STEP_WORDS>();
    for (step, copies) in steps.iter().zip(step_copies) {
        step.iter().zip(copies).for_each(|(word, copy)| visit(word, copy));
    }
    rest.iter().zip(rest_copies).for_each(|(word, copy)| visit(word, copy));
}

/// Words of a mapping that one verb moves, found and checked before the verb is carried out. The
/// words of a reading verb may belong to a read-only mapping.
#[derive(Clone, Copy)]
pub(crate) struct Words<'m>(&'m [AtomicU64]);

impl Words<'_> {
    /// No words: the verb has no effect.
    pub(crate) const NONE: Self = Self(&[]);

    /// Hints that the words will soon be read.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        self.for_each_line(prefetch::line);
    }

    /// Hints that the words will soon be written.
    #[inline(always)]
    pub(crate) fn prefetch_for_write(self) {
        self.for_each_line(prefetch::line_for_write);
    }

    #[inline(always)]
    fn for_each_line(self, visit: impl Fn(*const u8)) {
        let range = self.0.as_ptr_range();
        let mut line = range.start.cast::<u8>();
        line = line.wrapping_sub(line.addr() % LINE_BYTES);
        while line < range.end.cast() {
            visit(line);
            line = line.wrapping_add(LINE_BYTES);
        }
    }

    /// Copies the words into `into`, in ascending order.
    #[inline]
    pub(crate) fn read(self, into: &mut [u64]) {
        in_steps(self.0, into, |word, copy| *copy = word.load(Ordering::Acquire));
    }

    /// Like [`Words::read`], repeated until two passes in a row agree (H14).
    #[inline]
    pub(crate) fn read_stable(self, into: &mut [u64]) {
        self.read(into);
        loop {
            let mut agree = true;
            in_steps(self.0, into, |word, copy| {
                let now = word.load(Ordering::Acquire);
                agree &= now == *copy;
                *copy = now;
            });
            if agree {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Copies `from` into the words, in ascending order.
    #[inline]
    pub(crate) fn write(self, from: &[u64]) {
        let (steps, rest) = self.0.as_chunks::<STEP_WORDS>();
        let (step_values, rest_values) = from[..self.0.len()].as_chunks::<STEP_WORDS>();
        let store = |(word, value): (&AtomicU64, &u64)| word.store(*value, Ordering::Release);
        for (step, values) in steps.iter().zip(step_values) {
            step.iter().zip(values).for_each(store);
        }
        rest.iter().zip(rest_values).for_each(store);
    }

    /// Stores one word.
    #[inline]
    pub(crate) fn write_one(self, value: u64) {
        if let [word] = self.0 {
            word.store(value, Ordering::Release);
        }
    }

    /// Stores `new` if the word holds `expected`; `held` becomes the word's previous value.
    #[inline]
    pub(crate) fn compare_and_swap(self, expected: u64, new: u64, held: &mut u64) {
        if let [word] = self.0 {
            let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
            *held = swapped.unwrap_or_else(|found| found);
        }
    }

    /// Adds `addend` (wrapping) to the word; `held` becomes the word's previous value.
    #[inline]
    pub(crate) fn fetch_and_add(self, addend: u64, held: &mut u64) {
        if let [word] = self.0 {
            *held = word.fetch_add(addend, Ordering::AcqRel);
        }
    }

    /// [`Memory::update`] of the word; `held` becomes the word's previous value.
    #[inline]
    pub(crate) fn update(self, change: impl FnMut(u64) -> Option<u64>, held: &mut u64) {
        if let [word] = self.0 {
            *held = update(word, change);
        }
    }
}

#[inline]
fn update(word: &AtomicU64, change: impl FnMut(u64) -> Option<u64>) -> u64 {
    let updated = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    updated.unwrap_or_else(|held| held)
}

/// A piece of an arena with one owner: the coordinator, or the batch in flight that uses the chunk.
///
/// The owner may use the chunk as a plain slice. While verbs are in flight, the back end owns the
/// chunk, so only the NIC (or the code in its place) touches the memory.
pub struct Chunk {
    memory: Arc<Memory>,
    first: usize,
    words: usize,
}

impl Chunk {
    /// Cuts a new mapping into `count` chunks of `words` words each.
    ///
    /// # Errors
    /// The operating system's error when the address space is exhausted.
    pub fn carve(count: usize, words: usize) -> io::Result<Vec<Self>> {
        // One line apart: at a distance of a power of two, the first lines of the chunks would
        // compete for one set of the cache.
        let stride = words + LINE_WORDS;
        let memory = Arc::new(Memory::anonymous(count * stride * WORD_BYTES)?);
        let chunk = |index| Self { memory: Arc::clone(&memory), first: index * stride, words };
        Ok((0..count).map(chunk).collect())
    }

    /// The mapping that contains the chunk, for a NIC to register.
    #[cfg(feature = "rdma")]
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Deref for Chunk {
    type Target = [u64];
    #[inline]
    fn deref(&self) -> &[u64] {
        // SAFETY: `carve` hands out each range once and `Chunk` is not `Clone`, so `self` is the
        // only path to the words; `AtomicU64` and `u64` have the same layout.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.view.words.as_ptr().add(self.first).cast::<u64>(),
                self.words,
            )
        }
    }
}

impl DerefMut for Chunk {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.memory.view.words.as_ptr().add(self.first).cast::<u64>(),
                self.words,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zero_at_first_and_keep_what_is_written() {
        let memory = Memory::anonymous(4096).expect("maps");
        let mut copy = [7; 4];
        memory.read(10, &mut copy);
        assert_eq!(copy, [0; 4]);
        memory.write(10, &[1, 2, 3, 4]);
        memory.read_stable(10, &mut copy);
        assert_eq!(copy, [1, 2, 3, 4]);
        assert_eq!(memory.compare_and_swap(10, 1, 9), 1);
        assert_eq!(memory.compare_and_swap(10, 1, 8), 9);
        assert_eq!(memory.fetch_and_add(10, u64::MAX), 9);
        assert_eq!(memory.update(10, |_| None), 8);
        assert_eq!(memory.update(10, |held| held.checked_mul(3)), 8);
        assert_eq!(memory.word(10).load(Ordering::Relaxed), 24);
    }

    #[test]
    fn prefaulting_changes_no_word_and_stays_inside() {
        let memory = Memory::anonymous(2 * HUGE_PAGE_BYTES).expect("maps");
        memory.write(7, &[42]);
        for (offset, bytes) in [(0, 1), (100, 8192), (memory.bytes() - 8, 1 << 30), (usize::MAX, 8)]
        {
            memory.prefault(offset, bytes);
        }
        assert_eq!(memory.word(7).load(Ordering::Relaxed), 42);
        let last = memory.bytes() / WORD_BYTES - 1;
        assert_eq!(memory.word(last).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn an_access_past_the_end_panics() {
        let memory = Memory::anonymous(4096).expect("maps");
        memory.read(memory.bytes() / WORD_BYTES - 1, &mut [0; 2]);
    }

    #[test]
    fn chunks_do_not_overlap() {
        let mut chunks = Chunk::carve(3, 64).expect("maps");
        for (value, chunk) in (1..).zip(&mut chunks) {
            chunk.fill(value);
        }
        for (value, chunk) in (1..).zip(&chunks) {
            assert!(chunk.iter().all(|word| *word == value));
        }
    }
}
