//! Nodes against a sorted map, and bytes that are no node.

use std::collections::BTreeMap;

use lotus_tree::whole::{self, Defect, Summary};
use lotus_tree::{CHILD_BYTES, Inner, Node, ROOT, Seek, edit, least_bytes, usual_bytes};
use proptest::collection::vec;
use proptest::prelude::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Nodes = BTreeMap<u64, Vec<u8>>;

fn read(bytes: &[u8]) -> Node<'_> {
    let node = Node::read(bytes).expect("well-formed");
    assert!(node.is_sound());
    node
}

fn leaf_of(map: &Map) -> Vec<u8> {
    let empty = Node::EMPTY.bytes().to_vec();
    map.iter().fold(empty, |leaf, (key, value)| edit::with(read(&leaf), key, value))
}

fn entries(node: Node<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    node.entries().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Few letters: keys share prefixes, short and long ones, and one is a prefix of another.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    let letter = prop_oneof![Just(0), Just(b'a'), Just(b'b')];
    (0..12_usize, vec(letter, 1..6)).prop_map(|(begin, rest)| [vec![b'a'; begin], rest].concat())
}

fn maps(least: usize) -> impl Strategy<Value = Map> {
    proptest::collection::btree_map(keys(), vec(any::<u8>(), 0..9), least..40)
}

/// What an inner node says about a place, by its entries one after the other.
fn child_of(inner: Node<'_>, place: Seek<'_>) -> Option<u64> {
    let begins = |key: &[u8]| match place {
        Seek::At(wanted) => key <= wanted,
        Seek::Below(wanted) => key < wanted,
        Seek::Last => true,
    };
    let child = (0..inner.len()).rev().find(|index| begins(inner.key(*index)))?;
    (!inner.high().is_some_and(begins)).then(|| inner.child(child))
}

