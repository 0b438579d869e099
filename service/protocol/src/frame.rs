//! Frames: four bytes of length, little-endian, then that many bytes.
//!
//! Pure: bytes go in as they come, frames come out when they are whole. No length is used before it
//! is compared with a limit, and no memory is reserved for a frame of which only the length has
//! come.

use serde::Serialize;

/// Bytes in front of a frame.
pub const HEADER_BYTES: usize = 4;

/// Capacity above which a connection's buffer is freed when it is empty, in bytes.
pub const KEPT_BYTES: usize = 128 << 10;

/// A frame of more bytes than the receiver takes. It ends the connection: the rest of the frame is
/// not worth reading to find the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of {len} bytes, where at most {limit} are taken")]
pub struct Oversized {
    /// Length in the frame's header.
    pub len: usize,
    /// Longest frame that is taken.
    pub limit: usize,
}

/// Received bytes, and the frames in them.
#[derive(Debug)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Bytes handed out already.
    taken: usize,
    limit: usize,
}

impl Incoming {
    /// Takes frames of at most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), taken: 0, limit }
    }

    /// Sets the longest frame that is taken from now on.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The buffer to append received bytes to, with room for at least `more`.
    pub fn space(&mut self, more: usize) -> &mut Vec<u8> {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.taken > 0 {
            self.bytes.drain(..self.taken);
        }
        self.taken = 0;
        self.bytes.reserve(more);
        &mut self.bytes
    }

    /// Bytes known to be missing of a frame that has begun; zero if none has, or if one is whole.
    pub fn missing(&self) -> usize {
        let begun = &self.bytes[self.taken..];
        match begun.split_first_chunk::<HEADER_BYTES>() {
            Some((header, rest)) => {
                (u32::from_le_bytes(*header) as usize).saturating_sub(rest.len())
            }
            None if begun.is_empty() => 0,
            None => HEADER_BYTES - begun.len(),
        }
    }

    /// Whether a whole frame, or one that is too long, waits to be taken.
    pub fn has_frame(&self) -> bool {
        self.taken < self.bytes.len() && self.missing() == 0
    }

    /// The next whole frame, without its header; `None` if there is none.
    ///
    /// # Errors
    /// [`Oversized`], and the same again at every later call.
    pub fn take_frame(&mut self) -> Result<Option<&[u8]>, Oversized> {
        let Some((header, rest)) = self.bytes[self.taken..].split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*header) as usize;
        if len > self.limit {
            return Err(Oversized { len, limit: self.limit });
        }
        if rest.len() < len {
            return Ok(None);
        }
        let start = self.taken + HEADER_BYTES;
        self.taken = start + len;
        Ok(Some(&self.bytes[start..start + len]))
    }
}

/// Appends a frame of what `write` appends.
pub fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    write(out);
    let len = (out.len() - start - HEADER_BYTES) as u32;
    out[start..start + HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// Appends a message in `postcard`'s encoding.
///
/// # Panics
/// If the type's `Serialize` reports an error of its own; none of the protocol's do.
pub fn write(out: &mut Vec<u8>, message: &impl Serialize) {
    try_write(out, message).expect("a vector takes whatever the protocol's messages are");
}

/// Same as [`write()`], for types from outside this crate.
///
/// # Errors
/// The error of the type's `Serialize`. Part of the message may have been appended.
pub fn try_write(out: &mut Vec<u8>, message: &impl Serialize) -> Result<(), postcard::Error> {
    postcard::to_io(message, out).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_kept() {
        let mut incoming = Incoming::new(10);
        incoming.space(4).extend_from_slice(&u32::MAX.to_le_bytes());
        let refused = Err(Oversized { len: u32::MAX as usize, limit: 10 });
        assert_eq!(incoming.take_frame(), refused);
        assert_eq!(incoming.take_frame(), refused);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            frames in vec(vec(any::<u8>(), 0..40), 0..8),
            cuts in vec(1..30_usize, 1..40),
        ) {
            let mut sent = Vec::new();
            for frame in &frames {
                append(&mut sent, |out| out.extend_from_slice(frame));
            }
            let mut incoming = Incoming::new(40);
            let (mut got, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(sent.len());
                incoming.space(64).extend_from_slice(&sent[at..end]);
                while let Some(frame) = incoming.take_frame().unwrap() {
                    got.push(frame.to_vec());
                }
                at = end;
                if at == sent.len() {
                    break;
                }
            }
            prop_assert_eq!(got, frames);
        }
    }
}
