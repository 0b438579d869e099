//! Delays and losses on the way to the authority: answers come late, are lost, or stop for a while.
//!
//! # What it is
//! Part of a scenario; `drive::authority` carries it out. Each question of a compute node takes
//! time on the way there and back. A question lost on the way there is never asked; a question
//! whose answer is lost has been carried out, and the asker does not know. In both cases the asker
//! gives up after its patience. Node faults strike as usual.
//!
//! # What it is not
//! A fault of questions from control threads, which work outside of time. No delay or loss lasts
//! longer than the storm.

use serde::{Deserialize, Serialize};

/// Delays and losses of questions. By default every question is answered at once.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct AuthorityDelays {
    /// Longest time there, and back, in microseconds; shorter times are equally likely.
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

impl AuthorityDelays {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether coordinators' questions are answered at once.
    pub(crate) fn is_near(&self) -> bool {
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

/// Faults during the start of processes. By default there are no faults and no processes.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Starts {
    /// Compute nodes, each in a separate process; 0 to start no cluster.
    pub processes: u16,
    /// Share of questions that are lost, and of answers.
    pub loss: f64,
    /// Share of questions before which a process pauses.
    pub pauses: f64,
    /// Longest pause, in microseconds.
    pub pause_max_us: u64,
    /// Share of questions at which a process ends.
    pub kills: f64,
    /// Share of questions preceded by the loss of a memory node with all data; at most one is lost.
    pub memory_loss: f64,
}

impl Starts {
    pub(crate) fn is_none(&self) -> bool {
        self.processes == 0
    }
}
