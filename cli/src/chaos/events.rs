//! Events of a schedule in order of time: strikes, waits, snapshots and restores; and the rounds
//! between restores.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::schedule::Strike;

/// Stop of the cluster with a snapshot, and start from that snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Milliseconds since the load began.
    pub at_ms: u64,
    /// Strikes while compute nodes come to rest and one of them takes a snapshot; times count from
    /// the order to rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ending: Vec<Strike>,
    /// Strikes while the nodes start again; times count from the first start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starting: Vec<Strike>,
}

/// One line of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A fault of a node.
    Strike(Strike),
    /// A snapshot under load.
    Snapshot {
        /// Milliseconds since the load began.
        at_ms: u64,
    },
    /// Delays later events until every restarted node takes part, and every node that is away is
    /// out.
    Wait {
        /// Milliseconds since the load began.
        at_ms: u64,
    },
    /// Stop of the cluster, and start from a snapshot.
    Restore(Restore),
}

impl Event {
    /// Time of the event, in milliseconds since the load began.
    pub fn at_ms(&self) -> u64 {
        match self {
            Self::Strike(Strike { at_ms, .. })
            | Self::Snapshot { at_ms }
            | Self::Wait { at_ms } => *at_ms,
            Self::Restore(restore) => restore.at_ms,
        }
    }

    fn set_at_ms(&mut self, to: u64) {
        match self {
            Self::Strike(Strike { at_ms, .. })
            | Self::Snapshot { at_ms }
            | Self::Wait { at_ms } => *at_ms = to,
            Self::Restore(restore) => restore.at_ms = to,
        }
    }

    /// Copy of the event, later by `by_ms`.
    #[must_use]
    pub fn later(mut self, by_ms: u64) -> Self {
        self.set_at_ms(self.at_ms() + by_ms);
        self
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The line's first error.
    pub fn read(line: &str) -> Result<Self, serde_json::Error> {
        let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_str(line) else {
            return serde_json::from_str(line).map(Self::Strike);
        };
        let word = fields.get("fault").and_then(serde_json::Value::as_str).map(str::to_owned);
        match word.as_deref() {
            Some(word @ (SNAPSHOT | WAIT)) => {
                let waits = word == WAIT;
                fields.remove("fault");
                let Moment { at_ms } = serde_json::from_value(fields.into())?;
                Ok(if waits { Self::Wait { at_ms } } else { Self::Snapshot { at_ms } })
            }
            Some(RESTORE) => {
                fields.remove("fault");
                serde_json::from_value(fields.into()).map(Self::Restore)
            }
            _ => serde_json::from_str(line).map(Self::Strike),
        }
    }

    /// Formats the event as a line.
    pub fn write(&self) -> String {
        let moment = |at_ms: &u64, word| {
            serde_json::to_string(&serde_json::json!({ "at_ms": at_ms, "fault": word }))
        };
        let line = match self {
            Self::Strike(strike) => serde_json::to_string(strike),
            Self::Snapshot { at_ms } => moment(at_ms, SNAPSHOT),
            Self::Wait { at_ms } => moment(at_ms, WAIT),
            Self::Restore(restore) => {
                let mut fields = serde_json::json!({ "at_ms": restore.at_ms, "fault": RESTORE });
                for (list, strikes) in
                    [("ending", &restore.ending), ("starting", &restore.starting)]
                {
                    if !strikes.is_empty() {
                        fields[list] = serde_json::json!(strikes);
                    }
                }
                serde_json::to_string(&fields)
            }
        };
        line.expect("names and numbers")
    }
}

/// Fields of a line with only a time.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Moment {
    at_ms: u64,
}

/// Names of the events that concern no single node.
const SNAPSHOT: &str = "snapshot";
const WAIT: &str = "wait";
const RESTORE: &str = "restore";

/// Events until the cluster is restored, or the load ends. Times count from the start of the round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Round {
    /// Time of load before this round.
    pub began: Duration,
    /// Duration of the round's load.
    pub span: Duration,
    /// Strikes at nodes.
    pub strikes: Vec<Strike>,
    /// Times of snapshots.
    pub snapshots_ms: Vec<u64>,
    /// Times from which strikes wait until the cluster has settled.
    pub waits_ms: Vec<u64>,
    /// Restore that ends the round; `None` for the last round.
    pub restore: Option<Restore>,
}

/// Divides a schedule into rounds, at its restores.
pub fn rounds(events: &[Event], span: Duration) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut began_ms = 0;
    let mut round = Round::beginning(began_ms);
    for event in events {
        match event {
            Event::Strike(strike) => {
                round.strikes.push(Strike { at_ms: strike.at_ms - began_ms, ..*strike });
            }
            Event::Snapshot { at_ms } => round.snapshots_ms.push(at_ms - began_ms),
            Event::Wait { at_ms } => round.waits_ms.push(at_ms - began_ms),
            Event::Restore(restore) => {
                round.span = Duration::from_millis(restore.at_ms - began_ms);
                round.restore = Some(restore.clone());
                began_ms = restore.at_ms;
                rounds.push(std::mem::replace(&mut round, Round::beginning(began_ms)));
            }
        }
    }
    round.span = span.saturating_sub(round.began);
    rounds.push(round);
    rounds
}

impl Round {
    fn beginning(at_ms: u64) -> Self {
        Self {
            began: Duration::from_millis(at_ms),
            span: Duration::ZERO,
            strikes: Vec::new(),
            snapshots_ms: Vec::new(),
            waits_ms: Vec::new(),
            restore: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::schedule::Fault;
    use lotus_node::config::name::NodeName;

    #[test]
    fn restores_divide_a_schedule_into_rounds_with_times_of_their_own() {
        let strike =
            |at_ms, index| Strike { at_ms, node: NodeName::compute(index), fault: Fault::Kill };
        let restore = |at_ms| Restore { at_ms, ending: Vec::new(), starting: vec![strike(5, 0)] };
        let events = [
            Event::Strike(strike(100, 0)),
            Event::Snapshot { at_ms: 200 },
            Event::Restore(restore(1000)),
            Event::Snapshot { at_ms: 1000 },
            Event::Wait { at_ms: 1200 },
            Event::Strike(strike(1500, 1)),
            Event::Restore(restore(4000)),
        ];
        let round = |began_ms, span_ms, strikes, restore| Round {
            span: Duration::from_millis(span_ms),
            strikes,
            restore,
            ..Round::beginning(began_ms)
        };
        let first = round(0, 1000, vec![strike(100, 0)], Some(restore(1000)));
        let second = round(1000, 3000, vec![strike(500, 1)], Some(restore(4000)));
        let expected = [
            Round { snapshots_ms: vec![200], ..first },
            Round { snapshots_ms: vec![0], waits_ms: vec![200], ..second },
            round(4000, 500, Vec::new(), None),
        ];
        assert_eq!(rounds(&events, Duration::from_millis(4500)), expected);
        for event in events {
            assert_eq!(Event::read(&event.write()).expect("it was written"), event);
        }
    }
}
