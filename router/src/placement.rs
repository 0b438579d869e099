//! Replica placement: the memory nodes and regions of a shard.
//!
//! # The scheme
//! With M memory nodes there are M *replica groups*. Group g has its primary on the g-th memory
//! node and its backups on the next R − 1, wrapping round; shard s belongs to group s mod M. Every
//! memory node is thus primary for one group in M and backup for R − 1, and reads and writes spread
//! evenly for all M and R.
//!
//! ```text
//! M = 4, R = 3      node 0   node 1   node 2   node 3
//! group 0           primary  backup   backup
//! group 1                    primary  backup   backup
//! group 2           backup            primary  backup
//! group 3           backup   backup            primary
//! ```
//!
//! # Regions
//! A group's replica lives in a separate region that carries the group's number on every node.
//! Cells hold offsets within the group (`docs/memory-layout.md`), so replicas are equal in bytes,
//! offsets and region number on all nodes: promoting a backup, or copying a group to a new node,
//! changes no address but the node.
//!
//! # Losses
//! A lost memory node leaves its groups: [`Placement::without`]. Groups keep their numbers and
//! regions, the remaining copies keep their order, and the first remaining copy is the primary.
//!
//! # Returns
//! A memory node that comes back with empty memory is at first listed behind the full copies, and
//! does not count as a copy: [`Placement::with_joining`]. The joining node gets all writes, and
//! serves no reads.
//!
//! # What it is not
//! A [`Placement`] never changes; losing or adding a memory node makes a new placement under a new
//! configuration epoch.

use lotus_fabric::ids::{NodeId, NodeSet, RegionId, RemoteAddr, ShardId};

use crate::topology::{MAX_MEMORY_NODES, MAX_REPLICAS, Role, TopologyError, check_nodes};

/// A set of shards that share their replicas' memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u8);

impl GroupId {
    /// Region of the group on every memory node with a copy.
    #[inline]
    pub const fn region(self) -> RegionId {
        RegionId(self.0)
    }
}

/// Region that holds the transaction logs on every memory node, above the group regions.
pub const LOG_REGION: RegionId = RegionId(MAX_MEMORY_NODES as u8);

const _: () = assert!(MAX_MEMORY_NODES < u8::MAX as usize, "group and log regions fit in 8 bits");

/// One copy of a group: a region on a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Memory node that holds the copy.
    pub node: NodeId,
    /// Region of the copy on the node.
    pub region: RegionId,
}

impl Replica {
    /// Address of byte `offset` of the group in this copy.
    ///
    /// # Panics
    /// If `offset` does not fit in [`RemoteAddr::OFFSET_BITS`].
    #[inline]
    pub fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr::new(self.node, self.region, offset)
    }
}

/// Copies of one group: 1 to [`MAX_REPLICAS`], primary first, on different nodes.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSet {
    members: [Replica; MAX_REPLICAS],
    count: u8,
    /// Number of full copies; the members behind them are being filled.
    whole: u8,
    /// Nodes of all members.
    nodes: NodeSet,
}

impl ReplicaSet {
    /// The copy that snapshots read and that turns visible last (H3).
    #[inline]
    pub const fn primary(&self) -> Replica {
        self.members[0]
    }

    /// All members but the primary, including members being filled.
    #[inline]
    pub fn backups(&self) -> &[Replica] {
        &self.members()[1..]
    }

    /// All members, the targets of every write: full copies first, primary ahead, then the copies
    /// being filled.
    #[inline]
    pub fn members(&self) -> &[Replica] {
        &self.members[..usize::from(self.count)]
    }

    /// Nodes of all members.
    #[inline]
    pub const fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Members that have all data of the group, primary first.
    #[inline]
    pub fn whole(&self) -> &[Replica] {
        &self.members[..usize::from(self.whole)]
    }

    /// Members that are being filled.
    #[inline]
    pub fn joining(&self) -> &[Replica] {
        &self.members()[usize::from(self.whole)..]
    }
}

impl ReplicaSet {
    /// Creates a set of `members`, the first `whole` of which are full copies.
    fn of(members: impl Iterator<Item = Replica>, whole: usize) -> Self {
        let none = Replica { node: NodeId(0), region: RegionId(0) };
        let (members_of_none, nodes) = ([none; MAX_REPLICAS], NodeSet::EMPTY);
        let mut set = Self { members: members_of_none, count: 0, whole: whole as u8, nodes };
        members.for_each(|member| set.push(member));
        set
    }

    fn push(&mut self, member: Replica) {
        self.members[usize::from(self.count)] = member;
        self.count += 1;
        self.nodes.insert(member.node);
    }
}

/// Location of every shard's data.
#[derive(Clone, Debug)]
pub struct Placement {
    groups: Box<[ReplicaSet]>,
    replicas: usize,
    /// Nodes of all groups; read by every commit.
    nodes: NodeSet,
}

impl Placement {
    fn of(groups: Box<[ReplicaSet]>, replicas: usize) -> Self {
        let nodes = groups.iter().fold(NodeSet::EMPTY, |nodes, set| nodes.or(set.nodes));
        Self { groups, replicas, nodes }
    }

