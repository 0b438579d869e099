//! The order to rest, kept at the authority for nodes that do not serve yet.
//!
//! `lotus cluster down` asks the serving compute nodes to rest, and then takes the last snapshot. A
//! node that begins to serve in between would make commits outside the snapshot. So the command
//! writes the order at the authority before it looks for serving nodes, and a node writes the stage
//! `Opening` before it looks for an order. If both are concurrent, the command or the node sees the
//! other's write.
//!
//! # End of a rest
//! The order has a version, and is taken back by compare-and-swap: by the command if there is no
//! snapshot, or by a node that has rested for the ordered time, in case the command was killed. A
//! node serves only once its order is taken back, or had been taken back already (I176).
//!
//! Between the snapshot and the end of the nodes the command orders a rest [for
//! good](Rest::for_good). If this fails, nodes may serve again, and no node is ended. If it
//! succeeds, nodes never take the order back, so the command may pause arbitrarily long before it
//! ends the nodes. If the command is killed in between, a later command decides: `up` takes the
//! order back, and `down` begins anew.
//!
//! # Lost answers
//! Every order has a unique number, by which a command recognises its own order at the authority,
//! whether or not the write was acknowledged (I210).

use std::ops::ControlFlow;
use std::time::Duration;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::Env;
use serde::{Deserialize, Serialize};

use super::records::{self, until_answered};

const KEY: &str = "resting";
/// Key written for every order: the version of the write numbers the order.
const NAMES: &str = "resting/names";
/// Time for which a command asks a silent authority.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum RestRecord {
    /// Nodes rest for `secs` seconds from their reading of the order.
    Rest {
        secs: u64,
        /// Number of the order.
        #[serde(default)]
        name: u64,
    },
    /// Nodes rest until a command takes the order back.
    ForGood {
        /// Number of the order.
        name: u64,
    },
    Over,
}

impl RestRecord {
    fn bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("a word and numbers")
    }
}

fn go_on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// An order to rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    version: Version,
    /// Duration in seconds, counted from reading the order; `None` for good.
    pub secs: Option<u64>,
    /// Number of the order; 0 if unknown.
    name: u64,
}

impl Rest {
    /// Writes a new order, overwriting an earlier order.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`], after 20 seconds.
    pub fn begin(authority: &dyn Authority, secs: u64) -> Result<Self, AuthorityError> {
        let env = Env::real(0);
        let name = || records::write(authority, NAMES, &());
        let Version(name) = until_answered(&env, PATIENCE, go_on, name)?;
        let record = RestRecord::Rest { secs, name };
        let version = until_answered(&env, PATIENCE, go_on, || {
            loop {
                let (version, found) = records::read::<RestRecord>(authority, KEY)?;
                if found == Some(record) {
                    return Ok(version);
                }
                match authority.compare_and_swap(KEY, version, &record.bytes()) {
                    Err(AuthorityError::Conflict { .. }) => {}
                    outcome => return outcome,
                }
            }
        })?;
        Ok(Self { version, secs: Some(secs), name })
    }

    /// The order in force; `None` if nodes may serve.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        let (version, record) = records::read(authority, KEY)?;
        Ok(match record {
            Some(RestRecord::Rest { secs, name }) => Some(Self { version, secs: Some(secs), name }),
            Some(RestRecord::ForGood { name }) => Some(Self { version, secs: None, name }),
            Some(RestRecord::Over) | None => None,
        })
    }

    /// The order as a node is told: its version, and the seconds.
    pub fn told(version: u64, secs: u64) -> Self {
        Self { version: Version(version), secs: Some(secs), name: 0 }
    }

    /// Version of the order at the authority.
    pub fn version(self) -> u64 {
        self.version.0
    }

    /// Makes the order permanent, until a command takes it back; fails if the order was taken back
    /// or replaced.
    ///
    /// # Errors
    /// [`AuthorityError::Conflict`] in this case; [`AuthorityError::Unavailable`], after 20
    /// seconds.
    pub fn for_good(self, authority: &dyn Authority) -> Result<Self, AuthorityError> {
        let record = RestRecord::ForGood { name: self.name };
        let replace = || self.replace(record, authority);
        let version = until_answered(&Env::real(0), PATIENCE, go_on, replace)?;
        Ok(Self { version, secs: None, ..self })
    }

    /// Takes the order back; fails if the order was replaced.
    ///
    /// # Errors
    /// [`AuthorityError::Conflict`] in this case; [`AuthorityError::Unavailable`]: ask again.
    pub fn end(self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        self.replace(RestRecord::Over, authority).map(drop)
    }

    /// As [`Self::end`], but asks a silent authority again for up to 20 seconds.
    ///
    /// # Errors
    /// As [`Self::end`], after 20 seconds.
    pub fn end_patiently(self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        until_answered(&Env::real(0), PATIENCE, go_on, || self.end(authority))
    }

    /// Replaces the order by `record`, or finds the replacement by an earlier try.
    fn replace(
        self,
        record: RestRecord,
        authority: &dyn Authority,
    ) -> Result<Version, AuthorityError> {
        match authority.compare_and_swap(KEY, self.version, &record.bytes()) {
            Err(conflict @ AuthorityError::Conflict { .. }) => {
                match records::read::<RestRecord>(authority, KEY)? {
                    (version, Some(found)) if found == record => Ok(version),
                    _ => Err(conflict),
                }
            }
            outcome => outcome,
        }
    }

    /// Next step of a node that rests for the order; `order` is the order at the authority.
    pub fn next(self, order: Option<Self>, is_late: bool) -> Next {
        match order {
            None => Next::Serve,
            Some(order) if order.version != self.version => Next::RestFor(order),
            Some(_) if is_late => Next::TakeBack,
            Some(_) => Next::Wait,
        }
    }
}

