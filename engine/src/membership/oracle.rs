//! Selection of the compute node that serves timestamps, and the bounds of its timestamps (H18).
//!
//! # What it is
//! With [`TimestampKind::Oracle`] the longest-serving live compute node issues timestamps for the
//! cluster. When that node is expelled the next one *takes over*. A takeover must keep timestamps
//! in order: a new timestamp is later than every timestamp issued before, by any node. Two rules
//! ensure the order.
//!
//! 1. *No coordinator is served by two oracles.* The successor issues nothing before every
//!    coordinator of every live node has asked it. A coordinator that has asked the successor
//!    accepts no answer of an earlier oracle
//!    ([`OracleClient::turn_to`](lotus_mvcc::oracle::OracleClient::turn_to)); and expelled nodes,
//!    the former oracle among them, are first fenced at every memory node. So no node with valid
//!    writes draws a timestamp from a predecessor any more.
//! 2. *No oracle begins below the last.* Timestamps have a bound, stored at the authority before
//!    any timestamp up to it is issued. A successor begins after the stored bound. Storing the
//!    successor's bound ends the predecessor's: the value names the reigning node, and is changed
//!    by compare-and-swap.
//!
//! A timestamp issued in time that arrives late does no harm: when a commit draws a timestamp, the
//! commit's cells are INVISIBLE on all replicas already, so every reader with a later snapshot
//! meets them (H1).
//!
//! # If it stops anywhere
//! A successor that dies before storing its bound changes nothing; after that, the next successor
//! finds a higher bound. A node that pauses, for however long, finds itself fenced, the bound taken
//! by another node, and its answers rejected by every coordinator.
//!
//! # What it is not
//! A lease: no clock is relied on. Nor frequent work for the authority: a bound lasts for minutes,
//! and timestamps follow the nodes' clocks again after a takeover has jumped over the rest of a
//! bound. Without a membership lease no node is expelled, and the oracle has neither bound nor
//! successor.

use std::rc::Rc;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::ids::NodeId;
use lotus_mvcc::Timestamp;
use lotus_points::point;
use lotus_recovery::Membership;
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_sabotage::{Rule, broken};

use crate::api::config::TimestampKind;
use crate::membership::recover;
use crate::node::coordinator::Coordinator;
use crate::node::time::oracle::ahead;

/// Key of the reigning node and its bound at the authority.
const KEY: &str = "lotus/oracle";

/// Returns the eldest live node (I149). A returned node serves only after all older members are
/// expelled, and no life serves twice.
fn who_serves(now: &Membership) -> Option<NodeId> {
    now.by_age().first().map(|eldest| eldest.node)
}

/// Starts a takeover or raises the bound in the background, if this node must serve.
pub(crate) fn keep(coordinator: &Rc<Coordinator>, now: &Membership) {
    let (shared, oracle) = (&coordinator.shared, &coordinator.node.oracle);
    let serves = shared.config.timestamps == TimestampKind::Oracle
        && who_serves(now) == Some(coordinator.node.id);
    let is_due = || match oracle.is_open() {
        true => oracle.runs_low(),
        false => may_take_over(coordinator, now),
    };
    if !serves || !is_due() || coordinator.takeover_running.replace(true) {
        return;
    }
    let (of, now) = (Rc::clone(coordinator), now.clone());
    coordinator.executor.spawn(async move {
        ascend(&of, &now).await;
        of.takeover_running.set(false);
    });
}

/// Whether every live member has asked this node, and so takes no timestamp of an earlier oracle
/// any more (I130). The founder may serve without being asked.
fn may_take_over(coordinator: &Coordinator, now: &Membership) -> bool {
    let (shared, oracle) = (&coordinator.shared, &coordinator.node.oracle);
    let mut places = now.live().filter_map(|member| shared.index_of(member.node));
    let founder = coordinator.node.index == 0 && coordinator.node.epoch == FIRST_EPOCH;
    founder || broken(Rule::SuccessorsWait) || places.all(|place| oracle.has_heard_all_of(place))
}

