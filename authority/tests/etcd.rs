//! The etcd back end of the authority against a real etcd server, which each test starts on
//! loopback ports of its own (Debian's `etcd-server`).

mod common;

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use common::{Server, eventually};
use lotus_authority::conformance;
use lotus_authority::etcd::{ConnectError, EtcdAuthority, Options};
use lotus_authority::{Authority, AuthorityError, Version, allocate_incarnation};

fn options(server: &Server) -> Options {
    Options::new(vec![server.endpoint()], "/lotus/test/")
}

/// Connects to the server, once it answers.
fn authority(options: &Options) -> EtcdAuthority {
    eventually(|| EtcdAuthority::connect(options.clone()).map_err(|error| error.to_string()))
}

#[test]
fn etcd_keeps_the_contract() {
    let server = Server::start();
    let authority = authority(&options(&server));
    conformance::run(&authority);
}

#[test]
fn incarnations_never_repeat() {
    let server = Server::start();
    let authority = authority(&options(&server));
    let taken = [(); 5].map(|()| allocate_incarnation(&authority).expect("etcd answers").raw());
    assert_eq!(taken, [1, 2, 3, 4, 5]);
}

#[test]
fn clusters_with_other_prefixes_do_not_meet() {
    let server = Server::start();
    let ours = authority(&options(&server));
    let mut options = options(&server);
    options.prefix = "/lotus/other/".into();
    let theirs = authority(&options);
    ours.compare_and_swap("key", Version::ABSENT, b"ours").expect("etcd answers");
    assert_eq!(theirs.read("key").expect("etcd answers"), None);
}

/// A cluster goes on without etcd; when etcd is back, so are its values.
#[test]
fn a_server_that_is_killed_and_started_again_knows_what_it_knew() {
    let mut server = Server::start();
    let mut options = options(&server);
    options.timeout = Duration::from_secs(5);
    let authority = authority(&options);
    let version = authority.compare_and_swap("key", Version::ABSENT, b"1").expect("etcd answers");

    server.kill();
    assert_eq!(authority.read("key"), Err(AuthorityError::Unavailable));
    let write = authority.compare_and_swap("key", version, b"2");
    assert_eq!(write, Err(AuthorityError::Unavailable));

    server.start_again();
    let found = eventually(|| authority.read("key").map_err(|error| error.to_string()));
    let found = found.expect("what was acknowledged is not lost");
    assert_eq!((found.version, found.value), (version, b"1".to_vec()));
    authority.compare_and_swap("key", version, b"2").expect("etcd answers again");
}

/// Regression: the revision of the only write after the restore was one that had been seen before:
/// a compare-and-swap on the seen version then succeeded, over a value that the process had never
/// read.
#[test]
fn a_server_that_was_restored_is_not_believed_by_whoever_knew_it_before() {
    let mut server = Server::start();
    let options = options(&server);
    let before = authority(&options);
    let seen = before.compare_and_swap("key", Version::ABSENT, b"1").expect("etcd answers");
    assert_eq!(before.read("key").expect("etcd answers").map(|found| found.version), Some(seen));
    let later = before.compare_and_swap("key", seen, b"2").expect("etcd answers");

    server.kill();
    server.start_empty();
    let after = authority(&options);
    let again = after.compare_and_swap("key", Version::ABSENT, b"other").expect("etcd answers");
    assert_eq!(again, seen, "it counts again");
    assert!(!after.has_gone_back(), "who comes later knows nothing of it");
    let answer = eventually(|| match before.read("key") {
        Err(AuthorityError::Unavailable) if !before.has_gone_back() => Err("silent".to_owned()),
        answer => Ok(answer),
    });
    assert_eq!((answer, before.has_gone_back()), (Err(AuthorityError::Unavailable), true));
    after.compare_and_swap("key", again, b"2").expect("etcd answers");
    assert_eq!(before.compare_and_swap("key", later, b"3"), Err(AuthorityError::Unavailable));
    let found = after.read("key").expect("etcd answers").expect("it was written");
    assert_eq!((found.version, found.value), (later, b"2".to_vec()), "nothing was overwritten");
}

#[test]
fn nobody_there_is_an_error_with_a_sentence() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let endpoint = format!("http://{}", nobody.local_addr().expect("it is bound"));
    // A server that listens and never answers.
    let mut options = Options::new(vec![endpoint.clone()], "/lotus/");
    options.timeout = Duration::from_millis(200);
    let error = EtcdAuthority::connect(options.clone()).expect_err("it is no etcd");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains(&endpoint), "{error}");
    // An address at which no process listens.
    drop(nobody);
    options.timeout = Duration::from_secs(20);
    let error = EtcdAuthority::connect(options).expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

/// Makes etcd demand a password.
async fn close_the_door(endpoint: String) -> Result<(), etcd_client::Error> {
    let mut client = etcd_client::Client::connect([endpoint], None).await?;
    client.user_add("root", "secret", None).await?;
    client.role_add("root").await?;
    client.user_grant_role("root", "root").await?;
    client.auth_enable().await?;
    Ok(())
}

#[test]
fn who_has_no_password_is_told_so() {
    let server = Server::start();
    drop(authority(&options(&server)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let closed = runtime.expect("a thread").block_on(close_the_door(server.endpoint()));
    closed.expect("it answers");
    let mut options = options(&server);
    for (password, said) in [(None, "user name is empty"), (Some("guess"), "invalid user")] {
        options.user = password.map(|password| ("root".into(), password.into()));
        let error = EtcdAuthority::connect(options.clone()).expect_err("it has no password");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    options.user = Some(("root".into(), "secret".into()));
    let authority = authority(&options);
    authority.compare_and_swap("key", Version::ABSENT, b"1").expect("it may write");
}
