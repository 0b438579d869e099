//! The quiescing reset, carried out by the first lane of a node. [`crate::reset`] describes the
//! steps.

use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, RemoteAddr};
use lotus_fabric::rpc::RetryPolicy;
use lotus_points::point;
use lotus_sabotage::{Rule, broken};

use super::wire::{self, Message};
use super::{Core, ENTRIES, GivenUp};
use crate::contract::{LockSystem, Member, Verb};
use crate::reset::{free_again, may_claim};
use crate::word::{Claim, Head};

/// Pause before the authority is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Patience with a member that is asked to be done with a lock.
const PATIENCE: RetryPolicy = RetryPolicy {
    retry_after: Duration::from_micros(200),
    retry_at_most: Duration::from_millis(5),
    tries: 8,
};

impl<S: LockSystem> Core<S> {
    /// Requests the reset of a lock for the given reason, without waiting for the reset.
    pub(super) fn want_reset(self: &Rc<Self>, why: Message, at: RemoteAddr) {
        let lost = self.peers.last_loss() > Epoch(0);
        if self.system.head().is_none() || why == Message::Stalled && !lost {
            return;
        }
        self.ask_first(why, at, self.me.life.incarnation());
    }

    /// Requests the reset of a lock without room in this generation, without waiting for the reset.
    pub(super) fn want_room(self: &Rc<Self>, at: RemoteAddr, generation: u64) {
        self.ask_first(Message::Full, at, generation as u32);
    }

    /// Asks the first lane of this node for a reset.
    fn ask_first(self: &Rc<Self>, why: Message, at: RemoteAddr, number: u32) {
        let first = Endpoint { lane: LaneId(0), ..self.lane.at() };
        if self.lane.at() == first {
            return self.begin_reset(why, at, number);
        }
        let told = self.rpc.tell(first, self.service, &wire::encode(why, at, number));
        told.unwrap_or_else(|error| unreachable!("an address is short: {error}"));
    }

    /// Begins to reset a lock, if necessary and if this lane is not already resetting the lock.
    pub(super) fn begin_reset(self: &Rc<Self>, why: Message, at: RemoteAddr, number: u32) {
        let Some(head) = self.system.head() else { return };
        if self.resetting.borrow_mut().insert(at) {
            let began = self.lane.executor().now();
            let reset = Reset { core: Rc::clone(self), at, head, began };
            self.lane.executor().spawn(async move {
                // A given-up reset is left to other nodes, or to nobody.
                let _ = reset.carry_out(why, number).await;
                reset.core.resetting.borrow_mut().remove(&at);
            });
        }
    }
}

struct Reset<S: LockSystem> {
    core: Rc<Core<S>>,
    at: RemoteAddr,
    head: Head,
    began: Nanos,
}

impl<S: LockSystem> Reset<S> {
    async fn carry_out(&self, why: Message, number: u32) -> Result<(), GivenUp> {
        if why == Message::Full && self.has_room(number).await? {
            return Ok(());
        }
        let Some(claim) = self.claim(why).await? else { return Ok(()) };
        let me = self.core.lane.at().node.0;
        point!(me, ResetClaimed);
        // Another node has reset the lock meanwhile.
        if why == Message::Full && self.has_room(number).await? {
            return self.unclaim(claim, Epoch(claim.epoch())).await;
        }
        let marked = self.mark().await?;
        point!(me, LockMarked);
        let (epoch, members) = self.members().await?;
        let generation = self.head.generation(marked);
        self.ask(members, generation).await?;
        point!(me, MembersDone);
        self.free(generation).await?;
        point!(me, LockFreed);
        self.count();
        self.unclaim(claim, epoch).await?;
        point!(me, ResetUnclaimed);
        Ok(())
    }

    /// Counts a reset that has freed the lock, and the time it took.
    fn count(&self) {
        let took = self.core.lane.executor().now().since(self.began);
        let counts = &mut *self.core.counts.borrow_mut();
        counts.resets += 1;
        counts.reset_ns += took.as_nanos() as u64;
    }

    /// Whether the lock has left the generation `full`.
    async fn has_room(&self, full: u32) -> Result<bool, GivenUp> {
        Ok(self.head.generation(self.core.read(self.at).await?) as u32 != full)
    }

    fn claim_at(&self) -> RemoteAddr {
        self.at.plus(8)
    }

    /// Claims the reset. `None` if the reset is no longer needed, or another node may be carrying
    /// it out.
    async fn claim(&self, why: Message) -> Result<Option<Claim>, GivenUp> {
        let me = self.core.me.life;
        loop {
            let found = Claim::of(self.core.read(self.claim_at()).await?);
            if found.by() == Some(me) {
                // Claimed by an earlier try, whose answer was lost.
                return Ok(Some(found));
            }
            if why == Message::Stalled && self.core.peers.last_loss() <= Epoch(found.epoch()) {
                return Ok(None);
            }
            let is_settled = |other| self.core.peers.is_settled(other);
            let Some(mine) = may_claim(found, me, is_settled) else { return Ok(None) };
            let swap = Verb::Swap { expected: found.word(), new: mine.word() };
            if self.core.verb(self.claim_at(), swap).await? == Some(found.word()) {
                return Ok(Some(mine));
            }
        }
    }

