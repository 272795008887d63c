//! A file of metrics for the textfile collector of node_exporter.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces `path` by `text` in one step: a reader finds the old content or the new one. The file is readable for all,
/// since node_exporter has a user of its own.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // The collector reads names that end in .prom alone, so that it never sees this one.
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    // One that an ended process of this id has left.
    let _ = fs::remove_file(&beside);
    let made = put(&beside, text).and_then(|()| fs::rename(&beside, path));
    if made.is_err() {
        let _ = fs::remove_file(&beside);
    }
    made
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = std::env::temp_dir().join(format!("segue-textfile-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("segue.prom");
        write(&path, "one\n").unwrap();
        write(&path, "two\n").unwrap();
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names), ("two\n", vec!["segue.prom".into()]));
        let taken = folder.join("taken");
        fs::create_dir(&taken).unwrap();
        fs::create_dir(taken.join("file")).unwrap();
        assert!(write(&taken, "x").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "what could not be renamed is removed");
        fs::remove_dir_all(&folder).unwrap();
    }
}
