//! The lock server, one hazard and one row of its table at a time.

use std::cell::{Cell, RefCell};

use lotus_fabric::ids::{Key, LaneId, TableId};

use super::*;
use crate::slot::Refusal;
use crate::table::LockTableConfig;
use crate::wire::{Question, RemoteLock, RequestWriter};

/// Endpoint of the asker, and a time.
pub(super) const ASKER: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(0) };
pub(super) const ARRIVAL: Arrival = Arrival { from: ASKER, at: Nanos(1_000_000) };
pub(super) const OURS: u32 = 3;
pub(super) const ANOTHER: NodeId = NodeId(8);

/// A node that owns every shard in epoch [`OURS`] until it is stopped.
#[derive(Default)]
pub(super) struct Host {
    pub(super) stopped: Cell<bool>,
    pub(super) written: RefCell<Vec<LockKey>>,
}

impl LockHost for &Host {
    fn owns(&self, _shard: ShardId, shard_epoch: u32) -> bool {
        !self.stopped.get() && shard_epoch == OURS
    }

    fn owner_known(&self, _shard: ShardId) -> (NodeId, u32) {
        (ANOTHER, OURS + 1)
    }

    fn configuration_epoch(&self) -> Epoch {
        Epoch(9)
    }

    fn write_granted(&self, name: &LockKey) {
        self.written.borrow_mut().push(*name);
    }
}

pub(super) fn table() -> Arc<LockTable> {
    Arc::new(LockTable::new(LockTableConfig::with_bytes(1 << 16)).expect("valid"))
}

pub(super) fn incarnation(raw: u16) -> Incarnation {
    Incarnation::new(raw).expect("fits")
}

pub(super) fn txn(attempt: u64) -> TxnId {
    TxnId::new(incarnation(1), 4, attempt)
}

pub(super) fn other_txn(attempt: u64) -> TxnId {
    TxnId::new(incarnation(2), 4, attempt)
}

pub(super) fn row(key: u64) -> LockKey {
    LockKey::row(TableId(1), Key(key << 12))
}

/// Replies to one datagram that `fill` writes.
pub(super) fn ask(
    server: &mut LockServer<&Host>,
    fill: impl FnOnce(&mut RequestWriter<'_>),
) -> Vec<Reply> {
    let (mut request, mut reply) = (vec![0; 4096], vec![0xEE; 4096]);
    let mut writer = RequestWriter::new(&mut request);
    fill(&mut writer);
    let length = writer.finish(Epoch(0));
    let length = server.handle(ARRIVAL, &request[..length], &mut reply).expect("well-formed");
    assert_eq!(wire::sender_epoch(&reply), Ok(Epoch(9)));
    wire::replies(&reply[..length]).map(|reply| reply.expect("well-formed")).collect()
}

fn lock_in_epoch(
    server: &mut LockServer<&Host>,
    txn: TxnId,
    requests: &[LockRequest],
    shard_epoch: u32,
) -> LockAnswer {
    let question = Question { txn, round: 1, fragment: 2 };
    let locks: Vec<_> =
        requests.iter().map(|&request| RemoteLock { request, shard_epoch }).collect();
    let replies = ask(server, |writer| writer.lock(question, locks.iter().copied()).expect("fits"));
    let [Reply::Lock { question: echoed, answer }] = replies[..] else { panic!("{replies:?}") };
    assert_eq!(echoed, question);
    answer
}

pub(super) fn lock(
    server: &mut LockServer<&Host>,
    txn: TxnId,
    requests: &[LockRequest],
) -> LockAnswer {
    lock_in_epoch(server, txn, requests, OURS)
}

pub(super) fn end(server: &mut LockServer<&Host>, txn: TxnId) {
    let replies = ask(server, |writer| writer.end(txn).expect("fits"));
    assert_eq!(replies, [Reply::Ended { txn }]);
}

pub(super) fn conflict_at(index: u16) -> LockAnswer {
    LockAnswer::Refused { index, refusal: Refusal::Conflict }
}

/// A lock request is duplicated in the network and the copy arrives after its transaction ended:
/// the lock would be held for a dead transaction, for ever.
#[test]
fn h9_a_late_request_does_not_lock_for_the_dead() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let request = [LockRequest::write(row(1))];
    assert_eq!(lock(&mut server, txn(5), &request), LockAnswer::Granted);
    end(&mut server, txn(5));
    assert_eq!(lock(&mut server, txn(5), &request), LockAnswer::Stale);
    assert_eq!(lock(&mut server, txn(4), &request), LockAnswer::Stale);
    assert_eq!(table.held(), 0);
    assert_eq!(lock(&mut server, txn(6), &request), LockAnswer::Granted);
}

