//! Names in README.md, ARCHITECTURE.md and the pages of `docs`: the tests, scenarios and files that
//! a document names exist.
//!
//! * `commands`: flags and commands; `keys`: settings in the files that documents show.
//!
//! Metrics are compared in `cluster`, with those that a cluster serves. Decisions are left out:
//! each of them tells of the day on which it was taken.

mod commands;
mod keys;

use std::collections::BTreeSet;

use crate::tidy::{Source, assert_none, fenced, root, sources};

/// Underscores from which on a name is a sentence, as the names of tests are.
const SENTENCE: usize = 3;
/// Endings of the files that documents name.
const ENDINGS: [&str; 5] = [".rs", ".toml", ".md", ".sh", ".py"];

/// The documents that are kept up to date.
fn documents() -> Vec<Source> {
    let is_current = |source: &Source| match source.path.split_once('/') {
        None => ["README.md", "ARCHITECTURE.md"].contains(&source.path.as_str()),
        Some((folder, page)) => folder == "docs" && !page.starts_with("decisions/"),
    };
    sources("md").into_iter().filter(is_current).collect()
}

/// Code spans of a document outside code blocks, each with the line that it begins in.
fn spans(source: &Source) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line, _) in fenced(source).into_iter().filter(|(.., block)| block.is_none()) {
        // A span ends with its paragraph at the latest.
        is_open &= !line.trim().is_empty();
        for (place, part) in line.split('`').enumerate() {
            is_open ^= place > 0;
            if is_open && place == 0 {
                let (_, span) = found.last_mut().expect("it was begun");
                span.push(' ');
                span.push_str(part.trim());
            } else if is_open {
                found.push((number, part.to_owned()));
            }
        }
    }
    found
}

/// A code block: its language, and its lines with their numbers.
struct Block<'a> {
    language: &'a str,
    lines: Vec<(usize, &'a str)>,
}

impl Block<'_> {
    /// Whether a reader is to type the lines.
    fn is_shell(&self) -> bool {
        ["sh", "console"].contains(&self.language)
    }

    fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("{line}\n")).collect()
    }
}

fn blocks(source: &Source) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut next = 0;
    for (number, line, language) in fenced(source) {
        let Some(language) = language else { continue };
        // Between the lines of two blocks are their fences.
        if number != next {
            blocks.push(Block { language, lines: Vec::new() });
        }
        next = number + 1;
        blocks.last_mut().expect("one is open").lines.push((number, line));
    }
    blocks
}

