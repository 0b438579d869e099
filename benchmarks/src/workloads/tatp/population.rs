//! Initial rows of all tables and their contents (TATP specification, §3).
//!
//! Every row is a function of its number and the seed, so that any number of loaders can make rows
//! in any order, and an audit can make the same rows again. The specification gives each subscriber
//! one to four rows of access information, at random. To find row `n` without counting all rows
//! before it, the row counts are *dealt*: of four neighbouring subscribers, one each gets one, two,
//! three and four rows, and only their order is random.

use std::ops::Range;

use lotus_mvcc::PrimaryKey;

use super::{ACCESS_INFO, BY_NUMBER, CALL_FORWARDING, SPECIAL_FACILITY, SUBSCRIBER};
use crate::contract::workload::mix;

/// Number of types of access information and of special facilities, counted from 1.
pub(super) const TYPES: u64 = 4;
/// The hours at which call forwardings start.
pub(super) const START_TIMES: [u8; 3] = [0, 8, 16];
/// Longest duration of a call forwarding, in hours; the shortest is one hour.
pub(super) const LONGEST_HOURS: u64 = 8;
/// Share of special facilities that are active, in per cent.
const ACTIVE_PERCENT: u64 = 85;
/// Digits of a telephone number.
pub(super) const DIGITS: usize = 15;

/// Size of the groups of owners that row counts are dealt to.
const HAND: u64 = 4;

/// Deals each group of four owners `least`, `least + 1`, `least + 2` and `least + 3` rows, in a
/// random order for each group.
#[derive(Clone, Copy, Debug)]
struct Deal {
    least: u64,
    seed: u64,
}

impl Deal {
    /// Number of rows of an owner.
    fn count(&self, owner: u64) -> u64 {
        let turn = mix(self.seed ^ mix(owner / HAND));
        self.least + turn.wrapping_add(owner) % HAND
    }

    /// Number of rows of a whole group.
    const fn of_hand(&self) -> u64 {
        HAND * self.least + 6
    }

    /// Number of rows of the first `owners` owners.
    fn total(&self, owners: u64) -> u64 {
        let whole = owners / HAND;
        whole * self.of_hand() + (whole * HAND..owners).map(|owner| self.count(owner)).sum::<u64>()
    }

    /// Owner of row number `row`, and the number of that owner's rows before it.
    fn find(&self, row: u64) -> (u64, u64) {
        let (hand, mut rank) = (row / self.of_hand(), row % self.of_hand());
        let mut owner = hand * HAND;
        while rank >= self.count(owner) {
            rank -= self.count(owner);
            owner += 1;
        }
        (owner, rank)
    }
}

/// The initial rows of all tables.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    /// Number of subscribers.
    pub subscribers: u64,
    seed: u64,
}

impl Population {
    pub(super) fn new(subscribers: u64, seed: u64) -> Self {
        Self { subscribers, seed: mix(seed ^ 0x7A79) }
    }

    /// Random bits that follow from the seed and three numbers.
    fn bits(&self, table: usize, owner: u64, part: u64) -> u64 {
        mix(self.seed ^ mix(owner << 8 | part << 4 | table as u64))
    }

    fn deal(&self, table: usize) -> Deal {
        let least = if table == CALL_FORWARDING { 0 } else { 1 };
        Deal { least, seed: mix(self.seed ^ table as u64) }
    }

    /// Number of rows of a table.
    pub fn rows(&self, table: usize) -> u64 {
        let owners = match table {
            SUBSCRIBER | BY_NUMBER => return self.subscribers,
            CALL_FORWARDING => self.rows(SPECIAL_FACILITY),
            _ => self.subscribers,
        };
        self.deal(table).total(owners)
    }

