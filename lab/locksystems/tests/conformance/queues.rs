//! Locks with queues: what becomes of their words, step by step.

use std::time::Duration;

use lotus_locks::systems::Declock;
use lotus_locks::word::{DeclockFields, QueueHeader};
use lotus_locks::{Limits, LockSystem, Mode, NotHeld, Recovery, Wait};

use super::lane::{Place, lock, on_lane};

const ENTRIES: u32 = 8;
const FIELDS: DeclockFields = DeclockFields::new(ENTRIES);
const FREE: QueueHeader =
    QueueHeader { is_resetting: false, writers: 0, size: 0, head: 0, generation: 0 };

const fn declock() -> Declock {
    Declock::new(Recovery::Fenced, ENTRIES)
}

/// Writes the header, and all entries alike.
async fn write(place: &Place<Declock>, header: QueueHeader, entry: u64) {
    let mut batch = place.lane.batch();
    batch.write_word(lock(), FIELDS.word(header));
    let entries = batch.stage(8 * ENTRIES as usize);
    batch.words_mut(entries).fill(entry);
    batch.write(lock().plus(16), entries);
    batch.post().await.expect("nothing fails");
}

async fn entries(place: &Place<Declock>) -> Vec<u64> {
    let mut batch = place.lane.batch();
    let entries = batch.read(lock().plus(16), 8 * ENTRIES as usize);
    batch.post().await.expect("nothing fails").words(entries).to_vec()
}

/// An entry of the last generation would count for one of the next, or hide it.
#[test]
fn a_reset_clears_the_entries() {
    for entry in [u64::MAX, 1] {
        let (header, entries) = on_lane(declock, move |place| async move {
            let head = u64::from(ENTRIES) * DeclockFields::LAST_LAP;
            write(&place, QueueHeader { head, generation: 6, ..FREE }, entry).await;
            let hold = place.client.acquire(lock(), Mode::Exclusive, Limits::PATIENT).await;
            let hold = hold.expect("the indexes are used up, so the lock is reset");
            let found = (place.head().await, entries(&place).await);
            place.client.release(hold).await.expect("nothing fails");
            assert_eq!(place.client.counts().resets, 1);
            found
        });
        let expected = QueueHeader { generation: 7, size: 1, writers: 1, ..FREE };
        assert_eq!(FIELDS.of(header), expected);
        assert_eq!(entries, [0; ENTRIES as usize]);
    }
}

/// Until then, requests of the lane add nothing more to the header, however often they are refused.
#[test]
fn a_lock_that_has_no_room_is_left_alone_until_it_is_reset() {
    on_lane(declock, |place| async move {
        // The queue is full of others, and another node resets the lock, without end.
        let full = QueueHeader { size: ENTRIES, writers: 1, ..FREE };
        write(&place, full, 0).await;
        let keeps = place.client.acquire(lock().plus(256), Mode::Exclusive, Limits::PATIENT).await;
        let keeps = keeps.expect("it is another lock, and free");
        let marked = QueueHeader { is_resetting: true, ..full };
        write(&place, marked, 0).await;
        for wait in
            [Wait::No, Wait::Until(place.after(100)), Wait::No, Wait::Until(place.after(200))]
        {
            let limits = Limits { wait, terms: 1 };
            let refused = place.client.acquire(lock(), Mode::Exclusive, limits).await;
            // While a ghost is there still, it is that which is waited for.
            let why = refused.err().expect("the lock is being reset");
            assert!(matches!(why, NotHeld::Reset | NotHeld::Conflict | NotHeld::TimedOut), "{why}");
        }
        let size = FIELDS.of(place.head().await).size;
        assert_eq!(size, ENTRIES + 1, "the first of them has added itself");
        // The reset ends.
        write(&place, QueueHeader { generation: 1, ..FREE }, 0).await;
        let hold = place.client.acquire(lock(), Mode::Shared, Limits::PATIENT).await;
        place.client.release(hold.expect("it is free")).await.expect("nothing fails");
        place.client.release(keeps).await.expect("nothing fails");
        assert!(place.client.system().is_free(place.head().await));
    });
}

/// A notice saves waiting; the turn itself is in the words.
#[test]
fn who_is_not_told_takes_its_turn_all_the_same() {
    let waited = on_lane(declock, |place| async move {
        // A writer of another node holds the lock, leaves, and sends no notice.
        write(&place, QueueHeader { size: 1, writers: 1, ..FREE }, 0).await;
        let begun = place.timer.now();
        let here = place.client.clone();
        let asked = here.acquire(lock(), Mode::Exclusive, Limits::PATIENT);
        let words = std::rc::Rc::clone(&place);
        place.timer.spawn(async move {
            words.sleep(100).await;
            let mut batch = words.lane.batch();
            batch.fetch_and_add(lock(), FIELDS.leaving(Mode::Exclusive));
            batch.post().await.expect("nothing fails");
        });
        let hold = asked.await.expect("nothing fails");
        let waited = place.timer.now().since(begun);
        place.client.release(hold).await.expect("nothing fails");
        assert!(place.client.system().is_free(place.head().await));
        waited
    });
    let millis = Duration::from_millis;
    assert!((millis(2)..millis(3)).contains(&waited), "{waited:?}");
}
