//! A host's state and answers to requests.
//!
//! The service gives out memory and the right to use it: regions, mailboxes, rings. Processes use
//! the memory without the service. The service records the holder of each resource: memory that a
//! process may still access can be given to another process, or counts as fenced, only after the
//! holder said goodbye or was seen to have ended. A process that merely hung up may still have
//! everything mapped.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::gates::{Board, ForeignGates};
use super::mailbox::{Mailbox, RINGS};
use super::memfd;
use super::process::Process;
use super::wire::{HostRefusal, HostRequest, Reply, VERSION};
use crate::backends::copies::Round;
use crate::contract::counters::LentResources;
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::contract::region::Rights;
use crate::run::env::Env;

/// Time for a lane of an expelled node to leave a round of copies, which lasts microseconds, before
/// its process is killed.
const PATIENCE_WITH_LANES: Duration = Duration::from_millis(250);
/// Time for a killed process to end.
const PATIENCE_WITH_THE_KILLED: Duration = Duration::from_secs(10);

/// Identifies a process that is or was attached.
pub(super) type PeerId = u64;

/// A reply with its files.
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) files: Vec<Arc<OwnedFd>>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, files: Vec::new() }
    }
}

impl From<HostRefusal> for Answer {
    fn from(refusal: HostRefusal) -> Self {
        Reply::Refused(refusal).into()
    }
}

/// Record of the memory given out, for reports from other threads.
#[derive(Default)]
pub(super) struct Ledger {
    files: Mutex<Vec<(Arc<OwnedFd>, u64)>>,
    attached: AtomicUsize,
}

impl Ledger {
    pub(super) fn lent(&self) -> LentResources {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Cannot fail for an open file.
        let blocks = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks);
        let used = files.iter().map(|(file, _)| blocks(file) as u64 * BLOCK_BYTES).sum();
        LentResources {
            registered_bytes: files.iter().map(|(_, bytes)| bytes).sum(),
            used_bytes: Some(used),
            connections: self.attached.load(Ordering::Relaxed),
        }
    }
}

/// Unit of `st_blocks`, whatever the device's block size.
const BLOCK_BYTES: u64 = 512;

/// State of a host.
pub(super) struct Service {
    node: NodeId,
    nodes: u16,
    env: Env,
    board: Board,
    ledger: Arc<Ledger>,
    regions: BTreeMap<RegionId, Stored>,
    lanes: BTreeMap<LaneId, OpenLane>,
    attached: BTreeMap<PeerId, Attached>,
}

struct Stored {
    file: Arc<OwnedFd>,
    bytes: u64,
    rights: Rights,
}

struct OpenLane {
    owner: PeerId,
    mailbox: Mailbox,
    file: Arc<OwnedFd>,
    /// Rung for messages while the lane's owner sleeps.
    bell: Arc<OwnedFd>,
    /// Sender of each ring.
    rings: Vec<Option<(PeerId, Endpoint)>>,
}

/// A process that may have this node's memory mapped.
struct Attached {
    process: Process,
    gates: ForeignGates,
}

impl Service {
    pub(super) fn new(node: NodeId, nodes: u16, env: Env) -> io::Result<Self> {
        Ok(Self {
            node,
            nodes,
            env,
            board: Board::new(nodes)?,
            ledger: Arc::default(),
            regions: BTreeMap::new(),
            lanes: BTreeMap::new(),
            attached: BTreeMap::new(),
        })
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Answers the first packet of a connection, and attaches an admitted process.
    pub(super) fn greet(
        &mut self,
        peer: PeerId,
        process: Process,
        request: HostRequest,
        files: Vec<OwnedFd>,
    ) -> Option<Answer> {
        let HostRequest::Hello { version, nodes, node } = request else { return None };
        if version != VERSION {
            return Some(HostRefusal::Version { theirs: VERSION }.into());
        }
        if (node, nodes) != (self.node, self.nodes) {
            return Some(HostRefusal::OtherCluster.into());
        }
        let [gates] = <[OwnedFd; 1]>::try_from(files).ok()?;
        let gates = match ForeignGates::map(&gates) {
            Ok(gates) => gates,
            Err(error) => return Some(system(&error).into()),
        };
        self.attached.insert(peer, Attached { process, gates });
        self.ledger.attached.store(self.attached.len(), Ordering::Relaxed);
        let files = vec![Arc::clone(&self.board.file)];
        Some(Answer { reply: Reply::Welcome, files })
    }

    /// Answers an attached process; `None` ends the connection.
    pub(super) fn answer(
        &mut self,
        peer: PeerId,
        request: HostRequest,
        files: Vec<OwnedFd>,
    ) -> Option<Answer> {
        Some(match request {
            HostRequest::Hello { .. } => return None,
            HostRequest::Goodbye => {
                self.hang_up(peer);
                self.forget(peer);
                return None;
            }
            HostRequest::Register { region, bytes, rights } => {
                self.register(region, bytes, rights).unwrap_or_else(Answer::from)
            }
            HostRequest::NextRegion { from } => self.next_region(from),
            HostRequest::OpenLane { lane } => {
                let [bell] = <[OwnedFd; 1]>::try_from(files).ok()?;
                self.open_lane(peer, lane, bell).unwrap_or_else(Answer::from)
            }
            HostRequest::FindLane { lane, from } => {
                self.find_lane(peer, lane, from).unwrap_or_else(Answer::from)
            }
            HostRequest::CloseLane { at } => {
                self.close_lanes(|owner, lane| owner == peer && lane == at);
                self.free_rings(|sender, from| sender == peer && from == at);
                Reply::Done.into()
            }
            HostRequest::Fence { expelled, epoch } => {
                self.fence(expelled, epoch).map_or_else(Answer::from, |()| Reply::Done.into())
            }
        })
    }

    /// Handles a lost connection: closes the process's lanes. The process may still have this
    /// node's memory mapped.
    pub(super) fn hang_up(&mut self, peer: PeerId) {
        self.close_lanes(|owner, _| owner == peer);
    }

    /// Removes a process after the process has unmapped this node's memory.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.free_rings(|sender, _| sender == peer);
        self.attached.remove(&peer);
        self.ledger.attached.store(self.attached.len(), Ordering::Relaxed);
    }

