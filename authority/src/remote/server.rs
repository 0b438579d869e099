//! Server side of the remote authority: an accepting thread, and a thread per connection.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_security::{Guests, Lines, NO_TLS, NextInLine, PlaceDecision, Rules, Source, nonce};

use super::wire::{self, Hello, MAX_FRAME_BYTES, MAX_GUEST_BYTES, Refusal, Reply, Request};
use super::{Address, Handle, Listener, MAX_CONNECTIONS, MAX_GUESTS, Security, Stream, VERSION};
use crate::{Authority, AuthorityError, EmbeddedAuthority};

/// Time limit of a handshake.
const GUEST_PATIENCE: Duration = Duration::from_secs(2);
/// Longest time that a client may take to accept an answer.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, as when the system has no socket left.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(50);
/// Interval of the checks for departed guests, while connections of their address wait.
const LOOK: Duration = Duration::from_millis(10);
/// Label of the server's proofs.
pub(super) const SERVER: u64 = u64::from_le_bytes(*b"autserve");
/// Label of the client's proofs.
pub(super) const CLIENT: u64 = u64::from_le_bytes(*b"autclien");

/// Reason why the server did not start. Correct the setting named by the message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Address beyond loopback without a key or TLS: every process that reaches the port would be
    /// admitted.
    #[error("the authority is at {0}, beyond loopback, and needs a shared key or TLS")]
    NeedsKey(Address),
    /// The port or socket is taken, or the address does not belong to this machine.
    #[error("the authority cannot listen at {address}: {source}")]
    Listen {
        /// Address to listen at.
        address: Address,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Server of an authority. Dropping the server ends the authority and the connections.
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
    guests: Mutex<Guests<u64>>,
    /// Time limit of a handshake.
    patience: Duration,
    /// Signalled when a guest was admitted, or is gone.
    left: Condvar,
    /// Number of connections that have passed the handshake.
    admitted: AtomicUsize,
    /// Number of refused connections; see [`AuthorityServer::refused`].
    refused: AtomicU64,
    /// Random id, which distinguishes the server from earlier servers at the address.
    life: u64,
    /// Whether a client of an earlier server has called.
    earlier: AtomicBool,
    env: Env,
}

impl AuthorityServer {
    /// Listens at `address`. Port 0 means any free port; see [`Self::address`].
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(address: Address, security: &Security, env: &Env) -> Result<Self, ServeError> {
        Self::start_with(address, security, Rules::of(MAX_GUESTS), GUEST_PATIENCE, env)
    }

