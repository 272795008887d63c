use segue_datapath::board::{Board, Sink};

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
        outside: Outside::default(),
        published: Arc::default(),
        began: BTreeMap::new(),
        log: None,
        is_refreshed: true,
        unread: None,
        sent: 0,
        is_loaded: false,
        is_idle: false,
        is_known_well: vec![false; monitored.len()],
        vitals: Vitals::new(1).unwrap(),
    }
}

/// Publishes the numbers of packets that each tunnel has received and refused.
fn publish(boards: &Boards, counts: &[(&str, [u64; 2])]) {
    boards.each()[0].publish(|sink| collect(counts, sink));
}

fn collect(counts: &[(&str, [u64; 2])], sink: &mut Sink<'_>) {
    for (name, [received, refused]) in counts {
        sink.put(name, Group::Port, RECEIVED, *received);
        sink.put(name, Group::Port, REFUSED, *refused);
        sink.put(name, Group::Port, REFUSED_FOR, 1);
    }
}

/// Returns the counters of tunnels that have received and refused these numbers of packets.
fn boards(counts: &[(&str, [u64; 2])]) -> Boards {
    let boards = Boards::new(Arc::new(Board::new(|sink| collect(counts, sink))), 1);
    publish(&boards, counts);
    boards
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
    let sends = |flow: &mut Flow| {
        flow.update(flow.counts, at + FORGIVEN);
        flow.update(Counts { sent: flow.counts.sent + 1, ..flow.counts }, at + FORGIVEN + TICK[0]);
    };
    sends(&mut watch.sources.evidence.flows[0]);
    assert_eq!(judged(&mut watch), (vec![true, false, true], refused.1.clone()), "it counts for the other one");
    assert_eq!(judged(&mut watch).1, refused.1);
    sends(&mut watch.sources.evidence.flows[1]);
    assert_eq!(judged(&mut watch), well);
    assert!(watch.sources.evidence.refused.is_empty());
    // A change without a notice is not looked for.
    watch.sources.evidence.view.paths.insert(remote, (None, false));
    assert_eq!(judged(&mut watch), well);
    watch.sources.evidence.note_refusal(other, Refused { kind: Refusal::Port, from: None, at: Instant::now() });
    assert_eq!(judged(&mut watch), (vec![true, true, false], refused.1), "the others are still left out");
}

#[test]
fn a_watch_is_idle_after_a_look_that_found_every_tunnel_idle_and_well() {
    let mut watch = watch();
    let is_idle = |watch: &mut Watch| (watch.tick(), watch.is_idle).1;
    assert_eq!([0; 3].map(|_| is_idle(&mut watch)), [false, true, true], "all were judged at first");
    watch.boards = boards(&[("sg0", [0, 0]), ("sg1", [0, 0]), ("sg2", [0, 0])]);
    watch.places = places(&watch.sources.monitored, &watch.boards).0;
    assert_eq!([0; 2].map(|_| is_idle(&mut watch)), [false, true], "the counters are new");
    publish(&watch.boards, &[("sg0", [0, 0]), ("sg1", [7, 0]), ("sg2", [0, 0])]);
    assert_eq!([0; 2].map(|_| is_idle(&mut watch)), [false, true], "one has received packets");
}

#[test]
fn two_problems_of_one_code_in_one_tunnel_each_last_until_they_end() {
    let mut watch = watch();
    let remotes = REMOTES.map(|remote| remote.parse().unwrap());
    watch.sources.monitored[2].remotes = remotes.to_vec();
    for remote in remotes {
        let refused = Refused { kind: Refusal::Port, from: Some(remote), at: Instant::now() };
        watch.sources.evidence.note_refusal(remote, refused);
    }
    let of_third = |watch: &Watch| watch.began.keys().filter(|[_, tunnel, _]| tunnel == "sg2").count();
    watch.tick();
    assert_eq!((watch.began.len(), of_third(&watch)), (2, 1), "the first one is that of the other tunnels too");
    watch.sources.monitored[..2].iter_mut().for_each(|monitored| monitored.remotes.clear());
    watch.tick();
    assert_eq!(of_third(&watch), 2);
    watch.began.values_mut().for_each(|began| *began = "then".to_owned());
    watch.tick();
    let since: Vec<_> = watch.published.lock().unwrap().complaints.iter().map(|of| of.since.clone()).collect();
    assert_eq!(since, vec![Some("then".to_owned()); 2]);
    let of = |what: &str, notice| Complaint { what: what.to_owned(), notice, ..Complaint::default() };
    assert_eq!(subject(&of("unanswered 11 s", true)), "");
    let dropped = of("everything from fd00::2 is dropped: vni", false);
    assert_eq!(subject(&dropped), "everything from fd00::2 is dropped");
}

