use super::*;
use crate::layout::tunnel;

const ROUTES: [Route; 2] = [Route { link: 1, mtu: 1500 }, Route { link: 1, mtu: 1400 }];

/// Returns a table of prefixes within 10.0.0.0 to 10.0.0.7: one for each set bit of `which`, with a remote that
/// `salt` changes.
fn table(which: u16, salt: u8) -> Vec<Peer> {
    let mut all = Vec::new();
    for len in 29..=32_u8 {
        all.extend((0..1 << (len - 29)).map(|at: u8| (IpAddr::from([10, 0, 0, at << (32 - len)]), len)));
    }
    let chosen = all.into_iter().enumerate().filter(|(bit, _)| which >> bit & 1 == 1);
    let remote = |bit: usize| IpAddr::from([198, 18, salt, bit as u8]);
    let config = |bit| Config::new(segue::encap::Mode::Ip, Carrier::Fou, [198, 18, 0, 1].into(), remote(bit));
    chosen.map(|(bit, prefix)| Peer { prefix, listener: 0, config: config(bit), mac: [0; 6] }).collect()
}

fn find(table: &BTreeMap<(IpAddr, u8), Peer>, last: u8) -> Option<Peer> {
    let of = |len: u8| table.get(&([10, 0, 0, last >> (32 - len) << (32 - len)].into(), len)).copied();
    (29..=32).rev().find_map(of)
}

#[test]
fn at_each_step_an_address_has_its_peer_of_before_or_its_new_one() {
    let mut random = 1_u64;
    for _ in 0..3000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (old, new) = ((random >> 33) as u16, (random >> 49) as u16);
        let of = |peers: Vec<Peer>| peers.into_iter().map(|peer| (peer.prefix, peer)).collect::<BTreeMap<_, _>>();
        // Some entries stay as they are, and some have another remote.
        let wanted: Vec<Peer> = [table(new & 0x5555, 0), table(new & 0xaaaa, 1)].concat();
        let (before, after) = (of(table(old, 0)), of(wanted.clone()));
        let mut now = before.clone();
        for step in steps(before.keys().copied(), |prefix| before.get(&prefix).copied(), &wanted) {
            match step {
                Step::Put(peer) => now.insert(peer.prefix, peer),
                Step::Remove(prefix) => now.remove(&prefix),
            };
            for last in 0..8 {
                let found = find(&now, last);
                assert!(
                    found == find(&before, last) || found == find(&after, last),
                    "{last}: {found:?}, from {old:x} to {new:x}"
                );
            }
        }
        assert_eq!(now, after);
    }
}

/// Loads the path of a table with room for `most` peers, or records why this machine cannot load it.
fn loaded(most: u32) -> Option<PeerPath> {
    let config = Config::new(segue::encap::Mode::Ip, Carrier::Fou, [198, 18, 0, 1].into(), [198, 18, 0, 1].into());
    match PeerPath::load(&[Listener { config, sources: vec![50_000] }], [2, 0, 0, 0, 0, 9], most) {
        Err(Error::Refused(step, error)) if error.raw_os_error() == Some(libc::EPERM) => {
            segue_lab::skip_this_test(&format!("{step}: {error}"));
            None
        }
        loaded => Some(loaded.unwrap()),
    }
}

/// Returns peers with these last octets of the prefix, all with one remote.
fn hosts(last: std::ops::Range<u8>) -> Vec<Peer> {
    let peer = table(1, 0)[0];
    last.map(|last| Peer { prefix: (IpAddr::from([10, 0, 1, last]), 32), ..peer }).collect()
}

/// Returns the map entries of these peers.
fn entries(path: &PeerPath, peers: &[Peer]) -> Vec<Option<Vec<u8>>> {
    peers.iter().map(|peer| path.v4.place(peer.prefix)).map(|(map, key)| map.get(&key).unwrap()).collect()
}

/// Replaces the map of hosts by one that takes no entry; returns the former one.
fn refuse_hosts(path: &mut PeerPath) -> Map {
    let refuses = Map::growing(MapKind::Hash, 4, tunnel::LEN + 8, 1, "segue_refuses").unwrap();
    std::mem::replace(&mut path.v4.hosts, refuses)
}

