//! Askers and a lock server over a network that loses, repeats and reorders datagrams.
//!
//! In every case: no two live attempts hold conflicting locks, an attempt that was granted a lock
//! still holds it until the end, and once every end has been acknowledged the table is empty,
//! however late the remaining copies arrive (H4, H9, H10).
#![cfg(not(lotus_loom))]

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{
    Endpoint, Epoch, Incarnation, Key, LaneId, NodeId, ShardId, TableId, TxnId,
};
use lotus_locktable::wire::{self, LockAnswer, Question, RemoteLock, Reply, RequestWriter};
use lotus_locktable::{
    Arrival, EndTracker, LockHost, LockKey, LockMode, LockRequest, LockServer, LockTable,
    LockTableConfig, NO_OWNER,
};
use proptest::prelude::*;

const SLOTS: u16 = 3;
const SHARD_EPOCH: u32 = 1;
const ARRIVAL: Arrival =
    Arrival { from: Endpoint { node: NodeId(1), lane: LaneId(0) }, at: Nanos(0) };

struct Owner;

impl LockHost for Owner {
    fn owns(&self, _shard: ShardId, shard_epoch: u32) -> bool {
        shard_epoch == SHARD_EPOCH
    }

    fn owner_known(&self, _shard: ShardId) -> (NodeId, u32) {
        (NO_OWNER, SHARD_EPOCH)
    }

    fn configuration_epoch(&self) -> Epoch {
        Epoch(1)
    }
}

/// One coroutine slot of the asking node.
#[derive(Default)]
struct Slot {
    attempt: u64,
    round: u16,
    /// Locks that the current attempt knows it holds.
    granted: Vec<LockRequest>,
    /// Locks that it last asked for and has no answer about.
    asked: Option<Vec<LockRequest>>,
}

struct World {
    table: Arc<LockTable>,
    server: LockServer<Owner>,
    slots: Vec<Slot>,
    ends: EndTracker,
    /// Datagrams under way; delivered ones may stay, to be delivered again.
    requests: Vec<Vec<u8>>,
    replies: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Event {
    /// A slot asks for locks or asks again; due ends travel along.
    Ask { slot: u16, locks: Vec<LockRequest> },
    /// A slot's attempt ends and the next begins.
    End { slot: u16 },
    /// The server receives a datagram, one of its replies goes out; either may stay for later.
    Serve { pick: usize, keep: bool },
    /// A reply arrives; it may stay for later.
    Hear { pick: usize, keep: bool },
    /// A datagram is lost.
    Lose { pick: usize },
}

fn txn(slot: u16, attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), slot, attempt)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let lock = (0u64..3, any::<bool>()).prop_map(|(key, write)| LockRequest {
        name: LockKey::row(TableId(1), Key(key << 12)),
        mode: if write { LockMode::Write } else { LockMode::Read },
    });
    let locks = prop::collection::vec(lock, 1..3);
    let event = prop_oneof![
        3 => (0..SLOTS, locks).prop_map(|(slot, locks)| Event::Ask { slot, locks }),
        2 => (0..SLOTS).prop_map(|slot| Event::End { slot }),
        4 => any::<(usize, bool)>().prop_map(|(pick, keep)| Event::Serve { pick, keep }),
        4 => any::<(usize, bool)>().prop_map(|(pick, keep)| Event::Hear { pick, keep }),
        1 => any::<usize>().prop_map(|pick| Event::Lose { pick }),
    ];
    prop::collection::vec(event, 0..120)
}

/// Takes some datagram out of the network, or a copy of it.
fn pick(network: &mut Vec<Vec<u8>>, pick: usize, keep: bool) -> Option<Vec<u8>> {
    let index = pick.checked_rem(network.len())?;
    Some(if keep { network[index].clone() } else { network.swap_remove(index) })
}

