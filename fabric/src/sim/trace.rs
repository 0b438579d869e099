//! What happens in a world, as lines that a person can follow.
//!
//! Off by default, and free then but for one test of an option. The trace hash is computed always
//! and does not depend on whether anybody listens.

use std::fmt;
use std::time::Duration;

use super::faults::Fault;
use crate::ids::{Endpoint, NodeId};
use crate::verbs::{Op, VerbError, WorkRequest};

/// Whoever listens. Called with the world locked: it must not call the fabric.
pub type Tracer = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// Since the world began.
    pub at: Duration,
    /// What.
    pub what: Happening<'a>,
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Happening<'a> {
    /// A verb took effect.
    Applied {
        /// Who posted it.
        from: Endpoint,
        /// The verb.
        request: &'a WorkRequest,
    },
    /// A verb begins to land, or to be sampled, in pieces.
    Torn {
        /// Who posted it.
        from: Endpoint,
        /// The verb.
        request: &'a WorkRequest,
    },
    /// A connection broke.
    Broken {
        /// Whose connection.
        from: Endpoint,
        /// To which node.
        to: NodeId,
        /// Why.
        error: VerbError,
    },
    /// A reconnect ended.
    Reconnected {
        /// Whose connection.
        from: Endpoint,
        /// To which node.
        to: NodeId,
        /// How.
        result: Result<(), VerbError>,
    },
    /// A verb whose initiator had given up arrived; whether it took effect.
    Straggler {
        /// Who posted it.
        from: Endpoint,
        /// Where it arrived.
        to: NodeId,
        /// Whether it took effect.
        landed: bool,
    },
    /// All verbs of a batch are done, and the lane can know.
    Completed {
        /// Whose batch.
        at: Endpoint,
        /// How many verbs.
        verbs: usize,
        /// Whether any of them failed.
        failed: bool,
    },
    /// A message was taken in or lost.
    Message {
        /// The sender.
        from: Endpoint,
        /// The receiver.
        to: Endpoint,
        /// How long.
        bytes: usize,
        /// What became of it.
        fate: &'static str,
    },
    /// A node was fenced at another.
    Fenced {
        /// Where.
        target: NodeId,
        /// Who.
        expelled: NodeId,
        /// Verbs of epochs below this are refused.
        epoch: u32,
    },
    /// A fault happened.
    Fault(&'a Fault),
}

/// The lane as `n4.0`: node and number.
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
        }
    }
}

impl fmt::Display for TraceEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.3}us ", self.at.as_nanos() as f64 / 1e3)?;
        match self.what {
            Happening::Applied { from, request } => write!(f, "{} {}", Name(from), Verb(request)),
            Happening::Torn { from, request } => {
                write!(f, "{} {} begins, torn", Name(from), Verb(request))
            }
            Happening::Broken { from, to, error } => {
                write!(f, "{} -> n{}: broken: {error}", Name(from), to.0)
            }
            Happening::Reconnected { from, to, result: Ok(()) } => {
                write!(f, "{} -> n{}: reconnected", Name(from), to.0)
            }
            Happening::Reconnected { from, to, result: Err(error) } => {
                write!(f, "{} -> n{}: not reconnected: {error}", Name(from), to.0)
            }
            Happening::Straggler { from, to, landed } => {
                let fate = if landed { "landed" } else { "was refused" };
                write!(f, "{} -> n{}: a straggler {fate}", Name(from), to.0)
            }
            Happening::Completed { at, verbs, failed } => {
                let how = if failed { "failed" } else { "completed" };
                write!(f, "{} batch of {verbs} {how}", Name(at))
            }
            Happening::Message { from, to, bytes, fate } => {
                write!(f, "{} -> {} message {bytes}B {fate}", Name(from), Name(to))
            }
            Happening::Fenced { target, expelled, epoch } => {
                write!(f, "n{} fences n{} below epoch {epoch}", target.0, expelled.0)
            }
            Happening::Fault(fault) => write!(f, "fault: {fault:?}"),
        }
    }
}
