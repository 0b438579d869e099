//! Regression tests of lanes.

use std::pin::{Pin, pin};
use std::task::Poll;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::Rights;
use lotus_fabric::transport::Fabric;

const AT: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(0) };

fn word(index: u64) -> RemoteAddr {
    RemoteAddr::new(NodeId(0), RegionId(0), index * 8)
}

fn lane() -> (Executor, Lane) {
    let fabric = LocalFabric::new(2);
    fabric.register(NodeId(0), RegionId(0), 4096, Rights::ALL).expect("maps");
    let mut executor = Executor::new(Env::real(0));
    let transport = fabric.open_lane(AT, Epoch(1), executor.handle().waker()).expect("opens");
    let lane = Lane::new(AT, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    (executor, lane)
}

/// The future of a finished reconnect was kept while its token was reused for the next batch.
/// Dropping the future then abandoned that batch, and the batch's own future waited for ever.
#[test]
fn a_finished_reconnect_has_no_hold_on_the_next_batch() {
    let (mut executor, lane) = lane();
    executor.run(async move {
        let mut reconnect = Box::pin(lane.reconnect(NodeId(0)));
        reconnect.as_mut().await.expect("the node is reachable");
        let mut batch = lane.batch();
        batch.write_word(word(0), 1);
        let posted = batch.post();
        drop(reconnect);
        posted.await.expect("nothing fails");
    });
}

/// A completed batch whose future was dropped before it was polled again kept its buffers.
#[test]
fn a_batch_dropped_between_completion_and_notice_gives_its_buffers_back() {
    let (mut executor, lane) = lane();
    executor.run(async move {
        let mut grown_to = None;
        for _ in 0..1000 {
            let mut batch = lane.batch();
            batch.read(word(0), 4096);
            let mut posted = pin!(batch.post());
            let first = std::future::poll_fn(|context| Poll::Ready(posted.as_mut().poll(context)));
            assert!(first.await.is_pending(), "complete before the lane was polled");
            lane.executor().yield_now().await;
            assert_eq!(lane.arena_bytes(), *grown_to.get_or_insert(lane.arena_bytes()));
        }
    });
}

/// Several futures of one task may wait at once; each completion wakes the task at most once.
#[test]
fn one_task_may_wait_for_several_batches() {
    let (mut executor, lane) = lane();
    executor.run(async move {
        let mut posted: Vec<_> = (0..10)
            .map(|index| {
                let mut batch = lane.batch();
                let before = batch.fetch_and_add(word(index), index);
                (before, batch.post())
            })
            .collect();
        std::future::poll_fn(|context| {
            posted.retain_mut(|(before, posted)| match Pin::new(posted).poll(context) {
                Poll::Pending => true,
                Poll::Ready(done) => {
                    assert_eq!(done.expect("nothing fails").words(*before), [0]);
                    false
                }
            });
            if posted.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
}

#[test]
#[should_panic(expected = "belongs to another batch")]
fn a_buffer_of_another_batch_is_refused_before_it_is_posted() {
    let (_executor, lane) = lane();
    let foreign = lane.batch().stage(8);
    lane.batch().write(word(0), foreign);
}

/// Work done between transactions was missing from recordings, so that a replay did less than the
/// run it was recorded from.
#[test]
fn an_errand_is_recorded_with_the_next_transaction() {
    let (mut executor, lane) = lane();
    executor.run(async move {
        lane.start_recording(100);
        let post = |verbs: u64| {
            let mut batch = lane.batch();
            (0..verbs).for_each(|index| batch.write_word(word(index), index));
            batch.post()
        };
        post(3).await.expect("nothing fails");
        lane.mark_errand();
        post(2).await.expect("nothing fails");
        lane.mark_transaction();
        let trace = lane.take_trace().expect("it was asked for");
        assert_eq!((trace.transaction_count(), trace.verb_count()), (1, 5));
        trace.replay(&lane, 0).await.expect("nothing fails");
    });
}