    /// Marks the head as resetting, and returns the marked head.
    async fn mark(&self) -> Result<u64, GivenUp> {
        loop {
            let found = self.core.read(self.at).await?;
            if self.head.is_resetting(found) {
                return Ok(found);
            }
            self.core.verb(self.at, Verb::Add(self.head.resetting)).await?;
        }
    }

    /// Reads the members after the head was marked: a later member finds the mark.
    async fn members(&self) -> Result<(Epoch, Vec<Member>), GivenUp> {
        loop {
            if let Some(members) = self.core.peers.members().await {
                return Ok(members);
            }
            if self.core.has_abandoned(self.at.node()) {
                return Err(GivenUp);
            }
            self.core.lane.executor().sleep(ASK_AGAIN).await;
        }
    }

    /// Returns when each lane of the members has answered, or its node is settled (I294).
    async fn ask(&self, members: Vec<Member>, generation: u64) -> Result<(), GivenUp> {
        let core = &*self.core;
        let lanes = |member: Member| (0..member.lanes).map(move |lane| (member, LaneId(lane)));
        let mut asked: Vec<_> = members.into_iter().flat_map(lanes).collect();
        while !asked.is_empty() && !broken(Rule::ResetsQuiesce) {
            let calls: Vec<_> = asked
                .into_iter()
                .map(|(member, lane)| {
                    let to = Endpoint { node: member.node, lane };
                    let life = member.life.incarnation();
                    let request = wire::encode(Message::Finish, self.at, life);
                    (member, lane, core.rpc.call(to, core.service, &request, PATIENCE))
                })
                .collect();
            point!(core.lane.at().node.0, MembersAsked);
            asked = Vec::new();
            for (member, lane, call) in calls {
                let answer = call.await.ok();
                let answered = answer.and_then(|answer| wire::decode_answer(&answer));
                if answered != Some(generation) && !core.peers.is_settled(member.life) {
                    asked.push((member, lane));
                }
            }
            // The memory node may have returned empty.
            let head = core.read(self.at).await?;
            if !self.head.is_resetting(head) || self.head.generation(head) != generation {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Frees the head, unless it is already free.
    async fn free(&self, generation: u64) -> Result<(), GivenUp> {
        if self.core.system.is_forced() {
            self.clear().await?;
            return self.write(generation).await;
        }
        let is_of = |word| self.head.generation(word) == generation;
        if S::QUEUES {
            let found = self.core.read(self.at).await?;
            if !self.head.is_resetting(found) || !is_of(found) {
                return Ok(());
            }
            self.clear().await?;
            point!(self.core.lane.at().node.0, EntriesZeroed);
        }
        loop {
            let found = self.core.read(self.at).await?;
            let Some(new) = free_again(self.head, found) else { return Ok(()) };
            if !is_of(found) {
                return Ok(());
            }
            let swap = Verb::Swap { expected: found, new };
            if self.core.verb(self.at, swap).await? == Some(found) {
                return Ok(());
            }
        }
    }

    /// Frees the head as published.
    async fn write(&self, generation: u64) -> Result<(), GivenUp> {
        let word = self.head.after_reset(generation << self.head.generation_shift);
        let core = &self.core;
        loop {
            let used = core.connections.current(self.at.node());
            let mut batch = core.lane.batch();
            batch.write_word(self.at, word);
            if batch.post().await.is_ok() {
                return Ok(());
            }
            core.settle(self.at.node(), used).await?;
        }
    }

    /// Writes zeroes over the entries before the head is free (I302), with as many tries as needed:
    /// the entries are not in use while the head is marked and all members have answered.
    async fn clear(&self) -> Result<(), GivenUp> {
        let (core, entries) = (&self.core, self.core.system.entries() as usize);
        loop {
            let used = core.connections.current(self.at.node());
            let mut batch = core.lane.batch();
            let zeroes = batch.stage(8 * entries);
            batch.words_mut(zeroes).fill(0);
            batch.write(self.at.plus(ENTRIES), zeroes);
            if batch.post().await.is_ok() {
                return Ok(());
            }
            core.settle(self.at.node(), used).await?;
        }
    }

    async fn unclaim(&self, mine: Claim, epoch: Epoch) -> Result<(), GivenUp> {
        let swap = Verb::Swap { expected: mine.word(), new: Claim::new(epoch.0, None).word() };
        while self.core.verb(self.claim_at(), swap).await?.is_none() {}
        Ok(())
    }
}
