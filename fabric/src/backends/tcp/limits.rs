//! Limits on the resources that peers can use, and counters of refused peers.
//!
//! Memory of one connection, at most: 64 KiB of input and 64 KiB of output once admitted, 1 KiB
//! before, and the kernel's socket buffers. A lane uses as much for each target; 16 KiB for each
//! peer that it receives from; and for each peer that it sends to 64 KiB, or up to 2 MiB while that
//! many messages wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wire::MAX_FRAME_WORDS;
use crate::contract::region::WORD_BYTES;
use crate::rpc::MAX_PAYLOAD_BYTES;

/// Words that a connection may have received but not yet carried out.
pub(super) const INPUT_WORDS: usize = 2 * MAX_FRAME_WORDS;
/// Words of answers or verbs that may wait to be sent.
pub(super) const OUTPUT_WORDS: usize = 2 * MAX_FRAME_WORDS;
/// Words of input before a connection is admitted; the longest frame of a handshake fits.
pub(super) const GUEST_WORDS: usize = 64;
/// Words of messages to one peer that may wait to be sent; further messages are dropped. Room for
/// two of the longest RPC payloads, because a lost fragment costs the whole payload.
pub(super) const PEER_WORDS: usize = 512 * super::wire::MAX_MESSAGE_WORDS;
/// Capacity in words that an empty queue keeps.
pub(super) const KEPT_WORDS: usize = OUTPUT_WORDS;
/// Words of messages from one peer that may wait to be delivered.
pub(super) const VISITOR_WORDS: usize = 4 * super::wire::MAX_MESSAGE_WORDS;
/// Largest number of peers that a lane receives from.
pub(super) const VISITORS: usize = 1024;

const _: () = assert!(INPUT_WORDS >= MAX_FRAME_WORDS && OUTPUT_WORDS >= MAX_FRAME_WORDS);
const _: () = assert!(PEER_WORDS >= 2 * MAX_PAYLOAD_BYTES / WORD_BYTES);
const _: () = assert!(VISITOR_WORDS >= 2 * super::wire::MAX_MESSAGE_WORDS);

/// Bounds and time-outs of a node. Defaults in parentheses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be registered on one node (unlimited).
    pub memory_bytes: u64,
    /// Admitted connections of one node (4096).
    pub connections: usize,
    /// Unauthenticated connections to the nodes of a process; at most three quarters from one
    /// address (128).
    pub guests: usize,
    /// Time for a connection to be admitted (2 s).
    pub handshake: Duration,
    /// Time for which a peer may leave answers unread (10 s).
    pub unread: Duration,
    /// Time without traffic after which the kernel probes whether the peer is alive (10 s).
    pub silence: Duration,
    /// Time after which a verb's outcome is `TimedOut` (2 s).
    pub verb: Duration,
    /// Time for a control request (10 s).
    pub control: Duration,
    /// Time for which a peer may leave sent bytes unacknowledged, or the socket full, before the
    /// connection is given up (2 s). Without this limit a connection over a cut path would last for
    /// a quarter of an hour, and be idle for a minute after the path was mended.
    pub unacknowledged: Duration,
    /// Time for which messages to an unanswering peer are dropped before the next attempt (10 ms).
    pub redial: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: u64::MAX,
            connections: 4096,
            guests: 128,
            handshake: Duration::from_secs(2),
            unread: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            verb: Duration::from_secs(2),
            control: Duration::from_secs(10),
            unacknowledged: Duration::from_secs(2),
            redial: Duration::from_millis(10),
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Event counters of one target since its start.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct TargetCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind `TargetCounters`.
        #[derive(Default)]
        pub(super) struct Counting {
            $(pub(super) $name: Count,)*
        }

        impl Counting {
            pub(super) fn now(&self) -> TargetCounters {
                TargetCounters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Connections accepted.
    accepted,
    /// Connections admitted after their handshake.
    admitted,
    /// Connections refused with a reason.
    refused,
    /// Connections closed because too many were waiting for admission: the new connection, or a
    /// connection that had waited for long.
    turned_away,
    /// Connections closed because the handshake did not end in time.
    too_slow_to_greet,
    /// Connections closed for leaving answers unread.
    too_slow_to_read,
    /// Connections closed for sending malformed frames.
    garbage,
    /// Connections closed because the lane made a newer connection.
    replaced,
    /// Frames of verbs carried out.
    frames,
    /// Failures of the system to provide a socket.
    accept_errors,
}

/// A counter.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}
