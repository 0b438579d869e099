//! Life of a coordinator: start, slots and chores.

use crate::api::coordinator_id::CoordinatorId;
use crate::membership::{floors, members};
use crate::node::coordinator::Coordinator;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::threads::home::Name;
use crate::node::threads::tasks::beside;
use crate::shards::{balance, hand_over, orders};
use crate::space::lending;
use crate::txn::session::Job;
use crate::txn::slot::Slot;
use crate::upkeep::purge;
use async_channel::{Receiver, Sender};
use lotus_fabric::exec::Executor;
use lotus_fabric::machines::Program;
use lotus_fabric::transport::FabricError;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// The program of a coordinator's core. `ending` is dropped when the coordinator has ended.
pub(crate) fn program(
    shared: Arc<Shared>,
    node: Arc<ComputeNode>,
    thread: usize,
    jobs: Receiver<Job>,
    ready: Sender<Result<(), FabricError>>,
    ending: Sender<()>,
) -> Program {
    Box::new(move |executor| {
        let life = run(shared, node, thread, jobs, &ready, executor);
        Box::pin(async move {
            life.await;
            drop(ending);
        })
    })
}

/// Starts a coordinator on its core's executor and reports the outcome of the start through
/// `ready`. The future takes jobs until their channel is closed, and is done when every slot is
/// idle.
///
/// A panic of the coordinator (not of a transaction's own code, whose panics are caught where the
/// code runs) leaves locks and writes in doubt, so it expels the whole node (H21). The loss of the
/// core has the same effect.
fn run(
    shared: Arc<Shared>,
    node: Arc<ComputeNode>,
    thread: usize,
    jobs: Receiver<Job>,
    ready: &Sender<Result<(), FabricError>>,
    executor: &mut Executor,
) -> impl Future<Output = ()> + use<> {
    if shared.has_threads {
        let coordinator_id = CoordinatorId { compute_node: node.index, thread };
        Name::of(Arc::as_ptr(&shared)).settle_here(coordinator_id);
    }
    let guard = ExpelOnLoss { node: Arc::clone(&node), jobs: jobs.clone(), armed: true };
    let (started, outcome) = match Coordinator::new(shared, node, thread, executor) {
        Ok(coordinator) => (Some(coordinator), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // The starter waits for this message; if it has given up, the job channel is closed as well.
    let _ = ready.try_send(outcome);
    let running = started.map(|coordinator| {
        hand_over::serve(&coordinator);
        orders::serve(&coordinator);
        lending::serve(&coordinator);
        (start_slots(&coordinator, &jobs), coordinator)
    });
    async move {
        if let Some((all_idle, coordinator)) = running {
            let ended = async {
                until_idle(&coordinator, &all_idle, &guard.jobs).await;
                settle(&coordinator, coordinator.shared.config.lock_timeout).await;
            };
            // Boxed separately: a single future of all chores would fill the stack of a thread.
            let chores: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
                Box::pin(floors::keep(&coordinator)),
                Box::pin(hand_over::keep(&coordinator)),
                Box::pin(orders::keep(&coordinator)),
                Box::pin(balance::keep(&coordinator)),
                Box::pin(members::keep(&coordinator)),
                Box::pin(purge::keep(Rc::clone(&coordinator))),
            ];
            let life = beside(all_of(chores), ended);
            if !unless_killed(&coordinator.node, life).await {
                return;
            }
        }
        guard.disarm();
    }
}

/// Runs `life`. Returns true if `life` ended by itself, false if the node was killed, which stops
/// everything on its cores.
async fn unless_killed(node: &ComputeNode, life: impl Future<Output = ()>) -> bool {
    let (mut life, mut killed) = (pin!(life), pin!(node.killed()));
    poll_fn(|cx| match killed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => life.as_mut().poll(cx).map(|()| true),
    })
    .await
}

/// Runs futures side by side until all have ended.
async fn all_of(mut works: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        works.retain_mut(|work| work.as_mut().poll(cx).is_pending());
        if works.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn start_slots(coordinator: &Rc<Coordinator>, jobs: &Receiver<Job>) -> Receiver<()> {
    let (serving, all_idle) = async_channel::bounded(1);
    let coroutines = coordinator.shared.config.coroutines;
    for coroutine in 0..coroutines {
        let number = (coordinator.thread * coroutines + coroutine) as u16;
        let slot = Slot::new(Rc::clone(coordinator), coroutine, number);
        let (jobs, serving) = (jobs.clone(), serving.clone());
        let task = coordinator.executor.spawn(async move {
            slot.serve(jobs).await;
            drop(serving);
        });
        coordinator.slot_tasks.borrow_mut().push(task);
    }
    all_idle
}

/// Waits until every slot has ended. Once the cluster is stopped, the slots get `stop_timeout` to
/// end; then the remaining jobs are dropped.
async fn until_idle(coordinator: &Coordinator, all_idle: &Receiver<()>, jobs: &Receiver<Job>) {
    let shared = &coordinator.shared;
    let mut bounding = pin!(async {
        // Nothing is ever sent through this channel, or through `all_idle`: they are closed.
        let _ = shared.stopping.1.recv().await;
        coordinator.executor.sleep(shared.config.stop_timeout).await;
        debug_assert!(shared.stopping.1.is_closed(), "I331: jobs are dropped when all is stopped");
        let dropped = coordinator.cancel().into_iter().map(|job| format!("{job} was dropped"));
        shared.unended.lock().unwrap_or_else(PoisonError::into_inner).extend(dropped);
        while jobs.try_recv().is_ok() {}
    });
    let (mut idle, mut is_over) = (pin!(all_idle.recv()), false);
    poll_fn(|cx| {
        if idle.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        is_over = is_over || bounding.as_mut().poll(cx).is_ready();
        Poll::Pending
    })
    .await;
}

struct ExpelOnLoss {
    node: Arc<ComputeNode>,
    jobs: Receiver<Job>,
    armed: bool,
}

impl ExpelOnLoss {
    /// Records the orderly end of the coordinator.
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for ExpelOnLoss {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.node.expel();
        // Callers that wait for a job to be taken or answered must not wait for ever.
        self.jobs.close();
        while self.jobs.try_recv().is_ok() {}
        for orders in [&self.node.orders.1, &self.node.passed_on.1] {
            orders.close();
            while orders.try_recv().is_ok() {}
        }
    }
}

/// Waits for work under way for up to `patience`: commits to be visible on all replicas, ends of
/// remote locks to be acknowledged.
///
/// Nothing is purged or trimmed before a client's next transaction begins (I311). Does not wait for
/// returning memory nodes to be filled: filling may take long, and nothing reads a copy before the
/// copy is whole.
pub(crate) async fn settle(coordinator: &Coordinator, patience: Duration) {
    coordinator.settled.set(true);
    let executor = &coordinator.executor;
    let deadline = executor.now().after(patience);
    while !is_settled(coordinator).await && executor.now() < deadline {
        executor.sleep(Duration::from_micros(50)).await;
    }
}

async fn is_settled(coordinator: &Coordinator) -> bool {
    coordinator.locks.is_settled()
        && coordinator.at_work.get() == 0
        && members::is_settled(&coordinator.shared).await
}
