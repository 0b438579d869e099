//! What a target lets others take of it, and what it has had to turn away.
//!
//! Memory of one connection, at most: 64 KiB of input and 64 KiB of output once it is admitted,
//! 1 KiB before, and what the kernel keeps for a socket. A lane keeps as much for each target; for
//! each peer that it receives from 16 KiB, and for each that it sends to 64 KiB, or up to 2 MiB
//! while so much waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wire::MAX_FRAME_WORDS;
use crate::region::WORD_BYTES;
use crate::rpc::MAX_PAYLOAD_BYTES;

/// Words that a connection may have received and not yet carried out.
pub(super) const INPUT_WORDS: usize = 2 * MAX_FRAME_WORDS;
/// Words of answers, or of verbs, that may wait to be sent.
pub(super) const OUTPUT_WORDS: usize = 2 * MAX_FRAME_WORDS;
/// Words of input before a connection is admitted: the longest frame of a handshake fits.
pub(super) const GUEST_WORDS: usize = 64;
/// Words of messages to one peer that may wait to be sent; further ones are lost. Room for the
/// longest payload of a call and as much again: one lost fragment costs the whole.
pub(super) const PEER_WORDS: usize = 512 * super::wire::MAX_MESSAGE_WORDS;
/// Words that an empty queue keeps for the next.
pub(super) const KEPT_WORDS: usize = OUTPUT_WORDS;
/// Words of messages from one peer that may wait to be handed over.
pub(super) const VISITOR_WORDS: usize = 4 * super::wire::MAX_MESSAGE_WORDS;
/// The most peers that one lane receives from.
pub(super) const VISITORS: usize = 1024;

const _: () = assert!(INPUT_WORDS >= MAX_FRAME_WORDS && OUTPUT_WORDS >= MAX_FRAME_WORDS);
const _: () = assert!(PEER_WORDS >= 2 * MAX_PAYLOAD_BYTES / WORD_BYTES);
const _: () = assert!(VISITOR_WORDS >= 2 * super::wire::MAX_MESSAGE_WORDS);

/// Bounds and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be registered on one node; unlimited unless told otherwise.
    pub memory_bytes: u64,
    /// Admitted connections of one node; 4096 unless told otherwise.
    pub connections: usize,
    /// Connections to all nodes of a process that have not yet proved who they are; 64 unless told
    /// otherwise.
    pub guests: usize,
    /// How long a connection may take to be admitted; 2 s unless told otherwise.
    pub handshake: Duration,
    /// How long a peer may leave answers unread; 10 s unless told otherwise.
    pub unread: Duration,
    /// How long a peer may be silent before the kernel asks whether it is still there; 10 s unless
    /// told otherwise.
    pub silence: Duration,
    /// How long a verb may take before its outcome is `TimedOut`; 2 s unless told otherwise.
    pub verb: Duration,
    /// How long a control request may take; 10 s unless told otherwise.
    pub control: Duration,
    /// How long messages to a peer that does not answer are dropped before it is tried again;
    /// 10 ms unless told otherwise.
    pub redial: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: u64::MAX,
            connections: 4096,
            guests: 64,
            handshake: Duration::from_secs(2),
            unread: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            verb: Duration::from_secs(2),
            control: Duration::from_secs(10),
            redial: Duration::from_millis(10),
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has happened at one target since it was started.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct TargetCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, being counted.
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
    /// Connections closed at once, because too many others were waiting to be admitted.
    turned_away,
    /// Connections closed for not having been admitted in time.
    too_slow_to_greet,
    /// Connections closed for leaving answers unread.
    too_slow_to_read,
    /// Connections closed for sending what is no frame.
    garbage,
    /// Connections closed because their lane made a newer one.
    replaced,
    /// Frames of verbs carried out.
    frames,
    /// Times that the system had no socket to give.
    accept_errors,
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}
