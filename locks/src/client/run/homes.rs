//! Locks with homes: the parts of runs and lanes that only systems with homes need.

use std::rc::Rc;

use lotus_fabric::ids::{Endpoint, LaneId, RemoteAddr};

use super::{Core, DriveEnd, Run, RunState};
use crate::client::GivenUp;
use crate::client::wire::{self, Letter};
use crate::contract::{Event, LockSystem, NotHeld, Notice, NoticeKind, Peer, Verb, Waiter};

impl<S: LockSystem> Run<S> {
    /// Sends a notice to the home of the lock, or finds the home first.
    pub(super) fn tell_home(&mut self, core: &Rc<Core<S>>, notice: Notice) {
        let home = core.homes.borrow().of(self.at);
        let Some(home) = home else {
            self.doing = RunState::Homing(notice);
            return;
        };
        let says = core.system.says(&self.state);
        core.tell_home(home, self.at, self.slot, notice, says);
        let step = self.step(core, Event::Told);
        self.doing = RunState::Next(step);
    }

    /// Finds the home of the lock, and sends it the notice.
    pub(super) async fn find_home(
        &mut self,
        core: &Rc<Core<S>>,
        notice: Notice,
    ) -> Option<DriveEnd> {
        match core.find_home(self.at).await {
            Ok(()) => {
                self.tell_home(core, notice);
                None
            }
            Err(GivenUp) if self.is_abandoned(core) => Some(self.abandon(core)),
            Err(GivenUp) => Some(self.end(core, Err(NotHeld::Expelled))),
        }
    }
}

impl<S: LockSystem> Core<S> {
    /// Finds the home of a lock, or makes this lane its home.
    async fn find_home(&self, at: RemoteAddr) -> Result<(), GivenUp> {
        let word = at.plus(8);
        let me = u64::from(self.name(0).raw());
        let mut found = self.read(word).await?;
        while found == 0 {
            found = match self.verb(word, Verb::Swap { expected: 0, new: me }).await? {
                Some(0) => me,
                Some(other) => other,
                None => self.read(word).await?,
            };
        }
        // A home found in a lost memory is no home in the next memory.
        if self.has_abandoned(at.node()) {
            return Err(GivenUp);
        }
        let home = Waiter::of(found as u32).expect("nothing else is written there");
        self.homes.borrow_mut().learn(at, home);
        Ok(())
    }

    /// Sends the home of a lock the notice of the use of a slot.
    fn tell_home(&self, home: Waiter, at: RemoteAddr, slot: u16, notice: Notice, says: u64) {
        let from = Peer { who: self.name(slot), number: 0 };
        let life = self.life_of(at.node());
        let letter = Letter { kind: notice.kind(), at, from, to: notice.peer(), says, life };
        let Some(node) = self.peers.node(home.node()) else { return };
        let to = Endpoint { node, lane: LaneId(home.lane()) };
        match to == self.lane.at() {
            true => self.count(&letter),
            false => self.send(to, &wire::encode_letter(&letter)),
        }
    }

    /// Takes in a notice to this lane as the home of a lock, and tells the writer that has the lock
    /// now, if any.
    pub(in crate::client) fn count(&self, letter: &Letter) {
        let writer = self.homes.borrow_mut().count(letter);
        if let Some(writer) = writer {
            self.tell_once(letter.at, 0, Notice::new(NoticeKind::Handover, writer), 0);
        }
    }
}
