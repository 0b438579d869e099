//! Authorities that misbehave in one way each, within what the contract allows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lotus::{Authority, Cluster, ClusterBuilder};
use lotus_router::authority::{Version, Versioned};
use lotus_router::{AuthorityError, EmbeddedAuthority};

use super::PATIENCE;

/// A cluster of one compute node that asks `authority` as if it were far away.
pub fn alone(authority: Arc<dyn Authority>) -> ClusterBuilder {
    Cluster::embedded()
        .memory_nodes(1)
        .replicas(1)
        .memory_limit(64 << 20)
        .lock_table_bytes(1 << 20)
        .part([0], authority, Duration::ZERO)
}

/// Somebody else writes the first value of the catalogue just before this process would.
#[derive(Default)]
pub struct Outrun {
    inner: EmbeddedAuthority,
    happened: AtomicBool,
}

impl Outrun {
    pub fn has_happened(&self) -> bool {
        self.happened.load(Ordering::SeqCst)
    }
}

impl Authority for Outrun {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.inner.read(key)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        if key == "tables" && !self.happened.swap(true, Ordering::SeqCst) {
            // An empty catalogue: its format, and no table.
            self.inner.compare_and_swap(key, expected, &value[..1])?;
        }
        self.inner.compare_and_swap(key, expected, value)
    }
}

/// Answers nobody while it is held.
#[derive(Default)]
pub struct Held {
    inner: EmbeddedAuthority,
    /// Whether it is held, and whether somebody waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Held {
    pub fn hold(&self) {
        self.state.lock().expect("nobody panics with it").0 = true;
    }

    pub fn answer(&self) {
        self.state.lock().expect("nobody panics with it").0 = false;
        self.changed.notify_all();
    }

    pub fn is_asked(&self) -> bool {
        self.state.lock().expect("nobody panics with it").1
    }

    fn wait(&self) {
        let mut state = self.state.lock().expect("nobody panics with it");
        state.1 |= state.0;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |(held, _)| *held);
        assert!(!waited.expect("nobody panics with it").1.timed_out(), "nobody let it answer");
    }
}

impl Authority for Held {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.wait();
        self.inner.read(key)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.wait();
        self.inner.compare_and_swap(key, expected, value)
    }
}

/// Answers neither the first question for each key nor the first write of it, which it carries out.
#[derive(Default)]
pub struct Forgetful {
    inner: EmbeddedAuthority,
    read: Mutex<BTreeSet<String>>,
    written: Mutex<BTreeSet<String>>,
}

/// Whether a key is there for the first time.
fn is_first(keys: &Mutex<BTreeSet<String>>, key: &str) -> bool {
    keys.lock().expect("nobody panics with it").insert(key.to_owned())
}

impl Authority for Forgetful {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        if is_first(&self.read, key) {
            Err(AuthorityError::Unavailable)
        } else {
            self.inner.read(key)
        }
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        let written = self.inner.compare_and_swap(key, expected, value)?;
        if is_first(&self.written, key) { Err(AuthorityError::Unavailable) } else { Ok(written) }
    }
}
