//! Tests of `segue pcap` on files: pipes, formats, refusals, truncated input, interrupts, memory.

mod common;
#[path = "../../segue-capture/tests/common/shapes.rs"]
mod shapes;

use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Place, SEGUE, text};
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Writer, link};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;
use serde_json::Value;
use shapes::{Shape, file, shapes};

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/pcap");

/// Creates a directory with the capture in.pcap (bulk TCP on Ethernet).
fn place() -> Place {
    let place = Place::new();
    fs::write(place.path().join("in.pcap"), file(&shapes(1)[0])).unwrap();
    place
}

/// Runs a shell script in that directory, in which `pcap` is `segue pcap`; the program is `SEGUE_BIN` if that is set.
/// No signal is ignored in it, as it would be where the tests are run by nohup.
fn shell(place: &Place, script: &str) -> Output {
    let script = format!("pcap() {{ \"$SEGUE\" pcap \"$@\"; }}\n{script}");
    let program = std::env::var_os("SEGUE_BIN").map_or_else(|| SEGUE.into(), |path| fs::canonicalize(path).unwrap());
    let mut command = common::command("env", place);
    command.args(["--default-signal=HUP,INT", "bash", "-c", &script]).env("SEGUE", program);
    command.current_dir(place.path()).output().unwrap()
}

fn names(place: &Place) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn input_and_output_may_be_pipes() {
    let place = place();
    let (code, _, stderr) = text(&shell(
        &place,
        "set -o pipefail; cat in.pcap | pcap merge - - -F pcapng -q | pcap split --undo - - -F pcap -q > out.pcap && cmp in.pcap out.pcap",
    ));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let (code, stdout, stderr) = text(&shell(&place, "pcap stat in.pcap | head -1; echo ${PIPESTATUS[0]}"));
    assert!(stdout.starts_with("in.pcap   pcap, ") && stdout.ends_with("\n0\n"), "{stdout}");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let (_, stdout, stderr) =
        text(&shell(&place, "pcap split in.pcap - -q | head -c 100 | wc -c; pcap verify in.pcap -j | head -1 | wc -l"));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("100\n1\n", ""));
}

#[test]
fn the_same_file_twice_is_refused_and_in_place_replaces_it_whole() {
    let place = place();
    let before = fs::read(place.path().join("in.pcap")).unwrap();
    for script in [
        "pcap split in.pcap in.pcap",
        "pcap split -f in.pcap ./in.pcap",
        "ln in.pcap same.pcap; pcap merge -f in.pcap same.pcap",
        "ln -s in.pcap link.pcap; pcap decap -f in.pcap link.pcap",
    ] {
        let (code, stdout, stderr) = text(&shell(&place, script));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{script}: {stderr}");
        assert!(stderr.starts_with("error: input and output are the same file (in.pcap"), "{stderr}");
        assert!(stderr.contains("\ntry:  segue pcap ") && stderr.contains(" -i in.pcap"), "{stderr}");
        assert!(fs::read(place.path().join("in.pcap")).unwrap() == before);
    }
    let script =
        "rm -f same.pcap; chmod 640 in.pcap; cp in.pcap was.pcap; pcap merge -i in.pcap; ls -l in.pcap | cut -c1-10";
    let (code, stdout, _) = text(&shell(&place, script));
    assert_eq!((code, stdout.as_str()), (Some(0), "-rw-r-----\n"));
    assert!(fs::read(place.path().join("in.pcap")).unwrap().len() < before.len());
    assert_eq!(names(&place), ["in.pcap", "link.pcap", "was.pcap"]);
}

