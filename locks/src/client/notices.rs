//! Notices between uses of locks: a mailbox for each slot of the lane, and the lane's
//! unacknowledged notices.
//!
//! A notice may be lost, late, or come twice, and slots are reused. Only the addressed use
//! ([`Peer`]) takes a notice in, once; a wrong receiver acknowledges and drops the notice. Where
//! locks are reset, a notice is sent again until it is acknowledged, until the sending use no
//! longer needs it, or until the lock is reset: then nobody waits for the notice (I298).
//!
//! Where turns are told once ([`LockSystem::TELLS_ONCE`]), the number of a use is the number of its
//! turn, which is in the words of the lock: notices are neither acknowledged nor sent again.
//!
//! Any number of readers may come after a use. Readers' notices stay in the mailbox until the use
//! asks for them ([`LockSystem::gathers`]).

use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Handle, TaskId};
use lotus_fabric::ids::{Endpoint, LaneId, NodeId, RemoteAddr};
use lotus_sabotage::{Rule, broken};

use super::Core;
use super::wire::{self, Letter};
use crate::contract::{LockSystem, Notice, NoticeKind, Peer, Waiter};
use crate::word::Claimant;

/// Bounds of the time after which a notice is sent again: about four round trips at first.
const AGAIN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// Bits of a number below the incarnation of its node.
const COUNT_BITS: u32 = 40;

/// Notices to and from the uses of this lane.
#[derive(Default)]
pub(super) struct Notices {
    /// Mailboxes, by slot.
    boxes: Vec<Mailbox>,
    /// Readers that have come after the use of a slot, by slot; only of systems whose uses hear of
    /// readers.
    joined: Vec<VecDeque<Peer>>,
    unacknowledged: Vec<Sent>,
    /// Next count of an enqueue; zero before the first.
    next: u64,
    /// Task that sends notices again; created when first needed.
    repeater: Option<TaskId>,
    /// Time of the task's next look, if it has to look.
    next_look: Option<Nanos>,
}

/// Notices to one use.
#[derive(Clone, Copy)]
struct Mailbox {
    /// The lock, and the use of it; `None` if the slot is free.
    owner: Option<(RemoteAddr, Peer)>,
    successor: Mail,
    /// The notice that hands the lock over, of either kind.
    turn: Mail,
}

#[derive(Clone, Copy)]
enum Mail {
    None,
    Unread(Notice, u64),
    Read,
}

/// How to match a notice to a use of its slot.
#[derive(Clone, Copy)]
struct Sorting {
    /// See [`LockSystem::LATER`].
    later: Option<fn(u64, u64) -> bool>,
    /// Whether numbers in notices are ignored, as published.
    by_name: bool,
}

const CLOSED: Mailbox = Mailbox { owner: None, successor: Mail::None, turn: Mail::None };

struct Sent {
    letter: Letter,
    to: Endpoint,
    due: Nanos,
    pause: Duration,
}

impl Mailbox {
    fn mail(&mut self, kind: NoticeKind) -> &mut Mail {
        match kind {
            NoticeKind::Successor => &mut self.successor,
            NoticeKind::Handover | NoticeKind::ModeChanged => &mut self.turn,
            NoticeKind::Joins | NoticeKind::Awaits | NoticeKind::Left => {
                unreachable!("{kind:?} is kept elsewhere")
            }
        }
    }

    /// Whether the notice addresses the mailbox's use, as far as names tell.
    fn is_for(&self, letter: &Letter, sorting: Sorting) -> bool {
        let Peer { who, number } = letter.to;
        self.owner.is_some_and(|(at, own)| {
            let is_number = match letter.kind {
                // The word has had room for half of the number, or for none of it.
                NoticeKind::Successor | NoticeKind::Joins => {
                    sorting.later.is_some() || own.number as u32 == number as u32
                }
                NoticeKind::Handover | NoticeKind::ModeChanged => {
                    sorting.by_name || own.number == number
                }
                NoticeKind::Awaits | NoticeKind::Left => false,
            };
            at == letter.at && own.who == who && is_number
        })
    }
}

impl Notices {
    /// Opens the mailbox of a slot for a use, from an enqueue on.
    fn open(&mut self, own: Peer, at: RemoteAddr) {
        let slot = own.who.slot();
        if self.boxes.len() <= usize::from(slot) {
            self.boxes.resize(usize::from(slot) + 1, CLOSED);
        }
        self.hush(slot);
        self.boxes[usize::from(slot)] = Mailbox { owner: Some((at, own)), ..CLOSED };
        self.joined.get_mut(usize::from(slot)).into_iter().for_each(VecDeque::clear);
    }

