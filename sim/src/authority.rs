//! Delays and losses on the way to the authority: answers come late, are lost, or stop for a while.
//!
//! # What it is
//! Part of a scenario, and the [`Courier`] that carries it out: each question of a compute node
//! takes its time to get there and back. A question that is lost on the way there is never asked;
//! one whose answer is lost has been carried out, and the asker does not know. In both cases the
//! asker gives up after its patience. Faults of nodes strike meanwhile as at any other time.
//!
//! # What it is not
//! A fault of control threads' questions: those work outside of time. No delay or loss lasts longer
//! than the storm.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Courier, Errand};
use lotus_fabric::sim::SimFabric;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;
use crate::starts::Starts;

/// Delays and losses of questions. By default every question is answered at once.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Distance {
    /// Longest time there, and back, in microseconds; shorter ones are as likely.
    pub delay_max_us: u64,
    /// Share of questions that are lost, and of answers.
    pub loss: f64,
    /// Time after which an asker gives up, in microseconds.
    pub patience_us: u64,
    /// Periods in which no question is answered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silences: Vec<Silence>,
    /// Start of a cluster of processes that agree through this authority.
    #[serde(skip_serializing_if = "Starts::is_none")]
    pub starts: Starts,
}

/// Period without answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Silence {
    /// Begin, in microseconds since the world began.
    pub at_us: u64,
    /// Length, in microseconds.
    pub lasting_us: u64,
}

impl Distance {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether coordinators' questions are answered at once.
    fn is_near(&self) -> bool {
        Self { starts: Starts::default(), ..self.clone() }.is_none()
    }

    /// Whether every share is from 0 to 1.
    pub(crate) fn has_shares(&self) -> bool {
        let Starts { loss, pauses, kills, memory_loss, .. } = self.starts;
        [self.loss, loss, pauses, kills, memory_loss]
            .iter()
            .all(|share| (0.0..=1.0).contains(share))
    }
}

/// Courier between the nodes of one world and their authority.
pub(crate) struct Post {
    distance: Distance,
    until: Duration,
    fabric: SimFabric,
    rng: Mutex<SmallRng>,
}

impl Post {
    /// The courier of a scenario; `None` if its questions are answered at once.
    pub(crate) fn of(scenario: &Scenario, seed: u64, fabric: SimFabric) -> Option<Self> {
        let distance = scenario.authority.clone();
        let until = scenario.storm();
        // A stream of its own, so that the world's streams of this seed stay as they are.
        let rng = Mutex::new(SmallRng::seed_from_u64(seed ^ 0xA07_404));
        (!distance.is_near()).then_some(Self { distance, until, fabric, rng })
    }

    fn is_silent(&self, now: Duration) -> bool {
        let micros = Duration::from_micros;
        self.distance.silences.iter().any(|silence| {
            let begins = micros(silence.at_us);
            (begins..begins + micros(silence.lasting_us)).contains(&now)
        })
    }
}

impl Courier for Post {
    fn carry(&self, _node: NodeId) -> Errand {
        let (now, zero) = (self.fabric.now(), Duration::ZERO);
        if now >= self.until {
            return Errand { there: zero, arrives: true, back: zero, answered: true };
        }
        let rng = &mut *self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way =
            || Duration::from_nanos(rng.random_range(0..=self.distance.delay_max_us * 1_000));
        let (there, back) = (way(), way());
        let mut arrives = || !rng.random_bool(self.distance.loss);
        let arrives = [arrives(), arrives()].map(|arrives| arrives && !self.is_silent(now + there));
        let patience = Duration::from_micros(self.distance.patience_us).saturating_sub(there);
        let answered = arrives == [true, true];
        let back = if answered { back } else { back.max(patience) };
        Errand { there, arrives: arrives[0], back, answered }
    }
}
