//! Messages of a lane, over an unreliable queue pair.
//!
//! A message longer than a packet travels in fragments. A missing or reordered fragment loses the
//! message. A fragment begins with twelve bytes:
//!
//! ```text
//! node (2) lane (2) message number (4) index (2) count (2) | bytes
//! ```
//!
//! # Finding a receiver
//! The mailbox of a lane is looked up once and then cached. A lane that was closed and reopened has
//! a new mailbox, without notice: so after [`DOUBT`] messages without an answer, the mailbox is
//! looked up again. Each life of a lane has its own key; the device drops packets with a wrong key.

use std::sync::Arc;

use super::SetupError;
use super::chain::{Chain, Local};
use super::config::Config;
use super::device::mtu_bytes;
use super::ffi::{
    AddressHandle, CompletionQueue, Completions, MemoryRegion, QueuePair, Shape, ibv_recv_wr,
    ibv_sge, ibv_wc,
};
use super::node::RdmaNode;
use super::wire::Mailbox;
use crate::contract::ids::{Endpoint, LaneId, NodeId};
use crate::contract::region::{Memory, Rights};
use crate::contract::transport::MAX_MESSAGE_BYTES;

/// Marks the id of a received datagram's completion; no node has this number.
pub(super) const RECEIVED: u64 = 0xFFFF << 48;
/// Bytes that the device puts before a received datagram.
const ROUTING_BYTES: usize = 40;
const HEADER_BYTES: usize = 12;
/// Datagrams that may wait at the device for sending; further datagrams are dropped.
const SENDS: u64 = 256;
/// Number of sends per reported completion.
const UNSIGNALLED: u64 = 32;
/// Size of the groups in which buffers are returned to the device.
const REPOST: usize = 16;
/// Messages kept for a lane during the look-up of the lane's mailbox.
const HELD: usize = 16;
/// Unanswered messages after which a lane's mailbox is looked up again.
const DOUBT: u32 = 256;

/// The messages of a lane. The queue pair comes first, so that it is destroyed before its buffers.
pub(super) struct Datagrams {
    pair: QueuePair,
    at: Endpoint,
    node: Arc<RdmaNode>,
    mailbox: Mailbox,
    packet_bytes: usize,
    outgoing: Outgoing,
    incoming: Incoming,
    partial: Vec<Partial>,
    peers: Vec<DatagramPeer>,
}

struct Outgoing {
    queue: Arc<CompletionQueue>,
    completions: Completions,
    slots: MemoryRegion,
    chain: Chain,
    posted: u64,
    reaped: u64,
    /// Number of the next message.
    message: u32,
}

struct Incoming {
    slots: MemoryRegion,
    slot_bytes: usize,
    /// Slots that the device does not have.
    empty: Vec<u32>,
    buffers: Vec<ibv_sge>,
    requests: Vec<ibv_recv_wr>,
}

// SAFETY: only `hand_over` writes and uses the pointers in `requests`.
unsafe impl Send for Incoming {}

/// A partially received message.
struct Partial {
    from: Endpoint,
    number: u32,
    fragments: u16,
    bytes: Vec<u8>,
}

/// A receiving lane.
struct DatagramPeer {
    at: Endpoint,
    route: Option<(AddressHandle, Mailbox)>,
    /// Whether a look-up of the lane's mailbox is under way.
    asked: bool,
    held: Vec<Vec<u8>>,
    /// Messages sent since the last message from the lane.
    unheard: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    from: Endpoint,
    number: u32,
    index: u16,
    count: u16,
}

impl Header {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&self.from.node.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.from.lane.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.index.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let from = Endpoint { node: NodeId(half(0)), lane: LaneId(half(2)) };
        let number = u32::from(half(4)) | u32::from(half(6)) << 16;
        Some((Self { from, number, index: half(8), count: half(10) }, rest))
    }
}