/// Next step of a node that rests; see [`Rest::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Continue to rest.
    Wait,
    /// Rest for the newer order, for its duration.
    RestFor(Rest),
    /// Take the order back, and serve if that succeeds.
    TakeBack,
    /// Serve.
    Serve,
}

#[cfg(test)]
mod tests {
    use lotus_authority::EmbeddedAuthority;
    use lotus_authority::testing::TestAuthority;

    use super::*;

    #[test]
    fn a_rest_is_over_when_it_is_taken_back_and_not_when_it_was_said_anew() {
        let authority = EmbeddedAuthority::new();
        let read = || Rest::read(&authority).expect("it answers");
        assert_eq!(read(), None);
        let first = Rest::begin(&authority, 7).expect("it answers");
        assert_eq!(read(), Some(first));
        let second = Rest::begin(&authority, 9).expect("it answers");
        assert!(first.end(&authority).is_err());
        assert_eq!(read(), Some(second));
        second.end(&authority).expect("nobody has said it anew");
        assert_eq!(read(), None);
    }

    /// A command gave up when an answer was lost, and left nodes at rest that began to serve then.
    #[test]
    fn a_rest_is_known_as_ones_own_whichever_answer_is_lost() {
        let authority = TestAuthority::lossy();
        let read = || Rest::read(authority.values()).expect("it answers");
        let order = Rest::begin(&authority, 7).expect("it answers, sooner or later");
        assert_eq!(read(), Some(order));

        let authority = TestAuthority::lossy();
        let read = || Rest::read(authority.values()).expect("it answers");
        let order = Rest::begin(authority.values(), 7).expect("it answers");
        let for_good = order.for_good(&authority).expect("nobody has taken it back");
        assert_eq!(read(), Some(for_good));
        assert_ne!(for_good.version, order.version);

        let authority = TestAuthority::lossy();
        let order = Rest::begin(authority.values(), 7).expect("it answers");
        let taken_back = order.end_patiently(&authority);
        taken_back.expect("nobody has said it anew");
        assert_eq!(Rest::read(authority.values()), Ok(None));
        assert!(authority.lost() > 1);

        // Another command gives an order at the same moment.
        let authority = TestAuthority::lossy();
        let theirs = Rest::begin(authority.values(), 7).expect("it answers");
        let ours = Rest::begin(&authority, 7).expect("it answers, sooner or later");
        assert_eq!(Rest::read(authority.values()), Ok(Some(ours)));
        assert!(matches!(theirs.end(authority.values()), Err(AuthorityError::Conflict { .. })));
        assert!(matches!(
            theirs.for_good(authority.values()),
            Err(AuthorityError::Conflict { .. })
        ));
    }

    /// A node that was late served again while the command took the snapshot, and was ended with
    /// what it had committed since.
    #[test]
    fn nothing_is_ended_once_a_node_may_serve_again() {
        let authority = EmbeddedAuthority::new();
        let order = Rest::begin(&authority, 7).expect("it answers");
        order.end(&authority).expect("a node is late");
        assert!(matches!(order.for_good(&authority), Err(AuthorityError::Conflict { .. })));

        let order = Rest::begin(&authority, 7).expect("it answers");
        let for_good = order.for_good(&authority).expect("no node was late");
        order.end(&authority).expect_err("a node that was late a moment later");
        assert_eq!(
            order.next(Rest::read(&authority).expect("it answers"), true),
            Next::RestFor(for_good)
        );
    }

    /// A command stood still for more than a minute between its last word to the nodes and the
    /// signals that end them: they served again by then, and what they committed was lost.
    #[test]
    fn however_long_a_command_stands_still_no_node_serves_that_it_is_about_to_end() {
        let authority = EmbeddedAuthority::new();
        let read = || Rest::read(&authority).expect("it answers");
        let order = Rest::begin(&authority, 7).expect("it answers");
        order.for_good(&authority).expect("no node was late");
        let for_good = read().expect("nodes rest");
        assert_eq!(for_good.secs, None);
        assert_eq!(for_good.next(read(), false), Next::Wait);
        // Another command decides, if this one was killed.
        for_good.end(&authority).expect("it is the only one");
        assert_eq!(for_good.next(read(), false), Next::Serve);
    }

    #[test]
    fn a_node_serves_once_what_it_rests_for_is_taken_back() {
        let (mine, other) = (Rest::told(3, 7), Rest::told(4, 9));
        for (order, is_late, next) in [
            (None, false, Next::Serve),
            (None, true, Next::Serve),
            (Some(mine), false, Next::Wait),
            (Some(mine), true, Next::TakeBack),
            (Some(other), false, Next::RestFor(other)),
            (Some(other), true, Next::RestFor(other)),
        ] {
            assert_eq!(mine.next(order, is_late), next, "{order:?}, {is_late}");
        }
    }
}
