//! Hostile applications: authenticated clients that demand more than their share throughout a run.
//!
//! The hostile clients run on a thread of their own, besides the callers; servers close such
//! connections, refuse requests or delay them. Despite the attacks, callers must be served and no
//! node be lost; the report checks this. The hostile clients themselves check only whether a server
//! grants a request that must be refused.

use std::io;
use std::time::Duration;

use lotus_client::Security;
use lotus_fabric::env::{Env, Nanos};
use lotus_protocol::frame::{self, HEADER_BYTES, Incoming};
use lotus_protocol::messages::{
    self, ANSWER_BYTES, Action, Answer, Begin, Bytes, Directory, Kind, Op, Step, StepEnd, decode,
};
use lotus_protocol::stream::Stream;
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::apps::connect::addresses;
use lotus_node::config::file::ClusterFile;

/// Duration of a visit that the server does not close: longer than a server's patience.
const VISIT: Duration = Duration::from_secs(15);
/// Pause of a client after a visit, or a failed connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Directory requests in one batch, and the pause between two batches of a client that reads the
/// answers: the callers need processors too.
const BATCH: u32 = 256;
const BATCH_PAUSE: Duration = Duration::from_millis(50);
/// Rows of one step: as many as fit in the longest request.
const ROWS: usize = 23_000;

/// Behaviour of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostileBehaviour {
    /// Sends requests and never reads.
    AsksOnly,
    /// Sends requests and reads a byte a second.
    ReadsAByteASecond,
    /// Sends endless requests, and reads all answers.
    AsksWithoutEnd,
    /// Begins a request and sends a byte of it a second.
    SendsAByteASecond,
    /// Asks for thousands of rows in one step.
    AsksForTooMuch,
    /// Sends bytes that form no message.
    SendsGarbage,
}

impl HostileBehaviour {
    const ALL: [Self; 6] = [
        Self::AsksOnly,
        Self::ReadsAByteASecond,
        Self::AsksWithoutEnd,
        Self::SendsAByteASecond,
        Self::AsksForTooMuch,
        Self::SendsGarbage,
    ];
}

/// Results of hostile clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostileResults {
    /// Number of admitted connections.
    pub admitted: u64,
    /// Number of admitted connections closed by the server.
    pub closed: u64,
    /// Oversized steps that were answered.
    pub granted: u64,
}

/// Hostile clients, before their start.
pub struct HostileClients {
    addresses: Vec<String>,
    security: Security,
    clients: usize,
    clock: Env,
    until: Nanos,
}

impl HostileClients {
    /// Prepares `clients` clients of a cluster, to run until `until`.
    ///
    /// # Errors
    /// A sentence: this host has no application credentials.
    pub fn of(
        file: &ClusterFile,
        clients: usize,
        clock: Env,
        until: Nanos,
    ) -> Result<Self, String> {
        let security = file.as_application().map_err(|error| error.to_string())?;
        Ok(Self { addresses: addresses(file), security, clients, clock, until })
    }

    /// Runs all clients, with the behaviours in turn.
    ///
    /// # Errors
    /// A sentence: the runtime cannot be created.
    pub fn run(self) -> Result<HostileResults, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let hostile = std::sync::Arc::new(self);
            let mut tasks = JoinSet::new();
            for (client, behaviour) in
                HostileBehaviour::ALL.into_iter().cycle().take(hostile.clients).enumerate()
            {
                let hostile = std::sync::Arc::clone(&hostile);
                tasks.spawn(async move { hostile.keep_visiting(client as u64, behaviour).await });
            }
            let mut all = HostileResults::default();
            while let Some(results) = tasks.join_next().await {
                let results = results.map_err(|error| error.to_string())?;
                all.admitted += results.admitted;
                all.closed += results.closed;
                all.granted += results.granted;
            }
            Ok(all)
        })
    }

    async fn keep_visiting(&self, client: u64, behaviour: HostileBehaviour) -> HostileResults {
        let mut rng = self.clock.rng(1000 + client);
        let mut results = HostileResults::default();
        loop {
            let left = self.until.since(self.clock.now());
            if left.is_zero() {
                return results;
            }
            let address = &self.addresses[rng.random_range(0..self.addresses.len())];
            let noise = rng.random();
            let visit = self.visit(address, behaviour, noise, &mut results);
            // A client leaves on its own if the server does not close the connection.
            let ended = tokio::time::timeout(VISIT.min(left), visit).await;
            results.closed += u64::from(matches!(ended, Ok(Ok(()))));
            tokio::time::sleep(PAUSE.min(left)).await;
        }
    }

    /// Makes one connection. `Ok` if the server closed the connection after admitting it.
    async fn visit(
        &self,
        address: &str,
        behaviour: HostileBehaviour,
        noise: [u8; 32],
        results: &mut HostileResults,
    ) -> io::Result<()> {
        let opened = Stream::open(address, &self.security).await;
        let (mut stream, incoming, directory) = opened.map_err(io::Error::other)?;
        results.admitted += 1;
        // A later error means that the connection was closed.
        let _ = match behaviour {
            HostileBehaviour::AsksOnly => ask_only(&mut stream).await,
            HostileBehaviour::ReadsAByteASecond => read_slowly(&mut stream).await,
            HostileBehaviour::AsksWithoutEnd => ask_without_end(&mut stream).await,
            HostileBehaviour::SendsAByteASecond => send_slowly(&mut stream).await,
            HostileBehaviour::AsksForTooMuch => {
                ask_for_too_much(&mut stream, incoming, &directory, &mut results.granted).await
            }
            HostileBehaviour::SendsGarbage => send_garbage(&mut stream, &noise).await,
        };
        Ok(())
    }
}

