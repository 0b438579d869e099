//! The membership as bytes, little-endian: `format:8 epoch:32 changed:32 lost:16 returns:16
//! complaints:16`, then `node:16 since:32` for each memory node that is lost, `node:16 life:64
//! stage:8` for each that is back, `by:16 about:16` for each complaint, and for each member
//! `node:16 incarnation:16 joined:32 acknowledged:32 stopped:32 since:32 parts:16` and one byte and
//! a node for each part. `since` is 0 for a live member. A stage is followed by the compute nodes
//! that have found the memory node, as `count:16` and `by:16` each, or by one bit for each shard
//! that has been copied to it.

use lotus_fabric::ids::{Epoch, Incarnation, NodeId};

use super::returns::{Copied, Life, Return, Stage};
use super::{Complaint, Damaged, FORMAT, LostMemory, Member, Membership, Part, Standing};

const FOUND: u8 = 0;
const JOINING: u8 = 1;
const WHOLE: u8 = 2;

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const DONE: u8 = 2;

impl Membership {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.epoch.0.to_le_bytes());
        bytes.extend(self.changed.0.to_le_bytes());
        bytes.extend((self.lost.len() as u16).to_le_bytes());
        bytes.extend((self.returns.len() as u16).to_le_bytes());
        bytes.extend((self.complaints.len() as u16).to_le_bytes());
        for LostMemory { node, since } in &self.lost {
            bytes.extend(node.0.to_le_bytes());
            bytes.extend(since.0.to_le_bytes());
        }
        self.returns.iter().for_each(|one| one.encode(&mut bytes));
        for Complaint { by, about } in &self.complaints {
            bytes.extend(by.0.to_le_bytes());
            bytes.extend(about.0.to_le_bytes());
        }
        for member in &self.members {
            let (since, parts) = match &member.standing {
                Standing::Live => (Epoch(0), &[][..]),
                Standing::Expelled { since, parts } => (*since, &parts[..]),
            };
            bytes.extend(member.node.0.to_le_bytes());
            bytes.extend(member.incarnation.raw().to_le_bytes());
            bytes.extend(member.joined.0.to_le_bytes());
            bytes.extend(member.acknowledged.0.to_le_bytes());
            bytes.extend(member.stopped.0.to_le_bytes());
            bytes.extend(since.0.to_le_bytes());
            bytes.extend((parts.len() as u16).to_le_bytes());
            for part in parts {
                let (kind, holder) = match part {
                    Part::Free => (FREE, 0),
                    Part::Claimed(holder) => (CLAIMED, holder.0),
                    Part::Done => (DONE, 0),
                };
                bytes.push(kind);
                bytes.extend(holder.to_le_bytes());
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut rest = Reader(bytes);
        if rest.byte()? != FORMAT {
            return Err(Damaged);
        }
        let epoch = Epoch(rest.word()?);
        let changed = Epoch(rest.word()?);
        let (losses, returns, complaints) = (rest.short()?, rest.short()?, rest.short()?);
        let lost = (0..losses).map(|_| rest.loss()).collect::<Result<_, _>>()?;
        let returns = (0..returns).map(|_| rest.one_return()).collect::<Result<_, _>>()?;
        let complaints = (0..complaints).map(|_| rest.complaint()).collect::<Result<_, _>>()?;
        let mut members = Vec::new();
        while !rest.0.is_empty() {
            members.push(rest.member()?);
        }
        Ok(Self { epoch, members, lost, returns, changed, complaints })
    }
}

impl Return {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.node.0.to_le_bytes());
        bytes.extend(self.life.word().to_le_bytes());
        match &self.stage {
            Stage::Found(by) => {
                bytes.push(FOUND);
                bytes.extend((by.len() as u16).to_le_bytes());
                by.iter().for_each(|node| bytes.extend(node.0.to_le_bytes()));
            }
            Stage::Joining(copied) => {
                bytes.push(JOINING);
                copied.0.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            }
            Stage::Whole => bytes.push(WHOLE),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u16, Damaged> {
        self.take().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Result<u32, Damaged> {
        self.take().map(u32::from_le_bytes)
    }

    fn loss(&mut self) -> Result<LostMemory, Damaged> {
        Ok(LostMemory { node: NodeId(self.short()?), since: Epoch(self.word()?) })
    }

    fn long(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_le_bytes)
    }

    fn one_return(&mut self) -> Result<Return, Damaged> {
        let node = NodeId(self.short()?);
        let life = Life::from_word(self.long()?).ok_or(Damaged)?;
        let stage = match self.byte()? {
            FOUND => {
                let count = self.short()?;
                let by = (0..count).map(|_| self.short().map(NodeId)).collect::<Result<_, _>>()?;
                Stage::Found(by)
            }
            JOINING => {
                let mut words = Box::new([0; Copied::WORDS]);
                for word in words.iter_mut() {
                    *word = self.long()?;
                }
                Stage::Joining(Copied(words))
            }
            WHOLE => Stage::Whole,
            _ => return Err(Damaged),
        };
        Ok(Return { node, life, stage })
    }

    fn complaint(&mut self) -> Result<Complaint, Damaged> {
        Ok(Complaint { by: NodeId(self.short()?), about: NodeId(self.short()?) })
    }

    fn member(&mut self) -> Result<Member, Damaged> {
        let node = NodeId(self.short()?);
        let incarnation = Incarnation::new(self.short()?).ok_or(Damaged)?;
        let joined = Epoch(self.word()?);
        let acknowledged = Epoch(self.word()?);
        let stopped = Epoch(self.word()?);
        let since = Epoch(self.word()?);
        let count = self.short()?;
        let parts = (0..count).map(|_| self.part()).collect::<Result<Vec<_>, _>>()?;
        let standing = match since {
            Epoch(0) => Standing::Live,
            since => Standing::Expelled { since, parts },
        };
        Ok(Member { node, incarnation, joined, acknowledged, stopped, standing })
    }

    fn part(&mut self) -> Result<Part, Damaged> {
        let (kind, holder) = (self.byte()?, NodeId(self.short()?));
        match kind {
            FREE => Ok(Part::Free),
            CLAIMED => Ok(Part::Claimed(holder)),
            DONE => Ok(Part::Done),
            _ => Err(Damaged),
        }
    }
}
