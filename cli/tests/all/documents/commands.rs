//! Flags and commands in documents, judged by the parsers of the programs that they are for.

use std::collections::BTreeSet;

use super::{Block, blocks, documents, spans};
use crate::tidy::assert_none;

/// A program of this project.
struct Program {
    name: &'static str,
    /// Long flags of all its commands.
    flags: fn() -> BTreeSet<String>,
    /// Checks a whole command line.
    command: fn(&str) -> Result<(), String>,
    /// Checks a command line of which parts may be missing.
    mention: fn(&str) -> Result<(), String>,
}

/// All programs; the first is the one that `cargo run` runs unless another is named.
static PROGRAMS: [Program; 2] = [
    Program {
        name: "lotus",
        flags: lotus_cli::documents::flags,
        command: lotus_cli::documents::command,
        mention: lotus_cli::documents::mention,
    },
    Program {
        name: "lotus-lab",
        flags: lotus_lab::documents::flags,
        command: lotus_lab::documents::command,
        mention: lotus_lab::documents::mention,
    },
];

/// Whether this build has a feature; commands that need it, and flags of these commands alone.
const OF_FEATURES: [(bool, &[&str], &str); 2] = [
    (cfg!(feature = "sabotage"), &["sim sabotage"], "control rule"),
    (cfg!(feature = "fault-points"), &["sim matrix", "cluster matrix"], "all at-once only show"),
];

/// Programs of others, and their flags that documents use.
const OF_OTHERS: [(&str, &str); 2] = [
    ("cargo", "bench bin bins example examples features package profile release test workspace"),
    ("a test program", "include-ignored nocapture test-threads"),
];

/// Placeholders that any text may stand for.
const TEXTS: [&str; 3] = ["DIRECTORY", "FILE", "SOCKET"];

/// Long flags in a text, without the dashes.
fn flags(text: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let mut found = Vec::new();
    for (at, dashes) in text.match_indices("--") {
        let before = text[..at].chars().next_back();
        let rest = &text[at + dashes.len()..];
        let end = rest.find(|letter: char| !is_part(letter) && letter != '-');
        let (flag, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let begins = before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '-');
        // The edge of a graph that is written `--rw(x)-->` is no flag.
        if begins && flag.starts_with(is_part) && !behind.starts_with('(') {
            found.push(flag);
        }
    }
    found
}

/// The commands of a block, each with the line that it begins in: lines that go on are joined,
/// comments left out, and lists of commands divided.
fn commands(block: &Block<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for &(number, line) in &block.lines {
        let line = if line.trim_start().starts_with('#') { "" } else { line };
        let line = line.split(" #").next().unwrap_or_default().trim();
        let (begin, mut text) = open.take().unwrap_or((number, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                text.push_str(part);
                open = Some((begin, text));
            }
            None => {
                text.push_str(line);
                let parts = text.split([';', '|', '&']).map(str::trim);
                let parts = parts.filter(|part| !part.is_empty());
                found.extend(parts.map(|part| (begin, part.to_owned())));
            }
        }
    }
    found
}

/// The program of this project that a command runs, and the command line by its name alone:
/// without variables, and without `cargo run`.
fn of_a_program(command: &str) -> Option<(&'static Program, String)> {
    let is_capital = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let is_variable =
        |word: &&str| word.split_once('=').is_some_and(|(name, _)| name.chars().all(is_capital));
    let mut words: Vec<&str> = command.split_whitespace().skip_while(is_variable).collect();
    if words.starts_with(&["cargo", "run"]) {
        let end = words.iter().position(|word| *word == "--")?;
        let chosen = words[..end].iter().position(|word| ["--bin", "-p"].contains(word));
        let name = chosen.map_or(PROGRAMS[0].name, |at| words[at + 1]);
        words = [&[name], &words[end + 1..]].concat();
    }
    let (path, rest) = words.split_first()?;
    let name = path.rsplit('/').next()?;
    let program = PROGRAMS.iter().find(|program| program.name == name)?;
    Some((program, [&[name], rest].concat().join(" ")))
}

/// An example of what a placeholder stands for; other words are themselves.
fn example(word: &str) -> &str {
    match word {
        "N" => "1",
        "WORKLOAD" => "smallbank",
        word => word,
    }
}

