//! Compares the output of `gso-judge` with the listed differences of kernels.
//!
//! Where a kernel does something else than segue, [`DIFFERENCES`] says what and why; a difference that is not listed is
//! a fault, and so is one that is listed and is none. One more is not seen here but in
//! `crates/segue-engine-tests/tests/conformance`: fragments in GUE with remote checksums.

use std::collections::BTreeMap;

use segue_testkit::conformance::{self, Datagram, Device, Rules};

/// A known difference between a kernel's segmentation and segue's.
pub(crate) struct Listed {
    group: &'static str,
    /// Returns whether the difference applies to a datagram.
    holds: fn(&Datagram) -> bool,
    /// Segue's behaviour in this case, with the reason.
    why: &'static str,
}

pub(crate) const DIFFERENCES: &[Listed] = &[
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

/// The difference in TCP trains whose segments are smaller than 8 bytes, in kernels without a fix that all maintained
/// ones got: 6.1.192 has it, 6.18.44 lacks it.
const UNRAISED: &str = "segue makes segments of a train from outside no smaller than 8 bytes, so that 64 KiB cannot become 65,536 \
                        packets, as Linux does with that fix; without it Linux takes any size in a virtio-net header";

/// Compares the judge's output with the listed differences. Gives what the kernel lacks: `wrapped` or `device NAME`,
/// with the reason.
pub(crate) fn judge(said: &str) -> Vec<String> {
    let (mut same, mut differs, mut faults) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut rules, mut lacks, mut refused, mut refused_odd) = (None, Vec::new(), 0, 0);
    for line in said.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest.splitn(3, '|').collect::<Vec<_>>().as_slice()) {
            ("rules", _) => rules = Rules::ALL.into_iter().find(|rules| format!("{rules:?}") == rest),
            ("same", _) => {
                let (group, count) = rest.split_once(' ').expect("a group and a number");
                same.insert(group, count.parse::<usize>().expect("a number"));
            }
            ("differs", &[group, name, what]) => {
                differs.insert((group, name), what);
            }
            ("lacks", &[_, _]) => lacks.push(rest.to_string()),
            // Before 6.2 a virtio-net header has no word for UDP trains.
            ("refuses", &[group @ ("device" | "odd"), name])
                if rules == Some(Rules::V6_12) && name.contains("/udp ") =>
            {
                *if group == "odd" { &mut refused_odd } else { &mut refused } += 1;
            }
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
    let (vectors, odd) = (conformance::vectors(), conformance::odd_vectors());
    let small: Vec<&str> =
        odd.iter().filter(|odd| odd.unraised.is_some()).map(|odd| odd.vector.name.as_str()).collect();
    let unraised: Vec<&str> = small.iter().copied().filter(|name| differs.contains_key(&("odd", *name))).collect();
    for name in &unraised {
        let found = differs.remove(&("odd", *name));
        // All of them, or none.
        if found != Some("Linux's way") || unraised != small {
            faults.push(format!("odd {name}: {found:?}, but listed: {UNRAISED}"));
        }
    }
    faults.extend(differs.iter().map(|((group, name), what)| format!("{group} {name}: not listed: {what}")));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    let complete = vectors.iter().filter(|vector| vector.can_be_complete()).count();
    assert_eq!(same.get("complete"), Some(&complete), "trains whose checksum is not owed");
    assert_eq!(same.get("odd").map(|same| same + refused_odd), Some(odd.len() - unraised.len()), "odd trains");
    let has = |what: &str| !lacks.iter().any(|lack| lack.split('|').next() == Some(what));
    if has("wrapped") {
        assert_eq!(same.get("wrapped"), Some(&conformance::wrapped().len()), "trains that a program put in tunnels");
    }
    let devices = conformance::devices();
    let entered: Vec<&Device> = devices.iter().filter(|device| has(&format!("device {}", device.name))).collect();
    let count: usize = entered.iter().map(|device| device.trains().len()).sum();
    assert_eq!(same.get("device").map(|same| same + refused), Some(count), "trains through tunnel devices");
    let count = 3 * entered.iter().filter(|device| device.takes_v4()).count();
    for (group, what) in [("socket", "trains of sockets"), ("inside", "datagrams longer than the MTU")] {
        assert_eq!(same.get(group), Some(&count), "{what} through tunnel devices");
    }
    for group in ["ufo", "together", "reversed", "sent", "forwarded", "again"] {
        let is_listed = |datagram: &Datagram| DIFFERENCES.iter().any(|d| d.group == group && (d.holds)(datagram));
        let count = datagrams.iter().filter(|datagram| was_asked(group, datagram) && !is_listed(datagram)).count();
        assert!(count > 0 && same.get(group) == Some(&count), "{group}: {:?} of {count}", same.get(group));
    }
    println!("{rules:?}: {same:?}, {refused} refused");
    lacks
}
