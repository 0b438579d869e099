//! Support for locks that the clients of a node share: signs of resets and losses, and looks at the
//! words of a lock outside of any use.

use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::{Handle, TaskId};
use lotus_fabric::ids::RemoteAddr;

use super::{Client, ENTRIES};
use crate::contract::{LockSystem, NotHeld, Peers, Verb};

/// Time between two tries to reach a memory node.
const SETTLING: Duration = Duration::from_micros(100);

impl<S: LockSystem> Client<S> {
    /// The lane's executor.
    pub fn executor(&self) -> &Handle {
        self.core.lane.executor()
    }

    /// The lane's number.
    pub fn lane_number(&self) -> u16 {
        self.core.lane.at().lane.0
    }

    /// Number of the node among the users of locks.
    pub fn node_number(&self) -> u8 {
        self.core.me.life.node()
    }

    /// The membership.
    pub fn peers(&self) -> &Rc<dyn Peers> {
        &self.core.peers
    }

    /// Whether this lane has learnt that the node was expelled.
    pub fn is_expelled(&self) -> bool {
        self.core.is_expelled.get()
    }

    /// Registers a task that is woken when this lane is told of a reset, or abandons a memory node.
    pub fn watch(&self, task: TaskId) {
        self.core.watcher.set(Some(task));
    }

    /// Whether the lock should be given up soon: it is being reset, or its memory node was
    /// abandoned.
    pub fn is_wanted(&self, at: RemoteAddr) -> bool {
        self.core.is_told(at) || self.core.has_abandoned(at.node())
    }

    /// Returns when no earlier verb of the lane to the lock's memory node can land any more: a READ
    /// behind the verbs was answered, or the connection was made anew.
    pub async fn settle(&self, at: RemoteAddr) {
        loop {
            match self.core.read_head(at).await {
                Ok(_) | Err(NotHeld::Expelled) => return,
                Err(_) if self.core.has_abandoned(at.node()) => return,
                Err(_) => self.executor().sleep(SETTLING).await,
            }
        }
    }

    /// Whether a holder may rely on a lock of this memory node, as far as this lane knows.
    pub fn is_in_use(&self, at: RemoteAddr) -> bool {
        !self.core.is_expelled.get() && !self.core.has_abandoned(at.node())
    }

    /// Adds one to a word outside of locks. `None` if there was no answer.
    pub async fn add_word(&self, word: RemoteAddr) -> Option<u64> {
        self.core.verb(word, Verb::Add(1)).await.ok().flatten()
    }

    /// Reads a word. `None` if there was no answer.
    pub async fn read_word(&self, word: RemoteAddr) -> Option<u64> {
        self.core.verb(word, Verb::Read).await.ok().flatten()
    }

    /// Reads the head of a lock. `None` if there was no answer.
    pub async fn look_at(&self, at: RemoteAddr) -> Option<u64> {
        let mut batch = self.core.lane.batch();
        let head = batch.read(at, 8);
        Some(batch.post().await.ok()?.words(head)[0])
    }

    /// Reads the head of a lock and the entries of its queue. `None` if there was no answer.
    pub async fn read_queue(&self, at: RemoteAddr) -> Option<(u64, Vec<u64>)> {
        let mut batch = self.core.lane.batch();
        let head = batch.read(at, 8);
        let entries = batch.read(at.plus(ENTRIES), 8 * self.core.system.entries() as usize);
        let done = batch.post().await.ok()?;
        Some((done.words(head)[0], done.words(entries).to_vec()))
    }
}
