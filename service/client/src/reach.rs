//! The first connection of a client: to the first configured server that answers.
//!
//! # What it is
//! Servers are tried in the configured order. The next server is tried when a server has failed, or
//! when no server has answered for [`HEAD_START`]: a stalled server, or a host that has lost power,
//! refuses nothing. The first connection counts; other connections made meanwhile are closed.
//!
//! # What it is not
//! Reconnection to a known server ([`crate::nodes`]).

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

/// Time after which the next server is tried beside the servers that have not answered.
const HEAD_START: Duration = Duration::from_millis(250);

/// A new connection, closed when dropped unless it is taken.
struct NewConnection(Option<(Arc<Connection>, Directory)>);

impl Drop for NewConnection {
    fn drop(&mut self) {
        if let Some((connection, _)) = &self.0 {
            connection.close();
        }
    }
}

/// A try to connect; an error comes with the server's address.
type Try = Result<NewConnection, (String, ConnectError)>;

/// Connects to the first server that answers. A server that is running but has no room for a
/// newcomer at the moment is tried again for [`Config::timeout`], independently of the other
/// servers.
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
    let mut last = ConnectError::NoAddress;
    let (mut servers, mut tries) = (config.servers.iter(), JoinSet::new());
    loop {
        if let Some(address) = servers.next() {
            tries.spawn(try_after(Duration::ZERO, address.clone(), config.clone(), env.clone()));
        }
        let head_start = if servers.len() > 0 { HEAD_START } else { Duration::MAX };
        match tokio::time::timeout(head_start, tries.join_next()).await {
            Ok(Some(Ok(Ok(mut made)))) => {
                if let Some(made) = made.0.take() {
                    return Ok(made);
                }
            }
            Ok(Some(Ok(Err((address, error))))) => {
                let pause = retry::pause(&mut pauses, |below| rng.random_range(0..below));
                if error.is_for_a_crowd() && pause < deadline.since(env.now()) {
                    tries.spawn(try_after(pause, address, config.clone(), env.clone()));
                }
                last = error;
            }
            // A try that has panicked has printed its message to standard error, and is over.
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) => return Err(last),
        }
    }
}

/// Tries a server once, after a pause.
async fn try_after(pause: Duration, address: String, config: Config, env: Env) -> Try {
    tokio::time::sleep(pause).await;
    match Connection::open(&address, &config, &env).await {
        Ok(made) => Ok(NewConnection(Some(made))),
        Err(error) => Err((address, error)),
    }
}
