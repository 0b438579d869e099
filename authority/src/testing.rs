//! An authority for tests, which misbehaves within the limits of the contract of [`Authority`].
//!
//! # What it is
//! [`TestAuthority`] is an [`EmbeddedAuthority`] behind switches. A *script* is called with every
//! question and returns its [`QuestionOutcome`]; it may write as a rival before the question is
//! answered. Besides, a test can hold and release questions, and questions are counted.
//!
//! # What it is not
//! A network: it adds no delays. In simulations a delivery model carries the questions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Authority, AuthorityError, EmbeddedAuthority, Version, Versioned};

/// Outcome of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuestionOutcome {
    /// Carried out and answered.
    Answered,
    /// Never arrives: neither carried out nor answered.
    QuestionLost,
    /// Carried out, but the answer is lost.
    AnswerLost,
}

/// A question, before the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question<'a> {
    /// Read of a key.
    Read {
        /// The key.
        key: &'a str,
    },
    /// A compare-and-swap.
    Swap {
        /// The key.
        key: &'a str,
        /// Version that the key must have.
        expected: Version,
        /// New value.
        value: &'a [u8],
    },
}

impl<'a> Question<'a> {
    /// Key of the question.
    pub fn key(self) -> &'a str {
        let (Self::Read { key } | Self::Swap { key, .. }) = self;
        key
    }

    /// Whether the question is a swap that would succeed now.
    pub fn is_granted_by(&self, authority: &EmbeddedAuthority) -> bool {
        let Self::Swap { key, expected, .. } = self else { return false };
        let found = authority.read(key).ok().flatten();
        found.map_or(Version::ABSENT, |found| found.version) == *expected
    }
}

