//! Questions to nodes, and their answers, by way of the authority.
//!
//! A question is a value at the authority, and so is the answer, which names the question's
//! version. A node's daemon looks for a new one every time it looks around. Nobody hurries, and
//! nothing of the cluster rests on it. Whoever finds a question that is not answered yet waits, so
//! that two commands at a time get their answers one after the other.
//!
//! # At most once
//! A node writes down which question it takes before it does what is asked, by compare-and-swap.
//! So a process that is started again carries out nothing that one before it has taken: what was
//! answered is over, and what was not is answered with "cut short", because it may have been done.
//! A question whose asker waits no more is withdrawn, unless it was taken.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::processes::wait_until;
use super::records;

/// What stands where questions do.
#[derive(Debug, Serialize, Deserialize)]
enum Asked<Q> {
    Question(Q),
    /// It was one that nobody waits for any more.
    Withdrawn,
}

/// An answer, with the version of its question.
#[derive(Debug, Serialize, Deserialize)]
struct Answered<A> {
    of: u64,
    answer: Outcome<A>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Outcome<A> {
    Done(A),
    /// The process that had taken the question has ended since.
    CutShort,
}

/// Where one node is asked for things of one sort.
#[derive(Clone, Debug)]
pub struct Mailbox {
    node: Node,
    asked: String,
    taken: String,
    answered: String,
    /// The node's side: the question that it has seen last.
    seen: Version,
    /// The node's side: an answer that the authority has not taken yet.
    unwritten: Option<(Version, serde_json::Value)>,
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
        let (taken, answered) = (format!("{asked}/taken"), format!("{asked}/done"));
        Self { node, asked, taken, answered, seen: Version::ABSENT, unwritten: None }
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
        let version = records::write(authority, &self.asked, &Asked::Question(question))?;
        Ok(Pending { mailbox: self.clone(), version })
    }

    /// Whether the last question was answered or withdrawn, if there was any.
    fn is_free(&self, authority: &dyn Authority) -> bool {
        let asked = records::read::<Asked<IgnoredAny>>(authority, &self.asked);
        match (asked, self.last_answered(authority)) {
            (Ok((Version::ABSENT, _) | (_, Some(Asked::Withdrawn))), _) => true,
            (Ok((asked, _)), Ok(answered)) => answered >= asked,
            _ => false,
        }
    }

    /// The last question that was answered.
    fn last_answered(&self, authority: &dyn Authority) -> Result<Version, AuthorityError> {
        let (_, found) = records::read::<Answered<IgnoredAny>>(authority, &self.answered)?;
        Ok(found.map_or(Version::ABSENT, |found| Version(found.of)))
    }

    /// The node's side: a question that no process of this node has taken. Whoever gets it carries
    /// it out; nobody gets it again.
    pub fn next<Q: DeserializeOwned>(&mut self, authority: &dyn Authority) -> Option<(Version, Q)> {
        // Whatever is not answered is asked again the next time that the daemon looks around.
        if !self.write_unwritten(authority) {
            return None;
        }
        let (version, asked) = records::read::<Asked<Q>>(authority, &self.asked).ok()?;
        if version <= self.seen {
            return None;
        }
        let (before, last) = records::read::<u64>(authority, &self.taken).ok()?;
        if last.is_some_and(|last| last >= version.0) {
            if self.last_answered(authority).ok()? < version {
                self.write_answer::<()>(authority, version, Outcome::CutShort).ok()?;
            }
            self.seen = version;
            return None;
        }
        let Some(Asked::Question(question)) = asked else {
            self.seen = version;
            return None;
        };
        let taken = serde_json::to_vec(&version.0).expect("a number");
        authority.compare_and_swap(&self.taken, before, &taken).ok()?;
        self.seen = version;
        Some((version, question))
    }

    /// The node's side: answers, again and again if the authority does not answer.
    pub fn answer(&mut self, authority: &dyn Authority, of: Version, answer: &impl Serialize) {
        let answer = serde_json::to_value(answer).expect("strings and numbers");
        self.unwritten = Some((of, answer));
        self.write_unwritten(authority);
    }

    /// Whether no answer is left to be written.
    fn write_unwritten(&mut self, authority: &dyn Authority) -> bool {
        if let Some((of, answer)) = &self.unwritten
            && self.write_answer(authority, *of, Outcome::Done(answer)).is_ok()
        {
            self.unwritten = None;
        }
        self.unwritten.is_none()
    }

    fn write_answer<A: Serialize>(
        &self,
        authority: &dyn Authority,
        of: Version,
        answer: Outcome<A>,
    ) -> Result<Version, AuthorityError> {
        records::write(authority, &self.answered, &Answered { of: of.0, answer })
    }
}

