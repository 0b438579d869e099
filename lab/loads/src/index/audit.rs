//! The tree at the end of a run: read as a whole, and judged.

use lotus_fabric::lane::Lane;

use super::Shape;
use super::inner::{InnerPage, ROOT};
use super::leaf::Leaf;
use super::page::{self, BYTES, Image, WORDS};
use super::tree::Places;
use crate::lanes::Findings;

/// Number of pages read in one batch.
const READ: u64 = 16;

/// All pages, with the front of their spares, and the first words of all locks.
pub(super) struct Parts {
    pages: Vec<(Image, u64)>,
    locks: Vec<[u64; 2]>,
}

impl Parts {
    /// Reads all pages and locks, when nothing else runs.
    pub(super) async fn read(lane: &Lane, places: Places) -> Result<Self, String> {
        let unread = |error| format!("the tree cannot be read: {error}");
        let mut batch = lane.batch();
        let buffer = batch.read(places.count, 8);
        let count = batch.post().await.map_err(unread)?.words(buffer)[0];
        let all = places.space.count();
        let mut parts = Self { pages: Vec::new(), locks: Vec::new() };
        for first in (0..all).step_by(READ as usize) {
            let mut batch = lane.batch();
            let numbers = first..all.min(first + READ);
            let buffers: Vec<_> = numbers
                .map(|number| {
                    let page = (number < count).then(|| batch.read(places.page(number), BYTES + 8));
                    (batch.read(places.lock(number), 16), page)
                })
                .collect();
            let done = batch.post().await.map_err(unread)?;
            for (lock, page) in buffers {
                parts.locks.push([done.words(lock)[0], done.words(lock)[1]]);
                let words = page.map(|page| done.words(page));
                parts.pages.extend(words.map(|words| {
                    let mut image = [0; WORDS];
                    image.copy_from_slice(&words[..WORDS]);
                    (image, words[WORDS])
                }));
            }
        }
        Ok(parts)
    }
}

/// Judges a tree. Every key below `keys` occurs at most once and in order, within fences, with an
/// allowed value; the pages of a level form a chain that the level above names; all locks are free.
pub(super) fn judge(
    parts: &Parts,
    is_free: impl Fn([u64; 2]) -> bool,
    keys: u64,
    may_have: impl Fn(u64, Option<u64>) -> bool,
) -> (Shape, Vec<String>) {
    let mut findings = Findings::default();
    for (number, words) in parts.locks.iter().enumerate() {
        if !is_free(*words) {
            let [head, claim] = words;
            findings
                .add(|| format!("the lock of page {number} is not free: {head:#x}, {claim:#x}"));
        }
    }
    for (number, (image, spare)) in parts.pages.iter().enumerate() {
        if !page::is_whole(image) || *spare != 0 {
            findings.add(|| format!("page {number} is in pieces"));
        }
    }
    let Some(root) = parts.pages.first().and_then(|(image, _)| InnerPage::read(image)) else {
        findings.add(|| "the root is no inner node".to_owned());
        return (Shape::default(), findings.told());
    };
    let mut shape = Shape { keys: 0, pages: 0, levels: root.level() + 1 };
    let mut level: Vec<(u64, u64)> = vec![(0, ROOT)];
    for below in (0..=root.level()).rev() {
        shape.pages += level.len() as u64;
        let chain = chain(parts, &level, below, &mut findings);
        if below == 0 {
            shape.keys = judge_leaves(&chain, keys, &may_have, &mut findings);
        } else {
            let inner = chain.iter().filter_map(|image| InnerPage::read(*image));
            level = inner.flat_map(|node| node.children()).collect();
        }
    }
    if shape.pages != parts.pages.len() as u64 {
        findings.add(|| format!("{} pages, of which {} are named", parts.pages.len(), shape.pages));
    }
    (shape, findings.told())
}

