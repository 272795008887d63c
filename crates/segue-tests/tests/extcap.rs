//! Tests of segue as an extcap: tshark lists the running tunnels, and captures one live, at each of its capture points.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use segue_lab::{Family, Host, LinkForm, Peer, Process};
use segue_tests::capture::Directory;
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, test_name, traffic};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a ping without end, which sends packets for a capture.
fn ping(host: &Host, to: IpAddr) -> Process {
    let mut command = host.command("ping");
    command.args(["-q", "-i", "0.1", &to.to_string()]);
    Process::spawn(command, b"").unwrap()
}

#[test]
fn tshark_lists_tunnels_and_captures_them_live() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["tshark", "dumpcap", "mkfifo", "ping"]) else {
        return;
    };
    let directory = Directory::new();
    let folder = directory.file("extcap");
    fs::create_dir(&folder).unwrap();
    symlink(&ground.program, folder.join("segue")).unwrap();
    // Wireshark 4.0 looks in the folder of the system alone; this host has a view of its own of it.
    let folders = ground.a.run("tshark", &["-G", "folders"]).unwrap();
    let system = folders.lines().find_map(|line| line.strip_prefix("Extcap path:")).expect("a folder").trim();
    ground.a.run("mount", &["--bind", folder.to_str().unwrap(), system]).unwrap();
    let pair = Pair::start(&ground, Shape::new(Inside::Gre, Carrier::GueRemcsum, Family::V4), 1);
    let tshark = |words: &[&str]| -> Command {
        let mut command = ground.a.command("tshark");
        command.env("HOME", directory.path()).args(words);
        command
    };
    let listed = tshark(&["-D"]).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("segue-sg1 (segue sg1: gre in GUE to 198.18.0.2:6081)"), "{text}");

    let inner = Peer::B.address(1, Family::V4);
    let _ping = ping(&ground.a, inner);
    let mut live = tshark(&["-i", "segue-sg1", "-c", "4", "-T", "fields", "-e", "udp.dstport"]);
    live.env("LANG", "C.UTF-8");
    let mut live = Process::spawn(live, b"").unwrap();
    let ended = live.wait(PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", live.last_words()));
    assert!(ended.success(), "{}", live.last_words());
    assert!(live.stdout().lines().filter(|line| *line == "6081").count() >= 4, "{}", live.last_words());

    // The other places, as Wireshark asks for them.
    for (tap, longest) in [("trains", 65_535), ("cut", 1_500)] {
        let fifo = directory.file(&format!("{tap}.fifo"));
        ground.a.run("mkfifo", &[fifo.to_str().unwrap()]).unwrap();
        let mut command = ground.a.command(&ground.program);
        command.args(["--capture", "--extcap-interface", "segue-sg1", "--tap", tap, "--fifo"]).arg(&fifo);
        let mut capture = Process::spawn(command, b"").unwrap();
        let mut reader = ground.a.command("tshark");
        reader.env("HOME", directory.path()).args(["-l", "-T", "fields", "-e", "ip.dst", "-e", "frame.len", "-r"]);
        let mut reader = Process::spawn(
            {
                reader.arg(&fifo);
                reader
            },
            b"",
        )
        .unwrap();
        // Pings are seen: the capture runs. Then a file, whose segments are trains.
        let seen = reader.wait_for_line(&inner.to_string(), PATIENCE).map(drop);
        if let Err(error) = seen {
            panic!("{tap}: {error}: {}{}", capture.last_words(), reader.last_words());
        }
        let lengths = || -> Vec<usize> {
            reader.stdout().lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect()
        };
        let begin = std::time::Instant::now();
        while lengths().iter().filter(|length| **length > 1000).count() < 10 {
            assert!(begin.elapsed() < PATIENCE, "{tap}: {:?} {}", lengths(), reader.last_words());
            traffic::file(pair.place(Peer::A, Family::V4), pair.place(Peer::B, Family::V4), 1 << 20, 1);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(lengths().iter().all(|length| *length <= longest), "{tap}: {:?}", lengths());
        assert_eq!(tap == "trains", lengths().iter().any(|length| *length > 1_500), "{tap}: {:?}", lengths());
        drop((capture, reader));
    }
}

/// Returns the command lines of the programs that the process `id` has started.
fn started_by(id: u32) -> Vec<String> {
    let stat = |id: &str| fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let parent = |id: &str| stat(id).rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let children = processes.filter(|process| parent(process) == Some(id));
    children.map(|process| fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()).collect()
}

#[test]
fn a_capture_of_an_idle_tunnel_ends_with_all_its_programs_and_says_why_it_fails() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["dumpcap", "mkfifo", "ping"]) else {
        return;
    };
    let directory = Directory::new();
    let fifo = directory.file("fifo");
    let shape = Shape::new(Inside::Ipip, Carrier::Gue, Family::V4);
    let _pair = Pair::start(&ground, shape, 1);
    let capture = |more: &[&str]| {
        let mut command = ground.a.command(&ground.program);
        command.args(["--capture", "--extcap-interface", "segue-sg1", "--fifo"]).arg(&fifo).args(more);
        Process::spawn(command, b"").unwrap()
    };
    for tap in ["cut", "trains"] {
        let _ = fs::remove_file(&fifo);
        ground.a.run("mkfifo", &[fifo.to_str().unwrap()]).unwrap();
        let mut running = capture(&["--tap", tap]);
        let mut reader = ground.a.command("cat");
        reader.arg(&fifo);
        let mut reader = Process::spawn(reader, b"").unwrap();
        // The section header is there although no packet is.
        let begun = reader.wait_for_line("\n\r\r\n", PATIENCE);
        assert!(begun.is_ok(), "{tap}: {begun:?} {}", running.last_words());
        let children = started_by(running.id());
        assert_eq!(children.len(), if tap == "cut" { 2 } else { 1 }, "{tap}: {children:?}");
        running.terminate();
        // The pipe ends with the last program that could write to it.
        reader.wait(PATIENCE).unwrap_or_else(|error| panic!("{tap}: {error}"));
        let ended = running.wait(PATIENCE).unwrap_or_else(|error| panic!("{tap}: {error}"));
        assert!(ended.success() && running.last_words().is_empty(), "{tap}: {ended} {}", running.last_words());
    }
    fs::remove_file(&fifo).unwrap();
    let mut failing = capture(&["--extcap-capture-filter", "no filter"]);
    let ended = failing.wait(PATIENCE).unwrap();
    let words = failing.last_words();
    assert!(!ended.success() && words.contains("valid capture filter"), "{words}");
}
