//! RPC between two lanes of one executor.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::rpc::{RetryPolicy, Rpc, RpcError, Service};
use lotus_fabric::transport::Fabric;
use proptest::prelude::*;

const CLIENT: Endpoint = Endpoint { node: NodeId(0), lane: LaneId(0) };
const SERVER: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(0) };
const ECHO: Service = Service(3);
const SILENT: Service = Service(4);
const PATIENT: RetryPolicy = RetryPolicy::constant(Duration::from_millis(100), 100);
const HASTY: RetryPolicy = RetryPolicy::constant(Duration::from_millis(1), 3);

/// A client, and a server that echoes, or counts requests without answering.
struct Pair {
    executor: Executor,
    client: Rpc,
    server: Rpc,
    silent_requests: Rc<Cell<u32>>,
}

fn pair() -> Pair {
    let fabric = LocalFabric::new(2);
    let mut executor = Executor::new(Env::real(0));
    let [client, server] = [CLIENT, SERVER].map(|at| {
        let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker()).expect("opens");
        let lane = Lane::new(at, executor.handle().clone(), transport);
        executor.add_driver(lane.driver());
        Rpc::new(lane)
    });
    server.serve(ECHO, Box::new(|responder, request| responder.respond(request)));
    let silent_requests = Rc::new(Cell::new(0));
    let count = Rc::clone(&silent_requests);
    server.serve(SILENT, Box::new(move |_, _| count.set(count.get() + 1)));
    Pair { executor, client, server, silent_requests }
}

#[test]
fn an_unanswered_request_is_sent_as_often_as_the_caller_asked_for() {
    let Pair { mut executor, client, server: _server, silent_requests } = pair();
    executor.run(async move {
        for tries in [0, 1, 5] {
            silent_requests.set(0);
            let patience = RetryPolicy { tries, ..HASTY };
            let call = client.call(SERVER, SILENT, b"", patience).await;
            assert_eq!(call.err(), Some(RpcError::TimedOut));
            client.lane().executor().sleep(HASTY.retry_after).await;
            assert_eq!(silent_requests.get(), tries.max(1));
        }
    });
}

#[test]
fn calls_to_a_node_that_is_given_up_end_at_once_and_are_not_sent_again() {
    let Pair { mut executor, client, server: _server, silent_requests } = pair();
    executor.run(async move {
        let call = client.call(SERVER, SILENT, b"", PATIENT);
        client.give_up(CLIENT.node);
        client.give_up(SERVER.node);
        assert_eq!(call.await.err(), Some(RpcError::TimedOut));
        client.lane().executor().sleep(3 * PATIENT.retry_after).await;
        assert_eq!(silent_requests.get(), 1);
        // Later calls are sent as usual.
        let reply = client.call(SERVER, ECHO, b"back", PATIENT).await.expect("answered");
        assert_eq!(*reply, *b"back");
    });
}

#[test]
fn a_dropped_call_makes_room_for_another_and_is_not_sent_again() {
    let Pair { mut executor, client, server: _server, silent_requests } = pair();
    executor.run(async move {
        for _ in 0..20_000 {
            drop(client.call(SERVER, SILENT, b"", HASTY));
        }
        client.lane().executor().sleep(3 * HASTY.retry_after).await;
        assert!(silent_requests.get() <= 20_000, "a dropped call was tried again");
        let reply = client.call(SERVER, ECHO, b"still there", PATIENT).await.expect("answered");
        assert_eq!(*reply, *b"still there");
    });
}

#[test]
fn too_many_calls_are_refused_and_the_others_go_on() {
    let Pair { mut executor, client, server: _server, .. } = pair();
    executor.run(async move {
        let mut calls = Vec::new();
        let refused = loop {
            let mut call = Box::pin(client.call(SERVER, ECHO, b"", PATIENT));
            let first =
                std::future::poll_fn(|context| std::task::Poll::Ready(call.as_mut().poll(context)));
            match first.await {
                std::task::Poll::Ready(refused) => break refused.err(),
                std::task::Poll::Pending => calls.push(call),
            }
        };
        assert_eq!(refused, Some(RpcError::TooManyCalls));
        assert!(calls.len() >= 1024, "only {} calls at once", calls.len());
        for call in calls {
            call.await.expect("answered, on a retry where the mailbox was full");
        }
    });
}

/// Otherwise its node could not be restarted: the lane would be taken.
#[test]
fn whom_a_handler_keeps_waiting_does_not_keep_the_lane() {
    const KEPT: Service = Service(5);
    let Pair { mut executor, client, server, silent_requests: _ } = pair();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let (keeps, outside) = (Rc::clone(&kept), Rc::new(RefCell::new(None)));
    let last = Rc::clone(&outside);
    server.serve(
        KEPT,
        Box::new(move |responder, _| {
            let before = last.replace(Some(responder));
            keeps.borrow_mut().extend(before);
        }),
    );
    let handler = Rc::downgrade(&kept);
    drop(kept);
    executor.run(async move {
        assert!(client.call(SERVER, KEPT, b"", HASTY).await.is_err());
    });
    assert_eq!(handler.upgrade().map(|kept| kept.borrow().len()), Some(2));
    drop((executor, server));
    assert!(handler.upgrade().is_none(), "the handler is still there");
    // A responder that answers now reaches no lane.
    outside.take().expect("it was asked").respond(b"too late");
}

/// A reply counts only if it comes from the endpoint that was asked, even if its call is the right
/// one.
#[test]
fn a_stranger_s_reply_is_ignored() {
    let Pair { mut executor, client, server, .. } = pair();
    let asked = Rc::new(RefCell::new(Vec::new()));
    let request = Rc::clone(&asked);
    server.lane().on_message(Box::new(move |_, bytes| *request.borrow_mut() = bytes.to_vec()));
    executor.run(async move {
        let executor = client.lane().executor().clone();
        let call = client.call(SERVER, ECHO, b"", PATIENT);
        while asked.borrow().is_empty() {
            executor.yield_now().await;
        }
        let reply = |payload: &[u8; 6]| {
            let mut reply = [0; 16 + 6];
            reply[..8].copy_from_slice(&[1, 1, ECHO.0, 0, 0, 0, 1, 0]);
            reply[8..16].copy_from_slice(&asked.borrow()[8..16]);
            reply[16..].copy_from_slice(payload);
            reply
        };
        // The client's own lane is the stranger.
        client.lane().send(CLIENT, &reply(b"forged"));
        for _ in 0..100 {
            executor.yield_now().await;
        }
        server.lane().send(CLIENT, &reply(b"honest"));
        assert_eq!(*call.await.expect("answered"), *b"honest");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Arbitrary bytes may arrive on either side; a proper call still gets its reply.
    #[test]
    fn arbitrary_datagrams_harm_nobody(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..64), 0..50),
    ) {
        let Pair { mut executor, client, server, .. } = pair();
        let sent = datagrams.len() as u64;
        let malformed = executor.run(async move {
            for mut bytes in datagrams {
                client.lane().send(SERVER, &bytes);
                // The same bytes, changed to pass for a fragment of a reply.
                let plausible = [1, 1, 0, 0, 0, 0, 1, 0];
                let fixed = bytes.len().min(plausible.len());
                bytes[..fixed].copy_from_slice(&plausible[..fixed]);
                server.lane().send(CLIENT, &bytes);
            }
            let reply = client.call(SERVER, ECHO, b"after all that", PATIENT).await;
            assert_eq!(*reply.expect("answered"), *b"after all that");
            server.malformed()
        });
        prop_assert!(malformed <= sent);
    }
}
