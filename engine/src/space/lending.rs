//! Lending: gives free slots to a node that has none left, if the group has no slab left either.
//!
//! # What it is
//! A coordinator that finds no slot in a full group asks the other compute nodes in turn, until a
//! node gives some: half of the giver's slots beyond its reserve, or half of its whole stock if an
//! update waits. The asker then owns these slots, like slots freed by its own transactions.
//!
//! | message | words |
//! |---|---|
//! | ask | number; number of the last answered ask, giver's life; place; slot bytes; purpose |
//! | answer | number of the ask; the giver's life; slots |
//!
//! The place is table, group and kind; a life is an incarnation. The purpose has bit 0 for an
//! update, and bit 1 if the asker could still take a slab of the reserve; its upper half is the
//! number of dropped tables whose memory had been given back when the asker found the group full.
//!
//! # Why no slot is ever free at two nodes
//! Slots leave the giver's allocator before the answer is sent, and enter the asker's allocator
//! when the answer arrives. Numbers carry the asker's incarnation and grow, and a coordinator has
//! one ask under way. The giver remembers the last ask of every asker: a repeated number is
//! answered with the slots of the first answer, a lower number is not answered. The asker accepts
//! an answer only while it waits for the answer's number.
//!
//! # If an answer is lost
//! The next ask names the last answered ask, and the life of the giver that answered. Slots given
//! for a later ask, or by another life, have not arrived and never will, because the asker no
//! longer waits for them: the giver takes back the slots given in its current life. If an ask is
//! repeated while the giver restarts, both of the giver's lives may answer; the asker takes one
//! answer. Slots are lost if an asker ends without asking again, or if a giver ends with its answer
//! on the way.
//!
//! # Pace
//! If no node had slots, the next ask for such slots waits for [`PAUSE`] intervals of the horizon.

use std::collections::BTreeMap;
use std::rc::Rc;

use lotus_fabric::ids::{Endpoint, Incarnation, LaneId, NodeId, TableId};
use lotus_fabric::rpc::{RetryPolicy, Service};
use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_sabotage::{Rule, broken};

use crate::node::coordinator::Coordinator;
use crate::node::memory::slot_requests::{AnsweredRequest, COUNT_BITS};
use crate::node::memory::slots::Use;
use crate::node::messages::{ASK_AGAIN, decode, encode};

/// RPC service for requests of free slots between nodes.
const SERVICE: Service = Service(5);
/// Limit of the slots in an answer.
const MOST_GIVEN: u64 = 64;
/// Number of messages to a node that does not answer.
const TRIES: u32 = 3;
/// Intervals of the horizon between two asks for slots that no node had.
const PAUSE: u32 = 2;

/// A request for slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SlotRequest {
    number: u64,
    answered: AnsweredRequest,
    purpose: Purpose,
    bytes: u64,
    wanted: Use,
    /// Whether a slab of the reserve is left for this purpose: the asker prefers free slots of
    /// other nodes.
    has_reserve: bool,
    cleared: u32,
}

impl SlotRequest {
    fn to_words(self) -> [u64; 6] {
        let Purpose { table, group, slots } = self.purpose;
        let cleared = u64::from(self.cleared) << u32::BITS;
        let place = u64::from(table.0) | u64::from(group) << 16 | (slots as u64) << 32;
        let update = u64::from(self.wanted == Use::Update);
        let wanted = update | u64::from(self.has_reserve) << 1 | cleared;
        [self.number, self.answered.number, self.answered.life, place, self.bytes, wanted]
    }

    /// `None` if the words are not a valid ask in a cluster of `groups` groups.
    fn from_words(words: &[u64], groups: u16) -> Option<Self> {
        let [number, answered, life, place, bytes, wanted] = *words else { return None };
        let answered = AnsweredRequest { number: answered, life };
        let slots = *SlotKind::ALL.get(usize::try_from(place >> 32).ok()?)?;
        let group = Some((place >> 16) as u16).filter(|group| *group < groups)?;
        let purpose = Purpose { table: TableId(place as u16), group, slots };
        let cleared = (wanted >> u32::BITS) as u32;
        let has_reserve = wanted & 2 != 0;
        let wanted = match wanted as u32 & !2 {
            0 => Use::Insert,
            1 => Use::Update,
            _ => return None,
        };
        let ask = Self { number, answered, purpose, bytes, wanted, has_reserve, cleared };
        (bytes > 0).then_some(ask)
    }
}

