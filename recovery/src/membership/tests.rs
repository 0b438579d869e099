//! Transitions of the membership, one by one and in any order.

use std::collections::BTreeSet;

use lotus_authority::EmbeddedAuthority;
use lotus_router::GroupId;
use proptest::prelude::*;

use super::returns::{Life, MemoryPart, Stage, shards_on};
use super::*;

const NODES: u16 = 4;

fn membership() -> Membership {
    Membership::new((0..NODES).map(|node| (NodeId(node), life(node + 1))))
}

fn life(number: u16) -> Incarnation {
    Incarnation::new(number).expect("small")
}

fn part(of: u16, index: usize) -> PartId {
    PartId { of: NodeId(of), index }
}

#[test]
fn only_members_expel_and_only_members_are_expelled() {
    let whole = membership();
    let one = whole.expel(NodeId(0), NodeId(1)).expect("both take part");
    assert_eq!(one.epoch(), Epoch(2));
    assert_eq!(one.live().count(), 3);
    // (what, from, by, suspect, whether anything happens)
    let cases = [
        ("oneself", &whole, 2, 2, false),
        ("a stranger", &whole, 2, 9, false),
        ("by a stranger", &whole, 9, 2, false),
        ("twice", &one, 0, 1, false),
        ("by who is out", &one, 1, 0, false),
        ("another", &one, 2, 0, true),
    ];
    for (what, from, by, suspect, expected) in cases {
        assert_eq!(from.expel(NodeId(by), NodeId(suspect)).is_some(), expected, "{what}");
    }
}

#[test]
fn a_part_is_one_member_s_until_that_is_expelled() {
    let lost = membership().expel(NodeId(0), NodeId(3)).expect("both take part");
    assert_eq!(lost.claimable(NodeId(3)), None, "the dead recover nobody");
    // Each begins with its own.
    for node in 0..3 {
        assert_eq!(lost.claimable(NodeId(node)), Some(part(3, usize::from(node))));
    }
    let claimed = lost.claim(NodeId(1), part(3, 1)).expect("free");
    assert_eq!(claimed.claim(NodeId(0), part(3, 1)), None, "claimed");
    assert_eq!(claimed.finish(NodeId(0), part(3, 1)), None, "not its own");
    assert_eq!(claimed.claimable(NodeId(1)), Some(part(3, 1)), "it goes on where it was");
    // A node that lost the answer to its claim claims again: else the part would never be resolved.
    assert_eq!(claimed.claim(NodeId(1), part(3, 1)), Some(claimed.clone()), "its own");
    // Its holder dies: now any survivor may take it, and the late holder may not finish it.
    let orphaned = claimed.expel(NodeId(0), NodeId(1)).expect("both take part");
    assert_eq!(orphaned.finish(NodeId(1), part(3, 1)), None, "expelled");
    let taken = orphaned.claim(NodeId(2), part(3, 1)).expect("its holder is out");
    let done = taken.finish(NodeId(2), part(3, 1)).expect("its own");
    assert_eq!(done.claim(NodeId(0), part(3, 1)), None, "done");
}

#[test]
fn shards_are_adopted_when_all_have_acknowledged_and_all_lost_are_resolved() {
    let mut now = membership().expel(NodeId(0), NodeId(3)).expect("both take part");
    let resolve_all = |mut now: Membership| {
        while let Some(open) = now.claimable(NodeId(0)) {
            let claimed = now.claim(NodeId(0), open).expect("open");
            now = claimed.finish(NodeId(0), open).expect("its own");
        }
        now
    };
    let resolved = resolve_all(now.clone());
    assert!(resolved.is_resolved(NodeId(3)) && !resolved.is_resolved(NodeId(0)));
    assert!(!resolved.may_adopt(), "nobody has acknowledged");
    for node in 0..3 {
        now = now.acknowledge(NodeId(node), Epoch(2)).expect("new");
    }
    assert_eq!(now.acknowledge(NodeId(0), Epoch(2)), None, "acknowledged already");
    assert!(!now.may_adopt(), "nothing is resolved");
    let now = resolve_all(now);
    assert!(now.may_adopt());
    let heirs: BTreeSet<u16> = ShardId::all().map(|shard| now.heir(shard).0).collect();
    assert_eq!(heirs, BTreeSet::from([0, 1, 2]));
    let again = now.expel(NodeId(0), NodeId(1)).expect("both take part");
    assert!(!again.may_adopt(), "the next loss begins anew");
}

