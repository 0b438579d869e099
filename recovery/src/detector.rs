//! Suspicion of silent nodes, and the local node's lease.
//!
//! # What it is
//! Small state machines over times and counts that are passed in. Every compute node counts up a
//! word in each memory node, its *beat*, and reads the beats of all nodes in the same batch.
//! [`Detector`] reports nodes whose beat has not moved for a lease. [`Answers`] reports memory
//! nodes that have not answered for a lease, while another memory node has. [`Standoff`] reports
//! cuts between compute nodes that have lasted for a lease. [`Lease`] tells whether this node's own
//! beat is known to have landed somewhere within the last lease; if not, the cluster may have given
//! this node up, and the node begins nothing more until it knows better.
//!
//! # When silence counts
//! Silence counts only while this node listens (I74). A node that has paused, or that was cut off
//! from the memory node, has heard no beat for a while through its own fault. So after half a lease
//! of hearing nothing at all, a node gives every other node a whole lease anew. A jump of the clock
//! has the same effect.
//!
//! # Limits
//! Detection is not accurate. A node that is merely slow is suspected like a dead node. Safety does
//! not depend on the difference: a suspect is fenced before its transactions are touched (H2).

use std::time::Duration;

use lotus_fabric::env::Nanos;

use crate::beat::Beat;
use crate::membership::cuts::Cut;

/// Watches the beats of all compute nodes.
#[derive(Clone, Debug)]
pub struct Detector {
    lease: Duration,
    /// Time when all beats were last read.
    heard: Option<Nanos>,
    /// Last beat of each compute node, and the time since which the beat has not moved.
    peers: Vec<(Beat, Nanos)>,
}

impl Detector {
    /// Creates a detector that suspects a node when its beat has not moved for `lease`.
    pub fn new(lease: Duration) -> Self {
        Self { lease, heard: None, peers: Vec::new() }
    }

    /// Takes the beats of all compute nodes, read at time `asked`, and returns the places of
    /// suspects; the caller's own place is no exception. `takes_part` tells whether the life at a
    /// place is known to be live: silence counts from that moment on.
    pub fn hear(
        &mut self,
        asked: Nanos,
        beats: &[Beat],
        takes_part: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let attentive = self.heard.is_some_and(|heard| asked.since(heard) < self.lease / 2);
        self.heard = Some(asked);
        if !attentive || self.peers.len() != beats.len() {
            self.peers = beats.iter().map(|beat| (*beat, asked)).collect();
            return Vec::new();
        }
        for (place, ((known, since), beat)) in self.peers.iter_mut().zip(beats).enumerate() {
            if known != beat || !takes_part(place) {
                (*known, *since) = (*beat, asked);
            }
        }
        let silent = |(beat, since): &(Beat, Nanos)| {
            *beat != Beat::NONE && asked.since(*since) >= self.lease
        };
        let suspects = self.peers.iter().enumerate().filter(|(_, peer)| silent(peer));
        suspects.map(|(index, _)| index).collect()
    }
}

/// Watches which memory nodes answer.
#[derive(Clone, Debug)]
pub struct Answers {
    lease: Duration,
    /// Time of the last call of [`Self::silent`].
    looked: Option<Nanos>,
    /// For each memory node, the sending time of the latest answered question, or the time since
    /// which an answer is expected.
    since: Vec<Nanos>,
}

impl Answers {
    /// Creates a watch over `memory_nodes` memory nodes.
    pub fn new(lease: Duration, memory_nodes: usize) -> Self {
        Self { lease, looked: None, since: vec![Nanos(0); memory_nodes] }
    }

    /// Records that the memory node at `place` has answered a question sent at `asked`.
    pub fn answered(&mut self, place: usize, asked: Nanos) {
        self.since[place] = self.since[place].max(asked);
    }

    /// Memory nodes among `places` that have not answered for a lease, and for how long. If
    /// `places` has several and no answer came for half a lease, the fault is on the side of this
    /// node, and all intervals restart, because memory nodes that answer last after the silence
    /// would otherwise count as silent. All intervals restart, too, if the last call was half a
    /// lease ago or more: the caller was not listening.
    pub fn silent(&mut self, now: Nanos, places: &[usize]) -> Vec<(usize, Duration)> {
        let attentive = self.looked.is_some_and(|looked| now.since(looked) < self.lease / 2);
        self.looked = Some(now);
        if !attentive {
            self.since.fill(now);
            return Vec::new();
        }
        let waited = |place: &usize| now.since(self.since[*place]);
        let some_answer = places.iter().any(|place| waited(place) < self.lease / 2);
        if places.len() > 1 && !some_answer {
            self.since.fill(now);
            return Vec::new();
        }
        let silent = places.iter().filter(|place| waited(place) >= self.lease);
        silent.map(|place| (*place, waited(place))).collect()
    }
}