impl Datagrams {
    /// Makes the queue pair and gives the receive buffers to the device. `life` must differ from
    /// the lives of earlier lanes with the same number.
    pub fn open(
        node: &Arc<RdmaNode>,
        config: &Config,
        at: Endpoint,
        receives: &Arc<CompletionQueue>,
        life: u64,
    ) -> Result<Self, SetupError> {
        let device = &node.device;
        let failed = |source| device.error("open a message queue on", source);
        let sends = CompletionQueue::new(&device.context, SENDS as u32, None).map_err(failed)?;
        let sends = Arc::new(sends);
        let shape = Shape {
            datagrams: true,
            send_queue: SENDS as u32,
            receive_queue: config.messages,
            inline_bytes: config.inline_bytes,
        };
        let pair = QueuePair::new(&device.domain, &sends, receives, shape).map_err(failed)?;
        let queue_key = (life >> 10) as u32 & 0x7FFF_FFFF;
        pair.open_datagrams(device.port, queue_key).map_err(failed)?;
        let mailbox =
            Mailbox { queue_pair: pair.number(), queue_key, gid: device.gid, lid: device.lid };
        let packet_bytes = mtu_bytes(device.mtu);
        let mut datagrams = Self {
            at,
            node: Arc::clone(node),
            pair,
            mailbox,
            packet_bytes,
            outgoing: Outgoing {
                queue: sends,
                completions: Completions::default(),
                slots: buffers(node, SENDS as usize * packet_bytes)?,
                chain: Chain::with_capacity(MAX_MESSAGE_BYTES / 128),
                posted: 0,
                reaped: 0,
                message: life as u32,
            },
            incoming: Incoming::new(node, config.messages, packet_bytes)?,
            partial: Vec::new(),
            peers: Vec::new(),
        };
        datagrams.incoming.hand_over(&datagrams.pair);
        Ok(datagrams)
    }

    /// Returns the lane's own mailbox.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox
    }

    /// Sends or drops a message. Returns whether the caller must look up the receiving lane's
    /// mailbox.
    #[must_use]
    pub fn send(&mut self, to: Endpoint, bytes: &[u8]) -> bool {
        let known = self.peers.iter().position(|peer| peer.at == to);
        let index = known.unwrap_or_else(|| {
            self.peers.push(DatagramPeer::new(to));
            self.peers.len() - 1
        });
        let peer = &mut self.peers[index];
        peer.unheard = peer.unheard.saturating_add(1);
        if peer.route.is_none() {
            if peer.held.len() < HELD {
                peer.held.push(bytes.to_vec());
            }
        } else {
            self.transmit(index, bytes);
        }
        let peer = &mut self.peers[index];
        let ask = !peer.asked && (peer.route.is_none() || peer.unheard > DOUBT);
        peer.asked |= ask;
        ask
    }

    /// Takes the result of a look-up; `None` if the lane does not exist.
    pub fn found(&mut self, lane: Endpoint, mailbox: Option<Mailbox>) {
        let Some(index) = self.peers.iter().position(|peer| peer.at == lane) else { return };
        let Some(mailbox) = mailbox else {
            // The next message to the lane causes a new look-up.
            self.peers.swap_remove(index);
            return;
        };
        let device = &self.node.device;
        let route = device.route_to(mailbox.gid, mailbox.lid);
        let peer = &mut self.peers[index];
        let handle = AddressHandle::new(&device.domain, &route).ok();
        peer.route = handle.map(|handle| (handle, mailbox));
        (peer.asked, peer.unheard) = (false, 0);
        for message in std::mem::take(&mut peer.held) {
            self.transmit(index, &message);
        }
    }

    /// Posts the fragments of a message with one doorbell.
    fn transmit(&mut self, peer: usize, bytes: &[u8]) {
        let Some((handle, mailbox)) = &self.peers[peer].route else { return };
        let most = self.packet_bytes - HEADER_BYTES;
        let count = bytes.len().div_ceil(most).max(1);
        let outgoing = &mut self.outgoing;
        if !outgoing.has_room(&self.pair, count as u64) {
            return;
        }
        outgoing.chain.clear();
        for (index, part) in bytes.chunks(most).enumerate() {
            let header = Header {
                from: self.at,
                number: outgoing.message,
                index: index as u16,
                count: count as u16,
            };
            let id = outgoing.posted;
            let local = outgoing.fill(self.packet_bytes, &header.encode(), part);
            outgoing.chain.datagram(id, handle, mailbox.queue_pair, mailbox.queue_key, local);
            outgoing.posted += 1;
            if outgoing.posted.is_multiple_of(UNSIGNALLED) {
                outgoing.chain.signal_last();
            }
        }
        outgoing.message = outgoing.message.wrapping_add(1);
        // SAFETY: the slots are registered and live as long as the queue pair; a slot is not filled
        // again before its send or a later send was reported.
        let posted = unsafe { self.pair.post(&mut outgoing.chain) };
        if let Err(refused) = posted {
            // The message is lost. Fragments that the device did not take will never be reported;
            // earlier fragments will be, and keep their slots until then.
            outgoing.posted = refused.id;
        }
    }

    /// Processes a received datagram; calls `deliver` if the datagram completes a message.
    pub fn received(
        &mut self,
        id: u64,
        completion: &ibv_wc,
        deliver: impl FnOnce(Endpoint, &[u8]),
    ) {
        let slot = (id & !RECEIVED) as u32;
        if completion.is_valid() {
            let datagram = self.incoming.datagram(slot, completion.len());
            if let Some((header, bytes)) = Header::decode(datagram) {
                let heard = self.peers.iter_mut().find(|peer| peer.at == header.from);
                heard.into_iter().for_each(|peer| peer.unheard = 0);
                if header.count == 1 {
                    deliver(header.from, bytes);
                } else {
                    assemble(&mut self.partial, header, bytes, deliver);
                }
            }
        }
        self.incoming.empty.push(slot);
        if self.incoming.empty.len() >= REPOST {
            self.incoming.hand_over(&self.pair);
        }
    }
}