/// A command line without placeholders; `None` if it leaves parts open.
fn concrete(text: &str) -> Option<String> {
    let is_placeholder = |word: &&str| {
        word.chars().all(|letter| letter.is_ascii_uppercase()) && !TEXTS.contains(word)
    };
    let mut words: Vec<&str> = text.split_whitespace().map(example).collect();
    if text.contains(['…', '|', '[']) || words.iter().any(is_placeholder) {
        return None;
    }
    // A flag of all workloads is named without any.
    if words.get(1) == Some(&"bench") && words.get(2).is_some_and(|word| word.starts_with("--")) {
        words.insert(2, "smallbank");
    }
    // A flag at the end is named without its value.
    let words = match words.split_last() {
        Some((last, rest)) if last.starts_with("--") => rest,
        _ => &words[..],
    };
    Some(words.join(" "))
}

/// Whether this build has the command.
fn is_built(line: &str) -> bool {
    let (_, command) = line.split_once(' ').unwrap_or((line, ""));
    let lacks = |commands: &[&str]| commands.iter().any(|absent| command.starts_with(*absent));
    !OF_FEATURES.iter().any(|(is_built, commands, _)| !is_built && lacks(commands))
}

#[test]
fn flags_that_documents_name_exist() {
    let mut known: BTreeSet<String> =
        PROGRAMS.iter().flat_map(|program| (program.flags)()).collect();
    let absent = OF_FEATURES.iter().filter(|(is_built, ..)| !is_built);
    let absent = absent.flat_map(|(_, _, flags)| flags.split(' '));
    let of_others = OF_OTHERS.iter().flat_map(|(_, flags)| flags.split(' '));
    known.extend(absent.chain(of_others).map(str::to_owned));
    let mut broken = Vec::new();
    for source in documents() {
        let shown = blocks(&source).into_iter().flat_map(|block| block.lines);
        let shown = shown.map(|(number, line)| (number, line.to_owned()));
        for (number, text) in spans(&source).into_iter().chain(shown) {
            for flag in flags(&text).into_iter().filter(|flag| !known.contains(*flag)) {
                broken.push(format!("{}:{number} --{flag}", source.path));
            }
        }
    }
    assert_none(&broken, "flags in documents are flags of some program");
}

#[test]
fn commands_in_documents_are_understood() {
    let (mut count, mut broken) = (0, Vec::new());
    for source in documents() {
        for block in blocks(&source).iter().filter(|block| block.is_shell()) {
            for (number, command) in commands(block) {
                let Some((program, line)) = of_a_program(&command) else { continue };
                count += 1;
                if let (true, Err(why)) = (is_built(&line), (program.command)(&line)) {
                    broken.push(format!("{}:{number} {line}: {why}", source.path));
                }
            }
        }
    }
    assert_none(&broken, "commands in documents are understood by their programs");
    assert!(count > 50, "{count} commands were found");
}

/// Commands within sentences, and in tables of commands beside their descriptions.
#[test]
fn mentions_of_commands_are_understood() {
    let (mut count, mut broken) = (0, Vec::new());
    for source in documents() {
        let tables = blocks(&source).into_iter().filter(|block| block.language == "text");
        let tables = tables.flat_map(|block| block.lines);
        let tables = tables.map(|(number, line)| {
            let (command, _) = line.split_once("  ").unwrap_or((line, ""));
            (number, command.to_owned())
        });
        for (number, text) in spans(&source).into_iter().chain(tables) {
            let Some((program, line)) = concrete(&text).and_then(|line| of_a_program(&line)) else {
                continue;
            };
            count += 1;
            if let (true, Err(why)) = (is_built(&line), (program.mention)(&line)) {
                broken.push(format!("{}:{number} {line}: {why}", source.path));
            }
        }
    }
    assert_none(&broken, "commands that documents mention are understood by their programs");
    assert!(count > 50, "{count} commands were found");
}

#[test]
fn flags_and_commands_are_found() {
    let found = flags("--a-1 B, --c=2 -- ----d e--f `--g` --rw(h)-->");
    assert_eq!(found, ["a-1", "c", "g"]);
    let text = ["X=1 a/lotus b \\", "  --c 2 # d", "# e", "f && cargo run -p lotus-lab -- h; i"];
    let lines = (7..).zip(text).collect();
    let commands = commands(&Block { language: "sh", lines });
    let begins: Vec<usize> = commands.iter().map(|(begin, _)| *begin).collect();
    assert_eq!(begins, [7, 10, 10, 10]);
    let lines = commands.iter().filter_map(|(_, command)| of_a_program(command));
    let lines: Vec<String> = lines.map(|(_, line)| line).collect();
    assert_eq!(lines, ["lotus b --c 2", "lotus-lab h"]);
    let mentioned = ["lotus bench --a", "lotus cn --node N --file", "lotus a NAME", "lotus … b"];
    let concrete = mentioned.map(|text| concrete(text).unwrap_or_default());
    assert_eq!(concrete, ["lotus bench smallbank", "lotus cn --node 1", "", ""]);
}
