//! Suspicion of a lock owner that has not answered for longer than usual.
//!
//! # What it is
//! One coordinator's view of one owner, as a state machine over times that the caller passes. Every
//! request is recorded when sent, every answer when received. An owner is *silent* while the latest
//! request is unanswered. The silence starts with the first request to an owner that was not
//! silent, and restarts with each answer. Once the silence has lasted for the *tolerance*, the
//! owner is *suspected*, until its next answer (I160).
//!
//! # The tolerance
//! A part of the lease, so that silence is noticed long before the lease has passed, and never less
//! than a multiple of the slowest recent answer: a machine with more threads than cores, or a
//! sometimes slow network, raises the tolerance automatically.
//!
//! # What it is not
//! Proof of a failure. A suspicion only saves waiting: it decides no outcome, releases no lock, and
//! expels no node (H2, H4, I163). A wrongly suspected node was slow, or a message was lost. A
//! suspected node still receives the ends of abandoned requests (H10), or empty requests, and its
//! first answer ends the suspicion.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::rpc::Slowest;

/// State of the conversation with one owner.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Number of requests sent so far, and number of the last answered request.
    requests: u64,
    answered: u64,
    /// Start of the present silence, while a request is unanswered.
    since: Option<Nanos>,
    slowest: Slowest,
    suspected: bool,
}

/// A sent request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    number: u64,
    at: Nanos,
}

impl Sent {
    /// Returns the request as last sent at `at`: the response time is measured from the last
    /// transmission, since a lost message says nothing about the speed of the owner.
    pub(crate) fn again(self, at: Nanos) -> Self {
        Self { at, ..self }
    }
}

/// Action on a silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuspicionVerdict {
    /// No action: the owner is not silent, or already suspected.
    Rest,
    /// Check again at this time.
    LookAgain(Nanos),
    /// Suspect the owner from now on.
    Suspect,
}

impl Silence {
    /// Records a request sent at `now`.
    #[inline]
    pub(crate) fn ask(&mut self, now: Nanos) -> Sent {
        self.requests += 1;
        self.since.get_or_insert(now);
        Sent { number: self.requests, at: now }
    }

    /// Records the answer to a request. Returns whether the answer ends a suspicion.
    #[inline]
    pub(crate) fn hear(&mut self, request: Sent, now: Nanos) -> bool {
        self.slowest.note(now.since(request.at));
        self.answered = self.answered.max(request.number);
        self.since = (self.answered < self.requests).then_some(now);
        std::mem::take(&mut self.suspected)
    }

    /// Forgets silence and suspicion: answers of the owner are no longer expected. Returns whether
    /// the owner was suspected.
    pub(crate) fn acquit(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.suspected)
    }

    /// Restarts a silence: this coordinator has not listened lately, so the owner gets its whole
    /// tolerance again.
    pub(crate) fn pardon(&mut self, now: Nanos) {
        self.since = self.since.map(|_| now);
    }

    /// Decides the next action, given the least tolerance. Returns [`SuspicionVerdict::Suspect`]
    /// once per suspicion.
    pub(crate) fn judge(&mut self, now: Nanos, least: Duration) -> SuspicionVerdict {
        let Some(since) = self.since.filter(|_| !self.suspected) else {
            return SuspicionVerdict::Rest;
        };
        let due = since.after(self.tolerance(least));
        if now < due {
            return SuspicionVerdict::LookAgain(due);
        }
        self.suspected = true;
        SuspicionVerdict::Suspect
    }

    /// Time for which the owner may be silent.
    #[inline]
    pub(crate) fn tolerance(&self, least: Duration) -> Duration {
        self.slowest.tolerance(least)
    }

    #[inline]
    pub(crate) fn is_suspected(&self) -> bool {
        self.suspected
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_micros(100);

    const fn us(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    #[test]
    fn who_leaves_the_last_request_unanswered_is_suspected_once() {
        let mut silence = Silence::default();
        assert_eq!(silence.judge(us(900), LEAST), SuspicionVerdict::Rest, "nothing was asked");
        silence.ask(us(1_000));
        silence.ask(us(1_050));
        assert_eq!(silence.judge(us(1_099), LEAST), SuspicionVerdict::LookAgain(us(1_100)));
        assert!(!silence.is_suspected());
        assert_eq!(silence.judge(us(1_100), LEAST), SuspicionVerdict::Suspect);
        assert_eq!(silence.judge(us(1_200), LEAST), SuspicionVerdict::Rest);
        assert!(silence.is_suspected());
    }

    #[test]
    fn any_answer_ends_a_suspicion_and_counts_from_when_it_came() {
        let mut silence = Silence::default();
        let first = silence.ask(us(0));
        assert_eq!(silence.judge(us(100), LEAST), SuspicionVerdict::Suspect);
        let probe = silence.ask(us(110));
        assert!(silence.hear(first, us(150)));
        assert!(!silence.is_suspected());
        // The probe is still under way, and the first answer took 150 us.
        assert_eq!(silence.judge(us(250), LEAST), SuspicionVerdict::LookAgain(us(150 + 600)));
        assert!(!silence.hear(probe, us(260)), "it had ended");
        assert_eq!(silence.judge(us(90_000), LEAST), SuspicionVerdict::Rest);
    }

    #[test]
    fn an_answer_that_was_overtaken_leaves_nothing_open() {
        let mut silence = Silence::default();
        let (lost, last) = (silence.ask(us(0)), silence.ask(us(1)));
        silence.hear(last, us(5));
        assert_eq!(
            silence.judge(us(900), LEAST),
            SuspicionVerdict::Rest,
            "it answers what came later"
        );
        silence.hear(lost, us(901));
        assert_eq!(silence.judge(us(9_000), LEAST), SuspicionVerdict::Rest);
    }

    #[test]
    fn who_is_slow_now_and_then_has_more_time_and_keeps_it_for_a_while() {
        let mut silence = Silence::default();
        let mut answer = |at, took| {
            let sent = silence.ask(us(at));
            silence.hear(sent, us(at + took));
            silence.tolerance(LEAST)
        };
        assert_eq!(answer(0, 25), LEAST);
        assert_eq!(answer(100, 500), Duration::from_millis(2));
        let mut tolerances: Vec<_> = (1..3_000).map(|turn| answer(turn * 1_000, 2)).collect();
        assert!(tolerances.is_sorted_by(|before, after| before >= after));
        assert!(tolerances[100] > Duration::from_millis(1), "one answer in a hundred is slow");
        assert_eq!(tolerances.pop(), Some(LEAST), "and nobody is for ever");
    }

    #[test]
    fn silence_while_nobody_listened_does_not_count() {
        let mut silence = Silence::default();
        silence.ask(us(0));
        silence.pardon(us(5_000));
        assert_eq!(silence.judge(us(5_000), LEAST), SuspicionVerdict::LookAgain(us(5_100)));
        assert_eq!(silence.judge(us(5_100), LEAST), SuspicionVerdict::Suspect);
        // A suspected owner stays so: only an answer shows that it lives.
        silence.pardon(us(6_000));
        assert!(silence.is_suspected());
        assert!(silence.acquit(), "it has been expelled");
        assert_eq!(silence.judge(us(9_000), LEAST), SuspicionVerdict::Rest);
        let mut heard = Silence::default();
        heard.pardon(us(1));
        assert_eq!(heard.judge(us(9_000), LEAST), SuspicionVerdict::Rest, "nothing is open");
    }
}
