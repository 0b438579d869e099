//! Beats of coordinator 0: which compute nodes beat, and which memory nodes answer.
//!
//! # What it is
//! In each turn coordinator 0 counts up its node's beat on every memory node still in use, and
//! reads the beats of all compute nodes there, in one batch per memory node;
//! [`lotus_recovery::detector`] judges the answers since the last turn. A node that beats on any
//! memory node is alive. A delayed batch does not delay the batches of other memory nodes.
//!
//! # What it is not
//! An actor: [`crate::membership::members`] acts on the findings.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_points::point;
use lotus_recovery::{Answers, Beat, Detector, Lease};
use lotus_sabotage::{Rule, broken};

use crate::api::error::TxnError;
use crate::membership::members::{BeatReport, beat_word};
use crate::node::coordinator::Coordinator;
use crate::node::peers::members::Suspect;

/// Part of a lease for which a turn may be late.
const LATE: u32 = 2;

/// State of the beats; see the module's documentation.
pub(crate) struct Watch {
    detector: Detector,
    lease: Lease,
    answers: Answers,
    lives: Lives,
    /// The initial memory nodes, by place.
    memory: Vec<NodeId>,
    /// Places of memory nodes in use at the last turn.
    in_use: Vec<usize>,
    inbox: Rc<RefCell<Inbox>>,
    /// Time between turns that is logged as too long.
    late: Duration,
}

/// Results of the batches.
#[derive(Default)]
struct Inbox {
    /// Whether a batch is under way, by memory node.
    busy: Vec<bool>,
    /// Send time of the latest batch answered since the last turn, by memory node.
    answered: Vec<Option<Nanos>>,
    /// Latest beat, by compute node.
    beats: Vec<Beat>,
}

impl Watch {
    pub(crate) fn new(coordinator: &Coordinator, lease: Duration) -> Self {
        let now = coordinator.executor.now();
        // The peers may count from now on, and the first turn may be late too.
        coordinator.node.members.note_turn(now);
        let memory: Vec<NodeId> = coordinator.shared.placement.primaries().collect();
        let count = memory.len();
        let peers = coordinator.shared.peers.len();
        let beats = vec![Beat::NONE; peers];
        let inbox = Inbox { busy: vec![false; count], answered: vec![None; count], beats };
        Self {
            detector: Detector::new(lease),
            lease: Lease::new(lease, now),
            answers: Answers::new(lease, count),
            lives: Lives(vec![None; peers]),
            in_use: (0..count).collect(),
            memory,
            inbox: Rc::new(RefCell::new(inbox)),
            late: lease / LATE,
        }
    }

    /// Beats, and returns the news since the last turn; `None` without news.
    pub(crate) fn listen(&mut self, coordinator: &Rc<Coordinator>) -> Option<BeatReport> {
        let now = coordinator.executor.now();
        if let Some(gap) = coordinator.node.members.note_turn(now)
            && gap >= self.late
        {
            tracing::warn!(
                compute_node = coordinator.node.index,
                ?gap,
                "coordinator 0 has been late to beat: its thread stood still, or has too much to do"
            );
        }
        let left = |place: &usize| !coordinator.configuration.has_left(self.memory[*place]);
        let places: Vec<usize> = (0..self.memory.len()).filter(left).collect();
        for place in places.iter().filter(|place| !self.in_use.contains(place)) {
            // The memory node has joined, and was sent nothing before: count its silence from now.
            self.answers.answered(*place, now);
        }
        self.in_use.clone_from(&places);
        let news = self.hear(coordinator, now, &places);
        if !self.lease.is_held(now) {
            coordinator.node.suspend();
        }
        let beat = coordinator.node.next_beat();
        for place in places {
            if !std::mem::replace(&mut self.inbox.borrow_mut().busy[place], true) {
                let inbox = Rc::clone(&self.inbox);
                let of = Rc::clone(coordinator);
                coordinator
                    .executor
                    .spawn(async move { send_beat(&of, place, beat, &inbox).await });
            }
        }
        news
    }

