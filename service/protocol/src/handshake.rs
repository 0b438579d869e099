//! The handshake: checks that both sides speak the same protocol and have the same shared key.
//!
//! ```text
//! client → server   Hello       magic, version, whether it has a key, a nonce
//! server → client   Challenge   a nonce, proof("app-serv", hello, nonce)       only with keys
//! client → server   Proof       proof("app-clnt", hello, nonce)                only with keys
//! server → client   Welcome     the directory, or Refused with a reason
//! ```
//!
//! Both sides are pure: frames in, frames out. The server proves first. The client's and the
//! server's labels differ from each other and from the fabric's, so no proof can be replayed, sent
//! back, or used at another port of the cluster. Traffic after the handshake is neither encrypted
//! nor authenticated; with TLS, which replaces the shared key, the whole connection is
//! (docs/security.md).

use lotus_security::{Key, nonce_bytes};
use serde::{Deserialize, Serialize};

use crate::frame;
use crate::messages::{Directory, VERSION, decode};

/// Longest frame of a handshake except the welcome, in bytes.
pub const HANDSHAKE_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"lotusapp";
/// First version with clients that understand [`Refusal::Versions`].
const TELLS_BOTH: u16 = 7;
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 8 + 2 + 1 + NONCE_BYTES;
const SERVER: [u8; 8] = *b"app-serv";
const CLIENT: [u8; 8] = *b"app-clnt";

/// Reason for not admitting a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The frame is not of this protocol.
    #[error("the other side does not speak this protocol")]
    Garbage,
    /// The protocol versions differ. Run the same version on both sides.
    #[error("the server speaks version {server} of the protocol, this client {VERSION}")]
    Version {
        /// The server's version.
        server: u16,
    },
    /// One side has a shared key or TLS, the other has not. Configure both sides alike.
    #[error("one side demands a shared key or TLS, and the other does not")]
    Security,
    /// The keys differ.
    #[error("the shared keys differ")]
    Proof,
    /// The server has reached its limit of connections. Try again, or try another server.
    #[error("the server has as many connections as it takes")]
    Full,
    /// The server's node is ending, or takes no part in the cluster. Try another server.
    #[error("the server's node takes no part in the cluster any more, or does not yet")]
    Leaving,
    /// The protocol versions differ; `client` is the version that the client has named.
    #[error("the server speaks version {server} of the protocol, this client {client}")]
    Versions {
        /// The server's version.
        server: u16,
        /// The client's version.
        client: u16,
    },
}

impl Refusal {
    /// Returns the refusal in a form that the client understands: clients of earlier versions know
    /// their own version, and do not understand a refusal that names it.
    #[must_use]
    pub fn as_told(self) -> Self {
        match self {
            Self::Versions { server, client } if client < TELLS_BOTH => Self::Version { server },
            refusal => refusal,
        }
    }
}

/// A frame that a server sends before it takes requests. The first variant keeps its place in all
/// versions, so that a client of any version learns why the server refuses the connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Greeting {
    /// The client is not admitted, for the given reason.
    Refused(Refusal),
    /// The server's proof that it has the key, and a nonce for the client's proof.
    Challenge {
        /// The server's nonce.
        nonce: [u8; NONCE_BYTES],
        /// The server's proof.
        proof: [u8; NONCE_BYTES],
    },
    /// The client is admitted and may send requests.
    Welcome(Box<Directory>),
}

/// Appends a greeting.
pub fn greet(out: &mut Vec<u8>, greeting: &Greeting) {
    frame::append(out, |out| frame::write(out, greeting));
}

/// The client's side of a handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    key: Option<Key>,
    hello: [u8; HELLO_BYTES],
    /// Whether the server has proved possession of the key, or need not.
    trusts: bool,
}

impl ClientHandshake {
    /// Begins a handshake; appends the first frame to send to `out`.
    ///
    /// # Errors
    /// The system's random generator fails.
    pub fn start(key: Option<&Key>, out: &mut Vec<u8>) -> std::io::Result<Self> {
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
        hello[10] = u8::from(key.is_some());
        hello[11..].copy_from_slice(&nonce_bytes()?);
        frame::append(out, |out| out.extend_from_slice(&hello));
        Ok(Self { key: key.cloned(), hello, trusts: key.is_none() })
    }