/// Giver's memory: the last ask of every asker, and the slots given for it.
struct Lender {
    /// Incarnation of the giver.
    life: u64,
    last: BTreeMap<Endpoint, Loan>,
}

struct Loan {
    number: u64,
    purpose: Purpose,
    slots: Vec<u64>,
}

impl Lender {
    fn new(life: Incarnation) -> Self {
        Self { life: u64::from(life.raw()), last: BTreeMap::new() }
    }

    /// Slots for an ask; `None` if the ask is out of date. `give` takes slots out of the free
    /// slots, `take_back` returns a slot.
    fn receive(
        &mut self,
        from: Endpoint,
        ask: &SlotRequest,
        give: impl FnOnce() -> Vec<u64>,
        mut take_back: impl FnMut(Purpose, u64),
    ) -> Option<&[u64]> {
        let last = self.last.get(&from).map(|given| given.number);
        if last > Some(ask.number) {
            return None;
        }
        if last < Some(ask.number) {
            let slots = give();
            let given = Loan { number: ask.number, purpose: ask.purpose, slots };
            if let Some(before) = self.last.insert(from, given) {
                // Slots that arrived at a former life of the asker are unknown.
                let same = before.number >> COUNT_BITS == ask.number >> COUNT_BITS;
                if same && !self.has_arrived(before.number, ask.answered) {
                    before.slots.into_iter().for_each(|slot| take_back(before.purpose, slot));
                }
            }
        }
        self.last.get(&from).map(|given| &given.slots[..])
    }

    /// Whether the asker has received the slots that this life of the giver gave for the ask
    /// `number`.
    fn has_arrived(&self, number: u64, answered: AnsweredRequest) -> bool {
        answered.life == self.life && number <= answered.number
    }
}

/// Lets coordinator 0 give surplus slots of its node to other nodes.
pub(crate) fn serve(coordinator: &Rc<Coordinator>) {
    if coordinator.thread != 0 {
        return;
    }
    let serving = Rc::downgrade(coordinator);
    let mut lender = Lender::new(coordinator.node.incarnation);
    let life = lender.life;
    let groups = coordinator.shared.placement.group_count() as u16;
    let mut receive = move |from: Endpoint, message: &[u8]| {
        let coordinator = serving.upgrade().filter(|one| !one.node.has_failed())?;
        let ask = SlotRequest::from_words(&decode(message)?, groups)?;
        let give = || coordinator.give_slots(&ask);
        let take_back = |purpose, slot| coordinator.release_slot(purpose, slot);
        let given = lender.receive(from, &ask, give, take_back)?;
        Some([&[ask.number, life], given].concat())
    };
    coordinator.rpc.serve(
        SERVICE,
        Box::new(move |responder, message| {
            if let Some(answer) = receive(responder.from(), message) {
                responder.respond(&encode(&answer));
            }
        }),
    );
}

impl Coordinator {
    /// Takes slots for another node out of the free slots.
    fn give_slots(&self, ask: &SlotRequest) -> Vec<u64> {
        let slots = &self.node.slots;
        // The asker found no slab, and all nodes share the group's slabs.
        let records = Purpose { slots: SlotKind::Record, ..ask.purpose };
        slots.hear_full(if ask.has_reserve { records } else { ask.purpose }, ask.cleared);
        slots.miss(ask.wanted, self.executor.now());
        self.share_slots();
        let (wanted, purpose, bytes) = (ask.wanted, ask.purpose, ask.bytes);
        let mut shared = slots.lock();
        let free = match wanted {
            Use::Insert => {
                let kept_back = wanted.keeps_back(purpose, bytes);
                shared.available_for_inserts(purpose, bytes, kept_back)
            }
            Use::Update | Use::Spare => shared.available(purpose, bytes),
        };
        let most = free.div_ceil(2).min(MOST_GIVEN);
        let given: Vec<u64> =
            (0..most).map_while(|_| wanted.take(&mut shared, purpose, bytes)).collect();
        debug_assert!(given.len() as u64 <= MOST_GIVEN, "I201: one answer names all slots given");
        debug_assert!(
            given.iter().all(|slot| *slot != 0),
            "I201: no slot begins where a region does"
        );
        if broken(Rule::GivenSlotsAreGone) {
            given.iter().for_each(|slot| shared.release(purpose, *slot));
        }
        given
    }

