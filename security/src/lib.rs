//! Peers that are admitted to a port, and the protection of connections with them
//! (docs/security.md).
//!
//! # What it is
//! [`Key`], a secret that both ends share and prove to each other; [`Tls`], certificates of one
//! authority; [`Security`], which of them a port asks for; [`Guests`], how many strangers it holds
//! meanwhile, and [`Lines`], how further ones wait; [`Stream`], the bytes of a connection, plain or
//! encrypted; and [`printable`], text of strangers, for terminals and logs. The `tcp` back end, the
//! authority and the doors for clients use the same.
//!
//! # What it is not
//! A handshake: each protocol has its own frames, and proves the key within them.

#![forbid(unsafe_code)]

mod guests;
mod key;
mod lines;
mod policy;
mod printable;
mod stream;
#[cfg(feature = "tls")]
mod tls;

pub use guests::{Guests, Rules, Seating, Source};
pub use key::{Key, MIN_KEY_BYTES, WeakKey, Words4, nonce, nonce_bytes};
pub use lines::{Lines, Turn};
pub use policy::Security;
pub use printable::{is_plain, printable};
pub use stream::{Caller, NO_TLS, Stream};
#[cfg(feature = "tls")]
pub use tls::{APPLICATIONS, Sealed, Tls, TlsError};
