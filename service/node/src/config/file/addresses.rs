//! Checks of the addresses in a file: permitted fields, and values.

use lotus_authority::remote::Security;
use toml::Spanned;

use super::{FabricName, Reader, Written};
use crate::config::address::{Advertised, HostPort};
use crate::config::error::FileError;

/// Whether other hosts may reach the address, as far as known without a look-up.
pub(super) fn is_far(at: &HostPort) -> bool {
    !at.ip().is_some_and(|ip| Security::PlainOnLoopback.allows(ip))
}

/// Address with an optional listening address; `None` if no address is written.
pub(super) fn advertised(
    address: &Option<Spanned<HostPort>>,
    bind: &Option<Spanned<HostPort>>,
) -> Option<Advertised> {
    let plain = |at: &Option<Spanned<HostPort>>| at.as_ref().map(|at| at.as_ref().clone());
    Some(Advertised { address: plain(address)?, bind: plain(bind) })
}

impl Reader<'_> {
    /// Checks that addresses are written only in permitted fields, and not repeated.
    pub(super) fn check_addresses(&self, written: &Written) -> Result<(), FileError> {
        let shm = *written.fabric.as_ref() == FabricName::Shm;
        let memory = written.memory_node.iter().map(Spanned::as_ref);
        let compute = written.compute_node.iter().map(Spanned::as_ref);
        // Pairs of an address and the address to listen at instead.
        let memory = memory.map(|node| (&node.address, &node.bind));
        let of_tcp = memory.chain(compute.clone().map(|node| (&node.address, &node.bind)));
        let of_tcp = of_tcp.chain([(&written.authority, &written.authority_bind)]);
        let written_on_shm = of_tcp.clone().find_map(|(at, bind)| at.as_ref().or(bind.as_ref()));
        if shm && let Some(address) = written_on_shm {
            return Err(self.wrong(address.span(), "nodes have addresses on tcp only"));
        }
        if shm && let Some(key) = &written.key_file {
            return Err(self.wrong(key.span(), "key_file makes sense on tcp only"));
        }
        if shm && let Some(tls) = &written.tls {
            return Err(self.wrong(tls.span(), "tls makes sense on tcp only"));
        }
        if !shm && let Some(directory) = &written.directory {
            return Err(self.wrong(directory.span(), "directory makes sense on shm only"));
        }
        let told = of_tcp.chain(compute.clone().map(|node| (&node.client, &node.client_bind)));
        for (address, bind) in told.clone() {
            match (address, bind) {
                (None, Some(bind)) => {
                    let why = "a listening address needs the address that other nodes are told";
                    return Err(self.wrong(bind.span(), why));
                }
                (_, Some(bind)) if bind.as_ref().port() == 0 => {
                    return Err(self.wrong(bind.span(), "an address needs a port"));
                }
                (Some(address), _) if address.as_ref().is_unspecified() => {
                    let why = format!(
                        "nobody can connect to {0}: write the host's name or number here, and {0} \
                         to bind, client_bind or authority_bind",
                        address.as_ref()
                    );
                    return Err(self.wrong(address.span(), &why));
                }
                _ => {}
            }
        }
        let lenders = written.memory_node.iter().map(Spanned::as_ref);
        let lenders = lenders.map(|node| node.metrics.as_ref());
        let metrics = compute.map(|node| node.metrics.as_ref()).chain(lenders);
        let mut seen = Vec::new();
        for address in told.map(|(address, _)| address.as_ref()).chain(metrics).flatten() {
            if address.as_ref().port() == 0 {
                return Err(self.wrong(address.span(), "an address needs a port"));
            }
            if seen.contains(&address.as_ref()) {
                let why = format!("{} is named twice", address.as_ref());
                return Err(self.wrong(address.span(), &why));
            }
            seen.push(address.as_ref());
        }
        Ok(())
    }
}
