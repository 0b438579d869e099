//! Mutual TLS 1.3 around the connections of a cluster.
//!
//! A cluster has a certificate authority of its own. Every node shows a certificate that it has
//! signed and that bears the cluster's name, and demands one of whoever it talks to. Within the
//! cluster nodes trust each other completely (docs/security.md), so a certificate names the
//! cluster, not the node, and all nodes may share one.
//!
//! Applications have certificates of the same authority with another name, [`APPLICATIONS`] in
//! front of the cluster's: compute nodes let them in where they serve applications, and no node
//! lets them in anywhere else.
//!
//! # How it fits between words and sockets
//! [`Sealed`] reads and writes without waiting, like the socket below it. Two things differ, and
//! both are settled here:
//! * bytes can wait in TLS that the socket no longer has; [`Sealed::hides_input`] says so, because
//!   whoever watches the socket would not learn of them;
//! * bytes can have been sealed that the socket did not take. Until it has, they count as not
//!   written. So whoever has something unwritten, and watches for the socket to take more, needs
//!   to know nothing of TLS.
//!
//! TLS's own messages are written whenever something is read or written. They are few and the
//! socket has room for them, except while much else waits, and then they go with that.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, Connection, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, SignatureScheme, version,
};

use super::stream::{Caller, NO_TLS};

mod why;

/// The most bytes that are sealed before the socket has taken them.
const SEALED_BYTES: usize = 64 * 1024;

/// What an application's certificate bears in front of the cluster's name.
pub const APPLICATIONS: &str = "applications.";

/// How the first record of TLS begins.
const HANDSHAKE: u8 = 22;

/// What a node shows of itself, and whom it believes.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    /// For nodes that ask, and for applications.
    servers: [Arc<ServerConfig>; 2],
    cluster: ServerName<'static>,
}

/// Why there is no TLS. Change what the sentence names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate authority's file has no certificate.
    #[error("{0}: no certificate in it")]
    NoAuthority(String),
    /// A certificate names the cluster as a host is named.
    #[error("'{0}' cannot stand in a certificate: a cluster is named as hosts are")]
    Name(String),
    /// Its days are over, or have not begun.
    #[error("{path}: the certificate {why}")]
    Untimely {
        /// Which file.
        path: String,
        /// Which of both.
        why: &'static str,
    },
    /// The certificates make no sense, or the key belongs to another.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

impl Tls {
    /// Reads PEM files: the certificates of the authority that signs all nodes', this side's chain
    /// of certificates, its own first, and its private key. `cluster` is the name in the nodes'.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_files(
        authority: &Path,
        certificate: &Path,
        key: &Path,
        cluster: &str,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(unusable)?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoAuthority(authority.display().to_string()));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| file(key, error))?;
        let (roots, chain) = (Arc::new(roots), certificates(certificate)?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let signed =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(unusable)?;
        check_days(&*signed, certificate, &chain)?;

        let cluster = name(cluster.to_owned())?;
        let applications = name(format!("{APPLICATIONS}{}", cluster.to_str()))?;
        let server = |bears| {
            let bearers = Bearers { signed: Arc::clone(&signed), name: bears };
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&version::TLS13])
                .map_err(unusable)?
                .with_client_cert_verifier(Arc::new(bearers))
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(unusable)?;
            // Connections last: none is ever resumed.
            server.send_tls13_tickets = 0;
            Ok(Arc::new(server))
        };
        let servers = [server(cluster.clone())?, server(applications)?];
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        Ok(Self { client: Arc::new(client), servers, cluster })
    }

    /// TLS over a socket that this side has asked for.
    pub(super) fn connect(&self, socket: TcpStream) -> io::Result<Sealed> {
        let (config, name) = (Arc::clone(&self.client), self.cluster.clone());
        let tls = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Sealed::new(socket, tls.into(), false))
    }

    /// TLS over a socket that somebody else has asked for.
    pub(super) fn accept(&self, socket: TcpStream, from: Caller) -> io::Result<Sealed> {
        let [nodes, applications] = &self.servers;
        let config = match from {
            Caller::Node => nodes,
            Caller::Application => applications,
        };
        let tls = rustls::ServerConnection::new(Arc::clone(config));
        Ok(Sealed::new(socket, tls.map_err(io::Error::other)?.into(), true))
    }
}