/// Watches whether cuts between compute nodes last ([`crate::membership::cuts`]).
#[derive(Clone, Debug)]
pub struct Standoff {
    lease: Duration,
    /// Time of the last call of [`Self::lasting`].
    looked: Option<Nanos>,
    /// Reported cuts with the times of their first reports.
    cuts: Vec<(Cut, Nanos)>,
}

impl Standoff {
    /// Creates a watch in which a cut lasts after being reported for `lease`.
    pub fn new(lease: Duration) -> Self {
        Self { lease, looked: None, cuts: Vec::new() }
    }

    /// Takes the `reported` cuts and returns the lasting cuts. All cuts begin anew if the last call
    /// was a lease ago or more: the caller does not know the reports of the meantime.
    pub fn lasting(&mut self, now: Nanos, reported: &[Cut]) -> Vec<Cut> {
        if self.looked.is_none_or(|looked| now.since(looked) >= self.lease) {
            self.cuts.clear();
        }
        self.looked = Some(now);
        self.cuts.retain(|(cut, _)| reported.contains(cut));
        for cut in reported {
            if self.cuts.iter().all(|(known, _)| known != cut) {
                self.cuts.push((*cut, now));
            }
        }
        let lasts = |since: &Nanos| now.since(*since) >= self.lease;
        self.cuts.iter().filter(|(_, since)| lasts(since)).map(|(cut, _)| *cut).collect()
    }
}

/// Right of this node to continue.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    length: Duration,
    /// Sending time of the latest beat that is known to have landed.
    since: Nanos,
}

impl Lease {
    /// Creates a lease of this length, beginning now.
    pub fn new(length: Duration, now: Nanos) -> Self {
        Self { length, since: now }
    }

    /// Records that the beat sent at `sent` has landed.
    pub fn renew(&mut self, sent: Nanos) {
        self.since = self.since.max(sent);
    }