#[test]
fn changes_are_decided_again_when_somebody_else_is_faster() {
    let authority = EmbeddedAuthority::new();
    assert_eq!(read(&authority), Err(MembershipError::Damaged(Damaged)));
    found(&authority, &membership()).expect("the first");
    assert!(found(&authority, &membership()).is_err(), "there is one");
    let mut asked = 0;
    let outcome = change(&authority, |now| {
        asked += 1;
        if asked == 1 {
            // A rival between reading and writing.
            change(&authority, |now| now.expel(NodeId(0), NodeId(2))).expect("it answers");
        }
        now.expel(NodeId(0), NodeId(1))
    });
    let now = outcome.expect("it answers").membership();
    assert_eq!((asked, now.epoch(), now.live().count()), (2, Epoch(3), 2));
    assert_eq!(read(&authority), Ok(now.clone()));
    let unchanged = change(&authority, |now| now.expel(NodeId(0), NodeId(1)));
    assert_eq!(unchanged, Ok(ChangeOutcome::Unchanged(now)));
}

/// Placement over memory nodes 10, 11 and 12, with this many copies of each group.
fn placement(replicas: usize) -> Placement {
    Placement::new(&[10, 11, 12].map(NodeId), replicas).expect("they fit")
}

fn lost(now: &Membership) -> Vec<u16> {
    now.lost_memory().iter().map(|lost| lost.node.0).collect()
}

#[test]
fn a_memory_node_is_lost_when_half_of_the_members_complain() {
    let three = placement(3);
    let one = membership().complain(NodeId(0), &[NodeId(11)], &three).expect("new");
    assert_eq!((lost(&one), one.epoch()), (vec![], Epoch(1)), "one of four");
    assert_eq!(one.complain(NodeId(0), &[NodeId(11)], &three), None, "said before");
    assert_eq!(one.complain(NodeId(9), &[NodeId(11)], &three), None, "a stranger");
    let other = one.complain(NodeId(1), &[NodeId(10)], &three).expect("new");
    assert!(lost(&other).is_empty(), "each complains of another");
    // It answers again, and nothing is left of the complaint.
    let heard = one.complain(NodeId(0), &[], &three).expect("new");
    assert_eq!(heard, membership());
    let two = one.complain(NodeId(1), &[NodeId(11)], &three).expect("new");
    assert_eq!((lost(&two), two.epoch(), two.reduced()), (vec![11], Epoch(2), Epoch(2)));
    assert_eq!(two.complain(NodeId(2), &[NodeId(11)], &three), None, "lost already");
    let survivors = two.surviving(&three);
    assert!(survivors.groups().all(|(_, set)| set.members().len() == 2));
    // Complaints of expelled nodes do not count, and three members need two of them.
    let fewer = one.expel(NodeId(1), NodeId(0)).expect("both take part");
    let alone = fewer.complain(NodeId(2), &[NodeId(11)], &three).expect("new");
    assert!(lost(&alone).is_empty());
    // Half of fewer members is less: the earlier complaint is enough now.
    let pair = one.expel(NodeId(1), NodeId(2)).and_then(|now| now.expel(NodeId(1), NodeId(3)));
    let pair = pair.expect("they take part");
    let said = pair.complain(NodeId(0), &[NodeId(11)], &three).expect("it decides");
    assert_eq!(lost(&said), [11]);
}

#[test]
fn the_last_copy_of_a_group_is_never_given_up() {
    for (replicas, gone, left) in [(3, &[10, 11][..], &[12][..]), (2, &[10], &[11, 12])] {
        let placement = placement(replicas);
        let all: Vec<NodeId> = [10, 11, 12].map(NodeId).into();
        let mut now = membership();
        for node in 0..NODES {
            now = now.complain(NodeId(node), &all, &placement).unwrap_or(now);
        }
        assert_eq!(lost(&now), gone, "{replicas}");
        let left: Vec<NodeId> = left.iter().copied().map(NodeId).collect();
        assert_eq!(now.out_of_reach(&placement), left, "{replicas}");
        assert_eq!(now.surviving(&placement).groups().count(), 3);
    }
    let placement = placement(1);
    let now = membership().complain(NodeId(0), &[NodeId(10)], &placement).expect("new");
    assert_eq!(now.out_of_reach(&placement), [], "one of four complains");
    let now = now.complain(NodeId(1), &[NodeId(10)], &placement).expect("new");
    assert_eq!((lost(&now), now.out_of_reach(&placement)), (vec![], vec![NodeId(10)]));
}