impl World {
    fn new() -> Self {
        let table = LockTable::new(LockTableConfig::with_bytes(1 << 16)).expect("valid");
        let table = Arc::new(table);
        Self {
            server: LockServer::new(Arc::clone(&table), Owner),
            table,
            slots: (0..SLOTS).map(|_| Slot { attempt: 1, ..Slot::default() }).collect(),
            ends: EndTracker::new(0),
            requests: Vec::new(),
            replies: Vec::new(),
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Ask { slot, locks } => self.ask(slot, locks),
            Event::End { slot: number } => {
                let slot = &mut self.slots[usize::from(number)];
                self.ends.end(txn(number, slot.attempt));
                *slot = Slot { attempt: slot.attempt + 1, ..Slot::default() };
            }
            Event::Serve { pick: index, keep } => {
                if let Some(request) = pick(&mut self.requests, index, keep) {
                    let mut reply = vec![0; 4096];
                    let length =
                        self.server.handle(ARRIVAL, &request, &mut reply).expect("well-formed");
                    self.replies.push(reply[..length].to_vec());
                }
            }
            Event::Hear { pick: index, keep } => {
                if let Some(reply) = pick(&mut self.replies, index, keep) {
                    wire::replies(&reply).for_each(|reply| self.hear(reply.expect("well-formed")));
                }
            }
            Event::Lose { pick: index } => drop(pick(&mut self.requests, index, false)),
        }
    }

    fn ask(&mut self, number: u16, locks: Vec<LockRequest>) {
        let slot = &mut self.slots[usize::from(number)];
        if slot.asked.is_none() {
            slot.round += 1;
        }
        let asked = slot.asked.get_or_insert(locks);
        let question = Question { txn: txn(number, slot.attempt), round: slot.round, fragment: 0 };
        let remote =
            |request: &LockRequest| RemoteLock { request: *request, shard_epoch: SHARD_EPOCH };
        let locks: Vec<_> = asked.iter().map(remote).collect();
        let mut buffer = vec![0; 4096];
        let mut writer = RequestWriter::new(&mut buffer);
        self.ends.write_due(0, usize::MAX, &mut writer);
        writer.lock(question, locks.iter().copied()).expect("fits");
        let length = writer.finish(Epoch(1));
        self.requests.push(buffer[..length].to_vec());
    }

    fn hear(&mut self, reply: Reply) {
        self.ends.learn(&reply);
        let Reply::Lock { question, answer } = reply else { return };
        let slot = &mut self.slots[usize::from(question.txn.slot())];
        if (question.txn.attempt(), question.round) != (slot.attempt, slot.round) {
            return;
        }
        let Some(asked) = slot.asked.take() else { return };
        match answer {
            LockAnswer::Granted => slot.granted.extend(asked),
            LockAnswer::Refused { .. } => {}
            LockAnswer::WrongOwner { .. }
            | LockAnswer::Waiting
            | LockAnswer::Stale
            | LockAnswer::Expelled => {
                panic!("a live attempt was told {answer:?}")
            }
        }
    }

    /// Checks that every attempt holds the locks that it was granted, without conflicts.
    fn check(&self) -> Result<(), TestCaseError> {
        let mut holders = Vec::new();
        self.table.for_each_holder(|holder| holders.push(holder));
        for (number, slot) in self.slots.iter().enumerate() {
            let txn = txn(number as u16, slot.attempt);
            for granted in &slot.granted {
                let of_name = || holders.iter().filter(|holder| holder.name == granted.name);
                let mut mine = of_name().filter(|holder| holder.txn == txn);
                prop_assert!(mine.any(|holder| holder.mode >= granted.mode), "{txn:?} lost a lock");
                let compatible = |mode| (mode, granted.mode) == (LockMode::Read, LockMode::Read);
                let mut others = of_name().filter(|holder| holder.txn != txn);
                prop_assert!(others.all(|holder| compatible(holder.mode)), "{txn:?} is not alone");
            }
        }
        Ok(())
    }

    /// Ends everything over a network that has become reliable.
    fn settle(&mut self) {
        (0..SLOTS).for_each(|slot| self.step(Event::End { slot }));
        while self.ends.unacknowledged() > 0 {
            let mut buffer = vec![0; 4096];
            let mut writer = RequestWriter::new(&mut buffer);
            self.ends.write_due(u64::MAX, usize::MAX, &mut writer);
            let length = writer.finish(Epoch(1));
            self.requests.push(buffer[..length].to_vec());
            self.step(Event::Serve { pick: self.requests.len() - 1, keep: false });
            self.step(Event::Hear { pick: self.replies.len() - 1, keep: false });
        }
    }
}

proptest! {
    #[test]
    fn h9_h10_a_bad_network_leaks_no_lock_and_breaks_none(events in events()) {
        let mut world = World::new();
        for event in events {
            world.step(event);
            world.check()?;
        }
        world.settle();
        prop_assert_eq!(world.table.held(), 0);
        while !world.requests.is_empty() {
            world.step(Event::Serve { pick: 0, keep: false });
            prop_assert_eq!(world.table.held(), 0, "a late copy locked for the dead");
        }
    }
}
