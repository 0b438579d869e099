//! Finding the node that is responsible for a key.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lotus_sabotage::{Rule, broken};
use lotus_tree::{Node, ROOT, Seek};

use super::OrderedTable;
use crate::api::error::TxnError;
use crate::node::coordinator;
use crate::node::shared::NodeTable;
use crate::txn::body::{Access, Item};

impl OrderedTable<'_> {
    /// Opens the leaf that is responsible for a place; also returns the leaf's number.
    pub(super) fn leaf(
        &mut self,
        place: Seek<'_>,
        access: Access,
    ) -> impl Future<Output = Result<(u64, Item), TxnError>> {
        self.find(place, 0, access)
    }

    /// Opens the node of this level that is responsible for a place. Follows the remembered inner
    /// nodes, or searches the tree if they are out of date.
    pub(super) async fn find(
        &mut self,
        place: Seek<'_>,
        level: u8,
        access: Access,
    ) -> Result<(u64, Item), TxnError> {
        if let Some(id) = self.remembered(place, level) {
            // As `open`, with one future less: the path of most operations.
            let item = self.txn.add(self.table, id.into(), access, 0)?;
            if self.txn.is_to_execute()? {
                self.txn.execute().await.map_err(|error| self.named(error, id, place))?;
            }
            if self.is_it(id, item, place, level)? {
                return Ok((id, item));
            }
        }
        // Boxed, to keep the future of the common path small.
        Box::pin(self.search(place, level, access)).await
    }

    /// Number of the node that the remembered inner nodes lead to.
    pub(super) fn remembered(&self, place: Seek<'_>, level: u8) -> Option<u64> {
        self.txn.slot.coordinator.inner_nodes.lead(self.table, place, level)
    }

    /// Searches from the root, by nodes that this transaction reads.
    ///
    /// The target node is opened with its final access at once (I314). If several transactions
    /// first locked the node to read and then to write, each would refuse the second lock to the
    /// others.
    async fn search(
        &mut self,
        place: Seek<'_>,
        level: u8,
        access: Access,
    ) -> Result<(u64, Item), TxnError> {
        let (mut id, mut above, mut wanted) = (ROOT, u8::MAX, self.access_of_root(level, access)?);
        // A parent is read before its child, and cannot change afterwards.
        loop {
            let item = self.open(id, wanted, place).await?;
            let node = self.node(id, item)?.ok_or_else(|| self.damaged())?;
            let leads_on = level <= node.level() && node.level() < above;
            if !leads_on || !node.covers(place) {
                return Err(self.damaged());
            }
            above = node.level();
            if id == ROOT {
                self.known()?.root_is_leaf.store(node.is_leaf(), Ordering::Relaxed);
            }
            if above == level {
                // Nothing is left to do, unless the root was not expected to be the target.
                let item = self.open(id, access, place).await?;
                let still = self.is_it(id, item, place, level)?;
                debug_assert!(
                    still,
                    "I280: a node that is locked or of one snapshot stays as it was"
                );
                return if still { Ok((id, item)) } else { Err(self.damaged()) };
            }
            if node.is_empty() {
                return Err(self.damaged());
            }
            let child = node.child(node.child_place(place));
            self.txn.slot.coordinator.inner_nodes.keep(self.table, id, node);
            (id, wanted) = (child, if above == level + 1 { at_once(access) } else { Access::Read });
        }
    }

    /// Access by which a search for a node of this level opens the root: the final access if the
    /// root is expected to be the target.
    ///
    /// A root that is no longer a leaf is still opened to be written, and is locked until the
    /// transaction ends. Later searches of this compute node expect an inner node and read it.
    fn access_of_root(&self, level: u8, access: Access) -> Result<Access, TxnError> {
        let is_it = match level {
            0 => self.known()?.root_is_leaf.load(Ordering::Relaxed),
            _ => {
                let root = self.txn.slot.coordinator.inner_nodes.get(self.table, ROOT);
                root.is_some_and(|root| root.level() == level)
            }
        };
        Ok(if is_it { at_once(access) } else { Access::Read })
    }

    /// The table, as known to this compute node.
    fn known(&self) -> Result<Arc<NodeTable>, TxnError> {
        let tables = self.txn.slot.coordinator.tables(self.table);
        coordinator::known(&tables, self.table).cloned()
    }

    /// Adds the row of a node to the transaction, and executes it. An error about the node names
    /// the key of the search.
    pub(super) async fn open(
        &mut self,
        id: u64,
        access: Access,
        place: Seek<'_>,
    ) -> Result<Item, TxnError> {
        let item = self.txn.add(self.table, id.into(), access, 0)?;
        self.execute(id, place).await?;
        Ok(item)
    }

    /// Executes the added rows, among them the node `id`.
    pub(super) async fn execute(&mut self, id: u64, place: Seek<'_>) -> Result<(), TxnError> {
        match self.txn.is_to_execute()? {
            true => self.txn.execute().await.map_err(|error| self.named(error, id, place)),
            false => Ok(()),
        }
    }

    /// Rewrites an error of an execution: if it concerns the node `id`, it names the key of the
    /// search.
    #[cold]
    fn named(&self, mut error: TxnError, id: u64, place: Seek<'_>) -> TxnError {
        let (Seek::At(key) | Seek::Below(key)) = place else { return error };
        let is_own = error.row().is_some_and(|(table, _)| table == self.table);
        if let Some(row) = error.row_mut().filter(|_| is_own) {
            row.sought(&id.into(), key);
        }
        error
    }

    /// The node in an opened row; `None` if the row does not exist. The root of an empty tree has
    /// no row.
    pub(super) fn node(&self, id: u64, item: Item) -> Result<Option<Node<'_>>, TxnError> {
        match self.txn.value(item) {
            None if id == ROOT => Ok(Some(Node::EMPTY)),
            None => Ok(None),
            Some(bytes) => Node::read(bytes).map(Some).ok_or_else(|| self.damaged()),
        }
    }

    pub(super) fn damaged(&self) -> TxnError {
        TxnError::Damaged { table: self.table }
    }

    /// Whether an opened row is the node of this level that is responsible for a place.
    pub(super) fn is_it(
        &self,
        id: u64,
        item: Item,
        place: Seek<'_>,
        level: u8,
    ) -> Result<bool, TxnError> {
        let node = self.node(id, item)?;
        let covers = |node: Node<'_>| node.covers(place) || broken(Rule::FencesAreChecked);
        Ok(node.is_some_and(|node| node.level() == level && covers(node)))
    }
}

/// The access by which a search opens its target node.
fn at_once(access: Access) -> Access {
    if broken(Rule::NodesAreOpenedAtOnce) { Access::Read } else { access }
}
