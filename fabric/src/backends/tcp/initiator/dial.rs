//! A lane's pending connection: connects and performs the handshake without blocking.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::backends::tcp::handshake::{Hello, Initiator, Refusal};
use crate::backends::tcp::limits::GUEST_WORDS;
use crate::backends::tcp::socket::{self, Fill, Input, Interest, Output};
use crate::backends::tcp::wire::{self, WireError};
use crate::run::env::Nanos;
use lotus_security::Security;
use lotus_security::Stream;

/// Reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<WireError> for DialError {
    fn from(_: WireError) -> Self {
        Self::Refused(Refusal::Garbage)
    }
}

/// A pending connection.
pub(crate) struct Dial {
    stream: Stream,
    connected: bool,
    initiator: Initiator,
    input: Input,
    output: Output,
    /// Time to give up.
    pub(crate) deadline: Nanos,
}

impl Dial {
    /// Starts a connection to `address`.
    ///
    /// # Errors
    /// The system refuses at once.
    pub(crate) fn start(
        address: SocketAddr,
        hello: Hello,
        security: &Security,
        unacknowledged: Duration,
        deadline: Nanos,
    ) -> io::Result<Self> {
        let mut output = Output::default();
        let initiator = Initiator::start(hello, security.key(), &mut output.words)?;
        let stream = Stream::outgoing(socket::connect(address, unacknowledged)?, security)?;
        let input = Input::new(GUEST_WORDS);
        Ok(Self { stream, connected: false, initiator, input, output, deadline })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the stream; for use after admission.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Readiness needed for the next step.
    pub(crate) fn interest(&self) -> Interest {
        if self.connected { Interest::READ } else { Interest::WRITE }
    }

    /// Proceeds as far as possible. Returns whether the connection is admitted.
    ///
    /// # Errors
    /// The connection failed for good.
    pub(crate) fn advance(&mut self) -> Result<bool, DialError> {
        if !self.connected {
            self.connected = socket::connected(self.stream.socket())?;
            if !self.connected {
                return Ok(false);
            }
        }
        loop {
            // A few bytes into an empty socket: bytes that do not fit now never will.
            self.output.flush(&mut self.stream)?;
            let fill = self.input.fill(&mut self.stream)?;
            while let Some(frame) = wire::decode(self.input.words())? {
                let words = frame.words();
                let admitted = self.initiator.step(&frame, &mut self.output.words)?;
                self.input.take(words);
                if admitted {
                    return Ok(true);
                }
            }
            match fill {
                Fill::Closed => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Fill::Full => return Err(Refusal::Garbage.into()),
                Fill::Nothing if self.output.is_empty() => return Ok(false),
                Fill::Nothing | Fill::Drained => {}
            }
        }
    }
}
