//! What is written can be read again, and anything else is refused.

use lotus_fabric::ids::Incarnation;
use proptest::prelude::*;

use super::*;

fn txn(attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(5).expect("fits"), 9, attempt)
}

fn question() -> Question {
    Question { txn: txn(77), round: 2, fragment: 3 }
}

fn remote(key: u64, space: LockSpace, mode: LockMode) -> RemoteLock {
    let name = LockKey { table: TableId(0x1234), space, key: Key(key) };
    RemoteLock { request: LockRequest { name, mode }, shard_epoch: 0x89AB_CDEF }
}

fn sample() -> (Vec<u8>, Vec<RemoteLock>) {
    let locks = vec![
        remote(u64::MAX, LockSpace::Row, LockMode::Write),
        remote(0, LockSpace::Bucket, LockMode::Read),
    ];
    let mut buffer = vec![0xEE; 4096];
    let mut writer = RequestWriter::new(&mut buffer);
    assert!(writer.is_empty());
    writer.end(txn(76)).expect("fits");
    writer.lock(question(), locks.iter().copied()).expect("fits");
    let length = writer.finish(Epoch(0x0102_0304));
    buffer.truncate(length);
    (buffer, locks)
}

/// Pins the format: a change of any byte is a change of [`VERSION`].
#[test]
fn a_request_datagram_byte_by_byte() {
    let (bytes, _) = sample();
    let txn = |attempt| txn(attempt).raw().to_le_bytes();
    let mut expected = vec![3, 0, 2, 0, 4, 3, 2, 1];
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend(txn(76));
    expected.extend([1, 0, 2, 0, 2, 0, 3, 0]);
    expected.extend(txn(77));
    expected.extend([0xFF; 8]);
    expected.extend([0xEF, 0xCD, 0xAB, 0x89, 0x34, 0x12, 1, 0]);
    expected.extend([0; 8]);
    expected.extend([0xEF, 0xCD, 0xAB, 0x89, 0x34, 0x12, 2, 0]);
    assert_eq!(bytes, expected);
}

#[test]
fn requests_are_read_as_they_were_written() {
    let (bytes, expected) = sample();
    let read: Vec<_> = requests(&bytes).map(|request| request.expect("well-formed")).collect();
    assert_eq!(sender_epoch(&bytes), Ok(Epoch(0x0102_0304)));
    let [
        LockMessage::End { txn: ended },
        LockMessage::Lock { question: asked, locks, age_us: None },
    ] = &read[..]
    else {
        panic!("{read:?}");
    };
    assert_eq!((*ended, *asked), (txn(76), question()));
    assert_eq!(locks.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn replies_are_read_as_they_were_written() {
    let mut answers = vec![
        LockAnswer::Granted,
        LockAnswer::Waiting,
        LockAnswer::WrongOwner { index: 253, owner: NodeId(7), shard_epoch: 9 },
        LockAnswer::Stale,
        LockAnswer::Expelled,
    ];
    answers.extend(REFUSALS.map(|refusal| LockAnswer::Refused { index: 7, refusal }));
    let mut expected = vec![Reply::Ended { txn: txn(1) }];
    expected.extend(answers.iter().map(|&answer| Reply::Lock { question: question(), answer }));

    let mut buffer = vec![0xEE; 4096];
    let mut writer = ReplyWriter::new(&mut buffer);
    expected.iter().for_each(|reply| writer.push(*reply).expect("fits"));
    let length = writer.finish(Epoch(4));
    let read: Result<Vec<_>, _> = replies(&buffer[..length]).collect();
    assert_eq!(read, Ok(expected));
}

#[test]
fn a_full_buffer_takes_no_half_message() {
    let locks = [remote(1, LockSpace::Row, LockMode::Read); 3];
    let mut buffer = [0; HEAD_BYTES + 3 * ITEM_BYTES];
    let mut writer = RequestWriter::new(&mut buffer);
    assert_eq!(writer.room_for_locks(), 2);
    assert_eq!(writer.lock(question(), locks.iter().copied()), Err(BufferFull));
    writer.lock(question(), locks[..1].iter().copied()).expect("fits");
    assert_eq!(writer.room_for_locks(), 0);
    writer.end(txn(1)).expect("fits");
    assert_eq!(writer.end(txn(2)), Err(BufferFull));
    assert_eq!(writer.finish(Epoch(0)), buffer.len());
    assert_eq!(requests(&buffer).filter(Result::is_ok).count(), 2);
}

#[test]
fn damaged_datagrams_are_refused() {
    let (good, _) = sample();
    // (offset, value, error)
    let damages = [
        (0, 1, DecodeError::Version(1)),
        (1, 1, DecodeError::Reserved),
        (2, 1, DecodeError::Trailing),
        (2, 3, DecodeError::Truncated),
        (8, 0, DecodeError::Kind(0)),
        (8, 3, DecodeError::Kind(3)),
        (9, 1, DecodeError::Reserved),
        (10, 1, DecodeError::Reserved),
        (23, 0x80, DecodeError::Reserved),
        (26, 3, DecodeError::Truncated),
        (26, 1, DecodeError::Trailing),
        (54, 4, DecodeError::Reserved),
        (55, 1, DecodeError::Reserved),
    ];
    for (offset, value, error) in damages {
        let mut bytes = good.clone();
        bytes[offset] = value;
        let found = requests(&bytes).find_map(Result::err);
        assert_eq!(found, Some(error), "byte {offset} set to {value}");
    }
    for length in 0..good.len() {
        let found = requests(&good[..length]).find_map(Result::err);
        assert_eq!(found, Some(DecodeError::Truncated), "cut to {length}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200), head: bool) {
        if head && bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[VERSION, 0, 3, 0]);
        }
        // An error ends the iteration, so both end.
        prop_assert!(requests(&bytes).filter(Result::is_err).count() <= 1);
        prop_assert!(replies(&bytes).filter(Result::is_err).count() <= 1);
        let _ = sender_epoch(&bytes);
    }

    #[test]
    fn a_damaged_message_never_panics(offset in 0usize..72, value: u8) {
        let (mut bytes, _) = sample();
        let index = offset % bytes.len();
        bytes[index] = value;
        prop_assert!(requests(&bytes).count() <= 3);
    }
}
