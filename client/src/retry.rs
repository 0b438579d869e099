//! What to do after one try of a request. Pure.

use crate::error::CallError;
use crate::protocol::{Answer, Failure};

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Tried<'a> {
    /// The node could not be reached: nothing was sent.
    NotSent(String),
    /// The connection was lost after the request had been queued.
    Lost,
    /// Time ran out while nothing was answered.
    Late,
    /// The server has answered.
    Answered(&'a Answer<'a>),
}

/// Whether carrying the request out twice would do harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repetition {
    /// It only reads, or has an id.
    Harmless,
    /// It would have its effect twice.
    Harmful,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The answer is the outcome.
    Finish,
    /// There is no answer, and there will be none.
    Fail(CallError),
    /// Another node is asked at once.
    Elsewhere(String),
    /// The map was wrong: routed anew.
    Reroute { shard: u16, owner: Option<u16>, epoch: u32 },
    /// The same again, after a pause; this is the error if there is no time for that.
    Pause(CallError),
}

/// What comes after this try.
pub(crate) fn next(tried: &Tried<'_>, repetition: Repetition) -> Next {
    let harmless = repetition == Repetition::Harmless;
    let failure = match tried {
        Tried::NotSent(why) => return Next::Elsewhere(why.clone()),
        Tried::Lost if harmless => return Next::Elsewhere("the connection was lost".to_owned()),
        Tried::Lost | Tried::Late => return Next::Fail(CallError::Unknown),
        Tried::Answered(Answer::Failed(failure)) => failure,
        Tried::Answered(_) => return Next::Finish,
    };
    match failure {
        &Failure::WrongOwner { shard, owner, epoch } => Next::Reroute { shard, owner, epoch },
        Failure::Leaving => Next::Elsewhere(failure.to_string()),
        Failure::Busy(_) => Next::Pause(CallError::Failed(failure.clone())),
        // The record of the call says which it was, once the rows are settled.
        Failure::Unknown if harmless => Next::Pause(CallError::Unknown),
        Failure::Unknown => Next::Fail(CallError::Unknown),
        other => Next::Fail(CallError::Failed(other.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Bytes, Room};

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
            (Answer::Done(Bytes(b"")), ["finish", "finish"]),
            (Answer::Rejected(Bytes(b"")), ["finish", "finish"]),
            (Answer::Never, ["finish", "finish"]),
            (Answer::Failed(moved), ["reroute", "reroute"]),
            (Answer::Failed(Failure::Leaving), ["elsewhere", "elsewhere"]),
            (Answer::Failed(Failure::Busy(Room::Transactions)), ["pause", "pause"]),
            (Answer::Failed(Failure::Unknown), ["pause", "unknown"]),
            (Answer::Failed(Failure::Timeout), ["fail", "fail"]),
            (Answer::Failed(Failure::UnknownProcedure), ["fail", "fail"]),
            (Answer::Failed(Failure::IdTaken), ["fail", "fail"]),
        ];
        let tried = answers.iter().map(|(answer, expected)| (Tried::Answered(answer), expected));
        let unanswered = [
            (Tried::NotSent(String::new()), &["elsewhere", "elsewhere"]),
            (Tried::Lost, &["elsewhere", "unknown"]),
            (Tried::Late, &["unknown", "unknown"]),
        ];
        for (tried, expected) in tried.chain(unanswered) {
            let found = [Repetition::Harmless, Repetition::Harmful];
            let found = found.map(|repetition| name(&next(&tried, repetition)));
            assert_eq!(&found, expected, "{tried:?}");
        }
    }
}
