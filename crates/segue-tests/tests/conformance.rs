//! Runs the conformance list of GRO and GSO (`segue_testkit::conformance`) on kernels: this machine's and the guest's.
//!
//! `crates/segue-engine-tests/tests/conformance` has segue's profiles make the same trains, byte for byte, so that what
//! is equal here is equal to the profile `linux` of the kernel's generation. Where a kernel does something else,
//! [`DIFFERENCES`] says what and why; a difference that is not listed fails the test, and so does one that is listed
//! and is none. `segmentation.rs` is about trains in tunnels and datagrams, which the guest's kernel gets here.

#[path = "common/segmentation.rs"]
mod segmentation;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use segue_lab::{Host, Process, unavailable, which};
use segue_testkit::conformance::{self, Case, Feature, Rules, Train};
use segue_tests::{guest, skip, test_name};

/// A known difference between a kernel's GRO and segue's.
struct Listed {
    rows: &'static [&'static str],
    /// Returns whether the difference applies to a carrier under a set of rules.
    holds: fn(&str, Rules) -> bool,
    /// The kernel's output, in the notation of the table.
    came: &'static str,
    /// Segue's behaviour in this case, with the reason.
    why: &'static str,
}

const ORDER: &str = "segue keeps the order within a flow: what cannot join flushes what is held. Linux passes it at once where it finds it unfit before it knows its flow";
const DATAGRAMS: &str = "as above; and since datagrams have no sequence number, Linux joins those on both sides of what overtook, unless an identification tells";
const PADDING: &str = "segue cuts padding off before anything is judged; Linux's GRO passes padded frames on";
const PADDED_OUTER: &str = "as above; Linux sums the padding into the outer UDP checksum, finds that wrong, and knows no flow to keep the order in";
const KEY: &str = "of GRE with a checksum and a key, Linux compares the word behind the first, which is the checksum, as if it were the key; inside a checked IPv4 packet it depends on the length alone";
const TAGS: &str =
    "the limit counts from the outermost IP header in segue; Linux counts VLAN tags that are in the frame";
const TINY: &str = "segue joins no remote checksum over less than the 8 bytes that Linux itself raises a gso_size to, since nobody could split the train again";

