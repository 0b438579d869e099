//! Bounds of how often a request is passed.

use std::cell::RefCell;
use std::rc::Rc;

use lotus_locks::systems::ShiftLock;
use lotus_locks::{Limits, Mode, Recovery};

use super::lane::{Place, lock, on_lane_of};

const WRITERS: usize = 20;
const READERS: usize = 6;
const ROUNDS: usize = 30;

/// Clients as they have entered the lock, one after another: a reader's number, or a writer.
#[derive(Default)]
struct Log {
    entered: Vec<Option<usize>>,
    /// Largest number of writers that entered while one reader waited.
    passed_reader: usize,
    /// Largest number of times that one reader entered while a writer waited, between two writers.
    passed_writer: usize,
}

impl Log {
    fn enter(&mut self, reader: Option<usize>, asked: usize) {
        let meanwhile = &self.entered[asked..];
        match reader {
            Some(_) => {
                let writers = meanwhile.iter().filter(|entered| entered.is_none()).count();
                self.passed_reader = self.passed_reader.max(writers);
            }
            None => {
                for readers in meanwhile.split(Option::is_none) {
                    for number in 0..READERS {
                        let times = readers.iter().filter(|one| **one == Some(number)).count();
                        self.passed_writer = self.passed_writer.max(times);
                    }
                }
            }
        }
        self.entered.push(reader);
    }
}

/// Takes and releases the lock several times.
async fn client(place: Rc<Place<ShiftLock>>, reader: Option<usize>, log: Rc<RefCell<Log>>) {
    let mode = if reader.is_some() { Mode::Shared } else { Mode::Exclusive };
    for _ in 0..ROUNDS {
        let asked = log.borrow().entered.len();
        let held = place.client.acquire(lock(), mode, Limits::PATIENT).await;
        log.borrow_mut().enter(reader, asked);
        // Longer than an atomic is under way: one writer at most enters before a reader counts.
        place.sleep(10).await;
        place.client.release(held.expect("nothing fails")).await.expect("nothing fails");
    }
}

fn log_of(profile: &'static str, threshold: u16) -> (usize, usize) {
    let make = move || ShiftLock::new(Recovery::Fenced, threshold);
    on_lane_of(profile, make, |place| async move {
        let log = Rc::new(RefCell::new(Log::default()));
        let readers = (0..READERS).map(Some).chain([None; WRITERS]);
        for reader in readers {
            place.timer.spawn(client(Rc::clone(&place), reader, Rc::clone(&log)));
        }
        place.sleep(100).await;
        place.client.quiet().await;
        let log = log.borrow();
        assert_eq!(log.entered.len(), ROUNDS * (READERS + WRITERS));
        (log.passed_reader, log.passed_writer)
    })
}

/// A reader waits for as many writers as hold the lock in a row; a writer, once it is in the queue,
/// for one phase of readers before each writer, itself included.
#[test]
fn shiftlock_passes_readers_by_so_many_writers_and_writers_by_one_phase_of_readers() {
    for threshold in [1, 3, ShiftLock::THRESHOLD] {
        // With masked atomics, writers are in the queue with their first verb.
        assert_eq!(log_of("ideal", threshold), (usize::from(threshold), 1));
        assert_eq!(log_of("cx3-56g", threshold).0, usize::from(threshold));
    }
}