    /// Closes the mailbox of a use that has ended.
    fn close(&mut self, slot: u16) {
        // A use that was told of a reset before it began had no mailbox.
        if usize::from(slot) < self.boxes.len() {
            self.hush(slot);
            self.boxes[usize::from(slot)] = CLOSED;
        }
    }

    /// Whether all notices were acknowledged.
    pub(super) const fn is_quiet(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Puts a notice in the mailbox of its use, if the mailbox is open and has not had this notice.
    /// Returns whether the notice is new.
    ///
    /// Of two possible successors, where only payloads identify the addressed use, the later stays:
    /// successors of the present use have enqueued after successors of a former use.
    fn put(&mut self, letter: &Letter, sorting: Sorting) -> bool {
        let slot = usize::from(letter.to.who.slot());
        let mailbox = self.boxes.get_mut(slot).filter(|own| own.is_for(letter, sorting));
        let Some(mailbox) = mailbox else { return false };
        if letter.kind == NoticeKind::Joins {
            if self.joined.len() <= slot {
                self.joined.resize_with(slot + 1, VecDeque::new);
            }
            self.joined[slot].push_back(letter.from);
            return true;
        }
        let mail = mailbox.mail(letter.kind);
        let is_new = match mail {
            Mail::None => true,
            Mail::Unread(notice, says) if notice.kind() == NoticeKind::Successor => {
                sorting.later.is_some_and(|later| later(letter.says, *says))
            }
            Mail::Unread(..) | Mail::Read => false,
        };
        if is_new {
            *mail = Mail::Unread(Notice::new(letter.kind, letter.from), letter.says);
        }
        is_new
    }

    /// Takes a notice to the use of a slot, with its payload; also a reader's notice, if the use
    /// `gathers` readers.
    pub(super) fn take(&mut self, slot: u16, gathers: bool) -> Option<(Notice, u64)> {
        let mailbox = &mut self.boxes[usize::from(slot)];
        let mail = [&mut mailbox.turn, &mut mailbox.successor].into_iter().find_map(|mail| {
            let Mail::Unread(notice, says) = *mail else { return None };
            *mail = Mail::Read;
            Some((notice, says))
        });
        if mail.is_some() || !gathers {
            return mail;
        }
        let reader = self.joined.get_mut(usize::from(slot))?.pop_front()?;
        Some((Notice::new(NoticeKind::Joins, reader), 0))
    }

    /// Makes room for another notice: the taken notice was not for this use.
    pub(super) fn refuse(&mut self, slot: u16, kind: NoticeKind) {
        *self.boxes[usize::from(slot)].mail(kind) = Mail::None;
    }

    /// Sends no more the notice from the use of a slot to its predecessor.
    fn hush(&mut self, slot: u16) {
        if let Some((_, own)) = self.boxes[usize::from(slot)].owner {
            self.unacknowledged.retain(|Sent { letter, .. }| {
                letter.kind != NoticeKind::Successor || letter.from != own
            });
        }
    }

    /// Sends nothing more about a lock: it is being reset.
    pub(super) fn forget(&mut self, at: RemoteAddr) {
        self.unacknowledged.retain(|sent| sent.letter.at != at);
    }

    /// Sends nothing more about the locks on a memory node.
    pub(super) fn forget_all(&mut self, memory: NodeId) {
        self.unacknowledged.retain(|sent| sent.letter.at.node() != memory);
    }
}

impl<S: LockSystem> Core<S> {
    /// Opens the mailbox of a slot for a use, from an enqueue on. Returns the number of the
    /// enqueue.
    pub(super) fn open(&self, slot: u16, at: RemoteAddr) -> u64 {
        let notices = &mut *self.notices.borrow_mut();
        if notices.next == 0 {
            // Half of the numbers are left; and other lives of this node begin at other numbers.
            let begin = self.lane.executor().env().begin_counting();
            notices.next = begin & ((1 << (COUNT_BITS - 1)) - 1);
        }
        notices.next += 1;
        let number = u64::from(self.me.life.incarnation()) << COUNT_BITS | notices.next;
        notices.open(Peer { who: self.name(slot), number }, at);
        number
    }

    /// Closes the mailbox of a use that has ended.
    pub(super) fn close(&self, slot: u16) {
        self.notices.borrow_mut().close(slot);
    }

