//! RedLock over a fabric: server cores that act as a Redis, and their messages.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};

use super::client::{RedisLink, Replies};
use super::redis::{Command, CommandName, Sessions};
use super::wire;
use crate::servers::CpuCharge;

/// Time between two checks for expired keys that no command touches.
const LOOK: Duration = Duration::from_millis(1);
/// Service for commands to servers.
const TO_REDIS: Service = Service(1);
/// Service for replies to clients.
const TO_CLIENT: Service = Service(2);

/// The keys of a server. Clones share the keys.
#[derive(Clone, Debug, Default)]
pub struct SharedRedis(Arc<Mutex<Sessions>>);

impl SharedRedis {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of keys that were not deleted, and had not expired at the server's last check.
    pub fn used(&self) -> usize {
        self.lock().used()
    }
}

/// A server core. Carries out commands until dropped.
pub struct RedisCore {
    is_over: Rc<Cell<bool>>,
    /// Keeps the lane alive for the core's lifetime.
    _rpc: Rc<Rpc>,
}

impl RedisCore {
    /// Opens a server's lane. `cpu_charge` is charged for every command, where time is virtual.
    ///
    /// # Errors
    /// [`FabricError`] if the fabric refuses the lane.
    pub fn open(
        executor: &mut Executor,
        fabric: &dyn Fabric,
        at: Endpoint,
        redis: SharedRedis,
        cpu_charge: Option<CpuCharge>,
    ) -> Result<Self, FabricError> {
        let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
        let lane = Lane::new(at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        let rpc = Rc::new(Rpc::new(lane));
        let (server, listener) = (redis.clone(), Rc::downgrade(&rpc));
        rpc.hear(
            TO_REDIS,
            Box::new(move |from, bytes| {
                let Some(rpc) = listener.upgrade() else { return };
                if let Some(cpu_charge) = &cpu_charge {
                    cpu_charge();
                }
                let Some((name, command)) = wire::decode_command(bytes) else { return };
                let now = rpc.lane().executor().now();
                let reply = server.lock().ask(name, command, now);
                if let Some(reply) = reply {
                    // The reply is short enough.
                    let _ = rpc.tell(from, TO_CLIENT, &wire::encode_reply(name, reply));
                }
            }),
        );
        let is_over = Rc::new(Cell::new(false));
        let (timer, ends) = (executor.handle().clone(), Rc::clone(&is_over));
        executor.handle().spawn(async move {
            while !ends.get() {
                timer.sleep(LOOK).await;
                redis.lock().expire(timer.now());
            }
        });
        Ok(Self { is_over, _rpc: rpc })
    }
}

impl Drop for RedisCore {
    fn drop(&mut self) {
        self.is_over.set(true);
    }
}

/// A lane's messages to servers on a fabric.
pub struct RpcLink {
    rpc: Rpc,
    servers: Rc<[Endpoint]>,
}

impl RpcLink {
    /// Opens a link from the lane of `rpc` to these servers; replies go to `replies`.
    pub fn open(
        rpc: &Rpc,
        servers: impl Into<Rc<[Endpoint]>>,
        replies: Replies,
    ) -> Box<dyn RedisLink> {
        let servers = servers.into();
        let known = Rc::clone(&servers);
        rpc.hear(
            TO_CLIENT,
            Box::new(move |from, bytes| {
                let server = known.iter().position(|server| *server == from);
                if let Some((server, (name, reply))) = server.zip(wire::decode_reply(bytes)) {
                    replies.hear(server, name, reply);
                }
            }),
        );
        Box::new(Self { rpc: rpc.clone(), servers })
    }
}

impl RedisLink for RpcLink {
    fn servers(&self) -> usize {
        self.servers.len()
    }

    fn is_lossy(&self) -> bool {
        true
    }

    fn send(&self, server: usize, name: CommandName, command: Command) {
        // The command is short enough.
        let _ = self.rpc.tell(self.servers[server], TO_REDIS, &wire::encode_command(name, command));
    }
}
