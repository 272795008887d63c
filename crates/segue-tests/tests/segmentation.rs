//! Trains in tunnels and datagrams longer than an MTU (`segue_testkit::conformance`) through this machine's kernel, and through
//! tshark.
//!
//! `crates/segue/tests/conformance` has segue cut the same, byte for byte. Where a kernel does something else, [`DIFFERENCES`]
//! says what and why; a difference that is not listed fails the test, and so does one that is listed and is none.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use segue_lab::{Host, unavailable, which};
use segue_testkit::conformance::{self, Datagram};
use segue_tests::capture::Directory;
use segue_tests::{skip, test_name};

/// What a kernel does that segue does not.
struct Listed {
    group: &'static str,
    /// With which datagrams.
    holds: fn(&Datagram) -> bool,
    /// What segue does instead, and why.
    why: &'static str,
}

const DIFFERENCES: &[Listed] = &[
    Listed {
        group: "ufo",
        holds: |datagram| datagram.is_v4() && datagram.headers > 20,
        why: "segue leaves an option that is not to be copied in the first fragment alone (RFC 791, section 3.1), as Linux's \
              IP does; in the place of a device Linux copies all",
    },
    Listed {
        group: "ufo",
        holds: |datagram| !datagram.is_v4() && datagram.headers > 40,
        why: "segue puts the fragment header behind hop-by-hop options or the last routing header, and counts what is behind it \
              (RFC 8200, section 4.5); in the place of a device Linux counts extension headers in front of it in the offset, \
              which leaves a hole, and repeats those behind it",
    },
    Listed {
        group: "sent",
        holds: |datagram| datagram.fragments(0) != datagram.by_linux(0),
        why: "segue's last fragment may be as long as the MTU; that of a datagram that Linux sends over IPv6 is rounded down to a \
              multiple of 8 as are all, which can take one fragment more",
    },
];

#[test]
fn this_kernel_cuts_trains_in_tunnels_and_datagrams_as_the_table_says() {
    let tools: Vec<&str> = ["ip", "ethtool"].into_iter().filter(|tool| which(tool).is_none()).collect();
    let missing = if tools.is_empty() { unavailable() } else { Some(format!("not installed: {}", tools.join(", "))) };
    if let Some(why) = missing {
        return skip(test_name!(), &why);
    }
    let host = Host::new("judge").expect("a host, since the test may make them");
    let output = host.command(env!("CARGO_BIN_EXE_gso-judge")).output().expect("the judge runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));

    let (mut same, mut differs, mut faults) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for line in said.lines() {
        let (word, rest) = line.split_once(' ').expect("a word and more");
        match (word, rest.splitn(3, '|').collect::<Vec<_>>().as_slice()) {
            ("same", _) => {
                let (group, count) = rest.split_once(' ').expect("a group and a number");
                same.insert(group, count.parse::<usize>().expect("a number"));
            }
            ("differs", &[group, name, what]) => {
                differs.insert((group, name), what);
            }
            ("lacks", &[group, why]) => skip(test_name!(), &format!("this kernel has no {group}: {why}")),
            _ => faults.push(line.to_string()),
        }
    }
    let datagrams = conformance::datagrams();
    let is_bare = |datagram: &Datagram| datagram.link.tags.is_empty();
    let was_sent = |datagram: &Datagram| {
        is_bare(datagram)
            && datagram.headers == if datagram.is_v4() { 20 } else { 40 }
            && (datagram.is_v4() || datagram.mtu >= 1280)
    };
    let was_asked = |group: &str, datagram: &Datagram| match group {
        "ufo" => datagram.fills(),
        "sent" => was_sent(datagram),
        "together" | "reversed" => is_bare(datagram),
        _ => is_bare(datagram) && datagram.is_v4(),
    };
    for Listed { group, holds, why } in DIFFERENCES {
        let mut listed = datagrams.iter().filter(|datagram| was_asked(group, datagram) && holds(datagram)).peekable();
        assert!(listed.peek().is_some(), "listed for nothing: {why}");
        for datagram in listed {
            // The table has those frames too.
            let found = differs.remove(&(*group, datagram.name.as_str()));
            if found != Some("Linux's way") {
                faults.push(format!("{group} {}: {found:?}, but listed: {why}", datagram.name));
            }
        }
    }
    faults.extend(differs.iter().map(|((group, name), what)| format!("{group} {name}: not listed: {what}")));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    let lacks: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("lacks ")?.split('|').next()).collect();
    if !lacks.contains(&"wrapped") {
        assert_eq!(same.get("wrapped"), Some(&conformance::wrapped().len()), "trains in tunnels");
    }
    for group in ["ufo", "together", "reversed", "sent", "forwarded", "again"] {
        let is_listed = |datagram: &Datagram| DIFFERENCES.iter().any(|d| d.group == group && (d.holds)(datagram));
        let count = datagrams.iter().filter(|datagram| was_asked(group, datagram) && !is_listed(datagram)).count();
        assert!(count > 0 && same.get(group) == Some(&count), "{group}: {:?} of {count}", same.get(group));
    }
    println!("{same:?}");
}

#[test]
fn tshark_puts_the_fragments_of_every_datagram_together() {
    if which("tshark").is_none() {
        return skip(test_name!(), "not installed: tshark");
    }
    let directory = Directory::new();
    let path = directory.file("fragments.pcap");
    let datagrams = conformance::datagrams();
    // Header of the file: version 2.4, longest frame, Ethernet; of a record: time, length twice.
    let mut file = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 1 << 18, 1].map(u32::to_be_bytes).concat();
    for (number, datagram) in datagrams.iter().enumerate() {
        for frame in datagram.fragments(number as u32) {
            file.extend([number as u32, 0, frame.len() as u32, frame.len() as u32].map(u32::to_be_bytes).concat());
            file.extend(frame);
        }
    }
    fs::write(&path, file).expect("a file is written");
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "ip.defragment:TRUE", "-o", "ipv6.defragment:TRUE", "-d", "udp.port==2000,data"]);
    command.args(["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-Y", "udp", "-T", "fields"]);
    command.args(["-e", "data.data", "-e", "udp.checksum.status", "-e", "ip.checksum.status", "-r"]).arg(&path);
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), datagrams.len(), "datagrams that tshark put together");
    for (line, datagram) in lines.into_iter().zip(&datagrams) {
        let hex: String = datagram.data.iter().map(|byte| format!("{byte:02x}")).collect();
        // 1 is "Good".
        let expected = format!("{hex}\t1\t{}", if datagram.is_v4() { "1" } else { "" });
        assert!(line == expected, "{}: {:?}", datagram.name, &line[line.len().saturating_sub(40)..]);
    }
}
