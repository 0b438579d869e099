//! Frames: four bytes of length, little-endian, then that many bytes.
//!
//! Pure: received bytes go in, whole frames come out. Every length is compared with a limit before
//! use, and no memory is reserved for a frame of which only the length has been received.

use serde::Serialize;

/// Bytes in front of a frame.
pub const HEADER_BYTES: usize = 4;

/// Capacity in bytes above which a connection's empty buffer is freed.
pub const KEPT_BYTES: usize = 128 << 10;

/// A frame longer than the receiver's limit. The error ends the connection: skipping the rest of
/// the frame to find the next frame is not worth the reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of {len} bytes, where at most {limit} are taken")]
pub struct Oversized {
    /// Length in the frame's header.
    pub len: usize,
    /// Longest frame that the receiver accepts.
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
    /// Creates a buffer for frames of at most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), taken: 0, limit }
    }

    /// Sets the limit on the length of frames from now on.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the buffer for received bytes, with room for at least `more`.
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

    /// Returns the number of bytes known to be missing from a partly received frame; zero if no
    /// frame has begun, or if a frame is complete.
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

    /// Whether a complete frame waits to be taken, within the limit or not.
    pub fn has_frame(&self) -> bool {
        self.taken < self.bytes.len() && self.missing() == 0
    }

    /// Takes the next complete frame, without its header; `None` if there is none.
    ///
    /// # Errors
    /// [`Oversized`], and again at every later call.
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

/// Appends a frame around the bytes that `write` appends.
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
/// If the type's `Serialize` reports an error of its own; the protocol's types never do.
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
