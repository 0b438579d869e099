//! Tests of the model of a cluster, on times and samples that are made up.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Time of a number of milliseconds.
pub fn at(ms: u64) -> Nanos {
    Nanos(ms * 1_000_000)
}

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

/// States of two memory nodes and two compute nodes.
pub fn outline(states: [&'static str; 4]) -> Outline {
    let names = ["mn-0", "mn-1", "cn-0", "cn-1"].map(name);
    Outline {
        authority: "answers",
        reason: None,
        epoch: Some(4),
        copies: Some(2),
        data: Some("loaded"),
        states: names.into_iter().zip(states).collect(),
    }
}

/// A compute node that has run for so long, and committed so much.
pub fn sample(uptime_s: f64, committed: f64) -> Sample {
    let of = |label: &str, value: f64| (label.to_owned(), value);
    Sample {
        uptime_s,
        processor_s: uptime_s / 2.0,
        resident: Some(90e6),
        committed,
        aborts: BTreeMap::from([of("conflict", committed / 10.0), of("timeout", 0.0)]),
        latencies: vec![
            (0.000_1, committed * 0.4),
            (0.000_2, committed * 0.9),
            (0.005, committed),
            (f64::INFINITY, committed),
        ],
        own_locks: committed * 3.0,
        far_locks: committed,
        shards: Some(2048.0),
        shards_moved: 3.0,
        epoch: Some(4.0),
        takes_part: Some(true),
        lease_left_s: Some(0.9),
        memory: BTreeMap::from([("mn-1".to_owned(), (3e6, 256e6))]),
        ..Sample::default()
    }
}

/// A cluster of two memory nodes, one with metrics, and two compute nodes.
pub fn model() -> ClusterModel {
    let nodes = [("mn-0", false), ("mn-1", true), ("cn-0", true), ("cn-1", true)];
    let nodes = nodes.map(|(node, has_metrics)| (name(node), has_metrics));
    ClusterModel::new("c.toml".to_owned(), nodes, SECOND, at(0))
}

/// Takes in a node's answer.
pub fn tell(model: &mut ClusterModel, node: &str, ms: u64, answer: Result<Sample, MetricsError>) {
    let answer = answer.map(Box::new);
    model.take(ClusterNews::Asked { node: name(node), at: at(ms), answer });
}

/// What is shown of a cluster.
pub fn view(model: &ClusterModel, ms: u64) -> ClusterView {
    match model.view(at(ms)) {
        View::Cluster(view) => view,
        View::Bench(_) => panic!("it is a cluster"),
    }
}

/// A cluster whose compute nodes have answered twice.
pub fn busy() -> ClusterModel {
    let mut model = model();
    model.take(ClusterNews::Surveyed { at: at(0), outline: outline([SERVING; 4]) });
    let lends = Sample { uptime_s: 1.0, region: Some((9e6, 256e6)), ..Sample::default() };
    tell(&mut model, "mn-1", 0, Ok(lends.clone()));
    for (ms, uptime) in [(0, 10.0), (1_000, 11.0)] {
        tell(&mut model, "cn-0", ms, Ok(sample(uptime, uptime * 2_000.0)));
        tell(&mut model, "cn-1", ms, Ok(sample(uptime, uptime * 1_000.0)));
        model.tick(at(ms));
    }
    tell(&mut model, "mn-1", 1_000, Ok(Sample { uptime_s: 2.0, ..lends }));
    model
}

#[test]
fn states_are_those_of_status_unless_metrics_know_better() {
    let nonsense = MetricsError::Nonsense("line 1 is no metric".to_owned());
    let closed = MetricsError::Unreachable("refused".to_owned());
    // What status says, the trouble, whether a memory node is silent, whether a node takes part.
    let cases = [
        (Some("serving"), None, false, Some(true), ("serving", Mood::Good)),
        (Some("serving"), None, false, None, ("serving", Mood::Good)),
        (Some("serving"), Some(&MetricsError::Silent), false, None, ("unreachable", Mood::Bad)),
        (Some("serving"), Some(&closed), false, None, ("unreachable", Mood::Bad)),
        (Some("serving"), Some(&nonsense), false, None, ("nonsense", Mood::Bad)),
        (Some("serving"), None, true, None, ("silent", Mood::Bad)),
        (Some("serving"), None, false, Some(false), ("expelled", Mood::Bad)),
        (Some("expelled"), Some(&closed), false, None, ("expelled", Mood::Bad)),
        (Some("in recovery"), Some(&closed), false, None, ("in recovery", Mood::Bad)),
        (Some("ended"), Some(&closed), false, None, ("ended", Mood::Bad)),
        (Some("lost"), Some(&closed), true, None, ("lost", Mood::Bad)),
        (Some("starting"), Some(&closed), false, None, ("starting", Mood::Changing)),
        (Some("joining"), None, false, Some(true), ("joining", Mood::Changing)),
        (Some("resting"), None, false, Some(true), ("resting", Mood::Changing)),
        (Some("unknown"), None, false, Some(true), ("running", Mood::Changing)),
        (None, None, false, None, ("unknown", Mood::Changing)),
        (None, Some(&closed), false, None, ("unreachable", Mood::Bad)),
    ];
    for (said, trouble, silent, takes_part, (state, mood)) in cases {
        let expected = (state.to_owned(), mood);
        assert_eq!(judge(said, trouble, silent, takes_part), expected, "{said:?} {trouble:?}");
    }
}

#[test]
fn rates_of_all_nodes_add_up() {
    let view = view(&busy(), 1_000);
    assert_eq!((view.serving, view.epoch, view.copies), ((4, 4), Some(4), Some(2)));
    assert!(view.committed.is_some_and(|rate| (rate - 3_000.0).abs() < 1e-6), "{view:?}");
    assert_eq!(view.aborts.len(), 1, "reasons without aborts are left out");
    assert!((view.aborts["conflict"] - 300.0).abs() < 1e-6);
    let close = |found: Option<f64>, expected: f64| {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-6), "{found:?}");
    };
    close(view.p50_ms, 0.12);
    close(view.compute[0].p99_ms, 0.2 + 4.8 * 0.9);
    close(view.compute[1].locks, 4_000.0);
    close(view.compute[1].own_locks, 0.75);
    close(view.compute[0].processors, 0.5);
    assert_eq!(view.memory[1].used, Some((3_000_000, 256_000_000)), "as compute nodes see it");
    assert_eq!((view.memory[0].used, view.authority.as_str()), (None, "answers"));
}