    /// Places `replicas` copies of every shard on `memory_nodes`, whose order gives the groups
    /// their numbers.
    ///
    /// # Errors
    /// If the nodes cannot hold `replicas` copies, are too many or none, or a node is named twice.
    pub fn new(memory_nodes: &[NodeId], replicas: usize) -> Result<Self, TopologyError> {
        check_nodes(Role::Memory, memory_nodes)?;
        match replicas {
            0 => return Err(TopologyError::NoReplicas),
            _ if replicas > MAX_REPLICAS => {
                return Err(TopologyError::TooManyReplicas { replicas });
            }
            _ if replicas > memory_nodes.len() => {
                let memory_nodes = memory_nodes.len();
                return Err(TopologyError::MoreReplicasThanNodes { replicas, memory_nodes });
            }
            _ => {}
        }
        let groups = (0..memory_nodes.len()).map(|group| {
            let region = GroupId(group as u8).region();
            let member = |index| {
                let node = memory_nodes[(group + index) % memory_nodes.len()];
                Replica { node, region }
            };
            ReplicaSet::of((0..replicas).map(member), replicas)
        });
        Ok(Self::of(groups.collect(), replicas))
    }

    /// The placement without the nodes in `lost`; `None` if some group has no full copy left.
    #[must_use]
    pub fn without(&self, lost: &[NodeId]) -> Option<Self> {
        let left = |set: &ReplicaSet| {
            let remains = |member: &&Replica| !lost.contains(&member.node);
            let whole = set.whole().iter().filter(remains).count();
            let left = set.members().iter().filter(remains).copied();
            (whole > 0).then(|| ReplicaSet::of(left, whole))
        };
        let groups = self.groups.iter().map(left).collect::<Option<_>>()?;
        Some(Self::of(groups, self.replicas))
    }

    /// The placement with the nodes of `joining` added again to the groups of which they had a copy
    /// in `first`, the cluster's first placement. They are listed behind the full copies.
    #[must_use]
    pub fn with_joining(&self, first: &Self, joining: &[NodeId]) -> Self {
        let mut groups = self.groups.clone();
        for (set, first) in groups.iter_mut().zip(&first.groups) {
            let known = |node| set.members().iter().any(|member| member.node == node);
            let made = first.members().iter().filter(|member| joining.contains(&member.node));
            let made: Vec<Replica> = made.filter(|member| !known(member.node)).copied().collect();
            made.into_iter().for_each(|member| set.push(member));
        }
        Self::of(groups, self.replicas)
    }

    /// Whether any copy is being filled.
    pub fn is_joined(&self) -> bool {
        self.groups.iter().any(|set| !set.joining().is_empty())
    }

    /// The placement without the copies that are being filled.
    #[must_use]
    pub fn of_whole(&self) -> Self {
        let of_whole = |set: &ReplicaSet| {
            let whole = set.whole();
            ReplicaSet::of(whole.iter().copied(), whole.len())
        };
        let groups = self.groups.iter().map(of_whole);
        Self::of(groups.collect(), self.replicas)
    }

    /// Primary of each group: if no node was lost, every memory node once, in the order of their
    /// naming.
    pub fn primaries(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.groups.iter().map(|set| set.primary().node)
    }

    /// Every memory node that has a copy of some group.
    #[inline]
    pub fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Number of groups: the initial number of memory nodes.
    #[inline]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Initial number of copies of each group, the primary included.
    #[inline]
    pub fn replica_count(&self) -> usize {
        self.replicas
    }

    /// Group of `shard`.
    #[inline]
    pub fn group_of(&self, shard: ShardId) -> GroupId {
        // 32-bit operands: a 64-bit division costs twice as much.
        GroupId((u32::from(shard.raw()) % self.groups.len() as u32) as u8)
    }

    /// Copies of `group`.
    ///
    /// # Panics
    /// If `group` does not exist.
    #[inline]
    pub fn replicas(&self, group: GroupId) -> &ReplicaSet {
        &self.groups[usize::from(group.0)]
    }