proptest! {
    #[test]
    fn a_leaf_is_a_sorted_map(map in maps(0), wanted in keys()) {
        let bytes = leaf_of(&map);
        let leaf = read(&bytes);
        prop_assert_eq!(entries(leaf), map.clone().into_iter().collect::<Vec<_>>());
        prop_assert_eq!(leaf.get(&wanted), map.get(&wanted).map(Vec::as_slice));
        let next = map.range(wanted.clone()..).next().map(|(key, _)| key.as_slice());
        let (Ok(at) | Err(at)) = leaf.find(&wanted);
        prop_assert_eq!((at < leaf.len()).then(|| leaf.key(at)), next);
        let mut without = map.clone();
        without.remove(&wanted);
        prop_assert_eq!(edit::without(leaf, &wanted), leaf_of(&without));
    }

    #[test]
    fn halves_follow_each_other_and_merge_into_the_whole(
        map in maps(8),
        last: bool,
        slack in 0..30_usize,
    ) {
        let bytes = leaf_of(&map);
        let added = if last { map.keys().next_back() } else { map.keys().next() };
        let limit = bytes.len() - slack.min(bytes.len() / 4);
        let split = edit::split(read(&bytes), added.expect("two entries"), limit);
        let (left, right) = (read(&split.left), read(&split.right));
        prop_assert!(!left.is_empty() && !right.is_empty());
        if last {
            let next = edit::with(left, right.key(0), right.entry(0).1);
            prop_assert!(split.left.len() <= limit && limit < next.len() + 5 || right.len() == 1);
        }
        prop_assert_eq!(left.high(), Some(&split.separator[..]));
        prop_assert_eq!(right.low(), &split.separator[..]);
        for key in map.keys() {
            let halves = [left, right].map(|half| half.covers(Seek::At(key)));
            prop_assert_eq!(halves, [left, right].map(|half| half.get(key).is_some()));
        }
        prop_assert_eq!(edit::merged(left, right, bytes.len()), Some(bytes.clone()));
        prop_assert_eq!(edit::merged(left, right, bytes.len() - 1), None);
    }

    #[test]
    fn halves_fit_where_two_of_the_longest_entries_do(
        (key_bytes, value_bytes) in (1..40_usize, 1..60_usize),
        steps in vec((any::<u16>(), any::<u8>(), any::<u8>()), 1..60),
        inner: bool,
    ) {
        let limit = least_bytes(key_bytes, value_bytes);
        // Keys, and so separators, have any length; half of the values have the longest.
        let entry = |(first, key, value): (u16, u8, u8)| {
            let mut bytes = first.to_be_bytes()[..2.min(key_bytes)].to_vec();
            bytes.resize(bytes.len() + usize::from(key) % (key_bytes + 1 - bytes.len()), key);
            let long = if value % 2 == 0 { value_bytes } else { usize::from(value) % value_bytes };
            (bytes, vec![7; if inner { CHILD_BYTES } else { long }])
        };
        let start = match inner {
            false => Node::EMPTY.bytes().to_vec(),
            true => edit::root_above(0, 1, &entry(steps[0]).0, 2),
        };
        let mut nodes = vec![start];
        for step in steps {
            let (key, payload) = entry(step);
            let covers = |bytes: &Vec<u8>| read(bytes).covers(Seek::At(&key));
            let at = nodes.iter().position(covers).expect("the nodes cover all keys");
            let grown = match <[u8; CHILD_BYTES]>::try_from(&payload[..]) {
                Ok(child) if inner => {
                    edit::with_child(read(&nodes[at]), &key, u64::from_le_bytes(child))
                }
                _ => edit::with(read(&nodes[at]), &key, &payload),
            };
            if grown.len() <= limit {
                nodes[at] = grown;
                continue;
            }
            let split = edit::split(read(&grown), &key, limit);
            for half in [&split.left, &split.right] {
                prop_assert!(half.len() <= limit && !read(half).is_empty());
            }
            nodes.splice(at..=at, [split.left, split.right]);
        }
    }

    #[test]
    fn inner_nodes_lead_to_the_child_that_covers(map in maps(1), wanted in keys()) {
        let separators: Vec<_> = map.keys().cloned().collect();
        let mut bytes = edit::root_above(0, 7, &separators[0], 8);
        for (separator, child) in separators[1..].iter().zip(9..) {
            bytes = edit::with_child(read(&bytes), separator, child);
        }
        let inner = read(&bytes);
        prop_assert_eq!((inner.level(), inner.len()), (1, separators.len() + 1));
        let below = separators.iter().filter(|key| **key <= wanted).count();
        let at = inner.child_place(Seek::At(&wanted));
        prop_assert_eq!((at, inner.child(at)), (below, 7 + below as u64));
        let under = separators.iter().filter(|key| **key < wanted).count();
        prop_assert_eq!(inner.child_place(Seek::Below(&wanted)), under);
        prop_assert_eq!(inner.child_place(Seek::Last), separators.len());
        prop_assert!(inner.covers(Seek::Last) && inner.covers(Seek::At(&wanted)));
    }

    #[test]
    fn remembered_nodes_lead_where_the_nodes_do(map in maps(3), wanted in keys()) {
        let separators: Vec<_> = map.keys().cloned().collect();
        let mut whole = edit::root_above(0, 7, &separators[0], 8);
        for (separator, child) in separators[1..].iter().zip(9..) {
            whole = edit::with_child(read(&whole), separator, child);
        }
        // The halves of a half have fences on both sides.
        let split = |bytes: &[u8]| edit::split(read(bytes), b"", 10_000);
        let mut nodes = vec![whole];
        for part in 0..2 {
            if read(&nodes[part]).len() > 1 {
                let halves = split(&nodes[part]);
                nodes.extend([halves.left, halves.right]);
            }
        }
        for bytes in &nodes {
            let inner = Inner::of(read(bytes)).expect("it has children");
            prop_assert_eq!(inner.node().bytes(), &bytes[..]);
            for place in [Seek::At(&wanted), Seek::Below(&wanted), Seek::Last] {
                let child = child_of(inner.node(), place);
                prop_assert_eq!(inner.child(place), child);
                let covered = inner.node().covers(place);
                let at = inner.node().child_place(place);
                prop_assert_eq!(covered.then(|| inner.node().child(at)), child);
            }
        }
    }

    #[test]
    fn other_bytes_are_read_without_a_panic(map in maps(1), at: usize, byte: u8) {
        let mut bytes = leaf_of(&map);
        for end in 0..bytes.len() {
            let cut = Node::read(&bytes[..end]);
            if let Some(cut) = cut.filter(|node| node.is_sound()) {
                // The last value was cut, which only its record's length tells.
                prop_assert!(end >= bytes.len() - 8 && cut.len() == map.len());
            }
        }
        let at = at % bytes.len();
        bytes[at] = byte;
        let Some(node) = Node::read(&bytes) else { return Ok(()) };
        let (place, entries) = (node.find(b"b"), node.entries().count());
        prop_assert!(place.unwrap_or_else(|next| next) <= entries);
        // No panic here either, wherever it leads.
        let _ = Inner::of(node).and_then(|inner| inner.child(Seek::At(b"b")));
        if node.is_sound() {
            prop_assert!(node.entries().all(|(key, _)| node.get(key).is_some()));
            prop_assert!(node.entries().all(|(key, _)| node.covers(Seek::At(key))));
        }
    }
}

