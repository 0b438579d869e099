//! What a profile accepts and refuses, and the built-in ones.

use super::*;

const IDEAL: &str = include_str!("../../../../profiles/ideal.toml");

#[test]
fn every_built_in_profile_parses_and_bears_its_name() {
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name(), name);
        assert!(!profile.summary().is_empty());
    }
}

#[test]
fn rates_become_times() {
    let costs = Profile::named("cx3-56g").expect("built in").costs;
    assert_eq!(costs.atomics.unit, 400_000);
    assert_eq!(costs.inbound.of(VerbKind::Write), 28_571);
    // 50 bytes at 54.5 Gbps.
    assert_eq!(costs.transmission(8), 50 * 147);
    assert_eq!(Profile::ideal().costs.transmission(1000), 0);
}

#[test]
fn what_not_every_nic_has_is_absent_unless_the_profile_has_it() {
    let good = IDEAL;
    let depth = |value: &str| {
        let constant = format!("{{ value = {value}, source = \"a test\" }}");
        let text = format!("{good}\n[connection]\ninitiator_depth = {constant}");
        Profile::parse("p", text.as_bytes()).map(|profile| profile.costs.initiator_depth)
    };
    assert_eq!(Profile::ideal().costs.initiator_depth, None);
    assert_eq!(depth("16").expect("well-formed"), Some(16));
    for (value, part) in [("0", "between"), ("256", "between"), ("1.5", "whole")] {
        let error = depth(value).expect_err("malformed").to_string();
        let line = good.lines().count() + 3;
        assert!(error.starts_with(&format!("p, line {line}: ")), "{error}");
        assert!(error.contains(part), "{error} has no {part}");
    }
}

#[test]
fn messages_between_compute_nodes_have_a_delay_of_their_own_if_the_profile_says_so() {
    let with = |key: &str| {
        let text = IDEAL.replace("jitter_ns", &format!("{key}\njitter_ns"));
        Profile::parse("p", text.as_bytes()).map(|profile| profile.costs.cn_cn_delay)
    };
    let key = "cn_cn_delay_ns = { value = 4000, source = \"a test\" }";
    assert_eq!(with("").expect("well-formed"), None);
    assert_eq!(with(key).expect("well-formed"), Some(4_000_000));
    let profile = Profile::ideal().with_cn_cn_delay(Duration::from_nanos(7));
    assert_eq!(profile.costs.cn_cn_delay, Some(7_000));
    for (key, part) in
        [(key.replace("4000", "-1"), "between"), (key.replace("a test", ""), "source")]
    {
        let error = with(&key).expect_err("malformed").to_string();
        assert!(error.contains(part), "{error} has no {part}");
    }
}

#[test]
fn the_data_of_larger_writes_is_fetched_if_the_profile_says_so() {
    let with = |keys: &str| {
        let text = IDEAL.replace("[atomic_unit]", &format!("{keys}\n[atomic_unit]"));
        Profile::parse("p", text.as_bytes()).map(|profile| profile.costs.outbound)
    };
    let limit = "inline_bytes = { value = 64, source = \"a test\" }\n";
    let dma = "dma_ns = { value = 20, source = \"a test\" }";
    let services = with(&(limit.to_owned() + dma)).expect("well-formed");
    assert_eq!((services.inline_bytes, services.dma), (64, 20_000));
    let services = with("").expect("well-formed");
    assert_eq!((services.inline_bytes, services.dma), (usize::MAX, 0));
    let refused = [
        (limit.to_owned(), "only together"),
        (dma.to_owned(), "only together"),
        (limit.replace("64", "-1") + dma, "between"),
        (limit.replace("64", "6.5") + dma, "whole"),
        (limit.replace("a test", "") + dma, "source"),
    ];
    for (keys, part) in refused {
        let error = with(&keys).expect_err("malformed").to_string();
        let line = IDEAL.lines().position(|line| line == "[atomic_unit]");
        let line = line.expect("it has one") + 1;
        assert!(error.starts_with(&format!("p, line {line}: ")), "{error}");
        assert!(error.contains(part), "{error} has no {part}");
    }
}

#[test]
fn wide_atomics_take_their_own_time_if_the_profile_says_so() {
    let with = |rate: &str, extended: &str| {
        let text = BUILT_IN[0].1.replace("[link]", &format!("{rate}\n[link]"));
        let profile = Profile::parse("p", (text + extended).as_bytes());
        profile.map(|profile| profile.costs.atomics.wide)
    };
    let flag =
        |value: bool| format!("\n[extended]\nwide = {{ value = {value}, source = \"a test\" }}");
    let rate = "wide_mops = { value = 2, source = \"a test\" }";
    assert_eq!(Profile::ideal().costs.atomics.wide, Some(0));
    for (rate, extended, expected) in [
        ("", String::new(), None),
        ("", flag(false), None),
        ("", flag(true), Some(400_000)),
        (rate, flag(true), Some(500_000)),
    ] {
        assert_eq!(with(rate, &extended).expect("well-formed"), expected);
    }
    let line = 1 + BUILT_IN[0].1.lines().position(|line| line == "[link]").expect("it has one");
    for (rate, extended, part) in [
        (rate.to_owned(), String::new(), "only with extended.wide"),
        (rate.to_owned(), flag(false), "only with extended.wide"),
        (rate.replace("value = 2", "value = 0"), flag(true), "between"),
        (rate.replace("a test", ""), flag(true), "source"),
    ] {
        let error = with(&rate, &extended).expect_err("malformed").to_string();
        assert!(error.starts_with(&format!("p, line {line}: ")), "{error}");
        assert!(error.contains(part), "{error} has no {part}");
    }
    let error = with("", &flag(true).replace("a test", "")).expect_err("no source").to_string();
    assert!(error.contains("source"), "{error}");
}

