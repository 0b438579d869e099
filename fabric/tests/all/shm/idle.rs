//! A memory node's process does not run while other nodes use its memory.

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::Fabric;

use super::children::{Child, Role};
use super::{Directory, REGION, REGION_BYTES, at, join, on_lane, word};

/// Number of context switches of each thread of a process.
fn switches(process: u32) -> Vec<(String, String)> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    let mut counts = Vec::new();
    for thread in threads {
        let path = thread.expect("listed").path();
        let status = std::fs::read_to_string(path.join("status")).expect("it lives");
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        let name = path.display().to_string();
        counts.push((name, lines.collect::<Vec<_>>().join(" ")));
    }
    counts.sort();
    counts
}

#[test]
fn a_memory_node_is_never_scheduled_while_verbs_run() {
    let directory = Directory::new();
    let memory = Child::start(Role::Memory, directory.path(), 0, 2);
    let fabric = join(directory.path(), 1, 2);
    fabric.register(NodeId(0), REGION, REGION_BYTES, Rights::ALL).expect("a region");
    let process = memory.id();
    let counted = on_lane(&fabric, at(1), Epoch(1), async move |lane| {
        // The host goes back to sleep some time after its answer.
        let mut before = switches(process);
        loop {
            lane.executor().sleep(std::time::Duration::from_millis(20)).await;
            let now = switches(process);
            if now == before {
                break;
            }
            before = now;
        }
        for round in 0..1000 {
            let mut batch = lane.batch();
            for index in 0..100 {
                batch.read(word(0, index * 7), 64);
                batch.write_word(word(0, index * 9), round);
                batch.fetch_and_add(word(0, 5), 1);
            }
            batch.post().await.expect("node 0 lives");
        }
        (before, switches(process))
    });
    let (before, after) = counted.expect("a lane");
    assert_eq!(before, after, "300,000 verbs, and the memory node ran");
}
