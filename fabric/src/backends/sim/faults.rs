//! Faults as data: random faults with rates, and scheduled faults.
//!
//! [`Rates`] are probabilities, drawn from the seed for every message and verb. A [`Fault`] is a
//! single event: scheduled before the world starts ([`super::Config::schedule`]), or injected while
//! the world runs. The world carries faults out; this module only describes faults.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::ids::NodeId;

/// Largest rate at which a clock gains or loses time, in parts per million: a tenth.
pub const MAX_CLOCK_PPM: i32 = 100_000;

/// Rates of random faults of messages and verbs. Probabilities from 0 to 1; all 0 by default.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Rates {
    /// A message is lost.
    pub message_loss: f64,
    /// A message arrives twice, the second time delayed.
    pub message_duplication: f64,
    /// A message is delayed, so that later messages overtake it.
    pub message_delay: f64,
    /// Longest delay of a message or duplicate; delays are uniformly distributed.
    #[serde(rename = "message-delay-max-us", with = "micros")]
    pub message_delay_max: Duration,
    /// A batch's verbs to one node are held up, together with later verbs on the connection. After
    /// [`super::Config::verb_timeout`] the initiator gives up on the verbs, but they may still take
    /// effect (H22).
    pub verb_delay: f64,
    /// Longest delay of verbs; delays are uniformly distributed.
    #[serde(rename = "verb-delay-max-us", with = "micros")]
    pub verb_delay_max: Duration,
    /// A WRITE of several words lands in pieces, in any order, over time (H14).
    pub torn_writes: f64,
    /// A READ of several words is sampled in pieces, in any order, over time (H14). If a world's
    /// rates may ever tear READs, the lanes do not offer stable READs.
    pub torn_reads: f64,
    /// Longest duration of a torn WRITE or READ.
    #[serde(rename = "tear-span-us", with = "micros")]
    pub tear_span: Duration,
}

/// Fate of a node's registered memory in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryFate {
    /// Lost with all regions, as in DRAM.
    Lost,
    /// Kept, as in memory that outlives the node's processes.
    Kept,
}

/// A single fault, or its repair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing gets from node `from` to node `to`; the reverse direction is not affected.
    Cut {
        /// The sending side.
        from: NodeId,
        /// The receiving side.
        to: NodeId,
    },
    /// Ends a `Cut`.
    Mend {
        /// See `Cut`.
        from: NodeId,
        /// See `Cut`.
        to: NodeId,
    },
    /// The node is cut off from all other nodes, in both directions.
    Isolate {
        /// The node.
        node: NodeId,
    },
    /// Ends an `Isolate`.
    Rejoin {
        /// The node.
        node: NodeId,
    },
    /// Verbs from node `from` to node `to` are held up for a time.
    Stall {
        /// Initiator of the verbs.
        from: NodeId,
        /// Target of the verbs.
        to: NodeId,
        /// Duration from now on.
        #[serde(rename = "lasting-us", with = "micros")]
        lasting: Duration,
    },
    /// The cores of a node stand still for a time; the node's NIC goes on serving.
    Pause {
        /// The node.
        node: NodeId,
        /// Duration from now on.
        #[serde(rename = "lasting-us", with = "micros")]
        lasting: Duration,
    },
    /// A node's NIC takes `percent` of the normal time for each operation.
    SlowNic {
        /// The node.
        node: NodeId,
        /// 100 is normal, 300 three times as slow.
        percent: u32,
    },
    /// The cores of a node take `percent` of the normal time for all work.
    SlowCores {
        /// The node.
        node: NodeId,
        /// 100 is normal, 300 three times as slow.
        percent: u32,
    },
    /// A node's clock is set. A clock set forwards jumps; a clock set backwards stands still until
    /// time has caught up, because clocks never run backwards.
    ClockJump {
        /// The node.
        node: NodeId,
        /// Size of the jump in nanoseconds.
        nanos: i64,
    },
    /// A node's clock runs faster or slower than time, from now on.
    ClockRate {
        /// The node.
        node: NodeId,
        /// Nanoseconds gained in a millisecond, up to [`MAX_CLOCK_PPM`]; negative if the clock
        /// loses time; 0 is normal. Time gained earlier stays gained.
        ppm: i32,
    },
    /// Random faults have the given rates from now on.
    SetRates(Rates),
    /// Cancels all scheduled faults that wait for a count of verbs or messages.
    Disarm,
    /// The node's processes end. The seed decides which verbs in flight still land. The run stops,
    /// so that the caller can react.
    Crash {
        /// The node.
        node: NodeId,
        /// Fate of the node's memory.
        memory: MemoryFate,
    },
    /// A crashed node becomes reachable again; the run stops, so that the caller can start the
    /// node's processes. Connections from before the crash no longer work.
    Restart {
        /// The node.
        node: NodeId,
    },
}

impl Fault {
    /// Returns the nodes named in the fault.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let (first, second) = match *self {
            Self::Cut { from, to } | Self::Mend { from, to } | Self::Stall { from, to, .. } => {
                (Some(from), Some(to))
            }
            Self::Isolate { node }
            | Self::Rejoin { node }
            | Self::Pause { node, .. }
            | Self::SlowNic { node, .. }
            | Self::SlowCores { node, .. }
            | Self::ClockJump { node, .. }
            | Self::ClockRate { node, .. }
            | Self::Crash { node, .. }
            | Self::Restart { node } => (Some(node), None),
            Self::SetRates(_) | Self::Disarm => (None, None),
        };
        [first, second].into_iter().flatten()
    }
}