/// Adds a fragment to the sender's message.
fn assemble(
    partial: &mut Vec<Partial>,
    header: Header,
    bytes: &[u8],
    deliver: impl FnOnce(Endpoint, &[u8]),
) {
    let Header { from, number, index, count } = header;
    let known = partial.iter().position(|message| message.from == from);
    let place = known.unwrap_or_else(|| {
        partial.push(Partial { from, number, fragments: 0, bytes: Vec::new() });
        partial.len() - 1
    });
    let message = &mut partial[place];
    if index == 0 {
        (message.number, message.fragments) = (number, 0);
        message.bytes.clear();
    }
    let fits = message.bytes.len() + bytes.len() <= MAX_MESSAGE_BYTES;
    if message.number != number || message.fragments != index || !fits {
        // A fragment is missing: no later fragment may complete the message.
        message.fragments = u16::MAX;
        return;
    }
    message.bytes.extend_from_slice(bytes);
    message.fragments += 1;
    if message.fragments == count {
        message.fragments = u16::MAX;
        deliver(from, &message.bytes);
    }
}

impl DatagramPeer {
    fn new(at: Endpoint) -> Self {
        Self { at, route: None, asked: false, held: Vec::new(), unheard: 0 }
    }
}

impl Outgoing {
    /// Whether `count` slots are free; polls for completed sends if necessary.
    fn has_room(&mut self, pair: &QueuePair, count: u64) -> bool {
        while self.posted + count > self.reaped + SENDS {
            self.queue.poll(&mut self.completions);
            let found = self.completions.found();
            let Some(last) = found.last() else { return false };
            self.reaped = last.wr_id() + 1;
            if found.iter().any(|send| !send.is_valid()) {
                // If the pair cannot resume, messages are lost until the node is expelled.
                let _ = pair.resume_datagrams();
            }
        }
        true
    }

