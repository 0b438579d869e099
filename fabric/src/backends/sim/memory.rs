//! The registered memory of simulated nodes, and the effect of verbs on it.

use crate::contract::ids::RegionId;
use crate::contract::masked::{MaskedSwap, masked_sum};
use crate::contract::region::{Memory, Rights, WORD_BYTES};
use crate::contract::verbs::{Op, VerbError, VerbKind, Work, WorkRequest};
use crate::contract::wide::{WIDE_WORDS, WideSwap, value_of, wide_sum, words_of};

const REGIONS_PER_NODE: usize = 256;

/// One region.
pub(super) struct Region {
    pub(super) memory: Memory,
    pub(super) bytes: u64,
    pub(super) rights: Rights,
}

/// A node's regions, by number, and whether the node has any.
pub(super) struct Regions(Vec<Option<Region>>, bool);

/// Effect of a verb that outlives its batch.
pub(super) enum Effect {
    Write(Vec<u64>),
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd { addend: u64 },
    MaskedCompareAndSwap(MaskedSwap),
    MaskedFetchAndAdd { addend: u64, boundary: u64 },
    WideCompareAndSwap(WideSwap),
    WideFetchAndAdd { addend: u128, boundary: u128 },
}

impl Effect {
    /// Returns the effect of `request` of `work`; `None` if the request changes nothing.
    pub(super) fn of(request: &WorkRequest, work: &Work) -> Option<Self> {
        match request.op {
            Op::Read | Op::ReadStable => None,
            Op::Write => Some(Self::Write(work.words(request.local).to_vec())),
            Op::WriteWord { value } => Some(Self::Write(vec![value])),
            Op::CompareAndSwap { expected, new } => Some(Self::CompareAndSwap { expected, new }),
            Op::FetchAndAdd { addend } => Some(Self::FetchAndAdd { addend }),
            Op::MaskedCompareAndSwap => {
                Some(Self::MaskedCompareAndSwap(work.masked_swap(request.local)))
            }
            Op::MaskedFetchAndAdd { addend, boundary } => {
                Some(Self::MaskedFetchAndAdd { addend, boundary })
            }
            Op::WideCompareAndSwap => Some(Self::WideCompareAndSwap(work.wide_swap(request.local))),
            Op::WideFetchAndAdd => {
                let (addend, boundary) = work.wide_summands(request.local);
                Some(Self::WideFetchAndAdd { addend, boundary })
            }
        }
    }

    pub(super) fn apply(&self, memory: &Memory, word: usize) {
        match self {
            Self::Write(words) => memory.write(word, words),
            Self::CompareAndSwap { expected, new } => {
                memory.compare_and_swap(word, *expected, *new);
            }
            Self::FetchAndAdd { addend } => {
                memory.fetch_and_add(word, *addend);
            }
            Self::MaskedCompareAndSwap(swap) => {
                memory.update(word, |old| swap.applied_to(old));
            }
            Self::MaskedFetchAndAdd { addend, boundary } => {
                memory.update(word, |old| Some(masked_sum(old, *addend, *boundary)));
            }
            Self::WideCompareAndSwap(swap) => {
                update_wide(memory, word, |old| swap.applied_to(old));
            }
            Self::WideFetchAndAdd { addend, boundary } => {
                update_wide(memory, word, |old| Some(wide_sum(old, *addend, *boundary)));
            }
        }
    }
}

impl Regions {
    pub(super) fn new() -> Self {
        Self((0..REGIONS_PER_NODE).map(|_| None).collect(), false)
    }

    pub(super) fn has(&self, number: RegionId) -> bool {
        self.0[usize::from(number.0)].is_some()
    }

    /// Registers a region.
    pub(super) fn add(&mut self, number: RegionId, region: Region) {
        self.0[usize::from(number.0)] = Some(region);
        self.1 = true;
    }