/// Refuses a certificate whose days are over: its owner should know before everybody else does.
/// Whoever has signed it is for others to judge.
fn check_days(
    signed: &dyn ClientCertVerifier,
    path: &Path,
    chain: &[CertificateDer<'_>],
) -> Result<(), TlsError> {
    let Some((own, intermediates)) = chain.split_first() else { return Ok(()) };
    let why = match signed.verify_client_cert(own, intermediates, UnixTime::now()) {
        Err(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "has run out",
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => "is not valid yet",
        _ => return Ok(()),
    };
    Err(TlsError::Untimely { path: path.display().to_string(), why })
}

/// A name that can stand in a certificate.
fn name(name: String) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name))
}

/// Keys are not shown.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    found.map_err(|error| file(path, error))
}

fn file(path: &Path, source: rustls::pki_types::pem::Error) -> TlsError {
    TlsError::File { path: path.display().to_string(), source }
}

fn unusable(error: impl fmt::Display) -> TlsError {
    TlsError::Unusable(error.to_string())
}

/// Lets in whoever shows a certificate that the authority has signed and that bears this name.
/// TLS knows by itself to look for a name in what is shown to a client, but not in what is
/// shown to a server, and an authority may sign for more than one cluster.
#[derive(Debug)]
struct Bearers {
    /// Checks all but the name.
    signed: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for Bearers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.signed.verify_client_cert(own, intermediates, now)?;
        // Nothing is wrong with the certificate but where it is shown: the alert for that is
        // another than those for bad certificates.
        verify_server_name(&ParsedCertificate::try_from(own)?, &self.name)
            .map_err(|_| CertificateError::ApplicationVerificationFailure)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, own, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, own, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// Why TLS ends a connection.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {}", why::why(.0))]
struct Failed(rustls::Error);

/// A socket and TLS around it. See the module's essay.
pub struct Sealed {
    socket: TcpStream,
    tls: Connection,
    /// Bytes of the caller's that are sealed and not yet reported as written.
    unreported: usize,
    /// Somebody has asked for it and has not said a word yet.
    silent: bool,
    /// The last read ended because there was no more room.
    filled: bool,
}

impl Sealed {
    fn new(socket: TcpStream, mut tls: Connection, silent: bool) -> Self {
        tls.set_buffer_limit(Some(SEALED_BYTES));
        Self { socket, tls, unreported: 0, silent, filled: false }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    #[inline]
    pub(super) fn hides_input(&self) -> bool {
        self.filled
    }

    /// Gives the socket what is sealed.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Takes in what the socket has. Whether there was anything but its end.
    fn receive(&mut self) -> io::Result<bool> {
        let mut first = [HANDSHAKE];
        if self.silent && self.socket.peek(&mut first)? > 0 {
            if first != [HANDSHAKE] {
                return Err(NO_TLS.into());
            }
            self.silent = false;
        }
        if self.tls.read_tls(&mut self.socket)? == 0 {
            return Ok(false);
        }
        let processed = self.tls.process_new_packets();
        // The answer of the handshake, or the alert that says what is wrong.
        let sent = self.send();
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, Failed(error)))?;
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(true),
        }
    }
}

impl Read for Sealed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.filled = false;
        loop {
            match self.tls.reader().read(into) {
                Ok(bytes) => {
                    self.filled = bytes == into.len();
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Closed without a farewell. Frames say how long they are, so nothing can be cut
                // short unnoticed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            if !self.receive()? {
                return Ok(0);
            }
        }
    }
}

impl Write for Sealed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unreported == 0 {
            self.unreported = self.tls.writer().write(bytes)?;
            // Only while the handshake goes on: afterwards the socket has taken all.
            if self.unreported == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.send()?;
        Ok(std::mem::take(&mut self.unreported))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
