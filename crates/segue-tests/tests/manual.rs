//! Tests of the manual and of the completions: help, manual and completion have the same options and words, mandoc
//! finds no fault, and each shell completes the program's candidates.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use segue_lab::{skip, which};
use segue_tests::{capture, find_program, test_name};

fn output(program: &Path, words: &[&str]) -> Output {
    Command::new(program).args(words).env("SEGUE_RUNTIME_DIR", "/nonexistent").output().expect("it starts")
}

#[track_caller]
fn said(program: &Path, words: &[&str]) -> String {
    let output = output(program, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Writes the manual pages, and returns them with their names.
fn pages(program: &Path, directory: &capture::Directory) -> Vec<(String, PathBuf)> {
    let folder = directory.path().join("man");
    said(program, &["help", "--manual", folder.to_str().unwrap()]);
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let mut pages: Vec<_> = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).collect();
    pages.sort();
    pages
}

/// Returns every command of the program, with the subcommands.
fn commands(program: &Path) -> Vec<String> {
    let lines = |words: &[&str]| -> Vec<String> {
        let all = [&["complete", "--"], words, &[""]].concat();
        said(program, &all).lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    let mut found = Vec::new();
    for command in lines(&[]) {
        if ["pcap", "lan78xx", "wireshark"].contains(&command.as_str()) {
            found.extend(
                lines(&[&command]).iter().filter(|w| *w != "@files").map(|action| format!("{command} {action}")),
            );
        }
        found.push(command);
    }
    found
}

/// Returns the dashed options in the first column of a list.
fn dashed(terms: impl Iterator<Item = String>) -> BTreeSet<String> {
    let words = terms.flat_map(|term| term.split([' ', ',']).map(str::to_owned).collect::<Vec<_>>());
    words.filter(|word| word.starts_with('-') && word.len() > 1).collect()
}

/// Returns the terms of a section of a manual page.
fn terms(page: &str, section: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix(".SH ") {
            inside = heading.trim_matches('"') == section;
        } else if inside && line == ".TP" {
            let term = lines.next().unwrap().trim_start_matches("\\fB").trim_end_matches("\\fR");
            found.push(term.replace("\\-", "-").replace("\\e", "\\"));
        }
    }
    found
}

#[test]
fn help_manual_and_completion_have_the_same_options() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let directory = capture::Directory::new();
    let pages = pages(&program, &directory);
    let commands = commands(&program);
    assert!(commands.len() > 18, "{commands:?}");
    for command in &commands {
        let words: Vec<&str> = command.split(' ').collect();
        let help = said(&program, &[&words[..], &["--help"]].concat());
        assert_eq!(said(&program, &[&["help"], &words[..]].concat()), help, "help {command}");
        let (_, options) = help.split_once("\nOptions:\n").unwrap_or_else(|| panic!("{help}"));
        let list = options.split("\n\n").next().unwrap();
        let first = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let by_help = dashed(first.map(|line| line.trim_start().split("  ").next().unwrap().to_owned()));

        let name = format!("segue-{}.1", command.replace(' ', "-"));
        let (_, path) = pages.iter().find(|(page, _)| *page == name).unwrap_or_else(|| panic!("no page {name}"));
        let page = fs::read_to_string(path).unwrap();
        let by_manual = dashed(terms(&page, "OPTIONS").into_iter());
        assert_eq!(by_manual, by_help, "manual and help of {command}");

        let completed = said(&program, &[&["complete", "--"], &words[..], &["-"]].concat());
        let by_completion: BTreeSet<String> =
            completed.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
        assert_eq!(by_completion, by_help, "completion and help of {command}");
        for section in ["EXAMPLES", "EXIT STATUS", "FILES", "SIGNALS", "SEE ALSO"] {
            assert!(page.contains(&format!(".SH \"{section}\"\n")), "{name} has no {section}");
        }
    }
    let own: BTreeSet<String> =
        commands.iter().map(|command| format!("segue-{}.1", command.replace(' ', "-"))).collect();
    let others = ["segue.1", "segue.toml.5", "segue-reasons.7"].map(str::to_owned);
    let made: BTreeSet<String> = pages.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(made, own.into_iter().chain(others).collect());
}

#[test]
fn help_manual_and_completion_have_the_same_words_of_a_tunnel() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let directory = capture::Directory::new();
    let page = fs::read_to_string(
        pages(&program, &directory).iter().find(|(name, _)| name == "segue-tunnel.1").map(|(_, path)| path).unwrap(),
    )
    .unwrap();
    let word = |term: &str| term.trim_start_matches("[no]").split(' ').next().unwrap().to_owned();
    let by_manual: BTreeSet<String> = terms(&page, "WORDS").iter().map(|term| word(term)).collect();
    let help = said(&program, &["tunnel", "--help"]);
    let (_, words) = help.split_once("\nWords, [default]:\n").unwrap();
    let list = words.split("\n\n").next().unwrap();
    let first = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let by_help: BTreeSet<String> = first.map(|line| word(line.trim_start())).collect();
    assert_eq!(by_manual, by_help);
    let completed = said(&program, &["complete", "--", "tunnel", ""]);
    let by_completion: BTreeSet<&str> = completed.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let missing: Vec<&String> = by_help.iter().filter(|word| !by_completion.contains(word.as_str())).collect();
    assert!(by_help.len() > 30 && missing.is_empty(), "{missing:?}");
    let toml = fs::read_to_string(directory.path().join("man/segue.toml.5")).unwrap();
    let keys: BTreeSet<String> = terms(&toml, "KEYS OF [[tunnel]]").iter().map(|term| word(term)).collect();
    assert!(by_help.iter().all(|word| keys.contains(word)) && keys.contains("trace"), "{keys:?}");
}

