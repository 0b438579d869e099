//! Fault points of a use ([`lotus_points`]): the places at which a use stops if its node is struck.
//! A build without fault points does not call this module.

use lotus_points::passes;

use super::{Core, Run, RunState};
use crate::contract::{Event, LockSystem, Notice, Step, Verb};

impl<S: LockSystem> Run<S> {
    /// Whether the node of the use was struck, and the use stands where it was; if the node pauses,
    /// the use goes on in the first turn after the pause.
    #[cold]
    pub(super) fn stands(&self, core: &Core<S>) -> bool {
        let executor = core.lane.executor();
        let stands = self.point_state.stands(|| executor.now().0);
        if stands {
            let next = executor.now().after(std::time::Duration::from_nanos(1));
            executor.wake_at(next, executor.current());
        }
        stands
    }

    /// Passes the point behind the first verb of an acquisition, or of a release.
    #[cold]
    pub(super) fn has_posted(&mut self, core: &Core<S>) {
        let (now, node) = Self::here(core);
        match self.doing {
            RunState::Verb(..) | RunState::InBatch(_) if self.is_leaving => {
                passes!(self.point_state, now, node, ReleasePosted);
            }
            RunState::Verb(..) => {
                passes!(self.point_state, now, node, LockPosted);
            }
            _ => {}
        }
    }

    /// Passes the point before a release posts anything. Returns whether the use stops at the
    /// point.
    #[cold]
    pub(super) fn stops_before_release(&mut self, core: &Core<S>, step: Step) -> bool {
        let (now, node) = Self::here(core);
        let stops = passes!(self.point_state, now, node, ReleaseBegun);
        if stops {
            self.doing = RunState::Next(step);
        }
        stops
    }

    /// Passes the point behind the verb that has released the lock, with nothing left to do.
    /// Returns whether the use stops at the point.
    #[cold]
    pub(super) fn has_answer(&mut self, core: &Core<S>, event: Event, step: Step) -> bool {
        let is_landed = matches!(event, Event::Found(_)) && step == Step::Gone(Ok(()));
        let (now, node) = Self::here(core);
        self.is_leaving && is_landed && passes!(self.point_state, now, node, ReleaseLanded)
    }

    /// Passes the point before a step. Returns whether the use stops at the point.
    #[cold]
    pub(super) fn stops_before(&mut self, core: &Core<S>, step: Step) -> bool {
        let (now, node) = Self::here(core);
        let is_new = !self.is_leaving && !self.has_waited;
        match step {
            Step::Tell(notice) => {
                let peer = Self::peer(core, notice);
                match self.is_leaving {
                    true => passes!(self.point_state, now, node, NextUntold, with peer),
                    false => passes!(self.point_state, now, node, QueueJoined, with peer),
                }
            }
            Step::Post(Verb::Write { .. }) if is_new => {
                passes!(self.point_state, now, node, QueueJoined)
            }
            Step::Pause(_) if is_new && !core.system.can_leave(&self.state) => {
                passes!(self.point_state, now, node, QueueJoined)
            }
            Step::Listen | Step::Await(_) if !self.is_leaving => {
                passes!(self.point_state, now, node, TurnAwaited)
            }
            Step::Held if self.has_waited => {
                passes!(self.point_state, now, node, TurnSeen)
            }
            Step::Held => passes!(self.point_state, now, node, LockAnswered),
            _ => false,
        }
    }

    /// Passes the point behind a notice of a release.
    #[cold]
    pub(super) fn has_told(&mut self, core: &Core<S>, notice: Notice) {
        let (now, node) = Self::here(core);
        passes!(self.point_state, now, node, NextTold, with Self::peer(core, notice));
    }

    /// The time, and the node of this lane.
    fn here(core: &Core<S>) -> (u64, u16) {
        (core.lane.executor().now().0, core.lane.at().node.0)
    }

    /// The addressed node of a notice.
    fn peer(core: &Core<S>, notice: Notice) -> Option<u16> {
        core.peers.node(notice.peer().who.node()).map(|node| node.0)
    }
}
