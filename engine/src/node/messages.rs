//! Encoding of messages between compute nodes: words, little-endian.

use std::time::Duration;

/// Time after which a message without an answer is repeated.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(2);

pub(crate) fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = bytes.as_chunks();
    rest.is_empty().then(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
