//! Whether an owner of locks is suspected: it has not answered for longer than is usual.
//!
//! # What it is
//! What one coordinator knows of one owner, as a state machine over times that are passed in. Every
//! request is noted when it is sent, every answer when it comes. An owner that leaves the last of
//! its requests unanswered is *silent* since that was sent, or since it was last heard; once it has
//! been for its *tolerance* it is *suspected*, until it answers anything.
//!
//! # The tolerance
//! A part of the lease, so that it is noticed long before the lease has passed, and never less than
//! a multiple of the slowest answer of late: a machine with more threads than cores, or a network
//! that is slow at times, raises it by itself.
//!
//! # What it is not
//! Knowledge. A suspicion saves waiting and nothing else: it decides no outcome,
//! releases no lock, and expels nobody (H2, H4). Whoever is suspected wrongly was slow, or a
//! message was lost. It is asked on and on, by the ends of the requests that were given up (H10) or
//! by a request for nothing, and its first answer ends the suspicion.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::rpc::Slowest;

/// What a coordinator has heard of one owner.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Requests sent so far, and the last of them that was answered.
    requests: u64,
    answered: u64,
    /// Since when there has been a request without an answer, and nothing was heard.
    since: Option<Nanos>,
    slowest: Slowest,
    suspected: bool,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    number: u64,
    at: Nanos,
}

impl Sent {
    /// The same request, sent for the last time then: how long its answer took is counted from
    /// there, since a lost message says nothing about how fast the owner is.
    pub(crate) fn again(self, at: Nanos) -> Self {
        Self { at, ..self }
    }
}

/// What to do about a silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing: all is answered, or known.
    Rest,
    /// Look again then.
    LookAgain(Nanos),
    /// Suspect the owner from now on.
    Suspect,
}

impl Silence {
    /// A request is sent now.
    #[inline]
    pub(crate) fn ask(&mut self, now: Nanos) -> Sent {
        self.requests += 1;
        self.since.get_or_insert(now);
        Sent { number: self.requests, at: now }
    }

    /// The answer to a request has come. Whether that ends a suspicion.
    #[inline]
    pub(crate) fn hear(&mut self, request: Sent, now: Nanos) -> bool {
        self.slowest.note(now.since(request.at));
        self.answered = self.answered.max(request.number);
        self.since = (self.answered < self.requests).then_some(now);
        std::mem::take(&mut self.suspected)
    }

    /// Nothing more is expected of the owner, nor held against it. Whether that ends a suspicion.
    pub(crate) fn acquit(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.suspected)
    }

    /// This coordinator has not listened lately: the owner has its whole tolerance once more.
    pub(crate) fn pardon(&mut self, now: Nanos) {
        self.since = self.since.map(|_| now);
    }

    /// What to do, with this as the least tolerance. [`Verdict::Suspect`] is said once.
    pub(crate) fn judge(&mut self, now: Nanos, least: Duration) -> Verdict {
        let Some(since) = self.since.filter(|_| !self.suspected) else { return Verdict::Rest };
        let due = since.after(self.tolerance(least));
        if now < due {
            return Verdict::LookAgain(due);
        }
        self.suspected = true;
        Verdict::Suspect
    }

    /// For how long the owner may be silent.
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
        assert_eq!(silence.judge(us(900), LEAST), Verdict::Rest, "nothing was asked");
        silence.ask(us(1_000));
        silence.ask(us(1_050));
        assert_eq!(silence.judge(us(1_099), LEAST), Verdict::LookAgain(us(1_100)));
        assert!(!silence.is_suspected());
        assert_eq!(silence.judge(us(1_100), LEAST), Verdict::Suspect);
        assert_eq!(silence.judge(us(1_200), LEAST), Verdict::Rest);
        assert!(silence.is_suspected());
    }

    #[test]
    fn any_answer_ends_a_suspicion_and_counts_from_when_it_came() {
        let mut silence = Silence::default();
        let first = silence.ask(us(0));
        assert_eq!(silence.judge(us(100), LEAST), Verdict::Suspect);
        let probe = silence.ask(us(110));
        assert!(silence.hear(first, us(150)));
        assert!(!silence.is_suspected());
        // The probe is still under way, and the first answer took 150 us.
        assert_eq!(silence.judge(us(250), LEAST), Verdict::LookAgain(us(150 + 600)));
        assert!(!silence.hear(probe, us(260)), "it had ended");
        assert_eq!(silence.judge(us(90_000), LEAST), Verdict::Rest);
    }

    #[test]
    fn an_answer_that_was_overtaken_leaves_nothing_open() {
        let mut silence = Silence::default();
        let (lost, last) = (silence.ask(us(0)), silence.ask(us(1)));
        silence.hear(last, us(5));
        assert_eq!(silence.judge(us(900), LEAST), Verdict::Rest, "it answers what came later");
        silence.hear(lost, us(901));
        assert_eq!(silence.judge(us(9_000), LEAST), Verdict::Rest);
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
        assert_eq!(silence.judge(us(5_000), LEAST), Verdict::LookAgain(us(5_100)));
        assert_eq!(silence.judge(us(5_100), LEAST), Verdict::Suspect);
        // Whoever is suspected stays so: only an answer says that it lives.
        silence.pardon(us(6_000));
        assert!(silence.is_suspected());
        assert!(silence.acquit(), "it has been expelled");
        assert_eq!(silence.judge(us(9_000), LEAST), Verdict::Rest);
        let mut heard = Silence::default();
        heard.pardon(us(1));
        assert_eq!(heard.judge(us(9_000), LEAST), Verdict::Rest, "nothing is open");
    }
}
