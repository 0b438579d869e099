//! Inner nodes of crate `lotus-tree`, in pages with a right sibling.
//!
//! A page's fences are the node's fences. A page reached through an outdated node therefore shows
//! whether it covers a key, or a page to its right does. A key is stored as its eight bytes, the
//! most significant first; the least key, at which the first node of each level begins, has no
//! bytes.

use lotus_tree::{Inner, Node, Seek, edit, whole};

use super::leaf;
use super::page::{self, Head, INNER_BYTES, Image};

/// Number of the root, which never changes.
pub(super) const ROOT: u64 = lotus_tree::ROOT;

/// An inner node as remembered by a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InnerPage {
    head: Head,
    inner: Inner,
}

/// The next page on the way to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Toward {
    /// One level down.
    Down(u64),
    /// On the same level: the node has been split.
    Right(u64),
}

/// Result of adding a child to an inner node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The node already has the child.
    Already,
    /// The next state of the page.
    Fits(Box<Image>),
    /// The node has become too large for a page, and must be split. The bytes of the large node.
    TooLarge(Vec<u8>),
}

/// The halves of an inner node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// The lower half.
    pub(super) left: Image,
    /// Least key of the upper half.
    pub(super) separator: u64,
    /// The upper half, a new page.
    pub(super) right: Image,
}

