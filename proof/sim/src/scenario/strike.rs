//! Strikes: faults that happen when a node passes a fault point.
//!
//! # What it is
//! Part of a scenario: the passage of a [`FaultPoint`], the nodes struck at that point, and the
//! fault. A strike is data like a schedule, and needs the feature `fault-points` to happen. A crash
//! ends a node right there; a pause stops it for a time. Memory nodes run no programs that could
//! pause, so a paused memory node is out of reach instead, until the storm is over.
//!
//! # What it is not
//! A random fault: random faults belong to the schedule and the rates.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MemoryFate};
use lotus_points::{FaultPoint, Place};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One strike of a scenario; happens at most once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Strike {
    /// Step at which the strike happens.
    #[serde(serialize_with = "write_point", deserialize_with = "read_point")]
    pub point: FaultPoint,
    /// Piece of the step after which the strike happens; the first, or only one, by default.
    #[serde(default = "first", serialize_with = "write_place", deserialize_with = "read_place")]
    pub place: Place,
    /// Number of the passage that counts, from 1 for the first after `after-us`.
    #[serde(default = "one")]
    pub passage: u32,
    /// Earliest time of a passage that counts, in microseconds since the world began.
    #[serde(default)]
    pub after_us: u64,
    /// Node that must pass the point; any node by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<NodeId>,
    /// Nodes that are struck.
    pub victims: Vec<Victim>,
    /// Fault of each victim.
    pub blow: StrikeFault,
}

/// Node that is struck.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// The node that passes the point.
    Passer,
    /// The other node of the step: the receiver of a shard.
    Peer,
    /// The node with this id.
    Node(NodeId),
}

/// Fault that a strike causes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrikeFault {
    /// The node ends; a memory node loses its memory.
    Crash,
    /// A compute node pauses for the given microseconds; a memory node is out of reach until the
    /// storm is over.
    Pause(u64),
}

impl StrikeFault {
    /// The fault for `node`.
    pub(crate) fn fault(self, node: NodeId, first_compute_node: NodeId) -> Fault {
        match self {
            Self::Crash if node < first_compute_node => {
                Fault::Crash { node, memory: MemoryFate::Lost }
            }
            Self::Crash => Fault::Crash { node, memory: MemoryFate::Kept },
            Self::Pause(_) if node < first_compute_node => Fault::Isolate { node },
            Self::Pause(us) => Fault::Pause { node, lasting: Duration::from_micros(us) },
        }
    }
}

impl Strike {
    /// Faults of the victims that are known before the run.
    pub(crate) fn faults(&self, first_compute_node: NodeId) -> impl Iterator<Item = Fault> {
        let known = |victim: &Victim| match victim {
            Victim::Node(node) => Some(*node),
            Victim::Passer => self.by,
            Victim::Peer => None,
        };
        let known = self.victims.iter().filter_map(known);
        known.map(move |node| self.blow.fault(node, first_compute_node))
    }

    /// Number of victims that are known only when the strike happens.
    pub(crate) fn unknown_victims(&self) -> usize {
        let unknown = |victim: &&Victim| match victim {
            Victim::Node(_) => false,
            Victim::Passer => self.by.is_none(),
            Victim::Peer => true,
        };
        self.victims.iter().filter(unknown).count()
    }
}

fn first() -> Place {
    Place::First
}

fn one() -> u32 {
    1
}

fn write_point<S: Serializer>(point: &FaultPoint, to: S) -> Result<S::Ok, S::Error> {
    point.name().serialize(to)
}

fn read_point<'de, D: Deserializer<'de>>(from: D) -> Result<FaultPoint, D::Error> {
    let name = String::deserialize(from)?;
    FaultPoint::named(&name).ok_or_else(|| D::Error::custom(format!("there is no point {name}")))
}

fn write_place<S: Serializer>(place: &Place, to: S) -> Result<S::Ok, S::Error> {
    place.name().serialize(to)
}

fn read_place<'de, D: Deserializer<'de>>(from: D) -> Result<Place, D::Error> {
    let name = String::deserialize(from)?;
    Place::named(&name).ok_or_else(|| D::Error::custom(format!("there is no place {name}")))
}
