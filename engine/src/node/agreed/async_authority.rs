//! Asynchronous access to the authority for coordinators, which must not block on it.
//!
//! # What it is
//! A coordinator reads or changes a value of the authority by asking its process's
//! [`AsyncAuthority`], and gets the answer as a future. An authority in this process answers
//! immediately. For an authority a round trip away, a thread asks the questions in sequence, while
//! the coordinator goes on with other tasks. In a simulation a [delivery
//! model](lotus_fabric::machines::DeliveryModel) determines the delay of each question, and whether
//! question and answer arrive.
//!
//! # What it is not
//! For control threads: control threads may block, and use [`AsyncAuthority::authority`] directly.

use std::io;
use std::sync::Arc;

use async_channel::Sender;
use lotus_authority::{Authority, AuthorityError};
use lotus_authority::{Version, Versioned};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{DeliveryModel, RequestDelivery};

/// Work for the blocking thread.
type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct AsyncAuthority {
    authority: Arc<dyn Authority>,
    /// Channel to the blocking thread; `None` for an authority in this process.
    jobs: Option<Sender<Work>>,
    /// Model of the way to the authority, in a simulation.
    delivery_model: Option<Arc<dyn DeliveryModel>>,
}

/// Error: the thread that asks the authority has ended, because this process is ending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AuthorityThreadEnded;

impl AsyncAuthority {
    /// Access to an authority that answers at once, or over the simulated way of `delivery_model`.
    pub(crate) fn here(
        authority: Arc<dyn Authority>,
        delivery_model: Option<Arc<dyn DeliveryModel>>,
    ) -> Self {
        Self { authority, jobs: None, delivery_model }
    }

    /// Access to an authority that takes a round trip.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn elsewhere(authority: Arc<dyn Authority>, env: &Env) -> io::Result<Self> {
        let (jobs, inbox) = async_channel::unbounded::<Work>();
        env.spawn("lotus-agreement", move || {
            while let Ok(job) = inbox.recv_blocking() {
                job();
            }
        })?;
        Ok(Self { authority, jobs: Some(jobs), delivery_model: None })
    }

    /// The authority, for threads that may block.
    pub(crate) fn authority(&self) -> &dyn Authority {
        &*self.authority
    }

    /// The authority from the view of a node's control threads: without delay, but questions and
    /// answers get lost as for the node's coordinators.
    pub(crate) fn reached_by(&self, node: NodeId) -> NodeAuthority<'_> {
        NodeAuthority { async_authority: self, node }
    }

    /// Asks one question on behalf of a node and returns the answer. Other tasks may run before the
    /// question is asked and before the answer arrives.
    ///
    /// # Errors
    /// The question's errors, and [`AuthorityError::Unavailable`] if this process is ending.
    pub(crate) async fn consult<T: Send + 'static>(
        &self,
        node: NodeId,
        executor: &Handle,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError> + Send + 'static,
    ) -> Result<T, AuthorityError> {
        let Some(delivery_model) = &self.delivery_model else {
            return self.ask(question).await.unwrap_or(Err(AuthorityError::Unavailable));
        };
        let RequestDelivery { there, arrives, back, answered } = delivery_model.carry(node);
        executor.sleep(there).await;
        let answer = arrives.then(|| question(&*self.authority));
        executor.sleep(back).await;
        answer.filter(|_| answered).unwrap_or(Err(AuthorityError::Unavailable))
    }

    /// Asks the authority a question and returns the answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Authority) -> T + Send + 'static,
    ) -> Result<T, AuthorityThreadEnded> {
        let authority = Arc::clone(&self.authority);
        self.apart(move || question(&*authority)).await
    }

    /// Runs `work`, which may block for a round trip, on a thread that may block.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AuthorityThreadEnded> {
        let Some(jobs) = &self.jobs else { return Ok(work()) };
        let (reply, answer) = async_channel::bounded(1);
        let job = Box::new(move || {
            // The asker may have ended.
            let _ = reply.try_send(work());
        });
        jobs.try_send(job).map_err(|_| AuthorityThreadEnded)?;
        answer.recv().await.map_err(|_| AuthorityThreadEnded)
    }
}

/// Authority returned by [`AsyncAuthority::reached_by`].
pub(crate) struct NodeAuthority<'a> {
    async_authority: &'a AsyncAuthority,
    node: NodeId,
}

impl NodeAuthority<'_> {
    fn ask<T>(
        &self,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError>,
    ) -> Result<T, AuthorityError> {
        let delivery = self
            .async_authority
            .delivery_model
            .as_ref()
            .map(|delivery_model| delivery_model.carry(self.node));
        let (arrives, answered) = delivery.map_or((true, true), |it| (it.arrives, it.answered));
        let answer = arrives.then(|| question(&*self.async_authority.authority));
        answer.filter(|_| answered).unwrap_or(Err(AuthorityError::Unavailable))
    }
}

impl Authority for NodeAuthority<'_> {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.ask(|authority| authority.read(key))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.ask(|authority| authority.compare_and_swap(key, expected, value))
    }
}