#[test]
fn all_stop_then_all_finish_then_all_resume() {
    let lose = |now: Membership, node: u16| {
        let placement = placement(3);
        let now = now.complain(NodeId(0), &[NodeId(node)], &placement).expect("new");
        now.complain(NodeId(1), &[NodeId(node)], &placement).expect("new")
    };
    let all = |mut now: Membership, step: fn(&Membership, NodeId, Epoch) -> Option<Membership>| {
        for node in 0..NODES {
            assert!(!now.may_resume());
            let epoch = now.epoch();
            now = step(&now, NodeId(node), epoch).unwrap_or(now);
        }
        now
    };
    assert!(membership().all_have_stopped() && membership().may_resume(), "nothing was lost");
    let now = lose(membership(), 10);
    assert!(!now.all_have_stopped() && now.stop(NodeId(9), now.epoch()).is_none());
    let stopped = all(now, Membership::stop);
    assert!(stopped.all_have_stopped() && stopped.stop(NodeId(0), stopped.epoch()).is_none());
    let over = all(stopped.clone(), Membership::acknowledge);
    assert!(over.may_resume());
    // Another node is lost on the way: all begin anew.
    let again = lose(stopped, 11);
    assert!(!again.all_have_stopped());
    let over = all(all(again, Membership::stop), Membership::acknowledge);
    assert!(over.may_resume() && over.may_adopt());
    // A node that has not stopped is waited for until it is expelled, and then until it is
    // resolved.
    let mut now = lose(membership(), 10).expel(NodeId(0), NodeId(3)).expect("both take part");
    for node in 0..3 {
        now = now.stop(NodeId(node), now.epoch()).expect("new");
        now = now.acknowledge(NodeId(node), now.epoch()).expect("new");
    }
    assert!(now.all_have_stopped() && !now.may_resume());
    while let Some(open) = now.claimable(NodeId(0)) {
        let claimed = now.claim(NodeId(0), open).expect("open");
        now = claimed.finish(NodeId(0), open).expect("its own");
    }
    assert!(now.may_resume());
}

/// `now` after every node has stopped and acknowledged.
fn settled(mut now: Membership) -> Membership {
    for node in 0..NODES {
        now = now.stop(NodeId(node), now.epoch()).unwrap_or(now);
        now = now.acknowledge(NodeId(node), now.epoch()).unwrap_or(now);
    }
    now
}

/// Membership with memory node 10 lost, and not used by any node any more.
fn lost_one() -> Membership {
    let placement = placement(3);
    let now = membership().complain(NodeId(0), &[NodeId(10)], &placement).expect("new");
    settled(now.complain(NodeId(1), &[NodeId(10)], &placement).expect("new"))
}

/// `now` after all nodes but the last have found this life of memory node `node`.
fn nearly_joined(mut now: Membership, node: u16, life: Life) -> Membership {
    for by in 0..NODES - 1 {
        now = now.found(NodeId(by), NodeId(node), life).expect("new");
        assert_eq!((lost(&now), now.joining().count()), (vec![node], 0));
    }
    now
}

