//! Requests of other nodes that wait, one hazard at a time.

use std::sync::Mutex;

use super::tests::*;
use super::*;
use crate::wire::RemoteLock;

/// Outcomes that have not been passed to the server yet.
#[derive(Debug, Default)]
struct Inbox(Mutex<Vec<(TxnId, LockKey, WaitOutcome)>>);

impl Waiter for Inbox {
    fn settled(&self, txn: TxnId, name: LockKey, outcome: WaitOutcome) {
        self.0.lock().expect("no panic").push((txn, name, outcome));
    }
}

struct World<'a> {
    server: LockServer<&'a Host>,
    table: Arc<LockTable>,
    inbox: Arc<Inbox>,
}

impl<'a> World<'a> {
    fn new(host: &'a Host) -> Self {
        let (table, inbox) = (table(), Arc::new(Inbox::default()));
        let waiter = Arc::clone(&inbox) as Arc<dyn Waiter>;
        let server = LockServer::new(Arc::clone(&table), host).waiting_with(waiter);
        Self { server, table, inbox }
    }

    /// Asks for locks that the request may wait for.
    fn ask(&mut self, question: Question, requests: &[LockRequest]) -> LockAnswer {
        let locks: Vec<_> =
            requests.iter().map(|&request| RemoteLock { request, shard_epoch: OURS }).collect();
        let replies = ask(&mut self.server, |writer| {
            writer.lock_or_wait(question, 0, locks.iter().copied()).expect("fits");
        });
        let [Reply::Lock { question: echoed, answer }] = replies[..] else { panic!("{replies:?}") };
        assert_eq!(echoed, question);
        answer
    }

    /// Passes outcomes on, until there are none; returns the answers that are sent.
    fn settle(&mut self) -> Vec<(Question, LockAnswer)> {
        let mut told = Vec::new();
        loop {
            let settled = std::mem::take(&mut *self.inbox.0.lock().expect("no panic"));
            if settled.is_empty() {
                return told;
            }
            for (txn, name, outcome) in settled {
                if let Some((to, reply)) = self.server.settle(txn, &name, outcome) {
                    assert_eq!(to, ASKER);
                    let Reply::Lock { question, answer } = reply else { panic!("{reply:?}") };
                    told.push((question, answer));
                }
            }
        }
    }
}

fn question(txn: TxnId, round: u16) -> Question {
    Question { txn, round, fragment: 0 }
}

/// Locks of keys, in ascending order.
fn rows(keys: &[u64]) -> Vec<LockRequest> {
    keys.iter().map(|key| LockRequest::write(row(*key))).collect()
}

const HOLDER: u64 = 900;

fn holder() -> TxnId {
    TxnId::new(incarnation(7), 1, HOLDER)
}

/// Another transaction of this node holds these rows.
fn occupy(world: &World<'_>, keys: &[u64]) {
    assert_eq!(world.table.try_lock_set(holder(), &rows(keys)), Ok(()));
}

fn leave(world: &World<'_>, key: u64) {
    world.table.unlock(holder(), &row(key));
}

#[test]
fn a_request_waits_for_one_lock_after_the_other_and_is_told_once() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2, 4]);
    let asked = question(txn(1), 1);
    assert_eq!(world.ask(asked, &rows(&[1, 2, 3, 4, 5])), LockAnswer::Waiting);
    assert!(world.table.holds(txn(1), &row(1)), "what lies below is held");
    assert!(!world.table.holds(txn(1), &row(3)), "and nothing above");
    leave(&world, 2);
    assert_eq!(world.settle(), [], "it waits for the next");
    assert!(world.table.holds(txn(1), &row(3)) && !world.table.holds(txn(1), &row(5)));
    leave(&world, 4);
    assert_eq!(world.settle(), [(asked, LockAnswer::Granted)]);
    assert_eq!(world.table.held(), 5);
    assert_eq!(host.written.borrow().len(), 5, "each grant is noted before it is told");
    end(&mut world.server, txn(1));
    assert_eq!((world.table.held(), world.table.waiting()), (0, 0));
}

/// The request is duplicated, and the copy comes while the first waits, and when it is granted.
#[test]
fn h9_a_repeated_request_finds_itself_in_the_queue_or_granted() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    let asked = question(txn(1), 1);
    for _ in 0..3 {
        assert_eq!(world.ask(asked, &rows(&[1, 2])), LockAnswer::Waiting);
        assert_eq!(world.table.waiting(), 1);
    }
    leave(&world, 2);
    // The outcome is on its way inside the node.
    assert_eq!(world.ask(asked, &rows(&[1, 2])), LockAnswer::Waiting);
    assert_eq!(world.settle(), [(asked, LockAnswer::Granted)]);
    // It is lost: the asker asks again.
    assert_eq!(world.ask(asked, &rows(&[1, 2])), LockAnswer::Granted);
    assert_eq!(world.table.held(), 2);
}

/// The attempt ends, by its deadline, while its request waits; a grant would have no taker.
#[test]
fn h10_the_end_of_an_attempt_ends_its_wait() {
    let host = Host::default();
    for (what, ends) in [("an end", true), ("the slot's next attempt", false)] {
        let mut world = World::new(&host);
        occupy(&world, &[2]);
        assert_eq!(world.ask(question(txn(1), 1), &rows(&[1, 2])), LockAnswer::Waiting);
        if ends {
            end(&mut world.server, txn(1));
        } else {
            assert_eq!(lock(&mut world.server, txn(2), &rows(&[9])), LockAnswer::Granted);
            end(&mut world.server, txn(2));
        }
        assert_eq!(world.table.waiting(), 0, "{what}");
        leave(&world, 2);
        assert_eq!(world.settle(), [], "{what}");
        assert_eq!(world.table.held(), 0, "{what}");
        let late = world.ask(question(txn(1), 1), &rows(&[1, 2]));
        assert_eq!(late, LockAnswer::Stale, "{what}");
    }
}

