//! Tests against a real server (Debian's `etcd-server`).

#[path = "../../../../authority/tests/common/mod.rs"]
mod common;

use super::*;

fn connection(server: &common::Server) -> InEtcd {
    let options = Options::new(vec![server.endpoint()], "/lotus/");
    InEtcd { options, life: Mutex::default(), told: AtomicBool::new(false) }
}

#[test]
fn a_life_begins_only_if_nothing_was_said_since_the_last_look() {
    let server = common::Server::start();
    let (slow, quick) = (connection(&server), connection(&server));
    let seen = common::eventually(|| slow.last_word().map_err(|error| error.to_string()));
    assert_eq!(seen.life(), None);
    quick.begin(seen).expect("nothing has been said yet");
    let goes_on = quick.last_word().expect("it answers");
    assert!(matches!(slow.begin(seen), Err(Unreached::Refused(_))));
    assert_eq!(quick.last_word().expect("it answers"), goes_on);
    slow.begin(goes_on).expect("it has looked again");
    assert!(slow.last_word().expect("it answers").life() > goes_on.life());
}

#[test]
fn a_life_is_ended_by_those_alone_that_know_it() {
    let server = common::Server::start();
    let (old, new) = (connection(&server), connection(&server));
    let seen = common::eventually(|| old.last_word().map_err(|error| error.to_string()));
    old.begin(seen).expect("nothing has been said yet");
    new.begin(new.last_word().expect("it answers")).expect("it has looked");
    let goes_on = new.last_word().expect("it answers");
    old.end().expect("it answers");
    assert_eq!(new.last_word().expect("it answers"), goes_on);
    // A connection without a life of its own ends the one that is under way.
    connection(&server).end().expect("it answers");
    assert_eq!(new.last_word().expect("it answers").life(), None);
}
