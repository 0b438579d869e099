//! Questions to nodes, and their answers, through the authority.
//!
//! A question is a value at the authority, and so is the answer, which names the question's
//! version. A node's daemon polls for questions. Mailboxes are slow, and the protocol does not
//! depend on them. An asker waits while an earlier question is unanswered, so concurrent commands
//! get their answers in sequence.
//!
//! # At most once
//! Before a node carries out a question, it records by compare-and-swap the question and its own
//! process. So a restarted process repeats no question taken by an earlier process (I175): an
//! answered question is over, and an unanswered question is answered with "cut short", because it
//! may have been carried out. A process that finds its own record, though the write was not
//! acknowledged, goes on with the question. A question is withdrawn when its asker stops waiting,
//! unless a node has taken the question.
//!
//! The first answer to a question stands; and an answer never replaces the answer of a later
//! question. So a late process has no effect (I225).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::Env;
use lotus_recovery::membership;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::records;
use crate::config::file::ClusterFile;
use crate::config::name::NodeName;
use crate::host::polling::wait_until;
use crate::host::processes::{Process, process_space};

/// Number of mailboxes created in this process.
static MAILBOXES: AtomicU64 = AtomicU64::new(0);

/// Value at a mailbox's question key.
#[derive(Debug, Serialize, Deserialize)]
enum QuestionRecord<Q> {
    Question(Q),
    /// The asker has stopped waiting.
    Withdrawn,
}

/// An answer, with the version of its question.
#[derive(Debug, Serialize, Deserialize)]
struct AnswerRecord<A> {
    of: u64,
    answer: Conclusion<A>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Conclusion<A> {
    Done(A),
    /// The process that had taken the question has ended since.
    CutShort,
}

/// The last taken question, and its process.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct TakenRecord {
    question: u64,
    by: Taker,
}

/// A process with its mailbox's number: a pair that is never used twice.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Taker {
    process: Process,
    space: String,
    mailbox: u64,
}

/// Channel for questions of a sort to a node.
#[derive(Clone, Debug)]
pub struct Mailbox {
    node: NodeName,
    /// Number of the mailbox within the process.
    number: u64,
    asked: String,
    taken: String,
    answered: String,
    /// Node's side: version of the last question seen.
    seen: Version,
    /// Node's side: an answer that the authority has not accepted yet.
    unwritten: Option<(Version, serde_json::Value)>,
}

/// A question that was asked.
#[derive(Clone, Debug)]
pub struct Pending {
    mailbox: Mailbox,
    version: Version,
}

/// Whether a node is a member, or may be: an expelled node answers no more questions, and commits
/// nothing.
pub fn may_take_part(file: &ClusterFile, authority: &dyn Authority, node: NodeName) -> bool {
    membership::read(authority).map_or(true, |members| members.is_live(node.id(file)))
}

impl Mailbox {
    /// Creates a mailbox; `sort` is part of its keys at the authority.
    pub fn new(sort: &str, node: NodeName) -> Self {
        let asked = format!("{sort}/{node}");
        let (taken, answered) = (format!("{asked}/taken"), format!("{asked}/done"));
        // Relaxed: numbers only have to differ.
        let number = MAILBOXES.fetch_add(1, Ordering::Relaxed);
        Self { node, number, asked, taken, answered, seen: Version::ABSENT, unwritten: None }
    }

