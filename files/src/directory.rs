//! Creation of directories that survive a power failure (I226).

use std::io;
use std::path::Path;

use crate::Files;

/// Creates a directory for its owner only, and its missing parents. An existing directory stays
/// unchanged, but its name is synced as well: the process that created the directory may have died
/// before syncing.
///
/// # Errors
/// Errors of the operating system. Directories created before the error stay.
pub fn make_directory(files: &dyn Files, directory: &Path) -> io::Result<()> {
    let above = directory.ancestors().skip(1);
    let missing: Vec<&Path> = above.take_while(|above| !directory_of(above).exists()).collect();
    missing.into_iter().rev().chain([directory]).try_for_each(|path| make_one(files, path))
}

fn make_one(files: &dyn Files, directory: &Path) -> io::Result<()> {
    let Some(above) = directory.parent().map(directory_of) else { return Ok(()) };
    match files.make_directory(directory) {
        Ok(()) => files.sync_directory(above),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {
            match files.sync_directory(above) {
                // The parent belongs to a different user, so that user created the directory.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                outcome => outcome,
            }
        }
        Err(error) => Err(error),
    }
}

/// Returns the path, or `.` for the empty path.
fn directory_of(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Disk;
    use crate::faults::{Fault, Faulty, Names, Op};

    #[test]
    fn a_directory_that_was_made_is_on_the_disk_whatever_fails_meanwhile() {
        let sound = Faulty::sound();
        let scratch = tempfile::tempdir().expect("there is room");
        make_directory(&sound, &scratch.path().join("a/b/c")).expect("no fault");
        let one = [Op::MakeDirectory, Op::SyncDirectory];
        assert_eq!(sound.done(), [one, one, one].concat());
        for (at, fault) in (0..sound.done().len()).flat_map(|at| Fault::ALL.map(|it| (at, it))) {
            let scratch = tempfile::tempdir().expect("there is room");
            let directory = scratch.path().join("a/b/c");
            let faulty = Faulty::at(at, fault);
            let made = make_directory(&faulty, &directory);
            faulty.lose_power(Names::Lost);
            assert!(made.is_err() || directory.is_dir(), "{fault:?} at {at}");
            // The next process makes what is missing, and syncs what is there.
            let next = Faulty::sound();
            make_directory(&next, &directory).expect("no fault");
            next.lose_power(Names::Lost);
            assert!(directory.is_dir(), "{fault:?} at {at}");
        }
    }

    #[test]
    fn directories_are_for_their_owner_and_one_that_is_there_stays_as_it_is() {
        let scratch = tempfile::tempdir().expect("there is room");
        let directory = scratch.path().join("a/b");
        make_directory(&Disk, &directory).expect("there is room");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(
            (mode(&directory) & 0o777, mode(&scratch.path().join("a")) & 0o777),
            (0o700, 0o700)
        );
        fs::write(directory.join("file"), "text").expect("it is ours");
        make_directory(&Disk, &directory).expect("it is there");
        assert!(directory.join("file").exists());
        let file = make_directory(&Disk, &directory.join("file"));
        assert_eq!(file.expect_err("a file").kind(), io::ErrorKind::AlreadyExists);
    }
}
