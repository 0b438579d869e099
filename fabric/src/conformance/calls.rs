//! RPC over the back end's datagrams.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use super::{CLIENT, Cluster, Coordinator, Flag, PEER, properties, wait_until};
use crate::lane::Lane;
use crate::rpc::{MAX_PAYLOAD_BYTES, Responder, RetryPolicy, Rpc, RpcError, Service};

properties! {
    a_call_brings_the_reply_to_its_request,
    large_payloads_travel_in_fragments,
    a_payload_beyond_the_limit_is_refused,
    many_calls_at_once_do_not_mix,
    a_call_survives_a_partition,
    a_call_to_nobody_times_out,
    late_and_duplicate_replies_are_dropped,
    garbage_is_counted_and_dropped,
    a_reply_may_come_much_later,
    a_notice_arrives_whole_or_not_at_all,
    a_notice_beyond_the_limit_is_refused,
}

/// Echoes the request.
const ECHO: Service = Service(0);
/// Returns the number of messages that did not parse.
const MALFORMED: Service = Service(1);
/// Keeps the responder of the first request, and answers both the request and the retry when the
/// retry arrives.
const TWICE: Service = Service(2);
/// Answers from another task, after the handler has returned.
const LATER: Service = Service(3);
/// Hears notices; a call returns the longest notice so far.
const HEARD: Service = Service(4);
/// A service without a handler.
const NOBODY: Service = Service(200);

/// The second answer of [`TWICE`].
const DUPLICATE: &[u8] = b"a duplicate";

const PATIENT: RetryPolicy = RetryPolicy::constant(Duration::from_millis(20), 1000);
const HASTY: RetryPolicy = RetryPolicy::constant(Duration::from_millis(1), 3);

/// Runs a client against a server that lives until the client ends.
fn with_server<F: Future<Output = ()> + 'static>(
    cluster: &Cluster,
    client: impl FnOnce(Rpc) -> F + Send + 'static,
) {
    let done = Flag::default();
    let finish = done.set_on_drop();
    let server = Coordinator::new(PEER, move |lane: Lane| async move {
        let malformed = Rc::new(Cell::new(0));
        let rpc = serve(&lane, Rc::clone(&malformed));
        let client_has_ended = || {
            malformed.set(rpc.malformed());
            done.is_set()
        };
        wait_until(&lane, "the client ends", client_has_ended).await;
    });
    let client = Coordinator::new(CLIENT, move |lane: Lane| async move {
        let _finish = finish;
        client(Rpc::new(lane)).await;
    });
    cluster.run([server, client]);
}

fn serve(lane: &Lane, malformed: Rc<Cell<u64>>) -> Rpc {
    let rpc = Rpc::new(lane.clone());
    rpc.serve(ECHO, Box::new(|responder, request| responder.respond(request)));
    let count = move |responder: Responder, _: &[u8]| {
        responder.respond(&malformed.get().to_le_bytes());
    };
    rpc.serve(MALFORMED, Box::new(count));
    let kept = RefCell::new(None::<Responder>);
    let twice = move |responder: Responder, request: &[u8]| match kept.take() {
        None => *kept.borrow_mut() = Some(responder),
        Some(first) => {
            first.respond(request);
            responder.respond(DUPLICATE);
        }
    };
    rpc.serve(TWICE, Box::new(twice));
    let executor = lane.executor().clone();
    let later = move |responder: Responder, request: &[u8]| {
        let (timer, request) = (executor.clone(), request.to_vec());
        executor.spawn(async move {
            timer.sleep(Duration::from_millis(5)).await;
            responder.respond(&request);
        });
    };
    rpc.serve(LATER, Box::new(later));
    let heard = Rc::new(RefCell::new(Vec::new()));
    let longest = Rc::clone(&heard);
    let hear = move |from, notice: &[u8]| {
        assert_eq!(from, CLIENT);
        if notice.len() > longest.borrow().len() {
            *longest.borrow_mut() = notice.to_vec();
        }
    };
    rpc.hear(HEARD, Box::new(hear));
    rpc.serve(HEARD, Box::new(move |responder, _| responder.respond(&heard.borrow())));
    rpc
}

async fn echo(rpc: &Rpc, payload: &[u8]) {
    let reply = rpc.call(PEER, ECHO, payload, PATIENT).await.expect("the server answers");
    assert!(*reply == *payload, "{} bytes came back as {} others", payload.len(), reply.len());
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 251 + bytes) as u8).collect()
}

fn a_call_brings_the_reply_to_its_request(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        for round in 0..1000 {
            echo(&rpc, &payload(round % 64)).await;
        }
    });
}

fn large_payloads_travel_in_fragments(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        for bytes in [4079, 4080, 4081, 8160, 100_000, MAX_PAYLOAD_BYTES] {
            echo(&rpc, &payload(bytes)).await;
        }
    });
}