/// Names in the sources and manifests.
struct Names<'a> {
    functions: BTreeSet<&'a str>,
    /// All words with an underscore.
    words: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(code: &'a [Source]) -> Self {
        let mut names = Self { functions: BTreeSet::new(), words: BTreeSet::new() };
        for line in code.iter().flat_map(|source| source.text.lines()) {
            let words = line.split(|letter: char| !is_of_a_name(letter));
            names.words.extend(words.filter(|word| word.contains('_')));
            let named = line.split("fn ").skip(1);
            let named = named.filter_map(|rest| rest.split(|c: char| !is_of_a_name(c)).next());
            names.functions.extend(named);
        }
        names
    }

    /// Whether a name is a function's; an ellipsis stands for any part of it.
    fn has_function(&self, name: &str) -> bool {
        match name.split_once('…') {
            None => self.functions.contains(name),
            Some((start, end)) => {
                let mut functions = self.functions.iter();
                functions.any(|name| name.starts_with(start) && name.ends_with(end))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.words.contains(name) || self.has_function(name)
    }
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Names with underscores in a code span.
fn names(span: &str) -> impl Iterator<Item = &str> {
    let words = span.split(|letter: char| !is_of_a_name(letter) && letter != '…');
    words.filter(|word| word.contains('_'))
}

fn is_sentence(name: &str) -> bool {
    name.matches('_').count() >= SENTENCE
}

fn is_metric(name: &str) -> bool {
    name.starts_with("lotus_") || name.starts_with("process_")
}

/// Whether a code span has the form of a scenario's name, such as `h10-lost-ends`.
fn is_scenario(span: &str) -> bool {
    let Some((hazard, rest)) = span.strip_prefix('h').and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_number = !hazard.is_empty() && hazard.chars().all(|letter| letter.is_ascii_digit());
    is_number && rest.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
}

fn code() -> Vec<Source> {
    [sources("rs"), sources("toml")].into_iter().flatten().collect()
}

#[test]
fn tests_that_documents_name_exist() {
    let code = code();
    let known = Names::of(&code);
    let scenarios = root().join("proof/sim/scenarios");
    let mut broken = Vec::new();
    for source in documents() {
        for (number, span) in spans(&source) {
            let sentences = names(&span).filter(|name| is_sentence(name) && !is_metric(name));
            for name in sentences.filter(|name| !known.has(name)) {
                broken.push(format!("{}:{number} {name}", source.path));
            }
            if is_scenario(&span) && !scenarios.join(format!("{span}.toml")).exists() {
                broken.push(format!("{}:{number} {span}", source.path));
            }
        }
    }
    assert_none(&broken, "tests, scenarios and fields that documents name exist");
}

/// The last column of the tables in docs/invariants.md names tests.
#[test]
fn tests_that_hunt_invariants_exist() {
    let code = code();
    let known = Names::of(&code);
    let page = documents().into_iter().find(|source| source.path == "docs/invariants.md");
    let page = page.expect("the list of invariants");
    let mut broken = Vec::new();
    for (number, row) in page.lines().filter(|(_, line)| line.starts_with("| I")) {
        let hunted = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        for name in hunted.split('`').skip(1).step_by(2).flat_map(names) {
            let is_known = match is_sentence(name) {
                true => known.has_function(name),
                false => known.has(name),
            };
            if !is_known {
                broken.push(format!("{}:{number} {name}", page.path));
            }
        }
    }
    assert_none(&broken, "tests that hunt invariants exist");
}

#[test]
fn files_that_documents_name_exist() {
    let files = ["rs", "toml", "md"].into_iter().flat_map(sources);
    let files: Vec<String> = files.map(|source| format!("/{}", source.path)).collect();
    let mut broken = Vec::new();
    for source in documents() {
        let typed = blocks(&source).into_iter().filter(Block::is_shell);
        let typed = typed.flat_map(|block| block.lines);
        let typed = typed.map(|(number, line)| (number, line.to_owned()));
        for (number, text) in spans(&source).into_iter().chain(typed) {
            let words = text.split_whitespace();
            let words = words.map(|word| word.trim_matches([',', ';', '(', ')', '"']));
            for path in words.filter(|word| is_path(word) && !exists(word, &files)) {
                broken.push(format!("{}:{number} {path}", source.path));
            }
        }
    }
    assert_none(&broken, "documents name files by their paths, or by ends of paths that one has");
}

/// Whether a word is a path into the repository.
fn is_path(word: &str) -> bool {
    let Some((first, _)) = word.split_once('/') else { return false };
    let is_elsewhere = ["", ".", "..", "target"].contains(&first);
    let is_pattern = word.contains(['…', '*', '<', ':', '$']);
    let has_ending = word.ends_with('/') || ENDINGS.iter().any(|ending| word.ends_with(ending));
    !is_elsewhere && !is_pattern && (has_ending || root().join(first).is_dir())
}

/// Whether a file or folder has this path, or a single one of `files` has this end of its path.
fn exists(path: &str, files: &[String]) -> bool {
    let end = format!("/{path}");
    root().join(path).exists() || files.iter().filter(|file| file.ends_with(&end)).count() == 1
}

/// Metrics that documents name, without their labels.
pub(super) fn metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in documents() {
        let names = spans(&source).into_iter().map(|(_, span)| match span.split_once('{') {
            Some((name, _)) => name.to_owned(),
            None => span,
        });
        found.extend(names.filter(|name| is_metric(name) && name.chars().all(is_of_a_name)));
    }
    found
}

#[test]
fn spans_and_blocks_are_told_apart() {
    let text = "a `b` and `c\n  d` e\n\n```sh\nf `g`\nh\n```\n```text\ni\n```\n`j\n\nk `l`\n";
    let source = Source { path: "a.md".to_owned(), text: text.to_owned() };
    let expected = [(1, "b"), (1, "c d"), (11, "j"), (13, "l")];
    let expected = expected.map(|(number, span)| (number, span.to_owned()));
    assert_eq!(spans(&source), expected, "a span does not cross the end of its paragraph");
    let blocks = blocks(&source);
    let shown: Vec<_> = blocks.iter().map(|block| (block.language, block.text())).collect();
    assert_eq!(shown, [("sh", "f `g`\nh\n".to_owned()), ("text", "i\n".to_owned())]);
    assert!(is_scenario("h10-lost-ends") && !is_scenario("h1") && !is_scenario("h-a"));
}
