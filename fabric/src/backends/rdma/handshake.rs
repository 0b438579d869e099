//! Connection set-up over TCP: requests to remote nodes, and the service that answers requests.
//!
//! Every request has a separate connection and a time-out, so that a slow, silent or hostile peer
//! only blocks the serving thread. The messages are in `wire`; `node` decides the replies.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::SetupError;
use super::node::RdmaNode;
use super::wire::{MAX_BYTES, NodeRequest, PREAMBLE_BYTES, Reply, VERSION, version_of};
use crate::run::env::Env;

/// Sends `request` to the node at `at`, and waits for the reply.
pub(super) fn ask(
    at: SocketAddr,
    request: &NodeRequest,
    limit: Duration,
) -> Result<Reply, SetupError> {
    let node = request.of();
    let message = exchange(at, request, limit).map_err(|source| SetupError::PeerSilent {
        node,
        at,
        source,
    })?;
    let strange = || SetupError::PeerStrange { node, at };
    let (preamble, body) = message.split_first_chunk::<PREAMBLE_BYTES>().ok_or_else(strange)?;
    match version_of(*preamble) {
        None => Err(strange()),
        Some(VERSION) => Reply::decode(body).ok_or_else(strange),
        Some(theirs) => Err(SetupError::PeerVersion { node, at, theirs, ours: VERSION }),
    }
}

fn exchange(at: SocketAddr, request: &NodeRequest, limit: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&at, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.set_nodelay(true)?;
    stream.write_all(&request.encode())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    read_message(&stream)
}

/// Reads until the peer closes its end.
fn read_message(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    stream.take(MAX_BYTES as u64).read_to_end(&mut message)?;
    if message.is_empty() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(message)
}

/// Answers a node's peers until dropped.
pub(super) struct Service {
    at: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub fn start(
        node: Arc<RdmaNode>,
        listener: TcpListener,
        limit: Duration,
        env: &Env,
    ) -> io::Result<Self> {
        let (at, ended) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let (stop, spawner) = (Arc::clone(&ended), env.clone());
        let serve = move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), node) = (stream, Arc::clone(&node)) else { continue };
                // If no thread can be started, the peer gets no answer, as if the node were gone.
                let _ = spawner.spawn("rdma-answer", move || answer(&node, &stream, limit));
            }
        };
        let thread = env.spawn("rdma-listen", serve)?;
        Ok(Self { at, ended, thread: Some(thread) })
    }

    /// Returns the listening address.
    pub fn at(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // The thread checks the flag after accepting a connection; this connection wakes the
        // thread.
        let called = TcpStream::connect_timeout(&self.at, Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (called, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Answers a request. On errors the asking side gets no reply.
fn answer(node: &RdmaNode, stream: &TcpStream, limit: Duration) {
    let serve = || -> io::Result<()> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let message = read_message(stream)?;
        let reply = match message.split_first_chunk::<PREAMBLE_BYTES>() {
            Some((preamble, body)) if version_of(*preamble) == Some(VERSION) => {
                NodeRequest::decode(body)
                    .map_or(Some(Reply::Unknown), |request| node.serve(&request))
            }
            // The reply's preamble tells the peer this build's version.
            Some((preamble, _)) if version_of(*preamble).is_some() => Some(Reply::Unknown),
            _ => None,
        };
        let mut stream = stream;
        reply.map_or(Ok(()), |reply| stream.write_all(&reply.encode()))
    };
    let _ = serve();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ids::NodeId;

    const LIMIT: Duration = Duration::from_millis(200);
    const NODE: NodeId = NodeId(4);

    /// Error that `ask` returns when the peer treats the connection so.
    fn refusal(peer: impl FnOnce(TcpStream) + Send + 'static) -> SetupError {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("bound");
        let serve = move || listener.accept().map(|(stream, _)| peer(stream));
        let thread = Env::real(0).spawn("peer", serve).expect("a thread");
        let refusal = ask(at, &NodeRequest::Greet { of: NODE }, LIMIT).expect_err("no good peer");
        thread.join().expect("no panic").expect("somebody called");
        refusal
    }

    fn say(mut stream: TcpStream, bytes: &[u8]) {
        read_message(&stream).expect("a request");
        stream.write_all(bytes).expect("the caller listens");
    }

    #[test]
    fn a_peer_of_another_version_is_named() {
        let newer = |stream| say(stream, b"LoRD\x09\x00and what nobody understands");
        let error = refusal(newer);
        assert!(
            matches!(error, SetupError::PeerVersion { node: NODE, theirs: 9, ours: VERSION, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_peer_that_says_nothing_is_named() {
        let hangs_up = refusal(drop);
        // Keeps the connection open until the client has given up.
        let waits = refusal(|stream| {
            read_message(&stream).expect("a request");
            std::thread::park_timeout(3 * LIMIT);
        });
        for error in [hangs_up, waits] {
            assert!(matches!(error, SetupError::PeerSilent { node: NODE, .. }), "{error}");
        }
        let nobody = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let nobody = nobody.expect("a port that was free just now");
        let error =
            ask(nobody, &NodeRequest::Greet { of: NODE }, LIMIT).expect_err("nobody listens");
        assert!(matches!(error, SetupError::PeerSilent { node: NODE, .. }), "{error}");
    }

    #[test]
    fn a_stranger_is_named() {
        for said in [b"HTTP/1.1 400 Bad NodeRequest".as_slice(), b"LoR", b"LoRD\x01\x00\xFF"] {
            let error = refusal(move |stream| say(stream, said));
            assert!(matches!(error, SetupError::PeerStrange { node: NODE, .. }), "{error}");
        }
    }
}