    /// Writes row `row` of a table into the empty buffer and returns its key.
    pub(super) fn row(&self, table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        match table {
            SUBSCRIBER => {
                value.extend_from_slice(&self.subscriber(row + 1));
                (row + 1).into()
            }
            BY_NUMBER => {
                value.extend_from_slice(PrimaryKey::from(row + 1).as_bytes());
                (row + 1).into()
            }
            CALL_FORWARDING => {
                let (facility, rank) = self.deal(table).find(row);
                let (s_id, sf_type) = self.typed(SPECIAL_FACILITY, facility);
                let turn = self.bits(table, facility, 0);
                let start = START_TIMES[(turn.wrapping_add(rank) % 3) as usize];
                let bits = self.bits(table, facility, 1 + rank);
                let end_time = start + 1 + (bits % LONGEST_HOURS) as u8;
                value.extend_from_slice(&Forwarding { end_time, to: digits(bits >> 16) }.encode());
                forwarding_key(s_id, sf_type, start)
            }
            _ => {
                let (s_id, kind) = self.typed(table, row);
                match table {
                    ACCESS_INFO => value.extend_from_slice(&self.access_info(s_id, kind)),
                    _ => value.extend_from_slice(&self.special_facility(s_id, kind)),
                }
                typed_key(s_id, kind)
            }
        }
    }

    /// Subscriber and type of a row of access information or of a special facility.
    fn typed(&self, table: usize, row: u64) -> (u64, u8) {
        let (owner, rank) = self.deal(table).find(row);
        let turn = self.bits(table, owner, 0);
        (owner + 1, 1 + (turn.wrapping_add(rank) % TYPES) as u8)
    }

    /// Number of the row of access information, or of the special facility, of a subscriber and a
    /// type; `None` if the row does not exist.
    pub fn row_of(&self, table: usize, s_id: u64, kind: u8) -> Option<u64> {
        let (owner, deal) = (s_id - 1, self.deal(table));
        let turn = self.bits(table, owner, 0);
        let is_it = |rank: &u64| turn.wrapping_add(*rank) % TYPES + 1 == u64::from(kind);
        let rank = (0..deal.count(owner)).find(is_it)?;
        Some(deal.total(owner) + rank)
    }

    /// The start hours, up to `last`, of a facility's initial call forwardings; the facility is
    /// given by the number of its row.
    pub fn starts(&self, facility: u64, last: u8) -> impl Iterator<Item = u8> + use<> {
        let turn = self.bits(CALL_FORWARDING, facility, 0);
        let ranks = 0..self.deal(CALL_FORWARDING).count(facility);
        let start = move |rank| START_TIMES[(turn.wrapping_add(rank) % 3) as usize];
        ranks.map(start).filter(move |start| *start <= last)
    }

    /// The record of a subscriber.
    pub(super) fn subscriber(&self, s_id: u64) -> [u8; Subscriber::BYTES] {
        let word = |part| self.bits(SUBSCRIBER, s_id, part);
        let mut record = [0; Subscriber::BYTES];
        record[Subscriber::ID].copy_from_slice(&s_id.to_le_bytes());
        record[Subscriber::NUMBER].copy_from_slice(&digits(s_id));
        // Ten bits, ten hexadecimal digits, ten bytes, two locations.
        let drawn = [word(1) & 0x3FF, word(2), word(3), word(4)].map(u64::to_le_bytes);
        record[Subscriber::BITS].copy_from_slice(&drawn[0][..2]);
        record[Subscriber::HEX].copy_from_slice(&drawn[1][..5]);
        record[Subscriber::BYTES_2].copy_from_slice(&[&drawn[2][..], &drawn[1][5..7]].concat());
        record[Subscriber::MSC].copy_from_slice(&drawn[3][..4]);
        record[Subscriber::VLR].copy_from_slice(&drawn[3][4..]);
        record
    }

    /// The record of a row of access information.
    pub(super) fn access_info(&self, s_id: u64, ai_type: u8) -> [u8; ACCESS_INFO_BYTES] {
        let bits = self.bits(ACCESS_INFO, s_id, ai_type.into());
        let mut record = [0; ACCESS_INFO_BYTES];
        record[..2].copy_from_slice(&bits.to_le_bytes()[..2]);
        letters(bits >> 16, &mut record[2..]);
        record
    }

    /// The record of a special facility.
    pub(super) fn special_facility(&self, s_id: u64, sf_type: u8) -> [u8; Facility::BYTES] {
        let bits = self.bits(SPECIAL_FACILITY, s_id, sf_type.into());
        let mut record = [0; Facility::BYTES];
        record[Facility::ACTIVE] = u8::from(bits % 100 < ACTIVE_PERCENT);
        record[Facility::ERROR_CONTROL] = (bits >> 8) as u8;
        record[Facility::DATA_A] = (bits >> 16) as u8;
        letters(bits >> 24, &mut record[Facility::DATA_B]);
        record
    }
}