    /// Asks other nodes for slots; returns whether slots may be available now. Runs in a separate
    /// task, so that a dropped transaction does not lose an answer.
    #[cold]
    pub(crate) async fn borrow_slots(
        self: &Rc<Self>,
        wanted: Use,
        purpose: Purpose,
        bytes: u64,
    ) -> bool {
        let kind = (purpose.table, purpose.group, purpose.slots as usize);
        let slot_requests = &self.slot_requests;
        let pause = self.shared.config.horizon_interval * PAUSE;
        let since = slot_requests.fruitless.borrow().get(&kind).copied();
        let too_soon = since.is_some_and(|since| self.executor.now() < since.after(pause));
        if too_soon || self.shared.peers.len() == 1 {
            return false;
        }
        if slot_requests.under_way.get() {
            while slot_requests.under_way.get() {
                self.executor.sleep(ASK_AGAIN).await;
            }
            // The ask under way may have brought such slots; if not, the caller asks again.
            return true;
        }
        slot_requests.under_way.set(true);
        let (sender, outcome) = async_channel::bounded(1);
        let coordinator = Rc::clone(self);
        self.executor.spawn(async move {
            let found = coordinator.ask_all(wanted, purpose, bytes).await;
            let slot_requests = &coordinator.slot_requests;
            if !found {
                slot_requests.fruitless.borrow_mut().insert(kind, coordinator.executor.now());
            }
            slot_requests.under_way.set(false);
            // A dropped transaction no longer waits.
            let _ = sender.try_send(found);
        });
        outcome.recv().await.unwrap_or(false)
    }

    async fn ask_all(&self, wanted: Use, purpose: Purpose, bytes: u64) -> bool {
        let peers = &self.shared.peers;
        for step in 1..peers.len() {
            let giver = peers[(self.node.index + step) % peers.len()].id;
            if self.node.has_failed() {
                return false;
            }
            if self.node.members.may_receive(giver)
                && self.ask_for_slots(giver, wanted, purpose, bytes).await
            {
                return true;
            }
        }
        false
    }