    /// Collects the results of the last batches.
    fn hear(
        &mut self,
        coordinator: &Coordinator,
        now: Nanos,
        places: &[usize],
    ) -> Option<BeatReport> {
        let mut inbox = self.inbox.borrow_mut();
        let mut latest = None;
        for (place, answered) in inbox.answered.iter_mut().enumerate() {
            if let Some(asked) = answered.take() {
                self.answers.answered(place, asked);
                latest = latest.max(Some(asked));
            }
        }
        let silent = self.answers.silent(now, places);
        let silent = silent.into_iter().map(|(place, since)| (self.memory[place], since));
        let silent: Vec<_> = silent.collect();
        let suspects = match latest {
            Some(asked) => {
                self.lease.renew(asked);
                let members = &coordinator.node.members;
                members.note_beat(asked);
                let peers = &coordinator.shared.peers;
                let takes_part = |index: usize| {
                    let life = Suspect::at(peers[index].id, inbox.beats[index]);
                    members.knows(life) || broken(Rule::SuspicionsNameALife)
                };
                self.detector.hear(asked, &inbox.beats, takes_part)
            }
            // No memory node has answered: report the silent ones only.
            None if !silent.is_empty() => Vec::new(),
            None => return None,
        };
        let peers = &coordinator.shared.peers;
        let suspect = |index: usize| Suspect::at(peers[index].id, inbox.beats[index]);
        let suspects = suspects.into_iter().map(suspect).collect();
        let lives = (0..peers.len()).map(suspect).collect();
        let is_unseen = |index: &usize| inbox.beats[*index] == Beat::NONE;
        let unseen = (0..peers.len()).filter(is_unseen).collect();
        let known_for = self.lives.hear(now, &inbox.beats);
        Some(BeatReport { at: now, asked: latest, suspects, unseen, lives, known_for, silent })
    }
}

/// Admission epoch of the latest life that beat, and the time of its first known beat, by compute
/// node; `None` if the node has never beaten.
struct Lives(Vec<Option<(Epoch, Nanos)>>);

impl Lives {
    /// Notes the latest beats. Returns for each node the time since its life was first known: zero
    /// if the node has never beaten.
    fn hear(&mut self, now: Nanos, beats: &[Beat]) -> Vec<Duration> {
        let known_for = |(life, beat): (&mut Option<(Epoch, Nanos)>, &Beat)| match *life {
            _ if *beat == Beat::NONE => Duration::ZERO,
            Some((joined, since)) if joined == beat.joined() => now.since(since),
            _ => {
                *life = Some((beat.joined(), now));
                Duration::ZERO
            }
        };
        self.0.iter_mut().zip(beats).map(known_for).collect()
    }
}

/// Beats on a memory node, and reads the nodes' beats there.
async fn send_beat(coordinator: &Coordinator, place: usize, beat: Beat, inbox: &RefCell<Inbox>) {
    let (shared, node) = (&coordinator.shared, &coordinator.node);
    let word = |index: usize| beat_word(&shared.placement, place, index);
    let asked = coordinator.executor.now();
    let mut batch = coordinator.lane.batch();
    batch.write_word(word(node.index), beat.word());
    let all = batch.read(word(0), shared.peers.len() * WORD_BYTES);
    let posted = batch.post().await;
    point!(node.id.0, Beat, place, shared.placement.group_count());
    match posted {
        Ok(done) => {
            let mut inbox = inbox.borrow_mut();
            inbox.answered[place] = inbox.answered[place].max(Some(asked));
            for (known, beat) in inbox.beats.iter_mut().zip(done.words(all)) {
                *known = known.or_later(Beat::from_word(*beat));
            }
        }
        Err(error) => {
            if coordinator.after_failure(error).await == TxnError::Fenced {
                node.expel();
            }
        }
    }
    debug_assert!(inbox.borrow().busy[place], "I186: one beat is under way to each memory node");
    inbox.borrow_mut().busy[place] = false;
}

#[cfg(test)]
mod tests {
    use lotus_recovery::membership::FIRST_EPOCH;

    use super::*;

    #[test]
    fn a_life_is_known_since_its_first_beat() {
        let mut lives = Lives(vec![None; 2]);
        let at = |second: u64| Nanos(1).after(Duration::from_secs(second));
        let seconds = |known: [u64; 2]| known.map(Duration::from_secs).to_vec();
        let (first, second) = (Beat::first(FIRST_EPOCH), Beat::first(Epoch(FIRST_EPOCH.0 + 3)));
        assert_eq!(lives.hear(at(0), &[first, Beat::NONE]), seconds([0, 0]));
        assert_eq!(lives.hear(at(2), &[first.next(), Beat::NONE]), seconds([2, 0]));
        assert_eq!(lives.hear(at(3), &[first.next(), first]), seconds([3, 0]));
        assert_eq!(lives.hear(at(5), &[second, first]), seconds([0, 2]));
        assert_eq!(
            lives.hear(at(6), &[second, first]),
            seconds([1, 3]),
            "however long it is silent"
        );
    }
}
