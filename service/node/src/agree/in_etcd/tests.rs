//! Tests against a real server (Debian's `etcd-server`).

#[path = "../../../../../authority/tests/common/mod.rs"]
mod common;

use std::sync::atomic::AtomicU64;

use lotus_fabric::env::Clock;

use super::*;

fn connection(server: &common::Server) -> InEtcd {
    let options = Options::new(vec![server.endpoint()], "/lotus/");
    let (life, looks) = (Mutex::default(), Mutex::default());
    InEtcd { options, life, looks, is_over: AtomicBool::default(), told: AtomicBool::default() }
}

/// A clock that moves when a test moves it.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Regression: a founder ended before there was a cluster, and another began a life of its own.
/// Nodes that had found the first life waited there for ever.
#[test]
fn a_node_that_waits_goes_over_to_the_next_life_and_one_that_takes_part_stays() {
    let server = common::Server::start();
    let founder = connection(&server);
    let seen = common::eventually(|| founder.last_word().map_err(|error| error.to_string()));
    founder.begin(seen).expect("nothing has been said yet");
    let hand = Arc::new(Hand(AtomicU64::new(1)));
    let env = Env::with_clock(Arc::clone(&hand) as Arc<dyn Clock>, 0);
    let (waits, stays) = (connection(&server), connection(&server));
    for node in [&waits, &stays] {
        node.connect().expect("there is a life");
        node.follow(&env);
    }
    stays.stay(&env);
    founder.end().expect("it answers");
    let next = connection(&server);
    next.begin(next.last_word().expect("it answers")).expect("the first has ended");
    next.compare_and_swap("a", Version::ABSENT, b"next").expect("it answers");
    let value = |of: &InEtcd| of.read("a").expect("it answers").map(|found| found.value);
    assert_eq!((value(&waits), value(&stays)), (None, None), "it is not time to look");
    hand.0.fetch_add(LOOKS.as_nanos() as u64, Ordering::Relaxed);
    assert_eq!(value(&waits), Some(b"next".to_vec()));
    assert_eq!(stays.read("a"), Err(AuthorityError::Unavailable), "its life has ended");
    assert!(stays.is_over() && !waits.is_over());
    assert_eq!((stays.silence(), waits.silence()), (Duration::MAX, Duration::ZERO));
    next.end().expect("it answers");
    hand.0.fetch_add(LOOKS.as_nanos() as u64, Ordering::Relaxed);
    assert_eq!(waits.read("a"), Err(AuthorityError::Unavailable), "no cluster runs");
    assert!(!waits.is_over(), "it takes part in none");
}

#[test]
fn a_life_begins_only_if_nothing_was_said_since_the_last_look() {
    let server = common::Server::start();
    let (slow, quick) = (connection(&server), connection(&server));
    let seen = common::eventually(|| slow.last_word().map_err(|error| error.to_string()));
    assert_eq!(seen.life(), None);
    quick.begin(seen).expect("nothing has been said yet");
    let goes_on = quick.last_word().expect("it answers");
    assert!(matches!(slow.begin(seen), Err(AuthorityUnreachable::Refused(_))));
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