#[test]
fn output_is_never_appended_to_the_input_itself() {
    let place = place();
    let before = fs::read(place.path().join("in.pcap")).unwrap();
    // Without the check, what is written is read again, until the disk is full.
    let limits = "ulimit -f 20000; pcap() { timeout 20 \"$SEGUE\" pcap \"$@\"; }";
    for script in [
        "pcap split in.pcap - >> in.pcap",
        "cat in.pcap > a; pcap split - - < a >> a",
        "pcap split in.pcap - 1<> in.pcap",
    ] {
        let (code, stdout, stderr) = text(&shell(&place, &format!("{limits}\n{script}")));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{script}: {stderr}");
        assert!(stderr.starts_with("error: stdout is the input itself ("), "{stderr}");
        assert!(stderr.ends_with("\ntry:  segue pcap split IN OUT\n"), "{stderr}");
        assert!(fs::read(place.path().join("in.pcap")).unwrap() == before, "{script}");
    }
    let (code, ..) =
        text(&shell(&place, "pcap split in.pcap - -q >> other.pcap && cmp <(pcap split in.pcap - -q) other.pcap"));
    assert_eq!(code, Some(0));
}

#[test]
fn only_a_file_is_replaced_in_place_and_nothing_else_is_waited_for() {
    let place = place();
    for (input, what) in [("pipe", "a named pipe"), ("link", "a named pipe"), ("/dev/zero", "no regular file")] {
        for action in ["merge", "split", "split --undo", "decap"] {
            // The pipe has no writer.
            let script = format!(
                "[ -p pipe ] || {{ mkfifo pipe; ln -s pipe link; }}; timeout 20 \"$SEGUE\" pcap {action} -i {input}"
            );
            let (code, stdout, stderr) = text(&shell(&place, &script));
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{script}: {stderr}");
            let first = format!("error: {input} is {what} and cannot be replaced in place\nwhy:  ");
            assert!(stderr.starts_with(&first), "{stderr}");
            let command = action.split(' ').next().unwrap();
            assert!(stderr.ends_with(&format!("\ntry:  segue pcap {command} {input} OUT\n")), "{stderr}");
        }
    }
    let (code, _, stderr) = text(&shell(&place, "pcap merge -i - < in.pcap"));
    assert!(code == Some(2) && stderr.starts_with("error: stdin cannot be replaced in place\n"), "{stderr}");
}

#[test]
fn a_file_that_is_replaced_keeps_its_owner_and_group() {
    let place = place();
    let owner = |name: &str| {
        let data = fs::metadata(place.path().join(name)).unwrap();
        (data.uid(), data.gid(), data.mode() & 0o7777)
    };
    if std::os::unix::fs::chown(place.path().join("in.pcap"), Some(1000), Some(1001)).is_err() {
        return segue_lab::skip_this_test("files cannot be given to another owner here (CAP_CHOWN)");
    }
    let script =
        "chmod 640 in.pcap; cp -p in.pcap old.pcap; pcap merge -q -i in.pcap && pcap split -q -f in.pcap old.pcap";
    let (code, _, stderr) = text(&shell(&place, script));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!((owner("in.pcap"), owner("old.pcap")), ((1000, 1001, 0o640), (1000, 1001, 0o640)));
}

/// Tests that no other user can read what replaces a private file, not even for a moment, and that the new content is
/// on disk before it has the name.
#[test]
fn a_file_that_replaces_another_is_private_at_first_and_on_disk_before_it_has_its_name() {
    if segue_lab::which("strace").is_none() {
        return segue_lab::skip_this_test("not installed: strace");
    }
    let place = place();
    let calls = "openat,fdatasync,fsync,?rename,?renameat,?renameat2";
    let traced = format!("strace -f -qq -e trace={calls} -o calls \"$SEGUE\" pcap merge -q -i in.pcap");
    let (code, _, stderr) = text(&shell(&place, &format!("umask 0; chmod 600 in.pcap; {traced}")));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let calls = fs::read_to_string(place.path().join("calls")).unwrap();
    let at = |call: &str| {
        let found = calls.lines().position(|line| line.contains(call));
        found.unwrap_or_else(|| panic!("no {call}: {calls}"))
    };
    let (made, synced, named, listed) = (at("O_EXCL"), at("fdatasync("), at("rename"), at("fsync("));
    assert!(made < synced && synced < named && named < listed, "{calls}");
    assert!(calls.lines().nth(made).unwrap().contains(", 0600)"), "{calls}");
}