    /// Takes a frame; returns the directory once the client is welcomed. Appends frames to send to
    /// `out`.
    ///
    /// # Errors
    /// The server's refusal, or the client's refusal of the server.
    pub fn step(
        &mut self,
        frame: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Box<Directory>>, Refusal> {
        match (decode(frame).map_err(|_| Refusal::Garbage)?, &self.key) {
            (Greeting::Refused(refusal), _) => Err(refusal),
            (Greeting::Challenge { nonce, proof }, Some(key)) if !self.trusts => {
                if !key.accepts(&SERVER, &[&self.hello, &nonce], &proof) {
                    return Err(Refusal::Proof);
                }
                self.trusts = true;
                let proof = key.prove(&CLIENT, &[&self.hello, &nonce]);
                frame::append(out, |out| out.extend_from_slice(&proof));
                Ok(None)
            }
            (Greeting::Welcome(directory), _) if self.trusts => Ok(Some(directory)),
            // A server without a key welcomes at once; a client with a key refuses such a server.
            (Greeting::Welcome(_), _) => Err(Refusal::Security),
            (Greeting::Challenge { .. }, _) => Err(Refusal::Garbage),
        }
    }
}

/// The server's side of a handshake.
#[derive(Debug, Default)]
pub enum ServerHandshake {
    /// No frame has been received yet.
    #[default]
    Silent,
    /// The client has been challenged.
    Challenged {
        /// The client's hello.
        hello: [u8; HELLO_BYTES],
        /// The server's nonce.
        nonce: [u8; NONCE_BYTES],
    },
    /// The handshake is over; any further frame is refused.
    Done,
}

impl ServerHandshake {
    /// Takes a frame; returns whether the client is admitted. If not yet, `out` has the frame to
    /// send.
    ///
    /// # Errors
    /// The refusal, to be sent to the client.
    pub fn step(
        &mut self,
        frame: &[u8],
        key: Option<&Key>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        match std::mem::replace(self, Self::Done) {
            Self::Silent => {
                let hello = check_hello(frame, key)?;
                let Some(key) = key else { return Ok(true) };
                // Without randomness no client can be admitted, now or later.
                let nonce = nonce_bytes().map_err(|_| Refusal::Full)?;
                let proof = key.prove(&SERVER, &[&hello, &nonce]);
                greet(out, &Greeting::Challenge { nonce, proof });
                *self = Self::Challenged { hello, nonce };
                Ok(false)
            }
            Self::Challenged { hello, nonce } => {
                let proven = |key: &Key| key.accepts(&CLIENT, &[&hello, &nonce], frame);
                if key.is_some_and(proven) { Ok(true) } else { Err(Refusal::Proof) }
            }
            Self::Done => Err(Refusal::Garbage),
        }
    }
}

fn check_hello(frame: &[u8], key: Option<&Key>) -> Result<[u8; HELLO_BYTES], Refusal> {
    let Some((head, rest)) = frame.split_first_chunk::<10>() else { return Err(Refusal::Garbage) };
    if head[..8] != MAGIC {
        return Err(Refusal::Garbage);
    }
    // Checked before any part that may differ between versions.
    if head[8..] != VERSION.to_le_bytes() {
        let client = u16::from_le_bytes([head[8], head[9]]);
        return Err(Refusal::Versions { server: VERSION, client });
    }
    let hello: [u8; HELLO_BYTES] = frame.try_into().map_err(|_| Refusal::Garbage)?;
    let secured = rest[0] != 0;
    if secured == key.is_some() { Ok(hello) } else { Err(Refusal::Security) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HEADER_BYTES;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 16]).unwrap()
    }

    fn directory() -> Box<Directory> {
        Box::new(Directory {
            node: 0,
            nodes: vec!["127.0.0.1:7000".to_owned()],
            tables: Vec::new(),
            procedures: Vec::new(),
            owners: Vec::new(),
            in_flight: 64,
            names: None,
        })
    }

    /// Runs both sides until the client is welcomed or refused.
    fn meet(client: Option<&Key>, server: Option<&Key>) -> Result<Box<Directory>, Refusal> {
        let mut to_server = Vec::new();
        let mut client_side = ClientHandshake::start(client, &mut to_server).unwrap();
        let mut server_side = ServerHandshake::default();
        loop {
            let mut to_client = Vec::new();
            match server_side.step(&to_server[HEADER_BYTES..], server, &mut to_client) {
                Ok(true) => greet(&mut to_client, &Greeting::Welcome(directory())),
                Ok(false) => {}
                Err(refusal) => greet(&mut to_client, &Greeting::Refused(refusal)),
            }
            to_server.clear();
            if let Some(directory) = client_side.step(&to_client[HEADER_BYTES..], &mut to_server)? {
                return Ok(directory);
            }
        }
    }

    #[test]
    fn who_may_come_in() {
        let (one, other) = (key(1), key(2));
        let cases = [
            (None, None, Ok(directory())),
            (Some(&one), Some(&one), Ok(directory())),
            // The client notices first: the server proves before it asks for a proof.
            (Some(&one), Some(&other), Err(Refusal::Proof)),
            (Some(&one), None, Err(Refusal::Security)),
            (None, Some(&one), Err(Refusal::Security)),
        ];
        for (client, server, expected) in cases {
            assert_eq!(meet(client, server), expected);
        }
    }

    #[test]
    fn a_server_with_a_key_admits_nobody_who_cannot_prove_it() {
        let key = key(1);
        let mut hello = Vec::new();
        let _client_side = ClientHandshake::start(Some(&key), &mut hello).unwrap();
        let mut out = Vec::new();
        let mut server_side = ServerHandshake::default();
        assert_eq!(server_side.step(&hello[HEADER_BYTES..], Some(&key), &mut out), Ok(false));
        // The server's own proof, sent back to it.
        let Ok(Greeting::Challenge { proof, .. }) = decode(&out[HEADER_BYTES..]) else {
            panic!("a challenge was due")
        };
        assert_eq!(server_side.step(&proof, Some(&key), &mut out), Err(Refusal::Proof));
    }

    #[test]
    fn a_server_that_welcomes_without_a_proof_is_not_believed() {
        let mut sent = Vec::new();
        let mut client_side = ClientHandshake::start(Some(&key(1)), &mut sent).unwrap();
        let mut welcome = Vec::new();
        greet(&mut welcome, &Greeting::Welcome(directory()));
        let answer = client_side.step(&welcome[HEADER_BYTES..], &mut sent);
        assert_eq!(answer, Err(Refusal::Security));
    }

    /// The server told its own version for the client's.
    #[test]
    fn a_client_of_another_version_is_told_both_versions_or_understands_one() {
        let refusal = |client| Refusal::Versions { server: VERSION, client };
        let newer = VERSION + 1;
        let said = format!("version {VERSION} of the protocol, this client {newer}");
        assert!(refusal(newer).as_told().to_string().contains(&said), "{}", refusal(newer));
        assert!(refusal(3).to_string().ends_with("this client 3"), "in the server's log");
        let told = Refusal::Version { server: VERSION };
        assert_eq!([3, TELLS_BOTH - 1].map(|client| refusal(client).as_told()), [told; 2]);
        assert_eq!(refusal(TELLS_BOTH).as_told(), refusal(TELLS_BOTH));
        assert_eq!(Refusal::Full.as_told(), Refusal::Full);
    }

    #[test]
    fn what_else_may_come_is_refused() {
        let mut sent = Vec::new();
        let _client_side = ClientHandshake::start(None, &mut sent).unwrap();
        let hello = &sent[HEADER_BYTES..];
        let mut newer = hello.to_vec();
        newer[8] += 1;
        let cases: [(&[u8], Refusal); 4] = [
            (b"GET / HTTP/1.1\r\n\r\n", Refusal::Garbage),
            (b"", Refusal::Garbage),
            (&newer, Refusal::Versions { server: VERSION, client: VERSION + 1 }),
            (&hello[..20], Refusal::Garbage),
        ];
        for (frame, refusal) in cases {
            let answer = ServerHandshake::default().step(frame, None, &mut Vec::new());
            assert_eq!(answer, Err(refusal), "{frame:?}");
        }
    }
}
