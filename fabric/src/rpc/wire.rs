//! RPC datagrams: header, fragmentation of payloads, reassembly.
//!
//! Plain values only: the module neither sends nor waits. Malformed bytes are refused without
//! further harm.

use crate::contract::ids::Endpoint;
use crate::contract::transport::MAX_MESSAGE_BYTES;

use super::Service;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const FRAGMENT_BYTES: usize = MAX_MESSAGE_BYTES - HEADER_BYTES;
const MAX_FRAGMENTS: usize = 256;
/// The longest payload.
pub const MAX_PAYLOAD_BYTES: usize = MAX_FRAGMENTS * FRAGMENT_BYTES;
/// Number of payloads in reassembly. A new payload beyond the limit evicts the oldest, whose sender
/// tries again.
const MAX_PARTIAL: usize = 64;

/// The header of every datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: MessageKind,
    pub(super) service: Service,
    /// Index of the fragment that follows the header, below `fragments`.
    pub(super) fragment: u16,
    pub(super) fragments: u16,
    /// The call's number.
    pub(super) id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageKind {
    Request,
    Reply,
    Notice,
}

impl Header {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = match self.kind {
            MessageKind::Request => 0,
            MessageKind::Reply => 1,
            MessageKind::Notice => 2,
        };
        bytes[2] = self.service.0;
        bytes[4..6].copy_from_slice(&self.fragment.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.fragments.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Decodes the header and returns it with the fragment of the payload; `None` for bytes that
    /// [`for_each`] cannot have made.
    ///
    /// [`for_each`]: for_each_datagram
    pub(super) fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = message.split_first_chunk::<HEADER_BYTES>()?;
        let [VERSION, kind, service, 0, f0, f1, n0, n1, id @ ..] = *header else { return None };
        let header = Self {
            kind: match kind {
                0 => MessageKind::Request,
                1 => MessageKind::Reply,
                2 => MessageKind::Notice,
                _ => return None,
            },
            service: Service(service),
            fragment: u16::from_le_bytes([f0, f1]),
            fragments: u16::from_le_bytes([n0, n1]),
            id: u64::from_le_bytes(id),
        };
        let full = payload.len() == FRAGMENT_BYTES;
        let size_fits = full || header.is_last() && payload.len() < FRAGMENT_BYTES;
        let counts_fit =
            header.fragment < header.fragments && usize::from(header.fragments) <= MAX_FRAGMENTS;
        (counts_fit && size_fits).then_some((header, payload))
    }

    fn is_last(self) -> bool {
        self.fragment.checked_add(1) == Some(self.fragments)
    }
}

/// Builds the datagrams of one payload in `message` and passes them to `send` one by one.
/// `header`'s fragment numbers are overwritten.
pub(super) fn for_each_datagram(
    header: Header,
    payload: &[u8],
    message: &mut Vec<u8>,
    mut send: impl FnMut(&[u8]),
) {
    assert!(payload.len() <= MAX_PAYLOAD_BYTES, "the payload is too large");
    let fragments = payload.len().div_ceil(FRAGMENT_BYTES).max(1) as u16;
    for fragment in 0..fragments {
        let start = usize::from(fragment) * FRAGMENT_BYTES;
        let end = payload.len().min(start + FRAGMENT_BYTES);
        message.clear();
        message.extend_from_slice(&Header { fragment, fragments, ..header }.encode());
        message.extend_from_slice(&payload[start..end]);
        send(message);
    }
}

/// Payloads with some fragments received.
#[derive(Default)]
pub(super) struct Reassembly {
    partial: Vec<Partial>,
    /// Unused payload buffers.
    spare: Vec<Vec<u8>>,
}

struct Partial {
    from: Endpoint,
    header: Header,
    received: [u64; MAX_FRAGMENTS / 64],
    payload: Vec<u8>,
}

impl Reassembly {
    /// Adds a decoded fragment, in any order and any number of times. Returns the payload once
    /// complete; the caller hands the buffer back through [`Self::recycle`].
    pub(super) fn add(&mut self, from: Endpoint, header: Header, part: &[u8]) -> Option<Vec<u8>> {
        let index = self.find_or_start(from, header);
        let partial = &mut self.partial[index];
        let fragment = usize::from(header.fragment);
        let start = fragment * FRAGMENT_BYTES;
        let end = start + part.len();
        if partial.payload.len() < end {
            partial.payload.resize(end, 0);
        }
        partial.payload[start..end].copy_from_slice(part);
        partial.received[fragment / 64] |= 1 << (fragment % 64);
        let received: u32 = partial.received.iter().map(|bits| bits.count_ones()).sum();
        (received == u32::from(header.fragments)).then(|| self.partial.remove(index).payload)
    }

    /// Takes back a payload's buffer.
    pub(super) fn recycle(&mut self, mut payload: Vec<u8>) {
        payload.clear();
        self.spare.push(payload);
    }

