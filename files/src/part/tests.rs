//! Tests of every fault at every operation of writing a file.

use std::fs;
use std::sync::LazyLock;

use tempfile::TempDir;

use super::*;
use crate::Disk;
use crate::faults::{Fault, Faulty, Names, Op};

const BEFORE: &[u8] = b"what was there before";

/// A directory in memory if possible: syncing is fast there, and the faults are simulated.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("there is room")
}

/// Contents larger than the buffer, so that they take several writes.
static CONTENTS: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..3 * BUFFER_BYTES + 7).map(|at| (at % 251) as u8).collect());

/// Writes the contents in chunks that do not divide the buffer's size.
fn write(files: &dyn Files, path: &Path, existing: Existing) -> io::Result<()> {
    write_whole(files, path, Readers::Owner, existing, |sink| {
        CONTENTS.chunks(1000).try_for_each(|chunk| sink.write_all(chunk))
    })
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("readable"))).collect();
    names.sort();
    names
}

/// The file found under the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Nothing,
    Old,
    New,
}

/// # Panics
/// If it is neither whole.
#[track_caller]
fn found(path: &Path, case: &str) -> Found {
    match fs::read(path) {
        Err(_) => Found::Nothing,
        Ok(bytes) if bytes == BEFORE => Found::Old,
        Ok(bytes) => {
            assert!(bytes == *CONTENTS, "{case}: {} bytes are not the file", bytes.len());
            Found::New
        }
    }
}

/// Writes a file with a fault at one operation, and checks the file under its name.
#[track_caller]
fn strike(files: &Faulty, existing: Existing, old: bool, case: &str) {
    let directory = scratch();
    let path = directory.path().join("file");
    if old {
        fs::write(&path, BEFORE).expect("there is room");
    }
    let before = if old { Found::Old } else { Found::Nothing };
    let refused = old && existing == Existing::Kept;
    let written = write(files, &path, existing);
    let after = found(&path, case);
    match written {
        Ok(()) => {
            assert_eq!((after, refused), (Found::New, false), "{case}");
            files.lose_power(Names::Lost);
            assert_eq!(found(&path, case), Found::New, "{case}: reported, and lost with the power");
        }
        // Only the last step can fail after the rename.
        Err(_) if after == Found::New => {
            assert!(matches!(files.done().last(), Some(Op::SyncDirectory)), "{case}");
        }
        Err(_) => assert_eq!(after, before, "{case}"),
    }
    // The next writer removes the part of a dead one.
    assert!(names(directory.path()).len() <= 2, "{case}: {:?}", names(directory.path()));
    let again = write(&Disk, &path, Existing::Replaced);
    again.expect("nothing fails any more");
    assert_eq!(names(directory.path()), ["file"], "{case}");
    assert_eq!(found(&path, case), Found::New);
}

#[test]
fn whatever_fails_a_name_has_a_whole_file_or_what_it_had() {
    let steps = [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDirectory];
    for (existing, old) in
        [(Existing::Kept, false), (Existing::Replaced, false), (Existing::Replaced, true)]
    {
        let sound = Faulty::sound();
        strike(&sound, existing, old, "no fault");
        let done = sound.done();
        assert!(steps.iter().all(|step| done.contains(step)), "{done:?}");
        assert!(done.iter().filter(|op| **op == Op::Write).count() > 2, "{done:?}");
        for (at, op) in done.iter().enumerate() {
            for fault in Fault::ALL {
                let case = format!("{existing:?}, {fault:?} at {at}, {op:?}");
                strike(&Faulty::at(at, fault), existing, old, &case);
            }
        }
    }
}

#[test]
fn a_file_that_is_there_keeps_its_name() {
    strike(&Faulty::sound(), Existing::Kept, true, "it exists");
}

#[test]
fn nothing_is_written_behind_an_error() {
    let directory = scratch();
    // The first write is refused; the buffer's contents would be the second one.
    let files = Faulty::at(1, Fault::Refused);
    let mut part = Part::beside(&files, &directory.path().join("file"), Readers::Mask).unwrap();
    let written = CONTENTS.chunks(1000).try_for_each(|chunk| part.write_all(chunk));
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(names(directory.path()), [""; 0], "it is removed at once");
    part.write_all(&CONTENTS).unwrap_err();
    part.flush().unwrap_err();
    part.publish("file", Existing::Replaced).unwrap_err();
    assert_eq!(files.done(), [Op::Create, Op::Write]);
}

/// Regression: compute nodes of a host wrote one part, which each of them truncated. One that was
/// paused with bytes in its buffer wrote them into the finished file of another when it resumed.
#[test]
fn a_writer_that_wakes_late_touches_no_finished_file() {
    let directory = scratch();
    let path = directory.path().join("file");
    let mut late = Part::beside(&Disk, &path, Readers::Owner).unwrap();
    late.write_all(b"in its buffer").unwrap();
    let mut other = Part::beside(&Disk, &path, Readers::Owner).unwrap();
    assert_eq!(names(directory.path()).len(), 2, "each has its own, and neither removes the other");
    other.write_all(BEFORE).unwrap();
    other.publish("file", Existing::Kept).unwrap();
    late.write_all(b"and more").unwrap();
    let refused = late.publish("file", Existing::Kept).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(found(&path, "late"), Found::Old);
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn parts_of_the_living_and_files_of_others_stay() {
    let directory = scratch();
    let left = directory.path().join("next-abcdef.part");
    let others = ["next-abcdefg.part", "next.part", "other-abcdef.part", "next-abcdef"];
    for name in others {
        fs::write(directory.path().join(name), name).unwrap();
    }
    fs::write(&left, "half").unwrap();
    let living = Part::create(&Disk, directory.path(), "next-", Readers::Owner).unwrap();
    assert!(!left.exists(), "its writer is dead");
    let second = Part::create(&Disk, directory.path(), "next-", Readers::Owner).unwrap();
    assert_eq!(names(directory.path()).len(), others.len() + 2);
    drop((living, second));
    let mut expected = others.to_vec();
    expected.sort_unstable();
    assert_eq!(names(directory.path()), expected);
}

#[test]
fn readers_are_those_that_were_named() {
    use std::os::unix::fs::PermissionsExt;
    let directory = scratch();
    let path = directory.path().join("file");
    write(&Disk, &path, Existing::Replaced).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let no_name = write(&Disk, Path::new("/"), Existing::Replaced);
    assert_eq!(no_name.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_file_that_is_replaced_keeps_its_readers() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let replace = |readers| {
        write_whole(&Disk, &path, readers, Existing::Replaced, |file| file.write_all(b"new"))
    };
    for kept in [0o600, 0o640, 0o666] {
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
        replace(Readers::Mask).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap()), (kept, b"new".to_vec()));
    }
    // What is for the owner alone stays so.
    replace(Readers::Owner).unwrap();
    assert_eq!(mode(), 0o600);
}
