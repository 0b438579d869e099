//! The naming of rows, as known by this process.
//!
//! Each process draws a secret, and the catalogue decides on the cluster's secret
//! ([`crate::node::agreed::catalogue`]); a restored snapshot brings its own. Names are derived by
//! tables, by the naming of the catalogue that defines the table. This module holds the secret for
//! the time before the first table, and the decided naming for clients and snapshots.

use std::sync::{OnceLock, PoisonError, RwLock};

use lotus_fabric::env::Env;
use lotus_mvcc::{Naming, Secret};
use rand::Rng;

use crate::api::config::Config;
use crate::api::error::ClusterError;

/// Random stream for a simulated cluster's secret; belongs to the world outside of all nodes.
const STREAM: u64 = 0x4E41_4D45;

/// Naming of the cluster's rows.
pub(crate) struct Names {
    /// Naming for a first table made by this process.
    proposed: RwLock<Naming>,
    /// Naming in the catalogue.
    decided: OnceLock<Naming>,
}

impl Names {
    /// Draws a secret, unless the configuration contains a secret: in real time, a secret that no
    /// seed repeats; in a simulation, a secret from the simulated world's seed.
    ///
    /// # Errors
    /// `Randomness`.
    pub(crate) fn draw(config: &Config, is_real: bool, env: &Env) -> Result<Self, ClusterError> {
        let secret = match config.name_secret {
            Some(secret) => secret,
            None if is_real => {
                let drawn = lotus_security::nonce().map_err(ClusterError::Randomness)?;
                let [first, second, ..] = drawn;
                Secret::of([first, second])
            }
            None => Secret::of(env.rng(STREAM).random()),
        };
        let proposed = RwLock::new(Naming::by(secret).with_hash_bits(config.name_bits));
        Ok(Self { proposed, decided: OnceLock::new() })
    }

    /// Naming for a catalogue that does not exist yet.
    pub(crate) fn proposed(&self) -> Naming {
        *self.proposed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the secret for tables to be made, if no tables exist yet.
    pub(crate) fn propose(&self, secret: Secret) {
        let mut proposed = self.proposed.write().unwrap_or_else(PoisonError::into_inner);
        *proposed = proposed.with_secret(secret);
    }

    /// Notes the naming of a stored catalogue.
    ///
    /// # Errors
    /// `Damaged`: an earlier catalogue had a different naming. No row would be found by another
    /// name.
    pub(crate) fn decide(&self, naming: Naming) -> Result<(), ClusterError> {
        match *self.decided.get_or_init(|| naming) == naming {
            true => Ok(()),
            false => Err(ClusterError::Damaged),
        }
    }

    /// Naming in the catalogue; `None` before the first table, as far as this process knows.
    pub(crate) fn decided(&self) -> Option<Naming> {
        self.decided.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(config: &Config, is_real: bool, seed: u64) -> Naming {
        Names::draw(config, is_real, &Env::real(seed)).expect("there is randomness").proposed()
    }

    #[test]
    fn a_secret_is_given_or_of_a_simulated_worlds_seed_or_of_no_seed() {
        let none = Config::default();
        assert_ne!(drawn(&none, true, 1), drawn(&none, true, 1));
        assert_eq!(drawn(&none, false, 1), drawn(&none, false, 1));
        assert_ne!(drawn(&none, false, 1), drawn(&none, false, 2));
        let given = Config { name_secret: Some(Secret::from_seed(7)), ..Config::default() };
        for is_real in [false, true] {
            assert_eq!(drawn(&given, is_real, 1), Naming::by(Secret::from_seed(7)));
        }
    }

    #[test]
    fn what_is_decided_stays() {
        let names = Names::draw(&Config::default(), true, &Env::real(1)).expect("there is");
        let [first, other] = [1, 2].map(|seed| Naming::by(Secret::from_seed(seed)));
        assert_eq!(names.decided(), None);
        names.propose(first.secret());
        assert_eq!((names.proposed(), names.decided()), (first, None));
        for _ in 0..2 {
            names.decide(first).expect("it is the first, or the same");
        }
        assert!(matches!(names.decide(other), Err(ClusterError::Damaged)));
        names.propose(other.secret());
        assert_eq!(names.decided(), Some(first));
    }
}
