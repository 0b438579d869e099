//! Randomness as required by the specification: rows that are functions of their numbers, and the
//! non-uniform choices of clause 2.1.6.

use rand::Rng;
use rand::rngs::SmallRng;

use super::scale::Scale;
use crate::contract::workload::mix;

/// Bits of the golden ratio, the increment of SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Characters of texts. Two letters come twice, so that six bits choose a character.
const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789az";

/// Generator of the random values of one row.
pub(super) struct Rolls {
    state: u64,
}

impl Rolls {
    /// Makes the generator of row `row` of a table.
    #[inline]
    pub(super) fn new(seed: u64, table: u64, row: u64) -> Self {
        Self { state: mix(mix(seed ^ table << 56).wrapping_add(row)) }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number from `least` to `most`, both included.
    #[inline]
    pub(super) fn within(&mut self, least: u64, most: u64) -> u64 {
        let scaled = u128::from(self.next()) * u128::from(most - least + 1);
        least + (scaled >> 64) as u64
    }

    /// Random letters and digits, from `least` to `N` characters, padded with zeroes.
    #[inline]
    pub(super) fn text<const N: usize>(&mut self, least: usize) -> [u8; N] {
        let length = if least == N { N } else { self.within(least as u64, N as u64) as usize };
        let mut text = [0; N];
        for eight in text[..length].chunks_mut(8) {
            let bits = self.next();
            for (at, letter) in eight.iter_mut().enumerate() {
                *letter = ALPHABET[(bits >> (8 * at)) as usize % ALPHABET.len()];
            }
        }
        text
    }

    /// Random digits.
    #[inline]
    pub(super) fn digits<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| b'0' + self.within(0, 9) as u8)
    }
}

/// The constants C of a run, one for each field (clause 2.1.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Constants {
    /// Last names, when the database is populated.
    pub(super) last_name_load: u32,
    /// Last names, when transactions choose a name.
    pub(super) last_name_run: u32,
    pub(super) customer: u32,
    pub(super) item: u32,
}

impl Constants {
    pub(super) fn new(seed: u64) -> Self {
        let mut rolls = Rolls::new(seed, u64::from(u8::MAX), 0);
        let last_name_load = rolls.within(0, 255) as u32;
        // Distance of the two constants: 65 to 119, but neither 96 nor 112.
        let apart = loop {
            let drawn = rolls.within(65, 119) as u32;
            if drawn != 96 && drawn != 112 {
                break drawn;
            }
        };
        let above = last_name_load + apart;
        Self {
            last_name_load,
            last_name_run: if above <= 255 { above } else { last_name_load - apart },
            customer: rolls.within(0, 1023) as u32,
            item: rolls.within(0, 8191) as u32,
        }
    }
}

/// NURand(A, x, y): a distribution over x to y that strongly prefers some numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonUniform {
    a: u32,
    c: u32,
    x: u32,
    y: u32,
}

impl NonUniform {
    /// Distribution of last names, from zero.
    pub(super) fn last_name(scale: &Scale, c: u32) -> Self {
        Self { a: 255, c, x: 0, y: scale.last_names() - 1 }
    }

    /// Distribution of customers of a district, from one.
    pub(super) fn customer(scale: &Scale, c: u32) -> Self {
        Self { a: 1023, c, x: 1, y: scale.customers }
    }

    /// Distribution of items, from one.
    pub(super) fn item(scale: &Scale, c: u32) -> Self {
        Self { a: 8191, c, x: 1, y: scale.items }
    }

    #[inline]
    pub(super) fn draw(&self, rng: &mut SmallRng) -> u32 {
        let &Self { a, c, x, y } = self;
        let either = rng.random_range(0..=a) | rng.random_range(x..=y);
        (either + c) % (y - x + 1) + x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_constants_keep_their_distance() {
        for seed in 0..2000 {
            let Constants { last_name_load, last_name_run, customer, item } = Constants::new(seed);
            let apart = last_name_load.abs_diff(last_name_run);
            assert!((65..=119).contains(&apart) && apart != 96 && apart != 112, "{apart}");
            assert!(last_name_load <= 255 && last_name_run <= 255);
            assert!(customer <= 1023 && item <= 8191);
        }
    }

    #[test]
    fn non_uniform_numbers_stay_in_range_and_are_not_uniform() {
        let full = Scale::default();
        let tiny = Scale { warehouses: 1, customers: 1, items: 2 };
        let mut rng = SmallRng::seed_from_u64(1);
        for (draw, range) in [
            (NonUniform::last_name(&full, 123), 0..=999),
            (NonUniform::customer(&full, 77), 1..=3000),
            (NonUniform::item(&full, 4321), 1..=100_000),
            (NonUniform::last_name(&tiny, 200), 0..=0),
            (NonUniform::customer(&tiny, 1023), 1..=1),
            (NonUniform::item(&tiny, 8191), 1..=2),
        ] {
            const DRAWS: usize = 100_000;
            let mut drawn: Vec<u32> = (0..DRAWS).map(|_| draw.draw(&mut rng)).collect();
            assert!(drawn.iter().all(|number| range.contains(number)), "{draw:?}");
            drawn.sort_unstable();
            let values = *range.end() - *range.start() + 1;
            let most = drawn.chunk_by(|a, b| a == b).map(<[u32]>::len).max().expect("drawn");
            let even = DRAWS / values as usize;
            // OR-ing with a uniform number sets bits: the numbers with many of them win.
            assert!(values < 100 || most > 3 * even, "{draw:?}: {most} of {even}");
        }
    }

    #[test]
    fn texts_keep_to_their_lengths() {
        let mut rolls = Rolls::new(1, 2, 3);
        let mut lengths = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let text: [u8; 16] = rolls.text(8);
            let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            assert!(text[..length].iter().all(u8::is_ascii_alphanumeric));
            assert!(text[length..].iter().all(|byte| *byte == 0));
            lengths.insert(length);
            assert!(rolls.digits::<4>().iter().all(u8::is_ascii_digit));
        }
        assert!(lengths.into_iter().eq(8..=16));
    }
}