#[test]
fn an_underlay_that_cannot_be_read_for_a_while_is_a_problem_until_it_is_and_its_reads_take_a_small_share_of_the_time() {
    let mut watch = watch();
    let failed = || Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    let (now, took) = (Instant::now() + UNREAD.0, Duration::from_millis(300));
    let at = |ago: Duration| [now - ago, now - ago + took];
    let codes = |watch: &Watch| watch.unread(now).map(|complaint| complaint.code);
    assert_eq!(watch.note_read(&failed(), at(UNREAD.0)), SHARE * took);
    assert_eq!(codes(&watch), None, "one failure, however long ago");
    assert_eq!(watch.note_read(&failed(), at(UNREAD.0 / 2)), SHARE * took);
    assert_eq!(codes(&watch).as_deref(), Some("unwatched"));
    let well = (vec![true; 3], Vec::<String>::new());
    assert_eq!(judged(&mut watch), well, "it is not that late");
    watch.unread.as_mut().unwrap().since -= UNREAD.0;
    assert_eq!(judged(&mut watch), (vec![true; 3], vec!["unwatched".to_owned()]));
    assert!(watch.published.lock().unwrap().complaints[0].tunnels.is_empty(), "it is that of all tunnels");
    assert_eq!(watch.note_read(&Ok(()), at(Duration::ZERO)), SHARE * took);
    assert_eq!(judged(&mut watch), well);
    for _ in 0..9 {
        watch.note_read(&failed(), at(UNREAD.0 - Duration::from_secs(1)));
    }
    assert_eq!(codes(&watch), None, "many failures of a moment");
}

#[test]
fn not_everything_of_a_remote_is_dropped_while_another_tunnel_to_it_receives() {
    let mut watch = watch();
    watch.boards = boards(&[("sg0", [0, 2]), ("sg1", [0, 0]), ("sg2", [0, 2])]);
    watch.places = places(&watch.sources.monitored, &watch.boards).0;
    let dropped = (vec![false, true, false], vec!["all_dropped".to_owned(); 2]);
    assert_eq!(judged(&mut watch), dropped);
    publish(&watch.boards, &[("sg0", [0, 3]), ("sg1", [1, 0]), ("sg2", [0, 3])]);
    assert_eq!(judged(&mut watch), (vec![true, true, false], vec!["all_dropped".to_owned()]));
}

/// Tests that forged errors about a socket that also receives take no room in its buffer.
#[test]
fn a_socket_that_also_receives_has_no_error_queue() {
    let [both, sends] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // A predecessor had switched it on.
    error_queue::switch(both.as_fd(), true, true).unwrap();
    both.send_to(b"x", closed).unwrap();
    let mut monitored = watch().sources.monitored;
    monitored.truncate(1);
    monitored[0].remotes.clear();
    monitored[0].ports = Some((both.local_addr().unwrap().port(), 6080));
    let senders = Vec::from([&both, &sends].map(|socket| OwnedFd::from(socket.try_clone().unwrap())));
    let sources = Sources::open(monitored, senders, Vec::new(), hash::Key([0, 0])).unwrap();
    assert_eq!(sources.senders.len(), 1);
    both.take_error().unwrap();
    for socket in [&both, &sends] {
        socket.send_to(b"x", closed).unwrap();
    }
    let begin = Instant::now();
    while error_queue::receive(sources.senders[0].as_fd()).unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the other one has a queue");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(error_queue::receive(both.as_fd()).unwrap(), None);
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
