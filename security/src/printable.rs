//! Escapes text from outside for one line of a terminal or a log.
//!
//! A name, a key or an error from outside may contain line breaks that forge a log line, escape
//! sequences that control a terminal, or marks that reverse the text direction.

use std::borrow::Cow;

/// Escapes every invisible character: the result takes one line and cannot control a terminal
/// (I341). Plain text stays unchanged.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let escaped = |letter: char| match is_plain(letter) {
        true => letter.to_string(),
        false => letter.escape_debug().to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Returns whether a character is visible, or a space.
pub fn is_plain(letter: char) -> bool {
    let is_quoted = matches!(letter, '"' | '\'' | '\\');
    is_quoted || letter.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_takes_one_line_and_is_what_it_was_if_it_was_plain() {
        let cases = [
            ("", ""),
            ("it's \"plain\", a\\b, ä", "it's \"plain\", a\\b, ä"),
            ("k\ncheck passed", "k\\ncheck passed"),
            ("\x1b[2J\r\t\0", "\\u{1b}[2J\\r\\t\\0"),
            ("\u{202e}exe.txt\u{2028}", "\\u{202e}exe.txt\\u{2028}"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ];
        for (text, expected) in cases {
            assert_eq!(printable(text), expected);
            assert!(printable(text).chars().all(is_plain), "{text:?}");
        }
    }
}
