//! Tests of the outputs of `segue pcap`: whose file is replaced, temporary files, signals and limits while one is
//! written, and names that act on a terminal.

mod common;
#[path = "../../segue-capture/tests/common/shapes.rs"]
mod shapes;

use std::fs;

use common::{Place, SEGUE};
use segue_capture::file::{Format, Item, Order, Outgoing, PcapHeader, Reader, Writer, link};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;
use shapes::{file, shapes};

/// Creates a directory with the capture in.pcap (bulk TCP on Ethernet, whose packets fit an MTU).
fn place() -> Place {
    let place = Place::new();
    fs::write(place.path().join("in.pcap"), file(&shapes(1)[0])).unwrap();
    place
}

/// Writes a pcap file of IP packets.
fn write(place: &Place, name: &str, packets: &[Vec<u8>]) {
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    let head = PcapHeader { order: Order::Little, nanos: true, snaplen: 262_144, link: u32::from(link::RAW) };
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    for (n, packet) in packets.iter().enumerate() {
        let (ticks, len) = (Some(n as u64), packet.len() as u32);
        writer.packet(&Outgoing { interface: 0, ticks, len, data: &[packet], options: &[] }).unwrap();
    }
    fs::write(place.path().join(name), writer.finish().unwrap()).unwrap();
}

/// Runs a shell script in that directory, in which `pcap` is `segue pcap`; returns stdout and stderr. No signal is
/// ignored in it, as it would be where the tests are run by nohup.
fn shell(place: &Place, script: &str) -> (String, String) {
    let script = format!("pcap() {{ \"$SEGUE\" pcap \"$@\"; }}\n{script}");
    let program = std::env::var_os("SEGUE_BIN").map_or_else(|| SEGUE.into(), |path| fs::canonicalize(path).unwrap());
    let mut command = common::command("env", place);
    command.args(["--default-signal=HUP,INT", "bash", "-c", &script]).env("SEGUE", program);
    let ran = command.current_dir(place.path()).output().unwrap();
    let (_, stdout, stderr) = common::text(&ran);
    (stdout, stderr)
}

#[test]
fn a_file_of_another_user_in_a_sticky_folder_is_replaced_in_place_alone() {
    let place = place();
    let script = "mkdir -m 1777 shared; cp in.pcap shared/file; chown 1000 shared/file";
    let (_, stderr) = shell(&place, script);
    if !stderr.is_empty() {
        return segue_lab::skip_this_test("files cannot be given to another owner here (CAP_CHOWN)");
    }
    let script =
        "pcap merge -q -f in.pcap shared/file; echo $?; cmp in.pcap shared/file && pcap merge -q -i shared/file
        echo $?; stat -c %u shared/file; cmp -s in.pcap shared/file || echo merged; ls -A shared";
    let (stdout, stderr) = shell(&place, script);
    assert_eq!(stdout, "2\n0\n1000\nmerged\nfile\n", "{stderr}");
}

#[test]
fn a_temporary_file_that_was_left_and_a_long_name_are_no_obstacle() {
    let place = place();
    let script = "for n in 1 2; do sh -c 'touch .out.pcap.segue-$$ .out.pcap.segue-$$-1
            exec \"$SEGUE\" pcap split -q -f in.pcap out.pcap'; echo $?; done
        cmp in.pcap out.pcap; ls -A | grep -c '^.out.pcap'; long=$(printf 'a%.0s' $(seq 250)).pcap
        pcap split -q in.pcap $long; echo $?; cmp in.pcap $long; ls -A | grep -c aaa";
    let (stdout, stderr) = shell(&place, script);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("0\n0\n4\n0\n1\n", ""));
}

#[test]
fn a_signal_is_heeded_while_one_packet_becomes_many() {
    if segue_lab::which("strace").is_none() {
        return segue_lab::skip_this_test("not installed: strace");
    }
    let place = place();
    // A train of 8 MiB, with a length of zero.
    let mut train = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 3, 1, vec![]).send(60_000, 0).bytes();
    train.resize(8 << 20, 7);
    train[2..4].fill(0);
    write(&place, "big.pcap", &[train]);
    for (signal, status) in [("", "0"), ("-e inject=write:signal=TERM:when=1", "130")] {
        let script = format!(
            "strace -f -qq -e trace=write {signal} -o calls \"$SEGUE\" pcap split -q --fix-checksums all big.pcap out.pcap
             echo $?; grep -c 'write(' calls; ls -A; rm -f out.pcap calls"
        );
        let (stdout, stderr) = shell(&place, &script);
        let lines: Vec<&str> = stdout.lines().collect();
        let (all, is_whole) = (["big.pcap", "calls", "in.pcap", "out.pcap"], signal.is_empty());
        assert_eq!((lines[0], &lines[2..]), (status, if is_whole { &all[..] } else { &all[..3] }), "{stdout}{stderr}");
        // A write has 256 KiB; every fourth looks for a signal.
        let writes: u32 = lines[1].parse().unwrap();
        assert_eq!(writes > 25, is_whole, "{writes} writes");
    }
}

