//! Encoded keys and values: their order, the way back, and bytes that are none.

use std::fmt::Debug;

use lotus_rows::{
    KeyAs, KeyRange, Malformed, Ordered, PrefixOf, RowKey, Schema, Serde, Value, Zerocopy,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Letters of which one string is often the beginning of another, some of them escaped.
const LETTERS: [char; 6] = ['\0', '\u{1}', '\u{2}', 'a', '\u{ff}', '\u{10ffff}'];
const BYTES: [u8; 6] = [0, 1, 2, 3, 0xfe, 0xff];

fn texts() -> impl Strategy<Value = String> {
    vec(prop::sample::select(&LETTERS[..]), 0..5).prop_map(String::from_iter)
}

fn strings() -> impl Strategy<Value = Vec<u8>> {
    vec(prop::sample::select(&BYTES[..]), 0..5)
}

/// Small numbers and those at the ends, so that parts of tuples are often equal.
fn signed() -> impl Strategy<Value = i32> {
    prop_oneof![-2..3, Just(i32::MIN), Just(i32::MAX), any::<i32>()]
}

fn schema<K: RowKey>() -> Schema<K, (), Ordered> {
    Schema::ordered("keys")
}

fn encoded<K: RowKey>(key: &K) -> Vec<u8> {
    schema().key(key).expect("it is short").as_bytes().to_vec()
}

/// Checks that two keys compare as their bytes, that neither begins with the other, and the way
/// back.
fn check<K: RowKey + Ord + Debug + Clone>(one: &K, other: &K) {
    let (bytes, others) = (encoded(one), encoded(other));
    assert_eq!(one.cmp(other), bytes.cmp(&others), "{one:?} {bytes:x?}, {other:?} {others:x?}");
    assert!(one == other || !bytes.starts_with(&others), "{other:?} begins {one:?}");
    assert_eq!(schema().decode_key(&bytes).as_ref(), Ok(one));
    if let Some(most) = K::MAX_KEY_BYTES {
        assert!(bytes.len() <= most as usize);
    }
    let up_to = KeyRange::of(&(..=one.clone()));
    assert_eq!(*others < *up_to.until().expect("a bound"), other <= one);
    let above = KeyRange::of(&(std::ops::Bound::Excluded(one.clone()), std::ops::Bound::Unbounded));
    assert_eq!(*others >= *above.from(), other > one);
}

/// Checks that bytes are a key if and only if they are the key's encoding.
fn check_bytes<K: RowKey + Debug>(bytes: &[u8]) {
    if let Ok(key) = schema::<K>().decode_key(bytes) {
        assert_eq!(encoded(&key), bytes, "{key:?}");
    }
}

/// Checks which keys a prefix's range holds.
fn check_prefix<K: RowKey, P: PrefixOf<K> + ?Sized>(prefix: &P, key: &K, begins: bool) {
    let (range, bytes) = (KeyRange::prefix::<K, P>(prefix), encoded(key));
    let inside = *bytes >= *range.from() && range.until().is_none_or(|until| *bytes < *until);
    assert_eq!(inside, begins, "{bytes:x?} in {range:?}");
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    Open = 1,
    Closed = 2,
}

impl KeyAs for State {
    type As = u8;
    fn to_key(&self) -> u8 {
        *self as u8
    }
    fn from_key(number: u8) -> Option<Self> {
        [Self::Open, Self::Closed].into_iter().find(|state| *state as u8 == number)
    }
}

type Unsigned = (u8, u16, u32, u64, u128);
type Signed = (i8, i16, i32, i64, i128);
type Parts = (String, i32, Vec<u8>, Option<String>, bool, Vec<u8>);

proptest! {
    #[test]
    fn unsigned_numbers_keep_their_order(a: Unsigned, b: Unsigned) {
        check(&a.0, &b.0);
        check(&a.1, &b.1);
        check(&a.2, &b.2);
        check(&a.3, &b.3);
        check(&a.4, &b.4);
        check(&a, &b);
    }

    #[test]
    fn signed_numbers_keep_their_order(a: Signed, b: Signed) {
        check(&a.0, &b.0);
        check(&a.1, &b.1);
        check(&a.2, &b.2);
        check(&a.3, &b.3);
        check(&a.4, &b.4);
        check(&a, &b);
    }

    #[test]
    fn letters_and_bytes_keep_their_order(a: (bool, char, [u8; 3]), b: (bool, char, [u8; 3])) {
        check(&a.0, &b.0);
        check(&a.1, &b.1);
        check(&a.2, &b.2);
        check(&a, &b);
    }

    #[test]
    fn strings_keep_their_order(a in (texts(), strings()), b in (texts(), strings())) {
        check(&a.0, &b.0);
        check(&a.1, &b.1);
        check(&a, &b);
        check(&(a.1, a.0), &(b.1, b.0));
    }

    #[test]
    fn options_keep_their_order(
        a in (option::of(texts()), option::of(signed())),
        b in (option::of(texts()), option::of(signed())),
    ) {
        check(&a.0, &b.0);
        check(&a.1, &b.1);
        check(&a, &b);
        check(&(Some(a.0),), &(Some(b.0),));
    }

    #[test]
    fn tuples_keep_their_order(
        a in (texts(), signed(), strings(), option::of(texts()), any::<bool>(), strings()),
        b in (texts(), signed(), strings(), option::of(texts()), any::<bool>(), strings()),
    ) {
        check(&a, &b);
        let nested = |(text, number, string, other, yes, last): Parts| {
            ((text, number, u8::MAX), string, other, (yes, (last, 7_u8)))
        };
        check(&nested(a.clone()), &nested(b.clone()));
        let five = |(text, number, string, other, yes, _): Parts| {
            (string, u8::MAX, other, yes, (text, number))
        };
        check(&five(a.clone()), &five(b.clone()));
        let four = |(text, number, string, ..): Parts| (string, [0_u8; 2], text, number);
        check(&four(a), &four(b));
    }

    #[test]
    fn bytes_are_keys_only_if_they_are_encoded_so(
        bytes in prop_oneof![vec(0_u8..3, 0..12), vec(any::<u8>(), 0..24)],
    ) {
        check_bytes::<(bool, char)>(&bytes);
        check_bytes::<Vec<u8>>(&bytes);
        check_bytes::<String>(&bytes);
        check_bytes::<(String, Option<Vec<u8>>, i16)>(&bytes);
        check_bytes::<Option<State>>(&bytes);
        check_bytes::<[u8; 5]>(&bytes);
    }

    #[test]
    fn prefixes_hold_the_keys_that_begin_so(
        key in (texts(), strings(), signed()),
        other in (texts(), strings(), signed()),
        string in texts(),
    ) {
        check_prefix(&other.0, &key, key.0 == other.0);
        let same = (&key.0, &key.1) == (&other.0, &other.1);
        check_prefix(&(other.0, other.1.clone()), &key, same);
        check_prefix(&(key.0.clone(), other.1.clone()), &key, key.1 == other.1);
        check_prefix(&*string, &key.0, key.0.starts_with(&*string));
    }
}

#[test]
fn keys_have_the_bytes_that_the_table_of_types_states() {
    assert_eq!(encoded(&0x0102_u16), [1, 2]);
    assert_eq!((encoded(&-1_i8), encoded(&0_i8)), (vec![0x7f], vec![0x80]));
    assert_eq!((encoded(&true), encoded(&'a')), (vec![1], vec![0, 0, 0, b'a']));
    assert_eq!(encoded(&[1_u8, 0]), [1, 0]);
    assert_eq!(encoded(&vec![3_u8, 0, 1]), [3, 1, 1, 1, 2, 0]);
    assert_eq!(encoded(&("ab".to_owned(), 5_u8)), [b'a', b'b', 0, 5]);
    assert_eq!((encoded(&None::<u8>), encoded(&Some(7_u8))), (vec![0], vec![1, 7]));
    assert_eq!(encoded(&State::Closed), [2]);
    let (before, after) = (("a".to_owned(), "b".to_owned()), ("ab".to_owned(), String::new()));
    assert!(encoded(&before) < encoded(&after));
}

#[test]
fn bytes_that_are_no_key_are_refused() {
    fn wrong<K: RowKey + Debug>(bytes: &[u8]) -> String {
        schema::<K>().decode_key(bytes).expect_err("it is no key").to_string()
    }
    assert_eq!(
        wrong::<State>(&[3]),
        "row 0x03 of table keys: its key is not of the table's type: the bytes stand for no value \
         of the type"
    );
    assert!(wrong::<u32>(&[0; 3]).ends_with("end too early"));
    assert!(wrong::<u32>(&[0; 6]).ends_with("2 bytes are left over"));
    assert!(wrong::<bool>(&[2]).ends_with("no value of the type"));
    assert!(wrong::<char>(&[0xff; 4]).ends_with("no value of the type"));
    assert!(wrong::<Option<u8>>(&[2, 0]).ends_with("no value of the type"));
    assert!(wrong::<Vec<u8>>(b"ab").ends_with("end too early"));
    assert!(wrong::<Vec<u8>>(&[1, 3, 0]).ends_with("no value of the type"));
    assert!(wrong::<Vec<u8>>(&[1, 0]).ends_with("no value of the type"));
    assert!(wrong::<String>(&[0xff, 0]).ends_with("not UTF-8"));
}

#[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Point {
    x: i32,
    y: u32,
}

