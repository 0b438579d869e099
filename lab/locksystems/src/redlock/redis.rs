//! A Redis reduced to the commands of RedLock, as a pure state machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lotus_fabric::env::Nanos;

use super::rules::RedisReply;
use crate::servers::Asker;

/// Value of a key, naming a client's try. Every try draws a new token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u128);

/// A client's command for the key of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// `SET key token NX PX ttl`: sets the key if it is not set.
    Set {
        /// The lock.
        key: u64,
        /// Value of the key.
        token: Token,
        /// Time to live of the key.
        ttl: Duration,
    },
    /// Compare-and-delete, a script in Redis: deletes the key if its value is the token.
    Delete {
        /// The lock.
        key: u64,
        /// Value of the key.
        token: Token,
    },
}

/// The keys of a server, with values and times to live.
#[derive(Clone, Debug, Default)]
pub struct Redis {
    keys: BTreeMap<u64, (Token, Nanos)>,
    expiries: BTreeSet<(Nanos, u64)>,
}

impl Redis {
    /// Carries out a command at this time of the server's clock.
    pub fn carry_out(&mut self, command: Command, now: Nanos) -> RedisReply {
        self.expire(now);
        match command {
            Command::Set { key, .. } if self.keys.contains_key(&key) => RedisReply::Refused,
            Command::Set { key, token, ttl } => {
                let expiry = now.after(ttl);
                self.keys.insert(key, (token, expiry));
                self.expiries.insert((expiry, key));
                RedisReply::Done
            }
            Command::Delete { key, token } => match self.keys.get(&key) {
                Some(&(value, expiry)) if value == token => {
                    self.keys.remove(&key);
                    self.expiries.remove(&(expiry, key));
                    RedisReply::Done
                }
                _ => RedisReply::Refused,
            },
        }
    }

    /// Deletes the keys whose time to live is over.
    pub fn expire(&mut self, now: Nanos) {
        while let Some(&(expiry, key)) = self.expiries.first().filter(|(at, _)| *at <= now) {
            self.expiries.remove(&(expiry, key));
            self.keys.remove(&key);
        }
    }

    /// Number of keys.
    pub fn used(&self) -> usize {
        self.keys.len()
    }
}

/// Name of a command. A slot has at most one outstanding command, and numbers commands upwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandName {
    /// The slot of the command.
    pub asker: Asker,
    /// Number among the slot's commands.
    pub number: u64,
}

/// A Redis behind messages that may be duplicated, late and reordered.
///
/// Commands on a connection of a real Redis arrive once and in order. The last number of each slot
/// ensures the same for messages: a repeated command gets the same reply and is not carried out
/// again, and an older command is ignored.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    redis: Redis,
    last: BTreeMap<Asker, (u64, RedisReply)>,
}

impl Sessions {
    /// Carries out a command if it is new. `None` if the slot has a later command already.
    pub fn ask(&mut self, name: CommandName, command: Command, now: Nanos) -> Option<RedisReply> {
        match self.last.get(&name.asker) {
            Some((last, _)) if name.number < *last => None,
            Some((last, reply)) if name.number == *last => Some(*reply),
            _ => {
                let reply = self.redis.carry_out(command, now);
                self.last.insert(name.asker, (name.number, reply));
                Some(reply)
            }
        }
    }

    /// Deletes the keys whose time to live is over.
    pub fn expire(&mut self, now: Nanos) {
        self.redis.expire(now);
    }

