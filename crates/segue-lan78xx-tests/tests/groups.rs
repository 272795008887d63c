//! Checks that the table of docs/lan78xx-tests.md has all groups and names existing tests.

use std::fs;
use std::path::Path;

#[test]
fn every_group_names_tests_that_there_are() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(top.join("../../docs/lan78xx-tests.md")).unwrap();
    let mut groups = Vec::new();
    for row in table.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some(number) = row.split(' ').next().and_then(|cell| cell.parse::<u32>().ok()) else { continue };
        groups.push(number);
        let mut source = String::new();
        let mut named = 0;
        for word in row.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                let places = [top.join("../segue-lan78xx/src"), top.join("tests"), top.join("../segue-tests/tests")];
                let found: Vec<_> = places.iter().map(|place| place.join(word)).filter(|path| path.exists()).collect();
                assert_eq!(found.len(), 1, "group {number}: {word}");
                source = fs::read_to_string(&found[0]).unwrap();
            } else {
                named += 1;
                let is_test = source.contains(&format!("#[test]\nfn {word}()"))
                    || source.contains(&format!("    #[test]\n    fn {word}()"));
                assert!(is_test, "group {number}: no test {word}");
            }
        }
        assert!(named > 0 || row.ends_with("the same |"), "group {number} has no test");
    }
    assert_eq!(groups, (1..=34).collect::<Vec<_>>());
}