    /// Asks one node; returns whether it gave slots.
    async fn ask_for_slots(
        &self,
        giver: NodeId,
        wanted: Use,
        purpose: Purpose,
        bytes: u64,
    ) -> bool {
        let number = self.slot_requests.next(self.node.incarnation);
        let answered =
            self.slot_requests.answered.borrow().get(&giver).copied().unwrap_or_default();
        let cleared = self.node.slots.cleared();
        let has_reserve = !self.node.slots.is_full_for(purpose);
        let ask = SlotRequest { number, answered, purpose, bytes, wanted, has_reserve, cleared };
        let at = Endpoint { node: giver, lane: LaneId(0) };
        let patience = RetryPolicy::constant(ASK_AGAIN, TRIES);
        let reply = self.rpc.call(at, SERVICE, &encode(&ask.to_words()), patience).await;
        let words = reply.ok().and_then(|reply| decode(&reply));
        let Some([named, life, slots @ ..]) = words.as_deref() else { return false };
        if *named != number {
            return false;
        }
        self.slot_requests
            .answered
            .borrow_mut()
            .insert(giver, AnsweredRequest { number, life: *life });
        let mut shared = self.node.slots.lock();
        for slot in slots {
            match wanted {
                Use::Insert => shared.release_for_inserts(purpose, *slot),
                Use::Update | Use::Spare => shared.release(purpose, *slot),
            }
        }
        !slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const ASKER: Endpoint = Endpoint { node: NodeId(7), lane: LaneId(1) };
    const PURPOSE: Purpose = Purpose { table: TableId(3), group: 1, slots: SlotKind::Record };

    fn ask(number: u64, answered: u64) -> SlotRequest {
        let answered = AnsweredRequest { number: answered, life: 1 };
        let (purpose, wanted) = (PURPOSE, Use::Insert);
        SlotRequest { number, answered, purpose, bytes: 64, wanted, has_reserve: false, cleared: 2 }
    }

    fn lender(life: u16) -> Lender {
        Lender::new(Incarnation::new(life).expect("small"))
    }

    /// A lender with these slots, and all that it has taken back.
    struct TestLender {
        lender: Lender,
        free: Vec<u64>,
    }

    impl TestLender {
        fn receive(&mut self, ask: &SlotRequest) -> Option<Vec<u64>> {
            let free = RefCell::new(&mut self.free);
            let give = || free.borrow_mut().pop().into_iter().collect();
            let take_back = |purpose, slot| {
                assert_eq!(purpose, PURPOSE);
                free.borrow_mut().push(slot);
            };
            self.lender.receive(ASKER, ask, give, take_back).map(<[_]>::to_vec)
        }
    }

    #[test]
    fn an_ask_that_comes_twice_or_late_gives_slots_once() {
        let mut giver = TestLender { lender: lender(1), free: vec![64, 128, 192] };
        for _ in 0..2 {
            assert_eq!(giver.receive(&ask(5, 0)), Some(vec![192]));
        }
        assert_eq!(giver.receive(&ask(6, 5)), Some(vec![128]));
        assert_eq!(giver.receive(&ask(5, 0)), None, "nobody waits for that answer any more");
        assert_eq!(giver.free, [64]);
    }

    #[test]
    fn what_has_not_arrived_is_taken_back_and_what_has_is_not() {
        let mut giver = TestLender { lender: lender(1), free: vec![64, 128] };
        assert_eq!(giver.receive(&ask(5, 0)), Some(vec![128]));
        // The answer to 5 was lost.
        assert_eq!(giver.receive(&ask(6, 0)), Some(vec![64]));
        assert_eq!(giver.free, [128]);
        // The answer to 6 has come.
        assert_eq!(giver.receive(&ask(7, 6)), Some(vec![128]));
        assert!(giver.free.is_empty());
    }

    #[test]
    fn what_an_earlier_life_was_given_is_not_taken_back() {
        let mut giver = TestLender { lender: lender(1), free: vec![64, 128] };
        let second_life = 2 << COUNT_BITS;
        assert_eq!(giver.receive(&ask((1 << COUNT_BITS) + 9, 0)), Some(vec![128]));
        assert_eq!(giver.receive(&ask(second_life + 1, 0)), Some(vec![64]));
        assert!(giver.free.is_empty());
    }

    /// An ask was answered by the giver's first life and, repeated, by its second. The asker took
    /// one answer, and the second life's slots were lost on the way.
    #[test]
    fn what_another_life_of_the_giver_answered_has_not_arrived_from_this_one() {
        let mut second = TestLender { lender: lender(2), free: vec![64, 128] };
        assert_eq!(second.receive(&ask(5, 4)), Some(vec![128]));
        assert_eq!(second.receive(&ask(6, 5)), Some(vec![64]));
        assert_eq!(second.free, [128]);
        let answered = AnsweredRequest { number: 6, life: 2 };
        assert_eq!(second.receive(&SlotRequest { answered, ..ask(7, 0) }), Some(vec![128]));
        assert!(second.free.is_empty());
    }

    #[test]
    fn asks_survive_the_way_and_what_is_none_is_not_answered() {
        for (wanted, has_reserve) in
            [(Use::Insert, false), (Use::Insert, true), (Use::Update, false)]
        {
            let ask = SlotRequest { wanted, has_reserve, ..ask(5, 3) };
            assert_eq!(SlotRequest::from_words(&ask.to_words(), 2), Some(ask));
            assert_eq!(SlotRequest::from_words(&ask.to_words(), 1), None, "there is no such group");
        }
        let place = 3 | 1 << 16;
        let no_asks: [&[u64]; 5] = [
            &[],
            &[5, 3, 1, place, 64],
            &[5, 3, 1, place | 3 << 32, 64, 0],
            &[5, 3, 1, place, 0, 0],
            &[5, 3, 1, place, 64, 4],
        ];
        for words in no_asks {
            assert_eq!(SlotRequest::from_words(words, 2), None, "{words:?}");
        }
    }
}
