//! The first connection of a client: to whichever of its servers answers first.
//!
//! # What it is
//! Servers are tried in their order. The next one has its turn when one has failed, or when none
//! has answered for [`HEAD_START`]: a server that stands still, or a host that has lost power,
//! refuses nothing. The first connection counts; others that were made meanwhile are closed.
//!
//! # What it is not
//! The way to a server that is known already ([`crate::nodes`]).

use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_protocol::messages::Directory;
use rand::Rng;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::ConnectError;
use crate::retry;

/// Time after which the next server is tried beside those that have not answered.
const HEAD_START: Duration = Duration::from_millis(250);

/// A connection that was made. It is closed unless it is taken.
struct Made(Option<(Arc<Connection>, Directory)>);

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((connection, _)) = &self.0 {
            connection.close();
        }
    }
}

/// Servers that could not be reached.
struct Unreached {
    last: ConnectError,
    /// Whether one of them is there, and had no room.
    crowded: bool,
}

/// Connects to the first server that answers. Where servers are there and have no room for a
/// newcomer at the moment, all are tried again for [`Config::timeout`].
///
/// # Errors
/// The error of the last server that has failed.
pub(crate) async fn reach(
    config: &Config,
    env: &Env,
) -> Result<(Arc<Connection>, Directory), ConnectError> {
    let deadline = env.now().after(config.timeout);
    let mut rng = env.rng(0);
    let mut pauses = 0;
    loop {
        let Unreached { last, crowded } = match try_all(config, env).await {
            Ok(made) => return Ok(made),
            Err(unreached) => unreached,
        };
        let pause = retry::pause(&mut pauses, |below| rng.random_range(0..below));
        if !crowded || deadline.since(env.now()) <= pause {
            return Err(last);
        }
        tokio::time::sleep(pause).await;
    }
}

/// Tries each server once.
async fn try_all(config: &Config, env: &Env) -> Result<(Arc<Connection>, Directory), Unreached> {
    let mut unreached = Unreached { last: ConnectError::NoAddress, crowded: false };
    let (mut servers, mut tries) = (config.servers.iter(), JoinSet::new());
    loop {
        if let Some(address) = servers.next() {
            let (address, config, env) = (address.clone(), config.clone(), env.clone());
            tries.spawn(async move {
                let opened = Connection::open(&address, &config, &env).await;
                opened.map(|made| Made(Some(made)))
            });
        }
        let head_start = if servers.len() > 0 { HEAD_START } else { Duration::MAX };
        match tokio::time::timeout(head_start, tries.join_next()).await {
            Ok(Some(Ok(Ok(mut made)))) => {
                if let Some(made) = made.0.take() {
                    return Ok(made);
                }
            }
            Ok(Some(Ok(Err(error)))) => {
                unreached.crowded |= error.is_for_a_crowd();
                unreached.last = error;
            }
            // A try that has panicked has its message on the standard error, and is over.
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) => return Err(unreached),
        }
    }
}