    /// Fills the next slot.
    fn fill(&mut self, slot_bytes: usize, header: &[u8], bytes: &[u8]) -> Local {
        let address = self.slots.address() + (self.posted % SENDS) * slot_bytes as u64;
        let place = address as *mut u8;
        // SAFETY: the slot is inside the registered memory, at least as long as header and bytes
        // together, and the device is done with the slot; nothing else has access.
        unsafe {
            place.copy_from_nonoverlapping(header.as_ptr(), header.len());
            place.add(header.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        let bytes = (header.len() + bytes.len()) as u32;
        Local { address, bytes, key: self.slots.local_key() }
    }
}

impl Incoming {
    fn new(node: &RdmaNode, messages: u32, packet_bytes: usize) -> Result<Self, SetupError> {
        let slot_bytes = (ROUTING_BYTES + packet_bytes).next_multiple_of(64);
        Ok(Self {
            slots: buffers(node, messages as usize * slot_bytes)?,
            slot_bytes,
            empty: (0..messages).collect(),
            buffers: Vec::new(),
            requests: Vec::new(),
        })
    }

    /// Gives the empty slots to the device.
    fn hand_over(&mut self, pair: &QueuePair) {
        self.buffers.clear();
        self.requests.clear();
        for slot in &self.empty {
            self.buffers.push(ibv_sge {
                addr: self.slots.address() + u64::from(*slot) * self.slot_bytes as u64,
                length: self.slot_bytes as u32,
                lkey: self.slots.local_key(),
            });
        }
        let buffers = self.buffers.as_mut_ptr();
        for (index, slot) in self.empty.drain(..).enumerate() {
            self.requests.push(ibv_recv_wr {
                wr_id: RECEIVED | u64::from(slot),
                next: std::ptr::null_mut(),
                sg_list: buffers.wrapping_add(index),
                num_sge: 1,
            });
        }
        // SAFETY: the slots are registered, live as long as the queue pair, and are read only
        // between a completion and the next `hand_over`. If the device refuses, messages are lost,
        // which the contract allows.
        let _ = unsafe { pair.post_receives(&mut self.requests) };
    }

    /// Returns the datagram received in a slot; `bytes` includes the preceding routing bytes.
    fn datagram(&self, slot: u32, bytes: usize) -> &[u8] {
        let length = bytes.min(self.slot_bytes).saturating_sub(ROUTING_BYTES);
        let place = self.slots.address() + u64::from(slot) * self.slot_bytes as u64;
        let first = (place as *const u8).wrapping_add(ROUTING_BYTES);
        // SAFETY: inside the registered memory; the device has completed the slot and does not get
        // the slot back before `hand_over`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}

/// Registers memory for access by this node's device only.
fn buffers(node: &RdmaNode, bytes: usize) -> Result<MemoryRegion, SetupError> {
    let memory = Memory::anonymous(bytes).map_err(|source| node.device.error("use", source))?;
    let nobody = Rights { read: false, write: false, atomic: false };
    node.register_memory(Arc::new(memory), bytes as u64, nobody)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: u16) -> Endpoint {
        Endpoint { node: NodeId(node), lane: LaneId(7) }
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header { from: at(513), number: 0x0102_0304, index: 3, count: 9 };
        let mut datagram = header.encode().to_vec();
        assert_eq!(Header::decode(&datagram), Some((header, &[][..])));
        datagram.push(1);
        assert_eq!(Header::decode(&datagram), Some((header, &[1][..])));
        assert_eq!(Header::decode(&datagram[..11]), None);
    }

    /// Takes fragments as (sender, message, index) and the expected deliveries; each message has
    /// three.
    #[test]
    fn messages_arrive_whole_or_not_at_all() {
        type Case<'a> = (&'a [(u16, u32, u16)], &'a [&'a [u8]]);
        let cases: [Case<'_>; 7] = [
            (&[(1, 5, 0), (1, 5, 1), (1, 5, 2)], &[&[0, 1, 2]]),
            (&[(1, 5, 0), (1, 5, 2)], &[]),
            (&[(1, 5, 1), (1, 5, 2)], &[]),
            (&[(1, 5, 0), (1, 5, 1), (1, 6, 2)], &[]),
            (&[(1, 5, 0), (1, 5, 2), (1, 5, 1), (1, 5, 2)], &[]),
            (&[(1, 5, 0), (2, 5, 0), (1, 5, 1), (2, 5, 1), (2, 5, 2)], &[&[0, 1, 2]]),
            (&[(1, 5, 0), (1, 6, 0), (1, 6, 1), (1, 6, 2), (1, 6, 2)], &[&[0, 1, 2]]),
        ];
        for (fragments, expected) in cases {
            let (mut partial, mut delivered) = (Vec::new(), Vec::new());
            for (from, number, index) in fragments {
                let header = Header { from: at(*from), number: *number, index: *index, count: 3 };
                assemble(&mut partial, header, &[*index as u8], |_, bytes| {
                    delivered.push(bytes.to_vec());
                });
            }
            assert_eq!(delivered, expected, "{fragments:?}");
        }
    }
}