#[test]
fn an_existing_output_needs_f() {
    let place = place();
    let (code, _, stderr) = text(&shell(&place, "echo mine > out.pcap; pcap split in.pcap out.pcap; cat out.pcap >&2"));
    assert_eq!(
        (code, stderr.as_str()),
        (Some(0), "error: out.pcap exists\ntry:  -f replaces it, or choose a new name\nmine\n")
    );
    assert_eq!(text(&shell(&place, "pcap split in.pcap out.pcap")).0, Some(2));
    let (code, _, stderr) = text(&shell(&place, "pcap split -f in.pcap out.pcap && pcap verify -q out.pcap"));
    assert_eq!((code, stderr.as_str().lines().count()), (Some(0), 1), "{stderr}");
}

#[test]
fn the_form_of_the_output_is_that_of_the_input_unless_something_says_otherwise() {
    let place = place();
    let magic = |name: &str| fs::read(place.path().join(name)).unwrap()[..4].to_vec();
    let ng = [0x0a, 0x0d, 0x0d, 0x0a];
    for (args, name, is_ng, note) in [
        ("in.pcap a.pcap", "a.pcap", false, ""),
        ("in.pcap b", "b", false, ""),
        ("in.pcap c.pcapng", "c.pcapng", true, "note: pcap becomes pcapng in c.pcapng\n"),
        ("in.pcap d -F pcapng", "d", true, "note: pcap becomes pcapng in d\n"),
        ("c.pcapng e", "e", true, ""),
        ("c.pcapng f.cap", "f.cap", false, "note: pcapng becomes pcap in f.cap\n"),
        ("in.pcap g.pcapng -F pcap", "g.pcapng", false, ""),
    ] {
        let (code, _, stderr) = text(&shell(&place, &format!("pcap split {args}")));
        assert_eq!(code, Some(0), "{args}: {stderr}");
        assert_eq!(magic(name) == ng, is_ng, "{args}");
        assert_eq!(stderr.split("2").next().unwrap().contains("becomes"), !note.is_empty(), "{stderr}");
        assert!(stderr.starts_with(note), "{stderr}");
    }
    let (_, _, stderr) = text(&shell(&place, "pcap merge in.pcap h.pcap"));
    assert!(stderr.contains("note: pcap has no place for what `split --undo` needs"), "{stderr}");
    let (code, _, stderr) = text(&shell(&place, "pcap split --undo h.pcap i.pcap"));
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("error: there is nothing to undo in h.pcap\nwhy:  "), "{stderr}");
    let (code, _, stderr) = text(&shell(&place, "pcap split --undo c.pcapng i.pcap; ls i.pcap"));
    assert!(code == Some(2) && stderr.contains("error: there is nothing to undo in c.pcapng"), "{stderr}");
}

#[test]
fn a_truncated_file_is_used_up_to_the_cut_and_reported() {
    let place = place();
    let script = "head -c 100000 in.pcap > cut.pcap; pcap split cut.pcap out.pcap; echo $?
        pcap split cut.pcap out2.pcap --allow-cut; echo $?; cmp out.pcap out2.pcap
        pcap verify -j cut.pcap | tail -1; pcap merge -j cut.pcap m.pcapng
        pcap split --undo m.pcapng u.pcap && cmp u.pcap out.pcap || echo another";
    let (_, stdout, stderr) = text(&shell(&place, script));
    let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(error.starts_with("error: cut.pcap: packet ") && error.contains(" is cut off: "), "{error}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((&lines[..2], lines.len()), (&["1", "0"][..], 4), "{stdout}");
    for line in &lines[2..] {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["error"]["kind"], "damaged", "{value}");
    }
}

