//! Decisions of RedLock clients: who holds a lock, and for how long.

use std::time::Duration;

use lotus_fabric::env::Nanos;

/// Times of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Time to live of a key.
    pub ttl: Duration,
    /// Longest time until a try with missing answers is given up; at most [`Times::validity`]
    /// counts.
    pub patience: Duration,
    /// Longest pause between two tries; the pause is drawn uniformly.
    pub pause: Duration,
}

impl Times {
    /// Times for measuring the locks alone. The pause is an assumption: clients of Redis pause for
    /// about 200 ms, with which the load of these papers would be impossible.
    pub const LOCKS: Self = Self {
        ttl: Duration::from_secs(10),
        patience: Duration::from_secs(1),
        pause: Duration::from_millis(1),
    };
    /// Times of a bank: keys live for 10 ms.
    pub const BANK: Self = Self { ttl: Duration::from_millis(10), ..Self::LOCKS };

    /// Validity of a lock that was granted at once: the time to live, less the allowance for
    /// differing clocks, which is 1 % of the time to live and 2 ms.
    pub fn validity(self) -> Duration {
        self.ttl.saturating_sub(self.ttl / 100 + Duration::from_millis(2))
    }

    /// Time at which a try that began at `began` is given up.
    pub fn gives_up(self, began: Nanos) -> Nanos {
        began.after(self.patience.min(self.validity()))
    }

    /// Time from which a server lost at `lost` counts again. The server may have come back without
    /// its keys, and would set the keys for other clients; by this time all earlier keys have
    /// expired, even by differing clocks.
    pub fn counts_again(self, lost: Nanos) -> Nanos {
        lost.after(self.expiry())
    }

    /// Time from which a server with this uptime at `now` counts. Until then the server may have
    /// started without keys that holders rely on. Redis subtracts whole-second readings of the
    /// host's clock, so the uptime may be a second too long, and still longer if the clock is set
    /// forward meanwhile.
    pub fn counts_when_up(self, now: Nanos, uptime: Duration) -> Nanos {
        now.after((self.expiry() + Duration::from_secs(1)).saturating_sub(uptime))
    }

    /// Time within which a key has expired by either of two differing clocks.
    fn expiry(self) -> Duration {
        self.ttl + (self.ttl - self.validity())
    }
}

/// A server's reply to a command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RedisReply {
    /// The command was carried out.
    Done,
    /// The command was refused: the key belongs to another try.
    Refused,
    /// The server is lost and will not answer.
    Lost,
}

/// Verdict on the servers' replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryVerdict {
    /// A majority carried the command out.
    Got,
    /// A majority is impossible.
    Refused,
    /// Too many servers are lost for a majority.
    Lost,
    /// Not decided yet.
    Open,
}

/// Number of servers that form a majority.
pub const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Returns the verdict on the servers' replies; `None` is a missing reply.
pub fn verdict(answers: &[Option<RedisReply>]) -> TryVerdict {
    let count = |reply| answers.iter().filter(|answer| **answer == reply).count();
    let [done, refused, lost] =
        [RedisReply::Done, RedisReply::Refused, RedisReply::Lost].map(|reply| count(Some(reply)));
    let needed = majority(answers.len());
    if done >= needed {
        TryVerdict::Got
    } else if lost > answers.len() - needed {
        TryVerdict::Lost
    } else if refused + lost > answers.len() - needed {
        TryVerdict::Refused
    } else {
        TryVerdict::Open
    }
}

/// Whether a majority has answered: missing servers did not cause a failure.
pub fn is_heard(answers: &[Option<RedisReply>]) -> bool {
    let heard = |answer: &&Option<RedisReply>| {
        matches!(answer, Some(RedisReply::Done | RedisReply::Refused))
    };
    answers.iter().filter(heard).count() >= majority(answers.len())
}

