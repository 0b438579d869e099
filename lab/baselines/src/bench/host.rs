//! A task's view of its thread.

use std::cell::Cell;
use std::rc::Rc;

use lotus_benchmarks::deployment::{DeployError, Host};
use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use xxhash_rust::xxh3::xxh3_64;

use crate::store::attempt::{Protocol, Session};
use crate::store::failed;
use crate::store::thread_context::ThreadContext;

/// A task of a thread.
pub(crate) struct TaskHost<S: Protocol> {
    context: Rc<ThreadContext<S>>,
    task: usize,
    taken: Cell<bool>,
    /// The clients' clock: shared by all threads.
    clock: Env,
}

impl<S: Protocol> TaskHost<S> {
    pub(super) fn new(context: Rc<ThreadContext<S>>, task: usize, clock: Env) -> Self {
        Self { context, task, taken: Cell::new(false), clock }
    }
}

impl<S: Protocol> Host for TaskHost<S> {
    type Engine = Session<S>;

    fn engine(&self) -> Result<Session<S>, DeployError> {
        match self.taken.replace(true) {
            false => Ok(Session::new(Rc::clone(&self.context), self.task)),
            true => Err(failed("the task has its engine")),
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    async fn sleep_until(&self, ns: u64) {
        self.context.lane.executor().sleep_until(Nanos(ns)).await;
    }

    /// A compute node by hash: locks have no owners, so any node will do.
    fn owner(&self, table: TableId, key: &PrimaryKey) -> usize {
        let hash = xxh3_64(key.as_bytes()) ^ u64::from(table.0);
        (hash % u64::from(self.context.store.cns)) as usize
    }
}
