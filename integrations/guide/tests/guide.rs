//! Tests of docs/adopting.md beside its Rust programs, which are doctests of this crate.

use std::fs;
use std::path::Path;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the blocks of the guide in a language.
fn blocks(language: &str) -> Vec<String> {
    let guide = fs::read_to_string(Path::new(TOP).join("docs/adopting.md")).unwrap();
    let (mut blocks, mut current) = (Vec::new(), None);
    for line in guide.lines() {
        match (&mut current, line.strip_prefix("```")) {
            (None, Some(word)) => current = Some((word.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(current.take()),
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks.into_iter().filter(|(word, _)| word == language).map(|(_, text)| text).collect()
}

#[test]
fn the_dependencies_are_crates_of_this_version() {
    let manifest = fs::read_to_string(Path::new(TOP).join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).unwrap().trim_end_matches('"');
    let minor = version.rsplit_once('.').unwrap().0;
    let blocks = blocks("toml");
    assert!(!blocks.is_empty());
    for line in blocks.iter().flat_map(|block| block.lines()).filter(|line| line.contains('=')) {
        let (name, wanted) = line.split_once(" = ").unwrap();
        assert!(Path::new(TOP).join("crates").join(name).is_dir(), "{name}");
        assert_eq!(wanted.trim_matches('"'), minor, "{name}");
    }
}

#[test]
fn every_file_that_is_named_is_there() {
    let guide = fs::read_to_string(Path::new(TOP).join("docs/adopting.md")).unwrap();
    let mut seen = 0;
    for word in guide.split(['`', '(', ')']) {
        let folder = word.split('/').next().unwrap_or_default();
        if ["crates", "integrations", "tools", "docs"].contains(&folder) && word.contains('/') && !word.contains(' ') {
            assert!(Path::new(TOP).join(word).exists(), "{word}");
            seen += 1;
        }
    }
    assert!(seen > 5);
}