/// A batch of requests that are answered at once.
fn batch() -> Vec<u8> {
    let mut batch = Vec::new();
    (0..BATCH).for_each(|number| messages::send(&mut batch, number, &Op::Directory));
    batch
}

async fn ask_only(stream: &mut Stream) -> io::Result<()> {
    let batch = batch();
    loop {
        stream.write_all(&batch).await?;
    }
}

async fn read_slowly(stream: &mut Stream) -> io::Result<()> {
    let (batch, mut at) = (batch(), 0);
    loop {
        // A timed-out write has written nothing.
        let written = tokio::time::timeout(Duration::from_secs(1), stream.write(&batch[at..]));
        match written.await {
            Ok(count) => at = (at + count?) % batch.len(),
            Err(_) if stream.read(&mut [0]).await? == 0 => return Ok(()),
            Err(_) => {}
        }
    }
}

async fn ask_without_end(stream: &mut Stream) -> io::Result<()> {
    let (batch, mut at) = (batch(), 0);
    let mut answers = vec![0; 1 << 20];
    loop {
        if let Ok(count) = tokio::time::timeout(BATCH_PAUSE, stream.write(&batch[at..])).await {
            at = (at + count?) % batch.len();
        }
        while let Ok(count) = tokio::time::timeout(BATCH_PAUSE, stream.read(&mut answers)).await {
            if count? == 0 {
                return Ok(());
            }
        }
    }
}

async fn send_slowly(stream: &mut Stream) -> io::Result<()> {
    stream.write_all(&100_000_u32.to_le_bytes()).await?;
    loop {
        stream.write_all(&[7]).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn send_garbage(stream: &mut Stream, noise: &[u8; 32]) -> io::Result<()> {
    // The frame's length is valid; its content is not a message.
    let mut garbage = Vec::new();
    frame::append(&mut garbage, |out| {
        out.extend_from_slice(&noise[..4]);
        out.push(0xFF);
        out.extend_from_slice(noise);
    });
    debug_assert!(garbage.len() > HEADER_BYTES);
    stream.write_all(&garbage).await?;
    // The server closes the connection, at the latest when it refuses the garbage.
    while stream.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

async fn ask_for_too_much(
    stream: &mut Stream,
    mut incoming: Incoming,
    directory: &Directory,
    granted: &mut u64,
) -> io::Result<()> {
    let table = directory.tables.first().map_or(0, |table| table.id);
    incoming.set_limit(ANSWER_BYTES);
    for txn in 0.. {
        let read = || Action::Read { table, key: Bytes(&[0; 8]) };
        let begin = Some(Begin { kind: Kind::ReadOnly, shard: None });
        let actions = (0..ROWS).map(|_| read()).collect();
        let step = Step { txn, begin, actions, end: StepEnd::Execute };
        let mut request = Vec::new();
        messages::send(&mut request, txn, &Op::Step(step));
        stream.write_all(&request).await?;
        loop {
            if let Some(frame) = incoming.take_frame().map_err(io::Error::other)? {
                let answer = messages::split(frame).and_then(|(_, message)| decode(message));
                *granted += u64::from(matches!(answer, Ok(Answer::Executed(_))));
                break;
            }
            if stream.read_buf(incoming.space(4096)).await? == 0 {
                return Ok(());
            }
        }
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    Ok(())
}
