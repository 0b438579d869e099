//! Control requests: registering regions and fencing nodes, over separate connections.
//!
//! The initiator's thread blocks until the answer; control is no data path. An admitted peer may
//! send any request: the nodes of a cluster trust each other (docs/security.md).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::backends::tcp::handshake::{Hello, Initiator, Refusal, push_frame};
use crate::backends::tcp::limits::GUEST_WORDS;
use crate::backends::tcp::server::serve::RegisterError;
use crate::backends::tcp::server::target::TargetNode;
use crate::backends::tcp::socket::{Fill, Input, Output};
use crate::backends::tcp::wire::{self, Frame, FrameKind, WireError};
use crate::contract::ids::{Epoch, NodeId, RegionId};
use crate::contract::region::Rights;
use lotus_security::Security;
use lotus_security::Stream;

/// A control request to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ControlRequest {
    Register { region: RegionId, bytes: u64, rights: Rights },
    Fence { expelled: NodeId, epoch: Epoch },
}

/// Reason why a target did not carry out a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    Taken,
    /// Error number of the operating system.
    Memory(i32),
    UnknownNode,
}

/// Result of a request.
pub(crate) type Done = Result<(), Failure>;

const TAKEN: u8 = 1;
const MEMORY: u8 = 2;
const UNKNOWN_NODE: u8 = 3;

impl ControlRequest {
    fn push(self, out: &mut Vec<u64>) {
        match self {
            Self::Register { region, bytes, rights } => {
                let Rights { read, write, atomic } = rights;
                let bits = u64::from(read) | u64::from(write) << 1 | u64::from(atomic) << 2;
                let what = u64::from(region.0) | bits << 8;
                push_frame(out, FrameKind::Register, 0, &[what, bytes]);
            }
            Self::Fence { expelled, epoch } => {
                let body = [u64::from(expelled.0), u64::from(epoch.0)];
                push_frame(out, FrameKind::Fence, 0, &body);
            }
        }
    }

    fn parse(frame: &Frame<'_>) -> Result<Self, WireError> {
        match (frame.header.kind, frame.body) {
            (FrameKind::Register, &[what, bytes]) => {
                let bit = |bit: u32| what >> (8 + bit) & 1 == 1;
                let rights = Rights { read: bit(0), write: bit(1), atomic: bit(2) };
                Ok(Self::Register { region: RegionId(what as u8), bytes, rights })
            }
            (FrameKind::Fence, &[node, epoch]) => {
                let number = |word: u64| u32::try_from(word).map_err(|_| WireError::Body);
                let node = u16::try_from(node).map_err(|_| WireError::Body)?;
                Ok(Self::Fence { expelled: NodeId(node), epoch: Epoch(number(epoch)?) })
            }
            _ => Err(WireError::Unexpected),
        }
    }
}

/// Appends the result of a request.
pub(crate) fn push_done(out: &mut Vec<u64>, done: &Done) {
    match done {
        Ok(()) => push_frame(out, FrameKind::Done, 0, &[]),
        Err(Failure::Taken) => push_frame(out, FrameKind::Done, TAKEN, &[]),
        Err(Failure::Memory(code)) => push_frame(out, FrameKind::Done, MEMORY, &[*code as u64]),
        Err(Failure::UnknownNode) => push_frame(out, FrameKind::Done, UNKNOWN_NODE, &[]),
    }
}

fn parse_done(frame: &Frame<'_>) -> Result<Done, WireError> {
    match (frame.header.kind, frame.header.status, frame.body) {
        (FrameKind::Done, 0, []) => Ok(Ok(())),
        (FrameKind::Done, TAKEN, []) => Ok(Err(Failure::Taken)),
        (FrameKind::Done, MEMORY, &[code]) => Ok(Err(Failure::Memory(code as i32))),
        (FrameKind::Done, UNKNOWN_NODE, []) => Ok(Err(Failure::UnknownNode)),
        _ => Err(WireError::Unexpected),
    }
}

/// Encodes the name of a control connection of the first worker, decoded by [`asker`].
pub(crate) fn ask(key: usize, serial: u32) -> u64 {
    (key as u64) << 32 | u64::from(serial)
}

/// Returns the key and serial number of a control connection.
pub(crate) fn asker(name: u64) -> (usize, u32) {
    ((name >> 32) as usize, name as u32)
}

/// Carries out a request. `None`: the request completes once every worker has done its part.
///
/// # Errors
/// The frame is not a control request.
pub(crate) fn answer(
    frame: &Frame<'_>,
    shared: &TargetNode,
    asker: u64,
) -> Result<Option<Done>, WireError> {
    Ok(match ControlRequest::parse(frame)? {
        ControlRequest::Register { region, bytes, rights } => {
            let registered = shared.regions.register(region, bytes, rights);
            Some(registered.map_err(|error| match error {
                RegisterError::Taken => Failure::Taken,
                RegisterError::Memory(source) => {
                    Failure::Memory(source.raw_os_error().unwrap_or_default())
                }
            }))
        }
        ControlRequest::Fence { expelled, .. } if !shared.knows(expelled) => {
            Some(Err(Failure::UnknownNode))
        }
        ControlRequest::Fence { expelled, epoch } => {
            shared.fence(expelled, epoch, asker);
            None
        }
    })
}

/// Reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the answer makes no sense: {0}")]
    Wire(#[from] WireError),
}

/// Sends a request to the target at `address`, and waits for the result; no step takes longer than
/// `patience`.
///
/// # Errors
/// [`CallError`]; the request may have been carried out.
pub(crate) fn call(
    address: SocketAddr,
    hello: Hello,
    security: &Security,
    patience: Duration,
    request: ControlRequest,
) -> Result<Done, CallError> {
    let mut line = Line::open(address, security, patience)?;
    let mut initiator = Initiator::start(hello, security.key(), &mut line.output.words)?;
    line.exchange(|frame, out| Ok(initiator.step(frame, out)?.then_some(())))?;
    request.push(&mut line.output.words);
    line.exchange(|frame, _| Ok(Some(parse_done(frame)?)))
}

/// A blocking connection.
struct Line {
    stream: Stream,
    input: Input,
    output: Output,
}

impl Line {
    fn open(address: SocketAddr, security: &Security, patience: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, patience)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let stream = Stream::outgoing(socket, security)?;
        Ok(Self { stream, input: Input::new(GUEST_WORDS), output: Output::default() })
    }

    /// Sends the pending output, then passes frames to `take` until it returns a value.
    fn exchange<T>(
        &mut self,
        mut take: impl FnMut(&Frame<'_>, &mut Vec<u64>) -> Result<Option<T>, CallError>,
    ) -> Result<T, CallError> {
        loop {
            while !self.output.is_empty() {
                self.output.flush(&mut self.stream)?;
            }
            if let Some(frame) = wire::decode(self.input.words())? {
                let words = frame.words();
                let taken = take(&frame, &mut self.output.words)?;
                self.input.take(words);
                match taken {
                    Some(value) => return Ok(value),
                    None => continue,
                }
            }
            match self.input.fill(&mut self.stream)? {
                Fill::Drained => {}
                Fill::Nothing => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                Fill::Closed => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Fill::Full => return Err(WireError::Long(GUEST_WORDS).into()),
            }
        }
    }
}
