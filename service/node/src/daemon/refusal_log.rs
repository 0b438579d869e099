//! Log lines about connections that a node's ports turn away: garbage, wrong keys, refused
//! certificates. A line covers many connections, to keep outsiders from filling the log.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::tcp::TargetCounters;
use tracing::warn;

/// Minimum time between two lines.
const QUIET: Duration = Duration::from_secs(60);

/// Already logged refusals.
#[derive(Default)]
pub struct RefusalLog {
    told: Counts,
    last: Option<Nanos>,
}

/// Numbers of refused connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Refused with a reason: another key, cluster, version, or a certificate.
    pub refused: u64,
    /// Closed for invalid bytes.
    pub garbage: u64,
    /// Closed because the client did not identify itself in time.
    pub silent: u64,
    /// Closed to make room: too many connections.
    pub turned_away: u64,
    /// Failed accepts: the system had no file left.
    pub out_of_files: u64,
    /// Refused by the authority, for any reason.
    pub at_the_authority: u64,
}

impl From<TargetCounters> for Counts {
    fn from(counters: TargetCounters) -> Self {
        Self {
            refused: counters.refused,
            garbage: counters.garbage,
            silent: counters.too_slow_to_greet,
            turned_away: counters.turned_away,
            out_of_files: counters.accept_errors,
            at_the_authority: 0,
        }
    }
}

impl RefusalLog {
    /// Counts since the last line; `None` if nothing is new, or the last line is too recent.
    fn news(&mut self, now: Counts, at: Nanos) -> Option<Counts> {
        if now == self.told || self.last.is_some_and(|last| at.since(last) < QUIET) {
            return None;
        }
        let before = std::mem::replace(&mut self.told, now);
        self.last = Some(at);
        Some(Counts {
            refused: now.refused - before.refused,
            garbage: now.garbage - before.garbage,
            silent: now.silent - before.silent,
            turned_away: now.turned_away - before.turned_away,
            out_of_files: now.out_of_files - before.out_of_files,
            at_the_authority: now.at_the_authority - before.at_the_authority,
        })
    }

    /// Logs new refusals, if any, once the last line is old enough.
    pub fn look(&mut self, now: Counts, at: Nanos) {
        let Some(new) = self.news(now, at) else { return };
        let Counts { refused, garbage, silent, turned_away, out_of_files, at_the_authority } = new;
        warn!(
            refused,
            garbage,
            silent,
            turned_away,
            out_of_files,
            at_the_authority,
            "connections were not let in: another key or certificate, or no node of this cluster"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_all_that_were_turned_away_and_not_of_each() {
        let at = |secs: u64| Nanos(secs * 1_000_000_000);
        let refused = |refused| Counts { refused, ..Counts::default() };
        let mut turned_away = RefusalLog::default();
        assert_eq!(turned_away.news(Counts::default(), at(1)), None);
        assert_eq!(turned_away.news(refused(1), at(2)), Some(refused(1)));
        for secs in 3..62 {
            assert_eq!(turned_away.news(refused(1 + secs), at(secs)), None);
        }
        assert_eq!(turned_away.news(refused(70), at(62)), Some(refused(69)));
        assert_eq!(turned_away.news(refused(70), at(200)), None);
    }
}