type Script = Box<dyn FnMut(Question<'_>, &EmbeddedAuthority) -> QuestionOutcome + Send>;

#[derive(Default)]
struct Hold {
    held: bool,
    waits: bool,
    asked: u64,
    lost: u64,
    silence: Duration,
}

/// Authority that follows a script. See the module's description. The default script answers every
/// question.
pub struct TestAuthority {
    inner: EmbeddedAuthority,
    script: Mutex<Script>,
    hold: Mutex<Hold>,
    released: Condvar,
}

impl Default for TestAuthority {
    fn default() -> Self {
        Self::over(EmbeddedAuthority::new())
    }
}

impl TestAuthority {
    /// Authority with the initial values `inner` that answers every question.
    pub fn over(inner: EmbeddedAuthority) -> Self {
        let script: Script = Box::new(|_, _| QuestionOutcome::Answered);
        let (script, hold) = (Mutex::new(script), Mutex::default());
        Self { inner, script, hold, released: Condvar::new() }
    }

    /// Authority that follows a script.
    pub fn following(
        script: impl FnMut(Question<'_>, &EmbeddedAuthority) -> QuestionOutcome + Send + 'static,
    ) -> Self {
        let this = Self::default();
        this.follow(script);
        this
    }

    /// Authority that loses the answers to the first read and to the first successful swap of each
    /// key; the swap is carried out.
    pub fn forgetful() -> Self {
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        Self::following(move |question, values| {
            let key = question.key().to_owned();
            let is_lost = match question {
                Question::Read { .. } => read.insert(key),
                Question::Swap { .. } => question.is_granted_by(values) && written.insert(key),
            };
            if is_lost { QuestionOutcome::AnswerLost } else { QuestionOutcome::Answered }
        })
    }

    /// Authority that loses the first question about each key, and the answer to the second; reads
    /// and swaps are counted apart.
    pub fn lossy() -> Self {
        let mut asked = BTreeMap::<_, u32>::new();
        Self::following(move |question, _| {
            let is_read = matches!(question, Question::Read { .. });
            let turn = asked.entry((question.key().to_owned(), is_read)).or_default();
            *turn += 1;
            match *turn {
                1 => QuestionOutcome::QuestionLost,
                2 => QuestionOutcome::AnswerLost,
                _ => QuestionOutcome::Answered,
            }
        })
    }

    /// Replaces the script.
    pub fn follow(
        &self,
        script: impl FnMut(Question<'_>, &EmbeddedAuthority) -> QuestionOutcome + Send + 'static,
    ) {
        *lock(&self.script) = Box::new(script);
    }

    /// Sets the outcome of all questions from now on.
    pub fn turn(&self, outcome: QuestionOutcome) {
        self.follow(move |_, _| outcome);
    }

    /// Sets the outcome of all swaps from now on; reads are answered.
    pub fn turn_swaps(&self, outcome: QuestionOutcome) {
        self.follow(move |question, _| match question {
            Question::Swap { .. } => outcome,
            Question::Read { .. } => QuestionOutcome::Answered,
        });
    }

    /// The authority behind the switches, which always answers.
    pub fn values(&self) -> &EmbeddedAuthority {
        &self.inner
    }

    /// Number of questions so far.
    pub fn asked(&self) -> u64 {
        lock(&self.hold).asked
    }

    /// Number of lost questions and answers.
    pub fn lost(&self) -> u64 {
        lock(&self.hold).lost
    }

    /// Makes questions wait from now on.
    pub fn hold(&self) {
        lock(&self.hold).held = true;
    }

    /// Releases the waiting questions.
    pub fn release(&self) {
        let mut hold = lock(&self.hold);
        (hold.held, hold.waits) = (false, false);
        self.released.notify_all();
    }

    /// Sets the reported [`Authority::silence`], whatever the authority answers.
    pub fn seem_silent_for(&self, silence: Duration) {
        lock(&self.hold).silence = silence;
    }

    /// Whether a question waits.
    pub fn is_waited_for(&self) -> bool {
        lock(&self.hold).waits
    }

    /// Carries a question out with `does` and answers, or loses the question. Questions run one at
    /// a time: script and swap see equal values.
    ///
    /// # Panics
    /// If the question is held for longer than any test lasts.
    fn answer<T>(
        &self,
        question: Question<'_>,
        does: impl FnOnce() -> Result<T, AuthorityError>,
    ) -> Result<T, AuthorityError> {
        const FOR_EVER: Duration = Duration::from_secs(600);
        let mut hold = lock(&self.hold);
        hold.asked += 1;
        hold.waits |= hold.held;
        let waited = self.released.wait_timeout_while(hold, FOR_EVER, |hold| hold.held);
        let timed_out = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        assert!(!timed_out, "nothing has released the authority");
        let mut script = lock(&self.script);
        let outcome = script(question, &self.inner);
        lock(&self.hold).lost += u64::from(outcome != QuestionOutcome::Answered);
        let answer = if outcome == QuestionOutcome::QuestionLost { None } else { Some(does()) };
        answer
            .filter(|_| outcome == QuestionOutcome::Answered)
            .unwrap_or(Err(AuthorityError::Unavailable))
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock comes from a test that has failed already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Authority for TestAuthority {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.answer(Question::Read { key }, || self.inner.read(key))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        let question = Question::Swap { key, expected, value };
        self.answer(question, || self.inner.compare_and_swap(key, expected, value))
    }

    fn silence(&self) -> Duration {
        lock(&self.hold).silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_just_made_keeps_the_contract() {
        crate::conformance::run(&TestAuthority::default());
    }

    #[test]
    fn what_is_lost_is_done_or_not_as_its_fate_says() {
        let authority = TestAuthority::default();
        let swap = |expected| authority.compare_and_swap("key", expected, b"value");
        authority.turn(QuestionOutcome::QuestionLost);
        assert_eq!(swap(Version::ABSENT), Err(AuthorityError::Unavailable));
        assert_eq!(authority.values().read("key"), Ok(None));
        authority.turn_swaps(QuestionOutcome::AnswerLost);
        assert_eq!(swap(Version::ABSENT), Err(AuthorityError::Unavailable));
        let found = authority.read("key").expect("reads are answered").expect("it was done");
        authority.turn(QuestionOutcome::AnswerLost);
        assert_eq!(authority.read("key"), Err(AuthorityError::Unavailable));
        authority.turn(QuestionOutcome::Answered);
        assert!(swap(found.version).is_ok());
        assert_eq!((authority.asked(), authority.lost()), (5, 3));
    }
}
