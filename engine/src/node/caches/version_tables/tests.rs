//! H11, one interleaving at a time, then all of them at random against a model.
//!
//! Remote memory is one CVT of one cell. Transactions take the steps that the engine takes.

use lotus_fabric::ids::{Incarnation, ShardId, TxnId};
use lotus_locktable::{LockMode, LockRequest, LockTableConfig};
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Contents, CvtShape, Version};
use lotus_mvcc::naming::KeyMark;
use proptest::prelude::*;

use super::*;

const HERE: NodeId = NodeId(3);
const AFAR: NodeId = NodeId(4);
const TABLE: TableId = TableId(1);
const KEY: Key = Key(7 << 12);
const NAME: RowName = RowName { key: KEY, mark: KeyMark::from_low_bits(5) };
const ROW: LockKey = LockKey::row(TABLE, KEY);
const OFFSET: u64 = 72;
const SHAPE: CvtShape = CvtShape::new(2, 0);

fn txn(slot: u16) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), slot, 1)
}

/// CVT of the row at a version, or while one is INVISIBLE.
fn cvt(version: Version) -> [u64; SHAPE.words()] {
    let mut words = [0; SHAPE.words()];
    words[HEADER_WORDS..][..CELL_WORDS].copy_from_slice(&cell(version).encode());
    words
}

fn cell(version: Version) -> Cell {
    let value = Contents::Value { length: 16 };
    Cell { version, ..Cell::NEVER_USED.taken_by(txn(9), value, 64) }
}

fn at(time: u64) -> Version {
    Version::Committed(Timestamp::new(time).expect("63 bits"))
}

/// Compute node that owns the row's shard, and the row in memory.
struct World {
    versions: VersionTables,
    shards: Arc<ShardMap>,
    locks: Arc<LockTable>,
    memory: Version,
}

impl World {
    fn new() -> Self {
        let locks = LockTable::new(LockTableConfig::with_bytes(1 << 12)).expect("valid");
        let (locks, shards) = (Arc::new(locks), ShardMap::even(&[HERE, AFAR]).expect("two nodes"));
        let shards = Arc::new(shards);
        let versions = VersionTables::new(HERE, Arc::clone(&locks), Arc::clone(&shards), 8);
        Self { versions, shards, locks, memory: at(1) }
    }

    fn lock(&self, slot: u16, mode: LockMode) -> bool {
        self.locks.try_lock(txn(slot), LockRequest { name: ROW, mode }).is_ok()
    }

    fn unlock(&self, slot: u16) {
        self.locks.unlock(txn(slot), &ROW);
    }

    /// Locks as the lock server does when another node asks.
    fn lock_from_afar(&self, slot: u16) -> bool {
        let granted = self.lock(slot, LockMode::Write);
        if granted {
            self.versions.forget(TABLE, KEY);
        }
        granted
    }

    fn before(&self) -> ReadStart {
        self.versions.before(TABLE, KEY).expect("this node owns the shard")
    }

    fn keep(&self, cover: Cover, before: ReadStart, read: Version) {
        self.versions.keep((TABLE, NAME), cover, before, OFFSET, Cvt::new(&cvt(read), SHAPE));
    }

    /// Caches the row by a READ without any interference.
    fn fill(&self) {
        let before = self.before();
        self.keep(Cover::Unlocked, before, self.memory);
    }

    fn cached(&self, cover: Cover) -> Option<Version> {
        let mut words = [0; SHAPE.words()];
        let offset = self.versions.lookup(TABLE, NAME, cover, &mut words)?;
        assert_eq!(offset, OFFSET);
        Some(Version::decode(words[HEADER_WORDS]))
    }

    /// Runs a local writer's last step before it unlocks.
    fn renew(&mut self, time: u64) {
        self.memory = at(time);
        self.versions.renew(TABLE, NAME, OFFSET, (0, cell(at(time))));
    }
}

#[test]
fn h11_what_nobody_disturbs_is_cached() {
    let world = World::new();
    assert_eq!(world.cached(Cover::Unlocked), None);
    world.fill();
    assert_eq!(world.cached(Cover::Unlocked), Some(at(1)));
    assert!(world.lock(1, LockMode::Read));
    assert_eq!(world.cached(Cover::Locked), Some(at(1)));
}

