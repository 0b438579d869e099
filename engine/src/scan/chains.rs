//! Walk of a scan over the overflow buckets of a stretch, home bucket by home bucket.
//!
//! # The order
//! The buckets behind a home bucket form a tree ([`lotus_mvcc::layout::bucket`]). The tree is
//! walked in preorder: a bucket, then the buckets behind it, then the neighbour in the fan. A
//! bucket's place ([`ChainPlace`]) is the path to it, which never changes, since buckets never
//! leave their chains; a bucket that has joined a chain since the snapshot shows no row of the
//! snapshot.
//!
//! # What it is not
//! This module posts no READ: [`Chains::wanted`] says which buckets to read next,
//! [`Chains::absorb`] takes the words.

use std::collections::VecDeque;

use lotus_mvcc::layout::bucket::{Bucket, Overflow};
use lotus_mvcc::layout::cvt::CvtShape;

use crate::scan::place::{ChainPlace, Path};

/// Bucket behind a home bucket.
struct Linked {
    at: ChainPlace,
    offset: u64,
    words: Vec<u64>,
}

/// Buckets of one step, as offset and words, and the place of the last bucket.
pub(super) struct Run {
    pub(super) buckets: Vec<(u64, Vec<u64>)>,
    pub(super) last: ChainPlace,
}

/// The rest of the walk.
pub(super) struct Chains {
    cvt: CvtShape,
    /// Neighbours that were read and are still to come; the deepest ones last, and first to come.
    read: Vec<VecDeque<Linked>>,
    /// Unread buckets, which come before all buckets of `read`.
    wanted: Vec<(ChainPlace, u64)>,
}

impl Chains {
    /// The walk over the buckets behind the home buckets of a stretch, from the home bucket of
    /// `first` on. `homes` are the words of all home buckets, in order.
    pub(super) fn behind<'w>(
        cvt: CvtShape,
        first: ChainPlace,
        homes: impl Iterator<Item = &'w [u64]>,
    ) -> Self {
        let at = |home| ChainPlace { home, path: Path::HOME, ..first };
        let homes = (0..).zip(homes).skip(usize::from(first.home));
        let wanted = homes.flat_map(|(home, words)| children(cvt, at(home), words)).collect();
        Self { cvt, read: Vec::new(), wanted }
    }

    /// Whether the walk is over.
    pub(super) fn is_over(&self) -> bool {
        self.wanted.is_empty() && self.read.iter().all(VecDeque::is_empty)
    }

    /// Offsets of the buckets to read next; empty if read buckets are left.
    pub(super) fn wanted(&self) -> impl Iterator<Item = u64> {
        self.wanted.iter().map(|(_, offset)| *offset)
    }

    /// Takes the words of the buckets that were [wanted](Self::wanted).
    pub(super) fn absorb(&mut self, words: Vec<Vec<u64>>) {
        debug_assert_eq!(words.len(), self.wanted.len(), "I271: each bucket is read once");
        let read = self.wanted.drain(..).zip(words);
        self.read.push(read.map(|((at, offset), words)| Linked { at, offset, words }).collect());
    }

    /// Passes over everything up to `place`, as far as it was read, and continues behind `place`.
    pub(super) fn pass(&mut self, place: ChainPlace) {
        while let Some(next) = self.next_read() {
            let (home, path) = (next.at.home, next.at.path);
            if (home, path) > (place.home, place.path) {
                return;
            }
            let passed = self.pop().expect("there is one");
            if passed.at == place {
                self.wanted = children(self.cvt, place, &passed.words).collect();
                return;
            }
        }
    }

    /// Takes the next buckets, at most `most`: neighbours, up to the first bucket with buckets
    /// behind it. `None` if no bucket was read.
    pub(super) fn take(&mut self, most: usize) -> Option<Run> {
        let mut run: Option<Run> = None;
        while run.as_ref().is_none_or(|run| run.buckets.len() < most && self.wanted.is_empty()) {
            let Some(Linked { at, offset, words }) = self.pop() else { break };
            self.wanted = children(self.cvt, at, &words).collect();
            let run = run.get_or_insert(Run { buckets: Vec::new(), last: at });
            run.buckets.push((offset, words));
            run.last = at;
        }
        run
    }

    fn next_read(&mut self) -> Option<&Linked> {
        while self.read.last().is_some_and(VecDeque::is_empty) {
            self.read.pop();
        }
        self.read.last()?.front()
    }

    fn pop(&mut self) -> Option<Linked> {
        self.next_read()?;
        self.read.last_mut()?.pop_front()
    }
}

