//! `lotus cluster matrix`: strikes processes at every step of a start, of a snapshot and of `down`,
//! and checks the result.
//!
//! # What it is
//! A [`Coordinate`] is a step, given by its [`FaultPoint`], a process that takes the step, and a
//! fault: the process is killed at the step, or paused for longer than the lease. [`actors`] lists
//! for every point the processes that take the step; the matrix is derived from [`actors`] and the
//! list of points, so a new point needs its own coordinates. Each coordinate is a separate run of a
//! small cluster over `shm` in a directory of its own (`test_cluster`), started from a snapshot.
//! After the fault an operator follows docs/operations.md (`matrix_run`): restarts nodes that have
//! ended, or ends a cluster that reports incomplete data and starts it anew. In the end the cluster
//! must serve its initial rows, and no file in the directory of snapshots may have other rows
//! (I177).
//!
//! # What it is not
//! A test of transactions: no rows are written during a run. Clusters at work are struck by
//! `lotus-lab sim matrix` and `lotus chaos`.

mod matrix_run;
mod test_cluster;

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_points::FaultPoint;

use crate::args::ClusterMatrixArgs;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_runner::show::Verdict;
use test_cluster::TestCluster;

/// A process that takes steps of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// The process of a node.
    Node(NodeName),
    /// The process of `lotus cluster down`.
    Command,
}

const FOUNDER: Actor = Actor::Node(NodeName::compute(0));
const OTHER: Actor = Actor::Node(NodeName::compute(1));
const MEMORY: Actor = Actor::Node(NodeName { kind: NodeKind::Memory, index: 1 });
const HOST: Actor = Actor::Node(NodeName { kind: NodeKind::Memory, index: 0 });

/// Processes that pass a point; empty for points passed only by a cluster within one process.
pub fn actors(point: FaultPoint) -> &'static [Actor] {
    use FaultPoint as P;
    match point {
        P::MemoryServing => &[MEMORY, HOST],
        P::Joined | P::FirstBeat | P::Serving | P::Rested => &[FOUNDER, OTHER],
        P::Registered | P::Chartered | P::RowsLoaded | P::Filled | P::DataAgreed => &[FOUNDER],
        P::Announced | P::TakenIn => &[OTHER, FOUNDER],
        P::SnapshotOpened | P::SnapshotWritten | P::SnapshotSynced => &[FOUNDER],
        P::SnapshotNamed | P::SnapshotPruned | P::SnapshotReported => &[FOUNDER],
        P::RestAgreed | P::RestTold | P::LastTaken => &[Actor::Command],
        P::ComputeEnded | P::AllEnded => &[Actor::Command],
        _ => &[],
    }
}

/// A fault of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessFault {
    /// The process is killed.
    Kill,
    /// The process is paused for some leases, and resumed.
    Stop,
}

/// A step, the process struck at that step, and the fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coordinate {
    point: FaultPoint,
    actor: Actor,
    fault: ProcessFault,
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = match self.fault {
            ProcessFault::Kill => "kill",
            ProcessFault::Stop => "stop",
        };
        write!(f, "{}/{fault}/", self.point.name())?;
        match self.actor {
            Actor::Node(node) => node.fmt(f),
            Actor::Command => f.write_str("down"),
        }
    }
}

impl Coordinate {
    /// Value of the environment variable that arms the process.
    fn armed(&self) -> String {
        let fault = match self.fault {
            ProcessFault::Kill => "kill",
            ProcessFault::Stop => "stop",
        };
        // A load passes the point many times: strike in the middle.
        let passage = if self.point == FaultPoint::RowsLoaded { "@300" } else { "" };
        format!("{}{passage}={fault}", self.point.name())
    }
}

/// All coordinates.
pub fn all() -> Vec<Coordinate> {
    let mut all = Vec::new();
    for point in FaultPoint::ALL.iter().copied() {
        for actor in actors(point).iter().copied() {
            all.extend([ProcessFault::Kill, ProcessFault::Stop].map(|fault| Coordinate {
                point,
                actor,
                fault,
            }));
        }
    }
    all
}

/// One coordinate per point: kills the first process of the point's list.
pub fn short() -> Vec<Coordinate> {
    let mut short = all();
    short.retain(|one| one.fault == ProcessFault::Kill && actors(one.point)[0] == one.actor);
    short
}

/// Runs the chosen coordinates, several at a time, each on a test cluster of its own.
///
/// # Errors
/// A sentence: the coordinate does not exist, or there is no room for a cluster.
pub fn run(args: &ClusterMatrixArgs) -> Result<Verdict, String> {
    let chosen = match &args.only {
        Some(name) => {
            let named = |one: &Coordinate| one.point.name() == name || one.to_string() == *name;
            let chosen: Vec<Coordinate> = all().into_iter().filter(named).collect();
            if chosen.is_empty() {
                return Err(format!("there is no coordinate {name}"));
            }
            chosen
        }
        None if args.all => all(),
        None => short(),
    };
    let next = AtomicUsize::new(0);
    let at_once = usize::from(args.at_once.get()).min(chosen.len());
    let passed = Env::real(0).in_parallel(at_once, |place| -> Result<usize, String> {
        let cluster = TestCluster::prepare(place)?;
        let mut passed = 0;
        while let Some(coordinate) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            passed += usize::from(is_passed(&cluster, coordinate)?);
        }
        Ok(passed)
    });
    let passed = passed.into_iter().sum::<Result<usize, String>>()?;
    say(&format!("{passed} of {} coordinates passed\n", chosen.len()))?;
    Ok(if passed == chosen.len() { Verdict::Sound } else { Verdict::Unsound })
}

/// Runs a coordinate, and prints the outcome.
fn is_passed(cluster: &TestCluster, coordinate: &Coordinate) -> Result<bool, String> {
    let env = Env::real(0);
    let began = env.now();
    let outcome = matrix_run::run(cluster, coordinate);
    let secs = env.now().since(began).as_secs_f64();
    match &outcome {
        Ok(()) => say(&format!("{coordinate}: passed, {secs:.1} s\n"))?,
        Err(why) => {
            let logs = cluster.keep_logs(&coordinate.to_string())?;
            let logs = logs.display();
            say(&format!("{coordinate}: FAILED, {secs:.1} s: {why}; see {logs}\n"))?;
        }
    }
    Ok(outcome.is_ok())
}

fn say(what: &str) -> Result<(), String> {
    let mut out = StandardOutput;
    let said = out.write_all(what.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| format!("cannot write: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_processes_has_runs_and_no_other_has() {
        for point in FaultPoint::ALL.iter().copied() {
            let runs = all().iter().filter(|one| one.point == point).count();
            assert_eq!(runs > 0, point.family().is_of_processes(), "{point:?}");
        }
        let steps = FaultPoint::ALL.iter().filter(|point| point.family().is_of_processes());
        assert_eq!(short().len(), steps.count());
    }

    #[test]
    fn names_lead_to_one_coordinate_each() {
        let mut names: Vec<String> = all().iter().map(Coordinate::to_string).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
        assert!(names.contains(&"joined/kill/cn-0".to_owned()), "{names:?}");
    }
}
