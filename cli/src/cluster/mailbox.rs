//! Questions to nodes, and their answers, by way of the authority.
//!
//! A question is a value at the authority, and so is the answer, which names the question's
//! version. A node's daemon looks for a new one every time it looks around. Nobody hurries, and
//! nothing of the cluster rests on it. Who finds a question that is not answered yet waits, so that
//! two commands at a time get their answers one after the other.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::processes::wait_until;
use super::records;

/// An answer, with the version of its question.
#[derive(Debug, Serialize, Deserialize)]
struct Answered<A> {
    of: u64,
    answer: A,
}

/// Where one node is asked for things of one sort.
#[derive(Clone, Debug)]
pub struct Mailbox {
    node: Node,
    asked: String,
    answered: String,
    /// The node's side: the question that it has seen last.
    seen: Version,
}

/// A question that was asked.
#[derive(Clone, Debug)]
pub struct Pending {
    mailbox: Mailbox,
    version: Version,
}

impl Mailbox {
    /// The `sort` is part of the name at the authority.
    pub fn new(sort: &str, node: Node) -> Self {
        let asked = format!("{sort}/{node}");
        let answered = format!("{asked}/done");
        Self { node, asked, answered, seen: Version::ABSENT }
    }

    /// Asks, once the question before is answered or `patience` is over.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn put(
        &self,
        authority: &dyn Authority,
        question: &impl Serialize,
        patience: Duration,
    ) -> Result<Pending, AuthorityError> {
        wait_until(&Env::real(0), patience, || self.is_free(authority));
        let version = records::write(authority, &self.asked, question)?;
        Ok(Pending { mailbox: self.clone(), version })
    }

    /// Whether the last question was answered, if there was any.
    fn is_free(&self, authority: &dyn Authority) -> bool {
        let version = |(version, _): (Version, Option<IgnoredAny>)| version;
        let asked = records::read(authority, &self.asked).map(version);
        let answered = records::read::<Answered<IgnoredAny>>(authority, &self.answered);
        match (asked, answered) {
            (Ok(Version::ABSENT), _) => true,
            (Ok(asked), Ok((_, Some(answered)))) => answered.of >= asked.0,
            _ => false,
        }
    }

    /// The node's side: a question that was not seen yet.
    pub fn next<Q: DeserializeOwned>(&mut self, authority: &dyn Authority) -> Option<(Version, Q)> {
        let (version, question) = records::read::<Q>(authority, &self.asked).ok()?;
        if version <= self.seen {
            return None;
        }
        self.seen = version;
        Some((version, question?))
    }

    /// The node's side: answers.
    pub fn answer(&self, authority: &dyn Authority, of: Version, answer: &impl Serialize) {
        // If that fails, whoever has asked will say that nobody answered.
        let _ = records::write(authority, &self.answered, &Answered { of: of.0, answer });
    }
}

impl Pending {
    /// Waits for the answer.
    ///
    /// # Errors
    /// A sentence.
    pub fn wait<A: DeserializeOwned>(
        &self,
        authority: &dyn Authority,
        patience: Duration,
    ) -> Result<A, String> {
        let mut found = None;
        wait_until(&Env::real(0), patience, || {
            found = self.answered::<A>(authority);
            found.is_some()
        });
        let node = self.mailbox.node.in_words();
        match found {
            Some(found) if found.of == self.version.0 => Ok(found.answer),
            Some(_) => Err(format!("{node} was asked something else meanwhile: try again")),
            None => Err(format!("{node} does not answer after {patience:?}")),
        }
    }

    /// Whether it was answered, or a later one was.
    pub fn is_answered<A: DeserializeOwned>(&self, authority: &dyn Authority) -> bool {
        self.answered::<A>(authority).is_some()
    }

    fn answered<A: DeserializeOwned>(&self, authority: &dyn Authority) -> Option<Answered<A>> {
        let (_, found) = records::read::<Answered<A>>(authority, &self.mailbox.answered).ok()?;
        found.filter(|found| found.of >= self.version.0)
    }
}