#[test]
fn who_is_found_by_all_joins_and_is_a_copy_when_it_has_every_shard() {
    let (first, node) = (placement(3), NodeId(10));
    let now = lost_one();
    let life = Life::new(now.epoch(), 7);
    let now = nearly_joined(now, 10, life);
    assert_eq!(now.found(NodeId(0), node, life), None, "said before");
    let now = now.found(NodeId(3), node, life).expect("the last one");
    assert_eq!((lost(&now), now.life_of(node)), (vec![], Some(life)));
    assert_eq!((now.epoch(), now.reduced()), (Epoch(3), Epoch(3)));
    assert!(!now.may_resume(), "all stop for it as for a loss");
    let now = settled(now);
    // Behind the copies, and not a copy itself: the others are not given up for it.
    assert!(now.surviving(&first).groups().all(|(_, set)| set.joining()[0].node == node));
    assert!(now.kept(&first).groups().all(|(_, set)| set.members().len() == 2));
    let all = [NodeId(11), NodeId(12)];
    let half = now.complain(NodeId(0), &all, &first).expect("new");
    let half = half.complain(NodeId(1), &all, &first).expect("new");
    assert_eq!((lost(&half), half.out_of_reach(&first)), (vec![11], vec![NodeId(12)]));

    let shards: Vec<ShardId> = shards_on(node, &first).collect();
    let (last, most) = shards.split_last().expect("it has some");
    let other = Life::new(now.epoch(), 7);
    assert_eq!(now.copied(NodeId(0), node, other, most, &first), None, "another life");
    let now = now.copied(NodeId(0), node, life, most, &first).expect("new");
    assert_eq!(now.copied(NodeId(1), node, life, most, &first), None, "copied before");
    let Stage::Joining(copied) = &now.returns()[0].stage else { panic!("{now:?}") };
    assert_eq!(copied.count(), most.len());
    let whole = now.copied(NodeId(1), node, life, &[*last], &first).expect("the last one");
    assert!(whole.reduced() > now.reduced() && !whole.may_resume());
    assert_eq!(whole.kept(&first).replicas(GroupId(0)).primary().node, node);
    // It may be lost again, and its earlier life does not help it then.
    let half = settled(whole).complain(NodeId(0), &[node], &first).expect("new");
    let again = settled(half.complain(NodeId(1), &[node], &first).expect("new"));
    assert_eq!((lost(&again), again.life_of(node)), (vec![10], None));
    assert_eq!(again.found(NodeId(0), node, life), None, "a life of before");
}

/// Times at which a process reads the membership are epochs here.
#[test]
fn a_process_tells_its_own_loss_from_its_predecessors() {
    let (now, node) = (lost_one(), NodeId(10));
    let since = now.lost_memory()[0].since;
    let before = Epoch(since.0 - 1);
    // (what, node, what it had lent, its part)
    let cases = [
        ("another one", NodeId(11), Some(before), MemoryPart::InUse),
        ("it was in use before", node, Some(before), MemoryPart::GivenUp),
        ("it lends nothing yet", node, None, MemoryPart::Awaited),
        ("it was made ready after the loss", node, Some(since), MemoryPart::Awaited),
    ];
    for (what, node, lent, part) in cases {
        assert_eq!(now.part_of(node, lent), part, "{what}");
    }
    assert_eq!(membership().part_of(node, Some(before)), MemoryPart::InUse);
}

#[test]
fn only_a_life_since_the_loss_is_found_and_only_when_nobody_uses_what_was_before() {
    let node = NodeId(10);
    let now = lost_one();
    let life = Life::new(now.epoch(), 7);
    let placement = placement(3);
    let half = membership().complain(NodeId(0), &[node], &placement).expect("new");
    let not_settled = half.complain(NodeId(1), &[node], &placement).expect("new");
    // (what, from, by, about, life)
    let cases = [
        ("a life of before", &now, 0, 10, Life::new(Epoch(1), 7)),
        ("not lost", &now, 0, 11, life),
        ("a stranger", &now, 9, 10, life),
        ("while some still use it", &not_settled, 0, 10, life),
    ];
    for (what, from, by, about, life) in cases {
        assert_eq!(from.found(NodeId(by), NodeId(about), life), None, "{what}");
    }
    // One that is found and then made ready once more has another life.
    let nearly = nearly_joined(now.clone(), 10, life);
    let other = nearly.found(NodeId(3), node, Life::new(now.epoch(), 8)).expect("another life");
    assert_eq!(lost(&other), [10]);
    // An expelled node need not report anything, once none of its transactions is in doubt.
    let mut fewer = nearly.expel(NodeId(0), NodeId(3)).expect("both take part");
    assert_eq!((fewer.awaited(node), fewer.found(NodeId(0), node, life)), (None, None));
    while let Some(open) = fewer.claimable(NodeId(0)) {
        let claimed = fewer.claim(NodeId(0), open).expect("open");
        fewer = claimed.finish(NodeId(0), open).expect("its own");
    }
    let joined = fewer.found(NodeId(0), node, life).expect("all who are left have");
    assert_eq!((lost(&joined), joined.joining().count()), (vec![], 1));
    assert_eq!(Life::from_word(0), None);
    assert_eq!(Life::from_word(life.word()), Some(life));
}