fn built(rows: usize, limit: usize) -> Nodes {
    let rows: Vec<_> = (0..rows as u64)
        .map(|row| (row.to_be_bytes()[..].to_vec(), vec![7; 3 + row as usize % 9]))
        .collect();
    let rows: Vec<_> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    let mut numbers = 100..;
    let nodes = whole::build(&rows, limit, || numbers.next().expect("without end"));
    assert!(nodes.iter().all(|(_, bytes)| bytes.len() <= limit));
    nodes.into_iter().collect()
}

#[test]
fn trees_are_built_whole() {
    for (rows, levels) in [(0, 1), (1, 1), (9, 1), (100, 2), (5_000, 4)] {
        let nodes = built(rows, 256);
        let summary = whole::check(&nodes).expect("it is a tree");
        assert_eq!((summary.rows, summary.levels), (rows as u64, levels), "{rows} rows");
        assert_eq!(summary.nodes, nodes.len() as u64);
    }
    assert_eq!(whole::check(&Nodes::new()), Ok(Summary::default()));
}

#[test]
fn inner_nodes_are_built_above_leaves_that_are_elsewhere() {
    for rows in [10, 100, 5_000] {
        let mut nodes = built(rows, 256);
        let levels = whole::check(&nodes).expect("it is a tree").levels;
        nodes.retain(|_, bytes| read(bytes).is_leaf());
        // If it is the only one, the root of the tree is another.
        if let Some(leaf) = nodes.remove(&ROOT) {
            nodes.insert(1, leaf);
        }
        let fences = nodes.iter().map(|(id, bytes)| (read(bytes).low(), *id));
        let mut fences: Vec<_> = fences.collect();
        fences.sort_unstable();
        let mut numbers = 1_000_000..;
        let above = whole::build_above(&fences, 256, || numbers.next().expect("without end"));
        assert!(above.iter().all(|(_, bytes)| bytes.len() <= 256 && !read(bytes).is_leaf()));
        nodes.extend(above);
        let summary = whole::check(&nodes).expect("it is a tree");
        assert_eq!((summary.rows, summary.levels), (rows as u64, levels.max(2)));
    }
}

/// A tree with other numbers for its nodes is the same tree.
#[test]
fn children_are_renumbered_and_nothing_else_is() {
    let nodes = built(400, 300);
    let other = |number: u64| if number == ROOT { ROOT } else { 7_000 - 3 * number };
    let mut renumbered = Nodes::new();
    for (number, bytes) in &nodes {
        let mut bytes = bytes.clone();
        edit::renumber(&mut bytes, other);
        assert!(read(&bytes).is_sound());
        renumbered.insert(other(*number), bytes);
    }
    assert_eq!(whole::check(&renumbered), whole::check(&nodes));
    let leaf = nodes.values().find(|bytes| read(bytes).is_leaf()).expect("there are leaves");
    let mut same = leaf.clone();
    edit::renumber(&mut same, |_| unreachable!("a leaf has no child"));
    assert_eq!(same, *leaf);
}

