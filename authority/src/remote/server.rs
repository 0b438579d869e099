//! Server side of the remote authority: one thread that accepts, and one for each connection.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_security::{NO_TLS, nonce};

use super::wire::{self, Hello, MAX_FRAME_BYTES, MAX_GUEST_BYTES, Refusal, Reply, Request};
use super::{Address, Handle, Listener, MAX_CONNECTIONS, Security, Stream, VERSION};
use crate::{Authority, AuthorityError, EmbeddedAuthority};

/// Longest silence during a handshake.
const GUEST_PATIENCE: Duration = Duration::from_secs(2);
/// Longest time that a client may take to accept an answer.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Label of the server's proofs.
pub(super) const SERVER: u64 = u64::from_le_bytes(*b"autserve");
/// Label of the client's proofs.
pub(super) const CLIENT: u64 = u64::from_le_bytes(*b"autclien");

/// Reason why the server did not start. Correct the setting that the message names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Address beyond loopback without a key or TLS: every process that reaches the port would be
    /// admitted.
    #[error("the authority is at {0}, beyond loopback, and needs a shared key or TLS")]
    NeedsKey(Address),
    /// The port or socket is taken, or the address is not this machine's.
    #[error("the authority cannot listen at {address}: {source}")]
    Listen {
        /// Address to listen at.
        address: Address,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Server of an authority. Dropping it ends the authority, and all its connections.
pub struct AuthorityServer {
    shared: Arc<DoorState>,
    address: Address,
    welcoming: Option<JoinHandle<()>>,
}

struct DoorState {
    store: EmbeddedAuthority,
    security: Security,
    ending: AtomicBool,
    connections: Mutex<BTreeMap<u64, Handle>>,
    /// Number of connections that have not passed the handshake.
    refused: AtomicU64,
    /// Id of this server among all that were ever here.
    life: u64,
    /// Whether a client of an earlier server has called.
    earlier: AtomicBool,
    env: Env,
}

impl AuthorityServer {
    /// Listens at `address`. A port 0 stands for any that is free; see [`Self::address`].
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(address: Address, security: &Security, env: &Env) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address: address.clone(), source };
        let (listener, bound) = match &address {
            Address::Unix(path) => {
                (Listener::Unix(listen_unix(path).map_err(failed)?), address.clone())
            }
            Address::Tcp(at) => {
                if !security.allows(at.ip()) {
                    return Err(ServeError::NeedsKey(address));
                }
                let listener = TcpListener::bind(at).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), Address::Tcp(bound))
            }
        };
        let shared = Arc::new(DoorState {
            store: EmbeddedAuthority::new(),
            security: security.clone(),
            ending: AtomicBool::new(false),
            connections: Mutex::default(),
            refused: AtomicU64::new(0),
            life: nonce().map_err(failed)?[0],
            earlier: AtomicBool::new(false),
            env: env.clone(),
        });
        let serving = Arc::clone(&shared);
        let welcoming = env.spawn("lotus-authority", move || welcome(&serving, &listener));
        let welcoming = Some(welcoming.map_err(failed)?);
        Ok(Self { shared, address: bound, welcoming })
    }

    /// Address at which it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Number of connections that were not admitted: another key or certificate, garbage, silence.
    /// Clients that had hung up before they were answered do not count: if this process stands
    /// still, its own clients do.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Whether a client has called that belongs to an earlier server at this address: its values
    /// have ended with it.
    pub fn is_called_by_an_earlier_life(&self) -> bool {
        self.shared.earlier.load(Ordering::Relaxed)
    }

    /// The values themselves, for use inside the serving process.
    pub fn store(&self) -> &dyn Authority {
        &self.shared.store
    }
}

impl Drop for AuthorityServer {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        // Wakes the accepting thread. If the address cannot be reached, because the network has
        // gone first, no client can come any more, and the thread is not waited for.
        let woken = Stream::connect(&self.address, &Security::PlainAnywhere, GUEST_PATIENCE);
        if let (Ok(_), Some(thread)) = (woken, self.welcoming.take()) {
            // A panic there has been reported already.
            let _ = thread.join();
        }
        self.shared.connections().values().for_each(Handle::hang_up);
        if let Address::Unix(path) = &self.address {
            // A socket file that stays is recognised as stale by the next server.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates a socket that only this user can connect to. Removes a stale one, at which no process
/// answers.
///
/// # Errors
/// The path cannot be made, or another process listens there.
pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Bound under another name, so that no client finds it before its permissions are set.
    let hidden = PathBuf::from(format!("{}.new", path.display()));
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&hidden, path)?;
    Ok(listener)
}

