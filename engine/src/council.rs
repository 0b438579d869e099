//! Asking the authority on behalf of coordinators, which must not wait for it.
//!
//! # What it is
//! A coordinator that wants to know or change what the cluster has agreed on asks its process's
//! [`Council`] and gets the answer as a future. An authority in this process answers at once, on
//! the spot. One that takes a round trip is asked by a thread that the council has for that, one
//! question after the other, while the coordinator goes on with other tasks. In a simulation a
//! [courier](lotus_fabric::machines::Courier) says how long each question takes, and whether it and
//! its answer arrive.
//!
//! # What it is not
//! For control threads: those may wait, and ask [`Council::authority`] themselves.

use std::io;
use std::sync::Arc;

use async_channel::Sender;
use lotus_fabric::env::Env;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Courier, Errand};
use lotus_router::authority::{Version, Versioned};
use lotus_router::{Authority, AuthorityError};

/// Something to be done where waiting is allowed.
type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct Council {
    authority: Arc<dyn Authority>,
    /// To the thread that may wait, where there is one.
    errands: Option<Sender<Work>>,
    /// How far away the authority is, where that is modelled.
    courier: Option<Arc<dyn Courier>>,
}

/// The thread that asks has ended: this process is coming to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Adjourned;

impl Council {
    /// Around an authority that answers at once, unless a courier has to go there.
    pub(crate) fn here(authority: Arc<dyn Authority>, courier: Option<Arc<dyn Courier>>) -> Self {
        Self { authority, errands: None, courier }
    }

    /// Around an authority that takes a round trip.
    ///
    /// # Errors
    /// The operating system has no thread to give.
    pub(crate) fn elsewhere(authority: Arc<dyn Authority>, env: &Env) -> io::Result<Self> {
        let (errands, inbox) = async_channel::unbounded::<Work>();
        env.spawn("lotus-council", move || {
            while let Ok(errand) = inbox.recv_blocking() {
                errand();
            }
        })?;
        Ok(Self { authority, errands: Some(errands), courier: None })
    }

    /// For whoever may wait.
    pub(crate) fn authority(&self) -> &dyn Authority {
        &*self.authority
    }

    /// The authority as control threads of a node reach it: on the spot, but no more certainly than
    /// its coordinators do.
    pub(crate) fn reached_by(&self, node: NodeId) -> Reached<'_> {
        Reached { council: self, node }
    }

    /// What the authority answers to one question of a node. Anything may happen before it is asked
    /// and before the answer is there.
    ///
    /// # Errors
    /// Those of the question, and [`AuthorityError::Unavailable`] if this process comes to its end.
    pub(crate) async fn consult<T: Send + 'static>(
        &self,
        node: NodeId,
        executor: &Handle,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError> + Send + 'static,
    ) -> Result<T, AuthorityError> {
        let Some(courier) = &self.courier else {
            return self.ask(question).await.unwrap_or(Err(AuthorityError::Unavailable));
        };
        let Errand { there, arrives, back, answered } = courier.carry(node);
        executor.sleep(there).await;
        let answer = arrives.then(|| question(&*self.authority));
        executor.sleep(back).await;
        answer.filter(|_| answered).unwrap_or(Err(AuthorityError::Unavailable))
    }

    /// What the authority answers.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Authority) -> T + Send + 'static,
    ) -> Result<T, Adjourned> {
        let authority = Arc::clone(&self.authority);
        self.apart(move || question(&*authority)).await
    }

    /// Has something done that may take as long as a round trip.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Adjourned> {
        let Some(errands) = &self.errands else { return Ok(work()) };
        let (reply, answer) = async_channel::bounded(1);
        let errand = Box::new(move || {
            // Whoever asked may have ended.
            let _ = reply.try_send(work());
        });
        errands.try_send(errand).map_err(|_| Adjourned)?;
        answer.recv().await.map_err(|_| Adjourned)
    }
}

/// See [`Council::reached_by`].
pub(crate) struct Reached<'a> {
    council: &'a Council,
    node: NodeId,
}

impl Reached<'_> {
    fn ask<T>(
        &self,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError>,
    ) -> Result<T, AuthorityError> {
        let errand = self.council.courier.as_ref().map(|courier| courier.carry(self.node));
        let (arrives, answered) = errand.map_or((true, true), |it| (it.arrives, it.answered));
        let answer = arrives.then(|| question(&*self.council.authority));
        answer.filter(|_| answered).unwrap_or(Err(AuthorityError::Unavailable))
    }
}

impl Authority for Reached<'_> {
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
