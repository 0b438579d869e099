//! Shared words through which a fencer at one node and the lanes of many processes see each other.
//!
//! [`Gates`] belong to a process: the process's lanes write them, and every host that the process
//! attaches to reads them. A [`Board`] belongs to a host, the board's only writer; every process
//! reads the board. Why fencer or lane always sees the other's word is argued in `copies`; the
//! argument only requires that all processes use the same physical words.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::memfd::{self, PAGE_BYTES};
use crate::contract::ids::{Epoch, NodeId};
use crate::contract::region::{Memory, View, WORD_BYTES};

/// Largest number of lanes open in one process: each lane has a gate.
pub const MAX_LANES: usize = 512;
/// Two cache lines for each gate, since processors fetch cache lines in pairs.
const GATE_WORDS: usize = 16;
/// Word of a gate: the lane's node plus one; zero if the gate is free.
const NODE: usize = 0;
/// Word of a gate: odd while the lane is inside a round.
const ROUND: usize = 1;
const GATES_BYTES: usize = MAX_LANES * GATE_WORDS * WORD_BYTES;

/// All gates of this process.
pub(super) struct Gates {
    memory: Memory,
    file: OwnedFd,
    free: Mutex<Vec<usize>>,
}

impl Gates {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let file = memfd::small(GATES_BYTES)?;
        let memory = Memory::of_file(&file)?;
        let free = Mutex::new((0..MAX_LANES).rev().collect());
        Ok(Arc::new(Self { memory, file: memfd::read_only(&file)?, free }))
    }

    /// Returns the read-only file for hosts.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes a gate for a lane of `node`; `None` when every gate is in use.
    pub(super) fn open(self: &Arc<Self>, node: NodeId) -> Option<Gate> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let gate = Gate { gates: Arc::clone(self), index };
        // Before the lane's first round, in the sequentially consistent order that fencers see.
        gate.word(NODE).store(u64::from(node.0) + 1, Ordering::SeqCst);
        Some(gate)
    }
}

/// The gate of one lane.
pub(super) struct Gate {
    gates: Arc<Gates>,
    index: usize,
}

impl Gate {
    fn word(&self, which: usize) -> &AtomicU64 {
        self.gates.memory.word(self.index * GATE_WORDS + which)
    }

    /// Returns the word for `Round::enter`.
    #[inline]
    pub(super) fn round(&self) -> &AtomicU64 {
        self.word(ROUND)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.word(NODE).store(0, Ordering::SeqCst);
        self.gates.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// Another process's gates, from the host's side.
pub(super) struct ForeignGates(View);

impl ForeignGates {
    pub(super) fn map(file: &OwnedFd) -> io::Result<Self> {
        let view = View::of_file(file)?;
        let right = view.bytes() == GATES_BYTES;
        if right { Ok(Self(view)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Returns the gates of `node`'s lanes.
    pub(super) fn of(&self, node: NodeId) -> impl Iterator<Item = usize> + '_ {
        let wanted = u64::from(node.0) + 1;
        (0..MAX_LANES).filter(move |gate| self.0.load(gate * GATE_WORDS + NODE) == wanted)
    }

    pub(super) fn round(&self, gate: usize) -> u64 {
        self.0.load(gate * GATE_WORDS + ROUND)
    }
}

/// Word of a board: number of the node's regions.
const REGION_COUNT: usize = 0;
/// Word of a board: the first fence; fences are in the order of nodes.
const FENCES: usize = 8;

fn board_bytes(nodes: u16) -> usize {
    ((FENCES + usize::from(nodes)) * WORD_BYTES).next_multiple_of(PAGE_BYTES)
}

/// State that a host publishes to every attached process.
pub(super) struct Board {
    memory: Memory,
    /// Read-only file, for other processes.
    pub(super) file: Arc<OwnedFd>,
}

impl Board {
    pub(super) fn new(nodes: u16) -> io::Result<Self> {
        let file = memfd::small(board_bytes(nodes))?;
        let memory = Memory::of_file(&file)?;
        Ok(Self { memory, file: Arc::new(memfd::read_only(&file)?) })
    }

    /// Refuses verbs of `expelled` with epochs below `epoch` from now on.
    pub(super) fn fence(&self, expelled: NodeId, epoch: Epoch) {
        let fence = self.memory.word(FENCES + usize::from(expelled.0));
        fence.fetch_max(epoch.0.into(), Ordering::SeqCst);
    }

    pub(super) fn set_region_count(&self, count: usize) {
        self.memory.word(REGION_COUNT).store(count as u64, Ordering::Release);
    }
}

/// A host's board, from other processes' side.
pub(super) struct ForeignBoard(View);

impl ForeignBoard {
    pub(super) fn map(file: &OwnedFd, nodes: u16) -> io::Result<Self> {
        let view = View::of_file(file)?;
        let right = view.bytes() == board_bytes(nodes);
        if right { Ok(Self(view)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    #[inline]
    pub(super) fn fence(&self, initiator: NodeId) -> Epoch {
        Epoch(self.0.load(FENCES + usize::from(initiator.0)) as u32)
    }

    pub(super) fn region_count(&self) -> usize {
        self.0.load(REGION_COUNT) as usize
    }
}
