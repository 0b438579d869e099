//! A process's helper: the thread for work that lanes must not wait for.
//!
//! The helper finds the mailboxes of receiving lanes, re-makes connections, and notices hosts
//! that hang up. Otherwise the thread sleeps. Lanes wake the helper by the process's *bell*.
//! Messages from other processes do not involve the helper: every lane has its own bell for
//! messages.
//!
//! A host that does not answer blocks the helper until the time-out for the host.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};

use crossbeam_channel::{Receiver, Sender};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::attachment::Attachment;
use super::mailbox::Producer;
use super::{ShmState, bell};
use crate::contract::ids::{Endpoint, NodeId};
use crate::contract::transport::{Token, Wake};
use crate::contract::verbs::VerbError;

/// A request from a lane.
pub(super) struct Job {
    pub(super) task: HelperTask,
    /// Channel for the answer, with the thread to wake in `wake`.
    pub(super) answers: Sender<Answer>,
    pub(super) wake: Arc<dyn Wake>,
}

pub(super) enum HelperTask {
    Find { from: Endpoint, to: Endpoint },
    Reconnect { token: Token, node: NodeId },
}

pub(super) enum Answer {
    /// Outlet for sending to the lane; `None` if the lane is not open.
    Found(Endpoint, Option<Outlet>),
    Reconnected(Token, NodeId, Result<Arc<Attachment>, VerbError>),
}

/// A lane's channel to a receiving lane.
pub(super) struct Outlet {
    pub(super) ring: Producer,
    pub(super) bell: Bell,
    /// Attachment to the receiving lane's node.
    pub(super) node: Arc<Attachment>,
}

/// Wakes the receiver's thread.
pub(super) enum Bell {
    Here(Arc<dyn Wake>),
    Elsewhere(OwnedFd),
}

impl Outlet {
    /// Whether the receiving lane still seems open.
    pub(super) fn is_open(&self) -> bool {
        !self.ring.mailbox().is_closed() && !self.node.is_lost()
    }

    /// Sends a message, or drops the message if there is no room.
    pub(super) fn send(&mut self, from: Endpoint, bytes: &[u8]) {
        if self.ring.send(from, bytes) {
            match &self.bell {
                Bell::Here(wake) => wake.wake(),
                Bell::Elsewhere(bell) => bell::ring(bell),
            }
        }
    }
}

/// An open lane of this process, with its waker.
pub(super) struct LaneWaker {
    pub(super) at: Endpoint,
    pub(super) wake: Arc<dyn Wake>,
}

/// Event data of the bell; other values are node numbers.
const BELL: u64 = u64::MAX;

/// Descriptors that the helper sleeps on.
pub(super) struct WatchedDescriptors(OwnedFd);

impl WatchedDescriptors {
    pub(super) fn new(bell: &OwnedFd) -> rustix::io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&watch, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self(watch))
    }

    /// Watches a connection to the host of `node` until the connection is closed.
    pub(super) fn add(&self, node: NodeId, socket: impl AsFd) -> rustix::io::Result<()> {
        // Edge-triggered: a lost attachment stays lost.
        let events = EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.0, socket, EventData::new_u64(node.0.into()), events)
    }
}

/// Main loop of the thread; ends when the fabric is dropped.
pub(super) fn attend(
    shared: &Weak<ShmState>,
    watch: &WatchedDescriptors,
    bell: &OwnedFd,
    jobs: &Receiver<Job>,
) {
    let mut events = Vec::with_capacity(64);
    loop {
        // Fails only if interrupted, without events.
        let _ = epoll::wait(&watch.0, rustix::buffer::spare_capacity(&mut events), None);
        let Some(shared) = shared.upgrade() else { return };
        for event in events.drain(..) {
            match event.data.u64() {
                BELL => {
                    // Silenced before reading the jobs, so that a later ring is not lost.
                    bell::silence(bell);
                    jobs.try_iter().for_each(|job| shared.carry_out(job));
                }
                node => shared.look_at(NodeId(node as u16)),
            }
        }
    }
}

impl ShmState {
    fn carry_out(&self, job: Job) {
        let answer = match job.task {
            HelperTask::Find { from, to } => Answer::Found(to, self.find(from, to)),
            HelperTask::Reconnect { token, node } => {
                Answer::Reconnected(token, node, self.reconnect(node))
            }
        };
        // Fails if the asking lane is gone.
        let _ = job.answers.send(answer);
        job.wake.wake();
    }

    fn find(&self, from: Endpoint, to: Endpoint) -> Option<Outlet> {
        let node = self.attach(to.node).ok()?;
        let (ring, bell) = node.find_lane(to.lane, from).ok()??;
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // A lane `to` open in this process is the lane that the host found, or is closed by now.
        let here = lanes.iter().find(|lane| lane.at == to);
        let bell = match here {
            Some(lane) => Bell::Here(Arc::clone(&lane.wake)),
            None => Bell::Elsewhere(bell),
        };
        Some(Outlet { ring, bell, node: Arc::clone(&node) })
    }

    fn reconnect(&self, node: NodeId) -> Result<Arc<Attachment>, VerbError> {
        let attachment = self.attach(node).map_err(|_| VerbError::Unreachable)?;
        attachment.refresh().map_err(|_| VerbError::Unreachable)?;
        Ok(attachment)
    }

    fn look_at(&self, node: NodeId) {
        if let Some(attachment) = self.attached(node) {
            attachment.look();
        }
    }
}
