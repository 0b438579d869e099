//! Changing the tree: nodes that grow too large are split, and small ones are merged.

use lotus_points::point;
use lotus_sabotage::{Rule, broken};
use lotus_tree::{Node, ROOT, Seek, edit};
use rand::Rng;

use super::OrderedTable;
use crate::api::error::TxnError;
use crate::txn::body::{Access, Item};

/// Divisor of the node size limit: a node below the quotient is merged with its neighbour.
const SMALL: usize = 4;
/// Divisor of the node size limit: a merged node up to the quotient is not split at once by the
/// next keys.
const ROOMY: usize = 2;

impl OrderedTable<'_> {
    /// Writes the next state of a node that has received the entry of `key`. An oversized node is
    /// split, and the parent gets an entry.
    ///
    /// Every wait comes before the first change: a caller may drop this future at any wait and
    /// commit anyway, and half of a split would lose keys.
    pub(super) async fn grow(
        &mut self,
        id: u64,
        item: Item,
        bytes: Vec<u8>,
        key: &[u8],
    ) -> Result<(), TxnError> {
        let (mut id, mut item, mut bytes, mut key) = (id, item, bytes, key.to_vec());
        let (mut added, mut halved) = (Vec::new(), Vec::new());
        while bytes.len() > self.limits.node {
            let node = self.made(&bytes)?;
            let level = node.level();
            let split = edit::split(node, &key, self.limits.node);
            debug_assert!(
                split.left.len().max(split.right.len()) <= self.limits.node,
                "I280: half of a node fits in a row"
            );
            let right = self.number()?;
            added.push((right, split.right));
            if id == ROOT {
                let left = self.number()?;
                added.push((left, split.left));
                bytes = edit::root_above(level, left, &split.separator, right);
                break;
            }
            halved.push((item, split.left));
            key = split.separator;
            (id, item) = self.find(Seek::At(&key), level + 1, Access::Write).await?;
            let parent = self.node(id, item)?.ok_or_else(|| self.damaged())?;
            bytes = edit::with_child(parent, &key, right);
        }
        debug_assert!(bytes.len() <= self.limits.node, "I280: a node fits in its row");
        point!(self.txn.slot.coordinator.node.id.0, NodeSplit, if !added.is_empty());
        // No wait from here on.
        for (number, node) in added {
            let item = self.txn.add(self.table, number.into(), Access::Insert, node.len())?;
            self.txn.put(item, &node)?;
        }
        for (item, node) in halved {
            self.txn.upsert(item, &node)?;
        }
        self.txn.upsert(item, &bytes)
    }

    /// Merges a node that has become small with a neighbour of the same parent, if the result
    /// leaves enough room.
    pub(super) async fn shrink(&mut self, id: u64, item: Item) -> Result<(), TxnError> {
        let (mut id, mut item) = (id, item);
        loop {
            let node = self.node(id, item)?.ok_or_else(|| self.damaged())?;
            if id == ROOT || node.bytes().len() > self.limits.node / SMALL {
                return Ok(());
            }
            let (low, level) = (node.low().to_vec(), node.level());
            let place = Seek::At(&low);
            let (parent, parent_item) = self.find(place, level + 1, Access::Write).await?;
            let node = self.node(parent, parent_item)?.ok_or_else(|| self.damaged())?;
            let Some(pair) = Pair::around(node, place) else { return Ok(()) };
            let bytes = edit::without(node, &pair.separator);
            let Some(merged) = self.merge(&pair, place).await? else { return Ok(()) };
            if parent == ROOT && self.made(&bytes)?.len() == 1 {
                // The tree loses a level.
                self.txn.delete(merged.item)?;
                return self.txn.upsert(parent_item, &merged.bytes);
            }
            self.txn.upsert(merged.item, &merged.bytes)?;
            self.txn.upsert(parent_item, &bytes)?;
            point!(self.txn.slot.coordinator.node.id.0, NodesMerged);
            (id, item) = (parent, parent_item);
        }
    }

    /// Merges two neighbours, and deletes the right one. `None` if the result is too large, or if
    /// this transaction added one of the two nodes.
    async fn merge(&mut self, pair: &Pair, place: Seek<'_>) -> Result<Option<Merged>, TxnError> {
        for id in [pair.left, pair.right] {
            self.txn.add(self.table, id.into(), Access::Write, 0)?;
        }
        self.execute(pair.left, place).await?;
        let left = self.open(pair.left, Access::Write, place).await?;
        let right = self.open(pair.right, Access::Write, place).await?;
        if self.txn.has_added(left)? || self.txn.has_added(right)? {
            return Ok(None);
        }
        debug_assert!(left != right, "I280: a node is no neighbour of its own");
        let nodes = (self.node(pair.left, left)?, self.node(pair.right, right)?);
        let (Some(lower), Some(upper)) = nodes else {
            return Err(self.damaged());
        };
        if lower.high() != Some(upper.low()) || lower.level() != upper.level() {
            return Err(self.damaged());
        }
        let merged = edit::merged(lower, upper, self.limits.node / ROOMY);
        let Some(bytes) = merged else { return Ok(None) };
        debug_assert!(pair.right != ROOT, "I280: the root is never deleted");
        self.txn.delete(right)?;
        Ok(Some(Merged { item: left, bytes }))
    }

    /// Number for a new node, unused by any earlier node of the table.
    fn number(&self) -> Result<u64, TxnError> {
        let coordinator = &self.txn.slot.coordinator;
        if broken(Rule::NodeNumbersAreNew) {
            return Ok(coordinator.rng.borrow_mut().random_range(ROOT + 1..=u64::MAX));
        }
        // As with attempt numbers, another incarnation draws different numbers.
        coordinator.node_numbers.draw().ok_or(TxnError::Fenced)
    }

    /// Views bytes that this module has built.
    fn made<'b>(&self, bytes: &'b [u8]) -> Result<Node<'b>, TxnError> {
        Node::read(bytes).ok_or_else(|| self.damaged())
    }
}

/// Two neighbours below one parent.
struct Pair {
    left: u64,
    right: u64,
    /// Key of the right node's entry in the parent.
    separator: Vec<u8>,
}

impl Pair {
    /// The child that is responsible for a place, and a neighbour; `None` if the child has no
    /// neighbour.
    fn around(parent: Node<'_>, place: Seek<'_>) -> Option<Self> {
        let last = parent.len().checked_sub(2)?;
        let at = parent.child_place(place).min(last);
        let (left, right) = (parent.child(at), parent.child(at + 1));
        Some(Self { left, right, separator: parent.key(at + 1).to_vec() })
    }
}

/// One node in place of two.
struct Merged {
    item: Item,
    bytes: Vec<u8>,
}