    /// Sends the notice of a use to the use named in it, with the payload `says`.
    pub(super) fn tell(self: &Rc<Self>, slot: u16, notice: Notice, says: u64) {
        let (kind, peer) = (notice.kind(), notice.peer());
        let owner = self.notices.borrow().boxes[usize::from(slot)].owner;
        let (at, from) = owner.expect("a use has its box open");
        let letter = Letter { kind, at, from, to: peer, says, life: self.life_of(at.node()) };
        let Some(node) = self.peers.node(peer.who.node()) else { return };
        let to = Endpoint { node, lane: LaneId(peer.who.lane()) };
        if to == self.lane.at() {
            return self.deliver(&letter);
        }
        self.send(to, &wire::encode_letter(&letter));
        // As published, a notice is sent once.
        if self.system.head().is_none() {
            return;
        }
        let due = self.lane.executor().now().after(AGAIN.0);
        let sent = Sent { letter, to, due, pause: AGAIN.0 };
        self.notices.borrow_mut().unacknowledged.push(sent);
        self.look_at(due);
    }

    /// Opens the mailbox of a slot for a use that waits for this turn.
    pub(super) fn open_for(&self, slot: u16, at: RemoteAddr, turn: u64) {
        self.notices.borrow_mut().open(Peer { who: self.name(slot), number: turn }, at);
    }

    /// Tells a use once of its turn, with the payload `says`.
    pub(super) fn tell_once(&self, at: RemoteAddr, slot: u16, notice: Notice, says: u64) {
        let (kind, peer) = (notice.kind(), notice.peer());
        let from = Peer { who: self.name(slot), number: 0 };
        let letter = Letter { kind, at, from, to: peer, says, life: self.life_of(at.node()) };
        let Some(node) = self.peers.node(peer.who.node()) else { return };
        let to = Endpoint { node, lane: LaneId(peer.who.lane()) };
        match to == self.lane.at() {
            true => self.deliver(&letter),
            false => self.send(to, &wire::encode_letter(&letter)),
        }
    }

    /// Name of the request in a slot.
    pub(super) fn name(&self, slot: u16) -> Waiter {
        Waiter::new(self.me.life.node(), self.lane.at().lane.0, slot)
    }

    /// Takes in a notice, or the acknowledgement of one.
    pub(super) fn hear(&self, from: Endpoint, letter: &Letter, is_answer: bool) {
        if is_answer {
            let unacknowledged = &mut self.notices.borrow_mut().unacknowledged;
            return unacknowledged.retain(|sent| sent.letter != *letter);
        }
        self.deliver(letter);
        if self.system.head().is_some() && !S::TELLS_ONCE {
            self.send(from, &wire::encode_answer_to(letter));
        }
    }

    fn deliver(&self, letter: &Letter) {
        // Notices of a lost memory are for nobody.
        if letter.life != self.life_of(letter.at.node()) {
            return;
        }
        match letter.kind {
            NoticeKind::Joins | NoticeKind::Awaits | NoticeKind::Left if !S::HAS_HOMES => return,
            NoticeKind::Awaits | NoticeKind::Left => return self.count(letter),
            NoticeKind::Successor
            | NoticeKind::Handover
            | NoticeKind::ModeChanged
            | NoticeKind::Joins => {}
        }
        let slot = letter.to.who.slot();
        let by_name = S::KEEPS && self.system.keeper_rules().is_some();
        let sorting = Sorting { later: S::LATER, by_name };
        if !self.notices.borrow_mut().put(letter, sorting) {
            return;
        }
        if letter.kind != NoticeKind::Successor {
            self.notices.borrow_mut().hush(slot);
        }
        let task = self.slots.borrow_mut().get(slot).task;
        task.into_iter().for_each(|task| self.lane.executor().wake(task));
    }

    pub(super) fn send(&self, to: Endpoint, bytes: &[u8]) {
        let told = self.rpc.tell(to, self.service, bytes);
        told.unwrap_or_else(|error| unreachable!("a notice is short: {error}"));
    }

    /// Makes sure that the repeater looks at the notices at `due` or earlier.
    fn look_at(self: &Rc<Self>, due: Nanos) {
        let executor = self.lane.executor();
        let repeater = {
            let notices = &mut *self.notices.borrow_mut();
            if notices.next_look.is_some_and(|look| look <= due) {
                return;
            }
            notices.next_look = Some(due);
            *notices.repeater.get_or_insert_with(|| {
                executor.spawn(repeat(Rc::downgrade(self), executor.clone()))
            })
        };
        executor.wake_at(due, repeater);
    }