#[test]
fn a_table_that_shares_nothing_with_the_full_one_before_is_taken() {
    let Some(mut path) = loaded(4) else { return };
    path.switch(true).unwrap();
    for last in [0..4, 4..8, 2..6] {
        let peers = hosts(last);
        path.replace(&peers).unwrap();
        assert!(path.is_on && entries(&path, &peers).iter().all(Option::is_some));
        assert_eq!(path.members.values().map(|member| member.peer).collect::<Vec<_>>(), peers);
    }
    // What has no room at all leaves the path off, and what comes next is taken.
    assert_eq!(path.replace(&hosts(0..5)).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert!(!path.is_on);
    path.replace(&hosts(4..8)).unwrap();
    assert_eq!(path.members.len(), 4);
}

#[test]
fn a_route_that_the_kernel_has_not_taken_is_written_at_the_next_look() {
    let Some(mut path) = loaded(4) else { return };
    let peers = hosts(0..3);
    let remote = peers[0].config.remote;
    path.replace(&peers).unwrap();
    for [before, after] in [[Route::default(), ROUTES[0]], ROUTES] {
        let kept = refuse_hosts(&mut path);
        assert!(path.reroute(remote, after).is_err());
        path.v4.hosts = kept;
        let written = |path: &PeerPath, route| {
            peers.iter().map(|peer| Some(path.value(peer, path.members[&peer.prefix].slot, route))).collect::<Vec<_>>()
        };
        assert_eq!(entries(&path, &peers), written(&path, before));
        assert_eq!(path.remotes(9, 0), [remote], "it is due");
        assert!(path.reroute(remote, after).unwrap());
        assert_eq!(entries(&path, &peers), written(&path, after));
        assert!(!path.has_due() && !path.reroute(remote, after).unwrap());
    }
    // One that has come back meanwhile is written too: some entries may have the other one.
    let kept = refuse_hosts(&mut path);
    assert!(path.reroute(remote, ROUTES[0]).is_err());
    path.v4.hosts = kept;
    assert!(path.reroute(remote, ROUTES[1]).unwrap());
}

#[test]
fn all_routes_are_looked_up_again_once_after_a_change() {
    let Some(mut path) = loaded(8) else { return };
    let remote = |bit: u8| IpAddr::from([198, 18, 0, bit]);
    path.replace(&table(0b111, 0)).unwrap();
    (0..3).for_each(|bit| assert!(path.reroute(remote(bit), ROUTES[0]).unwrap()));
    assert_eq!((path.has_due(), path.remotes(9, 1)), (false, vec![remote(0)]));
    path.look_again();
    // That of the longest prefixes came first.
    assert_eq!(path.remotes(9, 9), [1, 2, 0].map(remote));
    assert!(!path.reroute(remote(1), ROUTES[0]).unwrap() && path.reroute(remote(0), ROUTES[1]).unwrap());
    assert_eq!(path.remotes(9, 0), [remote(2)]);
    assert!(!path.reroute(remote(2), ROUTES[0]).unwrap() && !path.has_due());
}

#[test]
fn programs_that_read_the_entry_of_a_peer_have_ended_before_the_next_is_written() {
    let Some(mut path) = loaded(16) else { return };
    let remote = hosts(0..1)[0].config.remote;
    path.switch(true).unwrap();
    let is = |path: &PeerPath, waits: u64| assert_eq!((path.readers.waits(), path.is_on()), (waits, true));
    path.replace(&hosts(0..8)).unwrap();
    is(&path, 0);
    // All eight entries of the remote at once, with the path off.
    path.follow(&[(remote, ROUTES[0])]).unwrap();
    is(&path, 1);
    path.follow(&[(remote, ROUTES[0])]).unwrap();
    is(&path, 1);
    path.replace(&hosts(0..6)).unwrap();
    is(&path, 3);
    path.replace(&hosts(0..12)).unwrap();
    is(&path, 3);
    path.replace(&hosts(0..3)).unwrap();
    is(&path, 4);
    path.follow(&[(remote, ROUTES[1])]).unwrap();
    is(&path, 7);
    path.switch(false).unwrap();
    path.follow(&[(remote, ROUTES[0])]).unwrap();
    assert_eq!(path.readers.waits(), 7, "none reads");
}
