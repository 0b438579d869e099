//! Compact text for sets of shards: `7`, `0-63`, `0-4094/2` for every second shard, and lists of
//! these.

use std::fmt::Write as _;

use lotus::ShardId;

/// Minimum number of shards in a run; fewer shards are listed singly.
const SHORTEST_RUN: usize = 3;

/// Parses a set of shards; returns them sorted and without duplicates.
///
/// # Errors
/// A sentence.
pub fn parse(text: &str) -> Result<Vec<u16>, String> {
    let mut shards = Vec::new();
    for piece in text.split(',') {
        shards.extend(parse_piece(piece.trim()).ok_or_else(|| {
            let most = ShardId::COUNT - 1;
            format!("\"{piece}\" names no shards: say 7, 0-63 or 0-4094/2, from 0 to {most}")
        })?);
    }
    shards.sort_unstable();
    shards.dedup();
    Ok(shards)
}

fn parse_piece(piece: &str) -> Option<impl Iterator<Item = u16> + use<>> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number < ShardId::COUNT);
    let (range, step) = match piece.split_once('/') {
        Some((range, step)) if range.contains('-') => (range, number(step).filter(|s| *s > 0)?),
        Some(_) => return None,
        None => (piece, 1),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then(|| (first..=last).step_by(usize::from(step)))
}

/// Formats shards, which must be sorted, as pieces that [`parse`] understands.
pub fn pieces(shards: &[u16]) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = shards;
    while let [first, others @ ..] = rest {
        let run = run_length(rest);
        if run < SHORTEST_RUN {
            pieces.push(first.to_string());
            rest = others;
            continue;
        }
        let (last, step) = (rest[run - 1], rest[1] - first);
        let every = if step == 1 { String::new() } else { format!("/{step}") };
        pieces.push(format!("{first}-{last}{every}"));
        rest = &rest[run..];
    }
    pieces
}

/// Length of the longest prefix of shards at equal distances.
fn run_length(shards: &[u16]) -> usize {
    let steps = || shards.windows(2).map(|pair| pair[1] - pair[0]);
    steps().next().map_or(1, |first| 1 + steps().take_while(|step| *step == first).count())
}

/// Formats shards as [`pieces`] does, in one line of at most `most` pieces.
pub fn line(shards: &[u16], most: usize) -> String {
    let pieces = pieces(shards);
    let mut line = pieces.iter().take(most).cloned().collect::<Vec<_>>().join(",");
    if let Some(left @ 1..) = pieces.len().checked_sub(most) {
        // Writing to a string cannot fail.
        let _ = write!(line, " and {left} more");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let even: Vec<u16> = (0..ShardId::COUNT).step_by(2).collect();
        let cases: &[(&[u16], &str)] = &[
            (&[], ""),
            (&[7], "7"),
            (&[7, 8], "7,8"),
            (&[7, 8, 9, 11], "7-9,11"),
            (&[0, 3, 6, 7, 8], "0-6/3,7,8"),
            (&even, "0-4094/2"),
        ];
        for (shards, text) in cases {
            assert_eq!(line(shards, 9), *text);
            if !shards.is_empty() {
                assert_eq!(parse(text).expect("it was written here"), *shards);
            }
        }
        assert_eq!(parse(" 3, 1-2,2-3").expect("they overlap"), [1, 2, 3]);
        assert_eq!(line(&[1, 5, 6, 30], 2), "1,5 and 2 more");
    }

    #[test]
    fn what_names_no_shards_is_refused() {
        for text in ["", "x", "4096", "-1", "5-3", "1-", "0-9/0", "3/2", "1,,2", "99999"] {
            let why = parse(text).expect_err("nonsense");
            assert!(why.contains("names no shards"), "{why}");
        }
    }
}
