//! The quiescing reset: decisions about freeing a lock in an unknown state.
//!
//! A lock is reset when a lost compute node may have held or awaited it, when an atomic on the lock
//! had no answer, or when its counters are used up. The steps:
//!
//! 1. One node *claims* the reset, by a compare-and-swap on the [claim](crate::word::Claim), and
//!    marks the head as *resetting*. From this step on, no request takes the lock, or takes back
//!    earlier additions to the word.
//! 2. The resetter reads the membership *afterwards*. A node uses locks only once it is a member,
//!    so a node missing from this list finds a marked lock.
//! 3. The resetter tells each member. A member that finds the head marked ends its waits, and
//!    [answers] once the member holds nothing and has no verb on the lock under way. A lost member
//!    is *settled* when it is fenced at the memory node: its verbs no longer take effect.
//! 4. When all members have answered or are settled, the head becomes free, of the next generation,
//!    by a compare-and-swap that succeeds only [while it is marked](free_again). Then the claim
//!    ends.
//!
//! A lost resetter is settled like any node. Another node [may claim](may_claim) the reset instead,
//! and begins at step 1. Every step may be repeated.
//!
//! `tests/reset` explores the steps in every order, with nodes that die, join and doubt, and breaks
//! one rule after another.

use crate::word::{Claim, Claimant, Head};

/// Returns the claim by which `by` may replace `found`: `found` names no claimant, or an
/// incarnation that is settled. `None` if a resetter is at work, or may be.
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

/// How a node uses a lock when it is told of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Use {
    /// Whether the node holds the lock.
    pub holds: bool,
    /// Whether a verb of the node on the lock is under way.
    pub posts: bool,
}

/// Whether a node that was told of a reset, and has since read the head as `found`, answers now:
/// only once the node holds nothing and has no verb under way (I294). `None` if the lock is not
/// being reset: the message is late.
pub fn answers(head: Head, found: u64, used: Use) -> Option<bool> {
    head.is_resetting(found).then_some(!used.holds && !used.posts)
}

/// Returns the word by which the head is replaced at the end of a reset. `None` if the head is not
/// marked: an earlier try, whose answer was lost, has succeeded.
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
