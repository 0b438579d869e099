//! A core of a server: takes in what clients ask, and answers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};

use super::name::{Answer, Asker, RequestName};
use super::placement::SharedTable;
use super::wire;
use crate::contract::Peers;
use crate::word::Claimant;

/// Time between two looks whether a node has been expelled.
const LOOK: Duration = Duration::from_millis(1);

/// Service by which servers are asked.
pub(super) const TO_SERVER: Service = Service(1);
/// Service by which clients are answered.
pub(super) const TO_CLIENT: Service = Service(2);

/// Charges the core of a server for one message of a client, where time is virtual.
pub type Toll = Box<dyn Fn()>;

/// A core of a server. It serves until it is dropped.
pub struct ServerCore {
    core: Rc<Core>,
}

struct Core {
    rpc: Rpc,
    table: SharedTable,
    peers: Rc<dyn Peers>,
    toll: Option<Toll>,
    /// Lives that the table may know requests of, and that were not settled at the last look.
    lives: RefCell<Vec<Claimant>>,
    /// Answers of one call, kept for their memory.
    said: RefCell<Vec<(RequestName, Answer)>>,
    is_over: Cell<bool>,
}

impl ServerCore {
    /// Opens a lane of a server, and serves the locks of `table` there.
    ///
    /// # Errors
    /// [`FabricError`] if the fabric refuses the lane.
    pub fn open(
        executor: &mut Executor,
        fabric: &dyn Fabric,
        at: Endpoint,
        table: SharedTable,
        peers: Rc<dyn Peers>,
        toll: Option<Toll>,
    ) -> Result<Self, FabricError> {
        let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker())?;
        let lane = Lane::new(at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        let core = Rc::new(Core {
            rpc: Rpc::new(lane),
            table,
            peers,
            toll,
            lives: RefCell::default(),
            said: RefCell::default(),
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
        if let Some(toll) = &self.toll {
            toll();
        }
        let Some((attempt, ask)) = wire::decode_ask(bytes) else { return };
        self.meet(attempt.asker.life());
        let mut said = self.said.take();
        self.table.lock().ask(attempt, ask, |to, answer| said.push((to, answer)));
        self.answer(&mut said);
        self.said.replace(said);
    }

    /// Notes a life of a node. What comes late of one that is settled counts as of an expelled one.
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
        let mut said = Vec::new();
        self.table.lock().expel(life, |to, answer| said.push((to, answer)));
        self.answer(&mut said);
    }

    fn answer(&self, said: &mut Vec<(RequestName, Answer)>) {
        for (to, answer) in said.drain(..) {
            tell(&self.rpc, &*self.peers, to, answer);
        }
    }
}

/// Sends an answer to the lane that it is for.
pub(super) fn tell(rpc: &Rpc, peers: &dyn Peers, to: RequestName, answer: Answer) {
    if let Some(lane) = lane_of(peers, to.asker) {
        // It is short enough.
        let _ = rpc.tell(lane, TO_CLIENT, &wire::encode_answer(to, answer));
    }
}

/// The lane of an asker; `None` if its node is unknown.
fn lane_of(peers: &dyn Peers, asker: Asker) -> Option<Endpoint> {
    let node = peers.node(asker.life().node())?;
    Some(Endpoint { node, lane: LaneId(asker.lane()) })
}

/// Frees what nodes have left that were expelled.
async fn look_for_the_expelled(core: Rc<Core>) {
    while !core.is_over.get() {
        core.executor().sleep(LOOK).await;
        let is_settled = |life: &Claimant| core.peers.is_settled(*life);
        let gone: Vec<_> = core.lives.borrow().iter().copied().filter(is_settled).collect();
        core.lives.borrow_mut().retain(|life| !gone.contains(life));
        gone.into_iter().for_each(|life| core.expel(life));
    }
}
