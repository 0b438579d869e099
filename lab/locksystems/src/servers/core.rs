//! A server core: receives clients' messages and answers them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::Peers;
use lotus_locks::word::Claimant;

use super::hot::{Buffers, FromBuffer, FromSwitch};
use super::name::{Answer, Asker, RequestName};
use super::placement::CoreRole;
use super::wire;

/// Time between two checks for expelled nodes.
const LOOK: Duration = Duration::from_millis(1);

/// Service for messages to servers.
pub(super) const TO_SERVER: Service = Service(1);
/// Service for messages between a switch and its servers about hot locks.
const HOT: Service = Service(3);
/// Service for answers to clients.
pub(super) const TO_CLIENT: Service = Service(2);

/// Charges a server core for a client message, where time is virtual.
pub type CpuCharge = Box<dyn Fn()>;

/// A message of a core.
enum Sent {
    Switch(FromSwitch),
    Buffer(FromBuffer),
}

/// A core of a server, or a switch. Serves until dropped.
pub struct ServerCore {
    core: Rc<Core>,
}

struct Core {
    rpc: Rpc,
    role: CoreRole,
    /// Requests that the switch has no room for.
    buffers: RefCell<Buffers>,
    peers: Rc<dyn Peers>,
    cpu_charge: Option<CpuCharge>,
    /// Lives that may have requests in the table, and were not settled at the last check.
    lives: RefCell<Vec<Claimant>>,
    /// Messages of a call; kept to reuse the allocation.
    sent: RefCell<Vec<Sent>>,
    is_over: Cell<bool>,
}

impl ServerCore {
    /// Opens a lane of a server or a switch, and serves the locks.
    ///
    /// # Errors
    /// [`FabricError`] if the fabric refuses the lane.
    pub fn open(
        executor: &mut Executor,
        fabric: &dyn Fabric,
        at: Endpoint,
        role: CoreRole,
        peers: Rc<dyn Peers>,
        cpu_charge: Option<CpuCharge>,
    ) -> Result<Self, FabricError> {
        let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
        let lane = Lane::new(at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        let core = Rc::new(Core {
            rpc: Rpc::new(lane),
            role,
            buffers: RefCell::default(),
            peers,
            cpu_charge,
            lives: RefCell::default(),
            sent: RefCell::default(),
            is_over: Cell::new(false),
        });
        let listener = Rc::downgrade(&core);
        core.rpc.hear(
            TO_SERVER,
            Box::new(move |_, bytes| {
                if let Some(core) = listener.upgrade() {
                    core.receive(bytes);
                }
            }),
        );
        let listener = Rc::downgrade(&core);
        core.rpc.hear(
            HOT,
            Box::new(move |_, bytes| {
                if let Some(core) = listener.upgrade() {
                    core.hear(bytes);
                }
            }),
        );
        core.executor().spawn(look_for_the_expelled(Rc::clone(&core)));
        Ok(Self { core })
    }
}

impl Drop for ServerCore {
    fn drop(&mut self) {
        self.core.is_over.set(true);
    }
}

impl Core {
    fn executor(&self) -> &Handle {
        self.rpc.lane().executor()
    }

    fn receive(&self, bytes: &[u8]) {
        if let Some(cpu_charge) = &self.cpu_charge {
            cpu_charge();
        }
        let Some((name, ask)) = wire::decode_ask(bytes) else { return };
        self.meet(name.asker.life());
        let mut sent = self.sent.take();
        match &self.role {
            CoreRole::Table(table, _) => {
                table.lock().ask(name, ask, |to, answer| sent.push(answered(to, answer)));
            }
            CoreRole::Queues(queues, _) => {
                queues.lock().ask(name, ask, |said| sent.push(Sent::Switch(said)));
            }
        }
        self.send(&mut sent);
        self.sent.replace(sent);
    }