/// Positions of the fields in a subscriber's record.
pub(super) struct Subscriber;

impl Subscriber {
    pub(super) const BYTES: usize = 48;
    pub(super) const ID: Range<usize> = 0..8;
    pub(super) const NUMBER: Range<usize> = 8..23;
    /// Ten bits, of which the first is `bit_1`.
    pub(super) const BITS: Range<usize> = 23..25;
    const HEX: Range<usize> = 25..30;
    const BYTES_2: Range<usize> = 30..40;
    const MSC: Range<usize> = 40..44;
    pub(super) const VLR: Range<usize> = 44..48;
}

/// Bytes of a row of access information: two bytes and eight letters.
pub(super) const ACCESS_INFO_BYTES: usize = 10;

/// Positions of the fields in a special facility's record.
pub(super) struct Facility;

impl Facility {
    pub(super) const BYTES: usize = 8;
    pub(super) const ACTIVE: usize = 0;
    const ERROR_CONTROL: usize = 1;
    pub(super) const DATA_A: usize = 2;
    const DATA_B: Range<usize> = 3..8;
}

/// The value of a call forwarding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Forwarding {
    /// Hour at which the forwarding ends, from 1 to 24.
    pub(super) end_time: u8,
    /// Telephone number that calls are forwarded to.
    pub(super) to: [u8; DIGITS],
}

impl Forwarding {
    pub(super) const BYTES: usize = 1 + DIGITS;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut record = [self.end_time; Self::BYTES];
        record[1..].copy_from_slice(&self.to);
        record
    }

    /// Decodes a record; `None` if it is malformed.
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        let (end_time, to) = record.split_first()?;
        let to: [u8; DIGITS] = to.try_into().ok()?;
        let right = (1..=24).contains(end_time) && to.iter().all(u8::is_ascii_digit);
        right.then_some(Self { end_time: *end_time, to })
    }
}

/// The key of a row of access information or of a special facility.
#[inline]
pub(super) fn typed_key(s_id: u64, kind: u8) -> PrimaryKey {
    (s_id as u32, u32::from(kind)).into()
}

/// The key of a call forwarding.
#[inline]
pub(super) fn forwarding_key(s_id: u64, sf_type: u8, start_time: u8) -> PrimaryKey {
    (s_id as u32, u32::from(sf_type) << 8 | u32::from(start_time)).into()
}

/// Subscriber, type and start in the key of a call forwarding; `None` if the key has another form.
pub(super) fn forwarding_of(key: &PrimaryKey) -> Option<(u64, u8, u8)> {
    let (s_id, rest) = key.as_bytes().split_first_chunk::<4>()?;
    match rest {
        [0, 0, sf_type, start] => Some((u32::from_be_bytes(*s_id).into(), *sf_type, *start)),
        _ => None,
    }
}

/// Telephone number of a subscriber: the last fifteen decimal digits of `number`.
pub(super) fn digits(mut number: u64) -> [u8; DIGITS] {
    let mut text = [b'0'; DIGITS];
    for digit in text.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    text
}

