//! Processes that end or stop during an operation.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::region::Rights;
use lotus_fabric::shm::{Host, ShmFabric};
use lotus_fabric::transport::Fabric;
use lotus_fabric::verbs::VerbError;
use rustix::process::Signal;

use super::children::{Child, Role};
use super::{Directory, REGION, REGION_BYTES, at, env, join, on_lane, read, word, write};

/// Node 0 has the memory, the test is node 1, and node 2 misbehaves.
const NODES: u16 = 3;
const MISBEHAVER: u16 = 2;

fn with_memory(directory: &Directory) -> (Child, ShmFabric) {
    let memory = Child::start(Role::Memory, directory.path(), 0, NODES);
    let fabric = join(directory.path(), 1, NODES);
    fabric.register(NodeId(0), REGION, REGION_BYTES, Rights::ALL).expect("a region");
    (memory, fabric)
}

/// Whether the words that a hammer writes no longer change.
async fn is_quiet(lane: &Lane) -> bool {
    let mut before = None;
    for _ in 0..5 {
        let mut now = Vec::new();
        for index in (0..REGION_BYTES / 8).step_by(64) {
            now.push(read(lane, word(0, index), 1).await.expect("node 0 lives"));
        }
        if before.is_some_and(|before| before != now) {
            return false;
        }
        before = Some(now);
        lane.executor().sleep(Duration::from_millis(2)).await;
    }
    true
}

#[test]
fn a_memory_node_that_dies_is_unreachable_and_comes_back_empty() {
    let directory = Directory::new();
    let (mut memory, fabric) = with_memory(&directory);
    let path = directory.path().to_owned();
    let same = fabric.clone();
    let test = on_lane(&fabric, at(1), Epoch(1), async move |lane| {
        write(&lane, word(0, 0), 7).await.expect("node 0 lives");
        memory.kill();
        // Until its end is noticed, verbs reach memory that is never read again.
        let error = loop {
            if let Err(error) = read(&lane, word(0, 0), 1).await {
                break error;
            }
        };
        assert_eq!(error, VerbError::Unreachable);
        assert_eq!(lane.reconnect(NodeId(0)).await, Err(VerbError::Unreachable));
        // Its socket file is still there.
        let _memory = Child::start(Role::Memory, &path, 0, NODES);
        lane.reconnect(NodeId(0)).await.expect("node 0 is back");
        let nothing = read(&lane, word(0, 0), 1).await;
        assert_eq!(nothing, Err(VerbError::OutOfBounds), "its memory is gone");
        same.register(NodeId(0), REGION, REGION_BYTES, Rights::ALL).expect("a fresh region");
        lane.reconnect(NodeId(0)).await.expect("node 0 lives");
        assert_eq!(read(&lane, word(0, 0), 1).await, Ok(vec![0]));
    });
    test.expect("a lane");
}

#[test]
fn a_fence_ends_what_a_killed_process_was_doing() {
    let directory = Directory::new();
    let (_memory, fabric) = with_memory(&directory);
    let mut hammer = Child::start(Role::Hammer, directory.path(), MISBEHAVER, NODES);
    hammer.kill();
    fabric.fence(NodeId(0), NodeId(MISBEHAVER), Epoch(2)).expect("fenced");
    let quiet = on_lane(&fabric, at(1), Epoch(1), async |lane| is_quiet(&lane).await);
    assert!(quiet.expect("a lane"), "a store came after the fence");
}

/// A process that is stopped inside a round of copies would finish it when it is continued, so it
/// must be killed. One that is stopped between two rounds need not be, and finds itself fenced.
/// Which of the two happens is chance, so this repeats until it was the first.
#[test]
fn a_fence_kills_whoever_is_stopped_in_the_middle_of_copying() {
    for _ in 0..100 {
        let directory = Directory::new();
        let (_memory, fabric) = with_memory(&directory);
        let mut hammer = Child::start(Role::Hammer, directory.path(), MISBEHAVER, NODES);
        hammer.stop();
        fabric.fence(NodeId(0), NodeId(MISBEHAVER), Epoch(2)).expect("fenced");
        hammer.resume();
        let quiet = on_lane(&fabric, at(1), Epoch(1), async |lane| is_quiet(&lane).await);
        assert!(quiet.expect("a lane"), "a store came after the fence");
        let status = hammer.wait();
        if status.signal() == Some(Signal::KILL.as_raw()) {
            return;
        }
        assert!(status.success(), "the hammer was not refused: {status}");
    }
    panic!("no process was stopped inside a round");
}

#[test]
fn a_lane_is_free_when_its_process_has_died() {
    let directory = Directory::new();
    let (_memory, fabric) = with_memory(&directory);
    for _ in 0..3 {
        let mut echo = Child::start(Role::Echo, directory.path(), MISBEHAVER, NODES);
        let talk = on_lane(&fabric, at(1), Epoch(1), async |lane| ten_times(&lane).await);
        talk.expect("a lane");
        echo.kill();
    }
    let successor = join(directory.path(), MISBEHAVER, NODES);
    on_lane(&successor, at(MISBEHAVER), Epoch(1), async |_| ()).expect("the lane is free");
}

/// Sends to the echo and sleeps until the answer comes, ten times. Also works with a new echo in
/// another process than the last one.
async fn ten_times(lane: &Lane) {
    let (heard, hear) = async_channel::unbounded();
    lane.on_message(Box::new(move |from, bytes| {
        assert_eq!(from, at(MISBEHAVER));
        heard.try_send(bytes.to_vec()).expect("unbounded");
    }));
    let executor = lane.executor().clone();
    let again = lane.clone();
    for round in 0..10_u8 {
        // Sent again while there is no answer: the first message may find no open lane, or a ring
        // of a process that has died.
        while !hear.try_recv().is_ok_and(|answer| answer == [round; 100]) {
            again.send(at(MISBEHAVER), &[round; 100]);
            executor.sleep(Duration::from_millis(1)).await;
        }
    }
}

#[test]
fn a_stale_socket_is_taken_over_and_a_live_one_is_not() {
    let directory = Directory::new();
    let mut memory = Child::start(Role::Memory, directory.path(), 0, NODES);
    let start = || Host::start(directory.path(), NodeId(0), NODES, &env());
    let taken = start().err().expect("it is hosted already");
    assert!(matches!(taken, lotus_fabric::shm::ShmError::InUse(_)), "{taken}");
    memory.kill();
    assert!(directory.path().join("node-0.sock").exists(), "nobody cleaned up");
    drop(start().expect("its host is dead"));
    assert!(!directory.path().join("node-0.sock").exists(), "a host cleans up");
}
