//! The data path of the `shm` back end: without system calls, locks or waiting.
//!
//! Verbs are `copies`, messages go through rings (`mailbox`). For the mailbox of a receiving lane,
//! or a connection to a restarted node, a lane asks the process's helper, and does not wait.
//! During the lookup of a receiver the first messages are queued and further messages dropped;
//! during a reconnect verbs fail.

use std::cell::Cell;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::ShmState;
use super::attachment::Attachment;
use super::gates::Gate;
use super::helper::{Answer, HelperTask, Job, Outlet};
use super::mailbox::{Consumer, Mailbox};
use crate::backends::copies::{Initiator, Round, Targets};
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::transport::{Sink, Sleep, Token, Transport, Wake};
use crate::contract::verbs::{Capabilities, VerbError, Work};
use crate::run::exec::EpollSleeper;

/// Messages that may wait until their receiver is found.
const MAX_WAITING: usize = 64;

/// One lane.
pub(super) struct ShmLane {
    shared: Arc<ShmState>,
    at: Endpoint,
    verbs: Initiator<Connections>,
    gate: Gate,
    reconnects: Vec<(Token, NodeId)>,
    inbox: Consumer,
    /// Whether senders see this lane as asleep.
    asleep: Cell<bool>,
    peers: Vec<(Endpoint, PeerMailbox)>,
    answers: Receiver<Answer>,
    /// Channel for the helper's answers.
    reply_to: Sender<Answer>,
    /// Number of outstanding answers.
    asked: usize,
    wake: Arc<dyn Wake>,
    sleeper: Arc<EpollSleeper>,
}

/// By node; `None` if there was never an attachment.
pub(super) struct Connections(pub(super) Vec<Option<Arc<Attachment>>>);

impl Targets for Connections {
    type Target = Attachment;

    #[inline]
    fn target(&self, node: NodeId) -> Option<&Attachment> {
        self.0.get(usize::from(node.0))?.as_deref()
    }
}

enum PeerMailbox {
    /// The helper is looking the mailbox up; holds the messages to send afterwards.
    Wanted(Vec<Vec<u8>>),
    Found(Box<Outlet>),
}

/// Everything needed to open a lane.
pub(super) struct Parts {
    pub(super) at: Endpoint,
    pub(super) epoch: Epoch,
    pub(super) connections: Connections,
    pub(super) gate: Gate,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) wake: Arc<dyn Wake>,
    pub(super) sleeper: Arc<EpollSleeper>,
}

impl ShmLane {
    pub(super) fn new(shared: Arc<ShmState>, parts: Parts) -> Self {
        let Parts { at, epoch, connections, gate, mailbox, wake, sleeper } = parts;
        let nodes = connections.0.len();
        let (reply_to, answers) = crossbeam_channel::unbounded();
        Self {
            shared,
            at,
            verbs: Initiator::new(connections, at.node, epoch, nodes),
            gate,
            reconnects: Vec::new(),
            inbox: Consumer::new(mailbox),
            asleep: Cell::new(false),
            peers: Vec::new(),
            answers,
            reply_to,
            asked: 0,
            wake,
            sleeper,
        }
    }

    fn ask(&mut self, task: HelperTask) {
        self.asked += 1;
        let (answers, wake) = (self.reply_to.clone(), Arc::clone(&self.wake));
        self.shared.send_out(Job { task, answers, wake });
    }

    #[cold]
    fn take_answers(&mut self, sink: &mut dyn Sink) {
        while let Ok(answer) = self.answers.try_recv() {
            self.asked -= 1;
            match answer {
                Answer::Found(to, outlet) => self.found(to, outlet),
                Answer::Reconnected(token, node, result) => {
                    sink.reconnected(token, self.reconnected(node, result));
                }
            }
        }
    }