#[test]
fn h11_a_writer_of_this_node_renews_what_others_may_not_see_meanwhile() {
    let mut world = World::new();
    world.fill();
    assert!(world.lock(1, LockMode::Write));
    assert_eq!(world.cached(Cover::Locked), Some(at(1)));
    assert_eq!(world.cached(Cover::Unlocked), None);
    world.renew(5);
    assert_eq!(world.cached(Cover::Unlocked), None);
    world.unlock(1);
    assert_eq!(world.cached(Cover::Unlocked), Some(at(5)));
    // A writer that aborts leaves the cached CVT.
    assert!(world.lock(2, LockMode::Write));
    world.unlock(2);
    assert_eq!(world.cached(Cover::Unlocked), Some(at(5)));
}

/// The owner takes back the lock of an attempt that will not commit, and gives the shard to the
/// node where the attempt goes on reading.
#[test]
fn h11_a_lock_that_was_taken_back_covers_nothing() {
    let mut world = World::new();
    assert!(world.lock(1, LockMode::Write));
    assert_eq!(world.versions.cover_of(txn(1), TABLE, KEY), Cover::Locked);
    world.unlock(1);
    assert!(world.lock_from_afar(2));
    let cover = world.versions.cover_of(txn(1), TABLE, KEY);
    world.keep(cover, world.before(), world.memory);
    world.memory = at(5);
    world.unlock(2);
    assert_eq!(world.cached(Cover::Locked), None);
}

#[test]
fn h11_a_writer_of_another_node_leaves_nothing_cached() {
    let mut world = World::new();
    world.fill();
    assert!(world.lock_from_afar(1));
    for cover in [Cover::Unlocked, Cover::Locked] {
        assert_eq!(world.cached(cover), None);
    }
    world.memory = at(5);
    world.unlock(1);
    assert_eq!(world.cached(Cover::Unlocked), None);
    world.fill();
    assert_eq!(world.cached(Cover::Unlocked), Some(at(5)));
}

#[test]
fn h11_an_upgrade_is_a_grant_like_any_other() {
    let world = World::new();
    assert!(world.lock(1, LockMode::Read));
    let before = world.before();
    assert!(world.lock_from_afar(1));
    world.unlock(1);
    world.keep(Cover::Unlocked, before, at(1));
    assert_eq!(world.cached(Cover::Unlocked), None);
}

/// A READ overlaps a writer's begin, its end, both, or neither.
#[test]
fn h11_what_was_read_beside_a_writer_is_not_kept() {
    for (comes_first, goes) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new();
        if comes_first {
            assert!(world.lock_from_afar(1));
        }
        let (before, read) = (world.before(), world.memory);
        if !comes_first {
            assert!(world.lock_from_afar(1));
        }
        if goes {
            world.memory = at(5);
            world.unlock(1);
        }
        world.keep(Cover::Unlocked, before, read);
        assert_eq!(world.cached(Cover::Locked), None, "{comes_first} {goes}");
    }
}

#[test]
fn h11_what_was_read_under_a_lock_is_kept() {
    for mode in [LockMode::Read, LockMode::Write] {
        let world = World::new();
        assert!(world.lock(1, mode));
        world.keep(Cover::Locked, world.before(), at(1));
        assert_eq!(world.cached(Cover::Locked), Some(at(1)));
        world.keep(Cover::Locked, world.before(), Version::Invisible(txn(2)));
        assert_eq!(world.cached(Cover::Locked), Some(at(1)));
    }
}

#[test]
fn h19_what_was_read_before_a_shard_moved_is_not_kept_after() {
    for cover in [Cover::Unlocked, Cover::Locked] {
        let world = World::new();
        world.fill();
        let before = world.before();
        for to in [AFAR, HERE] {
            let owner = world.shards.owner(KEY.shard());
            assert!(world.shards.learn(KEY.shard(), owner.next(to).expect("epochs last")));
        }
        world.versions.forget(TABLE, KEY);
        world.keep(cover, before, at(1));
        assert_eq!(world.cached(Cover::Locked), None);
    }
}

