//! What an RDMA fabric is told: where each node is, and how its connections behave.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::SetupError;
use super::device;

/// Where a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this process.
    Here {
        /// The device's name; `None` for the first one with an active port.
        device: Option<String>,
        /// The device's port, counted from one.
        port: u8,
        /// Where other nodes ask for connections. Port 0 lets the system choose one.
        listen: SocketAddr,
    },
    /// In another process.
    There {
        /// Where it listens.
        at: SocketAddr,
    },
}

/// The configuration of an [`RdmaFabric`](super::RdmaFabric). The numbers are for any device:
/// what one cannot do is lowered to what it can.
#[derive(Clone, Debug)]
pub struct Config {
    /// Every node of the cluster, by its number.
    pub nodes: Vec<Place>,
    /// Entry of the port's table of addresses; `None` for the first that is an IPv4 address
    /// reached by RoCE version 2, and 0 on InfiniBand.
    pub gid_index: Option<u8>,
    /// Bytes of a packet: a power of two from 256 to 4096; `None` for the port's own.
    pub mtu: Option<u16>,
    /// Verbs that one connection keeps with the device; the others wait.
    pub send_queue: u32,
    /// The most verbs of a connection between two that report their completion.
    pub unsignalled: u32,
    /// The most bytes that a WRITE carries inside its work request.
    pub inline_bytes: u32,
    /// Messages that wait at one lane before further ones are lost.
    pub messages: u32,
    /// How long a connection waits for an acknowledgement: 4.096 µs · 2^n.
    pub timeout: u8,
    /// How often it repeats what was not acknowledged, at most 7. Soft-RoCE takes 7 for ever.
    pub retries: u8,
    /// How long a node waits for another one's answer when it asks for a connection.
    pub handshake: Duration,
}

impl Config {
    /// A cluster with these nodes.
    pub fn new(nodes: Vec<Place>) -> Self {
        Self {
            nodes,
            gid_index: None,
            mtu: None,
            send_queue: 512,
            unsignalled: 32,
            inline_bytes: 256,
            messages: 512,
            timeout: 14,
            retries: 6,
            handshake: Duration::from_secs(2),
        }
    }

    /// A cluster of `nodes` nodes in this process, dealt out to `devices` in turn: names, each
    /// with the number of a port behind a colon if it is not the first. Without names, to all
    /// devices that have an active first port.
    ///
    /// # Errors
    /// If there is no device, or a name makes no sense.
    pub fn in_process(nodes: u16, devices: &[String]) -> Result<Self, SetupError> {
        let found = if devices.is_empty() { device::active()? } else { devices.to_vec() };
        let ports = found.iter().map(|name| parse_port(name)).collect::<Result<Vec<_>, _>>()?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let place = |(device, port)| Place::Here { device: Some(device), port, listen };
        let dealt = ports.into_iter().cycle().map(place).take(usize::from(nodes));
        Ok(Self::new(dealt.collect()))
    }

    /// Refuses what no device could do.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let ranges = [
            ("send queue", u64::from(self.send_queue), 8, 1 << 15),
            ("run of unsignalled verbs", u64::from(self.unsignalled), 1, 1 << 15),
            ("inline size", u64::from(self.inline_bytes), 8, 4096),
            ("message queue", u64::from(self.messages), 16, 1 << 14),
            ("timeout", u64::from(self.timeout), 1, 31),
            ("retry count", u64::from(self.retries), 0, 7),
            ("packet size", self.mtu.map_or(256, u64::from), 256, 4096),
        ];
        for (what, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(SetupError::OutOfRange { what, value, least, most });
            }
        }
        match self.mtu {
            Some(bytes) if !bytes.is_power_of_two() => Err(SetupError::PacketSize(bytes)),
            _ => Ok(()),
        }
    }
}

/// A device's name, and its port.
fn parse_port(name: &str) -> Result<(String, u8), SetupError> {
    let (device, port) = name.split_once(':').unwrap_or((name, "1"));
    match port.parse() {
        Ok(port) if port > 0 && !device.is_empty() => Ok((device.to_owned(), port)),
        _ => Err(SetupError::DeviceSyntax(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_with_or_without_a_port() {
        let cases = [
            ("mlx5_0", Some(("mlx5_0", 1))),
            ("mlx5_0:2", Some(("mlx5_0", 2))),
            ("mlx5_0:0", None),
            ("mlx5_0:x", None),
            ("mlx5_0:", None),
            (":1", None),
        ];
        for (text, expected) in cases {
            let parsed = parse_port(text).ok();
            let expected = expected.map(|(name, port)| (name.to_owned(), port));
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn nodes_are_dealt_out_to_devices() {
        let names = ["a".to_owned(), "b:2".to_owned()];
        let config = Config::in_process(3, &names).expect("names make sense");
        let devices: Vec<_> = config
            .nodes
            .iter()
            .map(|place| match place {
                Place::Here { device, port, .. } => (device.as_deref(), *port),
                Place::There { .. } => (None, 0),
            })
            .collect();
        assert_eq!(devices, [(Some("a"), 1), (Some("b"), 2), (Some("a"), 1)]);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let change: [fn(&mut Config); 6] = [
            |config| config.send_queue = 0,
            |config| config.unsignalled = 0,
            |config| config.inline_bytes = 7,
            |config| config.timeout = 32,
            |config| config.retries = 8,
            |config| config.mtu = Some(1500),
        ];
        assert!(Config::new(Vec::new()).check().is_ok());
        for change in change {
            let mut config = Config::new(Vec::new());
            change(&mut config);
            assert!(config.check().is_err());
        }
    }
}