    /// Sends the queued messages, if the receiver was found.
    fn found(&mut self, to: Endpoint, outlet: Option<Outlet>) {
        let Some(index) = self.peers.iter().position(|(peer, _)| *peer == to) else { return };
        let (_, wanted) = self.peers.swap_remove(index);
        let Some(mut outlet) = outlet else { return };
        if let PeerMailbox::Wanted(waiting) = wanted {
            waiting.iter().for_each(|message| outlet.send(self.at, message));
        }
        self.peers.push((to, PeerMailbox::Found(Box::new(outlet))));
    }

    fn reconnected(
        &mut self,
        node: NodeId,
        result: Result<Arc<Attachment>, VerbError>,
    ) -> Result<(), VerbError> {
        // The old attachment's memory must be unmapped before its connection is closed.
        self.verbs.forget(node);
        let connection = self.verbs.targets.0.get_mut(usize::from(node.0));
        *connection.ok_or(VerbError::Unreachable)? = Some(result?);
        self.verbs.reconnect(node)
    }

    /// Carries out the posted batches, then starts the reconnects.
    #[inline]
    fn carry_out(&mut self, sink: &mut dyn Sink) {
        let round = Round::enter(self.gate.round());
        self.verbs.carry_out(sink);
        drop(round);
        while let Some((token, node)) = self.reconnects.pop() {
            self.verbs.set_broken(node, true);
            self.ask(HelperTask::Reconnect { token, node });
        }
    }
}

impl Transport for ShmLane {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            stable_reads: true,
            masked_atomics: true,
            several_nodes: true,
            ..Capabilities::default()
        }
    }

    #[inline]
    fn post(&mut self, token: Token, work: Box<Work>) {
        self.verbs.post(token, work);
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        self.reconnects.push((token, node));
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        let is_cut = |node| self.verbs.targets.target(node).is_some_and(Attachment::is_cut);
        if is_cut(self.at.node) || is_cut(to.node) {
            return;
        }
        let known = self.peers.iter().position(|(peer, _)| *peer == to);
        match known.map(|index| &mut self.peers[index].1) {
            Some(PeerMailbox::Wanted(waiting)) if waiting.len() < MAX_WAITING => {
                waiting.push(bytes.to_vec());
            }
            Some(PeerMailbox::Wanted(_)) => {}
            Some(PeerMailbox::Found(outlet)) if outlet.is_open() => outlet.send(self.at, bytes),
            _ => {
                // The receiving lane was closed, and may have been reopened since.
                self.peers.retain(|(peer, _)| *peer != to);
                self.peers.push((to, PeerMailbox::Wanted(vec![bytes.to_vec()])));
                self.ask(HelperTask::Find { from: self.at, to });
            }
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) {
        if self.asleep.replace(false) {
            self.inbox.wake_up();
        }
        if !self.verbs.is_idle() || !self.reconnects.is_empty() {
            self.carry_out(sink);
        }
        if self.asked > 0 {
            self.take_answers(sink);
        }
        self.inbox.receive(|from, bytes| sink.message(from, bytes));
    }

    fn has_input(&self) -> bool {
        let here = !self.verbs.is_idle() || !self.reconnects.is_empty() || !self.answers.is_empty();
        if here || self.inbox.has_input() {
            return true;
        }
        // The thread will now sleep: from now on senders wake the thread.
        self.asleep.set(true);
        !self.inbox.go_to_sleep()
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleep>> {
        Some(Arc::clone(&self.sleeper) as Arc<dyn Sleep>)
    }
}

impl Drop for ShmLane {
    fn drop(&mut self) {
        self.shared.close(self.at);
        let own = self.verbs.targets.target(self.at.node);
        let senders = self.peers.iter().filter_map(|(_, peer)| match peer {
            PeerMailbox::Found(outlet) => Some(&*outlet.node),
            PeerMailbox::Wanted(_) => None,
        });
        // A host that does not receive the request keeps the lane's resources until this process
        // ends. Repeated requests to a host are harmless.
        own.into_iter().chain(senders).for_each(|node| _ = node.close_lane(self.at));
    }
}
