//! The order of the folders within each crate, from what its files import (decision 0065).
//!
//! A crate's folders are its floors: code imports from floors below and from its own, never from
//! one above. Files that import each other, directly or by way of others, form a circle, which has
//! to be understood as one; circles are small, and none spans two folders. Imports are `use`
//! declarations and paths from `crate` or `super`; an item that a module re-exports counts for the
//! module that defines it. `lib.rs`, `main.rs` and tests stand above all floors.

use std::collections::{BTreeMap, BTreeSet};

use super::tidy::{Source, root, sources};

/// The folders of crates whose order is decided, the top floor first. A single file may be one. The
/// order of all others follows from their imports.
const FLOORS: [(&str, &[&str]); 12] = [
    ("fabric", &["conformance", "backends", "rpc", "lane", "run", "contract"]),
    (
        "engine",
        &[
            "fuzzing",
            "snapshot",
            "scan",
            "checks",
            "cluster",
            "upkeep",
            "membership",
            "memory_nodes",
            "shards",
            "txn",
            "space",
            "node",
            "api",
        ],
    ),
    ("locks", &["ideal", "service", "client", "systems", "contract", "reset", "word"]),
    (
        "lab/locksystems",
        &[
            "trial",
            "lock_spec",
            "switched",
            "redlock",
            "servers",
            "locker",
            "local",
            "systems",
            "fisslock",
            "word",
        ],
    ),
    ("proof/sim", &["campaigns", "locks", "drive", "properties", "scenario", "verdict"]),
    (
        "benchmarks",
        &[
            "end_to_end",
            "on_lotus",
            "reports",
            "drive",
            "engines",
            "workloads",
            "judge",
            "contract",
        ],
    ),
    ("lab/loads", &["index", "bank", "two_phase", "locks", "lanes", "traces"]),
    ("lab/baselines", &["bench", "motor", "ford", "store"]),
    (
        "cli",
        &[
            "documents",
            "fuzzing",
            "cluster",
            "top",
            "chaos",
            "bench",
            "check",
            "operate",
            "apps",
            "config",
            "args",
        ],
    ),
    ("cli/runner", &["documents", "bench", "applications", "args", "host", "show"]),
    ("lab/cli", &["documents", "figures", "bench", "sim", "args"]),
    (
        "service/node",
        &[
            "program",
            "command_line",
            "daemon",
            "requests",
            "snapshots",
            "application",
            "agree",
            "host",
            "config",
        ],
    ),
];

/// The most files that may import each other.
const LARGEST_CIRCLE: usize = 8;

/// A module of a crate, as the path from the crate's root.
type Module = Vec<String>;

/// The modules of a crate, and what they import.
struct Crate {
    name: String,
    files: BTreeMap<Module, Source>,
    /// The imports of each file, of other files of the crate.
    imports: BTreeMap<Module, Vec<Import>>,
}

/// An import: the line that causes it, and the module that it leads to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    line: usize,
    to: Module,
}

fn crates() -> Vec<Crate> {
    let mut crates: BTreeMap<String, BTreeMap<Module, Source>> = BTreeMap::new();
    for source in sources("rs") {
        let Some((name, file)) = source.path.split_once("/src/") else { continue };
        let (name, module) = (name.to_owned(), module_of(file));
        if !module.iter().any(|part| part.ends_with("tests")) {
            crates.entry(name).or_default().insert(module, source);
        }
    }
    crates.into_iter().map(|(name, files)| Crate::new(name, files)).collect()
}

fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs");
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The text of a file without comments and without its tests, line by line.
fn code(source: &Source) -> Vec<(usize, &str)> {
    let is_code = |(_, line): &(usize, &str)| !line.trim_start().starts_with("//");
    let is_before_tests = |(_, line): &(usize, &str)| {
        !(line.starts_with("#[cfg(") && line.contains("test") && !line.contains("feature"))
    };
    source.lines().take_while(is_before_tests).filter(is_code).collect()
}

/// `use` declarations, each with its first line, its tree, and whether it re-exports.
fn declarations(source: &Source) -> Vec<(usize, String, bool)> {
    let mut found: Vec<(usize, String, bool)> = Vec::new();
    let mut open = false;
    for (number, line) in code(source) {
        let line = line.trim();
        if !open {
            let (visible, rest) = match line.split_once("use ") {
                Some(("", rest)) => (false, rest),
                Some((before, rest)) if is_visibility(before.trim()) => (true, rest),
                _ => continue,
            };
            found.push((number, rest.to_owned(), visible));
        } else if let Some((_, tree, _)) = found.last_mut() {
            tree.push_str(line);
        }
        open = !line.ends_with(';');
    }
    found
}