/// Fences expelled nodes, stores a bound, and serves up to it. On failure the next turn tries
/// again.
async fn ascend(coordinator: &Rc<Coordinator>, now: &Membership) {
    let node = &coordinator.node;
    let takes_over = !node.oracle.is_open();
    if takes_over
        && !broken(Rule::SuccessorsWait)
        && recover::fence(coordinator, now).await.is_err()
    {
        return;
    }
    point!(node.id.0, OracleFence, if takes_over);
    let issued = node.oracle.clock.latest().raw().max(coordinator.executor.now().0);
    let reign = u64::from(node.incarnation.raw());
    // A later node reigns: this node is expelled and does not know of its expulsion yet.
    let Ok(Some((before, bound))) = store_bound(coordinator, reign, issued).await else { return };
    point!(node.id.0, Reign);
    if takes_over && !broken(Rule::BoundsOutlastOracles) {
        node.oracle.clock.skip(before);
    }
    debug_assert!(before <= bound, "I131: bounds only rise");
    node.oracle.open(bound);
}

/// Bound to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
struct BoundUpdate {
    /// Currently stored bound.
    before: Timestamp,
    bound: Timestamp,
    value: Vec<u8>,
}

impl BoundUpdate {
    /// Computes a bound beyond `issued` and the stored bound; `None` if a node later than `reign`
    /// reigns.
    fn after(stored: Option<&[u8]>, reign: u64, issued: u64) -> Option<Self> {
        let (other, before) = stored.map_or((0, Timestamp::LOADED), decode);
        let bound = (issued.max(before.raw()) + ahead()).min(Timestamp::MAX.raw());
        let value = [reign.to_le_bytes(), bound.to_le_bytes()].concat();
        let bound = Timestamp::new(bound).expect("at most the last one");
        (other <= reign).then_some(Self { before, bound, value })
    }
}

/// Stores a bound beyond `issued` and the stored bound. Returns the old and the new bound; `None`
/// if a node later than `reign` has stored one.
async fn store_bound(
    coordinator: &Coordinator,
    reign: u64,
    issued: u64,
) -> Result<Option<(Timestamp, Timestamp)>, AuthorityError> {
    loop {
        let stored = coordinator.consult(|authority| authority.read(KEY)).await?;
        let version = stored.as_ref().map_or(Version::ABSENT, |stored| stored.version);
        let value = stored.as_ref().map(|stored| &*stored.value);
        let Some(BoundUpdate { before, bound, value }) = BoundUpdate::after(value, reign, issued)
        else {
            return Ok(None);
        };
        let swap =
            move |authority: &dyn Authority| authority.compare_and_swap(KEY, version, &value);
        match coordinator.consult(swap).await {
            Ok(_) => return Ok(Some((before, bound))),
            Err(AuthorityError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Decodes the reigning node and its bound. A malformed value yields maxima, so that no node
/// serves.
fn decode(value: &[u8]) -> (u64, Timestamp) {
    let word = |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    match (word(0), word(8)) {
        (Some(reign), Some(bound)) => {
            let bound = Timestamp::new(u64::from_le_bytes(bound)).unwrap_or(Timestamp::MAX);
            (u64::from_le_bytes(reign), bound)
        }
        _ => (u64::MAX, Timestamp::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces the stored bound; returns the previous bound and the new one.
    fn store(stored: &mut Option<Vec<u8>>, reign: u64, issued: u64) -> Option<(u64, u64)> {
        let next = BoundUpdate::after(stored.as_deref(), reign, issued)?;
        *stored = Some(next.value);
        Some((next.before.raw(), next.bound.raw()))
    }

    #[test]
    fn bounds_only_grow_and_a_successors_ends_those_before() {
        let mut stored = None;
        let first = store(&mut stored, 0, 500).unwrap();
        assert_eq!(first, (1, 500 + ahead()));
        // It has issued little, and its clock was set back.
        let again = store(&mut stored, 0, 7).unwrap();
        assert_eq!(again, (first.1, first.1 + ahead()));
        let successor = store(&mut stored, 2, 9).unwrap();
        assert_eq!(successor, (again.1, again.1 + ahead()));
        assert_eq!(store(&mut stored, 0, 600), None);
        assert_eq!(store(&mut stored, 1, 600), None);
    }

    #[test]
    fn a_value_of_somebody_else_lets_nobody_serve() {
        assert_eq!(store(&mut Some(b"else".to_vec()), 0, 500), None);
    }
}