    /// Asks, once the last question is answered or `patience` is over.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn put(
        &self,
        authority: &dyn Authority,
        question: &impl Serialize,
        patience: Duration,
    ) -> Result<Pending, AuthorityError> {
        self.put_while(authority, question, patience, || true)
    }

    /// As [`Self::put`]; stops waiting once `may_answer` says that the node will not answer.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_while(
        &self,
        authority: &dyn Authority,
        question: &impl Serialize,
        patience: Duration,
        may_answer: impl Fn() -> bool,
    ) -> Result<Pending, AuthorityError> {
        wait_until(&Env::real(0), patience, || self.is_free(authority) || !may_answer());
        let version = records::write(authority, &self.asked, &QuestionRecord::Question(question))?;
        Ok(Pending { mailbox: self.clone(), version })
    }

    /// Whether the last question, if any, was answered or withdrawn.
    fn is_free(&self, authority: &dyn Authority) -> bool {
        let asked = records::read::<QuestionRecord<IgnoredAny>>(authority, &self.asked);
        match (asked, self.last_answered(authority)) {
            (Ok((Version::ABSENT, _) | (_, Some(QuestionRecord::Withdrawn))), _) => true,
            (Ok((asked, _)), Ok(answered)) => answered >= asked,
            _ => false,
        }
    }

    /// Version of the last answered question.
    fn last_answered(&self, authority: &dyn Authority) -> Result<Version, AuthorityError> {
        let (_, found) = records::read::<AnswerRecord<IgnoredAny>>(authority, &self.answered)?;
        Ok(found.map_or(Version::ABSENT, |found| Version(found.of)))
    }

    /// Node's side: takes the next question, unless a process of the node has already taken it. The
    /// caller carries the question out; later calls do not return it.
    pub fn next<Q: DeserializeOwned>(&mut self, authority: &dyn Authority) -> Option<(Version, Q)> {
        // The daemon's next poll repeats a failed step.
        if !self.write_unwritten(authority) {
            return None;
        }
        let (version, asked) = records::read::<QuestionRecord<Q>>(authority, &self.asked).ok()?;
        if version <= self.seen {
            return None;
        }
        let (before, last) = records::read::<TakenRecord>(authority, &self.taken).ok()?;
        let taken = TakenRecord { question: version.0, by: self.taker()? };
        let is_mine = last.as_ref() == Some(&taken);
        if !is_mine && last.is_some_and(|last| last.question >= version.0) {
            self.write_answer::<()>(authority, version, Conclusion::CutShort).ok()?;
            self.seen = version;
            return None;
        }
        let Some(QuestionRecord::Question(question)) = asked else {
            self.seen = version;
            return None;
        };
        if !is_mine {
            let taken = serde_json::to_vec(&taken).expect("strings and numbers");
            authority.compare_and_swap(&self.taken, before, &taken).ok()?;
        }
        self.seen = version;
        Some((version, question))
    }

    /// This process; `None` if there is no `/proc`.
    fn taker(&self) -> Option<Taker> {
        let process = Process::this().ok()?;
        Some(Taker { process, space: process_space(), mailbox: self.number })
    }

    /// Node's side: answers a question; later polls repeat the write until the authority accepts
    /// the answer.
    pub fn answer(&mut self, authority: &dyn Authority, of: Version, answer: &impl Serialize) {
        let answer = serde_json::to_value(answer).expect("strings and numbers");
        self.unwritten = Some((of, answer));
        self.write_unwritten(authority);
    }

    /// Writes the pending answer; returns whether no answer is left to write.
    fn write_unwritten(&mut self, authority: &dyn Authority) -> bool {
        if let Some((of, answer)) = &self.unwritten
            && self.write_answer(authority, *of, Conclusion::Done(answer)).is_ok()
        {
            self.unwritten = None;
        }
        self.unwritten.is_none()
    }

    /// Answers a question, unless this question or a later question is already answered.
    fn write_answer<A: Serialize>(
        &self,
        authority: &dyn Authority,
        of: Version,
        answer: Conclusion<A>,
    ) -> Result<(), AuthorityError> {
        let bytes = serde_json::to_vec(&AnswerRecord { of: of.0, answer });
        let bytes = bytes.expect("strings and numbers");
        loop {
            let (version, found) =
                records::read::<AnswerRecord<IgnoredAny>>(authority, &self.answered)?;
            if found.is_some_and(|found| found.of >= of.0) {
                return Ok(());
            }
            match authority.compare_and_swap(&self.answered, version, &bytes) {
                Err(AuthorityError::Conflict { .. }) => {}
                outcome => return outcome.map(drop),
            }
        }
    }
}

impl Pending {
    /// Waits for the answer. Withdraws the question if no answer comes in time.
    ///
    /// # Errors
    /// A sentence.
    pub fn wait<A: DeserializeOwned>(
        &self,
        authority: &dyn Authority,
        patience: Duration,
    ) -> Result<A, String> {
        self.wait_while(authority, patience, || true)
    }

    /// As [`Self::wait`]; stops waiting once `may_answer` says that the node will not answer.
    ///
    /// # Errors
    /// A sentence.
    pub fn wait_while<A: DeserializeOwned>(
        &self,
        authority: &dyn Authority,
        patience: Duration,
        may_answer: impl Fn() -> bool,
    ) -> Result<A, String> {
        let (mut found, mut in_vain) = (None, false);
        wait_until(&Env::real(0), patience, || {
            // In this order, to see an answer written just before the node's end.
            in_vain = !may_answer();
            found = self.answered::<A>(authority);
            found.is_some() || in_vain
        });
        let node = self.mailbox.node.in_words();
        match found {
            Some(AnswerRecord { of, answer: Conclusion::Done(answer) }) if of == self.version.0 => {
                Ok(answer)
            }
            Some(AnswerRecord { of, answer: Conclusion::CutShort }) if of == self.version.0 => Err(
                format!("{node} has ended while it was at it: whether it was done is not known"),
            ),
            Some(_) => Err(format!("{node} was asked something else meanwhile: try again")),
            None if in_vain => {
                self.withdraw(authority);
                Err(format!("{node} takes part no more, and has not answered"))
            }
            None => {
                self.withdraw(authority);
                Err(format!("{node} does not answer after {patience:?}"))
            }
        }
    }

    /// Withdraws the question, to keep later processes from taking it.
    fn withdraw(&self, authority: &dyn Authority) {
        let withdrawn = serde_json::to_vec(&QuestionRecord::<()>::Withdrawn).expect("a word");
        // A conflict means that a later asker's question has replaced this question.
        let _ = authority.compare_and_swap(&self.mailbox.asked, self.version, &withdrawn);
    }

