//! Peers that are admitted to a port, and the protection of connections with them
//! (docs/security.md).
//!
//! # What it is
//! [`Key`], a secret that both ends share and prove to each other; [`Tls`], certificates of one
//! authority; [`Security`], which of them a port asks for; and [`Stream`], the bytes of a
//! connection, plain or encrypted. The `tcp` back end, the authority and the doors for clients use
//! the same.
//!
//! # What it is not
//! A handshake: each protocol has its own frames, and proves the key within them.

#![forbid(unsafe_code)]

mod key;
mod policy;
mod stream;
#[cfg(feature = "tls")]
mod tls;

pub use key::{Key, MIN_KEY_BYTES, WeakKey, Words4, nonce, nonce_bytes};
pub use policy::Security;
pub use stream::{Caller, NO_TLS, Stream};
#[cfg(feature = "tls")]
pub use tls::{APPLICATIONS, Sealed, Tls, TlsError};