fn bytes_of(key: &u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn fence(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

fn paged(version: u16, sibling: Option<u64>, bytes: &[u8]) -> Image {
    let node = Node::read(bytes).expect("it was made here");
    let (low, high) = (fence(node.low()), node.high().map(fence));
    page::of_inner(&Head { version, level: node.level(), sibling, low, high }, bytes)
}

impl InnerPage {
    /// Unpacks a page; `None` if the page was not read whole, or is no inner node.
    pub(super) fn read(words: &[u64]) -> Option<Self> {
        let (head, bytes) = page::read_head(words)?;
        let inner = Inner::of(Node::read(&page::inner_bytes(words, bytes))?)?;
        Some(Self { head, inner })
    }

    /// Number of levels below.
    pub(super) const fn level(&self) -> u8 {
        self.head.level
    }

    /// The page to search next for a key that is not to the left of this node.
    pub(super) fn next(&self, key: u64) -> Toward {
        match (self.inner.child(Seek::At(&bytes_of(&key))), self.head.sibling) {
            (Some(child), _) => Toward::Down(child),
            (None, Some(sibling)) => Toward::Right(sibling),
            (None, None) => unreachable!("{key} is to the left of {:?}", self.head),
        }
    }

    /// Low fence and number of each child.
    pub(super) fn children(&self) -> Vec<(u64, u64)> {
        let node = self.inner.node();
        (0..node.len()).map(|at| (fence(node.key(at)), node.child(at))).collect()
    }

    /// Adds a child that begins at `separator`, a key that the node covers.
    pub(super) fn add(&self, separator: u64, child: u64) -> Added {
        let (node, key) = (self.inner.node(), bytes_of(&separator));
        if node.find(&key).is_ok() {
            return Added::Already;
        }
        let bytes = edit::with_child(node, &key, child);
        match bytes.len() <= INNER_BYTES {
            true => {
                let next = paged(self.head.next_version(), self.head.sibling, &bytes);
                Added::Fits(Box::new(next))
            }
            false => Added::TooLarge(bytes),
        }
    }

    /// Splits the node, which the child at `added` has made too large. The upper half becomes the
    /// page `right`.
    pub(super) fn split(&self, too_large: &[u8], added: u64, right: u64) -> Split {
        let (lower, separator, upper) = halves(too_large, added);
        Split {
            left: paged(self.head.next_version(), Some(right), &lower),
            separator,
            right: paged(1, self.head.sibling, &upper),
        }
    }

    /// Splits the root: the halves become the pages `left` and `right`. The third page is the new
    /// root, in the place of the old root.
    pub(super) fn grow(&self, too_large: &[u8], added: u64, [left, right]: [u64; 2]) -> [Image; 3] {
        let (lower, separator, upper) = halves(too_large, added);
        let root = edit::root_above(self.head.level, left, &bytes_of(&separator), right);
        [
            paged(1, Some(right), &lower),
            paged(1, None, &upper),
            paged(self.head.next_version(), None, &root),
        ]
    }
}

fn halves(too_large: &[u8], added: u64) -> (Vec<u8>, u64, Vec<u8>) {
    let node = Node::read(too_large).expect("it was made here");
    let edit::Split { left, separator, right } = edit::split(node, &bytes_of(&added), INNER_BYTES);
    (left, fence(&separator), right)
}

/// The pages of a tree with these entries, which are in the order of their keys; pages are numbered
/// from [`ROOT`] on.
pub(super) fn pages(entries: &[(u64, u64)]) -> Vec<(u64, Image)> {
    let chunks: Vec<_> = match entries.is_empty() {
        true => vec![entries],
        false => entries.chunks(leaf::FILLED).collect(),
    };
    let (count, mut made) = (chunks.len() as u64, Vec::new());
    let low = |leaf: u64| match leaf {
        0 => 0,
        leaf => chunks[leaf as usize][0].0,
    };
    for (leaf, chunk) in (0..).zip(&chunks) {
        let follows = leaf + 1 < count;
        let head = Head {
            version: 1,
            level: 0,
            // The leaves' numbers begin behind the root's.
            sibling: follows.then_some(leaf + 2),
            low: low(leaf),
            high: follows.then(|| low(leaf + 1)),
        };
        made.push((leaf + 1, leaf::of(&head, chunk)));
    }
    let fences: Vec<_> = (0..count).map(|leaf| bytes_of(&low(leaf))).collect();
    let leaves = fences.iter().zip(1..).map(|(fence, number)| match number {
        1 => (&[][..], number),
        _ => (&fence[..], number),
    });
    let mut next = count;
    let inner = whole::build_above(&leaves.collect::<Vec<_>>(), INNER_BYTES, || {
        next += 1;
        next
    });
    for (at, (number, bytes)) in inner.iter().enumerate() {
        // Consecutive nodes of a level are siblings.
        let level = |bytes: &[u8]| Node::read(bytes).map(|node| node.level());
        let sibling = inner.get(at + 1).filter(|(_, next)| level(next) == level(bytes));
        made.push((*number, paged(1, sibling.map(|(number, _)| *number), bytes)));
    }
    made
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::leaf::{Leaf, Put};
    use super::super::page::is_whole;
    use super::*;

    /// A tree in this process: what lanes do with verbs, without locks.
    struct Tree {
        pages: BTreeMap<u64, Image>,
    }

    impl Tree {
        fn of(entries: &[(u64, u64)]) -> Self {
            Self { pages: pages(entries).into_iter().collect() }
        }

        fn inner(&self, number: u64) -> InnerPage {
            InnerPage::read(&self.pages[&number]).expect("whole")
        }

        /// The page on a level that covers a key.
        fn find(&self, key: u64, level: u8) -> u64 {
            let mut number = ROOT;
            loop {
                let inner = self.inner(number);
                if inner.level() == level {
                    return number;
                }
                number = match inner.next(key) {
                    Toward::Down(child) if inner.level() == level + 1 => return child,
                    Toward::Down(next) | Toward::Right(next) => next,
                };
            }
        }

        fn new_page(&mut self, image: Image) -> u64 {
            let number = self.pages.len() as u64;
            assert_eq!(self.pages.insert(number, image), None);
            number
        }

        fn put(&mut self, key: u64, value: u64) {
            let number = self.find(key, 0);
            let image = self.pages[&number];
            let leaf = Leaf::read(&image).expect("whole");
            let page = self.pages.get_mut(&number).expect("it is there");
            let pieces: Vec<_> = match leaf.put(key, value) {
                Put::Replace(piece) => vec![piece],
                Put::Add(pieces) => pieces.to_vec(),
                Put::Full => {
                    let right = self.pages.len() as u64;
                    let split = leaf.split(key, value, right);
                    self.pages.insert(number, split.left);
                    self.new_page(split.right);
                    return self.add(1, split.separator, right);
                }
            };
            for piece in pieces {
                page[piece.at..piece.at + piece.len].copy_from_slice(&piece.words[..piece.len]);
            }
        }

        fn add(&mut self, level: u8, separator: u64, child: u64) {
            let number = self.find(separator, level);
            let inner = self.inner(number);
            let (next, count) = (inner.add(separator, child), self.pages.len() as u64);
            match next {
                Added::Already => unreachable!("a page is added once"),
                Added::Fits(image) => _ = self.pages.insert(number, *image),
                Added::TooLarge(bytes) if number == ROOT => {
                    let [left, right, root] = inner.grow(&bytes, separator, [count, count + 1]);
                    self.new_page(left);
                    self.new_page(right);
                    self.pages.insert(ROOT, root);
                }
                Added::TooLarge(bytes) => {
                    let split = inner.split(&bytes, separator, count);
                    self.pages.insert(number, split.left);
                    self.new_page(split.right);
                    self.add(level + 1, split.separator, count);
                }
            }
            let inner = self.inner(number);
            if inner.head.covers(separator) && inner.level() == level {
                assert_eq!(inner.add(separator, child), Added::Already);
            }
        }

        fn get(&self, key: u64) -> Option<u64> {
            Leaf::read(&self.pages[&self.find(key, 0)]).expect("whole").get(key)
        }
    }

    #[test]
    fn trees_are_made_whole_whatever_their_size() {
        for (count, levels) in [(0, 2), (1, 2), (32, 2), (33, 2), (2_000, 3), (70_000, 4)] {
            let entries: Vec<_> = (0..count).map(|key| (3 * key + 1, key)).collect();
            let tree = Tree::of(&entries);
            assert!(tree.pages.values().all(|page| is_whole(page)));
            assert!(tree.pages.keys().copied().eq(0..tree.pages.len() as u64));
            assert_eq!(tree.inner(ROOT).level() + 1, levels);
            for (key, value) in entries.into_iter().step_by(1 + count as usize / 2_000) {
                assert_eq!((tree.get(key), tree.get(key + 1)), (Some(value), None));
            }
            assert_eq!((tree.get(0), tree.get(u64::MAX)), (None, None));
        }
    }

    /// Keys that ascend, descend and come from anywhere, in a tree that grows by a level.
    #[test]
    fn trees_grow_by_splits() {
        let many = 3_000;
        let orders: [fn(u64) -> u64; 3] =
            [|at| at, |at| u64::MAX - at, |at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
        for order in orders {
            let mut tree = Tree::of(&[]);
            (0..many).for_each(|at| tree.put(order(at), at));
            assert!(tree.inner(ROOT).level() >= 2);
            (0..many).for_each(|at| assert_eq!(tree.get(order(at)), Some(at)));
        }
    }

    #[test]
    fn a_node_out_of_date_leads_to_the_left_of_a_key_and_its_page_says_so() {
        let mut tree = Tree::of(&[]);
        let old = tree.inner(ROOT);
        (0..100).for_each(|key| tree.put(key, key));
        let Toward::Down(stale) = old.next(99) else { panic!("{old:?}") };
        let image = tree.pages[&stale];
        let head = Leaf::read(&image).expect("whole").head();
        assert!(head.is_left_of(99) && head.sibling.is_some());
    }
}
