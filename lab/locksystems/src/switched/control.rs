//! Messages of a recovery, from the coordinator to the switch and the machines.
//!
//! Long contents come in pages: a machine's report, the locks told to a machine, and the state of
//! the switch. A message has one page.

use lotus_fabric::rpc::Responder;

use super::Places;
use super::pages::Page;

/// A request of the coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ControlRequest {
    /// To a machine: stop, and report (S1).
    Stop {
        /// Epoch that begins.
        epoch: u32,
        /// Number of the report page to be returned.
        page: u32,
    },
    /// To a machine: resume (S2).
    Resume {
        /// Epoch that has begun.
        epoch: u32,
        /// A page of the locks that concern the machine.
        page: Page,
    },
    /// To the switch: report the current life.
    Life,
    /// To the switch, in the given life: begin an epoch (S3).
    Rewrite {
        /// Epoch that begins.
        epoch: u32,
        /// Life of the switch, as answered to [`ControlRequest::Life`].
        life: u64,
        /// A page of the lost machines and the held locks.
        page: Page,
    },
}

impl ControlRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Stop { epoch, page } => {
                bytes.push(0);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(page.to_le_bytes());
            }
            Self::Resume { epoch, page } => {
                bytes.push(1);
                bytes.extend(epoch.to_le_bytes());
                page.encode_to(&mut bytes);
            }
            Self::Life => bytes.push(2),
            Self::Rewrite { epoch, life, page } => {
                bytes.push(3);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(life.to_le_bytes());
                page.encode_to(&mut bytes);
            }
        }
        bytes
    }

    /// Decodes a request; `None` for malformed bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let with_epoch = || {
            let (epoch, rest) = rest.split_first_chunk()?;
            Some((u32::from_le_bytes(*epoch), rest))
        };
        match kind {
            0 => {
                let (epoch, rest) = with_epoch()?;
                Some(Self::Stop { epoch, page: u32::from_le_bytes(rest.try_into().ok()?) })
            }
            1 => {
                let (epoch, rest) = with_epoch()?;
                Some(Self::Resume { epoch, page: Page::decode(rest)? })
            }
            2 => rest.is_empty().then_some(Self::Life),
            3 => {
                let (epoch, rest) = with_epoch()?;
                let (life, rest) = rest.split_first_chunk()?;
                let life = u64::from_le_bytes(*life);
                Some(Self::Rewrite { epoch, life, page: Page::decode(rest)? })
            }
            _ => None,
        }
    }
}

impl Places {
    /// Decodes a received request, unless the sender may not coordinate a recovery.
    pub(super) fn request(&self, responder: &Responder, bytes: &[u8]) -> Option<ControlRequest> {
        let is_known = self.may_coordinate(responder.from());
        is_known.then(|| ControlRequest::decode(bytes))?
    }
}

/// Answer to a page of [`ControlRequest::Resume`] and [`ControlRequest::Rewrite`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// A later recovery has begun, the request is for another life of the receiver, or the page
    /// does not match the other pages.
    Refused = 0,
    /// Every page has arrived, now or before, and the request is carried out.
    Done = 1,
    /// Further pages are missing.
    Kept = 2,
}

impl Progress {
    pub(super) const fn encode(self) -> [u8; 1] {
        [self as u8]
    }

    /// Decodes an answer; `None` for malformed bytes.
    pub(super) const fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(Self::Refused),
            [1] => Some(Self::Done),
            [2] => Some(Self::Kept),
            _ => None,
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use lotus_fabric::transport::MAX_MESSAGE_BYTES;

    use super::*;
    use crate::switched::pages::PAGE_BYTES;

    #[test]
    fn requests_are_read_as_they_were_written_and_garbage_is_refused() {
        let page = Page { number: 1, pages: 3, bytes: vec![7; PAGE_BYTES] };
        let epoch = 0x0102_0304;
        let all = [
            ControlRequest::Stop { epoch, page: u32::MAX },
            ControlRequest::Resume { epoch, page: page.clone() },
            ControlRequest::Life,
            ControlRequest::Rewrite { epoch, life: u64::MAX, page },
        ];
        for asked in all {
            let bytes = asked.encode();
            assert!(bytes.len() + 16 <= MAX_MESSAGE_BYTES, "it fits a datagram of the RPC layer");
            assert_eq!(ControlRequest::decode(&bytes), Some(asked));
            assert_eq!(ControlRequest::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(ControlRequest::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(ControlRequest::decode(&[4]), None);
        for progress in [Progress::Refused, Progress::Done, Progress::Kept] {
            assert_eq!(Progress::decode(&progress.encode()), Some(progress));
        }
        assert_eq!((Progress::decode(&[3]), Progress::decode(&[])), (None, None));
    }
}
