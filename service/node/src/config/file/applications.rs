//! Rights and limits of applications in a cluster file: table `[clients]`.

use lotus_server::Limits;
use serde::Deserialize;
use toml::Spanned;

use super::{FileError, Reader, Settings, Written};

/// Default divisor of a coordinator's coroutines: the quotient is for interactive transactions and
/// scans.
const INTERACTIVE_PART: u64 = 4;
/// Coroutines of a coordinator that are not for interactive transactions: at least one for calls,
/// and one for the engine's own work.
const OTHER_COROUTINES: u64 = 2;
/// Maximum setting of a compute node's connected clients.
const MOST_CONNECTIONS: u64 = 1 << 20;

/// Rights and limits of applications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applications {
    /// Whether applications may create tables.
    pub create_tables: bool,
    /// Whether applications may drop tables, except the tables of the file.
    pub drop_tables: bool,
    /// Maximum of open interactive transactions and scans on each coordinator. Calls get the other
    /// coroutines except one.
    pub interactive: usize,
    /// Maximum of connected clients at each compute node.
    pub connections: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenClients {
    create_tables: Option<Spanned<bool>>,
    drop_tables: Option<Spanned<bool>>,
    interactive: Option<Spanned<u64>>,
    connections: Option<Spanned<u64>>,
}

impl Reader<'_> {
    /// Reads table `[clients]`. Settings that need client addresses are refused in a cluster
    /// without client addresses.
    pub(super) fn applications(
        &self,
        written: &Written,
        settings: &Settings,
    ) -> Result<Applications, FileError> {
        let unwritten = WrittenClients::default();
        let clients = written.clients.as_ref().unwrap_or(&unwritten);
        let serves = written.compute_node.iter().any(|node| node.as_ref().client.is_some());
        let right = |right: &Option<Spanned<bool>>| match right {
            Some(given) if *given.as_ref() && !serves => {
                let why = "clients create and drop tables at compute nodes, and no compute_node \
                           has a client address";
                Err(self.wrong(given.span(), why))
            }
            right => Ok(right.as_ref().is_some_and(|given| *given.as_ref())),
        };
        let most = 1..=MOST_CONNECTIONS;
        let connections = Limits::default().connections as u64;
        let connections = self.number(&clients.connections, connections, most, "connections")?;
        let coroutines = settings.coroutines as u64;
        // Without client addresses fewer coroutines are allowed, and no division is needed.
        let most = coroutines.saturating_sub(OTHER_COROUTINES).max(1);
        let usual = (coroutines / INTERACTIVE_PART).clamp(1, most);
        let interactive = self.number(&clients.interactive, usual, 1..=most, "interactive")?;
        if let (Some(given), false) = (&clients.interactive, serves) {
            let why = "interactive transactions run at compute nodes, and no compute_node has a \
                       client address";
            return Err(self.wrong(given.span(), why));
        }
        if let (Some(given), false) = (&clients.connections, serves) {
            let why = "clients connect to compute nodes, and no compute_node has a client address";
            return Err(self.wrong(given.span(), why));
        }
        Ok(Applications {
            connections: connections as usize,
            create_tables: right(&clients.create_tables)?,
            drop_tables: right(&clients.drop_tables)?,
            interactive: interactive as usize,
        })
    }
}