    /// Whether this question, or a later question, was answered.
    pub fn is_answered<A: DeserializeOwned>(&self, authority: &dyn Authority) -> bool {
        self.answered::<A>(authority).is_some()
    }

    fn answered<A: DeserializeOwned>(&self, authority: &dyn Authority) -> Option<AnswerRecord<A>> {
        let (_, found) =
            records::read::<AnswerRecord<A>>(authority, &self.mailbox.answered).ok()?;
        found.filter(|found| found.of >= self.version.0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lotus_authority::EmbeddedAuthority;
    use lotus_authority::testing::{QuestionOutcome, TestAuthority};

    use super::*;

    const NODE: NodeName = NodeName::compute(1);

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

    /// A restarted node repeated the last snapshot, or the rest, that its earlier process had been
    /// asked for.
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

    /// An answer that the authority did not accept was dropped, and the asker waited in vain.
    #[test]
    fn an_answer_is_written_when_the_authority_is_back() {
        let authority = EmbeddedAuthority::new();
        let asked = ask(&authority, "rest");
        let mut life = mailbox();
        let (version, _) = take(&mut life, &authority).expect("it was asked");
        let silent = TestAuthority::default();
        silent.turn(QuestionOutcome::QuestionLost);
        life.answer(&silent, version, &"rests");
        assert!(!mailbox().is_free(&authority));
        assert_eq!(life.next::<String>(&silent), None);
        assert_eq!(take(&mut life, &authority), None, "the answer is written first");
        assert_eq!(told(&asked, &authority), Ok("rests".to_owned()));
    }

    /// A process that had stood still overwrote the answer of the next process, and the asker of
    /// that one waited in vain.
    #[test]
    fn a_late_answer_of_an_earlier_process_hides_no_later_one() {
        let authority = EmbeddedAuthority::new();
        let first = ask(&authority, "take");
        let mut paused = mailbox();
        let (old, _) = take(&mut paused, &authority).expect("it was asked");
        let mut next = mailbox();
        assert_eq!(take(&mut next, &authority), None);
        paused.answer(&authority, old, &"taken");
        let said = told(&first, &authority).expect_err("the first answer stands");
        assert!(said.contains("has ended while it was at it"), "{said}");

        let second = ask(&authority, "rest");
        let (version, _) = take(&mut next, &authority).expect("it was asked");
        next.answer(&authority, version, &"rests");
        paused.answer(&authority, old, &"taken");
        assert_eq!(told(&second, &authority), Ok("rests".to_owned()));
        assert!(mailbox().is_free(&authority));
    }

    /// The record that a node takes a question was written, and the authority's answer lost. The
    /// node took the record for another process's: the question was answered as cut short, never
    /// begun.
    #[test]
    fn a_question_is_carried_out_once_whichever_answers_of_the_authority_are_lost() {
        let authority = TestAuthority::default();
        let mut node = mailbox();
        for question in ["take", "rest"] {
            let asked = ask(authority.values(), question);
            authority.turn_swaps(QuestionOutcome::AnswerLost);
            assert_eq!(node.next::<String>(&authority), None, "it is not known yet");
            let (version, taken) = node.next::<String>(&authority).expect("it was this process");
            assert_eq!(taken, question);
            node.answer(&authority, version, &"done");
            assert_eq!(node.next::<String>(&authority), None);
            authority.turn(QuestionOutcome::Answered);
            assert_eq!(node.next::<String>(&authority), None, "it is answered");
            assert_eq!(mailbox().next::<String>(&authority), None);
            assert_eq!(told(&asked, authority.values()), Ok("done".to_owned()));
        }
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

    /// A command waited for as long as it was allowed to for a node that had been expelled.
    #[test]
    fn nobody_waits_for_a_node_that_will_not_answer() {
        let authority = EmbeddedAuthority::new();
        let first = ask(&authority, "take");
        take(&mut mailbox(), &authority).expect("it was asked");
        let (looks, long) = (Cell::new(0), Duration::from_secs(3600));
        let may_answer = || {
            looks.set(looks.get() + 1);
            looks.get() < 3
        };
        let asked = mailbox().put_while(&authority, &"rest", long, may_answer);
        let asked = asked.expect("it answers");
        assert_eq!(looks.replace(0), 3);
        let said = asked.wait_while::<String>(&authority, long, may_answer);
        let said = said.expect_err("nobody answers");
        assert!(said.contains("compute node 1 takes part no more"), "{said}");
        assert!(mailbox().is_free(&authority), "the question is withdrawn");
        // The last word of a node that is out is heard all the same.
        let asked = ask(&authority, "rest");
        let mut node = mailbox();
        let (version, question) = take(&mut node, &authority).expect("it was asked");
        node.answer(&authority, version, &question);
        let heard = asked.wait_while::<String>(&authority, long, || false);
        assert_eq!(heard, Ok("rest".to_owned()));
        assert!(first.is_answered::<String>(&authority));
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
