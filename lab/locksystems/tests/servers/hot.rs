//! NetLock's switch and its server, over a network that loses, repeats and reorders what they send.

use lotus_fabric::env::{Env, SmallRng};
use lotus_locks::Mode;
use lotus_locks::word::Claimant;
use lotus_locksystems::servers::{
    Answer, Ask, Asker, Buffers, Demand, FromBuffer, FromSwitch, HotQueues, RequestName, allot,
};
use rand::Rng;

const HOT: u64 = 1;
const SLOTS: u32 = 3;
const ASKERS: u8 = 8;

const fn name(node: u8, number: u64) -> RequestName {
    RequestName { asker: Asker::new(Claimant::new(node, 1), 0, 0), number, lock: HOT }
}

const fn acquire(mode: Mode) -> Ask {
    Ask::Acquire { mode, waits: true }
}

fn sent(switch: &mut HotQueues, of: RequestName, ask: Ask) -> Vec<FromSwitch> {
    let mut sent = Vec::new();
    switch.ask(of, ask, |message| sent.push(message));
    sent
}

#[test]
fn locks_worth_most_have_slots_as_far_as_they_go() {
    let demand = |lock, frequency, contenders| Demand { lock, frequency, contenders };
    let demands =
        vec![demand(1, 0.5, 50), demand(2, 0.3, 10), demand(3, 0.1, 2), demand(4, 0.1, 100)];
    assert_eq!(allot(demands.clone(), 62), [(3, 2), (2, 10), (1, 50)]);
    assert_eq!(allot(demands, 61), [(3, 2), (2, 10)]);
}

#[test]
fn what_has_no_room_is_buffered_and_pushed_back_in_order() {
    let mut switch = HotQueues::new([(HOT, SLOTS)]);
    let mut server = Buffers::default();
    for node in 0..3 {
        sent(&mut switch, name(node, 1), acquire(Mode::Exclusive));
    }
    for node in 3..5 {
        let buffered = sent(&mut switch, name(node, 1), acquire(Mode::Exclusive));
        let &[FromSwitch::Buffer(of, ask, 0), FromSwitch::Answer(to, Answer::Queued)] =
            &buffered[..]
        else {
            panic!("{buffered:?}")
        };
        assert_eq!((of, to), (name(node, 1), name(node, 1)));
        server.buffer(of, ask, 0, |said| panic!("{said:?}"));
        server.buffer(of, ask, 0, |said| panic!("{said:?}"));
    }
    assert_eq!((switch.queue_len(HOT), server.len(HOT)), (3, 2));
    // One slot of three is not half of them.
    assert_eq!(sent(&mut switch, name(0, 1), Ask::Leave).len(), 2);
    // A request that comes now goes behind those that are buffered.
    let late = sent(&mut switch, name(5, 1), acquire(Mode::Shared));
    assert!(matches!(late[0], FromSwitch::Buffer(..)), "{late:?}");
    let left = sent(&mut switch, name(1, 1), Ask::Leave);
    assert_eq!(left.last(), Some(&FromSwitch::Room(HOT, 2)));
    let mut pushed = Vec::new();
    server.push(HOT, 2, |said| pushed.push(said));
    assert_eq!(pushed.last(), Some(&FromBuffer::End(HOT, true)));
    pushed.iter().for_each(|said| switch.hear(*said, |_| ()));
    assert_eq!(switch.queue_len(HOT), 3);
    let left = sent(&mut switch, name(2, 1), Ask::Leave);
    assert!(left.contains(&FromSwitch::Answer(name(3, 1), Answer::Granted)), "{left:?}");
}

#[test]
fn cold_locks_are_the_servers_and_refusals_are_remembered() {
    let mut switch = HotQueues::new([(HOT, 1)]);
    let cold = RequestName { lock: 9, ..name(0, 1) };
    let ask = acquire(Mode::Shared);
    assert_eq!(sent(&mut switch, cold, ask), [FromSwitch::Forward(cold, ask)]);
    sent(&mut switch, name(0, 1), acquire(Mode::Exclusive));
    let hurried = Ask::Acquire { mode: Mode::Shared, waits: false };
    let refused = [FromSwitch::Answer(name(1, 1), Answer::Refused)];
    assert_eq!(sent(&mut switch, name(1, 1), hurried), refused);
    sent(&mut switch, name(0, 1), Ask::Leave);
    assert_eq!(sent(&mut switch, name(1, 1), hurried), refused, "it comes twice");
    assert_eq!(switch.used(), 0);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Nothing,
    Asks(Mode),
    Holds(Mode),
    Leaves,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Asked(RequestName, Ask),
    Switch(FromSwitch),
    Buffer(FromBuffer),
}

