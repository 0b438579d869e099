//! How plainly comments speak, counted over the whole workspace.
//!
//! A comment says what a thing is, noun or verb first. Two counts keep an eye on that, and never
//! stand for a reader: doc comments that open with a pronoun, a preposition or a question word, and
//! words that name an actor without saying which. Words in backticks and brackets do not count.

use super::tidy::{Source, sources};

const ODD_OPENINGS: &str = "who whoever whom whose what whatever which where wherever when \
    whenever why how those these them they it this that nobody somebody anybody everybody none \
    such with without of from to in on by at behind before after for as beside within beyond \
    until while";
const UNNAMED_ACTORS: &str = "who whoever whom whose nobody somebody anybody everybody";

/// Most doc comments of a hundred that may open so: redb has 4.0, openraft and quinn 2.8.
const MOST_ODD_PERCENT: f64 = 4.0;
/// Most such words of a thousand: redb has 1.3, openraft 0.4, quinn 0.1.
const MOST_ACTORS_PERMILLE: f64 = 1.3;

/// A line that is nothing but a comment.
struct Comment {
    /// It documents an item (`///`).
    is_doc: bool,
    /// The line before it belongs to the same comment.
    continues: bool,
    words: Vec<String>,
}

fn comments(source: &Source) -> Vec<(usize, Comment)> {
    let mut found = Vec::new();
    let mut continues = false;
    for (number, line) in source.lines() {
        let Some(text) = line.trim_start().strip_prefix("//") else {
            continues = false;
            continue;
        };
        let is_doc = text.starts_with('/');
        let words = words(text.trim_start_matches(['/', '!']));
        found.push((number, Comment { is_doc, continues, words }));
        continues = is_doc;
    }
    found
}

/// The words of a comment, in small letters; what it quotes is one word without a meaning.
fn words(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut until = None;
    for letter in text.chars() {
        match (until, letter) {
            (Some(end), _) if letter == end => until = None,
            (Some(_), _) => {}
            (None, '`') => until = Some('`'),
            (None, '[') => until = Some(']'),
            (None, _) => plain.push(letter),
        }
        if until.is_some() && !plain.ends_with(" x ") {
            plain.push_str(" x ");
        }
    }
    let words = plain.split(|letter: char| !letter.is_ascii_alphabetic() && letter != '\'');
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn is_one_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

#[test]
fn comments_open_with_a_noun_or_a_verb() {
    let (mut openings, mut odd) = (0, Vec::new());
    for source in sources("rs") {
        for (number, comment) in comments(&source) {
            let Some(first) = comment.words.first() else { continue };
            if comment.is_doc && !comment.continues {
                openings += 1;
                if is_one_of(ODD_OPENINGS, first) {
                    odd.push(format!("{}:{number}: {first}", source.path));
                }
            }
        }
    }
    let percent = 100.0 * odd.len() as f64 / f64::from(openings);
    let which = odd.join("\n  ");
    assert!(percent < MOST_ODD_PERCENT, "{percent:.1} % open with another word:\n  {which}");
}

#[test]
fn comments_name_their_actors() {
    let (mut all, mut unnamed) = (0, Vec::new());
    for source in sources("rs") {
        for (number, comment) in comments(&source) {
            all += comment.words.len();
            for word in comment.words.iter().filter(|word| is_one_of(UNNAMED_ACTORS, word)) {
                unnamed.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    let permille = 1000.0 * unnamed.len() as f64 / all as f64;
    let which = unnamed.join("\n  ");
    assert!(permille < MOST_ACTORS_PERMILLE, "{permille:.2} of 1,000 words do not:\n  {which}");
}

#[test]
fn quoted_words_do_not_count() {
    assert_eq!(words(" What [`who`] said, `it` isn't"), ["what", "x", "said", "x", "isn't"]);
    assert_eq!(words("`x` of those"), ["x", "of", "those"]);
}
