//! Command lines of points, assembled from the flags of a figure, a series and a point.
//!
//! Pure. Later flags replace earlier flags, since the program itself refuses repeated flags. So the
//! command line of a point is unique, and can be typed by a user.

/// Words of a command line, without repeated flags.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct CommandLine {
    /// Words before the first flag.
    words: Vec<String>,
    /// Flags with their values.
    flags: Vec<(String, Vec<String>)>,
}

impl CommandLine {
    /// Joins the parts from left to right.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut line = Self::default();
        parts.into_iter().for_each(|part| line.add(part));
        line
    }

    /// Adds flags, which replace earlier flags of the same names.
    pub(super) fn add(&mut self, part: &str) {
        for word in part.split_whitespace() {
            if word.starts_with("--") {
                self.flags.retain(|(flag, _)| flag != word);
                self.flags.push((word.to_owned(), Vec::new()));
            } else {
                match self.flags.last_mut() {
                    Some((_, values)) => values.push(word.to_owned()),
                    None => self.words.push(word.to_owned()),
                }
            }
        }
    }

    /// Removes flags, with their values.
    pub(super) fn remove(&mut self, flags: &[&str]) {
        self.flags.retain(|(flag, _)| !flags.contains(&flag.as_str()));
    }

    /// All words, in order.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        let flags = self.flags.iter();
        let flags = flags.flat_map(|(flag, values)| std::iter::once(flag).chain(values));
        self.words.iter().chain(flags).map(String::as_str)
    }

    /// The line as typed.
    pub(super) fn typed(&self) -> String {
        self.words().collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_each_flag_is_left() {
        let cases: &[(&[&str], &str)] = &[
            (&["kvs --keys 5", "--zipf 0.99 --keys 7"], "kvs --zipf 0.99 --keys 7"),
            (&["kvs", "", "--balance", "--floor --balance 50"], "kvs --floor --balance 50"),
            (&["kvs\n--secs 1", "--secs  2 "], "kvs --secs 2"),
            (&[], ""),
        ];
        for (parts, expected) in cases {
            let line = CommandLine::of(parts.iter().copied());
            assert_eq!(line.typed(), *expected);
            assert_eq!(CommandLine::of([*expected]), line);
        }
        let mut line = CommandLine::of(["kvs --keys 5 --floor --zipf 1"]);
        line.remove(&["--keys", "--floor", "--rate"]);
        assert_eq!(line.typed(), "kvs --zipf 1");
    }
}