const DIFFERENCES: &[Listed] = &[
    Listed {
        rows: &[
            "ip/csum",
            "ip/frag4",
            "ip/frag6",
            "ip/opt_between",
            "outer/csum",
            "outer/udp_csum",
            "gre/csum",
            "tcp/csum",
            "udp/csum_then_none",
        ],
        holds: joins,
        came: "#1 #0 #2",
        why: ORDER,
    },
    Listed { rows: &["udp/length_short_of_bytes"], holds: joins, came: "#1 #0", why: ORDER },
    Listed {
        rows: &["order/options_between", "order/fragment_between", "order/bad_csum_between"],
        holds: joins,
        came: "#2 0+1 3+4",
        why: ORDER,
    },
    Listed {
        rows: &["udp/csum", "udp/empty"],
        holds: |carrier, rules| joins(carrier, rules) && shows_ids(carrier, rules),
        came: "#1 #0 #2",
        why: DATAGRAMS,
    },
    Listed {
        rows: &["udp/csum", "udp/empty"],
        holds: |carrier, rules| joins(carrier, rules) && !shows_ids(carrier, rules),
        came: "#1 0+2",
        why: DATAGRAMS,
    },
    Listed {
        rows: &["order/udp_empty_between"],
        holds: |carrier, rules| joins(carrier, rules) && shows_ids(carrier, rules),
        came: "#2 0+1 3+4",
        why: DATAGRAMS,
    },
    Listed {
        rows: &["order/udp_empty_between"],
        holds: |carrier, rules| joins(carrier, rules) && !shows_ids(carrier, rules),
        came: "#2 0+1+3+4",
        why: DATAGRAMS,
    },
    Listed { rows: &["pad/one_byte_of_v4"], holds: |_, _| true, came: "1 1 1", why: PADDING },
    Listed { rows: &["pad/last"], holds: |_, _| true, came: "2 1", why: PADDING },
    Listed {
        rows: &["pad/long"],
        holds: |carrier, rules| joins(carrier, rules) && !has_outer_checksum(carrier),
        came: "1 1 1",
        why: PADDING,
    },
    Listed {
        rows: &["pad/long"],
        holds: |carrier, rules| joins(carrier, rules) && has_outer_checksum(carrier),
        came: "#1 #0 #2",
        why: PADDED_OUTER,
    },
    Listed {
        rows: &["pad/ack"],
        holds: |carrier, rules| joins(carrier, rules) && has_outer_checksum(carrier),
        came: "#1 #0",
        why: PADDED_OUTER,
    },
    Listed { rows: &["pad/ack"], holds: |carrier, _| is_keyed(carrier), came: "#1 #0", why: KEY },
    Listed {
        rows: &["tcp/data_lrg_sml", "tcp/data_lrg_1byte", "udp/data_lrg_sml"],
        holds: |carrier, _| is_keyed(carrier),
        came: "1 1",
        why: KEY,
    },
    Listed { rows: &["tcp/data_odd"], holds: |carrier, _| is_keyed(carrier), came: "3 1", why: KEY },
    Listed { rows: &["udp/data_odd"], holds: |carrier, _| is_keyed(carrier), came: "2 1", why: KEY },
    Listed {
        rows: &["tcp/short_closes", "udp/short_closes"],
        holds: |carrier, _| is_keyed(carrier),
        came: "1 3",
        why: KEY,
    },
    Listed { rows: &["tcp/ack"], holds: |carrier, _| is_keyed(carrier), came: "#1 #0 #2", why: KEY },
    Listed { rows: &["ack/after_data"], holds: |carrier, _| is_keyed(carrier), came: "#2 1 1 0+1", why: KEY },
    Listed { rows: &["order/ack_between"], holds: |carrier, _| is_keyed(carrier), came: "#2 0+1 3+4", why: KEY },
    Listed { rows: &["large/max"], holds: |carrier, _| is_keyed(carrier), came: "8 1", why: KEY },
    Listed { rows: &["large/max"], holds: |carrier, _| carrier.starts_with("vlan/"), came: "8 1", why: TAGS },
    // Of the one that is missing, eight times the rest of a division by eight leaves room enough for a tag.
    Listed { rows: &["large/full_twice"], holds: |carrier, _| is_tagged_full(carrier), came: "7 7 2", why: TAGS },
    Listed { rows: &["large/rem"], holds: |carrier, _| is_tagged_full(carrier), came: "7 2", why: TAGS },
    Listed { rows: &["tcp/data_1byte_remote"], holds: joins, came: "5", why: TINY },
];

/// A header field that a kernel does not restore when it segments a train that it has joined. segue restores the fields
/// that the train determines: all but a meaningless urgent pointer and, before 6.18, outer identifications.
struct Lost {
    /// Function that returns whether the kernel loses the fields in a case, given its trains.
    holds: fn(&Case, Rules, &[Train]) -> bool,
    /// The fields that differ from those that the train's metadata describe.
    fields: &'static [&'static str],
    /// Reason for the difference.
    why: &'static str,
}

