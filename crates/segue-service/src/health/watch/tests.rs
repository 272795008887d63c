use segue_datapath::board::Board;

use super::super::evidence::FORGIVEN;
use super::*;

const REMOTES: [&str; 2] = ["198.18.0.2", "198.18.0.3"];

/// Returns a watch of three tunnels without traffic, two of them to the first remote and one to the second.
fn watch() -> Watch {
    let monitored = [("sg0", 0), ("sg1", 0), ("sg2", 1)].map(|(name, remote): (&str, usize)| Monitored {
        name: name.to_owned(),
        index: 0,
        kind: "ipip in GUE".to_owned(),
        local: "198.18.0.1".parse().unwrap(),
        remotes: vec![REMOTES[remote].parse().unwrap()],
        remote_name: REMOTES[remote].to_owned(),
        zone: None,
        ports: Some((6080, 6080)),
        mtu: 1464,
        overhead: 36,
        underlay: "e0".to_owned(),
        link: None,
        path_mtu: 1500,
        sends_trains: false,
        joins: false,
        takes_trains: false,
    });
    let mut evidence = Evidence { flows: vec![Flow::default(); monitored.len()], ..Evidence::default() };
    evidence.view.paths = REMOTES.map(|remote| (remote.parse().unwrap(), (None, true))).into();
    let sources = Sources {
        monitored: monitored.to_vec(),
        underlay: Underlay::open().unwrap(),
        changes: Changes::open().unwrap(),
        senders: Vec::new(),
        probes: Probes { probers: Vec::new(), nonces: Nonces::new(hash::Key([0, 0])), socket: None },
        evidence,
    };
    Watch {
        sources,
        boards: Boards::new(Arc::new(Board::new(|_| ())), 1),
        fastpath: None,
        places: vec![Places::default(); monitored.len()],
        published: Arc::default(),
        began: BTreeMap::new(),
        log: None,
        is_refreshed: true,
        sent: 0,
        is_loaded: false,
        is_known_well: vec![false; monitored.len()],
        vitals: Vitals::new(1).unwrap(),
    }
}

/// Judges the tunnels; returns which ones the next judgement leaves out, and the codes of the problems.
fn judged(watch: &mut Watch) -> (Vec<bool>, Vec<String>) {
    watch.tick();
    let published = watch.published.lock().unwrap();
    (watch.is_known_well.clone(), published.complaints.iter().map(|complaint| complaint.code.clone()).collect())
}

#[test]
fn a_tunnel_is_judged_while_an_icmp_error_about_its_remote_counts_and_left_out_again_afterwards() {
    let mut watch = watch();
    let well = (vec![true; 3], Vec::<String>::new());
    assert_eq!(judged(&mut watch), well);
    let [remote, other] = REMOTES.map(|remote| remote.parse().unwrap());
    let at = Instant::now();
    watch.sources.evidence.note_refusal(remote, Refused { kind: Refusal::Port, from: Some(remote), at });
    let refused = (vec![false, false, true], vec!["refused".to_owned()]);
    for _ in 0..3 {
        assert_eq!(judged(&mut watch), refused, "nothing was sent since");
    }
    // Packets of one tunnel have left for a while without another error.
    watch.sources.evidence.flows[0].last_sent = Some(at + FORGIVEN);
    assert_eq!(judged(&mut watch), (vec![true, false, true], refused.1.clone()), "it counts for the other one");
    assert_eq!(judged(&mut watch).1, refused.1);
    watch.sources.evidence.flows[1].last_sent = Some(at + FORGIVEN);
    assert_eq!(judged(&mut watch), well);
    assert!(watch.sources.evidence.refused.is_empty());
    // A change without a notice is not looked for.
    watch.sources.evidence.view.paths.insert(remote, (None, false));
    assert_eq!(judged(&mut watch), well);
    watch.sources.evidence.note_refusal(other, Refused { kind: Refusal::Port, from: None, at: Instant::now() });
    assert_eq!(judged(&mut watch), (vec![true, true, false], refused.1), "the others are still left out");
}

#[test]
fn icmp_errors_are_kept_for_the_remotes_of_the_tunnels_alone() {
    let mut watch = watch();
    for last in 0..=u8::MAX {
        let at = Instant::now();
        let refused = Refused { kind: Refusal::Unreachable, from: None, at };
        watch.sources.evidence.note_refusal([198, 18, 0, last].into(), refused);
    }
    let mut kept: Vec<String> = watch.sources.evidence.refused.keys().map(ToString::to_string).collect();
    kept.sort();
    assert_eq!(kept, REMOTES);
}