/// Time or count at which a scheduled fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum When {
    /// Time since the world began.
    #[serde(rename = "at-us", with = "micros")]
    At(Duration),
    /// Once `count` verbs of the node have taken effect, before the next verb does.
    AfterVerbs {
        /// Initiator of the verbs.
        node: NodeId,
        /// Number of verbs, from 1.
        count: u64,
    },
    /// Once the node has sent `count` messages.
    AfterMessages {
        /// The sender.
        node: NodeId,
        /// Number of messages, from 1.
        count: u64,
    },
}

/// An entry of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduled {
    /// Time or count of the fault.
    pub when: When,
    /// The fault.
    pub fault: Fault,
}

/// Number of faults that have happened, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Messages lost by chance.
    pub messages_lost: u64,
    /// Messages that arrived twice.
    pub messages_duplicated: u64,
    /// Messages delayed by chance.
    pub messages_delayed: u64,
    /// Messages lost because the path was cut or a node was down.
    pub messages_cut_off: u64,
    /// Parts of batches, each to one node, that were held up.
    pub verbs_delayed: u64,
    /// Connections given up by the initiator.
    pub connections_timed_out: u64,
    /// Verbs that took effect after the initiator had given up (H22).
    pub stragglers_landed: u64,
    /// Landed stragglers that were reported as flushed, behind a failed verb (H24).
    pub flushed_landed: u64,
    /// Verbs that arrived after the initiator had given up, and were refused.
    pub stragglers_refused: u64,
    /// WRITEs that landed in pieces.
    pub writes_torn: u64,
    /// READs that were sampled in pieces.
    pub reads_torn: u64,
    /// Directions cut, isolated nodes counted once.
    pub cuts: u64,
    /// Scheduled stalls.
    pub stalls: u64,
    /// Pauses.
    pub pauses: u64,
    /// NICs and cores slowed down.
    pub slowdowns: u64,
    /// Clocks set.
    pub clock_jumps: u64,
    /// Changes of the rates of clocks.
    pub clock_rates: u64,
    /// Crashes.
    pub crashes: u64,
    /// Restarts.
    pub restarts: u64,
}

impl FaultCounts {
    /// Returns every kind with its count, for reports.
    pub fn by_kind(&self) -> [(&'static str, u64); 19] {
        [
            ("messages lost", self.messages_lost),
            ("messages duplicated", self.messages_duplicated),
            ("messages delayed", self.messages_delayed),
            ("messages cut off", self.messages_cut_off),
            ("verbs delayed", self.verbs_delayed),
            ("connections timed out", self.connections_timed_out),
            ("stragglers landed", self.stragglers_landed),
            ("flushed ones landed", self.flushed_landed),
            ("stragglers refused", self.stragglers_refused),
            ("writes torn", self.writes_torn),
            ("reads torn", self.reads_torn),
            ("cuts", self.cuts),
            ("stalls", self.stalls),
            ("pauses", self.pauses),
            ("slowdowns", self.slowdowns),
            ("clock jumps", self.clock_jumps),
            ("changes of clock rates", self.clock_rates),
            ("crashes", self.crashes),
            ("restarts", self.restarts),
        ]
    }
}

/// Serialises durations as microseconds, whole or fractional.
mod micros {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Largest number of microseconds: a bit more than a year.
    const MOST: f64 = 4e13;

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let nanos = span.as_nanos() as u64;
        // Whole microseconds are written without a fraction.
        match nanos % 1000 {
            0 => (nanos / 1000).serialize(to),
            _ => (nanos as f64 / 1e3).serialize(to),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let micros = f64::deserialize(from)?;
        if !(0.0..=MOST).contains(&micros) {
            return Err(D::Error::custom(format!("{micros} microseconds are no duration")));
        }
        Ok(Duration::from_nanos((micros * 1e3).round() as u64))
    }
}

/// A probability prepared for drawing. A probability of zero makes no draw, so that runs without
/// faults pay nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Chance(u64);

impl Chance {
    fn of(probability: f64) -> Self {
        // The cast saturates: 1 and more mean always; NaN and negative numbers mean never.
        Self((probability * u64::MAX as f64) as u64)
    }

    #[inline]
    pub(super) fn strikes(self, rng: &mut impl rand::RngCore) -> bool {
        self.0 != 0 && rng.next_u64() <= self.0
    }
}

/// [`Rates`] prepared for drawing.
#[derive(Clone, Default)]
pub(super) struct Chances {
    pub(super) message_loss: Chance,
    pub(super) message_duplication: Chance,
    pub(super) message_delay: Chance,
    pub(super) verb_delay: Chance,
    pub(super) torn_writes: Chance,
    pub(super) torn_reads: Chance,
    pub(super) rates: Rates,
}

impl Chances {
    pub(super) fn new(rates: Rates) -> Self {
        Self {
            message_loss: Chance::of(rates.message_loss),
            message_duplication: Chance::of(rates.message_duplication),
            message_delay: Chance::of(rates.message_delay),
            verb_delay: Chance::of(rates.verb_delay),
            torn_writes: Chance::of(rates.torn_writes),
            torn_reads: Chance::of(rates.torn_reads),
            rates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::env::Env;

    #[test]
    fn chances_strike_as_often_as_they_say() {
        let mut rng = Env::real(1).rng(0);
        for (probability, low, high) in
            [(0.0, 0, 0), (f64::NAN, 0, 0), (-1.0, 0, 0), (0.25, 2300, 2700), (1.0, 10_000, 10_000)]
        {
            let chance = Chance::of(probability);
            let strikes = (0..10_000).filter(|_| chance.strikes(&mut rng)).count();
            assert!((low..=high).contains(&strikes), "{probability}: {strikes}");
        }
    }
}