/// Places and offsets of the buckets directly behind the bucket at `place`.
fn children(
    cvt: CvtShape,
    place: ChainPlace,
    words: &[u64],
) -> impl Iterator<Item = (ChainPlace, u64)> + use<> {
    let behind = Bucket::new(words, cvt).overflow();
    let of = move |behind: Overflow| {
        let at = move |index| ChainPlace { path: place.path.child(index), ..place };
        (0..behind.buckets()).map(at).zip(behind.offsets(cvt))
    };
    behind.into_iter().flat_map(of)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lotus_mvcc::layout::WORD_BYTES;
    use lotus_mvcc::layout::bucket::{FAN_OUT, bucket_bytes, bucket_words};

    use super::*;

    const CVT: CvtShape = CvtShape::new(2, 0);
    const FIRST: ChainPlace = ChainPlace { homes: 3, home: 0, path: Path::HOME };

    /// Memory of three home buckets, of which the outer ones have others behind them.
    fn memory() -> BTreeMap<u64, Vec<u64>> {
        let line = bucket_bytes(CVT) as u64;
        let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut enter = |offset: u64, behind: Option<Overflow>| {
            let mut words = vec![0; bucket_words(CVT)];
            *words.last_mut().expect("not empty") = behind.map_or(0, Overflow::encode);
            all.insert(offset, words);
        };
        let [one, fan, deep] = [1, 2, 3].map(|slab| slab << 18);
        enter(0, Some(Overflow::bucket(one)));
        enter(line, None);
        enter(2 * line, Some(Overflow::fan(deep)));
        enter(one, Some(Overflow::fan(fan)));
        for index in 0..FAN_OUT as u64 {
            enter(fan + index * line, (index == 2).then(|| Overflow::bucket(one + line)));
            enter(deep + index * line, None);
        }
        enter(one + line, None);
        all
    }

    fn read(memory: &BTreeMap<u64, Vec<u64>>, chains: &mut Chains) {
        let wanted: Vec<_> = chains.wanted().map(|offset| memory[&offset].clone()).collect();
        if !wanted.is_empty() {
            chains.absorb(wanted);
        }
    }

    /// Everything behind a place, in steps of `most` buckets: the offsets of each, and its place.
    fn walk(from: ChainPlace, most: usize) -> Vec<(Vec<u64>, ChainPlace)> {
        let memory = memory();
        let line = bucket_bytes(CVT) as u64;
        let homes = (0..3).map(|home| memory[&(home * line)].as_slice());
        let mut chains = Chains::behind(CVT, from, homes);
        for ancestor in from.path.prefixes() {
            read(&memory, &mut chains);
            chains.pass(ChainPlace { path: ancestor, ..from });
        }
        let mut steps = Vec::new();
        while !chains.is_over() {
            read(&memory, &mut chains);
            let run = chains.take(most).expect("it is not over");
            assert!(run.buckets.len() <= most);
            steps.push((run.buckets.into_iter().map(|(offset, _)| offset).collect(), run.last));
        }
        steps
    }

    #[test]
    fn every_bucket_comes_once_and_what_is_behind_it_next() {
        let line = bucket_bytes(CVT) as u64;
        let [one, fan, deep] = [1, 2, 3].map(|slab| slab << 18);
        let offsets = |base: u64, range: std::ops::Range<u64>| range.map(move |i| base + i * line);
        let mut expected = vec![one];
        expected.extend(offsets(fan, 0..3));
        expected.push(one + line);
        expected.extend(offsets(fan, 3..FAN_OUT as u64));
        expected.extend(offsets(deep, 0..FAN_OUT as u64));
        for most in [1, 3, 100] {
            let all: Vec<u64> =
                walk(FIRST, most).into_iter().flat_map(|(offsets, _)| offsets).collect();
            assert_eq!(all, expected, "{most} at a time");
        }
        assert!(expected.iter().all(|offset| offset % WORD_BYTES as u64 == 0));
    }

    #[test]
    fn a_walk_goes_on_behind_each_place_where_it_stopped() {
        for most in [1, 3] {
            let whole = walk(FIRST, most);
            for (done, (_, place)) in (1..).zip(&whole) {
                assert_eq!(walk(*place, most), whole[done..], "{place:?}");
            }
        }
    }

    #[test]
    fn a_place_that_does_not_exist_ends_without_a_bucket_twice() {
        let nowhere = Path::HOME.child(2).child(3).child(3);
        for home in [0, 1, 2, 9] {
            let from = ChainPlace { home, path: nowhere, ..FIRST };
            let mut all: Vec<u64> =
                walk(from, 3).into_iter().flat_map(|(offsets, _)| offsets).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}