    /// Whether the node has no registered memory.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        !self.1
    }

    /// Unregisters all regions; returns the total of bytes.
    pub(super) fn lose(&mut self) -> u64 {
        self.1 = false;
        self.0.iter_mut().filter_map(Option::take).map(|region| region.bytes).sum()
    }

    /// Prefetches the cache lines that a verb touches, because the verb takes effect many events
    /// later.
    #[inline]
    pub(super) fn prefetch(&self, request: &WorkRequest) {
        let Some(region) = &self.0[usize::from(request.addr.region().0)] else { return };
        let word = request.addr.offset() as usize / WORD_BYTES;
        let words = request.bytes() / WORD_BYTES;
        match request.kind() {
            VerbKind::Read => region.memory.prefetch(word, words),
            _ => region.memory.prefetch_for_write(word, words),
        }
    }

    /// Returns the memory that a verb touches, and the index of the verb's first word in the
    /// memory.
    #[inline]
    pub(super) fn resolve(&self, request: &WorkRequest) -> Result<(&Memory, usize), VerbError> {
        let region = self.0[usize::from(request.addr.region().0)].as_ref();
        let region = region.ok_or(VerbError::OutOfBounds)?;
        Ok((&region.memory, request.first_word(region.bytes, region.rights)?))
    }

    /// Carries out a verb at once. Returns a word derived from the data found or written, for the
    /// trace hash.
    #[inline]
    pub(super) fn apply(&self, request: &WorkRequest, work: &mut Work) -> Result<u64, VerbError> {
        let (memory, word) = self.resolve(request)?;
        Ok(match request.op {
            Op::Read | Op::ReadStable => {
                let into = work.words_mut(request.local);
                memory.read(word, into);
                digest(into)
            }
            Op::Write => {
                let from = work.words(request.local);
                memory.write(word, from);
                digest(from)
            }
            Op::WriteWord { value } => {
                memory.write(word, &[value]);
                value
            }
            Op::CompareAndSwap { expected, new } => {
                let held = memory.compare_and_swap(word, expected, new);
                work.words_mut(request.local)[0] = held;
                held
            }
            Op::FetchAndAdd { addend } => {
                let held = memory.fetch_and_add(word, addend);
                work.words_mut(request.local)[0] = held;
                held
            }
            Op::MaskedCompareAndSwap => {
                let swap = work.masked_swap(request.local);
                let held = memory.update(word, |old| swap.applied_to(old));
                work.words_mut(request.local)[0] = held;
                held
            }
            Op::MaskedFetchAndAdd { addend, boundary } => {
                let held = memory.update(word, |old| Some(masked_sum(old, addend, boundary)));
                work.words_mut(request.local)[0] = held;
                held
            }
            Op::WideCompareAndSwap => {
                let swap = work.wide_swap(request.local);
                let held = update_wide(memory, word, |old| swap.applied_to(old));
                work.words_mut(request.result()).copy_from_slice(&held);
                digest(&held)
            }
            Op::WideFetchAndAdd => {
                let (addend, boundary) = work.wide_summands(request.local);
                let held = update_wide(memory, word, |old| Some(wide_sum(old, addend, boundary)));
                work.words_mut(request.result()).copy_from_slice(&held);
                digest(&held)
            }
        })
    }

    /// Carries out one word of a READ or WRITE.
    pub(super) fn apply_word(&self, request: &WorkRequest, work: &mut Work, index: usize) {
        let Ok((memory, word)) = self.resolve(request) else { return };
        match request.op {
            Op::Write => memory.write(word + index, &work.words(request.local)[index..=index]),
            _ => memory.read(word + index, &mut work.words_mut(request.local)[index..=index]),
        }
    }
}

/// Applies `change` to the two words from `first` on, stores the result unless `None`, and returns
/// the old words. Atomic, because verbs take effect one by one, under the state's lock, and nothing
/// but verbs touches the memory.
fn update_wide(
    memory: &Memory,
    first: usize,
    change: impl FnOnce(u128) -> Option<u128>,
) -> [u64; WIDE_WORDS] {
    let mut held = [0; WIDE_WORDS];
    memory.read(first, &mut held);
    if let Some(new) = change(value_of(held)) {
        memory.write(first, &words_of(new));
    }
    held
}

/// Combines the first and the last word, which differ between different records: a version comes
/// first, data or a checksum last.
#[inline]
fn digest(words: &[u64]) -> u64 {
    match words {
        [] => 0,
        [first, .., last] => first.rotate_left(32) ^ last,
        [only] => *only,
    }
}
