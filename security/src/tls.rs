//! Mutual TLS 1.3 around the connections of a cluster.
//!
//! A cluster has its own certificate authority. Every node presents a certificate signed by the
//! authority with the cluster's name, and requires such a certificate of every peer. Nodes of a
//! cluster trust each other completely (docs/security.md), so a certificate names the cluster, not
//! the node, and the nodes may share one certificate.
//!
//! Applications have certificates of the same authority for a different name: [`APPLICATIONS`]
//! followed by the cluster's name. Only a compute node's port for applications accepts application
//! certificates.
//!
//! # TLS over non-blocking sockets
//! [`Sealed`] reads and writes without blocking, like the underlying socket. The module handles two
//! differences:
//! * received bytes can be buffered in TLS, where a watch on the socket does not report them;
//!   [`Sealed::hides_input`] reports buffered bytes;
//! * bytes can be encrypted before the socket accepts them. Until then, the bytes count as not
//!   written. So a caller that keeps unwritten bytes and waits for a writable socket needs to know
//!   nothing of TLS.
//!
//! TLS's own messages are written with every read or write. They are few, and fit into the socket's
//! buffer unless much output is waiting; in that case they are sent with the output.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
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

/// Limit of encrypted bytes not yet accepted by the socket.
const SEALED_BYTES: usize = 64 * 1024;

/// Prefix of the cluster's name in an application's certificate.
pub const APPLICATIONS: &str = "applications.";

/// First byte of a TLS connection: the record type of a handshake.
const HANDSHAKE: u8 = 22;

/// A node's certificate, and its trusted authority.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    /// Configurations for connections from nodes, and from applications.
    servers: [Arc<ServerConfig>; 2],
    cluster: ServerName<'static>,
}

/// Reason why TLS cannot be configured. The message names the setting to correct.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The error.
        source: rustls::pki_types::pem::Error,
    },
    /// The private key can be read by users other than its owner: `chmod 600`.
    #[error("the private key {0} can be read by other users; let only its owner read it")]
    Public(String),
    /// The certificate authority's file has no certificate.
    #[error("{0}: no certificate in it")]
    NoAuthority(String),
    /// The cluster's name cannot be used in a certificate: it must have the form of a host name.
    #[error("'{0}' cannot stand in a certificate: a cluster is named as hosts are")]
    Name(String),
    /// The certificate has expired, or is not valid yet.
    #[error("{path}: the certificate {why}")]
    Untimely {
        /// Path of the file.
        path: String,
        /// "has run out" or "is not valid yet".
        why: &'static str,
    },
    /// The certificates are inconsistent, or the key belongs to a different certificate.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

impl Tls {
    /// Reads PEM files: the certificates of the authority, the local certificate chain with the
    /// leaf certificate first, and the private key. `cluster` is the name in the nodes'
    /// certificates.
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
        check_readers(key)?;
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
            // Connections are long-lived and never resumed.
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

    /// Starts TLS over an outgoing connection.
    pub(super) fn connect(&self, socket: TcpStream) -> io::Result<Sealed> {
        let (config, name) = (Arc::clone(&self.client), self.cluster.clone());
        let tls = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Sealed::new(socket, tls.into(), false))
    }

    /// Starts TLS over an incoming connection.
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

/// Refuses a private key readable by users other than its owner.
fn check_readers(key: &Path) -> Result<(), TlsError> {
    // An error of `metadata` is ignored: the following read of the key reports it.
    let mode = std::fs::metadata(key).map_or(0, |file| file.permissions().mode());
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(TlsError::Public(key.display().to_string())),
    }
}

/// Refuses a local certificate that is expired or not valid yet, so the operator learns of the
/// problem here, not from peers. The signature is checked by the peers.
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

/// Checks that a name can be used in a certificate.
fn name(name: String) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name))
}

/// Does not print keys.
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

/// Accepts peers with a certificate signed by the authority and with the name `name`. TLS itself
/// checks the name in a server's certificate, but not in a client's certificate, and an authority
/// may sign for more than one cluster.
#[derive(Debug)]
struct Bearers {
    /// Verifier of everything except the name.
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
        // The certificate is good but used in the wrong place, so the alert differs from alerts for
        // bad certificates.
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

/// TLS error that ended a connection.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {}", why::why(.0))]
struct Failed(rustls::Error);

/// A socket and TLS around it. See the module's documentation.
pub struct Sealed {
    socket: TcpStream,
    tls: Connection,
    /// Number of the caller's bytes encrypted but not yet reported as written.
    unreported: usize,
    /// Whether this is the accepting side and has not received a byte yet.
    silent: bool,
    /// Whether the last read filled its buffer.
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

    /// Writes encrypted bytes to the socket.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Reads from the socket. Returns false at the end of the input.
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
        // Sends the handshake's answer, or the alert with the error.
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
                // Closed without TLS's close message. Frames carry their length, so truncation is
                // detected.
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
            // Zero only during the handshake: afterwards the socket has accepted all earlier bytes.
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