/// Fills `text` with capital letters.
fn letters(mut bits: u64, text: &mut [u8]) {
    for letter in text {
        *letter = b'A' + (bits % 26) as u8;
        bits /= 26;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SIZES: [u64; 6] = [1, 2, 3, 4, 30, 1001];

    fn all_rows(population: &Population, table: usize) -> BTreeMap<PrimaryKey, Vec<u8>> {
        let mut rows = BTreeMap::new();
        for row in 0..population.rows(table) {
            let mut value = Vec::new();
            let key = population.row(table, row, &mut value);
            assert!(rows.insert(key, value).is_none(), "table {table}: {key:?} comes twice");
        }
        rows
    }

    #[test]
    fn tables_are_as_large_as_the_specification_says() {
        let population = Population::new(100_000, 1);
        let rows = [SUBSCRIBER, ACCESS_INFO, SPECIAL_FACILITY, CALL_FORWARDING, BY_NUMBER];
        let rows = rows.map(|table| population.rows(table));
        assert_eq!(rows, [100_000, 250_000, 250_000, 375_000, 100_000]);
    }

    #[test]
    fn every_subscriber_has_one_to_four_rows_of_a_kind() {
        for population in SIZES.map(|subscribers| Population::new(subscribers, 7)) {
            for table in [ACCESS_INFO, SPECIAL_FACILITY] {
                let mut counts = vec![0; population.subscribers as usize];
                for key in all_rows(&population, table).keys() {
                    let [s_id @ .., 0, 0, 0, kind] = key.as_bytes() else { panic!("{key:?}") };
                    assert!((1..=4).contains(kind), "type {kind}");
                    let s_id = u32::from_be_bytes(s_id.try_into().expect("four bytes"));
                    counts[s_id as usize - 1] += 1;
                }
                assert!(counts.iter().all(|count| (1..=4).contains(count)), "{counts:?}");
            }
        }
    }

    #[test]
    fn every_forwarding_belongs_to_a_facility_and_ends_after_it_starts() {
        for population in SIZES.map(|subscribers| Population::new(subscribers, 7)) {
            let facilities: BTreeSet<_> =
                all_rows(&population, SPECIAL_FACILITY).into_keys().collect();
            for (key, value) in all_rows(&population, CALL_FORWARDING) {
                let (s_id, sf_type, start) = forwarding_of(&key).expect("it is one");
                assert!(START_TIMES.contains(&start), "{start}");
                assert!(facilities.contains(&typed_key(s_id, sf_type)), "{key:?}");
                let Forwarding { end_time, .. } = Forwarding::decode(&value).expect("a record");
                assert!((start + 1..=start + 8).contains(&end_time), "{start} to {end_time}");
            }
        }
    }

    #[test]
    fn rows_are_found_by_what_is_in_their_keys() {
        for population in SIZES.map(|subscribers| Population::new(subscribers, 7)) {
            for table in [ACCESS_INFO, SPECIAL_FACILITY] {
                let mut rows: Vec<u64> = Vec::new();
                for s_id in 1..=population.subscribers {
                    for kind in 1..=TYPES as u8 {
                        let row = population.row_of(table, s_id, kind);
                        assert!(row.is_none_or(|row| population.typed(table, row) == (s_id, kind)));
                        rows.extend(row);
                    }
                }
                rows.sort_unstable();
                assert!(rows.into_iter().eq(0..population.rows(table)));
            }
            let mut all = BTreeSet::new();
            for row in 0..population.rows(SPECIAL_FACILITY) {
                let (s_id, sf_type) = population.typed(SPECIAL_FACILITY, row);
                let keys = population.starts(row, 24);
                all.extend(keys.map(|start| forwarding_key(s_id, sf_type, start)));
                assert!(population.starts(row, 8).all(|start| start <= 8));
            }
            assert!(all.iter().eq(all_rows(&population, CALL_FORWARDING).keys()));
        }
    }

    #[test]
    fn most_facilities_are_active_and_all_types_alike() {
        let population = Population::new(10_000, 3);
        let facilities = all_rows(&population, SPECIAL_FACILITY);
        let share = |kept: &dyn Fn(&PrimaryKey, &[u8]) -> bool| {
            let kept = facilities.iter().filter(|(key, value)| kept(key, value)).count();
            kept as f64 / facilities.len() as f64
        };
        assert!((share(&|_, value| value[Facility::ACTIVE] == 1) - 0.85).abs() < 0.01);
        for sf_type in 1..=4 {
            let of_type = share(&|key, _| key.as_bytes().last() == Some(&sf_type));
            assert!((of_type - 0.25).abs() < 0.01, "type {sf_type}: {of_type}");
        }
    }

    #[test]
    fn a_subscriber_has_its_number_in_fifteen_digits() {
        assert_eq!(&digits(1_234), b"000000000001234");
        assert_eq!(&digits(u64::MAX), b"744073709551615");
        let record = Population::new(5, 1).subscriber(5);
        assert_eq!(&record[Subscriber::NUMBER], b"000000000000005");
        assert_eq!(&record[Subscriber::ID], 5_u64.to_le_bytes());
    }
}