fn there_and_back<V: Value>(value: &V::Type) -> V::Type {
    let bytes = V::to_bytes(value).expect("it has bytes").as_ref().to_vec();
    assert!(V::MAX_VALUE_BYTES.is_none_or(|most| bytes.len() <= most as usize));
    V::from_bytes(&bytes).expect("they are its bytes")
}

#[test]
fn values_come_back() {
    assert_eq!(there_and_back::<i64>(&-7), -7);
    assert_eq!(u32::to_bytes(&1).expect("it has bytes").as_ref(), [1, 0, 0, 0]);
    assert_eq!(there_and_back::<u128>(&u128::MAX), u128::MAX);
    assert_eq!(there_and_back::<[u8; 3]>(&[1, 2, 3]), [1, 2, 3]);
    assert_eq!(there_and_back::<Vec<u8>>(&vec![0, 255]), [0, 255]);
    assert_eq!(there_and_back::<String>(&"\u{e4}b".to_owned()), "\u{e4}b");
    there_and_back::<()>(&());
    let point = Point { x: -1, y: 2 };
    assert_eq!(there_and_back::<Zerocopy<Point>>(&point), point);
    let lines = vec![(1_u64, "anvil".to_owned()), (2, "x".repeat(1000))];
    assert_eq!(there_and_back::<Serde<Vec<(u64, String)>>>(&lines), lines);
}

#[test]
fn bytes_that_are_no_value_are_refused() {
    let length = |expected, found| Malformed::Length { expected, found };
    assert_eq!(u32::from_bytes(&[0; 5]), Err(length(4, 5)));
    assert_eq!(<[u8; 2]>::from_bytes(&[0]), Err(length(2, 1)));
    assert_eq!(<()>::from_bytes(&[0]), Err(length(0, 1)));
    assert_eq!(Zerocopy::<Point>::from_bytes(&[0; 9]), Err(length(8, 9)));
    assert_eq!(String::from_bytes(&[0xff]), Err(Malformed::Utf8));
    assert_eq!(Serde::<u8>::from_bytes(&[7, 8, 9]), Err(Malformed::Trailing { bytes: 2 }));
    assert!(matches!(Serde::<String>::from_bytes(&[7, 8]), Err(Malformed::Serde(_))));
}
