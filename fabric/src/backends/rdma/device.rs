//! Set-up: chooses a device, a port, an address, and parameters within the device's limits.

use std::io;
use std::sync::Arc;

use super::SetupError;
use super::config::Config;
use super::ffi::{Context, Gid, Limits, Port, ProtectionDomain, Route, device_names};

/// Completions that a queue must hold besides the verbs' completions.
const SPARE_COMPLETIONS: u32 = 64;
/// Number of a port's addresses to examine.
const GIDS: i32 = 256;

/// A usable port of a device.
pub(super) struct Device {
    pub name: String,
    pub context: Arc<Context>,
    pub domain: Arc<ProtectionDomain>,
    pub limits: Limits,
    pub port: u8,
    pub gid_index: u8,
    pub gid: Gid,
    pub lid: u16,
    /// Whether packets carry global addresses, which Ethernet requires.
    pub global: bool,
    /// The library's code.
    pub mtu: u8,
}

/// Returns the names of the devices with an active first port.
pub(super) fn active() -> Result<Vec<String>, SetupError> {
    let names = names()?;
    let active = |name: &&String| {
        let context = Context::open(name).ok().flatten();
        context.is_some_and(|context| context.port(1).is_ok_and(|port| port.active))
    };
    let found: Vec<_> = names.iter().filter(active).cloned().collect();
    if found.is_empty() { Err(SetupError::NoActivePort(names)) } else { Ok(found) }
}

fn names() -> Result<Vec<String>, SetupError> {
    // A kernel without the verbs drivers returns an error instead of a list.
    let names = device_names().unwrap_or_default();
    if names.is_empty() { Err(SetupError::NoDevice) } else { Ok(names) }
}

impl Device {
    /// Opens a device and checks the device's suitability.
    pub fn open(name: Option<&str>, port: u8, config: &Config) -> Result<Self, SetupError> {
        let known = names()?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => active()?.swap_remove(0),
        };
        let failed = |what| {
            let device = name.clone();
            move |source: io::Error| SetupError::Verbs { what, device, source }
        };
        let context = Context::open(&name).map_err(failed("open"))?;
        let Some(context) = context.map(Arc::new) else {
            return Err(SetupError::UnknownDevice { name, known });
        };
        let limits = context.limits().map_err(failed("query"))?;
        if !limits.atomics {
            let lack = "has no atomic operations";
            return Err(SetupError::Incapable { device: name, lack });
        }
        let unknown = |_| SetupError::UnknownPort { device: name.clone(), port };
        let state = context.port(port).map_err(unknown)?;
        if !state.active {
            return Err(SetupError::PortDown { device: name, port });
        }
        let (gid_index, gid) = choose_gid(&context, &name, port, &state, config.gid_index)?;
        let domain = ProtectionDomain::new(&context).map_err(failed("allocate memory on"))?;
        Ok(Self {
            domain: Arc::new(domain),
            context,
            limits,
            port,
            gid_index,
            gid,
            lid: state.lid,
            global: state.ethernet || config.gid_index.is_some(),
            mtu: config.mtu.map_or(state.mtu, |bytes| mtu_code(bytes).min(state.mtu)),
            name,
        })
    }

    pub fn route_to(&self, gid: Gid, lid: u16) -> Route {
        Route { port: self.port, gid_index: self.gid_index, gid, lid, global: self.global }
    }

    /// Returns the send queue depth for a lane with `connections` connections that share a
    /// completion queue: in the worst case every verb reports.
    pub fn send_queue(&self, config: &Config, connections: usize) -> u32 {
        let room = self.limits.completions.saturating_sub(config.messages + SPARE_COMPLETIONS);
        let share = room / connections.max(1) as u32;
        config.send_queue.min(self.limits.send_queue).min(share).max(1)
    }

    /// Returns the capacity of the lane's completion queue.
    pub fn completions(&self, config: &Config, connections: usize) -> u32 {
        let verbs = self.send_queue(config, connections) * connections as u32;
        verbs + config.messages + SPARE_COMPLETIONS
    }

    pub fn error(&self, what: &'static str, source: io::Error) -> SetupError {
        SetupError::Verbs { what, device: self.name.clone(), source }
    }
}

/// Returns the wanted entry of the address table, or the best entry.
fn choose_gid(
    context: &Context,
    device: &str,
    port: u8,
    state: &Port,
    wanted: Option<u8>,
) -> Result<(u8, Gid), SetupError> {
    let entries: Vec<_> = (0..state.gids.min(GIDS) as u32)
        .map(|index| index as u8)
        .filter_map(|index| Some((index, context.gid(port, index).ok()?)))
        .filter(|(_, (gid, _))| *gid != Gid::default())
        .collect();
    let rank = |(_, (gid, version_2)): &(u8, (Gid, bool))| (*version_2, is_ipv4(gid));
    let chosen = match wanted {
        Some(wanted) => entries.iter().find(|(index, _)| *index == wanted),
        // Reversed to take the first of equal entries: `max_by_key` takes the last.
        None => entries.iter().rev().max_by_key(|entry| rank(entry)),
    };
    chosen.map(|(index, (gid, _))| (*index, *gid)).ok_or_else(|| SetupError::GidIndex {
        device: device.to_owned(),
        port,
        index: wanted.unwrap_or(0),
        filled: entries.iter().map(|(index, _)| index.to_string()).collect(),
    })
}

/// Whether the address is an IPv4 address, in RoCE notation.
fn is_ipv4(gid: &Gid) -> bool {
    gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF])
}

/// Returns the library's code for a packet size.
fn mtu_code(bytes: u16) -> u8 {
    (bytes.trailing_zeros() as u8).saturating_sub(7)
}

/// Returns the bytes of a packet, from the library's code.
pub(super) fn mtu_bytes(code: u8) -> usize {
    128 << code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_have_the_codes_of_the_library() {
        for (bytes, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
            assert_eq!(mtu_code(bytes), code);
            assert_eq!(mtu_bytes(code), usize::from(bytes));
        }
    }
}