#[test]
fn one_factor_multiplies_all_times_of_cores_if_the_profile_says_so() {
    let with = |factor: &str| {
        let text = BUILT_IN[0].1.replace("[cpu]", &format!("[cpu]\n{factor}"));
        Profile::parse("p", text.as_bytes()).map(|profile| profile.costs)
    };
    let times = |costs: &Costs| {
        let Cpu { poll, completion, verb, doorbell, send, receive, transaction } = costs.cpu;
        [poll, completion, verb, doorbell, send, receive, transaction]
    };
    let (once, slower) = ("", "factor = { value = 10.5, source = \"a test\" }");
    let [before, after] = [once, slower].map(|factor| with(factor).expect("well-formed"));
    assert_eq!(times(&after), times(&before).map(|time| time * 21 / 2));
    assert!(times(&before).iter().all(|time| *time > 0));
    // Nothing else.
    assert_eq!(after.delay, before.delay);
    assert_eq!(after.atomics.unit, before.atomics.unit);
    let line = 2 + BUILT_IN[0].1.lines().position(|line| line == "[cpu]").expect("it has one");
    for (factor, part) in [
        (slower.replace("10.5", "0"), "between"),
        (slower.replace("10.5", "nan"), "between"),
        (slower.replace("10.5", "1001"), "between"),
        (slower.replace("a test", ""), "source"),
    ] {
        let error = with(&factor).expect_err("malformed").to_string();
        assert!(error.starts_with(&format!("p, line {line}: ")), "{error}");
        assert!(error.contains(part), "{error} has no {part}");
    }
}

#[test]
fn servers_and_switches_take_time_if_the_profile_says_so() {
    let with = |keys: &str| {
        let profile = Profile::parse("p", format!("{IDEAL}\n{keys}").as_bytes());
        profile.map(|profile| (profile.server_request(), profile.switch_pipeline()))
    };
    let server = "[server]\nrequest_ns = { value = 2700, source = \"a test\" }\n";
    let switch = "[switch]\npipeline_ns = { value = 0.5, source = \"a test\" }\n";
    assert_eq!(with("").expect("well-formed"), (None, None));
    let (request, pipeline) = with(&(server.to_owned() + switch)).expect("well-formed");
    assert_eq!(request, Some(Duration::from_nanos(2700)));
    assert_eq!(pipeline, Some(Duration::ZERO), "less than a nanosecond");
    let profile = Profile::parse("p", format!("{IDEAL}\n{switch}").as_bytes());
    assert_eq!(profile.expect("well-formed").costs.pipeline, Some(500));
    for (keys, part) in [
        (server.replace("2700", "-1"), "between"),
        (switch.replace("0.5", "inf"), "between"),
        (server.replace("a test", ""), "source"),
        (switch.replace("a test", " "), "source"),
        (switch.replace("pipeline", "pipe"), "unknown field"),
    ] {
        let error = with(&keys).expect_err("malformed").to_string();
        let line = IDEAL.lines().count() + 3;
        assert!(error.starts_with(&format!("p, line {line}: ")), "{error}");
        assert!(error.contains(part), "{error} has no {part}");
    }
    let testbed = Profile::named("tofino-cx5").expect("built in");
    assert_eq!(testbed.server_request(), Some(Duration::from_nanos(2700)));
    assert!(testbed.switch_pipeline().is_some_and(|time| time < Duration::from_micros(1)));
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = Profile::named("cx9").expect_err("no such profile").to_string();
    let known = "cx3-56g, cx3-56g-fitted, cx4-100g, cx5-100g, ideal, tofino-cx5";
    assert_eq!(error, format!("unknown profile \"cx9\"; known are {known}"));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let good = IDEAL;
    let line_of = |part: &str| {
        1 + good.lines().position(|line| line.contains(part)).expect("part of the profile")
    };
    let cases: [(String, usize, &str); 10] = [
        (good.replace("value = 100,", "value = -1,"), line_of("value = 100,"), "between"),
        (good.replace("value = 100,", "value = nan,"), line_of("value = 100,"), "between"),
        (good.replace("value = 20,", "value = \"x\","), line_of("value = 20,"), "invalid type"),
        (good.replace("delay_ns", "delay_us"), line_of("delay_ns"), "delay_us"),
        (good.replace("poll_ns", "?"), line_of("poll_ns"), ""),
        ("name = \"x\"".to_owned(), 1, "missing field"),
        (good.replacen("\"by definition\"", "\" \"", 1), line_of("read_mops"), "source"),
        (good.replacen("value = inf", "value = 0", 1), line_of("read_mops"), "between"),
        (good.replace("value = true", "value = 1"), line_of("masked"), "invalid type"),
        (
            good.replace("true, source = \"by definition\"", "true, source = \"\""),
            line_of("masked"),
            "source",
        ),
    ];
    for (text, expected, part) in cases {
        let error = Profile::parse("p", text.as_bytes()).expect_err("malformed");
        let ProfileError::Malformed { line, message, .. } = error else { panic!("{error}") };
        assert_eq!(line, expected, "{message}");
        assert!(message.contains(part), "{message} has no {part}");
    }
    let error = Profile::parse("p", b"name = \"x\"\n\xFF\xFE").expect_err("garbage");
    assert_eq!(error.to_string(), "p, line 2: not text (UTF-8)");
}
