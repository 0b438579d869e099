//! An embedded cluster wrapped by code that observes or interferes while tasks run.
//!
//! [`Wrapper`] states the differences: how tasks run, their host, and the size of tables. All other
//! [`Deployment`] calls are passed on to the cluster. The wrapper measures nothing.

use lotus::TableSpec;
use lotus_fabric::ids::TableId;

use crate::contract::audit::Check;
use crate::contract::deployment::{
    Caches, DeployError, Deployment, Host, Memory, Ownership, Replay, RowSource, RowVisitor,
    TaskPlace, Traffic,
};
use crate::engines::lotus::Embedded;

/// A wrapper of an embedded cluster. Every implementation is a [`Deployment`].
pub trait Wrapper {
    /// A task's view of its coordinator.
    type Host: Host + 'static;

    /// The wrapped cluster.
    fn embedded(&self) -> &Embedded;

    /// The wrapped cluster, mutably.
    fn embedded_mut(&mut self) -> &mut Embedded;

    /// Runs tasks as [`Deployment::run`] does.
    ///
    /// # Errors
    /// As [`Deployment::run`].
    fn run_tasks<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static;

    /// Specification of the table to create when `asked` is requested.
    fn spec(&self, asked: TableSpec) -> TableSpec {
        asked
    }
}

impl<W: Wrapper> Deployment for W {
    type Host = W::Host;

    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError> {
        let spec = self.spec(spec);
        self.embedded_mut().create_table(spec)
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        self.embedded_mut().load(table, rows, row)
    }

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.run_tasks(tasks, task)
    }

    fn traffic(&self) -> Traffic {
        self.embedded().traffic()
    }

    fn caches(&self) -> Caches {
        self.embedded().caches()
    }

    fn ownership(&self) -> Ownership {
        self.embedded().ownership()
    }

    fn memory(&self) -> Memory {
        self.embedded().memory()
    }

    fn memory_loaded(&self) -> Vec<u64> {
        self.embedded().memory_loaded()
    }

    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        self.embedded().utilisation()
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        self.embedded_mut().scan(table, visit)
    }

    fn scan_ordered(
        &mut self,
        table: TableId,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DeployError> {
        self.embedded_mut().scan_ordered(table, visit)
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        self.embedded_mut().audit()
    }

    fn record_verbs(&mut self) {
        self.embedded_mut().record_verbs();
    }

    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError> {
        self.embedded_mut().replay(secs)
    }
}