    /// Returns the process of an attachment; `None` if the process was removed.
    pub(super) fn process(&self, peer: PeerId) -> Option<&Process> {
        self.attached.get(&peer).map(|attached| &attached.process)
    }

    fn register(
        &mut self,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<Answer, HostRefusal> {
        if self.regions.contains_key(&region) {
            return Err(HostRefusal::RegionTaken);
        }
        let writable = memfd::large(bytes as usize).map_err(|error| system(&error))?;
        let file = if rights.write || rights.atomic {
            writable
        } else {
            memfd::read_only(&writable).map_err(|error| system(&error))?
        };
        let file = Arc::new(file);
        let mut files = self.ledger.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((Arc::clone(&file), bytes));
        drop(files);
        self.regions.insert(region, Stored { file, bytes, rights });
        self.board.set_region_count(self.regions.len());
        Ok(self.next_region(region.0.into()))
    }

    fn next_region(&self, from: u16) -> Answer {
        let Ok(from) = u8::try_from(from) else { return Reply::NoMoreRegions.into() };
        match self.regions.range(RegionId(from)..).next() {
            None => Reply::NoMoreRegions.into(),
            Some((region, Stored { file, bytes, rights })) => Answer {
                reply: Reply::Region { region: *region, bytes: *bytes, rights: *rights },
                files: vec![Arc::clone(file)],
            },
        }
    }

    fn open_lane(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        bell: OwnedFd,
    ) -> Result<Answer, HostRefusal> {
        if self.lanes.contains_key(&lane) {
            return Err(HostRefusal::LaneTaken);
        }
        let file = Mailbox::file().map_err(|error| system(&error))?;
        let mailbox = Mailbox::map(&file).map_err(|error| system(&error))?;
        let file = Arc::new(file);
        let files = vec![Arc::clone(&file)];
        let (bell, rings) = (Arc::new(bell), Vec::new());
        self.lanes.insert(lane, OpenLane { owner: peer, mailbox, file, bell, rings });
        Ok(Answer { reply: Reply::Lane, files })
    }

    fn find_lane(
        &mut self,
        peer: PeerId,
        lane: LaneId,
        from: Endpoint,
    ) -> Result<Answer, HostRefusal> {
        let lane = self.lanes.get_mut(&lane).ok_or(HostRefusal::NoLane)?;
        let place = |wanted: Option<(PeerId, Endpoint)>| {
            lane.rings.iter().position(|sender| *sender == wanted)
        };
        let ring = place(Some((peer, from))).or_else(|| place(None)).unwrap_or(lane.rings.len());
        if ring == RINGS {
            return Err(HostRefusal::NoRoom);
        }
        lane.rings.resize(lane.rings.len().max(ring + 1), None);
        lane.rings[ring] = Some((peer, from));
        lane.mailbox.set_senders(lane.rings.len());
        let files = vec![Arc::clone(&lane.file), Arc::clone(&lane.bell)];
        Ok(Answer { reply: Reply::Ring { index: ring as u16 }, files })
    }

    fn close_lanes(&mut self, is_over: impl Fn(PeerId, Endpoint) -> bool) {
        let node = self.node;
        self.lanes.retain(|lane, open| {
            let over = is_over(open.owner, Endpoint { node, lane: *lane });
            if over {
                open.mailbox.close();
            }
            !over
        });
    }

    fn free_rings(&mut self, is_over: impl Fn(PeerId, Endpoint) -> bool) {
        for ring in self.lanes.values_mut().flat_map(|lane| &mut lane.rings) {
            ring.take_if(|(sender, from)| is_over(*sender, *from));
        }
    }

    /// Raises the fence and waits until every lane of the expelled node was seen outside a round of
    /// copies, or the lane's process was seen to have ended: then no verb of an earlier epoch takes
    /// effect any more (I30).
    fn fence(&self, expelled: NodeId, epoch: Epoch) -> Result<(), HostRefusal> {
        if expelled.0 >= self.nodes {
            return Err(HostRefusal::OtherCluster);
        }
        // Before looking at the gates: a lane that enters a round later sees the new epoch.
        self.board.fence(expelled, epoch);
        for Attached { process, gates, .. } in self.attached.values() {
            for gate in gates.of(expelled) {
                let deadline = self.env.now().after(PATIENCE_WITH_LANES);
                // This process cannot kill itself; its own lanes are not stopped while it runs.
                let give_up =
                    || process.has_ended() || self.env.now() >= deadline && !process.is_this();
                if Round::wait(|| gates.round(gate), give_up) {
                    continue;
                }
                if !process.kill(PATIENCE_WITH_THE_KILLED) {
                    return Err(HostRefusal::NotFenced);
                }
                break;
            }
        }
        Ok(())
    }
}

fn system(error: &io::Error) -> HostRefusal {
    HostRefusal::System { errno: error.raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::shm::bell;
    use crate::backends::shm::gates::Gates;

    const LANE: LaneId = LaneId(7);
    const NODES: u16 = 9;

    /// A service with processes 1 to 3 attached; all of them are this process.
    fn service() -> Service {
        let env = Env::real(0);
        let mut service = Service::new(NodeId(0), NODES, env).expect("a board");
        for peer in 1..=3 {
            let credentials = rustix::net::UCred {
                pid: rustix::process::getpid(),
                uid: rustix::process::geteuid(),
                gid: rustix::process::getegid(),
            };
            let process = Process::of(credentials).expect("we live");
            let gates = Gates::new().expect("gates").file().try_clone_to_owned();
            let files = vec![gates.expect("a descriptor")];
            let hello = HostRequest::Hello { version: VERSION, nodes: NODES, node: NodeId(0) };
            let answer = service.greet(peer, process, hello, files);
            assert!(answer.is_some_and(|answer| answer.reply == Reply::Welcome));
        }
        service
    }

    fn reply(service: &mut Service, peer: PeerId, request: HostRequest) -> Reply {
        let opens = matches!(request, HostRequest::OpenLane { .. });
        let files = opens.then(|| bell::new().expect("a bell")).into_iter().collect();
        service.answer(peer, request, files).expect("the connection goes on").reply
    }

    fn sender(lane: u16) -> Endpoint {
        Endpoint { node: NodeId(1), lane: LaneId(lane) }
    }

    fn find(service: &mut Service, peer: PeerId, lane: u16) -> Reply {
        reply(service, peer, HostRequest::FindLane { lane: LANE, from: sender(lane) })
    }

    #[test]
    fn every_sender_has_a_ring_of_its_own_and_keeps_it() {
        let mut service = service();
        assert_eq!(find(&mut service, 1, 0), Reply::Refused(HostRefusal::NoLane));
        assert_eq!(reply(&mut service, 1, HostRequest::OpenLane { lane: LANE }), Reply::Lane);
        for lane in 0..RINGS as u16 {
            assert_eq!(find(&mut service, 1, lane), Reply::Ring { index: lane });
        }
        assert_eq!(find(&mut service, 1, 5), Reply::Ring { index: 5 }, "asked again");
        let no_room = Reply::Refused(HostRefusal::NoRoom);
        assert_eq!(find(&mut service, 2, 5), no_room, "the same name in another process");
        let closed = HostRequest::CloseLane { at: sender(5) };
        assert_eq!(reply(&mut service, 2, closed), Reply::Done);
        assert_eq!(find(&mut service, 2, 5), no_room, "it was not its own to close");
        assert_eq!(reply(&mut service, 1, closed), Reply::Done);
        assert_eq!(find(&mut service, 2, 5), Reply::Ring { index: 5 });
    }

    #[test]
    fn who_hangs_up_keeps_its_rings_until_it_ends_and_loses_its_lanes_at_once() {
        let mut service = service();
        assert_eq!(reply(&mut service, 1, HostRequest::OpenLane { lane: LANE }), Reply::Lane);
        let taken = Reply::Refused(HostRefusal::LaneTaken);
        assert_eq!(reply(&mut service, 2, HostRequest::OpenLane { lane: LANE }), taken);
        assert_eq!(find(&mut service, 2, 0), Reply::Ring { index: 0 });
        service.hang_up(2);
        assert_eq!(find(&mut service, 3, 0), Reply::Ring { index: 1 }, "it may still write there");
        service.forget(2);
        assert_eq!(find(&mut service, 3, 1), Reply::Ring { index: 0 });
        service.hang_up(1);
        assert_eq!(find(&mut service, 3, 0), Reply::Refused(HostRefusal::NoLane));
        assert_eq!(reply(&mut service, 3, HostRequest::OpenLane { lane: LANE }), Reply::Lane);
    }

    #[test]
    fn whoever_says_goodbye_is_forgotten() {
        let mut service = service();
        assert!(service.process(1).is_some());
        assert!(service.answer(1, HostRequest::Goodbye, Vec::new()).is_none());
        assert!(service.process(1).is_none());
    }
}