#[test]
fn a_fault_of_the_input_leaves_the_file_that_would_be_replaced_as_it_was() {
    let place = place();
    let script = "for name in in.pcapng in.pcapng.gz in.pcapng.zst; do pcap merge -q in.pcap $name; done
        for name in in.pcap in.pcapng in.pcapng.zst; do head -c 400000 $name > cut; mv cut $name; done";
    assert_eq!(text(&shell(&place, script)).0, Some(0));
    let packed = place.path().join("in.pcapng.gz");
    let mut bytes = fs::read(&packed).unwrap();
    let half = bytes.len() / 2;
    bytes[half] ^= 0xff;
    fs::write(&packed, bytes).unwrap();
    for name in ["in.pcap", "in.pcapng", "in.pcapng.gz", "in.pcapng.zst"] {
        for action in ["merge", "split", "decap", "split --undo"] {
            if (action, name) == ("split --undo", "in.pcap") {
                continue;
            }
            // A new file has what is whole, and so has one that is replaced if that is asked for.
            let script = format!(
                "cp {name} was.pcapng; echo mine > old.pcapng
                 pcap {action} -i {name}; echo $?; pcap {action} -f {name} old.pcapng; echo $?
                 cat old.pcapng; cmp {name} was.pcapng && pcap {action} -q -f {name} new.pcapng; echo $?
                 pcap {action} -q -i --allow-cut {name}; echo $?; cmp -s {name} was.pcapng || echo replaced
                 test -s new.pcapng && ls -A | grep -v '^in.pcap'; mv was.pcapng {name}; rm old.pcapng new.pcapng"
            );
            let (_, stdout, stderr) = text(&shell(&place, &script));
            let expected = "1\n1\nmine\n1\n0\nreplaced\nnew.pcapng\nold.pcapng\nwas.pcapng\n";
            assert_eq!(stdout, expected, "{action} {name}: {stderr}");
            let hint = "\ntry:  name a new OUT, or --allow-cut replaces it by what is whole\n";
            assert_eq!(stderr.matches(hint).count(), 2, "{action} {name}: {stderr}");
        }
    }
}

#[test]
fn damage_and_things_that_are_no_captures_are_named() {
    let place = place();
    let script = "printf '\\3757zXZ' | cat - in.pcap > in.pcap.xz; cp in.pcap bad.pcap; mkdir dir
        printf '\\377\\377\\377\\177' | dd of=bad.pcap bs=1 seek=32 conv=notrunc 2>/dev/null; : > empty
        for f in in.pcap.xz bad.pcap empty dir none.pcap; do pcap stat $f >/dev/null; echo $?; done";
    let (_, stdout, stderr) = text(&shell(&place, script));
    assert_eq!(stdout, "2\n1\n1\n2\n1\n", "{stderr}");
    for part in [
        "in.pcap.xz is compressed (xz)\ntry:  xzcat in.pcap.xz | segue pcap stat - ...",
        "bad.pcap: the file is damaged at packet 1 (byte 24): a packet of more than 16 MiB",
        "cannot read empty: the file is empty",
        "dir is a directory",
        "cannot open none.pcap: No such file or directory",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_read() {
    let place = place();
    for (args, code, part) in [
        ("merge in.pcap", 2, "no output file"),
        ("merge", 2, "no capture file"),
        ("merge in.pcap o.pcap --profile other", 2, "expected strict, linux, linux:VERSION (as linux:6.12) or lro"),
        ("merge in.pcap o.pcap --profile linux:x", 2, "expected strict, linux, linux:VERSION (as linux:6.12) or lro"),
        ("merge in.pcap o.pcap --hold-us 0", 2, "expected 1 to 60000000: 0 merges within one read of a port"),
        ("merge in.pcap o.pcap --hold-us 60000001", 2, "expected 1 to 60000000\n"),
        ("split in.pcap o.pcap --undo --mtu 1500", 2, "does not go with"),
        ("split in.pcap o.pcap --mtu 40", 2, "expected 68 to"),
        ("split in.pcap o.pcap --fix-checksums none", 2, "`none` is not a value"),
        ("split -i in.pcap o.pcap", 2, "-i replaces the input"),
        ("split -i -", 2, "stdin cannot be replaced"),
        ("decap in.pcap o.pcap --fou 5555", 2, "expected PORT:PROTO"),
        ("split in.pcap none/o.pcap", 1, "cannot write none/o.pcap: No such file or directory"),
        ("splitt in.pcap", 2, "did you mean `split`?"),
        ("split in.pcap o.pcap --mt 5", 2, "try: segue pcap split --help"),
        ("", 2, "segue pcap needs a command"),
    ] {
        let (status, stdout, stderr) = text(&shell(&place, &format!("pcap {args} < in.pcap")));
        assert_eq!(status, Some(code), "{args}: {stderr}");
        assert!(stdout.is_empty() && stderr.starts_with("error: ") && stderr.contains(part), "{args}: {stderr}");
    }
    let (code, stdout, _) = text(&shell(&place, "pcap split in.pcap - -j"));
    let error: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &error["error"]["kind"]), (Some(2), &Value::from("conflict")));
    assert_eq!(names(&place), ["in.pcap"]);
    for action in ["", "merge", "split", "decap", "verify", "stat"] {
        for help in ["-h", "--help"] {
            let (code, stdout, stderr) = text(&shell(&place, &format!("pcap {action} {help}")));
            assert_eq!((code, stderr.as_str()), (Some(0), ""), "{action} {help}");
            assert!(stdout.contains(&format!("segue pcap {action}")), "{stdout}");
        }
    }
}

