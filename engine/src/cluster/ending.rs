//! The end of a cluster, or of a node's life, within bounds.
//!
//! Coordinators end when their jobs have ended. A coordinator drops jobs that do not end after a
//! while ([`crate::cluster::threads`]), so the rule is the same on all machines. A thread blocked
//! by an application's code cannot be ended: the thread is left behind, and ends when the code
//! returns.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::PoisonError;
use std::task::Poll;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;

use crate::api::coordinator_id::HeldUp;
use crate::api::error::ClusterError;
use crate::cluster::handle::{Cluster, CoordinatorHandle};

/// Interval between two looks at a coordinator that does not end.
const LOOK: Duration = Duration::from_millis(50);
/// Consecutive looks in the same poll of an application's code after which a thread counts as
/// blocked.
const BLOCKED_LOOKS: u32 = 10;
/// Time for a coordinator to end, beyond the time-outs of the work it has to complete.
const SPARE: Duration = Duration::from_secs(1);

impl Cluster {
    /// Returns the transactions and jobs whose code holds up a coordinator of this process at the
    /// moment: the code blocks the thread, or computes without an await. Meanwhile the coordinator
    /// serves no other jobs.
    pub fn held_up(&self) -> Vec<HeldUp> {
        self.shared.held_up.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops all coordinators once their jobs have ended: submitted transactions are carried out.
    /// Jobs that have not ended within
    /// [`ClusterBuilder::stop_timeout`](crate::ClusterBuilder::stop_timeout) are dropped, and their
    /// callers get `Fenced`. Dropping the cluster has the same effect, without a report.
    ///
    /// # Errors
    /// `CoordinatorFailed` if a coordinator has panicked; `Unended`, which names the transactions
    /// and jobs that have not ended. The cluster has stopped in any case.
    pub fn stop(mut self) -> Result<(), ClusterError> {
        self.join()
    }

    pub(super) fn join(&mut self) -> Result<(), ClusterError> {
        let coordinators = self.coordinators.get_mut().unwrap_or_else(PoisonError::into_inner);
        let coordinators = std::mem::take(coordinators);
        if self.name().is_forked() {
            // The threads are in the parent process.
            return Ok(());
        }
        self.shared.stopping.0.close();
        coordinators.iter().for_each(|coordinator| _ = coordinator.jobs.close());
        let config = &self.shared.config;
        let within = config.stop_timeout;
        let patience = within + config.commit_timeout + config.lock_timeout + SPARE;
        let deadline = self.shared.control.now().after(patience);
        let mut outcome = Ok(());
        for coordinator in coordinators {
            let node = coordinator.coordinator_id.compute_node;
            if !self.end(coordinator, within, deadline) {
                outcome = outcome.and(Err(ClusterError::CoordinatorFailed { node }));
            }
        }
        // The watchdog runs until now, to log code that blocks a thread meanwhile.
        self.watchdog = None;
        let mut what = self.shared.unended.lock().unwrap_or_else(PoisonError::into_inner);
        if what.is_empty() || outcome.is_err() {
            return outcome;
        }
        Err(ClusterError::Unended { what: std::mem::take(&mut *what), within })
    }

    /// Waits for the coordinators of a node to end, after the node was killed.
    pub(crate) fn join_coordinators(&self, compute_node: usize) {
        let theirs: Vec<_> = {
            let mut all = self.coordinators.write().unwrap_or_else(PoisonError::into_inner);
            let theirs =
                all.iter_mut().filter(|known| known.coordinator_id.compute_node == compute_node);
            theirs.map(CoordinatorHandle::take).collect()
        };
        let config = &self.shared.config;
        let deadline = self.shared.control.now().after(config.stop_timeout + SPARE);
        for coordinator in theirs {
            // Callers have been told of a panic.
            let _ = self.end(coordinator, Duration::ZERO, deadline);
        }
        // A blocked thread ends as soon as it can, and its node is out.
        self.shared.unended.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits for a coordinator to end, or leaves it behind: at `deadline`, or after `within`, the
    /// time for its jobs to end, if a job blocks the thread. Returns `false` if the coordinator
    /// panicked.
    fn end(&self, coordinator: CoordinatorHandle, within: Duration, deadline: Nanos) -> bool {
        let CoordinatorHandle { coordinator_id, core, ended, .. } = coordinator;
        let Some(core) = core else { return true };
        let waits =
            self.shared.has_threads && self.name().coordinator_here() != Some(coordinator_id);
        if waits && let Err(why) = self.await_end(coordinator_id, &ended, within, deadline) {
            let mut unended = self.shared.unended.lock().unwrap_or_else(PoisonError::into_inner);
            unended.push(why);
            if let Some(node) = self.shared.hosted(coordinator_id.compute_node) {
                // The thread ends when it can.
                node.kill();
            }
            return true;
        }
        self.machines.join(core)
    }

    /// Waits until a coordinator has ended.
    ///
    /// # Errors
    /// The reason to leave the coordinator behind.
    fn await_end(
        &self,
        coordinator_id: crate::api::coordinator_id::CoordinatorId,
        ended: &async_channel::Receiver<()>,
        within: Duration,
        deadline: Nanos,
    ) -> Result<(), String> {
        let (shared, began) = (&self.shared, self.shared.control.now());
        let node = shared.hosted(coordinator_id.compute_node);
        let inside =
            || node.as_ref().and_then(|node| node.current_polls[coordinator_id.thread].inside());
        let mut executor = Executor::new(shared.control.env().clone());
        let handle = executor.handle().clone();
        let (mut last, mut looks) = (None, 0);
        while !ended.is_closed() {
            executor.run(async {
                let (mut ended, mut pause) = (pin!(ended.recv()), pin!(handle.sleep(LOOK)));
                poll_fn(|cx| match ended.as_mut().poll(cx) {
                    Poll::Ready(_) => Poll::Ready(()),
                    Poll::Pending => pause.as_mut().poll(cx),
                })
                .await;
            });
            let (now, inside) = (handle.now(), inside());
            looks = if inside.is_some() && inside == last { looks + 1 } else { 0 };
            last = inside;
            let is_blocked = looks >= BLOCKED_LOOKS && now.since(began) >= within;
            if !is_blocked && now < deadline {
                continue;
            }
            let label = inside.zip(node.as_ref());
            return Err(match label {
                Some((inside, node)) => {
                    let label = node.current_polls[coordinator_id.thread].label(inside);
                    format!(
                        "{label} blocks a thread of compute node {}",
                        coordinator_id.compute_node
                    )
                }
                None => format!("a thread of compute node {}", coordinator_id.compute_node),
            });
        }
        Ok(())
    }
}

impl CoordinatorHandle {
    /// Moves the core out, into a new handle of the same coordinator.
    fn take(&mut self) -> Self {
        let Self { coordinator_id, jobs, core, ended } = self;
        Self {
            coordinator_id: *coordinator_id,
            jobs: jobs.clone(),
            core: core.take(),
            ended: ended.clone(),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A coordinator's failure was, or will be, reported to the callers of its transactions.
        let _ = self.join();
    }
}