/// Pages of a level, as named by the low fences in the level above. Each page has to end where the
/// next page begins, and to name the next page as its right sibling.
fn chain<'a>(
    parts: &'a Parts,
    named: &[(u64, u64)],
    level: u8,
    findings: &mut Findings,
) -> Vec<&'a Image> {
    let mut pages = Vec::new();
    for (at, (low, number)) in named.iter().enumerate() {
        let image = parts.pages.get(*number as usize).map(|(image, _)| image);
        let read = image.and_then(|image| Some((image, page::read_head(image)?.0)));
        let Some((image, head)) = read else {
            findings.add(|| format!("page {number} is missing"));
            continue;
        };
        let next = named.get(at + 1);
        let ends = (head.high, head.sibling) == (next.map(|next| next.0), next.map(|next| next.1));
        if head.level != level || head.low != *low || !ends {
            findings.add(|| format!("page {number} does not fit where it is named: {head:?}"));
        }
        pages.push(image);
    }
    pages
}

/// Judges the keys of the leaves; returns their number.
fn judge_leaves(
    leaves: &[&Image],
    keys: u64,
    may_have: impl Fn(u64, Option<u64>) -> bool,
    findings: &mut Findings,
) -> u64 {
    let mut all = Vec::new();
    for leaf in leaves.iter().filter_map(|image| Leaf::read(*image)) {
        let mut entries: Vec<_> = leaf.entries().collect();
        entries.sort_unstable();
        if let Some((key, _)) = entries.iter().find(|(key, _)| !leaf.head().covers(*key)) {
            findings.add(|| format!("key {key} is outside of its leaf: {:?}", leaf.head()));
        }
        all.extend(entries);
    }
    if let Some(pair) = all.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        findings.add(|| format!("key {} is there twice, or before {}", pair[1].0, pair[0].0));
    }
    let mut found = all.iter().peekable();
    for key in 0..keys {
        let value = found.next_if(|entry| entry.0 == key).map(|entry| entry.1);
        if !may_have(key, value) {
            findings.add(|| format!("key {key} has {value:?}, which is not what was written last"));
        }
    }
    if let Some((key, _)) = found.next().filter(|_| keys > 0) {
        findings.add(|| format!("key {key} is out of place, or was never written"));
    }
    all.len() as u64
}

#[cfg(test)]
mod tests {
    use super::super::inner;
    use super::super::leaf::Put;
    use super::*;

    fn sound() -> Parts {
        let entries: Vec<_> = (0..500).map(|key| (key, key + 7)).collect();
        let mut pages = inner::pages(&entries);
        pages.sort_unstable_by_key(|(number, _)| *number);
        let locks = vec![[0; 2]; pages.len() + 3];
        Parts { pages: pages.into_iter().map(|(_, image)| (image, 0)).collect(), locks }
    }

    fn findings(parts: &Parts) -> Vec<String> {
        judge(parts, |words| words == [0, 0], 500, |key, value| value == Some(key + 7)).1
    }

    #[test]
    fn what_is_wrong_is_found() {
        assert_eq!(findings(&sound()), [""; 0]);
        type Spoil = fn(&mut Parts);
        let cases: [(Spoil, &str); 8] = [
            (|parts| parts.locks[17] = [5, 0], "the lock of page 17 is not free"),
            (|parts| parts.pages[3].0[9] += 1, "page 3 is in pieces"),
            (|parts| parts.pages[3].1 = 1, "page 3 is in pieces"),
            (|parts| parts.pages[3].0 = parts.pages[4].0, "does not fit"),
            (|parts| parts.pages.truncate(9), "is missing"),
            (|parts| parts.pages.push(parts.pages[2]), "of which"),
            (|parts| parts.pages[0].0 = parts.pages[1].0, "the root is no inner node"),
            (
                |parts| {
                    let image = parts.pages[1].0;
                    let Put::Replace(piece) = Leaf::read(&image).expect("whole").put(3, 11) else {
                        panic!("it is there")
                    };
                    let words = &mut parts.pages[1].0[piece.at..piece.at + piece.len];
                    words.copy_from_slice(&piece.words);
                },
                "key 3 has Some(11), which is not",
            ),
        ];
        for (spoil, said) in cases {
            let mut parts = sound();
            spoil(&mut parts);
            let found = findings(&parts);
            assert!(found.iter().any(|finding| finding.contains(said)), "{said}: {found:?}");
        }
    }
}
