//! How plainly comments speak, counted over the whole workspace without its tests.
//!
//! A comment names the thing it speaks of: noun or verb first. Two counts of pronouns and pro-forms
//! ("those that", "one", "it", "whoever") guard this, and never stand for a reader: their share of
//! all words, and the share of sentences that consist of them for a third. openraft has 62 of 1,000
//! words and 5.8 of 1,000 sentences, quinn 64 and 5.9, redb 84 and 11.4.

use super::tidy::{Source, sources};

const PRO_FORMS: &str = "it its itself they them their theirs themselves he she his her him we us \
    our who whom whose whoever what whatever which whichever that those this these one ones none \
    all each both another other others some somebody someone something any anybody anyone anything \
    nobody nothing everybody everyone everything there so such same then thereby therein where \
    wherever whence here";
/// Most pro-forms of 1,000 words: the value that is reached.
const MOST_OF_WORDS: f64 = 75.0;
/// Most of 1,000 sentences of [`COUNTED`] words or more that are dense.
const MOST_OF_SENTENCES: f64 = 6.0;
/// Share of pro-forms from which on a sentence is dense.
const DENSE: f64 = 0.3;
/// Words of the shortest sentence that counts.
const COUNTED: usize = 6;

/// The text of each run of comment lines, with the number of its first line.
fn comments(source: &Source) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in source.lines() {
        let text = line.trim_start().strip_prefix("//");
        match text.map(|text| text.strip_prefix(['/', '!']).unwrap_or(text)) {
            Some(text) if is_open => {
                let (_, comment) = found.last_mut().expect("a comment is open");
                comment.push('\n');
                comment.push_str(text.strip_prefix(' ').unwrap_or(text));
            }
            Some(text) => found.push((number, text.trim_start().to_owned())),
            None => {}
        }
        is_open = text.is_some();
    }
    found
}

/// The sentences of a comment, without tables, headings, code blocks, code spans and link targets.
fn sentences(comment: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut in_block = false;
    for line in comment.lines().map(str::trim) {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if line.is_empty() || line.starts_with(['|', '#']) || in_block {
            plain.push_str(" \u{1} ");
        } else if let Some(item) = line.strip_prefix("* ").or(line.strip_prefix("- ")) {
            plain.push_str(" \u{1} ");
            plain.push_str(item);
        } else {
            plain.push_str(line);
        }
        plain.push(' ');
    }
    let plain = without_link_targets(&without_spans(&plain));
    let mut found = vec![String::new()];
    for word in plain.split_whitespace() {
        let sentence = found.last_mut().expect("one is open");
        sentence.push_str(word);
        sentence.push(' ');
        if word.ends_with(['.', '!', '?', ':', ';', '\u{1}']) {
            found.push(String::new());
        }
    }
    found
}

/// A text with each code span as one word.
fn without_spans(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(index, part)| if index % 2 == 0 { part } else { "CODE" }).collect()
}

fn without_link_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    plain
}

fn words(sentence: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_alphabetic() || ['\'', '’', '-'].contains(&letter);
    let parts = sentence.split(|letter| !is_part(letter));
    let words = parts.map(|part| part.trim_start_matches(['\'', '’', '-']));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn pro_forms(words: &[String]) -> usize {
    words.iter().filter(|word| PRO_FORMS.split(' ').any(|one| one == word.as_str())).count()
}

fn is_counted(source: &Source) -> bool {
    let is_of_tests = |part: &str| part == "tests" || part == "benches";
    !source.path.ends_with("tests.rs") && !source.path.split('/').any(is_of_tests)
}

#[test]
fn comments_name_what_they_speak_of() {
    let (mut all, mut pro, mut long, mut dense) = (0, 0, 0, Vec::new());
    for source in sources("rs").iter().filter(|source| is_counted(source)) {
        for (number, comment) in comments(source) {
            for sentence in sentences(&comment) {
                let words = words(&sentence);
                let found = pro_forms(&words);
                all += words.len();
                pro += found;
                if words.len() >= COUNTED {
                    long += 1;
                    if found as f64 >= DENSE * words.len() as f64 {
                        dense.push(format!("{}:{number}: {sentence}", source.path));
                    }
                }
            }
        }
    }
    let of_words = 1000.0 * pro as f64 / all as f64;
    let of_sentences = 1000.0 * dense.len() as f64 / f64::from(long);
    let which = dense.join("\n  ");
    assert!(
        of_words < MOST_OF_WORDS && of_sentences < MOST_OF_SENTENCES,
        "{of_words:.1} of 1,000 words are pro-forms, and {of_sentences:.1} of 1,000 sentences are \
         full of them:\n  {which}"
    );
}

#[test]
fn sentences_are_found_and_quoted_words_do_not_count() {
    let text =
        "It reads `that one`. See [what](it.md#those); this\n\n* one\n| they | them |\n# Which";
    let found: Vec<_> = sentences(text).iter().map(|one| words(one)).collect();
    let found: Vec<_> = found.into_iter().filter(|words| !words.is_empty()).collect();
    let expected: [&[&str]; 4] = [&["it", "reads", "code"], &["see", "what"], &["this"], &["one"]];
    assert_eq!(found, expected);
    assert_eq!(found.iter().map(|words| pro_forms(words)).collect::<Vec<_>>(), [1, 1, 1, 1]);
}
