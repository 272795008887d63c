//! Tests of wrong usage: exit status 2, the position of the mistake, and a suggestion.

mod common;

use std::collections::BTreeSet;

use common::{segue, shell};

/// Command lines and the exit status of each, for every command.
const STATUS: &[(&str, i32)] = &[
    ("", 0),
    ("-h", 0),
    ("--help", 0),
    ("-V", 0),
    ("--version -v", 0),
    ("--version -j", 0),
    ("nonsense", 2),
    ("--nonsense", 2),
    ("--color", 2),
    ("--color sometimes", 2),
    ("help", 0),
    ("help tunnel", 0),
    ("help tunel", 2),
    ("help help extra", 2),
    ("tunnel", 2),
    ("tunnel -h", 0),
    ("tunnel --help", 0),
    ("tunnel --chek", 2),
    ("tunnel dev", 2),
    ("tunnel dev sg0", 2),
    ("tunnel dev sg0 remote", 2),
    ("tunnel dev sg0 remote 127.0.0.2 mode vxlan", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap none encap-dport 5", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap fou", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap gue noencap-csum encap-remcsum", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap fou encap-dport 5 encap-remcsum", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap gue mode sit addr 198.19.0.1/30", 2),
    ("tunnel dev sg0 remote 127.0.0.2 local ::1 encap gue", 2),
    ("tunnel dev sg0 remote 127.0.0.2 workers 2", 2),
    ("lan78xx", 2),
    ("lan78xx --help", 0),
    ("lan78xx up --help", 0),
    ("lan78xx model -h", 0),
    ("lan78xx list", 0),
    ("lan78xx list --usbip 2001:db8::1", 2),
    ("lan78xx up --usb 1-1.4.9.9", 1),
    ("lan78xx up --usb nowhere", 2),
    ("lan78xx up --usb usbip://127.0.0.1:1/1-1", 1),
    ("lan78xx up --usb usbip://127.0.0.1", 2),
    ("lan78xx up --usb auto --wire tap:c0", 2),
    ("lan78xx up --mode fast", 2),
    ("lan78xx up --usb nowhere dev lan7", 2),
    ("lan78xx up lan7", 2),
    ("lan78xx up --dev", 2),
    ("lan78xx up --dev 0123456789abcdef", 2),
    ("lan78xx up --usb model --mtu 1006", 2),
    ("lan78xx up --usb model --mac 01:00:00:00:00:00", 2),
    ("lan78xx up --usb 1-1 --chip lan7850", 2),
    ("lan78xx model --wire eth0", 2),
    ("lan78xx model --mac 01:00:00:00:00:00", 2),
    ("lan78xx model --chip lan7850", 2),
    ("run", 2),
    ("run -h", 0),
    ("run --help", 0),
    ("run -c", 2),
    ("run -c /nonexistent/segue.toml", 1),
    ("run -c /dev/null --check", 0),
    ("run -c /etc/passwd --check", 1),
    ("run -c /dev/zero --check", 1),
    ("run -c / --check", 1),
    ("set", 2),
    ("set -h", 0),
    ("set --help", 0),
    ("set nothing-runs-here", 1),
    ("set nothing-runs-here net.inet.tcp.gso 0", 1),
    ("tunnel dev sg0 remote 127.0.0.2 encap gue --set net.inet.tcp.gso", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap gue --set net.inet.tcp.gso=7 --check", 2),
    ("tunnel dev sg0 remote 127.0.0.2 encap gue --set net.inet.sctp.gso=1 --check", 2),
    ("gateway", 2),
    ("gateway eth0", 2),
    ("gateway -h", 0),
    ("gateway --help", 0),
    ("gateway none tap:t0", 1),
    ("gateway none tap:t0 --check", 1),
    ("gateway tap:t0 tap:t0", 2),
    ("gateway tap:t0 tap:t1 --max-bytes 9", 2),
    ("gateway tap:t0 tap:t1 --profile lax", 2),
    ("gateway tap:t0 tap:t1 --name a/b", 2),
    ("gateway tap:a/b tap:t1", 2),
    ("stat", 0),
    ("stat -j", 0),
    ("stat nobody", 1),
    ("stat nobody --why", 1),
    ("stat --health", 1),
    ("stat --watch 0", 2),
    ("stat --bogus", 2),
    ("stat one two", 2),
    ("stat -h", 0),
    ("doctor -h", 0),
    ("doctor nosuch0", 1),
    ("lab --help", 0),
    ("lab --link copper", 2),
    ("lab --runs 0", 2),
    ("lab --seconds many", 2),
    ("lab --with other", 2),
    ("lab --mode sit --family 4", 2),
    ("schema stat", 0),
    ("schema lab", 0),
    ("schema lan78xx", 0),
    ("schema", 2),
    ("schema other", 2),
    ("nat", 0),
    ("nat nothing-runs-here", 1),
    ("nat one two", 2),
    ("peer -h", 0),
    ("peer", 2),
    ("peer list", 2),
    ("peer list nothing-runs-here", 1),
    ("peer add nothing-runs-here 198.19.1.0/24 remot 198.18.0.2", 2),
    ("peer sync nothing-runs-here /nonexistent", 1),
    ("stop --help", 0),
    ("stop", 2),
    ("stop nothing-runs-here", 1),
    ("reload --help", 0),
    ("reload", 1),
    ("reload nothing-runs-here", 1),
    ("reload --upgrad", 2),
    ("top -h", 0),
    ("top --bogus", 2),
    ("top one two", 2),
    ("metrics --list", 0),
    ("metrics --listen nowhere", 2),
    ("metrics --listen 192.0.2.1:1", 1),
    ("metrics --textfile /nonexistent/segue.prom", 1),
    ("bench -h", 0),
    ("bench", 2),
    ("bench nonsense", 2),
    ("bench compare /nonexistent /nonexistent", 1),
    ("bench report /nonexistent", 1),
    ("pcap --help", 0),
    ("pcap", 2),
    ("pcap nonsense", 2),
    ("pcap merge", 2),
    ("pcap stat /", 2),
    ("pcap stat /nonexistent", 1),
    ("pcap verify /nonexistent", 1),
    ("pcap split /nonexistent out.pcap", 1),
    ("pcap decap /nonexistent out.pcap", 1),
    ("fleet -h", 0),
    ("completions bash", 0),
    ("completions", 2),
    ("completions tcsh", 2),
    ("help --manual", 2),
    ("help --manual /proc/nonexistent", 1),
];

#[test]
fn every_command_ends_with_0_1_or_2_as_documented() {
    let commands = shell("$SEGUE complete -- ''").stdout;
    assert!(commands.lines().count() > 18, "{commands}");
    for command in commands.lines().filter_map(|line| line.split('\t').next()) {
        let own = STATUS.iter().filter(|(line, _)| line.split(' ').next() == Some(command));
        let codes: BTreeSet<i32> = own.map(|(_, code)| *code).collect();
        // What follows `fleet` is understood by another program.
        assert!(codes.contains(&0) && (codes.len() > 1 || command == "fleet"), "{command}: {codes:?}");
    }
    for (line, code) in STATUS {
        let ran = segue(line);
        assert_eq!(ran.code, Some(*code), "segue {line}: {ran:?}");
        if *code != 0 {
            assert_eq!(ran.stdout, "", "segue {line}: an error goes to stderr");
            assert!(ran.stderr.starts_with("error: "), "segue {line}: {ran:?}");
            assert!(ran.stderr.lines().any(|line| line.starts_with("try:")), "segue {line}: {ran:?}");
            assert!(!ran.stderr.contains("os error"), "segue {line}: {ran:?}");
        }
    }
}

#[test]
fn with_j_every_failure_is_one_json_object_on_stdout() {
    for (line, code) in STATUS.iter().filter(|(_, code)| *code != 0) {
        let ran = segue(&format!("{line} -j"));
        assert_eq!(ran.code, Some(*code), "segue {line} -j: {ran:?}");
        // `--color -j` takes the option as the value that is missing.
        if line.ends_with("--color") {
            continue;
        }
        let error = &ran.json()["error"];
        for key in ["kind", "message", "hint"] {
            let text = error[key].as_str().unwrap_or_else(|| panic!("segue {line}: {key} in {error}"));
            assert!(!text.is_empty(), "segue {line}: {key}");
        }
        for key in ["why", "os_error"] {
            assert!(error.get(key).is_some(), "segue {line}: {key} in {error}");
        }
        // A failure has a reason; the place in a file is one.
        let has_reason = error["why"].is_string() || error["line"].is_u64();
        assert!(*code == 2 || has_reason, "segue {line}: {error}");
        assert_eq!(ran.stderr, "", "segue {line}");
    }
}

#[test]
fn the_wrong_word_is_shown_as_in_the_manual() {
    let ran = segue("tunnel dev sg0 mode ipip local 198.18.0.1 remot 198.18.0.2");
    let expected = "\
error: unknown word `remot`
  | dev sg0 mode ipip local 198.18.0.1 remot 198.18.0.2
  |                                    ^^^^^ did you mean `remote`?
try: segue tunnel --help
";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(2), expected));
}

#[test]
fn each_word_of_the_help_with_a_letter_too_many_is_suggested() {
    let help = segue("tunnel --help").stdout;
    let words: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Words"))
        .take_while(|line| !line.starts_with("Options"))
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .map(|word| word.trim_start_matches("[no]"))
        .collect();
    assert!(words.len() > 25, "{words:?}");
    for word in words {
        let ran = segue(&format!("tunnel dev sg0 {word}x -j"));
        let error = &ran.json()["error"];
        assert_eq!((error["nearest"].as_str(), error["word_index"].as_u64()), (Some(word), Some(2)), "{error}");
    }
}

#[test]
fn a_shortened_word_is_refused_and_its_full_form_named() {
    let ran = segue("tunnel dev sg0 loc 198.18.0.2");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("did you mean `local`? keywords cannot be abbreviated"), "{ran:?}");
}

#[test]
fn commands_and_options_have_suggestions_too() {
    for (line, meant) in [("tunel", "tunnel"), ("stats", "stat"), ("docter", "doctor"), ("lab --linc nic", "--link")] {
        let ran = segue(line);
        assert!(ran.stderr.contains(&format!("did you mean `{meant}`?")), "segue {line}: {ran:?}");
    }
}

#[test]
fn a_name_behind_watch_is_said_to_be_read_as_seconds() {
    let ran = segue("stat --watch sg0");
    assert_eq!(ran.code, Some(2));
    for part in ["`sg0` was read as the SECS of `--watch`", "segue stat sg0 --watch", "^^^"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
    assert!(segue("stat --watch 1x").stderr.contains("`1x` is not a value of `--watch`"));
}

#[test]
fn the_caret_is_under_the_word_that_is_wrong() {
    for (line, word) in [
        ("tunnel dev sg0 mode ippip remote ::1", "ippip"),
        ("tunnel dev sg0 ttl 300", "300"),
        ("tunnel remote 198.18.0.256", "198.18.0.256"),
        ("lab --proto sctp", "sctp"),
        ("stat --wach", "--wach"),
    ] {
        let ran = segue(line);
        let lines: Vec<&str> = ran.stderr.lines().collect();
        let caret = lines.iter().position(|line| line.contains('^')).unwrap_or_else(|| panic!("no caret: {ran:?}"));
        let from = lines[caret].find('^').expect("a caret");
        let len = lines[caret].chars().filter(|&c| c == '^').count();
        assert_eq!(&lines[caret - 1][from..from + len], word, "{ran:?}");
    }
}

#[test]
fn bytes_that_are_no_text_are_an_error_and_not_a_fault() {
    let ran = shell("$SEGUE tunnel dev \"$(printf '\\377\\376')\" remote 198.18.0.2; echo $?");
    assert_eq!(ran.stdout.trim(), "2", "{ran:?}");
    assert!(!ran.stderr.contains("has a fault"), "{ran:?}");
    let ran = shell("$SEGUE tunnel dev \"$(printf 'a\\033[2Jb')\" remote 198.18.0.2; echo $?");
    assert_eq!(ran.stdout.trim(), "2", "{ran:?}");
    assert!(!ran.stderr.contains('\x1b'), "{ran:?}");
}
