//! Test of the directory of a service, in a process of its own: it is chosen once for a process.

use std::path::PathBuf;

use segue_control::place;

#[test]
fn stays_although_it_cannot_be_written_to() {
    // No folder can be made there.
    let folder = PathBuf::from("/proc/segue");
    place::search_only(folder.clone());
    assert_eq!(place::for_new().unwrap(), folder);
    assert!(!folder.exists());
}
