//! Admission of peers to a port, and protection of their connections (docs/security.md).
//!
//! # What it is
//! [`Key`], a shared secret that both ends prove; [`Tls`], certificates of one authority;
//! [`Security`], the proof required by a port; [`Guests`], the bound on connections not yet
//! admitted, and [`Lines`], the queues of connections beyond the bound; [`Stream`], the bytes of a
//! connection, plain or encrypted; and [`printable`], for showing text of strangers on terminals
//! and in logs. Used by the `tcp` back end, the authority and the ports for clients.
//!
//! # What it is not
//! A handshake: every protocol has frames of its own, which carry the proof of the key.

#![forbid(unsafe_code)]

mod guests;
mod key;
mod lines;
mod policy;
mod printable;
mod stream;
#[cfg(feature = "tls")]
mod tls;

pub use guests::{Guests, PlaceDecision, Rules, Source};
pub use key::{Key, MIN_KEY_BYTES, WeakKey, Words4, nonce, nonce_bytes};
pub use lines::{Lines, NextInLine};
pub use policy::Security;
pub use printable::{is_plain, printable};
pub use stream::{Caller, NO_TLS, Stream};
#[cfg(feature = "tls")]
pub use tls::{APPLICATIONS, Sealed, Tls, TlsError};
