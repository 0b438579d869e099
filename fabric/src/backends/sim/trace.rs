//! A readable trace of the events in a world.
//!
//! Tracing is off by default, and then costs one check of an option. The trace hash is always
//! computed and does not depend on the tracer.

use std::fmt;
use std::time::Duration;

use super::faults::Fault;
use crate::contract::ids::{Endpoint, NodeId};
use crate::contract::verbs::{Op, VerbError, WorkRequest};

/// Receiver of trace events. Called with the world locked: a tracer must not call the fabric.
pub type Tracer = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// One event of a run.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// Time since the world began.
    pub at: Duration,
    /// The event.
    pub what: TraceEventKind<'a>,
}

/// Kinds of trace events.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TraceEventKind<'a> {
    /// A verb took effect.
    Applied {
        /// The posting lane.
        from: Endpoint,
        /// The verb.
        request: &'a WorkRequest,
    },
    /// A verb begins to land (WRITE) or to be sampled (READ) in pieces.
    Torn {
        /// The posting lane.
        from: Endpoint,
        /// The verb.
        request: &'a WorkRequest,
    },
    /// A connection broke.
    Broken {
        /// The initiating lane.
        from: Endpoint,
        /// The target node.
        to: NodeId,
        /// The error that broke the connection.
        error: VerbError,
    },
    /// A reconnect ended.
    Reconnected {
        /// The initiating lane.
        from: Endpoint,
        /// The target node.
        to: NodeId,
        /// Result of the reconnect.
        result: Result<(), VerbError>,
    },
    /// A verb arrived after the initiator had given up.
    Straggler {
        /// The posting lane.
        from: Endpoint,
        /// The target node.
        to: NodeId,
        /// Whether the verb took effect.
        landed: bool,
    },
    /// A batch is complete and reported to the lane.
    Completed {
        /// The lane that posted the batch.
        at: Endpoint,
        /// Number of verbs.
        verbs: usize,
        /// Whether any verb failed.
        failed: bool,
    },
    /// A message was received or lost.
    Message {
        /// The sender.
        from: Endpoint,
        /// The receiver.
        to: Endpoint,
        /// Length in bytes.
        bytes: usize,
        /// Result of the delivery, in words.
        fate: &'static str,
    },
    /// A target fenced a node.
    Fenced {
        /// The refusing node.
        target: NodeId,
        /// The refused node.
        expelled: NodeId,
        /// Epoch below which verbs are refused.
        epoch: u32,
    },
    /// A fault happened.
    Fault(&'a Fault),
}

/// Formats a lane as `n4.0`: node and number.
struct Name(Endpoint);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}.{}", self.0.node.0, self.0.lane.0)
    }
}

struct Verb<'a>(&'a WorkRequest);

impl fmt::Display for Verb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(request) = self;
        let (bytes, addr) = (request.bytes(), request.addr);
        match request.op {
            Op::Read => write!(f, "READ {bytes}B @{addr:?}"),
            Op::ReadStable => write!(f, "READ (stable) {bytes}B @{addr:?}"),
            Op::Write => write!(f, "WRITE {bytes}B @{addr:?}"),
            Op::WriteWord { value } => write!(f, "WRITE {value:#x} @{addr:?}"),
            Op::CompareAndSwap { expected, new } => {
                write!(f, "CAS {expected:#x}->{new:#x} @{addr:?}")
            }
            Op::FetchAndAdd { addend } => write!(f, "FAA {addend:#x} @{addr:?}"),
            Op::MaskedCompareAndSwap => write!(f, "CAS (masked) @{addr:?}"),
            // Not printed: the operands are in the buffer, where the result may have replaced them.
            Op::WideCompareAndSwap => write!(f, "CAS (16B) @{addr:?}"),
            Op::WideFetchAndAdd => write!(f, "FAA (16B) @{addr:?}"),
            Op::MaskedFetchAndAdd { addend, boundary } => {
                write!(f, "FAA {addend:#x} (boundary {boundary:#x}) @{addr:?}")
            }
        }
    }
}

impl fmt::Display for TraceEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.3}us ", self.at.as_nanos() as f64 / 1e3)?;
        match self.what {
            TraceEventKind::Applied { from, request } => {
                write!(f, "{} {}", Name(from), Verb(request))
            }
            TraceEventKind::Torn { from, request } => {
                write!(f, "{} {} begins, torn", Name(from), Verb(request))
            }
            TraceEventKind::Broken { from, to, error } => {
                write!(f, "{} -> n{}: broken: {error}", Name(from), to.0)
            }
            TraceEventKind::Reconnected { from, to, result: Ok(()) } => {
                write!(f, "{} -> n{}: reconnected", Name(from), to.0)
            }
            TraceEventKind::Reconnected { from, to, result: Err(error) } => {
                write!(f, "{} -> n{}: not reconnected: {error}", Name(from), to.0)
            }
            TraceEventKind::Straggler { from, to, landed } => {
                let fate = if landed { "landed" } else { "was refused" };
                write!(f, "{} -> n{}: a straggler {fate}", Name(from), to.0)
            }
            TraceEventKind::Completed { at, verbs, failed } => {
                let how = if failed { "failed" } else { "completed" };
                write!(f, "{} batch of {verbs} {how}", Name(at))
            }
            TraceEventKind::Message { from, to, bytes, fate } => {
                write!(f, "{} -> {} message {bytes}B {fate}", Name(from), Name(to))
            }
            TraceEventKind::Fenced { target, expelled, epoch } => {
                write!(f, "n{} fences n{} below epoch {epoch}", target.0, expelled.0)
            }
            TraceEventKind::Fault(fault) => write!(f, "fault: {fault:?}"),
        }
    }
}