impl Pending {
    /// Waits for the answer. The question is withdrawn if there is none in time.
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
            Some(Answered { of, answer: Outcome::Done(answer) }) if of == self.version.0 => {
                Ok(answer)
            }
            Some(Answered { of, answer: Outcome::CutShort }) if of == self.version.0 => Err(
                format!("{node} has ended while it was at it: whether it was done is not known"),
            ),
            Some(_) => Err(format!("{node} was asked something else meanwhile: try again")),
            None => {
                self.withdraw(authority);
                Err(format!("{node} does not answer after {patience:?}"))
            }
        }
    }

    /// Lets no process begin with it that is started later.
    fn withdraw(&self, authority: &dyn Authority) {
        let withdrawn = serde_json::to_vec(&Asked::<()>::Withdrawn).expect("a word");
        // If another question stands there by now, it is another asker's.
        let _ = authority.compare_and_swap(&self.mailbox.asked, self.version, &withdrawn);
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

#[cfg(test)]
mod tests {
    use lotus_router::EmbeddedAuthority;
    use lotus_router::authority::Versioned;

    use super::*;

    const NODE: Node = Node::compute(1);

    fn mailbox() -> Mailbox {
        Mailbox::new("test", NODE)
    }

    fn ask(authority: &EmbeddedAuthority, question: &str) -> Pending {
        mailbox().put(authority, &question, Duration::ZERO).expect("it answers")
    }

    fn take(life: &mut Mailbox, authority: &EmbeddedAuthority) -> Option<(Version, String)> {
        life.next(authority)
    }

    fn told(pending: &Pending, authority: &EmbeddedAuthority) -> Result<String, String> {
        pending.wait(authority, Duration::ZERO)
    }

    /// A node that was started again took the last snapshot anew, or came to rest anew, that its
    /// process before had been asked for.
    #[test]
    fn what_was_answered_is_not_done_again_by_the_next_process() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "rest");
        let mut life = mailbox();
        let (version, question) = take(&mut life, &authority).expect("it was asked");
        assert_eq!((question.as_str(), take(&mut life, &authority)), ("rest", None));
        life.answer(&authority, version, &"rests");
        assert_eq!(told(&asked, &authority), Ok("rests".to_owned()));
        let mut next = mailbox();
        assert_eq!(take(&mut next, &authority), None);
        ask(&authority, "serve");
        assert_eq!(take(&mut next, &authority).expect("it was asked").1, "serve");
    }

    #[test]
    fn what_was_taken_and_not_answered_is_cut_short_and_not_done_again() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "take");
        take(&mut mailbox(), &authority).expect("it was asked");
        let mut next = mailbox();
        assert_eq!(take(&mut next, &authority), None);
        let said = told(&asked, &authority).expect_err("nobody knows");
        assert!(said.contains("compute node 1 has ended while it was at it"), "{said}");
        assert!(mailbox().is_free(&authority));
    }

    /// An authority that does not answer.
    struct Silent;

    impl Authority for Silent {
        fn read(&self, _: &str) -> Result<Option<Versioned>, AuthorityError> {
            Err(AuthorityError::Unavailable)
        }

        fn compare_and_swap(
            &self,
            _: &str,
            _: Version,
            _: &[u8],
        ) -> Result<Version, AuthorityError> {
            Err(AuthorityError::Unavailable)
        }
    }

    /// An answer that the authority did not take was given up, and who had asked waited in vain.
    #[test]
    fn an_answer_is_written_when_the_authority_is_back() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "rest");
        let mut life = mailbox();
        let (version, _) = take(&mut life, &authority).expect("it was asked");
        life.answer(&Silent, version, &"rests");
        assert!(!mailbox().is_free(&authority));
        assert_eq!(life.next::<String>(&Silent), None);
        assert_eq!(take(&mut life, &authority), None, "the answer is written first");
        assert_eq!(told(&asked, &authority), Ok("rests".to_owned()));
    }

    #[test]
    fn what_nobody_has_taken_is_done_by_the_next_process_once() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "take");
        let mut next = mailbox();
        let (version, _) = take(&mut next, &authority).expect("nobody has taken it");
        assert_eq!(take(&mut next, &authority), None);
        next.answer(&authority, version, &"taken");
        assert_eq!(told(&asked, &authority), Ok("taken".to_owned()));
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_begun() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "rest");
        told(&asked, &authority).expect_err("nobody answers");
        assert!(mailbox().is_free(&authority));
        let mut node = mailbox();
        assert_eq!(take(&mut node, &authority), None);
        let asked = ask(&authority, "serve");
        let (version, question) = take(&mut node, &authority).expect("it was asked");
        node.answer(&authority, version, &question);
        assert_eq!(told(&asked, &authority), Ok("serve".to_owned()));
    }

    #[test]
    fn of_two_processes_one_takes_a_question() {
        let authority = EmbeddedAuthority::new();
        ask(&authority, "move");
        let (mut one, mut other) = (mailbox(), mailbox());
        let taken = [take(&mut one, &authority), take(&mut other, &authority)];
        assert_eq!(taken.iter().flatten().count(), 1);
    }
}