const LOST: &[Lost] = &[
    Lost {
        holds: |case, _, trains| is_remote(case) && has_trains(trains) && !is_gre_in_udp(case),
        fields: &["checksum", "outer UDP checksum"],
        why: "Linux forgets that a train had a remote checksum: it completes the inner one and leaves the option, with which a receiver spoils it",
    },
    Lost {
        holds: |case, _, trains| {
            case.carrier.name.ends_with("/gre-csum/4")
                && !is_gre_in_udp(case)
                && trains.iter().any(|train| ends_short(case, train))
        },
        fields: &["GRE checksum"],
        why: "Linux writes a wrong GRE checksum around IPv4 on the last segment where that is shorter than the others",
    },
    Lost {
        holds: |case, rules, trains| {
            rules == Rules::V6_18 && is_encapsulated(case) && trains.iter().any(|train| fixes_other(case, train))
        },
        fields: &["inner identification"],
        why: "Linux 6.18 takes the outer header's way of counting identifications for the inner one",
    },
    Lost {
        holds: |case, rules, trains| {
            rules == Rules::V6_18 && is_inner_v6(case) && trains.iter().any(|train| is_fixed(case, train, Level::Outer))
        },
        fields: &["outer identification"],
        why: "Linux 6.18 keeps no fixed identification outside where there is none inside",
    },
    Lost {
        holds: |case, rules, trains| {
            rules == Rules::V6_12
                && !is_gre_in_udp(case)
                && trains.iter().any(|train| is_fixed(case, train, Level::Outer))
        },
        fields: &["outer identification"],
        why: "Linux before 6.18 knows one fixed identification, the innermost",
    },
    Lost {
        holds: |case, rules, trains| {
            rules == Rules::V6_12
                && has_outer_checksum(&case.carrier.name)
                && has_trains(trains)
                && !is_gre_in_udp(case)
        },
        fields: &["outer UDP checksum"],
        why: "Linux 6.1 writes wrong outer UDP checksums around what GRO joined, where the device has no checksum offload",
    },
    Lost {
        holds: |case, rules, trains| rules == Rules::V6_12 && has_trains(trains) && is_gre_in_udp(case),
        fields: &["frames missing"],
        why: "Linux 6.1 cannot cut GRE inside FOU or GUE that GRO joined, and drops it",
    },
];

/// The position of an IP header in an encapsulated packet: inner or outer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Inner,
    Outer,
}

fn has_trains(trains: &[Train]) -> bool {
    trains.iter().any(|train| train.frames.len() > 1)
}

fn is_remote(case: &Case) -> bool {
    case.carrier.name.contains("-rco/")
}

fn is_gre_in_udp(case: &Case) -> bool {
    ["fou/gre", "gue/gre", "gue-rco/gre"].iter().any(|gre| case.carrier.name.contains(gre))
}

/// Returns whether the carrier has a tunnel header between two IP headers.
fn is_encapsulated(case: &Case) -> bool {
    !matches!(case.carrier.feature, Feature::Plain | Feature::Ipip) && case.carrier.name.contains('/')
}

fn is_inner_v6(case: &Case) -> bool {
    case.carrier.name.ends_with('6')
}

fn ends_short(case: &Case, train: &Train) -> bool {
    let len = |frame: usize| case.frames[frame].data_len;
    train.frames.len() > 1 && len(train.frames[train.frames.len() - 1]) < len(train.frames[0])
}

/// Returns whether the identification is the same in the packets of a train.
fn is_fixed(case: &Case, train: &Train, level: Level) -> bool {
    let id = |at: usize| {
        let frame = &case.frames[train.frames[at]];
        if level == Level::Inner { frame.inner_id() } else { frame.outer_id() }
    };
    train.frames.len() > 1 && id(0).is_some() && id(0) == id(1)
}

/// Returns whether the inner identification progresses differently from the outer one; without an outer header, whether
/// the inner one is fixed.
fn fixes_other(case: &Case, train: &Train) -> bool {
    !is_inner_v6(case) && is_fixed(case, train, Level::Inner) != is_fixed(case, train, Level::Outer)
}

/// Rows that cannot be replayed to a kernel over a veth pair: a poll receives 64 frames, and the pair's flows have no
/// receive hash, so that all are in one bucket of 8. The engine is compared only with the table's own merge.
const NOT_IN_KERNELS: [&str; 2] = ["capacity/16_flows", "capacity/udp_64"];

/// Returns whether a kernel joins any frames of the case.
fn joins(carrier: &str, _: Rules) -> bool {
    !["gre-seq", "fou/gre-csum", "gue/gre-csum"].iter().any(|none| carrier.contains(none))
}

