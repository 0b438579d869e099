//! Files that documents show, or show a part of, judged by their readers: files of clusters,
//! schedules of faults, scenarios, and manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use lotus_sim::{Scenario, ScenarioError};

use super::{Block, blocks, documents};
use crate::tidy::{assert_none, root};

/// Nodes of the cluster that settings in a document are read with.
const NODES: &str = "[[memory_node]]\n[[compute_node]]\nclient = \"127.0.0.1:7500\"\n";
/// A scenario that strikes in a document are read with.
const SCENARIO: &str = "proof/sim/scenarios/h10-lost-ends.toml";
/// Where the project is, for a program beside it.
const BESIDE: &str = "../lotus/";

/// Reads a block of TOML as what it is.
fn read(text: &str) -> Result<(), String> {
    let table = text.parse::<toml::Table>().map_err(|error| error.to_string())?;
    let is_dependency = |value: &toml::Value| value.get("path").is_some();
    if let Some(dependencies) = table.get("dependencies").and_then(toml::Value::as_table) {
        manifest(dependencies)
    } else if table.values().all(is_dependency) {
        manifest(&table)
    } else if table.contains_key("strikes") {
        scenario(text)
    } else if table.contains_key("fabric") {
        cluster(text)
    } else {
        cluster(&format!("fabric = \"shm\"\n{text}\n{NODES}"))
    }
}

/// Reads a whole file of a cluster.
fn cluster(text: &str) -> Result<(), String> {
    match lotus_cli::documents::cluster_file(text) {
        // Other builds have etcd.
        Err(why) if why.contains("this build has no etcd") => Ok(()),
        judged => judged,
    }
}

/// Reads strikes of a scenario. That some build cannot carry them out is no fault of theirs.
fn scenario(text: &str) -> Result<(), String> {
    let whole = fs::read_to_string(root().join(SCENARIO)).expect("it is there") + text;
    match Scenario::parse("the block", whole.as_bytes()) {
        Err(error @ ScenarioError::Malformed { .. }) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Checks dependencies on crates of this project: folders, names and features.
fn manifest(dependencies: &toml::Table) -> Result<(), String> {
    for (name, dependency) in dependencies {
        let path = dependency.get("path").and_then(toml::Value::as_str).unwrap_or_default();
        let folder = path.strip_prefix(BESIDE).ok_or_else(|| format!("{name} is not at {path}"))?;
        let text = fs::read_to_string(root().join(folder).join("Cargo.toml"));
        let text = text.map_err(|error| format!("{path}: {error}"))?;
        let there: toml::Table = text.parse().expect("cargo reads it");
        let package = dependency.get("package").and_then(toml::Value::as_str).unwrap_or(name);
        if there["package"]["name"].as_str() != Some(package) {
            return Err(format!("{path} is not {package}"));
        }
        let features = dependency.get("features").and_then(toml::Value::as_array);
        for feature in features.into_iter().flatten().filter_map(toml::Value::as_str) {
            if there.get("features").and_then(|features| features.get(feature)).is_none() {
                return Err(format!("{package} has no feature {feature}"));
            }
        }
    }
    Ok(())
}

/// Reads a block, if it is of a language that has files.
fn judged(block: &Block<'_>) -> Result<(), String> {
    match block.language {
        "toml" => read(&block.text()),
        "json" => lotus_cli::documents::schedule(&block.text()),
        _ => Ok(()),
    }
}

#[test]
fn keys_of_files_that_documents_name_exist() {
    let mut broken = Vec::new();
    for source in documents() {
        for block in blocks(&source) {
            if let Err(why) = judged(&block) {
                let line = block.lines.first().map_or(0, |(number, _)| *number);
                broken.push(format!("{}:{line} {why}", source.path));
            }
        }
    }
    assert_none(&broken, "files in documents are read by their readers");
}

/// Fields of a section of a cluster's file, or of its top, by docs/operations.md.
fn told() -> BTreeMap<String, BTreeSet<String>> {
    let page = documents().into_iter().find(|source| source.path == "docs/operations.md");
    let page = page.expect("it describes the file").text;
    let (_, rest) = page.split_once("\n## The file\n").expect("it has the heading");
    let rows = rest.split("\n## ").next().unwrap_or_default().lines();
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = String::new();
    for row in rows.filter_map(|line| line.strip_prefix("| ")) {
        let cell = row.split(" | ").next().unwrap_or_default();
        let names = cell.split('`').skip(1).step_by(2);
        // `[load.WORKLOAD]` is a section as well.
        let names = names.map(|name| name.trim_matches(['[', ']']).split('.').next());
        let names: Vec<String> = names.flatten().map(str::to_owned).collect();
        if cell.starts_with('·') {
            told.entry(section.clone()).or_default().extend(names);
        } else {
            if let (Some(name), true) = (names.first(), cell.contains('[')) {
                section.clone_from(name);
                told.entry(section.clone()).or_default();
            }
            told.entry(String::new()).or_default().extend(names);
        }
    }
    told
}

/// Fields of a section, or of the top, as a reader lists them that meets an unknown one.
fn known(section: &str) -> BTreeSet<String> {
    let unknown = match section {
        "" => "no_such_field = 1\n".to_owned(),
        "load" => "[load.no_such_workload]\nrows = 1\n".to_owned(),
        "memory_node" | "compute_node" | "table" => format!("[[{section}]]\nno_such_field = 1\n"),
        _ => format!("[{section}]\nno_such_field = 1\n"),
    };
    let text = format!("fabric = \"shm\"\n{unknown}{NODES}");
    let refused = lotus_cli::documents::cluster_file(&text).expect_err(section);
    let (_, fields) = refused.split_once("expected").unwrap_or_else(|| panic!("{refused}"));
    fields.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn fields_of_a_clusters_file_are_those_of_the_table() {
    for (section, told) in told() {
        let known = known(&section);
        assert_eq!(told, known, "[{section}] in docs/operations.md (left) and in the code (right)");
    }
}