    /// [`Self::start`] with explicit rules and handshake time limit for guests.
    fn start_with(
        address: Address,
        security: &Security,
        rules: Rules,
        patience: Duration,
        env: &Env,
    ) -> Result<Self, ServeError> {
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
            guests: Mutex::new(Guests::new(rules)),
            patience,
            left: Condvar::new(),
            admitted: AtomicUsize::new(0),
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

    /// Listening address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Number of refused connections: wrong key or certificate, garbage, silence. Clients that hung
    /// up before an answer do not count: if this process is paused, its own clients hang up.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Whether a client of an earlier server at this address has called: the earlier server's
    /// values have ended with that server.
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
        self.shared.left.notify_all();
        // Wakes the accepting thread. If the address cannot be reached, because the network has
        // gone first, no client can connect any more, and the thread is not joined.
        let woken = Stream::connect(&self.address, &Security::PlainAnywhere, GUEST_PATIENCE);
        if let (Ok(_), Some(thread)) = (woken, self.welcoming.take()) {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
        self.shared.connections().values().for_each(Handle::hang_up);
        if let Address::Unix(path) = &self.address {
            // The next server treats a leftover socket file as stale.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates a socket for connections of this user only. Removes a stale socket, at which no process
/// answers.
///
/// # Errors
/// The path cannot be made, or a process listens at the path.
pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Bound under a temporary name: no client connects before the permissions are set.
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

    fn guests(&self) -> MutexGuard<'_, Guests<u64>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.env.now().0)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Takes a place for guest `number`, as soon as a place is free.
    fn enter(&self, number: u64, source: Source) {
        let mut guests = self.guests();
        while !self.is_ending() {
            let now = self.now();
            match guests.place(source, now) {
                PlaceDecision::Free => {}
                PlaceDecision::Instead(other) => self.close(&mut guests, other),
                PlaceDecision::Wait(time) => {
                    let waited = self.left.wait_timeout(guests, time);
                    guests = waited.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
            }
            return guests.enter(number, source, now);
        }
    }

    /// Takes the next connection out of the lines, and makes it guest `number`; `None` for a closed
    /// surplus connection. The error is the time until a guest may be replaced; a departing guest
    /// makes room earlier.
    fn turn(&self, number: u64, lines: &mut Lines<Stream>) -> Result<Option<Stream>, Duration> {
        let (mut guests, now) = (self.guests(), self.now());
        match lines.turn(&guests, now) {
            NextInLine::Now { source, newcomer, instead } => {
                instead.iter().for_each(|other| self.close(&mut guests, *other));
                guests.enter(number, source, now);
                Ok(Some(newcomer))
            }
            NextInLine::Later(wait) => lines.surplus(&guests).map(|_| None).ok_or(wait),
        }
    }

    /// Closes the connection of a guest, to make room for another guest.
    fn close(&self, guests: &mut Guests<u64>, guest: u64) {
        guests.leave(guest);
        self.refused.fetch_add(1, Ordering::Relaxed);
        // The guest's thread finds the connection ended.
        self.connections().get(&guest).iter().for_each(|handle| handle.hang_up());
    }

    fn leave(&self, number: u64) {
        self.guests().leave(number);
        self.left.notify_all();
    }

    /// Waits for a while, after a failure of the system.
    fn pause(&self) {
        // The wait ends early when a guest leaves, which frees a file descriptor.
        drop(self.left.wait_timeout(self.guests(), OUT_OF_SOCKETS));
    }
}

/// Accepts connections until the server ends. Connections of an address that has its share of the
/// places wait in a line per address, and other connections are accepted meanwhile.
fn welcome(shared: &Arc<DoorState>, listener: &Listener) {
    let (mut lines, mut number) = (Lines::default(), 0);
    while !shared.is_ending() {
        match shared.turn(number, &mut lines) {
            Ok(Some(stream)) => {
                begin(shared, number, stream);
                number += 1;
                continue;
            }
            Ok(None) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(wait) if !lines.is_empty() && !listener.waits(wait.min(LOOK)) => continue,
            Err(_) => {}
        }
        let accepted = listener.accept(&shared.security);
        if shared.is_ending() {
            return;
        }
        let (stream, source) = match accepted {
            Ok(accepted) => accepted,
            // A client that has hung up already is no reason to end, or to wait.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                shared.pause();
                continue;
            }
        };
        if lines.has(source) || shared.guests().has_its_share(source) {
            lines.join(source, stream);
            continue;
        }
        shared.enter(number, source);
        begin(shared, number, stream);
        number += 1;
    }
}

/// Starts the thread of guest `number`, already in its place.
fn begin(shared: &Arc<DoorState>, number: u64, mut stream: Stream) {
    let patient = stream.set_patience(Some(shared.patience), WRITE_PATIENCE);
    let Ok(theirs) = patient.and_then(|()| stream.handle()) else { return shared.leave(number) };
    shared.connections().insert(number, theirs);
    let serving = Arc::clone(shared);
    let serve = move || {
        let greeted = greet(&serving, number, &mut stream);
        serving.leave(number);
        match greeted {
            // The reason why a connection ends matters only to its client.
            Ok(_place) => drop(serve(&serving, &mut stream)),
            Err(error) if has_hung_up(&error) => {}
            Err(_) => drop(serving.refused.fetch_add(1, Ordering::Relaxed)),
        }
        let handle = serving.connections().remove(&number);
        handle.iter().for_each(Handle::hang_up);
    };
    if shared.env.spawn("lotus-authority", serve).is_err() {
        shared.connections().remove(&number);
        shared.leave(number);
    }
}

/// A place among the admitted connections.
struct Admission<'s>(&'s AtomicUsize);

impl<'s> Admission<'s> {
    fn take(admitted: &'s AtomicUsize) -> Option<Self> {
        let room = |taken: usize| (taken < MAX_CONNECTIONS).then_some(taken + 1);
        let taken = admitted.fetch_update(Ordering::AcqRel, Ordering::Relaxed, room);
        taken.is_ok().then(|| Self(admitted))
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream with one deadline for all of its reads.
struct Timely<'s> {
    stream: &'s mut Stream,
    until: Nanos,
    env: &'s Env,
}

impl Read for Timely<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.since(self.env.now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_patience(Some(left), WRITE_PATIENCE)?;
        self.stream.read(into)
    }
}

/// Performs the handshake; an error ends the connection.
fn greet<'s>(shared: &'s DoorState, number: u64, stream: &mut Stream) -> io::Result<Admission<'s>> {
    let admitted = match (check(shared, number, stream), &*stream) {
        // The client would not understand an answer within TLS.
        (Err(error), Stream::Tcp(sealed)) if error.kind() == NO_TLS => {
            let refused = Reply::Refused(Refusal::Security);
            wire::send(&mut sealed.socket(), &refused)?;
            return Err(error);
        }
        (checked, _) => checked?,
    };
    let admitted = admitted.and_then(|()| Admission::take(&shared.admitted).ok_or(Refusal::Full));
    let welcome = |_: &Admission<'_>| Reply::Welcome { life: shared.life };
    let reply = admitted.as_ref().map_or_else(|why| Reply::Refused(*why), welcome);
    wire::send(stream, &reply)?;
    stream.set_patience(None, WRITE_PATIENCE)?;
    admitted.map_err(|_| io::ErrorKind::PermissionDenied.into())
}

