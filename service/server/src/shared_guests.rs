//! The guests of a port served by `tokio`: a guest has a task, and a place until it is admitted.
//!
//! # Waiting
//! A connection from an address with its full share of places waits in a line ([`Lines`]), while
//! further connections are accepted; connections in excess are to be closed. A connection from an
//! address below its share waits only if no place is free: then no connection is accepted, and the
//! system's queue holds the rest. The caller owns the lines, so the lines and the waiting
//! connections end with the accepting task.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_security::{Guests, Lines, NextInLine, PlaceDecision, Rules, Source};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The guests of one port, shared by all clones.
#[derive(Clone)]
pub(crate) struct SharedGuests(Arc<GuestsState>);

struct GuestsState {
    env: Env,
    state: Mutex<State>,
    /// Notified when a guest has left.
    left: Notify,
}

struct State {
    guests: Guests<u64>,
    tasks: BTreeMap<u64, AbortHandle>,
    next: u64,
}

impl SharedGuests {
    pub(crate) fn new(rules: Rules, env: &Env) -> Self {
        let state = State { guests: Guests::new(rules), tasks: BTreeMap::new(), next: 0 };
        Self(Arc::new(GuestsState {
            env: env.clone(),
            state: Mutex::new(state),
            left: Notify::new(),
        }))
    }

    /// Accepts connections until one has a place or is surplus; `accept` may be dropped while it
    /// waits.
    ///
    /// # Errors
    /// Errors of `accept`.
    pub(crate) async fn receive<T, A>(
        &self,
        lines: &mut Lines<T>,
        accept: impl Fn() -> A,
    ) -> io::Result<Received<T>>
    where
        A: Future<Output = io::Result<(Source, T)>>,
    {
        loop {
            let wait = match self.attend(lines) {
                Ok(received) => return Ok(received),
                Err(wait) => wait,
            };
            let (source, newcomer) = tokio::select! {
                accepted = accept() => accepted?,
                () = tokio::time::sleep(wait) => continue,
                () = self.0.left.notified() => continue,
            };
            if lines.has(source) || self.0.lock().guests.has_its_share(source) {
                lines.join(source, newcomer);
                continue;
            }
            let (place, in_anothers) = self.enter(source).await;
            return Ok(Received::Guest { newcomer, place, in_anothers });
        }
    }

    /// Takes the next connection out of the lines: as a guest, or as surplus. The error is the time
    /// until a guest may be replaced; a leaving guest makes room earlier.
    fn attend<T>(&self, lines: &mut Lines<T>) -> Result<Received<T>, Duration> {
        let (mut state, now) = (self.0.lock(), self.0.now());
        match lines.turn(&state.guests, now) {
            NextInLine::Now { source, newcomer, instead } => {
                instead.iter().for_each(|other| state.close(*other));
                let (place, in_anothers) =
                    (self.take_place(&mut state, source, now), instead.is_some());
                Ok(Received::Guest { newcomer, place, in_anothers })
            }
            NextInLine::Later(wait) => {
                lines.surplus(&state.guests).map(Received::Surplus).ok_or(wait)
            }
        }
    }

    /// Waits for a place for a connection from `source`; `true` if another guest lost the place.
    async fn enter(&self, source: Source) -> (GuestPlace, bool) {
        loop {
            // A separate block: the lock is not held during the wait.
            let wait = {
                let (mut state, now) = (self.0.lock(), self.0.now());
                match state.guests.place(source, now) {
                    PlaceDecision::Free => {
                        return (self.take_place(&mut state, source, now), false);
                    }
                    PlaceDecision::Instead(other) => {
                        state.close(other);
                        return (self.take_place(&mut state, source, now), true);
                    }
                    PlaceDecision::Wait(time) => time,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.0.left.notified() => {}
            }
        }
    }

    fn take_place(&self, state: &mut State, source: Source, now: Duration) -> GuestPlace {
        let id = state.next;
        state.next += 1;
        state.guests.enter(id, source, now);
        GuestPlace { guests: self.clone(), id }
    }

    /// Records the task of the guest with this place; the task is ended when the guest loses the
    /// place.
    pub(crate) fn serve(&self, guest: u64, task: AbortHandle) {
        self.0.lock().tasks.insert(guest, task);
    }

    /// Ends the tasks of all guests.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut self.0.lock().tasks);
        tasks.values().for_each(AbortHandle::abort);
    }
}

