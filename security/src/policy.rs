//! The peers that are admitted, and the protection of connections with them.

use std::net::IpAddr;

use super::key::Key;
#[cfg(feature = "tls")]
use super::tls::Tls;

/// Peers that are admitted, and protection of the connections.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Any peer, and therefore on loopback addresses only.
    #[default]
    PlainOnLoopback,
    /// Any peer, on any address. Any process that reaches a port can read and change all data.
    PlainAnywhere,
    /// Peers with the same key. The bytes on the wire are neither encrypted nor authenticated.
    SharedKey(Key),
    /// Peers with a certificate of the same authority for the same cluster. Encrypted.
    #[cfg(feature = "tls")]
    Tls(Tls),
}

impl Security {
    /// The shared key, if there is one.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::SharedKey(key) => Some(key),
            _ => None,
        }
    }

    /// Whether the bytes on the wire are encrypted and authenticated.
    pub const fn seals(&self) -> bool {
        match self {
            Self::PlainOnLoopback | Self::PlainAnywhere | Self::SharedKey(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
        }
    }

    /// Whether a node may have this address.
    pub fn allows(&self, address: IpAddr) -> bool {
        !matches!(self, Self::PlainOnLoopback) || address.to_canonical().is_loopback()
    }
}
