//! Attempts that locks would keep apart, tracked without verbs.
//!
//! The idealized lock lets attempts on the same rows go on concurrently. If every attempt wrote the
//! rows, some rows would become unreadable: two records would follow a version, or a slot would be
//! in two free lists. The compute nodes of the process therefore share a table of the names in use
//! and their modes. The table decides which attempts real locks would have let pass; the remaining
//! attempts only pretend to commit. The table is no part of the lock's traffic.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lotus_locktable::{LockKey, LockMode, LockRequest};

/// Number of parts with separate mutexes.
const PARTS: usize = 256;

/// Users of a name, kept apart from conflicting attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Users {
    /// Readers, at least 1.
    Readers(u32),
    /// A single writer.
    Writer,
}

/// Users of a name after an attempt joins that has the name in mode `own` already; `None` on a
/// conflict.
fn joined(users: Option<Users>, own: Option<LockMode>, mode: LockMode) -> Option<Users> {
    match (users, own, mode) {
        (None, _, LockMode::Read) => Some(Users::Readers(1)),
        (None, _, LockMode::Write) => Some(Users::Writer),
        (Some(users), Some(own), mode) if own >= mode => Some(users),
        (Some(Users::Readers(1)), Some(_), LockMode::Write) => Some(Users::Writer),
        (Some(Users::Readers(count)), None, LockMode::Read) => Some(Users::Readers(count + 1)),
        (Some(_), ..) => None,
    }
}

/// Users of a name after a user leaves.
fn left(users: Option<Users>) -> Option<Users> {
    match users {
        Some(Users::Readers(count)) if count > 1 => Some(Users::Readers(count - 1)),
        _ => None,
    }
}

/// Users of the names in use. See the module's documentation.
pub struct Exclusion {
    parts: Box<[Mutex<BTreeMap<LockKey, Users>>]>,
}

impl Default for Exclusion {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }
}

impl Exclusion {
    fn part(&self, name: &LockKey) -> MutexGuard<'_, BTreeMap<LockKey, Users>> {
        let part = &self.parts[name.hash() as usize % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an attempt to the users of a name, which it has in mode `own` already. Returns whether
    /// no user conflicts; after a conflict, the users stay unchanged.
    pub(super) fn join(&self, request: &LockRequest, own: Option<LockMode>) -> bool {
        let LockRequest { name, mode } = *request;
        let mut part = self.part(&name);
        let users = joined(part.get(&name).copied(), own, mode);
        users.into_iter().for_each(|users| _ = part.insert(name, users));
        users.is_some()
    }

    /// Removes an attempt from the users of a name.
    pub(super) fn leave(&self, name: &LockKey) {
        let mut part = self.part(name);
        debug_assert!(part.contains_key(name), "an attempt leaves a name once");
        match left(part.get(name).copied()) {
            Some(users) => _ = part.insert(*name, users),
            None => _ = part.remove(name),
        }
    }

    /// Number of names in use.
    pub fn in_use(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{Key, TableId};

    use super::*;

    #[test]
    fn readers_share_a_name_and_a_writer_has_it_alone() {
        use LockMode::{Read, Write};
        use Users::{Readers, Writer};
        for (users, own, mode, expected) in [
            (None, None, Read, Some(Readers(1))),
            (None, None, Write, Some(Writer)),
            (Some(Readers(1)), None, Read, Some(Readers(2))),
            (Some(Readers(1)), None, Write, None),
            (Some(Writer), None, Read, None),
            (Some(Writer), None, Write, None),
            // Again, by the same attempt.
            (Some(Readers(2)), Some(Read), Read, Some(Readers(2))),
            (Some(Readers(1)), Some(Read), Write, Some(Writer)),
            (Some(Readers(2)), Some(Read), Write, None),
            (Some(Writer), Some(Write), Read, Some(Writer)),
            (Some(Writer), Some(Write), Write, Some(Writer)),
        ] {
            assert_eq!(joined(users, own, mode), expected, "{users:?}, {own:?}, {mode:?}");
        }
        for (users, expected) in
            [(Some(Readers(2)), Some(Readers(1))), (Some(Readers(1)), None), (Some(Writer), None)]
        {
            assert_eq!(left(users), expected, "{users:?}");
        }
    }

    #[test]
    fn names_without_users_are_forgotten() {
        let all = Exclusion::default();
        let name = |key| LockKey::row(TableId(1), Key(key));
        assert!((0..1000).all(|key| all.join(&LockRequest::write(name(key)), None)));
        assert!(!all.join(&LockRequest::read(name(7)), None));
        assert_eq!(all.in_use(), 1000);
        (0..1000).for_each(|key| all.leave(&name(key)));
        assert_eq!(all.in_use(), 0);
        assert!(all.join(&LockRequest::read(name(7)), None));
    }
}
