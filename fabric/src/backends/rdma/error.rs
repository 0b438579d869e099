//! Errors of setting up an RDMA fabric, with remedies.

use std::io;
use std::net::SocketAddr;

use crate::contract::ids::NodeId;
use crate::contract::transport::FabricError;

/// Reason why an RDMA fabric could not be set up. The text of each variant is the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Install a device, load the device's driver, or use another fabric.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// No port of any device is up; `ibv_devinfo` shows the ports' states.
    #[error("no RDMA device of this machine has an active port (found {})", .0.join(", "))]
    NoActivePort(Vec<String>),
    /// Name one of the known devices.
    #[error("there is no RDMA device {name}; this machine has {}", list(.known))]
    UnknownDevice {
        /// The name.
        name: String,
        /// The names of the known devices.
        known: Vec<String>,
    },
    /// Write the name of a device, or name:port.
    #[error("{0:?} does not name an RDMA device and its port, as mlx5_0 or mlx5_0:1 would")]
    DeviceSyntax(String),
    /// Choose a port that the device has.
    #[error("RDMA device {device} has no port {port}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// Bring the link up.
    #[error("port {port} of RDMA device {device} is down; bring its link up")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// Choose an index that `show_gids` or sysfs lists.
    #[error(
        "port {port} of RDMA device {device} has no address at GID index {index}; it has \
         entries at {}", list(.filled)
    )]
    GidIndex {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index.
        index: u8,
        /// The indexes with an address.
        filled: Vec<String>,
    },
    /// Raise the limit, or ask for less memory.
    #[error(
        "cannot lock {bytes} bytes of memory for RDMA: the limit is {limit_bytes} bytes; raise it \
         with `ulimit -l unlimited`, memlock in /etc/security/limits.conf, or LimitMEMLOCK= in a \
         systemd unit"
    )]
    MemoryLock {
        /// Bytes to be registered.
        bytes: u64,
        /// Bytes that the process may lock.
        limit_bytes: u64,
    },
    /// Use another device: this device cannot keep the fabric's contract.
    #[error("RDMA device {device} {lack}")]
    Incapable {
        /// The device.
        device: String,
        /// The missing capability, as the end of a sentence.
        lack: &'static str,
    },
    /// Run the same version everywhere.
    #[error("{node:?} at {at} speaks version {theirs} of the handshake, this node {ours}")]
    PeerVersion {
        /// The other node.
        node: NodeId,
        /// Address at which the node listens.
        at: SocketAddr,
        /// The peer's version.
        theirs: u16,
        /// This build's version.
        ours: u16,
    },
    /// Start the node, or correct its address.
    #[error("{node:?} does not answer at {at}: {source}")]
    PeerSilent {
        /// The other node.
        node: NodeId,
        /// Address at which the node should listen.
        at: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Another service listens at the address; correct the address.
    #[error("what answers at {at} is not {node:?} of this cluster")]
    PeerStrange {
        /// The other node.
        node: NodeId,
        /// Address at which the node should listen.
        at: SocketAddr,
    },
    /// Choose an address that is free and this machine's own.
    #[error("cannot listen at {at}: {source}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Make the call in the node's process.
    #[error("{0:?} is in another process, which sets it up itself")]
    Elsewhere(NodeId),
    /// Correct the configuration.
    #[error("the {what} is {value}, and must be between {least} and {most}")]
    OutOfRange {
        /// Name of the parameter.
        what: &'static str,
        /// The configured value.
        value: u64,
        /// Smallest allowed value.
        least: u64,
        /// Largest allowed value.
        most: u64,
    },
    /// Choose one of the packet sizes of InfiniBand.
    #[error("packets of {0} bytes do not exist; choose 256, 512, 1024, 2048 or 4096")]
    PacketSize(u16),
    /// The source gives the reason of the device or the system.
    #[error("cannot {what} RDMA device {device}: {source}")]
    Verbs {
        /// The attempted action, as it stands before the device's name in a sentence.
        what: &'static str,
        /// The device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<SetupError> for FabricError {
    fn from(error: SetupError) -> Self {
        Self::Rdma(Box::new(error))
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_one_sentence_that_names_its_cause() {
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let silent = || io::Error::from(io::ErrorKind::TimedOut);
        let device = || "rxe0".to_owned();
        let cases = [
            (SetupError::NoDevice, "no RDMA device"),
            (SetupError::UnknownDevice { name: device(), known: Vec::new() }, "has none"),
            (SetupError::PortDown { device: device(), port: 1 }, "is down"),
            (
                SetupError::GidIndex {
                    device: device(),
                    port: 1,
                    index: 9,
                    filled: vec!["0".to_owned(), "1".to_owned()],
                },
                "GID index 9; it has entries at 0, 1",
            ),
            (SetupError::MemoryLock { bytes: 9, limit_bytes: 8 }, "ulimit -l"),
            (
                SetupError::PeerVersion { node: NodeId(1), at, theirs: 2, ours: 1 },
                "speaks version 2",
            ),
            (SetupError::PeerSilent { node: NodeId(1), at, source: silent() }, "10.0.0.1:7"),
        ];
        for (error, part) in cases {
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
        }
    }
}
