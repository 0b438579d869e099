//! What a schedule may say, and what is refused.

use super::*;

fn bounds() -> Bounds {
    Bounds {
        memory_nodes: 2,
        replicas: 2,
        cables: false,
        hosts_authority: true,
        compute_nodes: 4,
        lease: Some(Duration::from_secs(2)),
        span: Duration::from_secs(20),
        snapshots: true,
    }
}

/// Its memory would be given up, and not be used again before the cluster is started anew.
#[test]
fn the_authority_s_host_is_away_for_a_moment_at_most() {
    let strike = |(at_ms, fault): &(u64, &str)| {
        format!("{{\"at_ms\":{at_ms},\"node\":\"mn-0\",\"fault\":\"{fault}\"}}\n")
    };
    let parse =
        |strikes: &[(u64, &str)]| bounds().parse(&strikes.iter().map(strike).collect::<String>());
    let moments = [(1, "pause"), (1001, "resume"), (1100, "pause"), (1200, "resume")];
    assert_eq!(parse(&moments).map(|events| events.len()), Ok(4));
    let refused = |strikes: &[(u64, &str)]| parse(strikes).expect_err("it is refused");
    let long = refused(&[(1, "pause"), (1002, "resume")]);
    assert_eq!((long.line, long.why.contains("1000 ms, half a lease")), (2, true), "{long}");
    let open = refused(&[(1, "pause"), (100, "resume"), (200, "pause")]);
    assert_eq!((open.line, open.why.contains("still away")), (3, true), "{open}");
    // It keeps what it has, so another one may go.
    let bounds = Bounds { memory_nodes: 3, ..bounds() };
    let kill = "{\"at_ms\":900,\"node\":\"mn-1\",\"fault\":\"kill\"}\n";
    let both = |count| moments[..count].iter().map(strike).chain([kill.to_owned()]);
    assert!(bounds.parse(&both(1).collect::<String>()).is_err());
    let kill = kill.replace("900", "1300");
    let both = moments.iter().map(strike).chain([kill]).collect::<String>();
    assert_eq!(bounds.parse(&both).map(|events| events.len()), Ok(5));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_line() {
    let cases = [
        (r#"{"at_ms":1,"node":"cn-1","fault":"melt"}"#, 1, "unknown variant `melt`"),
        (r#"{"at_ms":1,"node":"cn-x","fault":"kill"}"#, 1, "`cn-x` is no node"),
        (r#"{"at_ms":1,"node":"cn-1"}"#, 1, "missing field `fault`"),
        ("# a word\n\n{\"at_ms\":1,\"node\":\"cn-9\",\"fault\":\"kill\"}", 3, "no cn-9"),
        (r#"{"at_ms":1,"node":"mn-0","fault":"kill"}"#, 1, "the authority would go with it"),
        (r#"{"at_ms":1,"node":"mn-1","fault":"restart"}"#, 1, "mn-1 has not been killed"),
        (r#"{"at_ms":1,"node":"cn-1","fault":"resume"}"#, 1, "cn-1 is not paused"),
        (r#"{"at_ms":1,"node":"cn-1","fault":"partition"}"#, 1, "see --namespaces"),
        (r#"{"at_ms":20001,"node":"cn-1","fault":"kill"}"#, 1, "no load any more"),
    ];
    for (text, line, why) in cases {
        let refused = bounds().parse(text).expect_err(text);
        assert!(refused.line == line && refused.why.contains(why), "{text}: {refused}");
    }
    let twice = |one: &str, other: &str| {
        let line = |fault: &str| format!("{{\"at_ms\":1,\"node\":\"cn-1\",\"fault\":{fault}}}\n");
        bounds().parse(&[line(one), line(other)].concat()).expect_err(other)
    };
    assert_eq!(twice("\"kill\"", "\"pause\"").why, "cn-1 has been killed before");
    assert_eq!(twice("\"pause\"", "\"pause\"").to_string(), "line 2: cn-1 is paused already");
    let wired = Bounds { cables: true, ..bounds() };
    let refused = |first: &str, second: &str| {
        let fault =
            |fault: &str| format!("{{\"at_ms\":1,\"node\":\"cn-1\",\"fault\":\"{fault}\"}}\n");
        wired.parse(&[fault(first), fault(second)].concat()).map_err(|error| error.why)
    };
    assert_eq!(refused("partition", "heal").map(|strikes| strikes.len()), Ok(2));
    assert_eq!(refused("partition", "kill").map(|strikes| strikes.len()), Ok(2));
    assert_eq!(refused("partition", "pause"), Err("cn-1 is cut off".to_owned()));
    assert_eq!(refused("pause", "heal"), Err("cn-1 is paused".to_owned()));
    assert_eq!(refused("kill", "heal"), Err("cn-1 has been killed before".to_owned()));
    assert_eq!(refused("heal", "kill"), Err("cn-1 is not cut off".to_owned()));
    let back = "{\"at_ms\":5,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                {\"at_ms\":4,\"node\":\"cn-1\",\"fault\":\"resume\"}";
    assert_eq!(bounds().parse(back).expect_err("it goes back").line, 2);
    let kill = |node| format!("{{\"at_ms\":1,\"node\":\"cn-{node}\",\"fault\":\"kill\"}}\n");
    let all = [0, 1, 3, 2].map(kill).concat();
    assert_eq!(bounds().parse(&all).expect_err("one must be left").line, 4);
    let memory = Bounds { memory_nodes: 3, hosts_authority: false, ..bounds() };
    let all = [0, 0, 2].map(|node| kill(node).replace("cn", "mn").replace("kill", "pause"));
    let both = [all[0].clone(), all[1].replace("pause", "resume"), all[2].clone()].concat();
    assert_eq!(memory.parse(&both).expect_err("they share rows").line, 3);
    assert!(Bounds { replicas: 3, ..memory }.parse(&both).is_ok());
    let anew = |node: u16, at_ms: u64, fault: &str| {
        format!("{{\"at_ms\":{at_ms},\"node\":\"mn-{node}\",\"fault\":\"{fault}\"}}\n")
    };
    let first = [anew(1, 1, "kill"), anew(1, 2, "restart")].concat();
    assert!(memory.parse(&(first.clone() + &anew(2, 9000, "kill"))).is_ok());
    let early = memory.parse(&(first + &anew(2, 7000, "kill")));
    assert_eq!(early.expect_err("it may not have been filled").line, 3);
    let only_copy = Bounds { replicas: 1, ..memory }.parse(&all[2]);
    assert!(only_copy.expect_err("it is gone then").why.contains("the only copies"));
    let nobody_notices = Bounds { lease: None, ..bounds() };
    let killed = r#"{"at_ms":1,"node":"cn-1","fault":"kill"}"#;
    assert!(nobody_notices.parse(killed).is_err() && nobody_notices.draw(1).is_empty());
}

#[test]
fn paths_that_no_cluster_can_do_without_are_not_cut() {
    let wired = Bounds { cables: true, memory_nodes: 3, compute_nodes: 3, ..bounds() };
    let line = |node: &str, fault: &str, other: &str| {
        format!("{{\"at_ms\":1,\"node\":\"{node}\",\"fault\":\"{fault}\",\"other\":\"{other}\"}}\n")
    };
    let cut = |node: &str, other: &str| line(node, "cut", other);
    let heal = |node: &str, other: &str| line(node, "heal", other);
    let plain = |node: &str, fault: &str| {
        format!("{{\"at_ms\":1,\"node\":\"{node}\",\"fault\":\"{fault}\"}}\n")
    };
    let sound = [
        cut("cn-2", "cn-1") + &heal("cn-2", "cn-1") + &plain("cn-2", "restart"),
        cut("cn-2", "mn-1") + &heal("cn-2", "mn-1") + &plain("cn-2", "kill"),
        cut("cn-2", "cn-1") + &plain("cn-1", "kill"),
    ];
    for text in &sound {
        let read = wired.parse(text).expect(text);
        assert_eq!(&write(&read), text);
    }
    let pair = Bounds { compute_nodes: 2, ..wired };
    assert!(pair.parse(&cut("cn-1", "cn-0")).is_ok(), "the last of two stays");
    let cases = [
        (wired, cut("cn-2", "cn-2"), "it is both ends of the path"),
        (wired, cut("cn-2", "cn-9"), "there is no cn-9"),
        (wired, cut("mn-2", "mn-1"), "memory nodes do not talk to one another"),
        (wired, cut("mn-2", "cn-1"), "the compute node gives way"),
        (wired, cut("cn-2", "mn-0"), "it would lose the authority as well"),
        (wired, plain("cn-2", "cut"), "cut needs the path's `other` end"),
        (wired, line("cn-2", "kill", "cn-1"), "only cut and heal have an `other` end"),
        (wired, heal("cn-2", "cn-1"), "cn-2 is not cut from cn-1"),
        (wired, cut("cn-2", "cn-1") + &heal("cn-2", "cn-0"), "cn-2 is cut from cn-1"),
        (wired, cut("cn-2", "cn-1") + &cut("cn-2", "cn-1"), "cn-2 is cut from cn-1"),
        (wired, cut("cn-2", "cn-1") + &plain("cn-2", "pause"), "cn-2 is cut from cn-1"),
        (wired, plain("cn-2", "pause") + &cut("cn-2", "cn-1"), "cn-2 is paused"),
        (wired, plain("cn-2", "partition") + &heal("cn-2", "cn-1"), "cn-2 is cut off"),
        (wired, plain("cn-1", "kill") + &cut("cn-2", "mn-1"), "half of the compute nodes"),
        (pair, cut("cn-1", "mn-1"), "half of the compute nodes"),
        (Bounds { replicas: 1, ..wired }, cut("cn-2", "mn-1"), "it has the only copies"),
        (Bounds { cables: false, ..wired }, cut("cn-2", "cn-1"), "see --namespaces"),
        (Bounds { lease: None, ..wired }, cut("cn-2", "cn-1"), "without lease_ms"),
    ];
    for (bounds, text, why) in cases {
        let refused = bounds.parse(&text).expect_err(&text);
        assert!(refused.why.contains(why), "{text}: {refused}");
    }
}

#[test]
fn snapshots_and_restores_that_make_no_sense_are_refused() {
    let restore = |list: &str, node: &str, fault: &str| {
        format!(
            "{{\"at_ms\":9,\"fault\":\"restore\",\"{list}\":[{{\"at_ms\":1,\"node\":\"{node}\",\
             \"fault\":\"{fault}\"}}]}}"
        )
    };
    let snapshot = r#"{"at_ms":1,"fault":"snapshot"}"#.to_owned();
    let without = Bounds { snapshots: false, ..bounds() };
    for text in [&snapshot, &restore("ending", "cn-1", "kill")] {
        let refused = without.parse(text).expect_err(text);
        assert!(refused.why.contains("no [snapshots] directory"), "{refused}");
        assert!(bounds().parse(text).is_ok());
    }
    let cases = [
        (restore("ending", "mn-1", "kill"), "no snapshot can be taken then"),
        (restore("ending", "cn-9", "kill"), "there is no cn-9"),
        (restore("starting", "cn-1", "heal"), "no cable is pulled"),
        (
            restore("ending", "cn-1", "cut\",\"other\":\"cn-0"),
            "cn-1 cannot be struck by cut: no cable is pulled",
        ),
        (restore("starting", "cn-1", "restart"), "started again anyway"),
        (restore("between", "cn-1", "kill"), "unknown field `between`"),
        (snapshot.replace("1,", "1,\"node\":\"cn-1\","), "unknown field `node`"),
        (snapshot.replace('1', "20001"), "no load any more"),
    ];
    for (text, why) in cases {
        let refused = bounds().parse(&text).expect_err(&text);
        assert!(refused.why.contains(why), "{text}: {refused}");
    }
    // The authority's host may be killed during a start: then all is begun anew.
    assert!(bounds().parse(&restore("starting", "mn-0", "kill")).is_ok());
    // A node that was killed before the restore runs again after it.
    let kill = r#"{"at_ms":8,"node":"cn-1","fault":"kill"}"#;
    let again = kill.replace('8', "10");
    let both = [kill, &restore("ending", "cn-0", "pause"), &again].join("\n");
    assert_eq!(bounds().parse(&both).map(|events| events.len()), Ok(3));
    assert!(bounds().parse(&[kill, &again].join("\n")).is_err());
}

#[test]
fn what_is_drawn_can_be_written_and_read_again() {
    let (mut killed, mut restarted) = (0, 0);
    let (mut outlasted, mut paused, mut cut_off) = (0, 0, 0);
    for (seed, cables) in (0..200).zip([false, true].into_iter().cycle()) {
        let bounds = Bounds { cables, span: Duration::from_secs(40), ..bounds() };
        let (drawn, events) = (bounds.draw(seed), bounds.draw_all(seed, 2));
        assert_eq!(events, bounds.draw_all(seed, 2));
        assert_eq!(bounds.parse(&write(&events)).as_ref(), Ok(&events), "seed {seed}");
        let count = |fault| drawn.iter().filter(|strike| strike.fault == fault).count();
        killed += count(Fault::Kill);
        restarted += count(Fault::Restart);
        for (index, strike) in drawn.iter().enumerate() {
            let mut later = drawn[index..].iter().filter(|later| later.node == strike.node);
            if matches!(strike.fault, Fault::Pause | Fault::Partition) {
                cut_off += usize::from(strike.fault == Fault::Partition);
                let resumed = later.nth(1).expect("whoever is paused is resumed");
                match resumed.at_ms - strike.at_ms {
                    0..=1000 => paused += 1,
                    _ => outlasted += 1,
                }
            }
        }
    }
    assert!(killed > 100 && outlasted > 100 && paused > 500, "{killed} {outlasted} {paused}");
    assert!(cut_off > 150 && restarted > 100, "{cut_off} {restarted}");
}
