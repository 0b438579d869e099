//! Messages of a recovery, by which the coordinator asks the switch and the machines.

use crate::fisslock::report::{Locks, decode_locks, encode_locks};

/// A request of the coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ControlRequest {
    /// To a machine: stop, and report (S1).
    Stop {
        /// Epoch that begins.
        epoch: u32,
    },
    /// To a machine: go on with these locks (S2).
    Resume {
        /// Epoch that has begun.
        epoch: u32,
        /// All locks that are not free.
        locks: Locks,
    },
    /// To the switch: say which life this is.
    Life,
    /// To the switch, in that life: begin an epoch with these locks (S3).
    Rewrite {
        /// Epoch that begins.
        epoch: u32,
        /// Life of the switch, by its answer to [`ControlRequest::Life`].
        life: u64,
        /// Machines that are lost.
        dead: Vec<u8>,
        /// All locks that are not free.
        locks: Locks,
    },
}

impl ControlRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Stop { epoch } => {
                bytes.push(0);
                bytes.extend(epoch.to_le_bytes());
            }
            Self::Resume { epoch, locks } => {
                bytes.push(1);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(encode_locks(locks));
            }
            Self::Life => bytes.push(2),
            Self::Rewrite { epoch, life, dead, locks } => {
                bytes.push(3);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(life.to_le_bytes());
                // There are at most 255 machines.
                bytes.push(dead.len() as u8);
                bytes.extend(dead);
                bytes.extend(encode_locks(locks));
            }
        }
        bytes
    }

    /// The request of some bytes; `None` for others.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let with_epoch = || {
            let (epoch, rest) = rest.split_first_chunk()?;
            Some((u32::from_le_bytes(*epoch), rest))
        };
        match kind {
            0 => {
                let (epoch, rest) = with_epoch()?;
                rest.is_empty().then_some(Self::Stop { epoch })
            }
            1 => {
                let (epoch, rest) = with_epoch()?;
                Some(Self::Resume { epoch, locks: decode_locks(rest)? })
            }
            2 => rest.is_empty().then_some(Self::Life),
            3 => {
                let (epoch, rest) = with_epoch()?;
                let (life, rest) = rest.split_first_chunk()?;
                let (dead, rest) = rest.split_first()?;
                let (dead, rest) = rest.split_at_checked(usize::from(*dead))?;
                let (life, dead) = (u64::from_le_bytes(*life), dead.to_vec());
                Some(Self::Rewrite { epoch, life, dead, locks: decode_locks(rest)? })
            }
            _ => None,
        }
    }
}

/// Answer to [`ControlRequest::Resume`] and [`ControlRequest::Rewrite`]: whether it is so.
pub(super) const fn encode_done(is_done: bool) -> [u8; 1] {
    [is_done as u8]
}

/// Whether what was asked is done; `None` for other bytes.
pub(super) const fn decode_done(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fisslock::packet::Participant;
    use crate::fisslock::recovery::Restored;
    use crate::word::Mode;

    #[test]
    fn requests_are_read_as_they_were_written_and_garbage_is_refused() {
        let holders = BTreeSet::from([Participant { machine: 1, task: 2, nonce: 3 }]);
        let restored = Restored { mode: Mode::Shared, agent_at: 1, holders, waiters: Vec::new() };
        let locks = Locks::from([(7, restored)]);
        let epoch = 0x0102_0304;
        let all = [
            ControlRequest::Stop { epoch },
            ControlRequest::Resume { epoch, locks: locks.clone() },
            ControlRequest::Life,
            ControlRequest::Rewrite { epoch, life: u64::MAX, dead: vec![3, 200], locks },
        ];
        for asked in all {
            let bytes = asked.encode();
            assert_eq!(ControlRequest::decode(&bytes), Some(asked));
            assert_eq!(ControlRequest::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(ControlRequest::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(ControlRequest::decode(&[4]), None);
        assert_eq!(decode_done(&encode_done(true)), Some(true));
        assert_eq!((decode_done(&[2]), decode_done(&[])), (None, None));
    }
}