#[test]
fn an_interrupt_leaves_nothing_half_written() {
    let place = place();
    for signal in ["INT", "TERM"] {
        // The input is a pipe that stays open, so the work cannot end by itself.
        let script = format!(
            "set -m; mkfifo fifo; (head -c 200000 in.pcap; exec sleep 120) > fifo & feeder=$!
             \"$SEGUE\" pcap merge fifo out.pcapng & work=$!
             for n in $(seq 300); do ls -A | grep -q '^.out.pcapng' && break; sleep 0.1; done
             ls -A | grep -c '^.out.pcapng'
             kill -{signal} $work; wait $work; echo $?
             kill $feeder; rm fifo; ls -A"
        );
        let start = Instant::now();
        let (_, stdout, stderr) = text(&shell(&place, &script));
        assert_eq!(stdout, "1\n130\nin.pcap\n", "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Shell function `has FILE LEN`: returns once the file has so many bytes, or after half a minute.
const HAS: &str = "has() { for n in $(seq 300); do [ $(stat -c %s $1 || echo 0) -ge $2 ] && break; sleep 0.1; done; }
";

#[test]
fn an_output_without_a_temporary_file_has_each_packet_as_soon_as_the_input_waits() {
    let place = place();
    for output in ["b", "- > out"] {
        // The input stays open. Its packets fit an MTU, so that the output is the same.
        let script = format!(
            "{HAS}set -m; mkfifo a b; : > out; cat b > out & cat=$!
             (head -c 100000 in.pcap; exec sleep 120) > a & feeder=$!
             \"$SEGUE\" pcap split -q -F pcap a {output} & work=$!
             has out 95000; cmp -n $(stat -c %s out) out in.pcap && stat -c %s out
             kill $work $cat; wait $work; kill -- -$feeder; rm a b"
        );
        let (_, stdout, stderr) = text(&shell(&place, &script));
        assert!(stdout.trim().parse::<u64>().unwrap_or(0) >= 95_000, "{output}: {stdout} {stderr}");
    }
}

#[test]
fn an_output_without_a_temporary_file_has_at_a_stop_what_was_read_before() {
    let place = place();
    for signal in ["INT", "TERM", "HUP"] {
        for output in ["b", "- > out"] {
            // Without the signal, the trains are held for a minute.
            let merge = "pcap merge -q -F pcapng --hold-us 60000000";
            let script = format!(
                "{HAS}{WAITS}set -m; mkfifo a b; : > out; cat b > out & cat=$!
                 (head -c 100000 in.pcap; : > fed; exec sleep 120) > a & feeder=$!
                 \"$SEGUE\" {merge} a {output} & work=$!
                 until [ -e fed ]; do sleep 0.02; done; waits $work
                 kill -{signal} $work; wait $work; echo $?; [ '{output}' = b ] && wait $cat || kill $cat
                 pcap split --undo -q -f out back.pcap; cmp -n $(stat -c %s back.pcap) back.pcap in.pcap
                 stat -c %s back.pcap; kill -- -$feeder; rm a b fed"
            );
            let (_, stdout, stderr) = text(&shell(&place, &script));
            let (status, len) = stdout.trim().split_once('\n').unwrap_or_default();
            assert_eq!(status, "130", "{output} {signal}: {stdout} {stderr}");
            // What a pipe holds may not have been read yet.
            assert!(len.parse::<u64>().unwrap_or(0) >= 30_000, "{output} {signal}: {stdout} {stderr}");
        }
    }
}

#[test]
fn an_output_that_nothing_takes_does_not_hold_up_a_stop() {
    let place = place();
    let script = format!(
        "{WAITS}set -m; mkfifo b; sleep 120 < b & reader=$!
         \"$SEGUE\" pcap split -q in.pcap b & work=$!; waits $work
         kill -TERM $work; wait $work; echo $?; kill $reader"
    );
    let begin = Instant::now();
    let (_, stdout, stderr) = text(&shell(&place, &script));
    assert_eq!(stdout, "130\n", "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn verify_shows_the_faults_of_a_live_capture_as_they_come() {
    let place = place();
    let faults = Shape { seed: 1, traffic: "faults", link: link::ETHERNET, form: "us_le" };
    fs::write(place.path().join("faults.pcap"), file(&faults)).unwrap();
    let script = format!(
        "{HAS}set -m; pcap verify faults.pcap > all; mkfifo a; (cat faults.pcap; exec sleep 120) > a & feeder=$!
         \"$SEGUE\" pcap verify a > out & work=$!
         has out $(stat -c %s all); cmp out all && kill -INT $work; wait $work; echo $?; kill -- -$feeder; test -s all"
    );
    let (code, stdout, stderr) = text(&shell(&place, &script));
    assert_eq!((code, stdout.as_str()), (Some(0), "130\n"), "{stderr}");
}

#[test]
fn an_output_is_not_written_to_what_another_user_has_put_in_its_place() {
    let place = place();
    // A link that leads nowhere is neither a new file nor replaced.
    let script = "ln -s loop loop; pcap split -f in.pcap loop; echo $?; readlink loop";
    let (_, stdout, stderr) = text(&shell(&place, script));
    assert_eq!(stdout, "1\nloop\n", "{stderr}");
    fs::write(place.path().join("theirs"), "").unwrap();
    if std::os::unix::fs::chown(place.path().join("theirs"), Some(1000), None).is_err() {
        return segue_lab::skip_this_test("files cannot be given to another owner here (CAP_CHOWN)");
    }
    let script = "mkdir -m 1777 shared; echo mine > kept; ln -s ../kept shared/link; ln -s link shared/own
        mkfifo shared/pipe; echo theirs > shared/file; chmod 666 shared/file; chown -h 1000 shared/link shared/pipe shared/file
        for name in link own pipe file; do timeout 20 \"$SEGUE\" pcap split -q -f in.pcap shared/$name; echo $?; done
        cat kept shared/file; stat -c %u shared/file; ls -A shared";
    let (_, stdout, stderr) = text(&shell(&place, script));
    assert_eq!(stdout, "2\n2\n2\n2\nmine\ntheirs\n1000\nfile\nlink\nown\npipe\n", "{stderr}");
    for what in ["shared/link is a symbolic link", "shared/pipe is a named pipe", "shared/file is a file"] {
        assert!(stderr.contains(&format!("error: {what} of another user\nwhy:  ")), "{stderr}");
    }
    // A link of this user is followed, and a pipe taken in a directory that is not sticky.
    let script = "ln -s ../kept shared/mine; pcap split -q -f in.pcap shared/mine && readlink shared/mine
        pcap split -q in.pcap expected.pcap && cmp kept expected.pcap; mkfifo pipe; chown 1000 pipe
        cat pipe > got & timeout 20 \"$SEGUE\" pcap split -q -F pcap in.pcap pipe; wait; cmp got expected.pcap; echo $?";
    let (_, stdout, stderr) = text(&shell(&place, script));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("../kept\n0\n", ""));
}

/// Shell function `waits PID`: returns once the program handles its signals, which it blocks for that, and sleeps, or
/// has ended.
const WAITS: &str =
    "waits() { until grep -q '^SigBlk:.*[1-9a-f]' /proc/$1/status && grep -q '^State:.S' /proc/$1/status
    do kill -0 $1 || break; sleep 0.02; done; }
";

#[test]
fn a_named_pipe_without_another_end_is_waited_for_until_a_signal() {
    let place = place();
    for signal in ["INT", "TERM", "HUP"] {
        for args in [
            "merge in.pcap fifo",
            "split in.pcap fifo -F pcap",
            "decap in.pcap fifo",
            "merge fifo out.pcapng",
            "verify fifo",
        ] {
            // A process that does not end is killed.
            let script = format!(
                "set -m; mkfifo fifo; \"$SEGUE\" pcap {args} & work=$!; (sleep 60; kill -KILL $work) & guard=$!
                 {WAITS}waits $work
                 kill -{signal} $work; wait $work; echo $?; kill -- -$guard; rm fifo; ls -A"
            );
            let (_, stdout, stderr) = text(&shell(&place, &script));
            assert_eq!(stdout, "130\nin.pcap\n", "{args} {signal}: {stderr}");
        }
    }
}

#[test]
fn a_named_pipe_may_get_its_other_end_later() {
    let place = place();
    let (code, stdout, stderr) = text(&shell(
        &place,
        &format!(
            "{WAITS}mkfifo a b; \"$SEGUE\" pcap merge a b -F pcapng -q & work=$!; waits $work
             cat b > merged.pcapng & reader=$!; waits $work; cat in.pcap > a
             wait $reader; wait $work; pcap split --undo merged.pcapng out.pcap -q && cmp in.pcap out.pcap && ls -A"
        ),
    ));
    assert_eq!((code, stdout.as_str()), (Some(0), "a\nb\nin.pcap\nmerged.pcapng\nout.pcap\n"), "{stderr}");
}

#[test]
fn a_full_disk_or_a_missing_right_leaves_nothing_either() {
    let place = place();
    let (code, _, stderr) = text(&shell(&place, "pcap split in.pcap /dev/full"));
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("error: cannot write the output: No space left on device"), "{stderr}");
    let (code, _, stderr) = text(&shell(
        &place,
        "mkdir ro; ulimit -f 100; trap '' XFSZ; pcap split in.pcap ro/out.pcap; code=$?; ls -A ro; exit $code",
    ));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot write the output: File too large"), "{stderr}");
    assert!(fs::read_dir(place.path().join("ro")).unwrap().next().is_none());
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let place = place();
    let (_, _, stderr) = text(&shell(&place, "pcap split in.pcap out.pcap"));
    assert!(!stderr.contains('\r'), "{stderr:?}");
    if !Path::new("/usr/bin/script").exists() {
        return segue_lab::skip_this_test("script(1) is not installed (apt install bsdutils)");
    }
    // The progress line is drawn when data arrives after a pause: it does so in small pieces until the line is there.
    let script = "mkfifo fifo; : > typescript
        (head -c 100000; for n in $(seq 300); do grep -q kB/s typescript && break; head -c 100; sleep 0.1; done; cat) \
            < in.pcap > fifo &
        script -qefc '\"$SEGUE\" pcap split fifo tty.pcap' typescript < /dev/null; cmp tty.pcap out.pcap";
    let (code, stdout, _) = text(&shell(&place, script));
    assert_eq!(code, Some(0), "{stdout:?}");
    assert!(stdout.contains("kB/s") && stdout.contains("\r\x1b[K"), "{stdout:?}");
}

/// Compares the text output about captures with stored transcripts. `SEGUE_GOLDEN=write` rewrites them.
#[test]
fn output_about_the_captures_equals_the_stored_transcripts() {
    let place = Place::new();
    for name in ["gue-gre-remcsum-inner4-tcp", "vxlan-csum-inner6-udp", "gre-key-csum-seq-inner4-icmp", "sit-tcp"] {
        fs::copy(format!("{CAPTURES}/{name}.pcap"), place.path().join("in.pcap")).unwrap();
        let script = "exec 2>&1; for a in 'stat in.pcap' 'verify in.pcap --mtu 1400' 'merge in.pcap m.pcapng' 'split --undo m.pcapng u.pcap' 'decap in.pcap d.pcap' 'split in.pcap s.pcap --mtu 1000'; do echo \"\\$ segue pcap $a\"; pcap $a; echo \"exit $?\"; done";
        let (_, shown, _) = text(&shell(&place, script));
        let golden = Path::new(GOLDEN).join(format!("{name}.txt"));
        if std::env::var_os("SEGUE_GOLDEN").is_some_and(|value| value == "write") {
            fs::create_dir_all(GOLDEN).unwrap();
            fs::write(&golden, &shown).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(shown, expected, "{name}");
        fs::read_dir(place.path()).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
    }
}

/// Writes bulk TCP of several flows until the file has `size` bytes.
fn large(path: &Path, size: u64) {
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, fs::File::create(path).unwrap()), Format::Pcap);
    let head = PcapHeader { order: Order::Little, nanos: true, snaplen: 262_144, link: 101 };
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    let mut senders: Vec<Sender> =
        (0..40).map(|n| Sender::tcp(Ip::V4(V4::new(1, n, 200)), u16::from(n), 1, vec![])).collect();
    // One round of each flow is generated and then repeated with new sequence numbers: the generator is slower than a
    // disk.
    // The flows alternate, so that many trains are held at a time.
    let round: Vec<Vec<u8>> = (0..20)
        .flat_map(|_| senders.iter_mut().map(|sender| sender.send(1448, 0).bytes()).collect::<Vec<_>>())
        .collect();
    let (mut written, mut ticks) = (0, 1_700_000_000_000_000_000_u64);
    while written < size {
        for packet in &round {
            ticks += 1200;
            writer
                .packet(&Outgoing {
                    interface: 0,
                    ticks: Some(ticks),
                    len: packet.len() as u32,
                    data: &[packet],
                    options: &[],
                })
                .unwrap();
            written += packet.len() as u64 + 16;
        }
    }
    writer.finish().unwrap().flush().unwrap();
}