    /// Every group with its copies, in order.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &ReplicaSet)> {
        self.groups.iter().enumerate().map(|(group, set)| (GroupId(group as u8), set))
    }

    /// Groups that have a copy on `node`, in order: the regions that the node must register.
    pub fn hosted_by(&self, node: NodeId) -> impl Iterator<Item = GroupId> {
        self.groups()
            .filter(move |(_, set)| set.members().iter().any(|member| member.node == node))
            .map(|(group, _)| group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u16) -> Vec<NodeId> {
        (60..60 + count).map(NodeId).collect()
    }

    #[test]
    fn the_picture_in_the_essay_is_true() {
        let placement = Placement::new(&nodes(4), 3).unwrap();
        let drawn = [[60, 61, 62], [61, 62, 63], [62, 63, 60], [63, 60, 61]];
        for ((group, set), expected) in placement.groups().zip(drawn) {
            let expected =
                expected.map(|node| Replica { node: NodeId(node), region: group.region() });
            assert_eq!(set.members(), expected);
            assert_eq!((set.primary(), set.backups()), (expected[0], &expected[1..]));
        }
    }

    #[test]
    fn every_node_hosts_as_many_groups_as_there_are_replicas() {
        for memory_nodes in 1..=MAX_MEMORY_NODES {
            for replicas in 1..=MAX_REPLICAS.min(memory_nodes) {
                let nodes = nodes(memory_nodes as u16);
                let placement = Placement::new(&nodes, replicas).unwrap();
                for &node in &nodes {
                    assert_eq!(placement.hosted_by(node).count(), replicas);
                }
            }
        }
    }

    #[test]
    fn who_is_left_keeps_its_place_and_the_first_is_the_primary() {
        let whole = Placement::new(&nodes(4), 3).unwrap();
        let members = |placement: &Placement| -> Vec<Vec<u16>> {
            let of = |set: &ReplicaSet| set.members().iter().map(|member| member.node.0).collect();
            placement.groups().map(|(_, set)| of(set)).collect()
        };
        let one = whole.without(&[NodeId(61)]).expect("two copies of each are left");
        let left = [vec![60, 62], vec![62, 63], vec![62, 63, 60], vec![63, 60]];
        assert_eq!(members(&one), left);
        assert_eq!(one.nodes(), [60, 62, 63].map(NodeId).into_iter().collect());
        assert!(whole.primaries().eq(nodes(4)));
        assert!(one.primaries().eq([60, 62, 62, 63].map(NodeId)));
        for ((group, before), (_, after)) in whole.groups().zip(one.groups()) {
            assert!(after.members().iter().all(|member| before.members().contains(member)));
            assert!(after.members().iter().all(|member| member.region == group.region()));
        }
        let two = [NodeId(61), NodeId(62)];
        let at_once = whole.without(&two).expect("one copy of each is left");
        let in_turn = one.without(&two[1..]).expect("the same");
        assert_eq!(members(&at_once), members(&in_turn));
        assert_eq!(members(&at_once), [vec![60], vec![63], vec![63, 60], vec![63, 60]]);
        // These have all copies of group 0.
        assert!(whole.without(&[60, 61, 62].map(NodeId)).is_none());
        assert_eq!(members(&whole.without(&[]).expect("all")), members(&whole));
    }

    #[test]
    fn who_is_being_made_anew_comes_last_and_is_no_copy() {
        let first = Placement::new(&nodes(4), 3).unwrap();
        let left = first.without(&[NodeId(61)]).expect("two copies of each are left");
        let joined = left.with_joining(&first, &[NodeId(61)]);
        let of = |set: &[Replica]| -> Vec<u16> { set.iter().map(|one| one.node.0).collect() };
        let members: Vec<_> = joined.groups().map(|(_, set)| of(set.members())).collect();
        let expected = [vec![60, 62, 61], vec![62, 63, 61], vec![62, 63, 60]];
        assert_eq!(members, [&expected[..], &[vec![63, 60, 61]]].concat());
        for (group, set) in joined.groups() {
            assert_eq!(of(set.whole()), of(left.replicas(group).members()));
            assert_eq!([set.whole(), set.joining()].concat(), set.members());
        }
        // A copy that is being filled does not replace the full ones.
        assert!(joined.without(&[62, 63].map(NodeId)).is_none());
        assert!(joined.is_joined() && !left.is_joined() && !joined.of_whole().is_joined());
        let again = joined.without(&[NodeId(61)]).expect("as before");
        assert!(again.groups().all(|(_, set)| set.joining().is_empty()));
    }

    #[test]
    fn shards_spread_over_groups_evenly() {
        let placement = Placement::new(&nodes(3), 1).unwrap();
        let mut shards = [0_u32; 3];
        for shard in ShardId::all() {
            shards[usize::from(placement.group_of(shard).0)] += 1;
        }
        assert_eq!(shards, [1366, 1365, 1365]);
    }

    #[test]
    fn impossible_replica_counts_are_refused() {
        let refusal = |memory_nodes, replicas| {
            Placement::new(&nodes(memory_nodes), replicas).map(drop).unwrap_err()
        };
        assert_eq!(refusal(3, 0), TopologyError::NoReplicas);
        assert_eq!(
            refusal(2, 3),
            TopologyError::MoreReplicasThanNodes { replicas: 3, memory_nodes: 2 }
        );
        assert_eq!(refusal(64, 9), TopologyError::TooManyReplicas { replicas: 9 });
        assert_eq!(refusal(0, 1), TopologyError::NoNodes(Role::Memory));
        assert_eq!(refusal(65, 1), TopologyError::TooManyNodes { role: Role::Memory, count: 65 });
    }

    #[test]
    fn group_and_log_regions_do_not_collide() {
        let placement = Placement::new(&nodes(64), 1).unwrap();
        assert!(placement.groups().all(|(group, _)| group.region() != LOG_REGION));
    }
}