impl DoorState {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Handle>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn welcome(shared: &Arc<DoorState>, listener: &Listener) {
    for number in 0.. {
        let accepted = listener.accept(&shared.security);
        if shared.ending.load(Ordering::Acquire) {
            return;
        }
        // A client that has hung up already is no reason to end.
        let Ok(mut stream) = accepted else { continue };
        let patient = stream.set_patience(Some(GUEST_PATIENCE), WRITE_PATIENCE);
        let Ok(theirs) = patient.and_then(|()| stream.handle()) else { continue };
        if shared.connections().len() >= MAX_CONNECTIONS {
            // The client may not be listening.
            let _ = wire::send(&mut stream, &Reply::Refused(Refusal::Full));
            continue;
        }
        shared.connections().insert(number, theirs);
        let serving = Arc::clone(shared);
        let serve = move || {
            match greet(&serving, &mut stream) {
                // The reason why a connection ends matters only to its client.
                Ok(()) => drop(serve(&serving, &mut stream)),
                Err(error) if has_hung_up(&error) => {}
                Err(_) => drop(serving.refused.fetch_add(1, Ordering::Relaxed)),
            }
            let handle = serving.connections().remove(&number);
            handle.iter().for_each(Handle::hang_up);
        };
        if shared.env.spawn("lotus-authority", serve).is_err() {
            shared.connections().remove(&number);
        }
    }
}

/// The handshake; an error ends the connection.
fn greet(shared: &DoorState, stream: &mut Stream) -> io::Result<()> {
    let admitted = match (check(shared, stream), &*stream) {
        // The client would not understand an answer within TLS.
        (Err(error), Stream::Tcp(sealed)) if error.kind() == NO_TLS => {
            let refused = Reply::Refused(Refusal::Security);
            wire::send(&mut sealed.socket(), &refused)?;
            return Err(error);
        }
        (checked, _) => checked?,
    };
    let reply = admitted.map_or_else(Reply::Refused, |()| Reply::Welcome { life: shared.life });
    wire::send(stream, &reply)?;
    stream.set_patience(None, WRITE_PATIENCE)?;
    admitted.map_err(|_| io::ErrorKind::PermissionDenied.into())
}

fn check(shared: &DoorState, stream: &mut Stream) -> io::Result<Result<(), Refusal>> {
    let first = wire::receive(stream, MAX_GUEST_BYTES)?;
    let Some(Request::Hello(hello)) = first else { return Ok(Err(Refusal::Garbage)) };
    let Hello { version, secured, .. } = hello;
    if version != VERSION {
        return Ok(Err(Refusal::Version));
    }
    let key = match shared.security.key() {
        None if !secured => return Ok(Ok(())),
        Some(key) if secured => key,
        _ => return Ok(Err(Refusal::Security)),
    };
    if stream.is_closed() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let (words, nonce) = (hello.words(), nonce()?);
    let challenge = Reply::Challenge { nonce, proof: key.sign(SERVER, &words, nonce) };
    wire::send(stream, &challenge)?;
    // A client with another key hangs up on the server's proof.
    let second = wire::receive(stream, MAX_GUEST_BYTES);
    let second = second.map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))?;
    let Some(Request::Proof(proof)) = second else { return Ok(Err(Refusal::Garbage)) };
    let proven = key.verify(CLIENT, &words, nonce, &proof);
    Ok(if proven { Ok(()) } else { Err(Refusal::Proof) })
}

/// Whether an error says that the client has hung up.
fn has_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn serve(shared: &DoorState, stream: &mut Stream) -> io::Result<()> {
    loop {
        let request = wire::receive(stream, MAX_FRAME_BYTES)?.filter(Request::keeps_limits);
        let request = request.ok_or(io::ErrorKind::InvalidData)?;
        if request == Request::EarlierLife {
            shared.earlier.store(true, Ordering::Relaxed);
            return Ok(());
        }
        wire::send(stream, &answer(&shared.store, request)?)?;
    }
}

fn answer(store: &dyn Authority, request: Request) -> io::Result<Reply> {
    let found = match request {
        Request::Hello(_) | Request::Proof(_) | Request::EarlierLife => {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Request::Read { key } => store.read(&key),
        Request::ChangedSince { key, seen } => store.changed_since(&key, seen),
        Request::Swap { key, expected, value } => {
            return match store.compare_and_swap(&key, expected, &value) {
                Ok(version) => Ok(Reply::Swapped(version)),
                Err(AuthorityError::Conflict { current }) => Ok(Reply::Conflict(current)),
                Err(AuthorityError::Unavailable) => Err(io::ErrorKind::TimedOut.into()),
            };
        }
    };
    let found = found.map_err(|_| io::ErrorKind::TimedOut)?;
    Ok(found.map_or(Reply::Nothing, Reply::Found))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    use lotus_security::{Caller, Key};

    use super::*;

    /// The process stood still for a while. Its own clients had hung up meanwhile, and the log said
    /// that they had another key.
    #[test]
    fn a_client_that_had_hung_up_before_it_was_answered_is_not_refused() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let security = Security::SharedKey(Key::new(&[1; 32]).expect("long enough"));
        let server = AuthorityServer::start(Address::Tcp(address), &security, &Env::real(0));
        let server = server.expect("serves");
        let listener = TcpListener::bind(address).expect("a free port");
        let mut caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        let hello = Hello { version: VERSION, secured: true, nonce: [7; 4] };
        wire::send(&mut caller, &Request::Hello(hello)).expect("sent");
        drop(caller);
        let (socket, _) = listener.accept().expect("it has called");
        let stream = lotus_security::Stream::incoming(socket, &security, Caller::Node);
        let mut stream = Stream::Tcp(stream.expect("no TLS"));
        let greeted = greet(&server.shared, &mut stream).expect_err("nobody is there");
        assert!(has_hung_up(&greeted), "{greeted}");
    }
}
