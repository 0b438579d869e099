//! Asking the authority on behalf of coordinators, which must not wait for it.
//!
//! # What it is
//! A coordinator that wants to know or change what the cluster has agreed on asks its process's
//! [`Council`] and gets the answer as a future. An authority in this process answers at once, on
//! the spot. One that takes a round trip is asked by a thread that the council has for that, one
//! question after the other, while the coordinator goes on with other tasks.
//!
//! # What it is not
//! For control threads: those may wait, and ask [`Council::authority`] themselves.

use std::io;
use std::sync::Arc;

use async_channel::Sender;
use lotus_fabric::env::Env;
use lotus_router::Authority;

/// Something to be done where waiting is allowed.
type Errand = Box<dyn FnOnce() + Send>;

pub(crate) struct Council {
    authority: Arc<dyn Authority>,
    /// To the thread that may wait, where there is one.
    errands: Option<Sender<Errand>>,
}

/// The thread that asks has ended: this process is coming to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Adjourned;

impl Council {
    /// Around an authority that answers at once.
    pub(crate) fn here(authority: Arc<dyn Authority>) -> Self {
        Self { authority, errands: None }
    }

    /// Around an authority that takes a round trip.
    ///
    /// # Errors
    /// The operating system has no thread to give.
    pub(crate) fn elsewhere(authority: Arc<dyn Authority>, env: &Env) -> io::Result<Self> {
        let (errands, inbox) = async_channel::unbounded::<Errand>();
        env.spawn("lotus-council", move || {
            while let Ok(errand) = inbox.recv_blocking() {
                errand();
            }
        })?;
        Ok(Self { authority, errands: Some(errands) })
    }

    /// For whoever may wait.
    pub(crate) fn authority(&self) -> &dyn Authority {
        &*self.authority
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