fn is_visibility(text: &str) -> bool {
    text == "pub" || text.starts_with("pub(")
}

/// The paths of a `use` tree.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim().trim_end_matches([';', ',']);
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.trim().trim_end_matches("::*").to_owned()];
    };
    let inside = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let inner = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(leaves);
    inner.map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// Paths from `crate` or `super` in the middle of a line.
fn paths_within(line: &str) -> Vec<String> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let parts = line.split(|letter| !is_path(letter));
    let ours = parts.filter(|part| part.starts_with("crate::") || part.starts_with("super::"));
    ours.map(str::to_owned).collect()
}

impl Crate {
    fn new(name: String, files: BTreeMap<Module, Source>) -> Self {
        let mut one = Self { name, files, imports: BTreeMap::new() };
        let imports = |module: &Module| (module.clone(), one.read_imports(module));
        one.imports = one.files.keys().map(imports).collect();
        one
    }

    fn read_imports(&self, from: &Module) -> Vec<Import> {
        let source = &self.files[from];
        let mut paths = Vec::new();
        for (line, tree, _) in declarations(source) {
            paths.extend(leaves(&tree).into_iter().map(|path| (line, path)));
        }
        for (line, text) in code(source) {
            paths.extend(paths_within(text).into_iter().map(|path| (line, path)));
        }
        let imports = paths.into_iter().filter_map(|(line, path)| {
            let to = self.defining(from, &path)?;
            (to != *from && !to.is_empty()).then_some(Import { line, to })
        });
        // A line may name a module more than once.
        imports.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The module that defines what a path in `from` names, if it is of this crate.
    fn defining(&self, from: &Module, path: &str) -> Option<Module> {
        let mut at = (from.clone(), path.to_owned());
        // Re-exports of re-exports are few.
        for _ in 0..8 {
            let (module, item) = self.module(&at.0, &at.1)?;
            let exported = item.as_ref().and_then(|item| self.re_export(&module, item));
            match exported {
                Some(next) => at = (module, next),
                None => return Some(module),
            }
        }
        None
    }

    /// The longest module that is the beginning of a path, and the next name behind it.
    fn module(&self, from: &Module, path: &str) -> Option<(Module, Option<String>)> {
        let mut names: Vec<&str> = path.split("::").filter(|name| !name.is_empty()).collect();
        let mut module = match *names.first()? {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            first => {
                let child = [from.as_slice(), &[first.to_owned()]].concat();
                self.files.contains_key(&child).then_some(())?;
                names.insert(0, "self");
                from.clone()
            }
        };
        let mut names = names.into_iter().skip(1).peekable();
        while names.next_if_eq(&"super").is_some() {
            module.pop()?;
        }
        while let Some(name) = names.peek() {
            let child = [module.as_slice(), &[(*name).to_owned()]].concat();
            if !self.files.contains_key(&child) {
                break;
            }
            module = child;
            names.next();
        }
        let item = names.next().filter(|item| *item != "self").map(str::to_owned);
        self.files.contains_key(&module).then_some((module, item))
    }

    /// The path by which a module re-exports an item, if it does.
    fn re_export(&self, module: &Module, item: &str) -> Option<String> {
        let declared = declarations(&self.files[module]);
        let exported = declared.into_iter().filter(|(_, _, visible)| *visible);
        let mut paths = exported.flat_map(|(_, tree, _)| leaves(&tree));
        paths.find(|path| path.ends_with(&format!("::{item}")))
    }

    /// Circles of files, the largest first.
    fn circles(&self) -> Vec<BTreeSet<&Module>> {
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, self.reached(module))).collect();
        let mut circles: Vec<BTreeSet<&Module>> = Vec::new();
        for (module, reached) in &reach {
            if circles.iter().any(|circle| circle.contains(module)) {
                continue;
            }
            let back = reached.iter().filter(|other| reach[*other].contains(module));
            let circle: BTreeSet<_> = back.copied().collect();
            if circle.len() > 1 {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// All modules that a module imports, directly or by way of others.
    fn reached(&self, from: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(module) = open.pop() {
            for import in &self.imports[&module] {
                let (to, _) = self.files.get_key_value(&import.to).expect("it is a module");
                if reached.insert(to) {
                    open.push(import.to.clone());
                }
            }
        }
        reached
    }

    /// The floors of the crate, the top floor first: those decided, or those that its imports give.
    /// Files of one folder that import each other are one floor.
    fn floors(&self) -> Vec<Vec<&str>> {
        if let Some((_, floors)) = FLOORS.iter().find(|(name, _)| *name == self.name) {
            return floors.iter().map(|floor| vec![*floor]).collect();
        }
        let mut below = self.imported_folders();
        let mut floors = Vec::new();
        // The top: what imports it is imported by it.
        let is_top = |below: &BTreeMap<&str, BTreeSet<&str>>, name: &str| {
            below.iter().all(|(other, under)| !under.contains(name) || below[name].contains(other))
        };
        while let Some(top) = below.keys().copied().find(|name| is_top(&below, name)) {
            let is_with_it = |name: &str| name == top || below[name].contains(top);
            let floor: Vec<&str> = below.keys().copied().filter(|name| is_with_it(name)).collect();
            below.retain(|name, _| !floor.contains(name));
            floors.push(floor);
        }
        floors
    }

    /// The folders that each folder imports, directly or by way of others.
    fn imported_folders(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (module, imports) in &self.imports {
            let Some(folder) = module.first() else { continue };
            let others = imports.iter().filter_map(|import| import.to.first());
            let others = others.filter(|other| *other != folder).map(String::as_str);
            below.entry(folder).or_default().extend(others);
        }
        for _ in 0..below.len() {
            let nearer = below.clone();
            for under in below.values_mut() {
                let further: Vec<_> = under.iter().flat_map(|name| &nearer[name]).collect();
                under.extend(further);
            }
        }
        below
    }

    fn place(&self, module: &Module, line: usize) -> String {
        format!("{}:{line}", self.files[module].path)
    }
}

#[test]
fn folders_import_from_floors_below() {
    let mut broken = Vec::new();
    for one in crates() {
        let Some((_, floors)) = FLOORS.iter().find(|(name, _)| *name == one.name) else { continue };
        let floor = |module: &Module| floors.iter().position(|floor| *floor == module[0]);
        for module in one.files.keys().filter(|module| !module.is_empty()) {
            let Some(here) = floor(module) else {
                broken.push(format!("{} is in no folder", one.files[module].path));
                continue;
            };
            for import in &one.imports[module] {
                if floor(&import.to).is_some_and(|there| there < here) {
                    let place = one.place(module, import.line);
                    broken.push(format!("{place} imports {} from above", import.to.join("::")));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What docs/floors.md has to say.
fn table() -> String {
    let mut text = "# Floors\n\n\
        The folders, or files, of each crate, the top floor first: code imports from floors below \
        alone.\n\
        Files that import each other are one floor, named with `with`.\n\
        Generated by `cli/tests/all/floors.rs`, with `LOTUS_WRITE=1`, and compared in every \
        test.\n\n\
        | crate | files | floors |\n|---|---|---|\n"
        .to_owned();
    for one in crates() {
        let floor = |floor: Vec<&str>| format!("`{}`", floor.join("` with `"));
        let floors = one.floors().into_iter().map(floor).collect::<Vec<_>>();
        let floors = if floors.is_empty() { "one file".to_owned() } else { floors.join(", ") };
        text.push_str(&format!("| `{}` | {} | {floors} |\n", one.name, one.files.len()));
    }
    text
}

#[test]
fn the_table_of_floors_is_that_of_the_crates() {
    let table = table();
    let path = root().join("docs/floors.md");
    if std::env::var_os("LOTUS_WRITE").is_some() {
        std::fs::write(&path, &table).expect("it is of the checkout");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, table, "docs/floors.md (left) is behind: LOTUS_WRITE=1 writes it");
}

#[test]
fn circles_of_files_are_small() {
    let mut broken = Vec::new();
    for one in crates() {
        let circles = one.circles();
        let Some(circle) = circles.first().filter(|circle| circle.len() > LARGEST_CIRCLE) else {
            continue;
        };
        broken.push(format!("{} files of {} import each other:", circle.len(), one.name));
        for module in circle {
            let within = one.imports[*module].iter().filter(|import| circle.contains(&import.to));
            broken.extend(within.map(|import| {
                format!("  {} imports {}", one.place(module, import.line), import.to.join("::"))
            }));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn trees_of_imports_are_read_to_their_leaves() {
    let leaves = leaves("crate::{a::{B, self}, c::*, d::e as f};");
    assert_eq!(leaves, ["crate::a::B", "crate::a::self", "crate::c", "crate::d::e"]);
}
