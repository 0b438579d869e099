//! Decides the next action after a try of a request. Pure.

use std::time::Duration;

use crate::error::CallError;
use lotus_protocol::messages::{Answer, Failure};

/// Upper bound of the first pause before a repetition; doubled for every further pause.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Most doublings of a pause.
const MOST_DOUBLINGS: u32 = 6;

/// Result of one try.
#[derive(Debug)]
pub(crate) enum TryOutcome<'a> {
    /// The node could not be reached: nothing was sent.
    NotSent(String),
    /// The connection was lost after the request had been queued.
    Lost,
    /// The node did not answer within the time limit per node, and time is left for another node.
    Silent,
    /// Time ran out without an answer.
    Late,
    /// The server has answered.
    Answered(&'a Answer<'a>),
}

/// Effect of carrying a request out twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repetition {
    /// No effect: the request makes no changes, or only changes that end with the connection.
    Effectless,
    /// No further effect: the request has an id.
    Once,
    /// The request's changes are made twice.
    Harmful,
}

/// The next action.
#[derive(Debug)]
pub(crate) enum Next {
    /// The answer is the outcome.
    Finish,
    /// There is no answer, and no answer will come.
    Fail(CallError),
    /// Ask another node at once.
    Elsewhere(String),
    /// Route again: the map was wrong.
    Reroute { shard: u16, owner: Option<u16>, epoch: u32 },
    /// Repeat the request after a pause; contains the error to return if no time is left.
    Pause(CallError),
}

/// The tries of one request so far.
#[derive(Debug)]
pub(crate) struct Tries {
    repetition: Repetition,
    /// Whether a try may have taken effect, or may yet do so: the node may carry the request out
    /// after another node has refused the next try. From then on only the call's record is certain
    /// (I193).
    doubtful: bool,
}

impl Tries {
    /// Starts with no try made.
    pub(crate) const fn of(repetition: Repetition) -> Self {
        Self { repetition, doubtful: false }
    }

    /// Returns the action after this try.
    pub(crate) fn next(&mut self, outcome: &TryOutcome<'_>) -> Next {
        let failure = match outcome {
            TryOutcome::NotSent(why) => return Next::Elsewhere(why.clone()),
            TryOutcome::Lost => return self.lost("the connection was lost"),
            TryOutcome::Silent => return self.lost("the node does not answer"),
            TryOutcome::Late if self.repetition == Repetition::Effectless => {
                return Next::Fail(CallError::Failed(Failure::Timeout));
            }
            TryOutcome::Late => return Next::Fail(CallError::Unknown),
            TryOutcome::Answered(Answer::Failed(failure)) => failure,
            TryOutcome::Answered(Answer::Rejected(_)) if self.doubtful => {
                return Next::Fail(CallError::Unknown);
            }
            TryOutcome::Answered(_) => return Next::Finish,
        };
        match failure {
            &Failure::WrongOwner { shard, owner, epoch } => Next::Reroute { shard, owner, epoch },
            Failure::Leaving => Next::Elsewhere(failure.to_string()),
            Failure::Busy(_) => Next::Pause(CallError::Failed(failure.clone())),
            // The call's record says whether it committed, once the rows are settled.
            Failure::Unknown if self.repetition != Repetition::Harmful => {
                self.doubtful = self.repetition == Repetition::Once;
                Next::Pause(CallError::Unknown)
            }
            Failure::Unknown => Next::Fail(CallError::Unknown),
            // `GivenUp` and `IdTaken` come from the call's record, which holds for all tries of
            // this call; `TableDiffers` means that the name has a table of another shape, which no
            // try has created.
            Failure::GivenUp | Failure::IdTaken | Failure::TableDiffers(_) => {
                Next::Fail(CallError::Failed(failure.clone()))
            }
            other => Next::Fail(self.at_last(CallError::Failed(other.clone()))),
        }
    }

    /// Returns the error of a request that is not tried again: `error`, from the last try, unless
    /// an earlier try may have taken effect.
    pub(crate) fn at_last(&self, error: CallError) -> CallError {
        if self.doubtful { CallError::Unknown } else { error }
    }

    fn lost(&mut self, why: &str) -> Next {
        if self.repetition == Repetition::Harmful {
            return Next::Fail(CallError::Unknown);
        }
        self.doubtful = self.repetition == Repetition::Once;
        Next::Elsewhere(why.to_owned())
    }
}

