//! That a cluster comes to rest, said to nodes that do not serve yet.
//!
//! `lotus cluster down` asks the compute nodes that serve to rest, and then takes the last
//! snapshot. A node that begins to serve in between would commit what is in no snapshot. So the
//! command says at the authority that all rest before it looks who serves, and a node says that it
//! opens its door before it looks whether all rest. Of two at the same moment one sees the other.
//!
//! What is said is taken back when there is no snapshot; or by the node that has rested for as long
//! as was said, should the command have been killed.

use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::{Deserialize, Serialize};

use super::records;

const KEY: &str = "resting";

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Said {
    /// For so many seconds, from when it is read.
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

    /// Takes it back, unless it has been said anew.
    pub fn end(self, authority: &dyn Authority) {
        let over = serde_json::to_vec(&Said::Over).expect("a word");
        // Unanswered, nodes that start rest for a while and take it back then.
        let _ = authority.compare_and_swap(KEY, self.version, &over);
    }
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
        first.end(&authority);
        assert_eq!(read(), Some(second));
        second.end(&authority);
        assert_eq!(read(), None);
    }
}
