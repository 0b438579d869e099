//! Fault points set by the environment: where a process of a node or of `lotus cluster down` kills
//! or stops itself.
//!
//! [`VARIABLE`] has the form `POINT[/PLACE][@PASSAGE][:NODE]=kill|stop`. For instance
//! `log-posted/middle@3:1=kill` is the third time that compute node 1 has written a log entry on
//! the second of three memory nodes. The defaults are the first piece, the first passage, and every
//! compute node. A kill is a SIGKILL, a stop a SIGSTOP; `kill -CONT` resumes the process.

use lotus_points::{FaultInjector, FaultPoint, Passage, PassageOutcome, Place, install};
use rustix::process::{Signal, getpid, kill_process};
use tracing::warn;

use crate::config::name::NodeName;

/// Name of the environment variable.
pub const VARIABLE: &str = "LOTUS_FAULT_POINT";

/// Arms this process, if the environment names a fault point for this node, or for every node.
///
/// # Errors
/// A sentence: the variable cannot be parsed.
pub fn arm(node: Option<NodeName>) -> Result<(), String> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(()) };
    let wanted = Wanted::parse(&text).ok_or_else(|| {
        format!("{VARIABLE} is {text:?}, and not POINT[/PLACE][@PASSAGE][:NODE]=kill|stop")
    })?;
    if wanted.node.is_none_or(|wanted| node.is_some_and(|node| node.index == wanted)) {
        warn!(node = node.map(|node| node.to_string()), at = text, "armed");
        install(wanted);
    }
    Ok(())
}

/// Fault point at which a process ends or stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    point: FaultPoint,
    place: Place,
    /// Number of passages until the strike, including the strike's passage; 0 afterwards.
    passage: u32,
    node: Option<u16>,
    kills: bool,
}

impl Wanted {
    fn parse(text: &str) -> Option<Self> {
        let (at, deed) = text.split_once('=')?;
        let (at, node) = match at.split_once(':') {
            Some((at, node)) => (at, Some(node.parse().ok()?)),
            None => (at, None),
        };
        let (at, passage) = match at.split_once('@') {
            Some((at, passage)) => (at, passage.parse().ok().filter(|passage| *passage > 0)?),
            None => (at, 1),
        };
        let (point, place) = match at.split_once('/') {
            Some((point, place)) => (point, Place::named(place)?),
            None => (at, Place::First),
        };
        let kills = match deed {
            "kill" => true,
            "stop" => false,
            _ => return None,
        };
        Some(Self { point: FaultPoint::named(point)?, place, passage, node, kills })
    }
}

impl FaultInjector for Wanted {
    fn meets(&mut self, passage: &Passage) -> bool {
        let here = passage.point == self.point && self.place.is(passage.index, passage.count);
        if !here || self.passage == 0 {
            return false;
        }
        self.passage -= 1;
        self.passage == 0
    }

    fn strike(&mut self, passage: &Passage) -> PassageOutcome {
        warn!(point = passage.point.name(), "struck");
        let signal = if self.kills { Signal::KILL } else { Signal::STOP };
        // A process may always signal itself.
        let _ = kill_process(getpid(), signal);
        if self.kills { PassageOutcome::Halt } else { PassageOutcome::Go }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_means_the_first_and_everybody() {
        let whole = Wanted {
            point: FaultPoint::LogPosted,
            place: Place::Middle,
            passage: 3,
            node: Some(1),
            kills: true,
        };
        let short = Wanted { place: Place::First, passage: 1, node: None, kills: false, ..whole };
        assert_eq!(Wanted::parse("log-posted/middle@3:1=kill"), Some(whole));
        assert_eq!(Wanted::parse("log-posted=stop"), Some(short));
        for wrong in
            ["", "log-posted", "log=kill", "log-posted=die", "log-posted@0=kill", "reply/2=kill"]
        {
            assert_eq!(Wanted::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_passage_that_is_meant_counts() {
        let mut wanted = Wanted::parse("log-posted/last@2=stop").expect("it is right");
        let passage =
            |index| Passage { point: FaultPoint::LogPosted, node: 4, index, count: 3, peer: None };
        let met: Vec<bool> =
            [0, 1, 2, 2, 0, 2].into_iter().map(|index| wanted.meets(&passage(index))).collect();
        assert_eq!(met, [false, false, false, true, false, false]);
    }
}