/// End of validity of a lock that a majority granted by `now`, to a try that began at `began`.
/// `None` if the validity is over: the lock is not held.
pub fn valid_until(began: Nanos, now: Nanos, times: Times) -> Option<Nanos> {
    // A server may have set the key as early as the start of the try.
    Some(began.after(times.validity())).filter(|end| now < *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Option<RedisReply> = Some(RedisReply::Done);
    const REFUSED: Option<RedisReply> = Some(RedisReply::Refused);
    const LOST: Option<RedisReply> = Some(RedisReply::Lost);

    #[test]
    fn a_majority_decides_and_one_that_cannot_be_had_is_known_early() {
        let cases: [(&[Option<RedisReply>], TryVerdict); 14] = [
            (&[None], TryVerdict::Open),
            (&[DONE], TryVerdict::Got),
            (&[REFUSED], TryVerdict::Refused),
            (&[LOST], TryVerdict::Lost),
            (&[DONE, None], TryVerdict::Open),
            (&[DONE, REFUSED], TryVerdict::Refused),
            (&[DONE, DONE, None], TryVerdict::Got),
            (&[DONE, REFUSED, None], TryVerdict::Open),
            (&[REFUSED, None, REFUSED], TryVerdict::Refused),
            (&[DONE, LOST, DONE], TryVerdict::Got),
            (&[DONE, LOST, REFUSED], TryVerdict::Refused),
            (&[DONE, LOST, LOST], TryVerdict::Lost),
            (&[DONE, DONE, REFUSED, REFUSED, None], TryVerdict::Open),
            (&[DONE, DONE, REFUSED, REFUSED, DONE], TryVerdict::Got),
        ];
        for (answers, expected) in cases {
            assert_eq!(verdict(answers), expected, "{answers:?}");
        }
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
    }

    /// Two majorities have a server in common, so two tries never both get the lock.
    #[test]
    fn two_tries_never_both_have_a_majority() {
        for servers in 1..=6_usize {
            // Each server has set the key for the one, for the other, or has not answered.
            for code in 0..3_usize.pow(servers as u32) {
                let chosen: Vec<_> =
                    (0..servers).map(|at| code / 3_usize.pow(at as u32) % 3).collect();
                let of = |one: usize| -> Vec<_> {
                    let answer = |chosen: &usize| match *chosen {
                        2 => None,
                        chosen if chosen == one => DONE,
                        _ => REFUSED,
                    };
                    chosen.iter().map(answer).collect()
                };
                let got = [0, 1].map(|one| verdict(&of(one)) == TryVerdict::Got);
                assert_ne!(got, [true, true], "{chosen:?}");
            }
        }
    }

    #[test]
    fn a_lock_is_valid_for_its_time_to_live_less_what_is_lost_of_it() {
        let at = |micros: u64| Nanos(micros * 1000);
        assert_eq!(Times::BANK.validity(), Duration::from_micros(7900));
        assert_eq!(Times::LOCKS.validity(), Duration::from_millis(9898));
        // Answers that come late do not make it longer.
        for now in [0, 1000, 7899] {
            assert_eq!(valid_until(at(0), at(now), Times::BANK), Some(at(7900)));
        }
        assert_eq!(valid_until(at(0), at(7900), Times::BANK), None, "the answer came too late");
        let short = Times { ttl: Duration::from_millis(2), ..Times::BANK };
        assert_eq!(valid_until(at(5), at(5), short), None, "it is never valid");
    }

    #[test]
    fn a_try_is_given_up_before_its_lock_would_be_invalid() {
        let began = Nanos(5);
        assert_eq!(Times::LOCKS.gives_up(began), began.after(Duration::from_secs(1)));
        assert_eq!(Times::BANK.gives_up(began), began.after(Duration::from_micros(7900)));
    }

    #[test]
    fn a_server_that_was_lost_counts_again_once_all_its_keys_have_expired() {
        let lost = Nanos(7);
        let back = lost.after(Duration::from_micros(12_100));
        assert_eq!(Times::BANK.counts_again(lost), back);
        assert!(valid_until(lost, lost, Times::BANK).is_some_and(|end| end < back));
        let short = Times { ttl: Duration::from_millis(1), ..Times::BANK };
        assert_eq!(short.counts_again(lost), lost.after(Duration::from_millis(2)));
    }

    #[test]
    fn a_server_counts_once_it_has_been_up_for_longer_than_keys_live() {
        let (now, secs) = (Nanos(7), Duration::from_secs);
        let after = |times: Times, up| times.counts_when_up(now, secs(up)).since(now);
        // Of one second that it says none may have passed.
        for (up, millis) in [(0, 11_102), (1, 10_102), (11, 102), (12, 0), (1 << 30, 0)] {
            assert_eq!(after(Times::LOCKS, up), Duration::from_millis(millis), "{up}");
        }
        let expires = Times::LOCKS.counts_again(now).since(now);
        assert!(after(Times::LOCKS, 11) + secs(11 - 1) >= expires);
        assert_eq!(after(Times::BANK, 0), Duration::from_micros(1_012_100));
        assert_eq!(after(Times::BANK, 2), Duration::ZERO);
    }

    #[test]
    fn a_silent_minority_is_not_to_blame() {
        assert!(is_heard(&[DONE, REFUSED, None]));
        assert!(!is_heard(&[DONE, None, None]));
        assert!(!is_heard(&[None]) && !is_heard(&[LOST]));
    }
}
