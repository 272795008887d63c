//! Tests of docs/adopting.md in addition to its Rust programs, which are doctests of this crate.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

#[test]
fn every_measurement_that_is_named_is_there() {
    let scripts = fs::read_dir(Path::new(TOP).join("tools/figures.d")).unwrap();
    let scripts: Vec<String> = scripts.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let guide = read("docs/adopting.md");
    let mut seen = 0;
    for rest in guide.split("ONLY=").skip(1) {
        let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap();
        assert!(!name.is_empty() && scripts.iter().any(|script| script.contains(name)), "{name}");
        seen += 1;
    }
    assert!(seen > 5, "{seen} measurements");
}

/// Returns the words of an ASCII text, each with its position.
fn words(text: &str) -> Vec<(usize, &str)> {
    let pieces = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let placed = pieces.scan(0, |next, word| {
        let at = *next;
        *next += word.len() + 1;
        Some((at, word))
    });
    placed.filter(|(_, word)| !word.is_empty()).collect()
}

/// Returns the functions named in a piece of code, each with the preceding word: `Tun` in `Tun::open`, `tun` in
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

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the folder of a crate of crates.io with which this workspace is built, according to `cargo metadata`.
fn folder_of(metadata: &str, name: &str) -> PathBuf {
    let manifests = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut folders = manifests.filter_map(|manifest| Path::new(manifest).parent());
    let is_wanted = |folder: &&Path| {
        let version = folder.file_name().and_then(|last| last.to_str()?.strip_prefix(name)?.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    folders.find(is_wanted).unwrap_or_else(|| panic!("no crate {name}")).to_owned()
}

/// Returns the text of all Rust files in a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

/// Returns the parameters, without `self`, of each public function of this name.
fn declarations<'s>(source: &'s str, name: &str) -> Vec<Vec<&'s str>> {
    let mut found = Vec::new();
    for (at, start) in source.match_indices(&format!("pub fn {name}")) {
        let rest = &source[at + start.len()..];
        let mut depth = 0;
        let open = rest.find(|c: char| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            c == '(' && depth == 0
        });
        if let (true, Some(open)) = (rest.starts_with(['(', '<']), open) {
            let list = rest[open + 1..].split(')').next().unwrap_or_default();
            let is_name = |at: usize| list[at..].starts_with(':') && !list[at..].starts_with("::");
            let names = words(list).into_iter().filter(|(at, word)| is_name(at + word.len()));
            found.push(names.map(|(_, word)| word).collect());
        }
    }
    found
}

/// Returns the first name in a piece of code that the sources do not declare: a type or trait, a public function with
/// these parameters, a field.
fn undeclared<'c>(code: &'c str, source: &str) -> Option<&'c str> {
    let is_type = |name: &str| {
        ["struct", "enum", "trait"].iter().any(|kind| {
            let start = format!("pub {kind} {name}");
            let mut ends = source.match_indices(&start).map(|(at, found)| &source[at + found.len()..]);
            ends.any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        })
    };
    let is_declared = |at: usize, name: &str| {
        let (front, rest) = (&code[..at], &code[at + name.len()..]);
        if front.matches('(').count() > front.matches(')').count() {
            // An argument, which is checked with its function.
            return true;
        }
        if name.starts_with(|c: char| c.is_ascii_uppercase()) {
            return is_type(name);
        }
        let Some(given) = rest.strip_prefix('(') else {
            return source.contains(&format!("pub {name}:")) || !declarations(source, name).is_empty();
        };
        let given = given.split(')').next().unwrap_or_default().split(',').map(str::trim);
        let given: Vec<&str> = given.filter(|argument| !argument.is_empty()).collect();
        let fits =
            |all: &Vec<&str>| all.len() == given.len() && all.iter().zip(&given).all(|(a, b)| a == b || *b == "true");
        declarations(source, name).iter().any(fits)
    };
    words(code).into_iter().find(|(at, name)| !is_declared(*at, name)).map(|(_, name)| name)
}

#[test]
fn the_tables_of_calls_name_what_other_crates_declare() {
    let guide = read("docs/adopting.md");
    let version = run(Command::new("rustc").arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host]);
    let metadata = run(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    let wrong = [
        (
            "tun-rs",
            ["recv_multiples(bufs)", "send_multiple(bufs, gro_table, offset)", "GROTables", "DeviceBuilder::build()"],
        ),
        ("quinn-udp", ["recv(socket, meta, bufs)", "RecvMeta::strides", "Transmits", "UdpSocketState::new()"]),
    ];
    for (name, wrong) in wrong {
        let source = sources(&folder_of(&metadata, name).join("src"));
        let (_, behind) = guide.split_once(format!("\n## Coming from {name}\n").as_str()).expect(name);
        let section = behind.split("\n## ").next().unwrap_or_default();
        let mut count = 0;
        for line in section.lines().filter(|line| line.starts_with("| ")) {
            let cell = line.split('|').nth(1).unwrap_or_default();
            for code in cell.split('`').skip(1).step_by(2) {
                assert_eq!(undeclared(code, &source), None, "{name}: {line}");
                count += 1;
            }
        }
        assert!(count > 5, "{name}: {count} names");
        for code in wrong {
            assert!(undeclared(code, &source).is_some(), "{name}: {code} is taken for one of its calls");
        }
    }
}
