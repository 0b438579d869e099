//! What commands say of clusters that are not as they should be.

use super::*;
use std::fs;

/// Regression: a node that was asked and had not answered was shown as serving, and the cluster as
/// healthy.
#[test]
fn a_node_that_does_not_answer_is_not_shown_as_serving() {
    let described = Described::shm("honest");
    described.done(&["up"]);
    let (process, _) = node(&described.status(), "cn-1");
    signal(process, "-STOP");
    let status = described.status();
    signal(process, "-CONT");
    assert_eq!(status["healthy"], false, "{status}");
    let (_, state) = node(&status, "cn-1");
    assert!(["silent", "in recovery", "expelled"].contains(&state.as_str()), "{status}");
    assert_eq!(node(&status, "cn-0").1, "serving", "{status}");
}

/// Regression: with one more node in the file, nodes that served were shown as in recovery; and a
/// node with another port for applications took part.
#[test]
fn an_edited_file_is_told_from_the_one_that_the_cluster_was_made_with() {
    let (described, host) = Described::serving("edited");
    described.done(&["up"]);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let more = |kind: &str, client: &str| format!("[[{kind}_node]]\n{client}");
    let client = format!("client = \"{host}:7509\"\n");
    let edited = [
        file.replacen("[[compute", &(more("compute", &client) + "[[compute"), 1),
        file.replacen("[[memory", &(more("memory", "") + "[[memory"), 1),
    ];
    for edited in edited {
        fs::write(described.file(), edited).expect("it is ours");
        let status = described.status();
        for name in ["cn-0", "cn-1", "mn-0", "mn-1"] {
            assert_eq!(node(&status, name).1, "serving", "{name}: {status}");
        }
        let differs = status["file_differs"].as_str().expect("a sentence");
        assert!(differs.contains("was made with a file of 2 memory nodes"), "{differs}");
    }
    let (process, _) = node(&described.status(), "cn-1");
    signal(process, "-KILL");
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    fs::write(described.file(), file.replace(":7501\"", ":7508\"")).expect("it is ours");
    let refused = lotus(&["cn", "--file", &described.file(), "--node", "1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = text(&refused);
    assert!(said.contains(":7501") && said.contains("and this one is of"), "{said}");
    fs::write(described.file(), file).expect("it is ours");
    described.done(&["up"]);
    assert_eq!(described.status()["healthy"], true);
    assert!(described.logs().contains("expelled=[cn-1]"), "{}", described.logs());
}

/// Regression: it gave up after most of a minute.
#[test]
fn a_benchmark_says_that_no_compute_node_answers() {
    let (described, _) = Described::serving("dead");
    described.done(&["up"]);
    let status = described.status();
    ["cn-0", "cn-1"].iter().for_each(|name| signal(node(&status, name).0, "-KILL"));
    let bench = ["bench", "smallbank", "--cluster", &described.file(), "--secs", "1"];
    let refused = refusal(&lotus(&bench));
    assert!(refused.contains("does not answer: the cluster is dead"), "{refused}");
}
