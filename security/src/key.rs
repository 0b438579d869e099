//! Shared keys, and the randomness for their proofs.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zerocopy::IntoBytes;

/// Shortest shared key, in bytes.
pub const MIN_KEY_BYTES: usize = 16;

/// A nonce, or an HMAC-SHA256.
pub type Words4 = [u64; 4];

/// A secret shared by the nodes of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Box<[u8]>);

/// Error of a key that is too short to be a secret; use a longer key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a shared key has at least {MIN_KEY_BYTES} bytes, this one has {0}")]
pub struct WeakKey(pub usize);

impl Key {
    /// Creates a key from `bytes`, which should be random.
    ///
    /// # Errors
    /// [`WeakKey`] if `bytes` has fewer than [`MIN_KEY_BYTES`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, WeakKey> {
        if bytes.len() < MIN_KEY_BYTES {
            return Err(WeakKey(bytes.len()));
        }
        Ok(Self(bytes.into()))
    }

    /// Creates a random key.
    ///
    /// # Errors
    /// The system has no randomness available.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self(nonce_bytes()?.into()))
    }

    /// Returns a proof of knowing the key, for the message `said`. The label names the protocol and
    /// the proving side, so a proof is not valid for a different purpose.
    pub fn prove(&self, label: &[u8; 8], said: &[&[u8]]) -> [u8; 32] {
        self.mac_of(label, said).finalize().into_bytes().into()
    }

    /// Returns whether `proof` equals the result of [`Key::prove`]. The comparison takes constant
    /// time.
    pub fn accepts(&self, label: &[u8; 8], said: &[&[u8]], proof: &[u8]) -> bool {
        self.mac_of(label, said).verify_slice(proof).is_ok()
    }

    fn mac_of(&self, label: &[u8; 8], said: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        said.iter().for_each(|part| mac.update(part));
        mac
    }

    /// [`Key::prove`] in words, for a hello and the peer's nonce.
    pub fn sign(&self, label: u64, hello: &[u64], nonce: Words4) -> Words4 {
        let proof = self.prove(&label.to_le_bytes(), &[hello.as_bytes(), nonce.as_bytes()]);
        zerocopy::transmute!(proof)
    }

    /// [`Key::accepts`] in words.
    pub fn verify(&self, label: u64, hello: &[u64], nonce: Words4, proof: &[u64]) -> bool {
        let said = [hello.as_bytes(), nonce.as_bytes()];
        self.accepts(&label.to_le_bytes(), &said, proof.as_bytes())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Returns thirty-two unpredictable bytes.
///
/// # Errors
/// The system has no randomness available.
pub fn nonce_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    unforeseeable(&mut bytes)?;
    Ok(bytes)
}

/// [`nonce_bytes`] as words.
///
/// # Errors
/// The system has no randomness available.
pub fn nonce() -> std::io::Result<Words4> {
    Ok(zerocopy::transmute!(nonce_bytes()?))
}

/// Fills `bytes` with unpredictable randomness, which no seed reproduces. For secrets and nonces
/// only: further uses would make runs impossible to repeat.
///
/// # Errors
/// The operating system has no randomness available.
fn unforeseeable(bytes: &mut [u8]) -> std::io::Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(())
}
