//! A node's regions, and the execution of verbs on them.
//!
//! No sockets: words in, words out. Bounds and rights are checked before memory is touched, verb by
//! verb, and the first refused verb ends the frame (docs/verbs.md).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backends::tcp::wire::{
    self, Act, Frame, FrameKind, Header, MAX_FRAME_WORDS, Verb, WireError,
};
use crate::contract::ids::{RegionId, RemoteAddr};
use crate::contract::masked::masked_sum;
use crate::contract::region::{Memory, Rights, WORD_BYTES};
use crate::contract::verbs::{VerbError, first_word};

const REGIONS: usize = 256;

struct Region {
    memory: Memory,
    bytes: u64,
    rights: Rights,
}

/// All regions of one node.
pub(crate) struct Regions {
    regions: Box<[OnceLock<Region>]>,
    /// Number of bytes that may still be registered.
    left: AtomicU64,
}

/// Reason why a region cannot be registered.
pub(crate) enum RegisterError {
    Taken,
    Memory(std::io::Error),
}

/// Result of a frame of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// All verbs took effect.
    All,
    /// A verb was refused; earlier verbs took effect, later verbs must not.
    UpTo,
}

impl Regions {
    /// Creates an empty set of regions, limited to `limit_bytes`.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let regions = (0..REGIONS).map(|_| OnceLock::new()).collect();
        Self { regions, left: AtomicU64::new(limit_bytes) }
    }

    pub(crate) fn register(
        &self,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), RegisterError> {
        let slot = &self.regions[usize::from(region.0)];
        if slot.get().is_some() {
            return Err(RegisterError::Taken);
        }
        let no_room = || RegisterError::Memory(rustix::io::Errno::NOMEM.into());
        // Refuses sizes beyond a region's address space before asking the system.
        if !(1..=RemoteAddr::MAX_OFFSET + 1).contains(&bytes) {
            return Err(no_room());
        }
        let take = |left: u64| left.checked_sub(bytes);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(no_room());
        }
        let made = Memory::anonymous(bytes as usize).map_err(RegisterError::Memory);
        let registered = made.and_then(|memory| {
            let taken = slot.set(Region { memory, bytes, rights });
            taken.map_err(|_| RegisterError::Taken)
        });
        if registered.is_err() {
            self.left.fetch_add(bytes, Ordering::Relaxed);
        }
        registered
    }

    /// Returns the bytes of all regions.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().filter_map(OnceLock::get).map(|region| region.bytes).sum()
    }

    /// Carries out the verbs of a frame in order, and appends the answer.
    ///
    /// # Errors
    /// The frame is not well-formed. Verbs before the error took effect.
    #[inline]
    pub(crate) fn execute(
        &self,
        frame: &Frame<'_>,
        out: &mut Vec<u64>,
    ) -> Result<Served, WireError> {
        let start = out.len();
        out.push(0);
        let mut body = frame.body;
        for index in 0..usize::from(frame.header.count) {
            let (verb, rest) = wire::decode_verb(body)?;
            if out.len() - start + verb.result_words() > MAX_FRAME_WORDS {
                return Err(WireError::Long(out.len() - start + verb.result_words()));
            }
            if let Err(error) = self.apply(&verb, out) {
                out.truncate(start);
                push_failure(out, index, error);
                return Ok(Served::UpTo);
            }
            body = rest;
        }
        if !body.is_empty() {
            return Err(WireError::Body);
        }
        let words = out.len() - start - 1;
        out[start] = Header::new(FrameKind::Results, usize::from(frame.header.count), words).pack();
        Ok(Served::All)
    }

    #[inline]
    fn apply(&self, verb: &Verb<'_>, out: &mut Vec<u64>) -> Result<(), VerbError> {
        let region = self.regions[usize::from(verb.region.0)].get();
        let region = region.ok_or(VerbError::OutOfBounds)?;
        let bytes = (verb.words * WORD_BYTES) as u64;
        let first = first_word(verb.offset, bytes, verb.act.kind(), region.bytes, region.rights)?;
        let memory = &region.memory;
        let end = out.len();
        match verb.act {
            Act::Read => {
                out.resize(end + verb.words, 0);
                memory.read(first, &mut out[end..]);
            }
            Act::ReadStable => {
                out.resize(end + verb.words, 0);
                memory.read_stable(first, &mut out[end..]);
            }
            Act::Write(words) => memory.write(first, words),
            Act::CompareAndSwap { expected, new } => {
                out.push(memory.compare_and_swap(first, expected, new));
            }
            Act::FetchAndAdd { addend } => out.push(memory.fetch_and_add(first, addend)),
            Act::MaskedCompareAndSwap(swap) => {
                out.push(memory.update(first, |old| swap.applied_to(old)));
            }
            Act::MaskedFetchAndAdd { addend, boundary } => {
                out.push(memory.update(first, |old| Some(masked_sum(old, addend, boundary))));
            }
        }
        Ok(())
    }

    /// Prefetches the memory of every verb of the whole frames in `input`: cache misses and address
    /// translations overlap only without other work in between.
    pub(crate) fn prefetch(&self, mut input: &[u64]) {
        while let Ok(Some(frame)) = wire::decode(input) {
            input = &input[frame.words()..];
            let mut body = frame.body;
            while let Ok((verb, rest)) = wire::decode_verb(body) {
                body = rest;
                let region = self.regions[usize::from(verb.region.0)].get();
                let Some(Region { memory, .. }) = region else { continue };
                let first = verb.offset as usize / WORD_BYTES;
                match verb.act {
                    Act::Read | Act::ReadStable => memory.prefetch(first, verb.words),
                    _ => memory.prefetch_for_write(first, verb.words),
                }
            }
        }
    }
}

/// Appends the answer to a frame in which verb number `verb` was refused.
pub(crate) fn push_failure(out: &mut Vec<u64>, verb: usize, error: VerbError) {
    let status = wire::status_of(error);
    out.push(Header { status, ..Header::new(FrameKind::Results, verb, 0) }.pack());
}