    /// Whether no other node can have suspected this node yet.
    pub fn is_held(&self, now: Nanos) -> bool {
        now.since(self.since) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// One case: its name, then times in milliseconds, the beats heard then, and the suspects.
    type Story<'a> = (&'a str, &'a [(u64, [u64; 2], &'a [usize])]);

    #[test]
    fn silence_counts_while_somebody_listens() {
        let stories: &[Story<'_>] = &[
            (
                "the second has not joined yet",
                &[(0, [1, 0], &[]), (4, [2, 0], &[]), (8, [3, 0], &[]), (12, [4, 0], &[])],
            ),
            (
                "both beat",
                &[(0, [1, 1], &[]), (4, [2, 2], &[]), (8, [3, 3], &[]), (12, [4, 4], &[])],
            ),
            (
                "the second is silent for a lease",
                &[(0, [1, 1], &[]), (4, [2, 1], &[]), (8, [3, 1], &[]), (11, [4, 1], &[1])],
            ),
            (
                "and is heard again",
                &[
                    (0, [1, 1], &[]),
                    (4, [2, 1], &[]),
                    (8, [3, 1], &[]),
                    (10, [4, 1], &[1]),
                    (11, [5, 2], &[]),
                ],
            ),
            (
                "a beat that is slower than the others is a beat",
                &[(0, [1, 1], &[]), (4, [2, 1], &[]), (8, [3, 2], &[]), (12, [4, 2], &[])],
            ),
            (
                "who has paused listens anew",
                &[(0, [1, 1], &[]), (4, [2, 1], &[]), (40, [3, 1], &[]), (44, [4, 1], &[])],
            ),
            (
                "and then silence counts again",
                &[
                    (0, [1, 1], &[]),
                    (40, [3, 1], &[]),
                    (44, [4, 1], &[]),
                    (48, [5, 1], &[]),
                    (50, [6, 1], &[1]),
                ],
            ),
            (
                "oneself as well, as others would",
                &[(0, [1, 1], &[]), (4, [1, 2], &[]), (8, [1, 3], &[]), (10, [1, 4], &[0])],
            ),
        ];
        for (story, steps) in stories {
            let mut detector = Detector::new(LEASE);
            for (at, beats, suspects) in *steps {
                let heard = detector.hear(ms(*at), &beats.map(Beat::from_word), |_| true);
                assert_eq!(heard, *suspects, "{story}, at {at} ms");
            }
        }
    }

    /// A node's beat may have been announced long before the node was taken in.
    #[test]
    fn silence_counts_from_when_a_life_is_known_to_take_part() {
        let mut detector = Detector::new(LEASE);
        let mut hear = |at, own, is_in: bool| {
            let beats = [own, 7].map(Beat::from_word);
            detector.hear(ms(at), &beats, |one| one == 0 || is_in)
        };
        for at in (0..40).step_by(4) {
            assert_eq!(hear(at, at, false), [], "at {at} ms");
        }
        for at in (40..46).step_by(2) {
            assert_eq!(hear(at, at, true), [], "at {at} ms");
        }
        assert_eq!(hear(46, 46, true), [1]);
    }

    #[test]
    fn a_memory_node_is_silent_while_another_one_answers() {
        /// Times in milliseconds, each with the memory nodes that answered then.
        type Asked<'a> = &'a [(u64, &'a [usize])];
        type Case<'a> = (&'a str, Asked<'a>, &'a [usize], &'a [(usize, u128)]);
        let silent = |asked: Asked<'_>, places: &[usize]| {
            let mut answers = Answers::new(LEASE, 3);
            let mut last = Vec::new();
            for (at, answering) in asked {
                answering.iter().for_each(|place| answers.answered(*place, ms(*at)));
                last = answers.silent(ms(*at), places);
            }
            last.into_iter().map(|(place, since)| (place, since.as_millis())).collect::<Vec<_>>()
        };
        let all: &[usize] = &[0, 1, 2];
        // (what, the answers by time, the nodes asked about, the silent ones and for how long)
        let cases: [Case<'_>; 8] = [
            ("all answer", &[(0, all), (4, all), (8, all), (12, all)], all, &[]),
            (
                "one does not",
                &[(0, all), (4, &[0, 2]), (8, &[0, 2]), (12, &[0, 2])],
                all,
                &[(1, 12)],
            ),
            ("nobody does", &[(0, all), (4, all), (8, &[]), (12, &[]), (16, &[])], all, &[]),
            ("the last one", &[(0, all), (4, &[]), (8, &[]), (12, &[])], &[1], &[(1, 12)]),
            ("one comes back", &[(0, all), (4, &[0]), (8, &[0]), (12, all)], all, &[]),
            (
                "nobody does, and then all but one",
                &[(0, all), (4, &[]), (8, &[]), (12, &[]), (16, &[0, 2])],
                all,
                &[],
            ),
            (
                "nobody does, and then one stays silent",
                &[(0, all), (4, &[]), (8, &[]), (12, &[0, 2]), (16, &[0, 2]), (20, &[0, 2])],
                all,
                &[(1, 12)],
            ),
            ("who has paused listens anew", &[(0, all), (4, &[0]), (40, &[0])], all, &[]),
        ];
        for (what, asked, places, expected) in cases {
            assert_eq!(silent(asked, places), expected, "{what}");
        }
    }

    #[test]
    fn a_cut_lasts_when_it_was_reported_for_a_lease_to_a_node_that_listens() {
        use lotus_fabric::ids::NodeId;
        let cut = |by, to| Cut { by: NodeId(by), to: NodeId(to) };
        let (one, two) = (cut(1, 2), cut(3, 2));
        let mut standoff = Standoff::new(LEASE);
        let mut lasting = |at, reported: &[Cut]| standoff.lasting(ms(at), reported);
        assert_eq!(lasting(0, &[one]), []);
        assert_eq!(lasting(6, &[one, two]), []);
        assert_eq!(lasting(10, &[one, two]), [one]);
        assert_eq!(lasting(16, &[one, two]), [one, two]);
        assert_eq!(lasting(18, &[two]), [two], "the other path was mended");
        assert_eq!(lasting(20, &[one, two]), [two], "and was cut again");
        assert_eq!(lasting(40, &[one, two]), [], "it has not listened");
        assert_eq!(lasting(45, &[one, two]), []);
        assert_eq!(lasting(50, &[one, two]), [one, two]);
    }

    #[test]
    fn a_lease_runs_from_when_its_beat_was_sent() {
        let mut lease = Lease::new(LEASE, ms(0));
        assert!(lease.is_held(ms(9)) && !lease.is_held(ms(10)));
        lease.renew(ms(5));
        assert!(lease.is_held(ms(14)) && !lease.is_held(ms(15)));
        // An answer that was overtaken by a later one.
        lease.renew(ms(3));
        assert!(lease.is_held(ms(14)));
    }
}
