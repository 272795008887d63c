//! Sections and blocks of docs/fleet.md, for tests that follow it literally.

use std::fs;
use std::path::Path;

/// Returns the section of docs/fleet.md whose title begins so.
pub(crate) fn section(title: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md")).unwrap();
    text.split("\n## ").find(|part| part.starts_with(title)).expect("a section of this title").to_owned()
}

/// Returns the blocks of this language in a section.
pub(crate) fn blocks(title: &str, language: &str) -> Vec<String> {
    let section = section(title);
    let parts = section.split("```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned)).collect()
}
