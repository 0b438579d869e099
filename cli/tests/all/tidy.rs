//! House rules that neither the compiler nor the linter checks, over the whole workspace.
//!
//! The aims are lines of 100 columns, functions of 70 lines and files of 600; the limits here
//! leave a little room above the last two. Code is read as text, which is exact because it is
//! formatted: a function ends at the first `}` that stands as far to the left as its signature.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MAX_COLUMNS: usize = 100;
const MAX_FUNCTION_LINES: usize = 80;
const MAX_FILE_LINES: usize = 700;
/// Crates in which one name may stand for types of their own.
const MAX_CRATES_PER_NAME: usize = 4;
/// Lines of the engine, without its tests, for each assertion that names an invariant.
const MAX_LINES_PER_ASSERTION: usize = 150;

// In two halves, so that this file does not break the rules that it states.
const UNSAFE: &str = concat!("un", "safe");
const UNFINISHED: [&str; 2] = [concat!("to", "do!("), concat!("unimplemented", "!(")];

/// A file of the workspace, named by its path from the root.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    /// Lines with their numbers, from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a workspace").into()
}

/// Folders of crates beside those at the root.
const HOUSES: [&str; 3] = ["service", "lab", "proof"];

/// All files with this extension at the root, in the crates, in `docs` and in `examples`.
pub(super) fn sources(extension: &str) -> Vec<Source> {
    let is_ours = |path: &Path| {
        path.join("Cargo.toml").exists() || path.ends_with("docs") || path.ends_with("examples")
    };
    let mut files = Vec::new();
    let houses = HOUSES.into_iter().flat_map(|house| entries(&root().join(house)));
    for entry in entries(&root()).into_iter().chain(houses) {
        if !entry.is_dir() {
            files.push(entry);
        } else if is_ours(&entry) {
            collect(&entry, &mut files);
        }
    }
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    assert!(!files.is_empty(), "no .{extension} files found");
    let read = |path: PathBuf| Source {
        text: fs::read_to_string(&path).expect("source files are readable text"),
        path: path.strip_prefix(root()).expect("found below the root").display().to_string(),
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in entries(folder) {
        if entry.is_dir() && !entry.ends_with("target") {
            collect(&entry, files);
        } else if entry.is_file() {
            files.push(entry);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("workspace folders are readable");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths
}

#[track_caller]
pub(super) fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn lines_are_not_too_long() {
    let mut broken = Vec::new();
    for source in sources("rs") {
        for (number, line) in source.lines() {
            if line.chars().count() > MAX_COLUMNS {
                broken.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none(&broken, "lines have at most 100 columns");
}

#[test]
fn files_are_not_too_long() {
    let lengths = sources("rs").into_iter().map(|source| (source.text.lines().count(), source));
    let broken: Vec<_> = lengths
        .filter(|(lines, _)| *lines > MAX_FILE_LINES)
        .map(|(lines, source)| format!("{}: {lines} lines", source.path))
        .collect();
    assert_none(&broken, "files have about 600 lines, at most 700");
}

#[test]
fn functions_are_not_too_long() {
    let mut broken = Vec::new();
    for source in sources("rs") {
        for (start, name, lines) in functions(&source.text) {
            if lines > MAX_FUNCTION_LINES {
                broken.push(format!("{}:{start} {name}: {lines} lines", source.path));
            }
        }
    }
    assert_none(&broken, "functions have about 70 lines, at most 80");
}

/// Every function with a body of several lines: first line, name, number of lines.
fn functions(text: &str) -> Vec<(usize, &str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let signature_ends = |line: &&str| line.ends_with(['{', '}', ';']);
        let opening = lines[index..].iter().position(signature_ends).map(|length| index + length);
        let Some(opening) = opening.filter(|&at| lines[at].ends_with('{')) else { continue };
        let indent = line.len() - line.trim_start().len();
        let closes = |later: &&str| later.len() == indent + 1 && later.trim_start() == "}";
        let body = lines[opening..].iter().position(closes);
        let body = body.expect("a formatted function closes at its own indent");
        found.push((index + 1, name, opening + body + 1 - index));
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        ["const", "async", "extern", "\"C\"", UNSAFE].contains(&word) || word.starts_with("pub")
    };
    // `pub(in path)` is two words; nothing else ends in a parenthesis.
    let qualifies = before.split_whitespace().all(|word| is_qualifier(word) || word.ends_with(')'));
    let name = after.split(['(', '<']).next()?;
    (qualifies && !name.is_empty()).then_some(name)
}

#[test]
fn modules_open_with_an_essay() {
    let broken: Vec<_> = sources("rs")
        .into_iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.path)
        .collect();
    assert_none(&broken, "files open with `//!`: what they are and what they are not");
}

#[test]
fn nothing_is_left_unfinished() {
    let mut broken = Vec::new();
    for source in sources("rs") {
        for (number, line) in source.lines() {
            if UNFINISHED.iter().any(|unfinished| line.contains(unfinished)) {
                broken.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none(&broken, "what is there works");
}

/// A command whose reader has gone ends as it would have: `lotus-lab sim list | head`.
#[test]
fn commands_write_to_the_standard_output_in_one_way() {
    let mut broken = Vec::new();
    for source in sources("rs") {
        if source.path.starts_with("cli/src") && source.text.contains("stdout()") {
            broken.push(source.path);
        }
    }
    assert_none(&broken, "lotus_benchmarks::stream::StandardOutput is the way there");
}

#[test]
fn a_type_name_is_used_in_few_crates() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources("rs") {
        let Some((name, path)) = source.path.split_once("/src/") else { continue };
        let is_code = !path.ends_with("tests.rs");
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for line in code.lines().filter(|_| is_code) {
            if let Some(of) = type_name(line) {
                crates.entry(of.to_owned()).or_default().insert(name.to_owned());
            }
        }
    }
    let many = crates.into_iter().filter(|(_, of)| of.len() > MAX_CRATES_PER_NAME);
    let broken: Vec<_> = many.map(|(name, of)| format!("{name}: {of:?}")).collect();
    assert_none(&broken, "a type's name has one meaning in at most four crates");
}

/// Name of the type that a line defines, if it does.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '<', '(', '{', ';', ':']).filter(|word| !word.is_empty());
    let is_visible = |word: &&str| word.starts_with("pub") || word.ends_with(')');
    let kind = words.by_ref().find(|word| !is_visible(word))?;
    // An associated type is indented, and has the name that its trait gives it.
    let defines = match kind {
        "struct" | "enum" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    words.next().filter(|_| defines)
}

#[test]
fn the_engine_asserts_its_invariants() {
    let (mut lines, mut assertions) = (0, 0);
    let mut broken = Vec::new();
    let list = sources("md").into_iter().find(|source| source.path == "docs/invariants.md");
    let list = list.expect("the list of invariants").text;
    let is_engine = |source: &Source| {
        source.path.starts_with("engine/src/") && !source.path.ends_with("tests.rs")
    };
    for source in sources("rs").into_iter().filter(is_engine) {
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        lines += code.lines().count();
        for assertion in code.split("debug_assert").skip(1) {
            let text = assertion.split(';').next().unwrap_or_default();
            let Some((_, named)) = text.split_once("\"I") else { continue };
            let number = named.split(|letter: char| !letter.is_ascii_digit()).next();
            match number.filter(|number| list.contains(&format!("\n| I{number} |"))) {
                Some(_) => assertions += 1,
                None => broken.push(format!("{}: \"I{named}", source.path)),
            }
        }
    }
    assert_none(&broken, "assertions name an invariant of docs/invariants.md");
    assert!(
        lines <= assertions * MAX_LINES_PER_ASSERTION,
        "the engine has {lines} lines and {assertions} assertions that name an invariant: one in \
         {MAX_LINES_PER_ASSERTION} lines at least"
    );
}

#[test]
fn raw_access_stays_where_it_is_wrapped() {
    let mut broken = Vec::new();
    for source in sources("rs").iter().filter(|source| !may_access_raw_memory(source)) {
        for (number, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| word == UNSAFE) {
                broken.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none(
        &broken,
        "raw access is confined to the fabric's regions, prefetch, `local` and `rdma`",
    );
}

fn may_access_raw_memory(source: &Source) -> bool {
    let wrapped = [
        "fabric/src/contract/region",
        "fabric/src/contract/prefetch.rs",
        "fabric/src/backends/local/",
        "fabric/src/backends/rdma/",
        // A libibverbs of the tests' own.
        "fabric/tests/rdma/",
    ];
    // A test that counts allocations has to be an allocator, and that trait is raw by nature.
    let is_test = source.path.contains("/tests/") || source.path.contains("/benches/");
    wrapped.iter().any(|path| source.path.starts_with(path))
        || (is_test && source.text.contains("impl GlobalAlloc for"))
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for source in sources("md") {
        let file = root().join(&source.path);
        let folder = file.parent().expect("a file is in a folder");
        for (number, target) in links(&source) {
            let is_local = !target.contains("://") && !target.starts_with("mailto:");
            let path = target.split('#').next().unwrap_or_default();
            if is_local && !path.is_empty() && !folder.join(path).exists() {
                broken.push(format!("{}:{number} {target}", source.path));
            }
        }
    }
    assert_none(&broken, "documents link to files that exist");
}

/// The targets of all inline links outside code blocks, with their lines.
fn links(source: &Source) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line, _) in fenced(source).into_iter().filter(|(.., block)| block.is_none()) {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(|target| (number, target)));
    }
    found
}

/// The lines of a document without fences, each with the language of its code block, if any.
pub(super) fn fenced(source: &Source) -> Vec<(usize, &str, Option<&str>)> {
    let mut block = None;
    let mut found = Vec::new();
    for (number, line) in source.lines() {
        match (line.trim_start().strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, _) => found.push((number, line, block)),
        }
    }
    found
}

#[test]
fn the_names_of_types_are_found() {
    let named = ["pub struct A<T> {", "    pub(crate) enum A {", "trait A: Send {", "type A = u8;"];
    assert!(named.iter().all(|line| type_name(line) == Some("A")));
    let others = ["    type A = u8;", "impl A {", "// A struct A", "let a = A;", ""];
    assert!(others.iter().all(|line| type_name(line).is_none()));
}

#[test]
fn the_function_counter_counts() {
    let text = "\
impl A {
    pub(crate) async fn short() {}
    fn declared(
        &self,
    ) -> u8;
    pub(in crate::a) const fn long<T>(
        a: T,
    ) -> T {
        if a {
        }
    }
}
let closure = || fn_pointer as fn (u8);
fn outer() {
    fn inner() {
    }
}
";
    assert_eq!(functions(text), [(6, "long", 6), (14, "outer", 4), (15, "inner", 2)]);
}