/// The lock is granted, and the end arrives before the outcome is passed on.
#[test]
fn h10_a_grant_for_an_attempt_that_has_ended_is_released() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    assert_eq!(world.ask(question(txn(1), 1), &rows(&[1, 2])), LockAnswer::Waiting);
    leave(&world, 2);
    assert!(world.table.holds(txn(1), &row(2)));
    end(&mut world.server, txn(1));
    assert_eq!(world.table.held(), 0);
    assert_eq!(world.settle(), []);
    assert_eq!(world.table.held(), 0);
}

/// A request waits at an owner that gives the shard away: granted later, it would be held at two.
#[test]
fn h19_a_request_that_waits_is_not_granted_behind_a_hand_over() {
    let host = Host::default();
    let moved = LockAnswer::WrongOwner { index: 1, owner: ANOTHER, shard_epoch: OURS + 1 };
    // The waits are ended.
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    let asked = question(txn(1), 1);
    assert_eq!(world.ask(asked, &rows(&[1, 2])), LockAnswer::Waiting);
    host.stopped.set(true);
    assert_eq!(world.table.dismiss(WaitOutcome::Moved, |_, _| true), 1);
    assert_eq!(world.settle(), [(asked, moved)]);
    assert_eq!(world.table.held(), 1, "what it had taken is released");
    // The lock is granted between the stop and the end of the waits.
    host.stopped.set(false);
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    assert_eq!(world.ask(asked, &rows(&[1, 2])), LockAnswer::Waiting);
    host.stopped.set(true);
    leave(&world, 2);
    let told = world.settle();
    assert!(matches!(told[..], [(_, LockAnswer::WrongOwner { .. })]), "{told:?}");
    assert_eq!(world.table.held(), 0);
    // The request comes behind the stop.
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    let late = world.ask(asked, &rows(&[2]));
    assert_eq!(late, LockAnswer::WrongOwner { index: 0, owner: ANOTHER, shard_epoch: OURS + 1 });
    assert_eq!((world.table.held(), world.table.waiting()), (1, 0));
}

/// The asker is expelled: what it holds stays until recovery, what it waits for is not granted.
#[test]
fn h4_an_expelled_incarnation_waits_no_more_and_keeps_its_locks() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    assert_eq!(world.ask(question(txn(1), 1), &rows(&[1, 2])), LockAnswer::Waiting);
    world.server.refuse(incarnation(1));
    assert_eq!(world.table.waiting(), 0);
    assert!(world.table.holds(txn(1), &row(1)));
    leave(&world, 2);
    assert_eq!(world.settle(), []);
    assert!(!world.table.holds(txn(1), &row(2)));
    assert_eq!(world.ask(question(txn(1), 2), &rows(&[2])), LockAnswer::Expelled);
}

/// An asker whose request is not in order, or not above what it holds, could wait in a circle.
#[test]
fn h7_a_request_that_does_not_go_up_is_refused() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2, 5]);
    let down = question(txn(1), 1);
    assert_eq!(world.ask(down, &rows(&[5, 2])), conflict_at(0));
    assert_eq!(world.ask(question(txn(1), 2), &rows(&[3])), LockAnswer::Granted);
    assert_eq!(world.ask(question(txn(1), 3), &rows(&[2])), conflict_at(0));
    assert_eq!(world.ask(question(txn(1), 4), &rows(&[5])), LockAnswer::Waiting);
    assert_eq!(world.table.waiting(), 1);
}

#[test]
fn requests_that_do_not_ask_to_wait_are_refused_as_ever() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    assert_eq!(lock(&mut world.server, txn(1), &rows(&[1, 2])), conflict_at(1));
    let mut deaf = LockServer::new(Arc::clone(&world.table), &host);
    let locks = [RemoteLock { request: LockRequest::write(row(2)), shard_epoch: OURS }];
    let asked = question(other_txn(1), 1);
    let replies = ask(&mut deaf, |writer| {
        writer.lock_or_wait(asked, 9, locks.iter().copied()).expect("fits");
    });
    assert_eq!(replies, [Reply::Lock { question: asked, answer: conflict_at(0) }]);
    assert_eq!(world.table.waiting(), 0);
}

#[test]
fn the_oldest_transaction_of_all_nodes_is_served_first() {
    let host = Host::default();
    let mut world = World::new(&host);
    occupy(&world, &[2]);
    let (young, old) = (question(txn(1), 1), question(other_txn(1), 1));
    for (asked, age_us) in [(young, 10), (old, 500)] {
        let lock = [RemoteLock { request: LockRequest::write(row(2)), shard_epoch: OURS }];
        let replies = ask(&mut world.server, |writer| {
            writer.lock_or_wait(asked, age_us, lock.iter().copied()).expect("fits");
        });
        assert_eq!(replies, [Reply::Lock { question: asked, answer: LockAnswer::Waiting }]);
    }
    leave(&world, 2);
    assert_eq!(world.settle(), [(old, LockAnswer::Granted)]);
    end(&mut world.server, other_txn(1));
    assert_eq!(world.settle(), [(young, LockAnswer::Granted)]);
}