/// The end overtakes the request that it ends.
#[test]
fn h9_an_end_may_come_before_its_request() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    end(&mut server, txn(5));
    assert_eq!(lock(&mut server, txn(5), &[LockRequest::write(row(1))]), LockAnswer::Stale);
    assert_eq!(table.held(), 0);
}

/// The answer is lost and the request repeated: it must not conflict with itself, and one end
/// must undo both.
#[test]
fn h9_a_repeated_request_is_granted_once() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let requests = [LockRequest::read(row(1)), LockRequest::write(row(2))];
    for _ in 0..3 {
        assert_eq!(lock(&mut server, txn(5), &requests), LockAnswer::Granted);
        assert_eq!(table.held(), 2);
    }
    assert_eq!(*host.written.borrow(), [row(2)]);
    end(&mut server, txn(5));
    assert_eq!(table.held(), 0);
}

/// The end is lost, but the slot goes on: its next attempt implies the end.
#[test]
fn h10_a_newer_attempt_ends_the_older() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let one = [LockRequest::write(row(1))];
    assert_eq!(lock(&mut server, txn(5), &one), LockAnswer::Granted);
    assert_eq!(lock(&mut server, other_txn(1), &one), conflict_at(0));
    assert_eq!(lock(&mut server, txn(6), &[LockRequest::write(row(2))]), LockAnswer::Granted);
    assert_eq!(lock(&mut server, other_txn(1), &one), LockAnswer::Granted);
    assert_eq!(lock(&mut server, txn(5), &one), LockAnswer::Stale);
}

/// An end that is repeated, that is old, or that reaches an owner which never heard of the
/// transaction is acknowledged, or it would be repeated for ever; it releases no locks of others.
#[test]
fn h10_a_stale_end_is_acknowledged_and_harmless() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    end(&mut server, txn(5));
    assert_eq!(lock(&mut server, txn(6), &[LockRequest::write(row(1))]), LockAnswer::Granted);
    end(&mut server, txn(5));
    end(&mut server, other_txn(u64::from(u16::MAX)));
    assert_eq!(table.held(), 1);
    end(&mut server, txn(7));
    assert_eq!(table.held(), 0);
    assert_eq!(lock(&mut server, txn(7), &[LockRequest::write(row(1))]), LockAnswer::Stale);
}

#[test]
fn h10_the_last_attempt_of_a_slot_ends_too() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let last = txn(TxnId::MAX_ATTEMPT);
    assert_eq!(lock(&mut server, last, &[LockRequest::write(row(1))]), LockAnswer::Granted);
    end(&mut server, last);
    end(&mut server, last);
    assert_eq!(lock(&mut server, last, &[]), LockAnswer::Stale);
    assert_eq!(table.held(), 0);
}

/// An expelled node's locks belong to recovery: neither its requests nor its ends touch them.
#[test]
fn h4_h8_an_expelled_incarnation_changes_nothing() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let request = [LockRequest::write(row(1))];
    assert_eq!(lock(&mut server, txn(5), &request), LockAnswer::Granted);
    server.refuse(incarnation(1));
    server.refuse(incarnation(8000));
    assert_eq!(lock(&mut server, txn(6), &[LockRequest::read(row(2))]), LockAnswer::Expelled);
    end(&mut server, txn(6));
    assert_eq!(table.holders_of(incarnation(1)).len(), 1);
    assert_eq!(lock(&mut server, other_txn(1), &request), conflict_at(0));
    table.unlock(txn(5), &row(1));
    assert_eq!(lock(&mut server, other_txn(1), &request), LockAnswer::Granted);
}

