//! Detection of unresponsive owners, with the states of [`crate::suspicion`].

use std::rc::{Rc, Weak};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Handle;

use super::{Core, OwnerState};
use crate::server::LockHost;
use crate::service::{LockRoutes, Suspicion};
use crate::suspicion::{Sent, SuspicionVerdict};

impl<H: LockHost + LockRoutes + 'static> Core<H> {
    /// Records that a request has just been sent to `peer`.
    #[inline]
    pub(super) fn asks(self: &Rc<Self>, peer: &OwnerState) -> Sent {
        let Some(least) = self.tolerance else { return Sent::default() };
        // The RPC call has just read the clock.
        let now = self.rpc.lane().executor().recent();
        let mut silence = peer.silence.borrow_mut();
        // For peers that were already silent an earlier look is scheduled.
        self.look_at(now.after(silence.tolerance(least)));
        silence.ask(now)
    }

    /// Records that a request was answered.
    #[inline]
    pub(super) fn hears(&self, peer: &OwnerState, sent: Sent) {
        if self.tolerance.is_some() {
            let now = self.rpc.lane().executor().now();
            let suspected = peer.silence.borrow_mut().hear(sent, now);
            self.trust_again(peer, suspected);
        }
    }

    /// If `peer` was `suspected`, records the end of the suspicion.
    pub(super) fn trust_again(&self, peer: &OwnerState, suspected: bool) {
        if suspected {
            self.suspects.set(self.suspects.get() - 1);
            self.host.suspect(peer.at.node, Suspicion::Ends);
        }
    }

    /// Schedules a look at the silences by `due`, when a silence may have lasted too long.
    fn look_at(self: &Rc<Self>, due: Nanos) {
        if due >= self.next_look.get() {
            return;
        }
        self.next_look.set(due);
        let executor = self.rpc.lane().executor();
        let started = || executor.spawn(watch(Rc::downgrade(self), executor.clone()));
        let watch = self.watch.get().unwrap_or_else(started);
        self.watch.set(Some(watch));
        executor.wake_at(due, watch);
    }

    /// Suspects owners that have been silent for too long, and wakes the tasks waiting for their
    /// answers.
    fn judge(self: &Rc<Self>, now: Nanos, least: Duration) {
        for peer in self.peers.borrow().iter().filter(|peer| !peer.lost.get()) {
            let verdict = peer.silence.borrow_mut().judge(now, least);
            match verdict {
                SuspicionVerdict::Rest => {}
                SuspicionVerdict::LookAgain(due) => self.look_at(due),
                SuspicionVerdict::Suspect => {
                    self.suspects.set(self.suspects.get() + 1);
                    self.host.suspect(peer.at.node, Suspicion::Begins);
                    self.rpc.wake_waiting(peer.at);
                    self.wake_waits();
                    let executor = self.rpc.lane().executor();
                    peer.sender.get().into_iter().for_each(|sender| executor.wake(sender));
                }
            }
        }
    }
}

/// Checks for silent owners, for as long as the service exists. If woken early, by the timer of an
/// ended silence, the task goes back to sleep without setting a timer.
async fn watch<H: LockHost + LockRoutes + 'static>(core: Weak<Core<H>>, executor: Handle) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let (now, due) = (executor.now(), core.next_look.get());
        if let Some(least) = core.tolerance.filter(|_| now >= due) {
            core.next_look.set(Nanos::NEVER);
            if now.since(due) > least / 2 {
                // The coordinator itself did not run.
                core.peers.borrow().iter().for_each(|peer| peer.silence.borrow_mut().pardon(now));
            }
            // Answers that arrived meanwhile are handled first.
            executor.yield_now().await;
            core.judge(now, least);
        }
        drop(core);
        executor.suspend().await;
    }
}