#[test]
fn the_loss_of_the_last_whole_copy_is_none_that_a_joining_one_makes_up_for() {
    let (first, node) = (placement(2), NodeId(10));
    let half = membership().complain(NodeId(0), &[node], &first).expect("new");
    let now = settled(half.complain(NodeId(1), &[node], &first).expect("new"));
    let life = Life::new(now.epoch(), 1);
    let joined = nearly_joined(now, 10, life).found(NodeId(3), node, life).expect("the last");
    // Groups 0 and 2 have a copy on 10, which is empty: 11 and 12 have the only whole copies.
    for last in [11, 12].map(NodeId) {
        let half = joined.complain(NodeId(0), &[last], &first).expect("new");
        let said = half.complain(NodeId(2), &[last], &first).expect("new");
        assert_eq!((lost(&said), said.out_of_reach(&first)), (vec![], vec![last]));
    }
    // The one that joins may be lost.
    let half = joined.complain(NodeId(0), &[node], &first).expect("new");
    let gone = half.complain(NodeId(2), &[node], &first).expect("new");
    assert_eq!((lost(&gone), gone.returns().len()), (vec![10], 0));
}

proptest! {
    /// Any order of expulsions, claims and results leaves one member, stores what was decided, and
    /// lets the survivors resolve everything.
    #[test]
    fn survivors_always_resolve_everybody(
        steps in prop::collection::vec((0..13_u8, 0..NODES, 0..NODES, 0..3_usize), 0..40),
    ) {
        let mut now = membership();
        for (what, by, of, index) in steps {
            let (by, of) = (NodeId(by), NodeId(of));
            let id = PartId { of, index };
            let next = match what {
                0 => now.expel(by, of),
                1 => now.claim(by, id),
                2 => now.finish(by, id),
                3 => now.complain(by, &[NodeId(10 + of.0 % 3)], &placement(3)),
                4 => now.complain(by, &[], &placement(3)),
                5 => now.stop(by, now.epoch()),
                9 => now.rejoin(&[of]),
                10 => now.cut_off(by, &[of, NodeId((of.0 + 1) % NODES)][..index.min(2)]),
                11 => now.give_way(by, now.cuts()),
                6 => Some(settled(now.clone())),
                7 => now.found(by, NodeId(10 + of.0 % 3), Life::new(now.epoch(), 0)),
                8 => now.returns().first().and_then(|one| {
                    let first = placement(3);
                    let shards: Vec<ShardId> =
                        shards_on(one.node, &first).step_by(1 + index).collect();
                    now.copied(by, one.node, one.life, &shards, &first)
                }),
                _ => now.acknowledge(by, now.epoch()),
            };
            now = next.unwrap_or(now);
            prop_assert_eq!(Membership::decode(&now.encode()), Ok(now.clone()));
            prop_assert!(now.live().count() >= 1);
            let live = |node| now.is_live(node);
            prop_assert!(now.cuts().iter().all(|cut| live(cut.by) && live(cut.to)));
        }
        for node in 0..NODES {
            while let Some(open) = now.claimable(NodeId(node)) {
                now = now.claim(NodeId(node), open).unwrap_or(now);
                now = now.finish(NodeId(node), open).expect("claimed by whoever may");
            }
            now = now.stop(NodeId(node), now.epoch()).unwrap_or(now);
            now = now.acknowledge(NodeId(node), now.epoch()).unwrap_or(now);
        }
        prop_assert!(now.may_adopt() && now.may_resume());
    }

    #[test]
    fn bytes_that_are_no_membership_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        cut in 0..60_usize,
    ) {
        let _ = Membership::decode(&bytes);
        let whole = membership().encode();
        let cut = &whole[..whole.len().saturating_sub(cut)];
        if let Ok(read) = Membership::decode(cut) {
            prop_assert_eq!(read.encode(), cut);
        }
    }
}
