//! The quiescing reset: decisions about freeing a lock whose state nobody can know any more.
//!
//! A lock is reset when a compute node was lost that may have held it, or waited for it; when an
//! atomic on it had no answer; or when its counters are used up. The steps:
//!
//! 1. One node *claims* the reset, by a compare-and-swap on the [claim](crate::word::Claim), and
//!    marks the head as *resetting*. From then on nobody takes the lock, and nobody takes back what
//!    it has added.
//! 2. It learns *afterwards* who the members are. A node uses locks only once it is a member, so
//!    whoever is not in that list comes to a lock that is marked.
//! 3. Each member is told. One that finds the head marked ends its waits, and [answers] once it
//!    holds nothing and no verb of it is under way. A member that was lost is *settled* when it is
//!    fenced at the memory node, so that nothing of it takes effect any more.
//! 4. When all have answered or are settled, the head becomes free, of the next generation, by a
//!    compare-and-swap that succeeds only [while it is marked](free_again); then the claim ends.
//!
//! A resetter that is lost is settled like any other node, and another one [may claim](may_claim)
//! in its place, and begins at step 1. All steps may be repeated.
//!
//! `tests/reset` explores the steps in every order, with nodes that die, join and doubt, and breaks
//! one rule after another.

use crate::word::{Claim, Claimant, Head};

/// Whether a claim may be replaced, and by which: nobody's, or one of an incarnation that is
/// settled. `None` if another resetter is at work, or may be.
pub fn may_claim(
    found: Claim,
    by: Claimant,
    is_settled: impl FnOnce(Claimant) -> bool,
) -> Option<Claim> {
    let is_free = match found.by() {
        None => true,
        Some(other) => other != by && is_settled(other),
    };
    is_free.then(|| Claim::new(found.epoch(), Some(by)))
}

/// Use that a node makes of a lock while it is told of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Use {
    /// Whether it holds the lock.
    pub holds: bool,
    /// Whether a verb of it on the lock is under way.
    pub posts: bool,
}

/// Whether a node that was told of a reset, and has found the head to be `found` since, answers
/// now. `None` if the lock is not being reset: the message is a late one.
pub fn answers(head: Head, found: u64, used: Use) -> Option<bool> {
    head.is_resetting(found).then_some(!used.holds && !used.posts)
}

/// The word by which the head is replaced at the end of a reset. `None` if it is not marked: an
/// earlier try, whose answer was lost, has succeeded.
pub fn free_again(head: Head, found: u64) -> Option<u64> {
    head.is_resetting(found).then(|| head.after_reset(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::CasRwWord;

    const HEAD: Head = CasRwWord::HEAD;

    #[test]
    fn a_claim_is_taken_from_nobody_who_may_be_at_work() {
        let [me, other] = [Claimant::new(1, 7), Claimant::new(2, 7)];
        let mine = Claim::new(5, Some(me));
        assert_eq!(may_claim(Claim::new(5, None), me, |_| false), Some(mine));
        assert_eq!(may_claim(Claim::new(5, Some(other)), me, |_| false), None);
        assert_eq!(may_claim(Claim::new(5, Some(other)), me, |found| found == other), Some(mine));
        assert_eq!(may_claim(mine, me, |_| true), None, "it is at work");
        let earlier = Claim::new(5, Some(Claimant::new(1, 6)));
        assert_eq!(may_claim(earlier, me, |_| true), Some(mine), "in an earlier life");
    }

    #[test]
    fn who_holds_or_posts_does_not_answer_and_a_late_message_is_ignored() {
        let head = CasRwWord::written(3, 9).word();
        let marked = head + CasRwWord::RESETTING;
        for (holds, posts) in [(false, false), (false, true), (true, false)] {
            let used = Use { holds, posts };
            assert_eq!(answers(HEAD, head, used), None);
            assert_eq!(answers(HEAD, marked, used), Some(!holds && !posts));
        }
    }

    #[test]
    fn a_lock_that_is_not_marked_is_not_freed_again() {
        let held = CasRwWord::written(4, 9).word();
        assert_eq!(free_again(HEAD, held), None);
        let marked = held + CasRwWord::RESETTING + CasRwWord::READER;
        assert_eq!(free_again(HEAD, marked), Some(CasRwWord::free(5).word()));
    }
}