/// Clients of one hot lock that has fewer slots than there are clients.
struct World {
    rng: SmallRng,
    clients: Vec<(u64, Doing)>,
    switch: HotQueues,
    server: Buffers,
    network: Vec<Message>,
    loss: f64,
    granted: u32,
    buffered: u32,
}

impl World {
    fn send(&mut self, message: Message) {
        if !self.rng.random_bool(self.loss) {
            self.network.push(message);
        }
    }

    fn repeat(&mut self, node: u8) {
        let (number, doing) = self.clients[usize::from(node)];
        match doing {
            Doing::Asks(mode) => self.send(Message::Asked(name(node, number), acquire(mode))),
            Doing::Leaves => self.send(Message::Asked(name(node, number), Ask::Leave)),
            Doing::Nothing | Doing::Holds(_) => {}
        }
    }

    fn act(&mut self, node: u8, begins: bool) {
        let (number, doing) = &mut self.clients[usize::from(node)];
        *doing = match *doing {
            Doing::Nothing if begins => {
                *number += 1;
                let reads = self.rng.random_bool(0.3);
                Doing::Asks(if reads { Mode::Shared } else { Mode::Exclusive })
            }
            Doing::Holds(_) => Doing::Leaves,
            // Some give up.
            Doing::Asks(_) if !begins || self.rng.random_bool(0.1) => Doing::Leaves,
            same => same,
        };
        self.repeat(node);
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.network.len());
        let message = match self.loss > 0.0 && self.rng.random_bool(0.2) {
            true => self.network[index],
            false => self.network.swap_remove(index),
        };
        let (mut to_switch, mut to_server) = (Vec::new(), Vec::new());
        match message {
            Message::Asked(of, ask) => self.switch.ask(of, ask, |said| to_server.push(said)),
            Message::Buffer(said) => self.switch.hear(said, |said| to_server.push(said)),
            Message::Switch(FromSwitch::Buffer(of, ask, room)) => {
                self.buffered += 1;
                self.server.buffer(of, ask, room, |said| to_switch.push(said));
            }
            Message::Switch(FromSwitch::Room(lock, room)) => {
                self.server.push(lock, room, |said| to_switch.push(said));
            }
            Message::Switch(FromSwitch::Answer(to, answer)) => self.hear(to, answer),
            Message::Switch(FromSwitch::Forward(..)) => panic!("the lock is hot"),
        }
        to_switch.into_iter().for_each(|said| self.send(Message::Buffer(said)));
        to_server.into_iter().for_each(|said| self.send(Message::Switch(said)));
        assert!(self.switch.queue_len(HOT) <= SLOTS as usize, "a slot for each");
    }

    fn hear(&mut self, to: RequestName, answer: Answer) {
        let client = &mut self.clients[usize::from(to.asker.life().node())];
        if client.0 != to.number {
            return;
        }
        match (client.1, answer) {
            (Doing::Asks(mode), Answer::Granted) => {
                client.1 = Doing::Holds(mode);
                self.granted += 1;
                let holds =
                    |mode| self.clients.iter().filter(|c| c.1 == Doing::Holds(mode)).count();
                let (readers, writers) = (holds(Mode::Shared), holds(Mode::Exclusive));
                assert!(writers == 0 || writers + readers == 1, "{:?}", self.clients);
            }
            (Doing::Leaves, Answer::Left) => client.1 = Doing::Nothing,
            _ => {}
        }
    }
}

#[test]
fn requests_are_granted_whatever_is_lost_between_switch_and_server() {
    let (mut granted, mut buffered) = (0, 0);
    for seed in 0..200 {
        let mut world = World {
            rng: Env::real(seed).rng(1),
            clients: vec![(0, Doing::Nothing); usize::from(ASKERS)],
            switch: HotQueues::new([(HOT, SLOTS)]),
            server: Buffers::default(),
            network: Vec::new(),
            loss: 0.2,
            granted: 0,
            buffered: 0,
        };
        for _ in 0..3_000 {
            let node = world.rng.random_range(0..ASKERS);
            match world.rng.random_range(0..100) {
                0..10 => world.act(node, true),
                10..20 => world.repeat(node),
                _ => world.deliver(),
            }
        }
        // Nothing is lost any more: whoever asks still has the lock in turn, and all leave.
        world.loss = 0.0;
        for _ in 0..100 {
            for node in 0..ASKERS {
                match world.clients[usize::from(node)].1 {
                    Doing::Asks(_) => world.repeat(node),
                    _ => world.act(node, false),
                }
            }
            (0..1_000).for_each(|_| world.deliver());
        }
        assert!(world.clients.iter().all(|c| c.1 == Doing::Nothing), "{:?}", world.clients);
        assert_eq!(world.switch.used(), 0);
        granted += world.granted;
        buffered += world.buffered;
    }
    assert!(granted > 5_000 && buffered > 5_000, "{granted} granted, {buffered} buffered");
}
