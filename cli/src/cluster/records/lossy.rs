//! An authority that is out of reach now and then.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lotus_router::authority::{Version, Versioned};
use lotus_router::{Authority, AuthorityError, EmbeddedAuthority};

/// Of each key it loses the first question, and then the first answer to a question that it has
/// carried out: of reads, and of swaps. Others it answers.
#[derive(Default)]
pub struct Lossy {
    pub inner: EmbeddedAuthority,
    asked: Mutex<BTreeMap<(String, &'static str), u32>>,
}

impl Lossy {
    /// How many questions and answers it has lost.
    pub fn lost(&self) -> u32 {
        let asked = self.asked.lock().expect("nobody panics with it");
        asked.values().map(|asked| (*asked).min(2)).sum()
    }

    fn ask<T>(
        &self,
        key: &str,
        kind: &'static str,
        question: impl FnOnce() -> Result<T, AuthorityError>,
    ) -> Result<T, AuthorityError> {
        let mut asked = self.asked.lock().expect("nobody panics with it");
        let turn = asked.entry((key.to_owned(), kind)).or_default();
        *turn += 1;
        match *turn {
            1 => Err(AuthorityError::Unavailable),
            2 => question().and(Err(AuthorityError::Unavailable)),
            _ => question(),
        }
    }
}

impl Authority for Lossy {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.ask(key, "read", || self.inner.read(key))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.ask(key, "swap", || self.inner.compare_and_swap(key, expected, value))
    }
}
