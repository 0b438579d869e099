//! Notices under way, and the box of a client: the rules of `client/notices.rs`.

use lotus_locks::systems::ShiftLock;
use lotus_locks::{LockSystem, Notice, NoticeKind, Peer};

/// A notice. The same may come several times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Letter {
    pub kind: NoticeKind,
    pub from: Peer,
    pub to: Peer,
    pub says: u64,
}

/// What a client was told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mailbox {
    /// Number of the use that is meant; none if there is none.
    pub owner: Option<u64>,
    successor: Mail,
    turn: Mail,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Mail {
    #[default]
    None,
    Unread(Notice, u64),
    Read,
}

impl Mailbox {
    /// An empty box of the use with this number.
    pub fn of(number: u64) -> Self {
        Self { owner: Some(number), ..Self::default() }
    }

    fn mail(&mut self, kind: NoticeKind) -> &mut Mail {
        match kind {
            NoticeKind::Successor => &mut self.successor,
            NoticeKind::Handover | NoticeKind::ModeChanged => &mut self.turn,
            kind => unreachable!("{kind:?} is none of shiftlock"),
        }
    }

    /// Takes in a notice that names this client; `by_number` says whether turns name their use too.
    pub fn put(&mut self, letter: &Letter, by_number: bool) {
        let Some(own) = self.owner else { return };
        if letter.kind != NoticeKind::Successor && by_number && letter.to.number != own {
            return;
        }
        let later = ShiftLock::LATER.expect("the word has no numbers");
        let mail = self.mail(letter.kind);
        let is_new = match mail {
            Mail::None => true,
            Mail::Unread(notice, says) => {
                notice.kind() == NoticeKind::Successor && later(letter.says, *says)
            }
            Mail::Read => false,
        };
        if is_new {
            *mail = Mail::Unread(Notice::new(letter.kind, letter.from), letter.says);
        }
    }

    /// Takes a notice out, and what it says.
    pub fn take(&mut self) -> Option<(Notice, u64)> {
        [&mut self.turn, &mut self.successor].into_iter().find_map(|mail| {
            let Mail::Unread(notice, says) = *mail else { return None };
            *mail = Mail::Read;
            Some((notice, says))
        })
    }

    /// Makes room for another notice like the one that was taken.
    pub fn refuse(&mut self, kind: NoticeKind) {
        *self.mail(kind) = Mail::None;
    }
}
