//! Tests of when a load ends, and which process ends it.

use lotus_authority::EmbeddedAuthority;
use lotus_authority::testing::{QuestionOutcome, TestAuthority};
use lotus_fabric::ids::Incarnation;

use super::*;

const FOUNDER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);
const PATIENCE: Duration = Duration::from_secs(10);

fn at(secs: u64) -> Nanos {
    Nanos(0).after(Duration::from_secs(secs))
}

/// A cluster that was founded and is not loaded.
fn founded() -> EmbeddedAuthority {
    let authority = EmbeddedAuthority::new();
    let life = |number| Incarnation::new(number).expect("it fits");
    let members = Membership::new([(FOUNDER, life(1)), (OTHER, life(2))]);
    membership::found(&authority, &members).expect("nobody was faster");
    authority
}

fn say(authority: &dyn Authority, rows: u64) {
    let (version, _) = progress(authority).expect("it answers");
    authority.compare_and_swap(PROGRESS_KEY, version, &rows.to_le_bytes()).expect("it answers");
}

fn is_cut(data: &Data) -> bool {
    matches!(data, Data::CutShort { .. })
}

fn is_loading(data: &Data) -> bool {
    matches!(data, Data::Loading { .. })
}

#[test]
fn waiting_lasts_as_long_as_the_founder_says_something() {
    let authority = founded();
    let mut watch = LoadWatch::new(PATIENCE);
    for turn in 0..100 {
        say(&authority, turn);
        let data = watch.ask(at(turn * 9), FOUNDER, &authority).expect("it answers");
        assert!(matches!(data, Data::Loading { rows, .. } if rows == turn), "{data:?}");
    }
    write_once(&authority, KEY, LOADED.as_bytes()).expect("it answers");
    assert_eq!(watch.ask(at(900), FOUNDER, &authority).expect("it answers"), Data::Loaded);
}

#[test]
fn a_founder_that_says_nothing_any_more_has_its_load_cut_short_and_cannot_end_it() {
    let authority = founded();
    let mut watch = LoadWatch::new(PATIENCE);
    say(&authority, 7);
    let mut look = |secs| watch.ask(at(secs), FOUNDER, &authority).expect("it answers");
    assert!(is_loading(&look(0)) && is_loading(&look(9)));
    assert!(is_cut(&look(10)));
    let stands = write_once(&authority, KEY, LOADED.as_bytes()).expect("it answers");
    assert!(is_cut(&Data::decode(&stands)), "the founder wakes up too late");
}

#[test]
fn a_founder_that_is_out_or_lives_anew_has_its_load_cut_short_at_once() {
    let rejoined = |now: &Membership| {
        let mut out = now.expel(OTHER, FOUNDER)?;
        let part = out.claimable(OTHER)?;
        out = out.claim(OTHER, part)?.finish(OTHER, part)?.acknowledge(OTHER, out.epoch())?;
        out.rejoin(&[FOUNDER])
    };
    let expelled = |now: &Membership| now.expel(OTHER, FOUNDER);
    for lost in [&rejoined as &dyn Fn(&Membership) -> Option<Membership>, &expelled] {
        let authority = founded();
        let mut watch = LoadWatch::new(PATIENCE);
        let data = watch.ask(at(0), FOUNDER, &authority).expect("it answers");
        assert!(is_loading(&data), "{data:?}");
        membership::change(&authority, lost).expect("it answers");
        assert!(is_cut(&watch.ask(at(1), FOUNDER, &authority).expect("it answers")));
    }
}

#[test]
fn data_that_is_there_stays_there_whatever_becomes_of_the_founder() {
    let authority = founded();
    write_once(&authority, KEY, LOADED.as_bytes()).expect("it answers");
    membership::change(&authority, |now| now.expel(OTHER, FOUNDER)).expect("it answers");
    let mut watch = LoadWatch::new(Duration::ZERO);
    assert_eq!(watch.ask(at(0), FOUNDER, &authority).expect("it answers"), Data::Loaded);
    assert_eq!(cut_short(&authority, "late").expect("it answers"), Data::Loaded);
}

#[test]
fn silence_of_the_authority_is_not_the_founders() {
    let authority = TestAuthority::over(founded());
    let mut watch = LoadWatch::new(PATIENCE);
    let mut look = |secs| watch.ask(at(secs), FOUNDER, &authority);
    look(0).expect("it answers");
    authority.turn(QuestionOutcome::QuestionLost);
    assert!(look(9).is_ok(), "it may come back");
    authority.turn(QuestionOutcome::Answered);
    assert!(is_loading(&look(12).expect("it answers")));
    authority.turn(QuestionOutcome::QuestionLost);
    assert!(look(21).is_ok());
    assert!(matches!(look(22), Err(ClusterError::Authority(AuthorityError::Unavailable))));
}

#[test]
fn whatever_stands_there_and_is_not_the_word_is_no_data() {
    assert_eq!(Data::decode(b"loaded"), Data::Loaded);
    assert_eq!(Data::decode(b"cut short: no"), Data::CutShort { why: "no".to_owned() });
    for garbage in [&b"loaded "[..], b"", b"\xff"] {
        assert!(is_cut(&Data::decode(garbage)), "{garbage:?}");
    }
}
