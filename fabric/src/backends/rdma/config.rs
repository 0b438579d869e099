//! Configuration of an RDMA fabric: places of nodes, and parameters of connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{SetupError, device};

/// Place of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Served by this process.
    Here {
        /// Name of the device; `None` for the first device with an active port.
        device: Option<String>,
        /// Port of the device, counted from one.
        port: u8,
        /// Address at which peers request connections. Port 0 lets the system choose a port.
        listen: SocketAddr,
    },
    /// Served by another process.
    There {
        /// Address at which the node listens.
        at: SocketAddr,
    },
}

/// Configuration of an [`RdmaFabric`](super::RdmaFabric). The numbers suit any device: values
/// beyond the device's limits are lowered.
#[derive(Clone, Debug)]
pub struct Config {
    /// The nodes of the cluster, by number.
    pub nodes: Vec<Place>,
    /// Entry of the port's table of addresses; `None` for the first of the best entries: RoCE
    /// version 2 before others, then IPv4 before others.
    pub gid_index: Option<u8>,
    /// Bytes of a packet: a power of two from 256 to 4096; `None` for the port's own.
    pub mtu: Option<u16>,
    /// Verbs that a connection may have with the device; further verbs wait.
    pub send_queue: u32,
    /// Largest number of verbs between two signalled verbs.
    pub unsignalled: u32,
    /// Largest number of bytes that a WRITE carries inside the work request.
    pub inline_bytes: u32,
    /// Messages that may wait at one lane; further messages are dropped.
    pub messages: u32,
    /// Time for which a connection waits for an acknowledgement: 4.096 µs · 2^n.
    pub timeout: u8,
    /// Number of retransmissions without acknowledgement, at most 7. Soft-RoCE takes 7 for ever.
    pub retries: u8,
    /// Time for which a node waits for the reply to a connection request.
    pub handshake: Duration,
}

impl Config {
    /// Configures a cluster with the given nodes.
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

    /// Configures `nodes` nodes in this process, assigned in turn to `devices`: device names, with
    /// a colon and a port number for ports other than the first. Without names, all devices with an
    /// active first port are used.
    ///
    /// # Errors
    /// No device was found, or a name is malformed.
    pub fn in_process(nodes: u16, devices: &[String]) -> Result<Self, SetupError> {
        let found = if devices.is_empty() { device::active()? } else { devices.to_vec() };
        let ports = found.iter().map(|name| parse_port(name)).collect::<Result<Vec<_>, _>>()?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let place = |(device, port)| Place::Here { device: Some(device), port, listen };
        let dealt = ports.into_iter().cycle().map(place).take(usize::from(nodes));
        Ok(Self::new(dealt.collect()))
    }

    /// Refuses values that no device supports.
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

/// Splits a device's name from its port.
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