fn check(shared: &DoorState, number: u64, stream: &mut Stream) -> io::Result<Result<(), Refusal>> {
    let (env, until) = (&shared.env, shared.env.now().after(shared.patience));
    let first = wire::receive(&mut Timely { stream, until, env }, MAX_GUEST_BYTES)?;
    let Some(Request::Hello(hello)) = first else { return Ok(Err(Refusal::Garbage)) };
    shared.guests().keep(number, shared.now() + shared.patience / 2);
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
    // A client with another key hangs up after the server's proof.
    let second = wire::receive(&mut Timely { stream, until, env }, MAX_GUEST_BYTES);
    let second = second.map_err(|error| match has_hung_up(&error) {
        true => io::ErrorKind::PermissionDenied.into(),
        false => error,
    })?;
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
        let greeted = greet(&server.shared, 0, &mut stream).err().expect("nobody is there");
        assert!(has_hung_up(&greeted), "{greeted}");
    }
    /// The server waited with the connection of an address that has its share, and let no client of
    /// another address in, although places were free.
    #[test]
    fn one_address_with_more_than_its_share_keeps_no_other_out() {
        let any = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
        let security = Security::SharedKey(Key::new(&[1; 32]).expect("long enough"));
        let long = Duration::from_secs(600);
        let rules = Rules { places: 8, of_one: 6, grace: long };
        let server = AuthorityServer::start_with(any, &security, rules, long, &Env::real(0));
        let server = server.expect("serves");
        let Address::Tcp(at) = *server.address() else { unreachable!() };
        let connect = || TcpStream::connect(at).expect("it listens");
        let mut silent: Vec<TcpStream> = (0..7).map(|_| connect()).collect();
        is_answered(from_another_address(at));
        // One leaves, and the first in line has its turn.
        drop(silent.remove(0));
        is_answered(&silent[5]);
        // More than the port holds: most find no room in line.
        silent.extend((0..40).map(|_| connect()));
        is_answered(from_another_address(at));
        while server.refused() == 0 {
            std::thread::yield_now();
        }
        // The first have their places still.
        silent[0].set_nonblocking(true).expect("a socket");
        let error = silent[0].read(&mut [0]).expect_err("it is here, and silent");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    /// Says hello, and checks that the server goes on with the handshake.
    fn is_answered(mut stream: impl Read + io::Write) {
        let hello = Hello { version: VERSION, secured: true, nonce: [7; 4] };
        wire::send(&mut stream, &Request::Hello(hello)).expect("sent");
        let answer = wire::receive::<Reply>(&mut stream, MAX_GUEST_BYTES).expect("answered");
        assert!(matches!(answer, Some(Reply::Challenge { .. })), "{answer:?}");
    }

    /// A connection from 127.0.0.2, another address of this host.
    fn from_another_address(at: SocketAddr) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let other = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&other, &SocketAddr::from(([127, 0, 0, 2], 0))).expect("an address of this host");
        connect(&other, &at).expect("it listens");
        other.into()
    }
}