/// Shell function `waits PID`: returns once the program handles its signals, which it blocks for that, and sleeps, or
/// has ended.
const WAITS: &str =
    "waits() { until grep -q '^SigBlk:.*[1-9a-f]' /proc/$1/status && grep -q '^State:.S' /proc/$1/status
    do kill -0 $1 || break; sleep 0.02; done; }
";

#[test]
fn a_signal_that_is_ignored_at_the_start_does_not_end_a_run() {
    let place = place();
    for signal in ["HUP", "INT"] {
        let script = format!(
            "{WAITS}mkfifo a; (trap '' {signal}; exec \"$SEGUE\" pcap merge -q a out.pcapng) & work=$!
             exec 9> a; head -c 100000 in.pcap >&9; waits $work; kill -{signal} $work; tail -c +100001 in.pcap >&9
             exec 9>&-; wait $work; echo $?; pcap split -q --undo out.pcapng back.pcap; cmp in.pcap back.pcap && ls -A
             rm -f a out.pcapng back.pcap"
        );
        let (stdout, stderr) = shell(&place, &script);
        assert_eq!(stdout, "0\na\nback.pcap\nin.pcap\nout.pcapng\n", "{signal}: {stderr}");
    }
}

#[test]
fn a_limit_of_file_sizes_leaves_nothing_half_written() {
    let place = place();
    let (stdout, stderr) = shell(&place, "(ulimit -f 100; pcap split in.pcap out.pcap); echo $?; ls -A");
    assert_eq!(stdout, "1\nin.pcap\n", "{stderr}");
    assert!(stderr.starts_with("error: cannot write the output: File too large"), "{stderr}");
}

#[test]
fn an_undo_that_is_not_whole_replaces_no_file() {
    let place = place();
    // A train of four, between whose packets are others.
    let ip = Ip::V4(V4::new(1, 1, 2));
    let mut data = Sender::tcp(ip.clone(), 3, 1, vec![]);
    let mut packet =
        |n: u16| if n.is_multiple_of(2) { data.send(1000, 0) } else { Sender::udp(ip.clone(), n).send(100, 0) };
    write(&place, "few.pcap", &(0..7).map(|n| packet(n).bytes()).collect::<Vec<_>>());
    assert_eq!(shell(&place, "pcap merge -q few.pcap whole.pcapng"), (String::new(), String::new()));
    let whole = fs::read(place.path().join("whole.pcapng")).unwrap();
    let mut reader = Reader::new(&whole[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            packets.push(record.offset as usize..record.offset as usize + record.raw.len());
        }
    }
    let gone = [&whole[..packets[1].start], &whole[packets[1].end..]].concat();
    // The number of packets in the note of the train.
    let mut wrong = whole.clone();
    let at = whole.windows(6).position(|bytes| bytes == b"sgue\x01m").unwrap();
    wrong[at + 6] += 1;
    for (file, said) in [(gone, "1 packet or other blocks are gone"), (wrong, "with a note that does not fit")] {
        fs::write(place.path().join("bad.pcapng"), file).unwrap();
        let script = "cp bad.pcapng was; echo mine > old; pcap split --undo -i bad.pcapng; echo $?; cmp bad.pcapng was
            pcap split --undo -f bad.pcapng old; echo $?; cat old; pcap split --undo -q bad.pcapng new; echo $?
            pcap split --undo -q -f --allow-cut bad.pcapng old; echo $?; cmp new old; rm -f new old";
        let (stdout, stderr) = shell(&place, script);
        assert_eq!(stdout, "1\n1\nmine\n0\n0\n", "{stderr}");
        assert_eq!((stderr.matches(said).count(), stderr.matches("error: bad.pcapng: ").count()), (4, 2), "{stderr}");
    }
}

#[test]
fn the_name_of_a_file_does_not_act_on_the_terminal() {
    let place = place();
    let script = "n=$'e\\e[2Jx.pcap'; cp in.pcap \"$n\"; mkdir \"$n.d\"; pcap stat \"$n\"; pcap stat \"$n.none\"
        pcap stat \"$n.d\"; pcap split in.pcap \"$n\"; pcap split \"$n\" \"./$n\"; pcap split in.pcap \"none/$n\"
        pcap split -f in.pcap \"$n.d\"; pcap merge in.pcap \"$n.pcapng\"; head -c 1000 in.pcap > \"$n\"; pcap verify -q \"$n\"";
    let (stdout, stderr) = shell(&place, script);
    assert!(stdout.starts_with("e?[2Jx.pcap   pcap, "), "{stdout:?}");
    assert!(!stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "{stdout:?} {stderr:?}");
    assert!(stderr.lines().filter(|line| line.contains("e?[2Jx.pcap")).count() >= 7, "{stderr:?}");
}