#[test]
fn the_first_word_of_a_node_tells_its_rows() {
    let nodes = built(500, 256);
    let first = |bytes: &Vec<u8>| {
        let mut word = [0; 8];
        let count = bytes.len().min(8);
        word[..count].copy_from_slice(&bytes[..count]);
        u64::from_le_bytes(word)
    };
    assert_eq!(nodes.values().map(|node| lotus_tree::rows_of(first(node))).sum::<u64>(), 500);
    assert_eq!(lotus_tree::rows_of(first(&Node::EMPTY.bytes().to_vec())), 0);
}

#[test]
fn every_defect_of_a_tree_is_named() {
    let tree = built(100, 256);
    let root = tree[&ROOT].clone();
    let first = read(&root).child(0);
    let second = read(&root).child(1);
    let damaged = |damage: &dyn Fn(&mut Nodes)| {
        let mut nodes = tree.clone();
        damage(&mut nodes);
        whole::check(&nodes).expect_err("it is damaged")
    };
    let gone = damaged(&|nodes| drop(nodes.remove(&first)));
    assert_eq!(gone, Defect::Missing { parent: ROOT, child: first });
    let rootless = damaged(&|nodes| drop(nodes.remove(&ROOT)));
    assert_eq!(rootless, Defect::Unreached(tree.len() as u64 - 1));
    let cut = damaged(&|nodes| nodes.get_mut(&first).expect("there").truncate(5));
    assert_eq!(cut, Defect::Malformed(first));
    let swapped = damaged(&|nodes| drop(nodes.insert(first, nodes[&second].clone())));
    assert_eq!(swapped, Defect::Misplaced { parent: ROOT, child: first });
    let more = damaged(&|nodes| drop(nodes.insert(1, nodes[&first].clone())));
    assert_eq!(more, Defect::Unreached(1));
    let moved = damaged(&|nodes| {
        let leaf = edit::with(read(&nodes[&first]), &[u8::MAX; 8], b"beyond");
        nodes.insert(first, leaf);
    });
    assert_eq!(moved, Defect::Malformed(first));
}

#[test]
fn places_below_a_key_are_before_its_fence() {
    let leaf = leaf_of(&Map::from([(b"a".to_vec(), vec![]), (b"c".to_vec(), vec![])]));
    let split = edit::split(read(&leaf), b"a", 100);
    let (left, right) = (read(&split.left), read(&split.right));
    assert_eq!(split.separator, b"c");
    assert!(left.covers(Seek::Below(b"c")) && !right.covers(Seek::Below(b"c")));
    assert!(right.covers(Seek::Below(b"d")) && !left.covers(Seek::Below(b"d")));
    assert!(right.covers(Seek::Last) && !left.covers(Seek::Last));
    assert!(!left.covers(Seek::Below(b"")), "no key is below the empty one");
}

#[test]
fn sizes_hold_as_many_of_the_longest_entries_as_they_say() {
    for (key_bytes, value_bytes) in [(1, 1), (8, 16), (255, 8), (16, 1000)] {
        let sizes = [least_bytes, usual_bytes].map(|of| of(key_bytes, value_bytes));
        holds_so_many(2, sizes[0], key_bytes, value_bytes);
        holds_so_many(4, sizes[1], key_bytes, value_bytes);
    }
}

/// A node of `limit` bytes holds so many of the longest entries, and one more splits it.
fn holds_so_many(entries: usize, limit: usize, key_bytes: usize, value_bytes: usize) {
    let key = |first: u8| {
        let mut key = vec![0; key_bytes];
        key[0] = first;
        key
    };
    let value = vec![7; value_bytes];
    let map: Map = (1..entries as u8 + 2).map(|first| (key(first), value.clone())).collect();
    let split = edit::split(read(&leaf_of(&map)), &key(1), limit);
    assert!(split.left.len() <= limit && split.right.len() <= limit);
    let fit: Map = map.into_iter().take(entries).collect();
    assert!(leaf_of(&fit).len() <= limit);
    let inner = edit::root_above(0, 1, &key(1), 2);
    let inner = (2..entries as u8)
        .fold(inner, |inner, child| edit::with_child(read(&inner), &key(child), child.into()));
    assert!(read(&inner).len() == entries && inner.len() <= limit);
}