/// Runs segue and returns its peak memory use in bytes.
fn peak(place: &Place, args: &[&str]) -> u64 {
    let mut child = common::command(SEGUE, place)
        .arg("pcap")
        .args(args)
        .current_dir(place.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
        most = most.max(kilobytes.unwrap_or(0) * 1024);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{args:?}");
            return most;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_does_not_grow_with_the_file() {
    // 2 GiB takes a minute and a disk: `make soak`.
    let is_soak = segue_testkit::is_set("SEGUE_SOAK");
    let (size, limit) = if is_soak { (2 << 30, 200_000_000) } else { (64 << 20, 100_000_000) };
    let place = Place::new();
    large(&place.path().join("big.pcap"), size);
    for args in [
        &["merge", "big.pcap", "merged.pcapng", "--hold-us", "1000000"][..],
        &["split", "--undo", "merged.pcapng", "undone.pcap"],
        &["split", "merged.pcapng", "split.pcapng"],
        &["decap", "big.pcap", "decap.pcap"],
        &["verify", "big.pcap"],
        &["stat", "big.pcap"],
    ] {
        let most = peak(&place, args);
        println!("{args:?}: {most} bytes");
        assert!(most < limit, "{args:?} had {most} bytes of memory");
    }
    let same = Command::new("cmp").arg("big.pcap").arg("undone.pcap").current_dir(place.path()).status().unwrap();
    assert!(same.success());
    let merged = fs::metadata(place.path().join("merged.pcapng")).unwrap();
    assert!(merged.len() < size && merged.permissions().mode() & 0o600 == 0o600);
}