impl State {
    /// Ends a guest and its connection.
    fn close(&mut self, guest: u64) {
        self.guests.leave(guest);
        self.tasks.remove(&guest).iter().for_each(AbortHandle::abort);
    }
}

impl GuestsState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.env.now().0)
    }
}

/// An arrived connection, with a place or as surplus.
pub(crate) enum Received<T> {
    /// The connection has a place; `in_anothers` if a guest was closed to free the place.
    Guest { newcomer: T, place: GuestPlace, in_anothers: bool },
    /// The lines hold too many connections for the free places: this connection is to be closed.
    Surplus(T),
}

/// A guest's place. Dropped when the guest is admitted or gone.
pub(crate) struct GuestPlace {
    guests: SharedGuests,
    pub(crate) id: u64,
}

impl GuestPlace {
    /// Keeps the place for `time` from now on, for a guest that has begun to speak.
    pub(crate) fn keep(&self, time: Duration) {
        let shared = &self.guests.0;
        shared.lock().guests.keep(self.id, shared.now() + time);
    }
}

impl Drop for GuestPlace {
    fn drop(&mut self) {
        let mut state = self.guests.0.lock();
        state.tasks.remove(&self.id);
        if state.guests.leave(self.id) {
            self.guests.0.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::net::IpAddr;

    /// A port at which connections arrive, each with its number.
    #[derive(Default)]
    struct Arrivals(Mutex<VecDeque<(Source, u32)>>, Notify);

    impl Arrivals {
        fn come(&self, last: u8, newcomers: impl IntoIterator<Item = u32>) {
            let source = IpAddr::from([127, 0, 0, last]).into();
            let newcomers = newcomers.into_iter().map(|newcomer| (source, newcomer));
            self.0.lock().unwrap().extend(newcomers);
            self.1.notify_one();
        }

        async fn accept(&self) -> io::Result<(Source, u32)> {
            loop {
                let next = self.0.lock().unwrap().pop_front();
                match next {
                    Some(next) => return Ok(next),
                    None => self.1.notified().await,
                }
            }
        }
    }

    /// An acceptor, and the guests of its port.
    struct Scene {
        shared_guests: SharedGuests,
        lines: Lines<u32>,
        arrivals: Arrivals,
        guests: BTreeMap<u32, GuestPlace>,
    }

    impl Scene {
        /// Receives all that can be now: numbers of new guests, and of those to be closed.
        async fn look(&mut self) -> (Vec<u32>, Vec<u32>) {
            let (mut entered, mut closed) = (Vec::new(), Vec::new());
            loop {
                let received =
                    self.shared_guests.receive(&mut self.lines, || self.arrivals.accept());
                tokio::select! {
                    biased;
                    received = received => match received.unwrap() {
                        Received::Guest { newcomer, place, in_anothers } => {
                            assert!(!in_anothers, "all are in their grace");
                            self.guests.insert(newcomer, place);
                            entered.push(newcomer);
                        }
                        Received::Surplus(newcomer) => closed.push(newcomer),
                    },
                    () = std::future::ready(()) => return (entered, closed),
                }
            }
        }
    }

    /// The acceptor once waited with the first that was too many of its address, although there
    /// were places for those behind it.
    #[test]
    fn one_address_holds_up_no_other_while_there_are_places() {
        let rules = Rules { places: 8, of_one: 6, grace: Duration::from_secs(3600) };
        let mut scene = Scene {
            shared_guests: SharedGuests::new(rules, &Env::real(0)),
            lines: Lines::default(),
            arrivals: Arrivals::default(),
            guests: BTreeMap::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            scene.arrivals.come(1, 0..7);
            assert_eq!(scene.look().await, ((0..6).collect(), vec![]));
            // The seventh waits in a free place, and the eighth in the other one, until a guest of
            // another address comes; the ninth finds none.
            scene.arrivals.come(1, 7..9);
            scene.arrivals.come(2, 20..21);
            assert_eq!(scene.look().await, (vec![20], vec![8, 7]));
            // The one that waits still has its turn before a later one, once a guest has left.
            scene.arrivals.come(1, 9..10);
            scene.guests.remove(&3);
            assert_eq!(scene.look().await, (vec![6], vec![]));
            // The last place is another address's, and then no more can wait.
            scene.arrivals.come(2, 21..22);
            scene.arrivals.come(1, 10..11);
            assert_eq!(scene.look().await, (vec![21], vec![9, 10]));
        });
    }
}
