//! A raw connection that sends any bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lotus_protocol::frame::{self, Incoming};
use lotus_protocol::handshake::{ClientHandshake, Greeting, Refusal};
use lotus_protocol::messages::{self, Bytes, Call, Op, decode};

/// Longest wait; after that it would be for ever.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A client that sends any bytes.
pub struct Raw {
    pub stream: TcpStream,
    incoming: Incoming,
}

impl Raw {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, incoming: Incoming::new(1 << 20) }
    }

    /// A client that has passed the handshake.
    pub fn admitted(address: SocketAddr) -> Self {
        let mut raw = Self::open(address);
        let mut out = Vec::new();
        let mut guest = ClientHandshake::start(None, &mut out).unwrap();
        raw.stream.write_all(&out).unwrap();
        let frame = raw.next().expect("a welcome");
        assert!(guest.step(&frame, &mut out).unwrap().is_some());
        raw
    }

    /// The next frame; `None` once the server has closed the connection.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = self.incoming.take_frame().unwrap() {
                return Some(frame.to_vec());
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.incoming.space(count).extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the server neither answers nor closes: {error}"),
            }
        }
    }

    pub fn refusal(&mut self) -> Refusal {
        self.greeting().expect("it is not let in")
    }

    /// The reason for which this client is not let in; `None` if it is.
    pub fn greeting(&mut self) -> Option<Refusal> {
        let frame = self.next().expect("a word of explanation");
        match decode(&frame) {
            Ok(Greeting::Refused(refusal)) => Some(refusal),
            Ok(Greeting::Welcome(_)) => None,
            other => panic!("{other:?}"),
        }
    }
}

/// A call with a result of `bytes` bytes.
pub fn blob(bytes: u64) -> Vec<u8> {
    let mut arguments = Vec::new();
    frame::write(&mut arguments, &bytes);
    let mut out = Vec::new();
    let call = Call {
        procedure: "blob",
        arguments: Bytes(&arguments),
        timeout_us: 10_000_000,
        shard: None,
        id: None,
    };
    messages::send(&mut out, 1, &Op::Call(call));
    out
}
