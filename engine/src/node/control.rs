//! Access to the memory nodes for set-up, loading and audits, on lanes separate from the
//! coordinators'.
//!
//! This work runs on the calling thread, while no transaction touches the same memory.

use std::future::Future;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::Machines;
use lotus_fabric::transport::Fabric;

use crate::api::error::ClusterError;
use crate::node::threads::home;

/// First lane number of the control path, above the coordinators' lanes.
const FIRST_LANE: u16 = 4096;
const LANES: u16 = 1 << 15;

pub(crate) struct Control {
    fabric: Arc<dyn Fabric>,
    env: Env,
    workers: usize,
    node: NodeId,
    epoch: Epoch,
    next_lane: Arc<AtomicU16>,
    /// Whether time passes while control waits; false in a simulation.
    in_time: bool,
    /// The process that started the cluster.
    process: u32,
}

impl Control {
    /// Control acting as `node`, with its access epoch.
    pub(crate) fn new(machines: &dyn Machines, node: NodeId, epoch: Epoch) -> Self {
        Self {
            fabric: machines.fabric(),
            env: machines.env(node),
            workers: machines.control_workers(),
            node,
            epoch,
            next_lane: Arc::default(),
            in_time: machines.delivery_model().is_none(),
            process: process::id(),
        }
    }

    /// Returns a copy with the later of the present access epoch and `epoch`.
    pub(crate) fn under(&self, epoch: Epoch) -> Self {
        Self {
            fabric: Arc::clone(&self.fabric),
            env: self.env.clone(),
            workers: self.workers,
            node: self.node,
            epoch: self.epoch.max(epoch),
            next_lane: Arc::clone(&self.next_lane),
            in_time: self.in_time,
            process: self.process,
        }
    }

    /// Clock and randomness of the node.
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Current time of the node.
    pub(crate) fn now(&self) -> Nanos {
        self.env.now()
    }

    /// Whether time passes during waits. If not, the callback told of a wait advances the time.
    pub(crate) fn is_in_time(&self) -> bool {
        self.in_time
    }

    /// Sleeps for `duration`, if time passes.
    pub(crate) fn pause(&self, duration: Duration) {
        if !self.in_time {
            return;
        }
        let mut executor = Executor::new(self.env.clone());
        let handle = executor.handle().clone();
        executor.run(async move { handle.sleep(duration).await });
    }

    /// Number of workers that share a large piece of work.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Runs `work` once for each of `workers` workers, on separate threads.
    pub(crate) fn in_parallel<T: Send>(
        &self,
        workers: usize,
        work: impl Fn(usize) -> T + Sync,
    ) -> Vec<T> {
        self.env.in_parallel(workers, work)
    }

    /// Whether `from`, a node of this process, and `to` can communicate now.
    pub(crate) fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        from == to || self.fabric.reaches(from, to)
    }

    /// Runs `work` on the calling thread, with a new lane.
    pub(crate) fn with_lane<T, Fut: Future<Output = T>>(
        &self,
        work: impl FnOnce(Lane) -> Fut,
    ) -> Result<T, ClusterError> {
        if process::id() != self.process {
            return Err(ClusterError::Misuse(home::FORKED));
        }
        self.with_lane_of(self.node, self.epoch, work)
    }

    /// As [`Self::with_lane`], on behalf of another compute node of this process.
    pub(crate) fn with_lane_of<T, Fut: Future<Output = T>>(
        &self,
        node: NodeId,
        epoch: Epoch,
        work: impl FnOnce(Lane) -> Fut,
    ) -> Result<T, ClusterError> {
        // Lanes are closed after use, so lane numbers may wrap around.
        let number = self.next_lane.fetch_add(1, Ordering::Relaxed) % LANES;
        let at = Endpoint { node, lane: LaneId(FIRST_LANE + number) };
        let mut executor = Executor::new(self.env.clone());
        let handle = executor.handle().clone();
        let transport = self.fabric.open_lane(at, epoch, handle.waker())?;
        let lane = Lane::new(at, handle, transport);
        executor.add_driver(lane.driver());
        Ok(executor.run(work(lane)))
    }
}
