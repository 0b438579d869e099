//! Conformance checks of the contract of [`Authority`], to run against your own implementation.
//!
//! The checks do not cover failures; the tests of each implementation do.

use std::thread;

use crate::{Authority, AuthorityError, Version, Versioned};

/// Number of threads that compete for a key, and number of wins per thread.
const RIVALS: u64 = 4;
const WINS: u64 = 25;

/// Checks the contract on keys below `conformance/`.
///
/// # Panics
/// If the authority breaks the contract or does not answer; the message says how.
pub fn run(authority: &dyn Authority) {
    an_absent_key_has_no_value(authority);
    versions_grow_across_keys(authority);
    a_write_needs_the_version_that_it_has_seen(authority);
    a_watcher_finds_the_last_value_and_nothing_it_has_seen(authority);
    any_bytes_are_a_value(authority);
    one_rival_at_a_time_wins(authority);
}

fn write(authority: &dyn Authority, key: &str, expected: Version, value: &[u8]) -> Version {
    authority.compare_and_swap(key, expected, value).expect("nobody else writes this key")
}

fn an_absent_key_has_no_value(authority: &dyn Authority) {
    let key = "conformance/absent";
    assert_eq!(authority.read(key).expect("it answers"), None);
    assert_eq!(authority.changed_since(key, Version::ABSENT).expect("it answers"), None);
    let refused = authority.compare_and_swap(key, Version(1), b"x");
    assert_eq!(refused, Err(AuthorityError::Conflict { current: Version::ABSENT }));
    assert_eq!(authority.read(key).expect("it answers"), None, "a refused write leaves nothing");
}

fn versions_grow_across_keys(authority: &dyn Authority) {
    let mut last = Version::ABSENT;
    for round in 0..3_u8 {
        for key in ["conformance/a", "conformance/b"] {
            let seen = authority.read(key).expect("it answers");
            let seen = seen.map_or(Version::ABSENT, |found| found.version);
            let version = write(authority, key, seen, &[round]);
            assert!(last < version, "a later write has a larger version, whatever its key");
            last = version;
        }
    }
}

fn a_write_needs_the_version_that_it_has_seen(authority: &dyn Authority) {
    let key = "conformance/guarded";
    let first = write(authority, key, Version::ABSENT, b"1");
    let again = authority.compare_and_swap(key, Version::ABSENT, b"2");
    assert_eq!(again, Err(AuthorityError::Conflict { current: first }));
    let second = write(authority, key, first, b"2");
    let late = authority.compare_and_swap(key, first, b"3");
    assert_eq!(late, Err(AuthorityError::Conflict { current: second }));
    let found = Versioned { version: second, value: b"2".to_vec() };
    assert_eq!(authority.read(key).expect("it answers"), Some(found));
}

fn a_watcher_finds_the_last_value_and_nothing_it_has_seen(authority: &dyn Authority) {
    let key = "conformance/watched";
    let first = write(authority, key, Version::ABSENT, b"1");
    let second = write(authority, key, first, b"2");
    for seen in [Version::ABSENT, first] {
        let found = authority.changed_since(key, seen).expect("it answers");
        assert_eq!(found, Some(Versioned { version: second, value: b"2".to_vec() }));
    }
    assert_eq!(authority.changed_since(key, second).expect("it answers"), None);
}

fn any_bytes_are_a_value(authority: &dyn Authority) {
    let key = "conformance/bytes/with ünusual characters";
    let mut version = Version::ABSENT;
    for value in [Vec::new(), vec![0], vec![0xFF; 4096], (0..=255).collect()] {
        version = write(authority, key, version, &value);
        let found = authority.read(key).expect("it answers");
        assert_eq!(found, Some(Versioned { version, value }));
    }
}

fn one_rival_at_a_time_wins(authority: &dyn Authority) {
    let key = "conformance/counter";
    write(authority, key, Version::ABSENT, &0_u64.to_le_bytes());
    thread::scope(|scope| {
        for _ in 0..RIVALS {
            scope.spawn(|| {
                let mut wins = 0;
                while wins < WINS {
                    let found = authority.read(key).expect("it answers").expect("it was written");
                    let count = u64::from_le_bytes(found.value.try_into().expect("eight bytes"));
                    let next = (count + 1).to_le_bytes();
                    match authority.compare_and_swap(key, found.version, &next) {
                        Ok(_) => wins += 1,
                        Err(AuthorityError::Conflict { current }) => {
                            assert!(current > found.version, "it was refused for a later write");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let found = authority.read(key).expect("it answers").expect("it was written");
    assert_eq!(found.value, (RIVALS * WINS).to_le_bytes(), "every win counts once");
}
