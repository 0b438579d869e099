//! The guests of a port that `tokio` serves: each has a task, and its place until it is admitted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_security::{Guests, Rules, Seating, Source};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The guests of one port. Clones share them.
#[derive(Clone)]
pub(crate) struct Hall(Arc<HallShared>);

struct HallShared {
    env: Env,
    state: Mutex<State>,
    /// A guest has left.
    left: Notify,
}

struct State {
    guests: Guests<u64>,
    tasks: BTreeMap<u64, AbortHandle>,
    next: u64,
}

impl Hall {
    pub(crate) fn new(rules: Rules, env: &Env) -> Self {
        let state = State { guests: Guests::new(rules), tasks: BTreeMap::new(), next: 0 };
        Self(Arc::new(HallShared {
            env: env.clone(),
            state: Mutex::new(state),
            left: Notify::new(),
        }))
    }

    /// Waits for a place for a connection from `source`; `true` if another guest lost it.
    pub(crate) async fn enter(&self, source: Source) -> (GuestPlace, bool) {
        loop {
            // Another block, so that the lock is not held while this waits.
            let wait = {
                let (mut state, now) = (self.0.lock(), self.0.now());
                match state.guests.place(source, now) {
                    Seating::Free => return (self.seat(&mut state, source, now), false),
                    Seating::Instead(other) => {
                        state.guests.leave(other);
                        state.tasks.remove(&other).iter().for_each(AbortHandle::abort);
                        return (self.seat(&mut state, source, now), true);
                    }
                    Seating::Wait(time) => time,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.0.left.notified() => {}
            }
        }
    }

    fn seat(&self, state: &mut State, source: Source, now: Duration) -> GuestPlace {
        let id = state.next;
        state.next += 1;
        state.guests.enter(id, source, now);
        GuestPlace { hall: self.clone(), id }
    }

    /// Names the task of the guest with this place, which is ended when it loses the place.
    pub(crate) fn serve(&self, guest: u64, task: AbortHandle) {
        self.0.lock().tasks.insert(guest, task);
    }

    /// Ends the tasks of all guests.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut self.0.lock().tasks);
        tasks.values().for_each(AbortHandle::abort);
    }
}

impl HallShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.env.now().0)
    }
}

/// A guest's place. Dropping it says that the guest was admitted, or is gone.
pub(crate) struct GuestPlace {
    hall: Hall,
    pub(crate) id: u64,
}

impl GuestPlace {
    /// Keeps the place for this guest, which has begun to speak, for `time` from now on.
    pub(crate) fn keep(&self, time: Duration) {
        let shared = &self.hall.0;
        shared.lock().guests.keep(self.id, shared.now() + time);
    }
}

impl Drop for GuestPlace {
    fn drop(&mut self) {
        let mut state = self.hall.0.lock();
        state.tasks.remove(&self.id);
        if state.guests.leave(self.id) {
            self.hall.0.left.notify_one();
        }
    }
}