/// The shard is handed over while its request waits, or the asker's map is old.
#[test]
fn h19_a_request_for_another_owner_takes_nothing() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let held = [LockRequest::read(row(1))];
    assert_eq!(lock(&mut server, txn(5), &held), LockAnswer::Granted);
    let more = [LockRequest::write(row(1)), LockRequest::write(row(2))];
    let wrong = LockAnswer::WrongOwner { index: 0, owner: ANOTHER, shard_epoch: OURS + 1 };
    assert_eq!(lock_in_epoch(&mut server, txn(5), &more, OURS - 1), wrong);
    assert_eq!(table.held(), 1);
    assert!(!table.is_write_locked(&row(1)));
    host.stopped.set(true);
    assert_eq!(lock(&mut server, txn(5), &more), wrong);
    // Nor does a conflict hide that the question came to the wrong place.
    assert_eq!(lock(&mut server, other_txn(1), &more), wrong);
    assert_eq!(table.held(), 1);
    assert_eq!(*host.written.borrow(), []);
}

#[test]
fn a_refused_request_takes_nothing_and_says_where() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    assert_eq!(lock(&mut server, other_txn(1), &[LockRequest::read(row(3))]), LockAnswer::Granted);
    let requests = [1, 2, 3].map(|key| LockRequest::write(row(key)));
    assert_eq!(lock(&mut server, txn(5), &requests), conflict_at(2));
    assert_eq!(table.held(), 1);
    end(&mut server, other_txn(1));
    assert_eq!(lock(&mut server, txn(5), &requests), LockAnswer::Granted);
}

/// H11's hook: a writer is announced once; the lock table itself notices its release.
#[test]
fn h11_the_host_hears_of_every_remote_writer() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(table, &host);
    let rounds: [&[LockRequest]; 3] = [
        &[LockRequest::read(row(1)), LockRequest::write(row(2))],
        &[LockRequest::write(row(1)), LockRequest::write(row(2))],
        &[LockRequest::read(row(2)), LockRequest::read(row(3))],
    ];
    for requests in rounds {
        assert_eq!(lock(&mut server, txn(5), requests), LockAnswer::Granted);
    }
    assert_eq!(host.written.take(), [row(2), row(1)]);
}

#[test]
fn a_datagram_carries_several_ends_and_requests_in_order() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(table, &host);
    assert_eq!(lock(&mut server, txn(5), &[LockRequest::write(row(1))]), LockAnswer::Granted);
    let question = Question { txn: other_txn(1), round: 0, fragment: 0 };
    let locks = [RemoteLock { request: LockRequest::write(row(1)), shard_epoch: OURS }];
    let replies = ask(&mut server, |writer| {
        writer.lock(question, locks.iter().copied()).expect("fits");
        writer.end(txn(5)).expect("fits");
        writer.lock(question, locks.iter().copied()).expect("fits");
    });
    let answers = [
        Reply::Lock { question, answer: conflict_at(0) },
        Reply::Ended { txn: txn(5) },
        Reply::Lock { question, answer: LockAnswer::Granted },
    ];
    assert_eq!(replies, answers);
}

/// Half of a damaged datagram must not be carried out: its sender gets no answer about it.
#[test]
fn a_damaged_datagram_changes_nothing() {
    let (table, host) = (table(), Host::default());
    let mut server = LockServer::new(Arc::clone(&table), &host);
    let (mut request, mut reply) = (vec![0; 4096], vec![0; 4096]);
    let mut writer = RequestWriter::new(&mut request);
    let question = Question { txn: txn(5), round: 0, fragment: 0 };
    let locks = [RemoteLock { request: LockRequest::write(row(1)), shard_epoch: OURS }];
    writer.lock(question, locks.iter().copied()).expect("fits");
    writer.end(txn(4)).expect("fits");
    let length = writer.finish(Epoch(0));
    let cut = server.handle(ARRIVAL, &request[..length - 1], &mut reply);
    assert_eq!(cut, Err(DecodeError::Truncated));
    assert_eq!(table.held(), 0);
}