/// Returns whether the carrier has an IPv4 header whose identification GRO compares: Linux before 6.18 does not compare
/// that of an outer header.
fn shows_ids(carrier: &str, rules: Rules) -> bool {
    let mut parts = carrier.split('/');
    let inner = parts.next_back();
    inner == Some("4") || (rules != Rules::V6_12 && parts.any(|part| part == "4"))
}

fn has_outer_checksum(carrier: &str) -> bool {
    ["vxlan/", "vxlan-rco/", "geneve/", "fou/", "gue/", "gue1/", "gue-rco/"].iter().any(|udp| carrier.contains(udp))
}

/// Returns whether the carrier has a GRE key after a GRE checksum, and IPv4 inside.
fn is_keyed(carrier: &str) -> bool {
    carrier.ends_with("/gre-key-csum/4")
}

fn is_tagged_full(carrier: &str) -> bool {
    carrier.starts_with("vlan/") && carrier != "vlan/4"
}

#[test]
fn this_kernel_makes_the_trains_of_the_table() {
    if let Some(why) = missing(&["ip", "ethtool"]) {
        return skip(test_name!(), &why);
    }
    let host = Host::new("judge").expect("a host, since the test may make them");
    let output = host.command(env!("CARGO_BIN_EXE_gro-judge")).output().expect("the judge runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // These are in every kernel that has IP.
    judge(&said, &[Feature::Plain, Feature::Ipip, Feature::Gre]);
}

#[test]
fn full_size_kernel_of_the_guest_makes_the_trains_of_the_table() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    if let Some(why) = missing(&["bash", "cpio", "qemu-system-x86_64", "ldd"]) {
        return skip(test_name!(), &why);
    }
    let judge_path = env!("CARGO_BIN_EXE_gro-judge");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance.sh");
    let mut command = Command::new("bash");
    command.arg(run).arg("--cache").arg(cache).args(["--timeout", "420", "--mem", "768", "--script"]).arg(script);
    command.args(["--add", judge_path, "--add", env!("CARGO_BIN_EXE_gso-judge")]);
    for library in libraries(judge_path) {
        command.args(["--add", &library]);
    }
    let mut guest = Process::spawn(command, b"").expect("vm-run starts");
    let status = guest.wait(Duration::from_secs(430)).expect("the guest ends");
    let said = guest.stdout().replace('\r', "");
    assert!(status.success(), "{status}: {said}\n{}", guest.stderr());
    judge(&said, &Feature::ALL);
    let of_gso: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("gso ")).collect();
    let lacks = segmentation::judge(&of_gso.join("\n"));
    // It is older than programs on the way out (tcx, Linux 6.6), and has all devices.
    assert!(lacks.iter().all(|why| why.starts_with("wrapped|")), "{lacks:?}");
}

#[test]
fn conformance_cases_not_run_on_kernels_are_listed() {
    let rows: Vec<&str> = conformance::rows().iter().filter(|row| !row.in_kernels).map(|row| row.name).collect();
    assert_eq!(rows, NOT_IN_KERNELS);
}

/// Returns the reason why the part with a kernel cannot run here, or `None`.
fn missing(tools: &[&str]) -> Option<String> {
    let tools: Vec<&str> = tools.iter().filter(|tool| which(tool).is_none()).copied().collect();
    if tools.is_empty() { unavailable() } else { Some(format!("not installed: {}", tools.join(", "))) }
}

/// Returns the shared libraries of a program, including the loader: the guest may have other versions.
fn libraries(program: &str) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(String::from).collect()
}