    /// Handles a message of the switch or a server about a hot lock.
    fn hear(&self, bytes: &[u8]) {
        let mut sent = Vec::new();
        match &self.role {
            CoreRole::Table(..) => {
                if let Some(cpu_charge) = &self.cpu_charge {
                    cpu_charge();
                }
                let send = |said| sent.push(Sent::Buffer(said));
                match wire::decode_from_switch(bytes) {
                    Some(FromSwitch::Buffer(name, ask, room)) => {
                        self.buffers.borrow_mut().buffer(name, ask, room, send);
                    }
                    Some(FromSwitch::Room(lock, room)) => {
                        self.buffers.borrow_mut().push(lock, room, send);
                    }
                    Some(FromSwitch::Answer(..) | FromSwitch::Forward(..)) | None => {}
                }
            }
            CoreRole::Queues(queues, _) => {
                if let Some(said) = wire::decode_from_buffer(bytes) {
                    queues.lock().hear(said, |said| sent.push(Sent::Switch(said)));
                }
            }
        }
        self.send(&mut sent);
    }

    /// Records a life of a node. A late message of a settled life counts as from an expelled node.
    fn meet(&self, life: Claimant) {
        if self.lives.borrow().contains(&life) {
            return;
        }
        match self.peers.is_settled(life) {
            true => self.expel(life),
            false => self.lives.borrow_mut().push(life),
        }
    }

    fn expel(&self, life: Claimant) {
        let mut sent = Vec::new();
        match &self.role {
            CoreRole::Table(table, _) => {
                table.lock().expel(life, |to, answer| sent.push(answered(to, answer)));
            }
            CoreRole::Queues(queues, _) => {
                queues.lock().expel(life, |said| sent.push(Sent::Switch(said)));
            }
        }
        self.send(&mut sent);
    }

    fn send(&self, sent: &mut Vec<Sent>) {
        for sent in sent.drain(..) {
            match sent {
                Sent::Switch(FromSwitch::Answer(to, answer)) => {
                    tell(&self.rpc, &*self.peers, to, answer);
                }
                Sent::Switch(said) => self.send_to_server(said),
                Sent::Buffer(said) => {
                    if let CoreRole::Table(_, Some(switch)) = &self.role {
                        // Every message is short enough, here and below.
                        let _ = self.rpc.tell(*switch, HOT, &wire::encode_from_buffer(said));
                    }
                }
            }
        }
    }

    /// Sends a switch's message to the server of its lock.
    fn send_to_server(&self, said: FromSwitch) {
        let CoreRole::Queues(_, servers) = &self.role else { return };
        let lock = match said {
            FromSwitch::Answer(name, _)
            | FromSwitch::Forward(name, _)
            | FromSwitch::Buffer(name, ..) => name.lock,
            FromSwitch::Room(lock, _) => lock,
        };
        let server = servers.core_of(lock);
        if let FromSwitch::Forward(name, ask) = said {
            let _ = self.rpc.tell(server, TO_SERVER, &wire::encode_ask(name, ask));
        } else if let Some(bytes) = wire::encode_from_switch(said) {
            let _ = self.rpc.tell(server, HOT, &bytes);
        }
    }
}

const fn answered(to: RequestName, answer: Answer) -> Sent {
    Sent::Switch(FromSwitch::Answer(to, answer))
}

/// Sends an answer to the request's lane.
pub(super) fn tell(rpc: &Rpc, peers: &dyn Peers, to: RequestName, answer: Answer) {
    if let Some(lane) = lane_of(peers, to.asker) {
        // The message is short enough.
        let _ = rpc.tell(lane, TO_CLIENT, &wire::encode_answer(to, answer));
    }
}

/// The lane of an asker; `None` for an unknown node.
fn lane_of(peers: &dyn Peers, asker: Asker) -> Option<Endpoint> {
    let node = peers.node(asker.life().node())?;
    Some(Endpoint { node, lane: LaneId(asker.lane()) })
}

/// Frees the locks and waits of expelled nodes.
async fn look_for_the_expelled(core: Rc<Core>) {
    while !core.is_over.get() {
        core.executor().sleep(LOOK).await;
        let is_settled = |life: &Claimant| core.peers.is_settled(*life);
        let gone: Vec<_> = core.lives.borrow().iter().copied().filter(is_settled).collect();
        core.lives.borrow_mut().retain(|life| !gone.contains(life));
        gone.into_iter().for_each(|life| core.expel(life));
    }
}