#[test]
fn only_the_owner_of_a_shard_caches() {
    let world = World::new();
    let foreign = Key(u64::from(ShardId::COUNT) - 1);
    assert!(world.versions.covers(KEY) && !world.versions.covers(foreign));
    assert!(world.versions.before(TABLE, foreign).is_none());
    let off = VersionTables::new(HERE, Arc::clone(&world.locks), Arc::clone(&world.shards), 0);
    assert!(off.cache().is_none() && !off.covers(KEY));
}

/// Transaction of an actor in the model, run one step at a time.
#[derive(Clone, Copy, Debug)]
enum Script {
    WriteHere,
    WriteFromAfar,
    AbortHere,
    Fill,
    FillLocked,
    Look,
}

/// Actor that runs one transaction after the other.
struct Actor {
    scripts: Vec<Script>,
    step: usize,
    read: Option<(ReadStart, Version)>,
}

/// The world, and the last timestamp that was drawn for the row.
struct Model {
    world: World,
    drawn: u64,
}

impl Model {
    /// Takes the next step of an actor; `None` if that has ended its transaction.
    fn step(&mut self, slot: u16, actor: &mut Actor) -> Option<()> {
        let world = &mut self.world;
        let writes = matches!(actor.scripts[0], Script::WriteHere | Script::WriteFromAfar);
        match (actor.scripts[0], actor.step) {
            (Script::WriteHere | Script::AbortHere, 0) => {
                world.lock(slot, LockMode::Write).then_some(())?;
            }
            (Script::WriteFromAfar, 0) => world.lock_from_afar(slot).then_some(())?,
            (Script::FillLocked, 0) => world.lock(slot, LockMode::Read).then_some(())?,
            (Script::Look, _) => {
                let seen = world.cached(Cover::Unlocked);
                assert!(seen.is_none_or(|seen| seen == at(self.drawn)), "{seen:?}");
                return None;
            }
            (_, 1) if writes => {
                let seen = world.cached(Cover::Locked);
                assert!(seen.is_none_or(|seen| seen == world.memory), "{seen:?}");
                world.memory = Version::Invisible(txn(slot));
            }
            (_, 2) if writes => self.drawn += 1,
            (_, 3) if writes => world.memory = at(self.drawn),
            (Script::WriteHere, 4) => world.renew(self.drawn),
            (Script::Fill, 0) | (Script::FillLocked, 1) => {
                actor.read = Some((world.before(), world.memory));
            }
            (Script::Fill, _) | (Script::FillLocked, 2) => {
                let (before, read) = actor.read.take()?;
                let locked = matches!(actor.scripts[0], Script::FillLocked);
                let cover = if locked { Cover::Locked } else { Cover::Unlocked };
                world.keep(cover, before, read);
                locked.then_some(())?;
            }
            _ => {
                world.unlock(slot);
                return None;
            }
        }
        Some(())
    }

    /// Checks the claim in the documentation of `version_tables`.
    fn check(&self) {
        let cache = self.world.versions.cache().expect("it is on");
        cache.for_each(|_, _, _, cells| {
            let kept = Version::decode(cells[0]);
            let claim = kept == self.world.memory || self.world.locks.is_write_locked(&ROW);
            assert!(claim, "{kept:?} instead of {:?}", self.world.memory);
        });
    }
}

fn script() -> impl Strategy<Value = Script> {
    use Script::{AbortHere, Fill, FillLocked, Look, WriteFromAfar, WriteHere};
    prop::sample::select(vec![WriteHere, WriteFromAfar, AbortHere, Fill, Fill, FillLocked, Look])
}

proptest! {
    #[test]
    fn h11_what_is_cached_is_true_in_any_order_of_steps(
        actors in prop::collection::vec(prop::collection::vec(script(), 1..5), 4),
        order in prop::collection::vec(0..4usize, 1..120),
    ) {
        let mut model = Model { world: World::new(), drawn: 1 };
        let actor = |scripts| Actor { scripts, step: 0, read: None };
        let mut actors: Vec<Actor> = actors.into_iter().map(actor).collect();
        for turn in order {
            let actor = &mut actors[turn];
            match model.step(turn as u16, actor) {
                Some(()) => actor.step += 1,
                None => {
                    actor.step = 0;
                    actor.scripts.rotate_left(1);
                }
            }
            model.check();
        }
    }
}
