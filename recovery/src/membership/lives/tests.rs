//! Return of expelled nodes: when, with which incarnation, and what the others know of it.

use super::*;
use crate::membership::PartId;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);

fn life(number: u16) -> Incarnation {
    Incarnation::new(number).expect("small")
}

fn whole() -> Membership {
    Membership::new([(A, life(1)), (B, life(2)), (C, life(3))])
}

/// `now` after A has resolved all parts of this node and all live nodes have acknowledged.
fn settled(mut now: Membership, of: NodeId) -> Membership {
    for index in 0..now.parts_of(of) {
        let id = PartId { of, index };
        now = now.claim(A, id).and_then(|now| now.finish(A, id)).expect("free");
    }
    acknowledged(now)
}

fn acknowledged(mut now: Membership) -> Membership {
    for node in [A, B, C] {
        now = now.acknowledge(node, now.epoch()).unwrap_or(now);
    }
    now
}

fn returned(now: &Membership, node: NodeId) -> Membership {
    now.rejoin(&[node]).expect("all is settled")
}

/// I143: a life is taken in when every expelled node is resolved, and all know of its expulsion.
#[test]
fn who_is_out_returns_when_all_is_settled_and_known() {
    let lost = whole().expel(A, C).expect("both take part");
    let resolved = settled(lost.clone(), C);
    let second = resolved.expel(A, B).expect("both take part");
    let (resolved_only, known_only) = {
        let mut now = lost.clone();
        for index in 0..now.parts_of(C) {
            let id = PartId { of: C, index };
            now = now.claim(A, id).and_then(|now| now.finish(A, id)).expect("free");
        }
        (now, acknowledged(lost.clone()))
    };
    // (what, the membership, the node that wants to return, whether it may)
    let cases = [
        ("who takes part", &resolved, A, false),
        ("a stranger", &resolved, NodeId(9), false),
        ("who has just been expelled", &lost, C, false),
        ("all know, nothing is resolved", &known_only, C, false),
        ("all is resolved, and not all know", &resolved_only, C, false),
        ("both", &resolved, C, true),
        ("another one is out by now", &second, C, false),
    ];
    for (what, now, node, may) in cases {
        assert_eq!(now.may_rejoin(node), may, "{what}");
        assert_eq!(now.rejoin(&[node]).is_some(), may, "{what}");
    }
    let both = settled(second, B);
    assert_eq!(both.rejoin(&[B, C]).expect("both are settled").live().count(), 3);
    assert_eq!(both.rejoin(&[A, C]), None, "all or none");
}

/// I144: no incarnation is used twice, and each life's epoch is later than the end of the one
/// before.
#[test]
fn every_life_is_somebody_else() {
    let mut now = whole();
    let mut seen: Vec<Incarnation> = now.members().iter().map(|one| one.incarnation).collect();
    for round in 0..20 {
        let node = [B, C][round % 2];
        let lost = now.expel(A, node).expect("both take part");
        let end = lost.epoch();
        now = returned(&settled(lost, node), node);
        let member = now.member(node).expect("it is one").clone();
        assert!(member.joined > end && member.joined == now.epoch());
        assert!(seen.iter().all(|earlier| *earlier < member.incarnation));
        seen.push(member.incarnation);
        let over: Vec<_> = now.over().collect();
        for earlier in &seen {
            let lives = now.live().any(|member| member.incarnation == *earlier);
            assert_eq!(over.contains(&(*earlier, true)), !lives, "{earlier:?}");
        }
        now = acknowledged(now);
    }
    assert_eq!(now.by_age()[0].node, A, "who was never out is the eldest");
    assert_eq!(now.by_age()[2].node, C, "who returned last is the youngest");
}

#[test]
fn incarnations_come_to_an_end() {
    let last = life((1 << Incarnation::BITS) - 1);
    let members = Membership::new([(A, life(1)), (B, last)]);
    let lost = members.expel(A, B).expect("both take part");
    assert_eq!(settled(lost, B).rejoin(&[B]), None);
}

