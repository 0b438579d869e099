//! The crates of the workspace: their imports, as ARCHITECTURE.md tells them, and as their houses
//! allow them.

use std::collections::{BTreeMap, BTreeSet};

use super::tidy::sources;

/// Crates that any crate may import.
const EVERYWHERE: [&str; 2] = ["points", "sabotage"];

/// The manifests of all crates: the crate's name, its folder, and what it says.
fn manifests() -> Vec<(String, String, toml::Table)> {
    let manifests = sources("toml").into_iter().filter_map(|source| {
        let folder = source.path.strip_suffix("/Cargo.toml")?.to_owned();
        let manifest: toml::Table = source.text.parse().expect("a manifest");
        let package = manifest["package"]["name"].as_str().expect("a package");
        Some((crate_of(package).expect("a name of ours").to_owned(), folder, manifest))
    });
    manifests.collect()
}

/// The name by which the project calls the crate of a package.
fn crate_of(package: &str) -> Option<&str> {
    let name = package.strip_prefix("lotus-")?;
    Some(if name == "txn" { "engine" } else { name })
}

/// The house of each crate, which is the folder around its own; an empty one for the root.
fn houses() -> BTreeMap<String, String> {
    let house = |folder: &str| folder.rsplit_once('/').map_or("", |(house, _)| house).to_owned();
    manifests().into_iter().map(|(name, folder, _)| (name, house(&folder))).collect()
}

/// The crates of the workspace that each crate's manifest names, without those of its tests.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let imports = manifests().into_iter().map(|(name, _, manifest)| {
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let packages = dependencies.into_iter().flat_map(toml::Table::keys);
        let ours = packages.filter_map(|package| crate_of(package));
        let ours = ours.filter(|of| !EVERYWHERE.contains(of)).map(str::to_owned);
        (name, ours.collect())
    });
    imports.collect()
}

/// The rows of ARCHITECTURE.md's tables of crates: names, and what they import.
fn told() -> BTreeMap<String, BTreeSet<String>> {
    let page = sources("md").into_iter().find(|source| source.path == "ARCHITECTURE.md");
    let page = page.expect("it is at the root").text;
    let mut told = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [names, _, imports] = cells[..] else { continue };
        let names = names.split(" (").next().unwrap_or(names);
        let imports = imports.trim_end_matches('|').split(", ").map(str::trim);
        let imports = imports.filter(|name| !name.is_empty()).map(str::to_owned);
        let imports: BTreeSet<String> = imports.collect();
        for name in names.split(", ") {
            told.insert(name.trim_matches('`').to_owned(), imports.clone());
        }
    }
    told
}

#[test]
fn imports_of_crates_are_as_told() {
    let mut imports = imports();
    // Outside of the workspace, and for users to read.
    imports.retain(|name, _| name != "fuzz" && name != "examples");
    assert_eq!(told(), imports, "the tables of ARCHITECTURE.md (left) and the manifests (right)");
}

#[test]
fn the_store_imports_neither_service_nor_lab_nor_proof() {
    let houses = houses();
    for (name, imports) in imports() {
        let house = &houses[&name];
        let allowed: &[&str] = match (house.as_str(), name.as_str()) {
            (_, "examples" | "fuzz" | "lab") => continue,
            // The program `lotus` is built without the laboratory.
            (_, "cli" | "runner") => &["", "cli", "service", "proof"],
            ("", _) => &[""],
            ("service" | "lab", _) => &["", house],
            ("proof", _) => &["", "lab", "proof"],
            _ => panic!("{name} is in a folder without a heading: {house}"),
        };
        for import in &imports {
            let is_allowed = allowed.contains(&houses[import].as_str());
            assert!(is_allowed, "{name} imports {import}");
        }
    }
}
