//! Losses of the memory node's memory, as the lanes of a trial see them: each lane abandons the
//! memory node, and resumes when the memory is back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::exec::Handle;
use lotus_fabric::ids::NodeId;
use lotus_locks::word::Claimant;
use lotus_locks::{Client, LockSystem, NotHeld};

/// Time between two checks of a lane.
const LOOK: Duration = Duration::from_micros(20);

/// Loss state shared by all lanes.
#[derive(Debug, Default)]
pub(super) struct Losses {
    state: Mutex<LossState>,
}

#[derive(Debug, Default)]
struct LossState {
    /// Number of noticed losses, and of ended losses.
    begun: u32,
    ended: u32,
    /// Lives of the nodes whose lanes have abandoned the memory node since; one entry for each
    /// lane.
    abandoned: Vec<Claimant>,
}

impl Losses {
    fn state(&self) -> MutexGuard<'_, LossState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the loss of the memory.
    pub(super) fn begin(&self) {
        let state = &mut *self.state();
        state.begun += 1;
        state.abandoned.clear();
    }

    /// Records the return of the memory, zeroed.
    pub(super) fn end(&self) {
        let state = &mut *self.state();
        state.ended = state.begun;
    }

    /// Number of ended losses.
    pub(super) fn ended(&self) -> u32 {
        self.state().ended
    }

    /// Whether a loss has been noticed and has not ended.
    pub(super) fn is_on(&self) -> bool {
        let state = self.state();
        state.begun != state.ended
    }

    /// Number of lanes of a node in this life that have abandoned the memory node.
    pub(super) fn abandoned_by(&self, life: Claimant) -> usize {
        self.state().abandoned.iter().filter(|other| **other == life).count()
    }

    /// Takes part in losses, for one lane.
    pub(super) async fn follow<S: LockSystem>(
        &self,
        client: Client<S>,
        executor: Handle,
        life: Claimant,
        memory: NodeId,
    ) {
        loop {
            executor.sleep(LOOK).await;
            if !self.is_on() {
                continue;
            }
            let loss = self.state().begun;
            if client.abandon(memory).await == Err(NotHeld::Expelled) {
                return;
            }
            self.state().abandoned.push(life);
            while self.state().ended < loss {
                executor.sleep(LOOK).await;
            }
            client.resume(memory, loss);
        }
    }
}
