//! Tests of docs/adopting.md beside its Rust programs, which are doctests of this crate.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(TOP).join(path)).unwrap()
}

/// Returns the blocks of the guide in a language.
fn blocks(language: &str) -> Vec<String> {
    let guide = read("docs/adopting.md");
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
    let manifest = read("Cargo.toml");
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
    let guide = read("docs/adopting.md");
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

/// Returns the words of an ASCII text, each with its place.
fn words(text: &str) -> Vec<(usize, &str)> {
    let pieces = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let placed = pieces.scan(0, |next, word| {
        let at = *next;
        *next += word.len() + 1;
        Some((at, word))
    });
    placed.filter(|(_, word)| !word.is_empty()).collect()
}

/// Returns the functions that a piece of code names, each with the word in front of it: `Tun` in `Tun::open`, `tun` in
/// `tun.read()`, nothing in `prime()`.
fn functions(code: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, name) in words(code) {
        let (front, behind) = (&code[..at], &code[at + name.len()..]);
        let front = front.strip_suffix("::").or_else(|| front.strip_suffix('.')).unwrap_or_default();
        let owner = words(front).pop().filter(|(at, word)| at + word.len() == front.len()).map_or("", |(_, word)| word);
        let is_of_type = owner.starts_with(|c: char| c.is_ascii_uppercase());
        if name.starts_with(|c: char| c.is_ascii_lowercase()) && (behind.starts_with('(') || is_of_type) {
            found.push((owner, name));
        }
    }
    found
}

/// Returns the parameters of a function of `segue.h`.
fn parameters<'h>(header: &'h str, name: &str) -> Vec<&'h str> {
    let (_, behind) = header.split_once(&format!(" {name}(")).expect(name);
    let list = behind.split(')').next().unwrap_or_default();
    list.split(',').filter_map(|parameter| words(parameter).pop()).map(|(_, word)| word).collect()
}

#[test]
fn the_tables_of_calls_name_what_is_public() {
    let (guide, header) = (read("docs/adopting.md"), read("crates/segue-capi/include/segue.h"));
    let listing = read("tools/api.d/segue.txt") + &read("tools/api.d/segue-port.txt");
    let known: HashSet<&str> = words(&listing).into_iter().chain(words(&header)).map(|(_, word)| word).collect();
    let is_there = |owner: &str, name: &str| {
        // `tun` is a Tun, `packet` a SplitPacket.
        let owner = owner.get(..1).unwrap_or_default().to_uppercase() + owner.get(1..).unwrap_or_default();
        let starts = [format!("fn {name}("), format!("fn {name}<")];
        listing.lines().filter_map(|line| line.split_once(": ")).any(|(path, item)| {
            path.ends_with(owner.as_str()) && starts.iter().any(|start| item.contains(start.as_str()))
        })
    };
    let (mut section, mut count) = ("", 0);
    for line in guide.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let is_of_calls = section.is_empty() || section == "Kernels" || section.starts_with("Coming from");
        if !is_of_calls || !line.starts_with('|') {
            continue;
        }
        let cell = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        for code in cell.split('`').skip(1).step_by(2) {
            for (_, word) in words(code) {
                let is_name = word.starts_with("segue_") || word.starts_with(|c: char| c.is_ascii_uppercase());
                assert!(!is_name || known.contains(word), "{line}: {word}");
            }
            for (owner, name) in functions(code) {
                count += 1;
                if name.starts_with("segue_") {
                    let given = code.split(['(', ')']).nth(1).unwrap_or_default();
                    let given: Vec<&str> = given.split(',').map(str::trim).collect();
                    let all = parameters(&header, name);
                    let is_declared = given.strip_suffix(&["..."]).map_or(given == all, |first| all.starts_with(first));
                    assert!(is_declared, "{line}: {all:?}");
                } else {
                    assert!(is_there(owner, name), "{line}: {owner}, {name}");
                }
            }
        }
    }
    assert!(count > 10, "{count} functions");
}