    /// Sends the due notices again.
    fn repeat(self: &Rc<Self>) {
        let now = self.lane.executor().now();
        let mut due = Vec::new();
        let next = {
            let notices = &mut *self.notices.borrow_mut();
            if notices.next_look.is_none_or(|look| now < look) {
                return;
            }
            notices.next_look = None;
            // Notices to lost uses are for a reset; an expelled node hears of no reset.
            let is_out = self.is_expelled.get();
            notices.unacknowledged.retain(|Sent { letter, .. }| {
                !is_out && (letter.kind == NoticeKind::Successor || !self.is_lost(letter.to))
            });
            for sent in &mut notices.unacknowledged {
                if sent.due <= now {
                    sent.pause = (sent.pause * 2).min(AGAIN.1);
                    sent.due = now.after(sent.pause);
                    due.push((sent.to, wire::encode_letter(&sent.letter)));
                }
            }
            notices.unacknowledged.iter().map(|sent| sent.due).min()
        };
        if !broken(Rule::NoticesAreRepeated) {
            due.iter().for_each(|(to, bytes)| self.send(*to, bytes));
        }
        next.into_iter().for_each(|due| self.look_at(due));
    }

    /// Whether the node of a use was lost, in the life in which it numbered the use.
    fn is_lost(&self, peer: Peer) -> bool {
        let incarnation = (peer.number >> COUNT_BITS) as u32;
        self.peers.is_settled(Claimant::new(peer.who.node(), incarnation))
    }
}

/// Task that sends notices again, as long as the lane uses locks.
async fn repeat<S: LockSystem>(core: Weak<Core<S>>, executor: Handle) {
    loop {
        let Some(core) = core.upgrade() else { return };
        core.repeat();
        drop(core);
        executor.suspend().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{NodeId, RegionId};

    /// The lock.
    fn at() -> RemoteAddr {
        RemoteAddr::new(NodeId(0), RegionId(0), 64)
    }

    const OTHER: Peer = Peer { who: Waiter::new(1, 0, 0), number: 3 << COUNT_BITS | 9 };

    /// The use numbered `count` of this lane's first slot.
    fn own(count: u64) -> Peer {
        Peer { who: Waiter::new(0, 0, 0), number: 2 << COUNT_BITS | count }
    }

    const NUMBERED: Sorting = Sorting { later: None, by_name: false };

    fn handover(to: Peer) -> Letter {
        Letter { kind: NoticeKind::Handover, at: at(), from: OTHER, to, says: 7, life: 0 }
    }

    /// As the word names its tail.
    fn successor(of: Peer) -> Letter {
        let to = Peer { number: u64::from(of.number as u32), ..of };
        Letter { kind: NoticeKind::Successor, to, ..handover(of) }
    }

    #[test]
    fn a_notice_is_for_one_use_once() {
        let mut notices = Notices::default();
        assert!(!notices.put(&handover(own(5)), NUMBERED), "nobody is there");
        notices.open(own(5), at());
        for letter in [successor(own(5)), handover(own(5))] {
            let elsewhere = Letter { at: at().plus(64), ..letter };
            let earlier =
                Letter { to: Peer { number: letter.to.number - 1, ..letter.to }, ..letter };
            let namesake = Letter { to: Peer { who: OTHER.who, ..letter.to }, ..letter };
            for stray in [elsewhere, earlier, namesake] {
                assert!(!notices.put(&stray, NUMBERED), "{stray:?}");
            }
            assert!(notices.put(&letter, NUMBERED));
            assert!(!notices.put(&letter, NUMBERED), "twice");
            assert_eq!(notices.take(0, false), Some((Notice::new(letter.kind, OTHER), 7)));
            assert!(!notices.put(&letter, NUMBERED), "again, after it was read");
            assert_eq!(notices.take(0, false), None);
            notices.refuse(0, letter.kind);
            assert!(notices.put(&letter, NUMBERED), "the first was not for this use");
            assert!(notices.take(0, false).is_some());
        }
    }

    /// A word without room for numbers names only the slot: what is said tells which use is meant.
    #[test]
    fn of_two_successors_the_later_one_stays_and_one_that_is_refused_makes_room() {
        let later = Sorting { later: Some(|one, other| one > other), by_name: false };
        let successor_with = |says, number| {
            let from = Peer { number, ..OTHER };
            Letter { says, from, ..successor(Peer { number: 0, ..own(0) }) }
        };
        let heard = |letter: Letter| (Notice::new(NoticeKind::Successor, letter.from), letter.says);
        let mut notices = Notices::default();
        notices.open(own(5), at());
        assert!(notices.put(&successor_with(3, 1), later));
        assert!(!notices.put(&successor_with(3, 1), later), "twice");
        assert!(!notices.put(&successor_with(2, 2), later), "an earlier one, which is late");
        assert!(notices.put(&successor_with(4, 3), later));
        assert_eq!(notices.take(0, false), Some(heard(successor_with(4, 3))));
        assert!(!notices.put(&successor_with(5, 4), later), "there is one successor");
        notices.refuse(0, NoticeKind::Successor);
        assert_eq!(notices.take(0, false), None);
        assert!(notices.put(&successor_with(5, 4), later), "the first was not for this use");
        assert_eq!(notices.take(0, false), Some(heard(successor_with(5, 4))));
        // A turn comes once, in whichever words.
        let turn = Letter { kind: NoticeKind::ModeChanged, ..handover(own(5)) };
        let former = Letter { to: own(4), ..turn };
        assert!(!notices.put(&former, later));
        assert!(notices.put(&turn, later));
        assert!(!notices.put(&handover(own(5)), later));
        assert_eq!(notices.take(0, false), Some((Notice::new(NoticeKind::ModeChanged, OTHER), 7)));
    }

    /// As published, a name says enough.
    #[test]
    fn by_name_a_turn_of_a_former_use_is_taken_for_the_present_one_s() {
        let mut notices = Notices::default();
        notices.open(own(5), at());
        assert!(notices.put(&handover(own(4)), Sorting { by_name: true, ..NUMBERED }));
        assert_eq!(notices.take(0, false), Some((Notice::new(NoticeKind::Handover, OTHER), 7)));
    }

    /// Any number of readers may come after a use, which hears of them when it asks for them.
    #[test]
    fn readers_wait_until_the_use_gathers_them() {
        let by_name = Sorting { later: Some(|_, _| false), by_name: false };
        let joins = |number| {
            let (from, to) = (Peer { number, ..OTHER }, Peer { number: 0, ..own(0) });
            Letter { kind: NoticeKind::Joins, from, to, ..handover(own(5)) }
        };
        let mut notices = Notices::default();
        assert!(!notices.put(&joins(1), by_name), "nobody is there");
        notices.open(own(5), at());
        assert_eq!(notices.take(0, true), None);
        assert!(notices.put(&joins(1), by_name) && notices.put(&joins(2), by_name));
        assert_eq!(notices.take(0, false), None);
        assert!(notices.put(&handover(own(5)), by_name));
        assert_eq!(
            notices.take(0, true).map(|(notice, _)| notice.kind()),
            Some(NoticeKind::Handover)
        );
        let from = |(notice, _): (Notice, u64)| (notice.kind(), notice.peer().number);
        assert_eq!(notices.take(0, true).map(from), Some((NoticeKind::Joins, 1)));
        notices.open(own(6), at());
        assert_eq!(notices.take(0, true), None, "they have come after the former use");
    }

    /// A slot is used again, by another request or after a reset; what was said to its former use
    /// comes late.
    #[test]
    fn what_was_for_the_former_use_is_for_nobody() {
        let mut notices = Notices::default();
        notices.open(own(5), at());
        assert!(notices.put(&successor(own(5)), NUMBERED));
        notices.open(own(6), at());
        assert_eq!(notices.take(0, false), None, "what was not read either");
        for letter in [successor(own(5)), handover(own(5))] {
            assert!(!notices.put(&letter, NUMBERED));
        }
        notices.close(0);
        for letter in [successor(own(6)), handover(own(6))] {
            assert!(!notices.put(&letter, NUMBERED));
        }
    }

    #[test]
    fn a_use_that_ends_or_is_reset_says_no_more_that_it_waits() {
        let mut notices = Notices::default();
        let to = Endpoint { node: NodeId(1), lane: LaneId(0) };
        let sent = |kind, from| Sent {
            letter: Letter { kind, at: at(), from, to: OTHER, says: 0, life: 0 },
            to,
            due: Nanos(0),
            pause: AGAIN.0,
        };
        notices.open(own(5), at());
        notices.unacknowledged.push(sent(NoticeKind::Successor, own(5)));
        notices.unacknowledged.push(sent(NoticeKind::Handover, own(4)));
        notices.close(0);
        assert_eq!(notices.unacknowledged.len(), 1, "it was handed over all the same");
        notices.forget(at().plus(64));
        assert!(!notices.is_quiet());
        notices.forget(at());
        assert!(notices.is_quiet());
    }
}
