//! The data path against a device that only records requests.

use std::mem::{ManuallyDrop, take};

use super::*;
use crate::backends::rdma::ffi::Completions;
use crate::backends::rdma::ffi::fake::{Fake, Log, take_log};
use crate::contract::ids::{RegionId, RemoteAddr};
use crate::contract::region::{Chunk, Rights};
use crate::contract::verbs::CHUNK_WORDS;

const NODE: NodeId = NodeId(2);
const WRITE: Op = Op::WriteWord { value: 5 };

#[test]
fn ids_keep_their_parts() {
    let id = verb_id(NodeId(0xABCD), 0x1234, 0xDEAD_BEEF);
    assert_eq!(
        (node_of(id), generation_of(id), number_of(id)),
        (NodeId(0xABCD), 0x1234, 0xDEAD_BEEF)
    );
}

/// A connection to a fake device, with the state that it needs. Never dropped, as the device
/// demands.
struct Bench {
    connection: ManuallyDrop<Connection>,
    flights: Flights,
    arena: ManuallyDrop<Arena>,
    chain: Chain,
    fake: ManuallyDrop<(std::sync::Arc<super::super::ffi::CompletionQueue>, Completions)>,
    #[expect(clippy::vec_box, reason = "batches travel as boxes")]
    works: Vec<Box<Work>>,
    chunks: Vec<Chunk>,
}

impl Bench {
    fn new(depth: u32, unsignalled: u32) -> Self {
        Self::ordered(depth, unsignalled, Ordering::Flag)
    }

    fn ordered(depth: u32, unsignalled: u32, ordering: Ordering) -> Self {
        let fake = Fake::new();
        // All chunks are of one mapping.
        let chunks = Chunk::carve(8, CHUNK_WORDS).expect("memory");
        let slabs = vec![fake.region(chunks[0].memory())];
        let Fake { domain, queue, pair } = fake;
        let mut connection = Connection::new(NODE, depth, unsignalled, ordering);
        let key = Key {
            region: RegionId(0),
            rights: Rights::ALL,
            bytes: 1 << 20,
            address: 0x10_0000,
            key: 9,
        };
        connection.connected(Ok(Link::new(pair, &[key])), |_, _| {});
        Self {
            connection: ManuallyDrop::new(connection),
            flights: Flights::default(),
            arena: ManuallyDrop::new(Arena { domain, slabs }),
            chain: Chain::with_capacity(depth as usize),
            fake: ManuallyDrop::new((queue, Completions::default())),
            works: Vec::new(),
            chunks,
        }
    }

    /// Posts a batch of these verbs.
    fn post(&mut self, verbs: impl IntoIterator<Item = Op>) {
        let mut work = self.works.pop().unwrap_or_default();
        let mut local = None;
        for op in verbs {
            let chunk = || self.chunks.pop().expect("as many as batches at once");
            let buffer = *local.get_or_insert_with(|| match op {
                Op::WriteWord { .. } => Work::no_buffer(),
                _ => work.reserve(1, chunk),
            });
            work.push(RemoteAddr::new(NODE, RegionId(0), 64), op, buffer);
        }
        let flight = self.flights.add(Token(0), work, 1);
        self.connection.push(flight, 0);
        self.pump();
    }

    fn pump(&mut self) {
        let Self { flights, arena, chain, .. } = self;
        let asks = self.connection.pump(&mut Tools { flights, arena, chain });
        assert!(!asks, "the connection stands");
    }

    /// Takes completions until there are none; returns the number of batches completed.
    fn poll(&mut self) -> usize {
        let mut landed = 0;
        loop {
            let (queue, completions) = &mut *self.fake;
            queue.poll(completions);
            if completions.found().is_empty() {
                return landed;
            }
            for completion in completions.found() {
                let success = ibv_wc_status::IBV_WC_SUCCESS;
                self.connection.completed(&mut self.flights, completion.wr_id(), success);
            }
            self.pump();
            for flight in take(&mut self.flights.landed) {
                let (_, mut work) = self.flights.take(flight);
                assert!(work.failures().is_empty());
                work.clear();
                self.works.push(work);
                landed += 1;
            }
        }
    }
}

#[test]
fn a_batch_rings_one_doorbell_and_reports_once() {
    let mut bench = Bench::new(64, 64);
    bench.post([WRITE; 10]);
    let Log { doorbells, requests, .. } = take_log();
    assert_eq!((doorbells, requests.len()), (1, 10));
    assert!(requests.iter().all(|request| request.inline && !request.fenced));
    let reports: Vec<_> = requests.iter().map(|request| request.reports).collect();
    assert_eq!(reports, [vec![false; 9], vec![true]].concat());
    assert_eq!(bench.poll(), 1);
}

#[test]
fn runs_of_verbs_that_do_not_report_are_bounded() {
    let mut bench = Bench::new(64, 4);
    bench.post([WRITE; 10]);
    let places = take_log().requests.iter().map(|request| request.reports).collect::<Vec<_>>();
    let reports: Vec<_> = (0..10).filter(|place| places[*place]).collect();
    assert_eq!(reports, [3, 7, 9]);
    assert_eq!(bench.poll(), 1);
}

#[test]
fn no_more_verbs_than_fit_are_with_the_device() {
    let mut bench = Bench::new(8, 8);
    bench.post([WRITE; 20]);
    bench.post([WRITE; 3]);
    assert_eq!(take_log().requests.len(), 8);
    assert_eq!(bench.poll(), 2, "the rest follows as there is room");
    assert_eq!(take_log().requests.len(), 15);
}

#[test]
fn only_reads_under_way_are_fenced() {
    let mut bench = Bench::new(64, 64);
    bench.post([Op::Read]);
    bench.post([WRITE; 2]);
    let fenced: Vec<_> = take_log().requests.iter().map(|request| request.fenced).collect();
    assert_eq!(fenced, [false, true, false]);
    assert_eq!(bench.poll(), 2);
    bench.post([Op::Read]);
    assert_eq!(bench.poll(), 1);
    bench.post([WRITE]);
    assert!(take_log().requests.iter().all(|request| !request.fenced), "the READ is complete");
    assert_eq!(bench.poll(), 1);
}

/// Regression test: Soft-RoCE never completes a verb behind a fenced one that it had to repeat. A
/// lane with lost packets once stood still for ever: the first lost verb was a WRITE with the fence
/// flag, was repeated, and waited for an atomic behind it. So no flag is used there.
#[test]
fn without_flags_a_verb_waits_until_it_can_overtake_nothing() {
    let mut bench = Bench::ordered(64, 64, Ordering::Wait);
    bench.post([Op::Read, Op::Read, WRITE, Op::FetchAndAdd { addend: 1 }, WRITE]);
    bench.post([WRITE]);
    assert_eq!(take_log().requests.len(), 2, "the first WRITE waits for the READs");
    assert_eq!(bench.poll(), 2);
    let Log { doorbells, requests, .. } = take_log();
    assert_eq!((doorbells, requests.len()), (3, 4), "WRITE and ADD; WRITE; the other batch");
    let reports: Vec<_> = requests.iter().map(|request| request.reports).collect();
    assert_eq!(reports, [false, true, true, true], "what is waited for reports");
    assert!(requests.iter().all(|request| !request.fenced));
}
