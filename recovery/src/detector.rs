//! Who is suspected of being dead, and whether this node may still trust itself.
//!
//! # What it is
//! Small state machines over times and counts that are passed in. Every compute node counts up a
//! word of its own in each memory node, its *beat*, and reads those of all others in the same
//! batch. [`Detector`] says whose beat has moved nowhere for a lease. [`Answers`] says which memory
//! node has not answered for a lease, while another one has. [`Lease`] says whether this node's own
//! beat is known to have landed somewhere within the last lease; if not, others may have given it
//! up, and it begins nothing more until it knows better.
//!
//! # When silence counts
//! Only while somebody listens. A node that has paused, or that was cut off from the memory node,
//! has heard nobody for a while through its own fault. So whenever it has heard nothing at all for
//! half a lease, everybody gets a whole lease anew. The same goes for a clock that jumps.
//!
//! # What it is not
//! Right. A node that is merely slow is suspected like a dead one, and nothing rests on the
//! difference: it is fenced before anybody touches what it was doing (H2).

use std::time::Duration;

use lotus_fabric::env::Nanos;

use crate::beat::Beat;

/// Watches the beats of all compute nodes.
#[derive(Clone, Debug)]
pub struct Detector {
    lease: Duration,
    /// When all beats were last heard.
    heard: Option<Nanos>,
    /// By compute node: the beat, and since when it has not moved.
    peers: Vec<(Beat, Nanos)>,
}

impl Detector {
    /// Suspects whoever is silent for `lease`.
    pub fn new(lease: Duration) -> Self {
        Self { lease, heard: None, peers: Vec::new() }
    }

    /// All beats were read: when that was asked for, what they were, and by place whether the life
    /// that beats so is known to take part: silence counts from then on. Returns who is suspected,
    /// by place, in the eyes of a node that hears this for as long as it takes.
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
    /// When somebody last looked.
    looked: Option<Nanos>,
    /// By memory node: when the last question was asked that it has answered, or since when it is
    /// listened to.
    since: Vec<Nanos>,
}

impl Answers {
    /// Listens to so many memory nodes.
    pub fn new(lease: Duration, memory_nodes: usize) -> Self {
        Self { lease, looked: None, since: vec![Nanos(0); memory_nodes] }
    }

    /// The memory node at this place has answered what was asked then.
    pub fn answered(&mut self, place: usize, asked: Nanos) {
        self.since[place] = self.since[place].max(asked);
    }

    /// Which of the memory nodes at `places` have not answered for a lease, and for how long. If
    /// none of several has for half of it, that is this node's own fault, and all begin anew: those
    /// that are the last to be heard again afterwards have not been silent. Whoever asks less often
    /// than twice in a lease has not listened either.
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

/// This node's own right to go on.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    length: Duration,
    /// When the last beat was sent that has certainly landed.
    since: Nanos,
}

impl Lease {
    /// A lease of this length that begins now.
    pub fn new(length: Duration, now: Nanos) -> Self {
        Self { length, since: now }
    }

    /// The beat that was sent at `sent` has landed.
    pub fn renew(&mut self, sent: Nanos) {
        self.since = self.since.max(sent);
    }

    /// Whether nobody can have suspected this node yet.
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

    /// What each story says: times in milliseconds, the beats heard then, and who is suspected.
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

    /// Its beat may have been announced long before it was taken in.
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
        /// When whoever answered, in milliseconds.
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
        // (what, when who answered, who is left, who is silent for how long)
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