#[test]
fn help_manual_and_document_explain_the_same_problems_of_health() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let directory = capture::Directory::new();
    pages(&program, &directory);
    let page = fs::read_to_string(directory.path().join("man/segue-reasons.7")).unwrap();
    let document = include_str!("../../../docs/health.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows: Vec<(&str, &str)> = rows.map(|(code, rest)| (code, rest.split(" | ").next().unwrap())).collect();
    let codes: Vec<String> = rows.iter().map(|(code, _)| (*code).to_owned()).collect();
    assert_eq!(terms(&page, "HEALTH"), codes);
    assert!(codes.len() >= 25 && codes.iter().any(|code| code == "link_down"), "{codes:?}");
    for (code, sentence) in rows {
        let help = said(&program, &["help", code]);
        let flowing = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flowing.contains(sentence) && flowing.contains("Likely: ") && flowing.contains("To do: "), "{help}");
    }
}

/// Linux leaves alone what has padding behind its packet.
#[test]
fn the_help_says_that_profile_linux_merges_padded_frames_too() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    for words in [&["help", "gateway"][..], &["pcap", "merge", "--help"]] {
        let text = said(&program, words).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("padded frames"), "{words:?}: {text}");
    }
}

#[test]
fn mandoc_finds_no_fault_in_a_page() {
    if which("mandoc").is_none() {
        return skip(test_name!(), "not installed: mandoc");
    }
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let directory = capture::Directory::new();
    for (name, path) in pages(&program, &directory) {
        let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&path).output().unwrap();
        let faults = String::from_utf8_lossy(&lint.stdout).into_owned();
        assert!(lint.status.success() && faults.is_empty(), "{name}: {faults}");
        let shown = Command::new("mandoc").args(["-T", "utf8"]).arg(&path).output().unwrap();
        assert!(shown.stdout.len() > 500, "{name}");
    }
}

#[test]
fn every_shell_completes_what_the_program_says() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let directory = capture::Directory::new();
    // The scripts run the first word of the line, as it is found in PATH.
    let folder = directory.path().join("bin");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&program, folder.join("segue")).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let script = |shell: &str| {
        let file = directory.file(&format!("_segue.{shell}"));
        fs::write(&file, said(&program, &["completions", shell])).unwrap();
        file
    };
    let shell = |name: &str, words: &[&str]| {
        let made = Command::new(name).args(words).env("PATH", &path).env("HOME", directory.path()).output().unwrap();
        let text = [made.stdout, made.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let lines: [(&str, &[&str], &[&str]); 4] = [
        ("segue tun", &["tunnel"], &["gateway"]),
        ("segue tunnel dev sg0 encap ", &["gue", "fou", "none"], &["remote"]),
        ("segue lab --link ", &["nic", "nic-csum", "veth"], &["--link"]),
        ("segue pcap m", &["merge"], &["stat"]),
    ];
    if let Some(missing) = ["bash", "zsh", "fish"].iter().find(|shell| which(shell).is_none()) {
        return skip(test_name!(), &format!("not installed: {missing}"));
    }
    let (bash, zsh, fish) = (script("bash"), script("zsh"), script("fish"));
    for (line, wanted, unwanted) in lines {
        let mut words: Vec<String> = line.split_whitespace().map(|word| format!("'{word}'")).collect();
        if line.ends_with(' ') {
            words.push("''".to_owned());
        }
        let at = words.len() - 1;
        let in_bash = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={at}; _segue; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash.display(),
            words.join(" ")
        );
        let in_fish = format!("source {}; complete -C {line:?}", fish.display());
        // zsh completes in its line editor alone; its function is called with the same variables, and prints.
        let in_zsh = format!(
            "compdef() {{ :; }}; _describe() {{ print -l -- ${{(P)2}}; }}; _files() {{ print files; }}; source {}; \
             words=({}); CURRENT={}; _segue",
            zsh.display(),
            words.join(" "),
            at + 1
        );
        for (name, code) in [("bash", in_bash), ("fish", in_fish), ("zsh", in_zsh)] {
            let text = shell(name, &["-c", &code]);
            let found: BTreeSet<&str> =
                text.lines().map(|line| line.split(['\t', ':']).next().unwrap_or_default().trim()).collect();
            assert!(wanted.iter().all(|word| found.contains(word)), "{name}, {line:?}: {text}");
            assert!(!unwanted.iter().any(|word| found.contains(word)), "{name}, {line:?}: {text}");
        }
    }
}