    fn find_or_start(&mut self, from: Endpoint, header: Header) -> usize {
        let same_payload = |partial: &Partial| {
            let header = Header { fragment: partial.header.fragment, ..header };
            partial.from == from && partial.header == header
        };
        self.partial.iter().position(same_payload).unwrap_or_else(|| {
            if self.partial.len() == MAX_PARTIAL {
                let evicted = self.partial.remove(0);
                self.recycle(evicted.payload);
            }
            let payload = self.spare.pop().unwrap_or_default();
            let received = [0; MAX_FRAGMENTS / 64];
            self.partial.push(Partial { from, header, received, payload });
            self.partial.len() - 1
        })
    }
}

const _: () = assert!(MAX_FRAGMENTS.is_multiple_of(64) && MAX_FRAGMENTS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ids::{LaneId, NodeId};
    use proptest::prelude::*;

    const FROM: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(2) };

    fn header(kind: MessageKind, service: u8, id: u64) -> Header {
        Header { kind, service: Service(service), fragment: 0, fragments: 1, id }
    }

    fn datagrams(header: Header, payload: &[u8]) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        for_each_datagram(header, payload, &mut Vec::new(), |bytes| datagrams.push(bytes.into()));
        datagrams
    }

    #[test]
    fn the_header_is_what_the_essay_of_the_module_says() {
        let [datagram] = &datagrams(header(MessageKind::Reply, 7, 0x0102_0304_0506_0708), b"x")[..]
        else {
            panic!("one fragment");
        };
        let expected = [1, 1, 7, 0, 0, 0, 1, 0, 8, 7, 6, 5, 4, 3, 2, 1, b'x'];
        assert_eq!(datagram[..], expected);
    }

    #[test]
    fn what_nobody_would_send_is_refused() {
        let good = datagrams(header(MessageKind::Request, 1, 9), &[0; FRAGMENT_BYTES + 1]);
        assert!(good.iter().all(|datagram| Header::decode(datagram).is_some()));
        type Spoil = fn(&mut Vec<u8>);
        let spoil: [(&str, Spoil); 8] = [
            ("shorter than a header", |bytes| bytes.truncate(HEADER_BYTES - 1)),
            ("another version", |bytes| bytes[0] = 2),
            ("no such kind", |bytes| bytes[1] = 3),
            ("not zero", |bytes| bytes[3] = 1),
            ("fragment out of range", |bytes| bytes[4] = 2),
            ("no fragments", |bytes| bytes[6] = 0),
            ("too many fragments", |bytes| bytes[6..8].copy_from_slice(&257_u16.to_le_bytes())),
            ("a hole before the last fragment", |bytes| bytes.truncate(100)),
        ];
        for (what, spoil) in spoil {
            let mut datagram = good[0].clone();
            spoil(&mut datagram);
            assert_eq!(Header::decode(&datagram), None, "{what}");
        }
    }

    #[test]
    fn the_oldest_unfinished_payload_gives_way() {
        let mut reassembly = Reassembly::default();
        let two =
            |id| datagrams(header(MessageKind::Request, 0, id), &[id as u8; FRAGMENT_BYTES + 1]);
        let mut add = |datagram: &[u8]| {
            let (header, part) = Header::decode(datagram).expect("well formed");
            reassembly.add(FROM, header, part)
        };
        for id in 0..=MAX_PARTIAL as u64 {
            assert_eq!(add(&two(id)[0]), None);
        }
        assert_eq!(add(&two(0)[1]), None, "the first was evicted, and now evicts the second");
        assert_eq!(add(&two(2)[1]), Some(vec![2; FRAGMENT_BYTES + 1]));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(datagrams in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..50,
        )) {
            let mut reassembly = Reassembly::default();
            for (mut bytes, plausible) in datagrams {
                if plausible && bytes.len() >= HEADER_BYTES {
                    // Passes the cheap checks, so that the later ones are reached.
                    bytes[..4].copy_from_slice(&[VERSION, 0, 0, 0]);
                    (bytes[5], bytes[7]) = (0, 0);
                    let full = bytes[4] % 2 == 0;
                    bytes.resize(if full { MAX_MESSAGE_BYTES } else { bytes.len() }, 0);
                }
                if let Some((header, part)) = Header::decode(&bytes)
                    && let Some(whole) = reassembly.add(FROM, header, part)
                {
                    reassembly.recycle(whole);
                }
            }
        }

        #[test]
        fn fragments_come_together_in_any_order_and_number(
            bytes in 0..5 * FRAGMENT_BYTES,
            order in prop::collection::vec(0_usize..5, 0..40),
            id: u64,
        ) {
            let payload: Vec<u8> = (0..bytes).map(|index| (index ^ index >> 8) as u8).collect();
            let sent = datagrams(header(MessageKind::Request, 3, id), &payload);
            let mut reassembly = Reassembly::default();
            let mut missing: Vec<bool> = vec![true; sent.len()];
            for index in order.into_iter().map(|index| index % sent.len()).chain(0..sent.len()) {
                let (header, part) = Header::decode(&sent[index]).expect("well formed");
                prop_assert_eq!((header.id, header.kind), (id, MessageKind::Request));
                missing[index] = false;
                match reassembly.add(FROM, header, part) {
                    Some(whole) => {
                        prop_assert!(!missing.contains(&true) && whole == payload);
                        return Ok(());
                    }
                    None => prop_assert!(missing.contains(&true)),
                }
            }
            prop_assert!(false, "never complete");
        }
    }
}