fn a_payload_beyond_the_limit_is_refused(cluster: &Cluster) {
    cluster.solo(async |lane: Lane| {
        let call = Rpc::new(lane).call(PEER, ECHO, &payload(MAX_PAYLOAD_BYTES + 1), HASTY).await;
        assert_eq!(call.err(), Some(RpcError::TooLarge));
    });
}

fn many_calls_at_once_do_not_mix(cluster: &Cluster) {
    const CALLERS: usize = 64;
    with_server(cluster, async |rpc: Rpc| {
        let running = Rc::new(Cell::new(CALLERS));
        for caller in 0..CALLERS {
            let (rpc, running) = (rpc.clone(), Rc::clone(&running));
            rpc.lane().executor().clone().spawn(async move {
                for round in 0..20 {
                    echo(&rpc, &payload(caller * 100 + round)).await;
                }
                running.set(running.get() - 1);
            });
        }
        wait_until(rpc.lane(), "all callers end", || running.get() == 0).await;
    });
}

fn a_call_survives_a_partition(cluster: &Cluster) {
    let harness = cluster.harness.clone();
    with_server(cluster, async move |rpc: Rpc| {
        echo(&rpc, b"before").await;
        harness.set_reachable(PEER.node, false);
        let executor = rpc.lane().executor().clone();
        executor.clone().spawn(async move {
            executor.sleep(Duration::from_millis(50)).await;
            harness.set_reachable(PEER.node, true);
        });
        echo(&rpc, b"meanwhile").await;
    });
}

fn a_call_to_nobody_times_out(cluster: &Cluster) {
    let harness = cluster.harness.clone();
    with_server(cluster, async move |rpc: Rpc| {
        // A patient call must not delay the timeout of an impatient call.
        let patient = rpc.clone();
        let lasting = RetryPolicy::constant(super::LIMIT, 2);
        rpc.lane().executor().spawn(async move {
            let _never = patient.call(PEER, NOBODY, b"", lasting).await;
        });
        rpc.lane().executor().yield_now().await;
        let start = rpc.lane().executor().now();
        let call = rpc.call(PEER, NOBODY, b"anyone?", HASTY).await;
        assert_eq!(call.err(), Some(RpcError::TimedOut), "no such service");
        harness.set_reachable(PEER.node, false);
        let call = rpc.call(PEER, ECHO, b"anyone?", HASTY).await;
        assert_eq!(call.err(), Some(RpcError::TimedOut), "no such node");
        let waited = rpc.lane().executor().now().since(start);
        assert!(waited >= 2 * HASTY.tries * HASTY.retry_after, "gave up early, after {waited:?}");
        assert!(waited < super::LIMIT / 2, "gave up late, after {waited:?}");
        harness.set_reachable(PEER.node, true);
        echo(&rpc, b"after").await;
    });
}

fn late_and_duplicate_replies_are_dropped(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        for round in 0..20 {
            let request = payload(round);
            let reply = rpc.call(PEER, TWICE, &request, PATIENT).await.expect("answered twice");
            // The duplicate may have overtaken the first reply, or the first reply may be lost.
            assert!(*reply == *request || *reply == *DUPLICATE, "the reply to another call");
            echo(&rpc, b"the next call").await;
        }
    });
}

fn garbage_is_counted_and_dropped(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        let deadline = rpc.lane().executor().now().after(super::LIMIT);
        loop {
            for bytes in [1, 5, 15, 16, 17, 4096] {
                // Invalid version bytes only.
                rpc.lane().send(PEER, &vec![0xFF; bytes]);
            }
            let reply = rpc.call(PEER, MALFORMED, b"", PATIENT).await.expect("the server answers");
            if reply.iter().any(|byte| *byte != 0) {
                break;
            }
            assert!(rpc.lane().executor().now() < deadline, "garbage was not counted");
        }
        echo(&rpc, b"still there").await;
    });
}

fn a_reply_may_come_much_later(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        let reply = rpc.call(PEER, LATER, b"patience", PATIENT).await.expect("answered later");
        assert_eq!(&*reply, b"patience");
    });
}

/// Notices may be lost, so a notice is sent again until received.
fn a_notice_arrives_whole_or_not_at_all(cluster: &Cluster) {
    with_server(cluster, async |rpc: Rpc| {
        for bytes in [1, 64, 4080, 20_000] {
            let notice = payload(bytes);
            let mut heard = Vec::new();
            while heard.len() < bytes {
                rpc.tell(PEER, HEARD, &notice).expect("it is short enough");
                heard = rpc.call(PEER, HEARD, &[], PATIENT).await.expect("answered").to_vec();
            }
            assert!(heard == notice, "{bytes} bytes came as {} others", heard.len());
        }
        rpc.tell(PEER, NOBODY, &[1]).expect("it is short enough");
    });
}

fn a_notice_beyond_the_limit_is_refused(cluster: &Cluster) {
    cluster.solo(async |lane: Lane| {
        let told = Rpc::new(lane).tell(PEER, HEARD, &payload(MAX_PAYLOAD_BYTES + 1));
        assert_eq!(told, Err(RpcError::TooLarge));
    });
}