    /// Number of keys that were not deleted, and had not expired at the server's last check.
    pub fn used(&self) -> usize {
        self.redis.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::rules::{Times, TryVerdict, valid_until, verdict};
    use lotus_locks::word::Claimant;

    const TTL: Duration = Duration::from_millis(10);
    const KEY: u64 = 7;
    const ONE: Token = Token(1);
    const OTHER: Token = Token(2);

    fn at(micros: u64) -> Nanos {
        Nanos(micros * 1000)
    }

    fn set(token: Token) -> Command {
        Command::Set { key: KEY, token, ttl: TTL }
    }

    fn delete(token: Token) -> Command {
        Command::Delete { key: KEY, token }
    }

    #[test]
    fn one_sets_a_key_and_others_are_refused_until_it_is_deleted() {
        let mut redis = Redis::default();
        assert_eq!(redis.carry_out(set(ONE), at(0)), RedisReply::Done);
        assert_eq!(redis.carry_out(set(OTHER), at(1)), RedisReply::Refused);
        assert_eq!(
            redis.carry_out(set(ONE), at(1)),
            RedisReply::Refused,
            "SET NX looks at no value"
        );
        assert_eq!(redis.carry_out(delete(ONE), at(2)), RedisReply::Done);
        assert_eq!(redis.carry_out(set(OTHER), at(3)), RedisReply::Done);
        assert_eq!(redis.used(), 1);
    }

    #[test]
    fn compare_and_delete_never_deletes_the_key_of_another() {
        let mut redis = Redis::default();
        assert_eq!(redis.carry_out(delete(ONE), at(0)), RedisReply::Refused, "there is no key");
        assert_eq!(redis.carry_out(set(ONE), at(0)), RedisReply::Done);
        assert_eq!(redis.carry_out(delete(OTHER), at(1)), RedisReply::Refused);
        // The key of the first expires, and the second sets it: the first deletes nothing.
        assert_eq!(redis.carry_out(set(OTHER), at(10_000)), RedisReply::Done);
        assert_eq!(redis.carry_out(delete(ONE), at(10_001)), RedisReply::Refused);
        assert_eq!(redis.carry_out(set(ONE), at(10_002)), RedisReply::Refused);
    }

    #[test]
    fn a_key_that_was_deleted_and_set_again_lives_its_whole_time() {
        let mut redis = Redis::default();
        redis.carry_out(set(ONE), at(0));
        redis.carry_out(delete(ONE), at(5000));
        redis.carry_out(set(OTHER), at(6000));
        redis.expire(at(10_000));
        assert_eq!(redis.used(), 1, "the time of the first is none of the second's");
        redis.expire(at(15_999));
        assert_eq!(redis.used(), 1);
        redis.expire(at(16_000));
        assert_eq!(redis.used(), 0);
    }

    /// The published hole: nothing keeps a holder that is slow from acting beside the next one.
    #[test]
    fn expiry_lets_a_second_holder_in_while_the_first_is_slow() {
        let (mut redis, times) = (Redis::default(), Times { ttl: TTL, ..Times::BANK });
        let hold = |redis: &mut Redis, token, began: Nanos| {
            let reply = redis.carry_out(set(token), began);
            let got = verdict(&[Some(reply)]) == TryVerdict::Got;
            got.then(|| valid_until(began, began, times).expect("no time has passed"))
        };
        let first = hold(&mut redis, ONE, at(0)).expect("the lock is free");
        assert_eq!(hold(&mut redis, OTHER, at(9999)), None);
        // The first is slow, has not looked at its clock, and still acts as a holder.
        let second = hold(&mut redis, OTHER, at(10_000)).expect("the key has expired");
        assert!(first < at(10_000), "it could have known that its time was over");
        assert!(second > at(10_000), "the second holds the lock beside it");
        // What it does not do is to release the lock of the second.
        assert_eq!(redis.carry_out(delete(ONE), at(11_000)), RedisReply::Refused);
        assert_eq!(redis.used(), 1);
    }

    #[test]
    fn a_command_that_comes_twice_or_late_changes_nothing_twice() {
        let mut sessions = Sessions::default();
        let asker = Asker::new(Claimant::new(1, 1), 0, 0);
        let name = |number| CommandName { asker, number };
        assert_eq!(sessions.ask(name(1), set(ONE), at(0)), Some(RedisReply::Done));
        assert_eq!(
            sessions.ask(name(1), set(ONE), at(1)),
            Some(RedisReply::Done),
            "the same reply"
        );
        assert_eq!(sessions.ask(name(2), delete(ONE), at(2)), Some(RedisReply::Done));
        assert_eq!(sessions.ask(name(1), set(ONE), at(3)), None, "it is past");
        assert_eq!(sessions.ask(name(2), delete(ONE), at(3)), Some(RedisReply::Done));
        assert_eq!(sessions.used(), 0);
        // One that is overtaken by the deletion is not carried out at all.
        assert_eq!(sessions.ask(name(4), delete(OTHER), at(4)), Some(RedisReply::Refused));
        assert_eq!(sessions.ask(name(3), set(OTHER), at(5)), None);
        assert_eq!(sessions.used(), 0);
    }
}
