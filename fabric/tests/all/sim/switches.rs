//! Switches that are nodes: what a packet through one takes, and what happens to it on the way.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{Endpoint, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::sim::{
    Config, Fault, MemoryFate, Profile, Rates, Resource, SimError, Stop, World,
};

use super::{CLIENT, OTHER, Running, at};

const SWITCH: NodeId = NodeId(0);
/// Time that machines wait for what is under way.
const LONG: Duration = Duration::from_micros(500);

/// The testbed without jitter: 800 ns from node to node, and as long through the switch.
fn profile() -> Profile {
    let text = include_str!("../../../profiles/tofino-cx5.toml");
    let text = text.replace("jitter_ns = { value = 100,", "jitter_ns = { value = 0,");
    Profile::parse("tofino-cx5", text.as_bytes()).expect("well-formed")
}

fn config(seed: u64) -> Config {
    Config { switches: vec![SWITCH], ..Config::new(seed, 3, profile()) }
}

/// Starts a core of `node` that sends every packet on to the machine that its first byte names,
/// and to the one that its second byte names, if there is one.
fn start_forwarding(world: &mut World, node: NodeId) {
    Running::default().start(world, at(node, 0), |lane| async move {
        let came = Rc::new(RefCell::new(Vec::<Vec<u8>>::new()));
        let (into, here) = (Rc::clone(&came), lane.executor().clone());
        let task = here.current();
        let wakes = here.clone();
        lane.on_message(Box::new(move |_, bytes| {
            into.borrow_mut().push(bytes.to_vec());
            wakes.wake(task);
        }));
        loop {
            for packet in came.take() {
                for node in packet.iter().take(2) {
                    lane.send(at(NodeId(u16::from(*node)), 0), &packet);
                }
            }
            here.suspend().await;
        }
    });
}

/// Times at which packets came, from the start of the world, in nanoseconds.
type Arrivals = Rc<RefCell<Vec<u64>>>;

/// Starts a core of `node` that notes arrivals.
fn start_noting(world: &mut World, node: NodeId) -> Arrivals {
    let arrivals = Arrivals::default();
    let (noted, fabric) = (Rc::clone(&arrivals), world.fabric().clone());
    Running::default().start(world, at(node, 0), |lane| {
        lane.on_message(Box::new(move |_, _| {
            noted.borrow_mut().push(fabric.now().as_nanos() as u64);
        }));
        std::future::pending()
    });
    arrivals
}

fn start_sending(world: &mut World, from: Endpoint, to: Endpoint, packets: &[&'static [u8]]) {
    let packets = packets.to_vec();
    Running::default().start(world, from, move |lane: Lane| async move {
        packets.iter().for_each(|packet| lane.send(to, packet));
        std::future::pending::<()>().await;
    });
}

/// When the packets of one sender come to [`OTHER`] through [`SWITCH`].
fn through(config: Config, packets: &[&'static [u8]]) -> (Vec<u64>, World) {
    let mut world = World::new(config).expect("a valid configuration");
    start_forwarding(&mut world, SWITCH);
    let arrivals = start_noting(&mut world, OTHER);
    start_sending(&mut world, at(CLIENT, 0), at(SWITCH, 0), packets);
    world.start_measuring();
    assert_eq!(world.run_for(LONG), Ok(Stop::Done));
    let arrivals = arrivals.take();
    (arrivals, world)
}

#[test]
fn a_packet_through_a_switch_takes_one_path_and_the_pipeline() {
    let mut world = World::new(config(1)).expect("a valid configuration");
    let direct = start_noting(&mut world, OTHER);
    start_sending(&mut world, at(CLIENT, 0), at(OTHER, 0), &[b"x"]);
    assert_eq!(world.run_for(LONG), Ok(Stop::Done));
    let direct = direct.borrow()[0];
    let (switched, _) = through(config(1), &[&[2]]);
    let pipeline = profile().switch_pipeline().expect("it has one").as_nanos() as u64;
    assert_eq!(switched, [direct + pipeline]);
    // Through a machine it is two paths, and what the machine's core and NIC take.
    let (relayed, _) = through(Config { switches: Vec::new(), ..config(1) }, &[&[2]]);
    assert!(relayed[0] > direct + 800 + 100 + 150, "{relayed:?}, not {direct} ns");
}

#[test]
fn a_switch_is_not_busy_with_packets() {
    let packets: Vec<&[u8]> = vec![&[2, 2]; 1000];
    let (arrivals, world) = through(config(1), &packets);
    assert_eq!(arrivals.len(), 2000);
    let report = world.report();
    let core = report.busy(Resource::Core { node: SWITCH, index: 0 });
    assert!(core < 0.01, "{core}");
    let node = report.nodes().next().expect("there is a switch");
    assert_eq!((node.inbound, node.receiving, node.sending), (0.0, 0.0, 0.0));
}

#[test]
fn packets_through_a_switch_are_lost_and_doubled_as_any_others() {
    let packets: Vec<&[u8]> = vec![&[2]; 400];
    let rates = Rates { message_loss: 0.2, ..Rates::default() };
    let (arrivals, world) = through(Config { rates, ..config(3) }, &packets);
    // Both ways lose a fifth.
    assert!((200..310).contains(&arrivals.len()), "{}", arrivals.len());
    assert_eq!(world.faults().messages_lost, 400 - arrivals.len() as u64);
    let rates = Rates {
        message_duplication: 0.5,
        message_delay: 0.5,
        message_delay_max: Duration::from_micros(20),
        ..Rates::default()
    };
    let (arrivals, world) = through(Config { rates, ..config(3) }, &packets);
    assert!(arrivals.len() > 700, "{}", arrivals.len());
    assert!(world.faults().messages_delayed > 300);
}

#[test]
fn a_switch_is_cut_off_and_crashes_as_any_other_node() {
    let mut world = World::new(config(1)).expect("a valid configuration");
    start_forwarding(&mut world, SWITCH);
    let arrivals = start_noting(&mut world, OTHER);
    let sender = Rc::new(Cell::new(None));
    let into = Rc::clone(&sender);
    Running::default().start(&mut world, at(CLIENT, 0), |lane| {
        into.set(Some(lane));
        std::future::pending()
    });
    let lane = sender.take().expect("it was started");
    let sends = |world: &mut World, expected: usize| {
        lane.send(at(SWITCH, 0), &[2]);
        while world.run_for(LONG).expect("no limit") != Stop::Done {}
        assert_eq!(arrivals.borrow().len(), expected);
    };
    sends(&mut world, 1);
    world.inject(Fault::Isolate { node: SWITCH }).expect("there is such a node");
    sends(&mut world, 1);
    world.inject(Fault::Rejoin { node: SWITCH }).expect("there is such a node");
    sends(&mut world, 2);
    world.crash(SWITCH, MemoryFate::Lost).expect("there is such a node");
    sends(&mut world, 2);
    world.restart(SWITCH).expect("there is such a node");
    start_forwarding(&mut world, SWITCH);
    sends(&mut world, 3);
}

#[test]
fn a_switch_that_is_no_node_is_refused() {
    let config = Config { switches: vec![NodeId(3)], ..config(1) };
    assert_eq!(World::new(config).err(), Some(SimError::UnknownNode(NodeId(3))));
}
