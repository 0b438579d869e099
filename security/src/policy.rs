//! The security policy of a port: admitted peers, and protection of connections.

use std::net::IpAddr;

use super::key::Key;
#[cfg(feature = "tls")]
use super::tls::Tls;

/// Admitted peers, and protection of connections.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Any peer, and therefore only on loopback addresses.
    #[default]
    PlainOnLoopback,
    /// Any peer, on any address. Every process that reaches a port can read and change all data.
    PlainAnywhere,
    /// Peers with the same key. The bytes on the wire are neither encrypted nor authenticated.
    SharedKey(Key),
    /// Peers with a certificate of the same authority for the same cluster. Encrypted.
    #[cfg(feature = "tls")]
    Tls(Tls),
}

impl Security {
    /// Returns the shared key, if the policy has a key.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::SharedKey(key) => Some(key),
            _ => None,
        }
    }

    /// Returns whether the bytes on the wire are encrypted and authenticated.
    pub const fn seals(&self) -> bool {
        match self {
            Self::PlainOnLoopback | Self::PlainAnywhere | Self::SharedKey(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
        }
    }

    /// Returns whether a node may have address `address`.
    pub fn allows(&self, address: IpAddr) -> bool {
        !matches!(self, Self::PlainOnLoopback) || address.to_canonical().is_loopback()
    }
}
