//! Connections after a verb without an answer: closed and made anew, once for all requests whose
//! verbs were lost with the connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::Lane;
use lotus_fabric::verbs::VerbError;

/// The lane's connections to memory nodes.
#[derive(Default)]
pub(super) struct Connections {
    by_node: RefCell<BTreeMap<NodeId, Connection>>,
}

#[derive(Default)]
struct Connection {
    /// Number of connections made so far.
    made: u64,
    is_being_made: bool,
    /// Number of tries that have ended, and the error of the last one.
    tries: u64,
    error: Option<VerbError>,
    waiting: Vec<TaskId>,
}

impl Connections {
    /// Number of the connection that a verb posted to the node now uses.
    pub(super) fn current(&self, node: NodeId) -> u64 {
        let connections = self.by_node.borrow();
        if connections.is_empty() {
            return 0;
        }
        let found = connections.get(&node);
        found.map_or(0, |connection| connection.made + u64::from(connection.is_being_made))
    }

    /// Returns once no verb posted on connection `used` can take effect any more, and verbs to the
    /// node work again.
    ///
    /// # Errors
    /// `Unreachable` or `Revoked`; after `Unreachable`, try again.
    pub(super) async fn settle(
        self: &Rc<Self>,
        lane: &Lane,
        node: NodeId,
        used: u64,
    ) -> Result<(), VerbError> {
        loop {
            let tries = {
                let mut connections = self.by_node.borrow_mut();
                let connection = connections.entry(node).or_default();
                if connection.made > used {
                    return Ok(());
                }
                if !std::mem::replace(&mut connection.is_being_made, true) {
                    // A separate task, so the reconnection ends even if the caller is dropped.
                    lane.executor().spawn(Rc::clone(self).make(lane.clone(), node));
                }
                connection.tries
            };
            while self.is_tried(node, tries, lane.executor().current()) {
                lane.executor().suspend().await;
            }
            if let Some(error) = self.by_node.borrow()[&node].error {
                return Err(error);
            }
        }
    }

    /// Whether the try after `tries` ended tries is unfinished; its end then wakes the task. Asked
    /// at each poll, because the waiting future may be handed to another task.
    fn is_tried(&self, node: NodeId, tries: u64, task: TaskId) -> bool {
        let mut connections = self.by_node.borrow_mut();
        let connection = connections.entry(node).or_default();
        let is_tried = connection.tries == tries;
        if is_tried && !connection.waiting.contains(&task) {
            connection.waiting.push(task);
        }
        is_tried
    }

    async fn make(self: Rc<Self>, lane: Lane, node: NodeId) {
        let made = lane.reconnect(node).await;
        let mut connections = self.by_node.borrow_mut();
        let connection = connections.entry(node).or_default();
        connection.is_being_made = false;
        connection.made += u64::from(made.is_ok());
        connection.tries += 1;
        connection.error = made.err();
        connection.waiting.drain(..).for_each(|task| lane.executor().wake(task));
    }
}
