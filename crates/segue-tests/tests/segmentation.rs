//! Tests of trains in tunnels and of datagrams longer than an MTU (`segue_testkit::conformance`), against this
//! machine's kernel and tshark. `conformance.rs` has the guest's kernel do the same.
//!
//! `crates/segue-engine-tests/tests/conformance` has segue cut the same, byte for byte. [`common::DIFFERENCES`] says
//! what a kernel does otherwise.

#[path = "common/segmentation.rs"]
mod common;

use std::fs;
use std::process::Command;

use segue_lab::{Host, unavailable, which};
use segue_testkit::conformance::{self, Feature};
use segue_tests::capture::Directory;
use segue_tests::{skip, test_name};

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

    let lacks = common::judge(&said);
    // Other devices are the guest's matter.
    let is_needed = |what: &str| {
        what == "wrapped"
            || conformance::devices()
                .iter()
                .any(|d| d.feature == Feature::Vxlan && what == format!("device {}", d.name))
    };
    for why in lacks.iter().filter(|why| why.split('|').next().is_some_and(is_needed)) {
        skip(test_name!(), &format!("this kernel lacks {why}"));
    }
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