/// Returns a random time, with a bound that grows with the number of pauses. `random` draws a
/// number below its argument.
pub(crate) fn pause(pauses: &mut u32, random: impl FnOnce(u64) -> u64) -> Duration {
    let longest = FIRST_PAUSE * (1 << (*pauses).min(MOST_DOUBLINGS));
    *pauses += 1;
    Duration::from_nanos(random(longest.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_protocol::effect::Effect;
    use lotus_protocol::messages::{Bytes, ScarceResource};

    fn name(next: &Next) -> &'static str {
        match next {
            Next::Finish => "finish",
            Next::Fail(CallError::Unknown) => "unknown",
            Next::Fail(_) => "fail",
            Next::Elsewhere(_) => "elsewhere",
            Next::Reroute { .. } => "reroute",
            Next::Pause(_) => "pause",
        }
    }

    #[test]
    fn what_follows_from_what() {
        let moved = Failure::WrongOwner { shard: 1, owner: Some(2), epoch: 3 };
        let answers = [
            (Answer::Done(Bytes(b"")), ["finish", "finish", "finish"]),
            (Answer::Rejected(Bytes(b"")), ["finish", "finish", "finish"]),
            (Answer::Never, ["finish", "finish", "finish"]),
            (Answer::Failed(moved), ["reroute", "reroute", "reroute"]),
            (Answer::Failed(Failure::Leaving), ["elsewhere", "elsewhere", "elsewhere"]),
            (Answer::Failed(Failure::Busy(ScarceResource::Answers)), ["pause", "pause", "pause"]),
            (Answer::Failed(Failure::Unknown), ["pause", "pause", "unknown"]),
            (Answer::Failed(Failure::Timeout), ["fail", "fail", "fail"]),
            (Answer::Failed(Failure::UnknownProcedure), ["fail", "fail", "fail"]),
            (Answer::Failed(Failure::IdTaken), ["fail", "fail", "fail"]),
        ];
        let answered =
            answers.iter().map(|(answer, expected)| (TryOutcome::Answered(answer), expected));
        let unanswered = [
            (TryOutcome::NotSent(String::new()), &["elsewhere", "elsewhere", "elsewhere"]),
            (TryOutcome::Lost, &["elsewhere", "elsewhere", "unknown"]),
            (TryOutcome::Silent, &["elsewhere", "elsewhere", "unknown"]),
            (TryOutcome::Late, &["fail", "unknown", "unknown"]),
        ];
        for (outcome, expected) in answered.chain(unanswered) {
            let all = [Repetition::Effectless, Repetition::Once, Repetition::Harmful];
            let found = all.map(|repetition| name(&Tries::of(repetition).next(&outcome)));
            assert_eq!(&found, expected, "{outcome:?}");
        }
    }

    /// Regression: a call with an id was lost with its connection, and the node that was asked next
    /// could not carry it out. The caller was told that nothing had been changed, but the first
    /// node had committed it, or did so later.
    #[test]
    fn a_call_that_may_have_been_carried_out_is_unknown_whatever_later_tries_say() {
        let unknown = Answer::Failed(Failure::Unknown);
        for doubt in [TryOutcome::Lost, TryOutcome::Answered(&unknown)] {
            let mut tries = Tries::of(Repetition::Once);
            tries.next(&doubt);
            let refused = [
                Answer::Failed(Failure::Timeout),
                Answer::Failed(Failure::Conflict(String::new())),
                Answer::Failed(Failure::Panicked),
                Answer::Rejected(Bytes(b"")),
            ];
            for answer in &refused {
                assert_eq!(
                    name(&tries.next(&TryOutcome::Answered(answer))),
                    "unknown",
                    "{answer:?}"
                );
            }
            let obstacle = CallError::Unreachable(String::new());
            assert!(matches!(tries.at_last(obstacle), CallError::Unknown));
            // The record is certain.
            assert_eq!(
                name(&tries.next(&TryOutcome::Answered(&Answer::Done(Bytes(b""))))),
                "finish"
            );
            let differs = Failure::TableDiffers(String::new());
            for failure in [Failure::GivenUp, Failure::IdTaken, differs] {
                let answer = Answer::Failed(failure);
                let next = tries.next(&TryOutcome::Answered(&answer));
                assert!(matches!(next, Next::Fail(CallError::Failed(_))), "{next:?}");
            }
        }
        // A read-only request has changed nothing, whatever became of it.
        let mut tries = Tries::of(Repetition::Effectless);
        tries.next(&TryOutcome::Lost);
        let conflict = Answer::Failed(Failure::Conflict(String::new()));
        let Next::Fail(error) = tries.next(&TryOutcome::Answered(&conflict)) else { panic!() };
        assert_eq!(error.effect(), Effect::Nothing);
    }

    #[test]
    fn nothing_is_repeated_that_may_have_an_effect_twice() {
        for failure in Failure::samples() {
            let effect = failure.effect();
            let answer = Answer::Failed(failure);
            let next = Tries::of(Repetition::Harmful).next(&TryOutcome::Answered(&answer));
            let again = matches!(next, Next::Elsewhere(_) | Next::Reroute { .. } | Next::Pause(_));
            assert!(!again || effect == Effect::Nothing, "{answer:?} {next:?}");
        }
    }
}