/// Compares the judge's output with the listed differences.
fn judge(said: &str, needed: &[Feature]) {
    let mut lacks = BTreeSet::new();
    let mut differs: BTreeMap<(String, String), [String; 3]> = BTreeMap::new();
    let mut restores: BTreeMap<(String, String), String> = BTreeMap::new();
    let (mut rules, mut ran, mut cut, mut refused, mut faults) = (None, 0, 0, 0, Vec::new());
    for line in said.lines() {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        match word {
            "rules" => rules = Rules::ALL.into_iter().find(|rules| format!("{rules:?}") == rest),
            "lacks" => {
                let feature = Feature::ALL.into_iter().find(|feature| rest.starts_with(feature.name()));
                lacks.insert(feature.expect("a feature"));
            }
            // Before 6.2 a virtio-net header has no word for UDP trains.
            "refuses" if rules == Some(Rules::V6_12) && rest.contains("/udp ") => refused += 1,
            "refuses" | "cuts" => faults.push(line.into()),
            "cut" => cut = rest.parse().expect("a number"),
            "ran" => ran = rest.parse().expect("a number"),
            "split" => faults.push(format!("never one poll: {rest}")),
            "restores" => {
                let parts: Vec<String> = rest.split('|').map(String::from).collect();
                let [row, carrier, fields] = parts.try_into().expect("three parts");
                restores.insert((row, carrier), fields);
            }
            "differs" => {
                let parts: Vec<String> = rest.split('|').map(String::from).collect();
                let [row, carrier, expected, came, bytes] = parts.try_into().expect("five parts");
                differs.insert((row, carrier), [expected, came, bytes]);
            }
            _ => {}
        }
    }
    let rules = rules.expect("the kernel's rules");
    for feature in needed {
        assert!(!lacks.contains(feature), "this kernel does not join {}: {said}", feature.name());
    }
    let was_run = |case: &&Case| {
        let needs = [Some(case.carrier.feature), case.row.needs];
        case.row.in_kernels && !needs.iter().flatten().any(|feature| lacks.contains(feature))
    };
    let cases = conformance::cases();
    let cases: Vec<&Case> = cases.iter().filter(was_run).collect();
    assert_eq!(ran, cases.len(), "cases that ran");
    assert_eq!(cut + refused, conformance::vectors().len(), "vectors cut and refused: {faults:?}");

    let (mut used, mut used_lost) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let (row, carrier) = (case.row.name, &case.carrier.name);
        let listed = DIFFERENCES.iter().position(|d| d.rows.contains(&row) && (d.holds)(carrier, rules));
        let found = differs.remove(&(row.to_string(), carrier.clone()));
        used.extend(listed);
        let came = found.as_ref().map(|[_, came, _]| Train::parse(came));
        let trains = came.unwrap_or_else(|| case.trains(rules));
        let lost: Vec<usize> = (0..LOST.len()).filter(|&at| (LOST[at].holds)(case, rules, &trains)).collect();
        let fields: BTreeSet<&str> = lost.iter().flat_map(|&at| LOST[at].fields).copied().collect();
        let fields = fields.into_iter().collect::<Vec<_>>().join(", ");
        let differing = restores.remove(&(row.to_string(), carrier.clone())).unwrap_or_default();
        if differing != fields {
            let why: Vec<&str> = lost.iter().map(|&at| LOST[at].why).collect();
            faults.push(format!("{row} {carrier}: cut again it lost `{differing}`, listed is `{fields}` {why:?}"));
        }
        used_lost.extend(lost);
        match (listed.map(|at| &DIFFERENCES[at]), found) {
            (None, None) => {}
            (Some(listed), Some([_, came, bytes])) if came == listed.came && bytes.is_empty() => {}
            (Some(listed), Some(found)) => {
                faults.push(format!("{row} {carrier}: {found:?}, listed as {} ({})", listed.came, listed.why));
            }
            (Some(listed), None) => {
                faults.push(format!("{row} {carrier}: as the table says, but listed as {}", listed.came));
            }
            (None, Some(found)) => faults.push(format!("{row} {carrier}: not listed: {found:?}")),
        }
    }
    assert!(faults.is_empty(), "{rules:?}: {} faults:\n{}", faults.len(), faults.join("\n"));
    println!("{rules:?}: {ran} cases, {} kinds of differences, {} of losses", used.len(), used_lost.len());
    println!("{rules:?}: {cut} vectors cut as the table says, {refused} refused");
}
