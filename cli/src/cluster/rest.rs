//! That a cluster comes to rest, said to nodes that do not serve yet.
//!
//! `lotus cluster down` asks the compute nodes that serve to rest, and then takes the last
//! snapshot. A node that begins to serve in between would commit what is in no snapshot. So the
//! command says at the authority that all rest before it looks who serves, and a node says that it
//! opens its door before it looks whether all rest. Of two at the same moment one sees the other.
//!
//! # Who ends it
//! What is said has a version, and is taken back by compare-and-swap: by the command when there is
//! no snapshot, or by a node that has rested for as long as was said, should the command have been
//! killed. A node opens its door only once what it rests for is taken back, or was already. The
//! command [says it anew](Rest::renew) between the snapshot and the end of the nodes; if that
//! fails, some node may serve again, and nothing is ended.

use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::{Deserialize, Serialize};

use super::records;

const KEY: &str = "resting";

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Said {
    /// For so many seconds, from when a node reads it.
    Rest {
        secs: u64,
    },
    Over,
}

/// That all rest, as it was said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    version: Version,
    /// For how long, from when this was read.
    pub secs: u64,
}

impl Rest {
    /// Says it.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn begin(authority: &dyn Authority, secs: u64) -> Result<Self, AuthorityError> {
        let version = records::write(authority, KEY, &Said::Rest { secs })?;
        Ok(Self { version, secs })
    }

    /// What is said now; `None` if nodes may serve.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        Ok(match records::read(authority, KEY)? {
            (version, Some(Said::Rest { secs })) => Some(Self { version, secs }),
            _ => None,
        })
    }

    /// As a node is told: the version, and the seconds.
    pub fn told(version: u64, secs: u64) -> Self {
        Self { version: Version(version), secs }
    }

    /// The number of what was said.
    pub fn version(self) -> u64 {
        self.version.0
    }

    /// Says it anew, for as long again, if it has not been taken back or replaced.
    ///
    /// # Errors
    /// [`AuthorityError::Conflict`] if it has; [`AuthorityError::Unavailable`].
    pub fn renew(self, authority: &dyn Authority) -> Result<Self, AuthorityError> {
        let said = serde_json::to_vec(&Said::Rest { secs: self.secs }).expect("a word");
        let version = authority.compare_and_swap(KEY, self.version, &said)?;
        Ok(Self { version, ..self })
    }

    /// Takes it back, unless it has been said anew; whether that is certain.
    pub fn end(self, authority: &dyn Authority) -> bool {
        let over = serde_json::to_vec(&Said::Over).expect("a word");
        authority.compare_and_swap(KEY, self.version, &over).is_ok()
    }

    /// What a node does that rests for this, where `said` is what stands at the authority.
    pub fn next(self, said: Option<Self>, is_late: bool) -> Next {
        match said {
            None => Next::Serve,
            Some(said) if said.version != self.version => Next::RestFor(said),
            Some(_) if is_late => Next::TakeBack,
            Some(_) => Next::Wait,
        }
    }
}

/// See [`Rest::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It rests.
    Wait,
    /// It rests for what was said since, and for as long as that says.
    RestFor(Rest),
    /// It takes back what was said, and serves if that succeeds.
    TakeBack,
    /// It serves.
    Serve,
}

#[cfg(test)]
mod tests {
    use lotus_router::EmbeddedAuthority;

    use super::*;

    #[test]
    fn a_rest_is_over_when_it_is_taken_back_and_not_when_it_was_said_anew() {
        let authority = EmbeddedAuthority::new();
        let read = || Rest::read(&authority).expect("it answers");
        assert_eq!(read(), None);
        let first = Rest::begin(&authority, 7).expect("it answers");
        assert_eq!(read(), Some(first));
        let second = Rest::begin(&authority, 9).expect("it answers");
        assert!(!first.end(&authority));
        assert_eq!(read(), Some(second));
        assert!(second.end(&authority));
        assert_eq!(read(), None);
    }

    /// A node that was late served again while the command took the snapshot, and was ended with
    /// what it had committed since.
    #[test]
    fn nothing_is_ended_once_a_node_may_serve_again() {
        let authority = EmbeddedAuthority::new();
        let said = Rest::begin(&authority, 7).expect("it answers");
        assert!(said.end(&authority), "a node is late");
        assert!(matches!(said.renew(&authority), Err(AuthorityError::Conflict { .. })));

        let said = Rest::begin(&authority, 7).expect("it answers");
        let renewed = said.renew(&authority).expect("no node was late");
        assert!(!said.end(&authority), "a node that was late a moment later");
        assert_eq!(
            said.next(Rest::read(&authority).expect("it answers"), true),
            Next::RestFor(renewed)
        );
    }

    #[test]
    fn a_node_serves_once_what_it_rests_for_is_taken_back() {
        let (mine, other) = (Rest::told(3, 7), Rest::told(4, 9));
        for (said, is_late, next) in [
            (None, false, Next::Serve),
            (None, true, Next::Serve),
            (Some(mine), false, Next::Wait),
            (Some(mine), true, Next::TakeBack),
            (Some(other), false, Next::RestFor(other)),
            (Some(other), true, Next::RestFor(other)),
        ] {
            assert_eq!(mine.next(said, is_late), next, "{said:?}, {is_late}");
        }
    }
}