#[test]
fn a_node_that_dies_and_comes_back_never_shows_a_rate_that_was_not() {
    let mut model = busy();
    let closed = || Err(MetricsError::Unreachable("connection refused".to_owned()));
    tell(&mut model, "cn-1", 2_000, closed());
    let dead = view(&model, 2_000);
    assert_eq!((&*dead.compute[1].state, dead.compute[1].committed), ("unreachable", None));
    assert_eq!(dead.compute[1].trouble.as_deref(), Some("connection refused"));
    assert!(dead.committed.is_some_and(|rate| (rate - 2_000.0).abs() < 1e-6));
    // It is back with less than it had, or with more.
    for committed in [5.0, 1e9] {
        let mut back = busy();
        tell(&mut back, "cn-1", 2_000, closed());
        tell(&mut back, "cn-1", 9_000, Ok(sample(0.5, committed)));
        let known = view(&back, 9_000);
        assert_eq!((&*known.compute[1].state, known.compute[1].committed), ("serving", None));
        tell(&mut back, "cn-1", 10_000, Ok(sample(1.5, committed + 40.0)));
        let rate = view(&back, 10_000).compute[1].committed;
        assert!(rate.is_some_and(|rate| (rate - 40.0).abs() < 1e-6), "{rate:?}");
    }
}

#[test]
fn an_answer_right_after_a_late_one_makes_no_rate_of_its_own() {
    let mut model = busy();
    tell(&mut model, "cn-0", 1_010, Ok(sample(11.01, 26_000.0)));
    let rate = view(&model, 1_010).compute[0].committed;
    assert!(rate.is_some_and(|rate| (rate - 2_000.0).abs() < 1e-6), "{rate:?}");
    tell(&mut model, "cn-0", 2_000, Ok(sample(12.0, 26_000.0)));
    let rate = view(&model, 2_000).compute[0].committed;
    assert!(rate.is_some_and(|rate| (rate - 4_000.0).abs() < 1e-6), "{rate:?}");
}

#[test]
fn memory_nodes_are_silent_if_a_compute_node_says_so() {
    let mut model = busy();
    let silent = Sample { silent: vec!["mn-0".to_owned()], ..sample(12.0, 30_000.0) };
    tell(&mut model, "cn-0", 2_000, Ok(silent));
    let view = view(&model, 2_000);
    assert_eq!((&*view.memory[0].state, &*view.memory[1].state), ("silent", "serving"));
    assert_eq!(view.serving, (3, 4));
}

#[test]
fn an_authority_that_does_not_answer_is_named_with_the_time() {
    let mut model = busy();
    assert_eq!(view(&model, 4_000).authority, "answers");
    let late = view(&model, 9_500);
    assert_eq!((&*late.authority, late.authority_is_well), ("no answer for 9 s", false));
    let why = "connection refused".to_owned();
    let gone = Outline {
        authority: "unreachable",
        reason: Some(why),
        ..outline(["running", "running", "running", "unknown"])
    };
    model.take(ClusterNews::Surveyed { at: at(9_600), outline: gone });
    let view = view(&model, 9_600);
    assert_eq!((&*view.authority, view.authority_is_well), ("unreachable", false));
    assert_eq!(view.authority_why.as_deref(), Some("connection refused"));
    assert_eq!(view.compute[1].state, "running", "it answers");
}

#[test]
fn the_last_minute_has_a_point_for_each_second_and_no_more() {
    let mut model = busy();
    let points = |model: &ClusterModel| view(model, 0).history.len();
    assert_eq!(points(&model), 0, "the first rate came with the last look");
    model.tick(at(1_000));
    assert_eq!(points(&model), 1);
    model.tick(at(1_500));
    assert_eq!(points(&model), 1);
    model.tick(at(4_100));
    assert_eq!(points(&model), 4, "looks that were late");
    model.tick(at(1_000_000));
    model.tick(at(1_000_900));
    assert_eq!(points(&model), HISTORY);
}

#[test]
fn a_frame_alone_waits_for_all_that_answer_or_fail() {
    let mut model = model();
    tell(&mut model, "cn-0", 0, Ok(sample(10.0, 0.0)));
    tell(&mut model, "cn-0", 1_000, Ok(sample(11.0, 5.0)));
    tell(&mut model, "cn-1", 0, Err(MetricsError::Silent));
    tell(&mut model, "mn-1", 0, Err(MetricsError::Silent));
    assert!(!model.is_complete(), "states are missing");
    model.take(ClusterNews::Surveyed { at: at(0), outline: outline([SERVING; 4]) });
    assert!(model.is_complete());
    tell(&mut model, "mn-1", 500, Ok(Sample { uptime_s: 1.0, ..Sample::default() }));
    assert!(!model.is_complete(), "one answer makes no rate");
}