#[test]
fn of_two_that_want_one_place_one_gets_it() {
    let lost = settled(whole().expel(A, C).expect("both take part"), C);
    let now = returned(&lost, C);
    assert_eq!(now.rejoin(&[C]), None, "the other one decides anew, and it is taken");
}

/// I145: a node is a newcomer until all know of it, itself included.
#[test]
fn newcomers_are_known_to_all_before_they_are_members_like_others() {
    let lost = settled(whole().expel(A, C).expect("both take part"), C);
    let mut now = returned(&lost, C);
    assert!(!now.is_newcomer(A) && !now.is_newcomer(NodeId(9)));
    for node in [A, B, C] {
        assert!(now.is_newcomer(C) && !now.may_adopt(), "{node:?} has not acknowledged");
        now = now.acknowledge(node, now.epoch()).expect("news");
    }
    assert!(!now.is_newcomer(C) && now.may_adopt() && now.may_resume());
}

#[test]
fn what_the_life_before_had_complained_of_does_not_count() {
    let memory: Vec<NodeId> = (10..13).map(NodeId).collect();
    let placement = lotus_router::Placement::new(&memory, 3).expect("three of three");
    let whole = Membership::new([(A, life(1)), (B, life(2)), (C, life(3)), (NodeId(3), life(4))]);
    let complained = whole.complain(C, &memory[..1], &placement).expect("news");
    let mut lost = complained.expel(A, C).expect("both take part");
    lost = lost.acknowledge(NodeId(3), lost.epoch()).expect("news");
    let now = returned(&settled(lost, C), C);
    let second = now.complain(A, &memory[..1], &placement).expect("news");
    assert!(second.lost_memory().is_empty(), "one of four complains");
}

/// I146: a suspicion that is older than the node's present life expels no node.
#[test]
fn a_suspicion_is_of_one_life() {
    let whole = whole();
    let before = whole.member(C).expect("it is one").joined;
    assert!(whole.expel_life(A, C, before).is_some());
    let now = returned(&settled(whole.expel(A, C).expect("both take part"), C), C);
    assert_eq!(now.expel_life(A, C, before), None, "it was the life before");
    assert!(now.expel_life(A, C, now.epoch()).is_some(), "it is the present one");
    assert_eq!(now.expel_life(A, NodeId(9), before), None, "a stranger");
}

/// I181: a process that stalled while its life ended and another one took its place decides nothing
/// in the name of the new life.
#[test]
fn a_life_changes_nothing_once_another_has_its_place() {
    let lost = whole().expel(A, C).expect("both take part");
    let now = returned(&settled(lost, C), C);
    let before = (C, life(3));
    let present = (C, now.member(C).expect("it is back").incarnation);
    assert!(now.has_life(present.0, present.1) && !now.has_life(before.0, before.1));
    let acknowledge = |of| now.decided_by(of, |now| now.acknowledge(C, now.epoch()));
    assert_eq!(acknowledge(before), None);
    assert!(acknowledge(present).is_some());
}

/// I180: verbs of an expelled node are refused from its expulsion on, and those of a life that is
/// over from the next life on.
#[test]
fn verbs_are_refused_of_every_life_that_is_over() {
    let refused = |now: &Membership| now.refused().collect::<Vec<_>>();
    assert_eq!(refused(&whole()), []);
    let lost = whole().expel(A, C).expect("both take part");
    assert_eq!(refused(&lost), [(C, Epoch(2))]);
    let back = returned(&settled(lost, C), C);
    assert_eq!(refused(&back), [(C, Epoch(3))]);
    let again = back.expel(A, C).and_then(|now| now.expel(A, B)).expect("all take part");
    assert_eq!(refused(&again), [(B, Epoch(5)), (C, Epoch(4))]);
}
