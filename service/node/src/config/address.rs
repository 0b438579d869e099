//! Addresses in a cluster's file: a host, by name or IP address, and a port.
//!
//! A node may listen at an address other than its advertised address, for instance at all addresses
//! of the host (`bind`); other nodes, and applications, are given the address as written. Names are
//! resolved when a node connects or listens, and not when a file is read: a host may be unable to
//! resolve some names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use lotus_authority::remote::Address;
use serde::{Deserialize, Serialize};

/// A host and a port. Two addresses are equal if their texts are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    text: String,
    host: String,
    port: u16,
}

/// A host name cannot be resolved here, perhaps not yet.
#[derive(Debug, thiserror::Error)]
#[error("the address of {name} cannot be found: {why}")]
pub struct Unknown {
    name: HostPort,
    why: String,
}

impl HostPort {
    /// Port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// IP address of the host, if known without a look-up.
    pub fn ip(&self) -> Option<IpAddr> {
        let local = || (self.host == "localhost").then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.host.parse().ok().or_else(local)
    }

    /// Whether the address is only for listening, and not for connecting.
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Resolves the host.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn look_up(&self) -> Result<SocketAddr, Unknown> {
        let unknown = |why: String| Unknown { name: self.clone(), why };
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let mut found = found.map_err(|error| unknown(error.to_string()))?;
        found.next().ok_or_else(|| unknown("it has none".to_owned()))
    }
}

impl TryFrom<String> for HostPort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { text, host: address.ip().to_string(), port: address.port() });
        }
        let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let sound = !host.is_empty() && host.bytes().all(is_of_names);
            Some((host.to_owned(), port.parse().ok()?)).filter(|_| sound)
        });
        let why =
            || format!("\"{text}\" is no address: they are HOST:PORT, the host by name or number");
        let (host, port) = parts.ok_or_else(why)?;
        Ok(Self { text, host, port })
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        address.text
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Address of a node or of the authority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advertised {
    /// Address for peers to connect to.
    pub address: HostPort,
    /// Address to listen at, if different.
    pub bind: Option<HostPort>,
}

impl Advertised {
    /// Address that the node or authority listens at.
    pub fn listens(&self) -> &HostPort {
        self.bind.as_ref().unwrap_or(&self.address)
    }
}

/// Address of an authority in memory node 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosted {
    /// A Unix socket of the host.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(Advertised),
}

impl Hosted {
    /// Address to connect to.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn address(&self) -> Result<Address, Unknown> {
        match self {
            Self::Unix(path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(advertised) => advertised.address.look_up().map(Address::Tcp),
        }
    }

    /// Address to listen at.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn listens(&self) -> Result<Address, Unknown> {
        match self {
            Self::Unix(path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(advertised) => advertised.listens().look_up().map(Address::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<HostPort, String> {
        text.to_owned().try_into()
    }

    #[test]
    fn hosts_are_written_by_name_or_by_number() {
        for (text, ip, port) in [
            ("10.0.0.1:7401", Some("10.0.0.1"), 7401),
            ("[::1]:80", Some("::1"), 80),
            ("localhost:7401", Some("127.0.0.1"), 7401),
            ("mn-1.orders.example:7401", None, 7401),
            ("0.0.0.0:1", Some("0.0.0.0"), 1),
        ] {
            let read = address(text).expect(text);
            let known = read.ip().map(|ip| ip.to_string());
            assert_eq!((known.as_deref(), read.port()), (ip, port), "{text}");
            assert_eq!((read.to_string(), read.is_unspecified()), (text.into(), port == 1));
        }
        for text in ["here", "here:", ":7401", "here:port", "here:70000", "::1:80:x", "a b:1", ""] {
            let why = address(text).expect_err(text);
            assert!(why.contains("HOST:PORT"), "{why}");
        }
    }

    #[test]
    fn names_are_looked_up_when_they_are_needed() {
        let local = address("localhost:7401").unwrap().look_up().unwrap();
        assert!(local.ip().is_loopback() && local.port() == 7401, "{local}");
        let unknown = address("no-such-host.invalid:1").unwrap().look_up().unwrap_err();
        let said = unknown.to_string();
        assert!(
            said.starts_with("the address of no-such-host.invalid:1 cannot be found"),
            "{said}"
        );
    }
}
