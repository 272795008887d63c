//! Tests of the agent against a real etcd on a loopback port, with a tunnel of the test's own: its writes, its
//! reactions to changes of others, races, outages and compaction. The judge is etcdctl.

mod common;

use std::fs;
use std::net::TcpListener;

use common::{Agent, Relay, lease, until, with_etcd};
use segue_control::error::{Error, Kind};
use segue_fleet::event::Event;

/// The agents choose their subnets between those that the tests give away.
const CONFIG: &str = r#"{"Network":"198.19.0.0/16","SubnetLen":24,"SubnetMin":"198.19.100.0","SubnetMax":"198.19.199.0","Backend":{"Type":"vxlan","VNI":1}}"#;

#[test]
fn an_agent_leases_a_subnet_and_follows_the_others() {
    with_etcd("an_agent_leases_a_subnet_and_follows_the_others", |etcd| {
        etcd.put("config", CONFIG);
        etcd.put("subnets/198.19.9.0-24", &lease("198.18.0.9", "5a:65:bd:bd:44:09"));
        let one = Agent::start(&etcd.url(), 1);
        let two = Agent::start(&etcd.url(), 2);
        // The bytes are flannel's, and the key is its own.
        let subnet = one.subnet();
        let key = format!("subnets/{}", subnet.replace('/', "-"));
        let value = r#"{"PublicIP":"198.18.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#;
        assert_eq!(etcd.get(&key), value);
        assert_ne!(subnet, two.subnet());
        let nine = r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.9","encap":"vxlan","port":8472,"vni":1,"mac":"5a:65:bd:bd:44:09","remcsum":false}"#;
        until("each has the other and the third", || {
            let has = |agent: &Agent, other: &Agent| {
                let table = agent.table();
                table.len() == 2
                    && table.iter().any(|peer| peer == nine)
                    && table.iter().any(|peer| peer.contains(&other.subnet()))
            };
            has(&one, &two) && has(&two, &one)
        });
        // Changes come as they are made, and a malformed key costs nothing.
        etcd.put("subnets/198.19.9.0-24", &lease("198.18.0.10", "5a:65:bd:bd:44:10"));
        until("the change arrives", || one.table().iter().any(|peer| peer.contains("198.18.0.10")));
        etcd.put("subnets/not-a-subnet", "x");
        etcd.put("subnets-anything", "x");
        until("both are refused", || one.state().refused.len() == 2);
        assert_eq!(one.state().refused["key_malformed"] + one.state().refused["key_outside"], 2);
        assert_eq!(one.table().len(), 2);
        etcd.ctl(&["del", "/coreos.com/network/subnets/198.19.9.0-24"]);
        until("the deletion arrives", || one.table().len() == 1);
        // One that was killed comes back with its subnet; nothing else was ever written.
        drop(one);
        let again = Agent::start(&etcd.url(), 1);
        assert_eq!(again.subnet(), subnet);
        let known = etcd.ctl(&["get", "--prefix", "--keys-only", "/coreos.com/network/"]);
        assert_eq!(known.split_whitespace().count(), 5, "config, two leases, two malformed keys: {known}");
    });
}

#[test]
fn an_agent_whose_address_no_host_can_have_ends() {
    with_etcd("an_agent_whose_address_no_host_can_have_ends", |etcd| {
        etcd.put("config", r#"{"Network":"198.18.0.0/24","SubnetLen":28,"Backend":{"Type":"vxlan","VNI":1}}"#);
        let mut inside = Agent::begin(&etcd.url(), 1);
        let error = inside.outcome().unwrap_err();
        assert!(error.message.contains("198.18.0.1 is in the network 198.18.0.0/24"), "{error:?}");
        for address in ["127.0.0.1", "169.254.0.1", "224.0.0.1", "0.0.0.0"] {
            let mut agent = Agent::begin_at(&etcd.url(), 1, address);
            let error = agent.outcome().unwrap_err();
            assert!(error.message.contains("is loopback, link-local, multicast or reserved"), "{error:?}");
        }
        let written = etcd.ctl(&["get", "--prefix", "--keys-only", "/coreos.com/network/subnets"]);
        assert_eq!(written.trim(), "");
    });
}

#[test]
fn of_many_refused_keys_the_log_has_the_first_and_the_number_of_the_others() {
    with_etcd("of_many_refused_keys_the_log_has_the_first", |etcd| {
        etcd.put("config", CONFIG);
        for n in 0..30 {
            etcd.put(&format!("subnets/wrong-{n}"), "x");
        }
        let one = Agent::start(&etcd.url(), 1);
        until("all are counted", || one.state().refused.get("key_malformed") == Some(&30));
        let lines: Vec<String> = one.notes().into_iter().filter(|line| line.starts_with("refused ")).collect();
        assert_eq!(lines.len(), 21, "{lines:?}");
        assert_eq!(lines[20], "refused 10 more; segue stat -j counts them by reason");
        assert_eq!(one.state().refused_keys.len(), 20);
    });
}

#[test]
fn a_peer_that_the_tunnel_refuses_costs_no_other() {
    with_etcd("a_peer_that_the_tunnel_refuses_costs_no_other", |etcd| {
        etcd.put("config", CONFIG);
        etcd.put("subnets/198.19.7.0-24", &lease("198.18.0.99", "5a:65:bd:bd:44:07"));
        etcd.put("subnets/198.19.8.0-24", &lease("198.18.0.8", "5a:65:bd:bd:44:08"));
        let one = Agent::start(&etcd.url(), 1);
        let has = |prefixes: &[&str], refused: usize| {
            let (table, state) = (one.table(), one.state());
            let is_there = |prefix: &&str| table.iter().any(|peer| peer.contains(*prefix));
            let count = state.refused.get("tunnel").copied().unwrap_or(0);
            table.len() == prefixes.len()
                && prefixes.iter().all(is_there)
                && (state.peers, count) == (prefixes.len(), refused)
        };
        until("the other is there at the start", || has(&["198.19.8.0/24"], 1));
        assert!(one.state().refused_keys.contains(&("198.19.7.0/24".to_owned(), "tunnel".to_owned())));
        // Nor where it comes later, alone or with others.
        etcd.put("subnets/198.19.6.0-24", &lease("198.18.0.99", "5a:65:bd:bd:44:06"));
        etcd.put("subnets/198.19.9.0-24", &lease("198.18.0.9", "5a:65:bd:bd:44:09"));
        until("a new one comes beside one more", || has(&["198.19.8.0/24", "198.19.9.0/24"], 2));
        // A change that is good is taken, and the reason ends.
        for n in [6, 7] {
            etcd.put(
                &format!("subnets/198.19.{n}.0-24"),
                &lease(&format!("198.18.0.{n}"), &format!("5a:65:bd:bd:44:0{n}")),
            );
        }
        until("all are there", || has(&["198.19.6.0/24", "198.19.7.0/24", "198.19.8.0/24", "198.19.9.0/24"], 0));
        // One that is refused now goes, and the others stay.
        etcd.put("subnets/198.19.6.0-24", &lease("198.18.0.99", "5a:65:bd:bd:44:06"));
        until("it is gone", || has(&["198.19.7.0/24", "198.19.8.0/24", "198.19.9.0/24"], 1));
        assert_eq!(one.state().table_error, None);
    });
}

#[test]
fn a_lost_lease_is_made_again_and_one_that_was_given_away_ends_the_agent() {
    with_etcd("a_lost_lease_is_made_again", |etcd| {
        etcd.put("config", CONFIG);
        let mut one = Agent::start(&etcd.url(), 1);
        let key = format!("subnets/{}", one.subnet().replace('/', "-"));
        let value = etcd.get(&key);
        etcd.ctl(&["del", &format!("/coreos.com/network/{key}")]);
        until("it is there again", || etcd.get(&key) == value);
        etcd.put(&key, "no lease");
        until("it is a lease again", || etcd.get(&key) == value);
        let json = etcd.ctl(&["get", "-w", "json", &format!("/coreos.com/network/{key}")]);
        assert!(json.contains(r#""lease":"#), "it has no end: {json}");
        // An address that no host can have takes nothing.
        for address in ["127.0.0.1", "224.0.0.1", "0.0.0.0", "198.19.77.1"] {
            etcd.put(&key, &lease(address, "5a:65:bd:bd:44:07"));
            until("it is this host's again", || etcd.get(&key) == value);
        }
        let json = etcd.ctl(&["get", "-w", "json", &format!("/coreos.com/network/{key}")]);
        assert!(json.contains(r#""lease":"#), "it has no end: {json}");
        etcd.put(&key, &lease("198.18.0.7", "5a:65:bd:bd:44:07"));
        let error = one.outcome().unwrap_err();
        assert!(error.message.contains("belongs to another host now"), "{error:?}");
    });
}

#[test]
fn agents_that_start_together_never_share_a_subnet_and_the_last_are_told() {
    with_etcd("agents_that_start_together", |etcd| {
        // Four subnets, of which the first is not given away.
        etcd.put("config", r#"{"Network":"198.19.0.0/22","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#);
        let mut agents: Vec<Agent> = (1..=5).map(|n| Agent::begin(&etcd.url(), n)).collect();
        until("three have a subnet and two are told", || {
            let (with, done) = agents.iter_mut().fold((0, 0), |(with, done), agent| {
                (with + usize::from(!agent.state().subnet.is_empty()), done + usize::from(agent.has_ended()))
            });
            (with, done) == (3, 2)
        });
        let mut subnets: Vec<String> =
            agents.iter().map(|agent| agent.state().subnet).filter(|subnet| !subnet.is_empty()).collect();
        subnets.sort();
        assert_eq!(subnets, ["198.19.1.0/24", "198.19.2.0/24", "198.19.3.0/24"]);
        for agent in agents.iter_mut().filter(|agent| agent.state().subnet.is_empty()) {
            let error = agent.outcome().unwrap_err();
            assert_eq!(error.message, "no subnet is free in 198.19.0.0/22: 198.19.1.0 to 198.19.3.0");
        }
    });
}

#[test]
fn an_outage_leaves_the_table_and_a_compaction_is_listed_again() {
    with_etcd("an_outage_leaves_the_table", |etcd| {
        etcd.put("config", CONFIG);
        for n in [7, 8] {
            etcd.put(&format!("subnets/198.19.{n}.0-24"), &lease(&format!("198.18.0.{n}"), "5a:65:bd:bd:44:bb"));
        }
        let relay = Relay::start(common::PORT);
        let one = Agent::start(&relay.url(), 1);
        until("both are peers", || one.table().len() == 2);
        relay.cut(true);
        until("it says since when", || one.state().state.name() == "stale" && one.state().error.is_some());
        etcd.ctl(&["del", "/coreos.com/network/subnets/198.19.7.0-24"]);
        // Agents take one of the first hundred that are free.
        etcd.put("subnets/198.19.206.0-24", &lease("198.18.0.6", "5a:65:bd:bd:44:06"));
        let revision = etcd.revision();
        etcd.ctl(&["compact", &revision.to_string()]);
        assert_eq!(one.table().len(), 2, "the table is the last known one");
        relay.cut(false);
        until("the table is etcd's", || {
            let table = one.table();
            table.len() == 2 && table[0].contains("198.19.8.0/24") && table[1].contains("198.19.206.0/24")
        });
        until("it is connected", || one.state().state.name() == "connected" && one.state().error.is_none());
        assert!(one.state().revision >= revision);
    });
}

#[test]
fn an_agent_follows_an_etcd_that_was_restored_from_a_backup() {
    with_etcd("an_agent_follows_an_etcd_that_was_restored", |mut etcd| {
        etcd.put("config", CONFIG);
        etcd.put("subnets/198.19.207.0-24", &lease("198.18.0.7", "5a:65:bd:bd:44:07"));
        let one = Agent::start(&etcd.url(), 1);
        until("the peer is there", || one.table().len() == 1);
        etcd.save();
        // What the backup does not have, and more changes than follow it.
        etcd.put("subnets/198.19.208.0-24", &lease("198.18.0.8", "5a:65:bd:bd:44:08"));
        (0..50).for_each(|_| etcd.put("subnets/198.19.207.0-24", &lease("198.18.0.70", "5a:65:bd:bd:44:07")));
        let revision = etcd.revision();
        until("it has followed", || one.state().revision == revision && one.table().len() == 2);
        etcd.restore();
        etcd.put("subnets/198.19.209.0-24", &lease("198.18.0.9", "5a:65:bd:bd:44:09"));
        until("the table is that of the restored etcd", || {
            let table = one.table();
            table.len() == 2 && table[0].contains(r#""198.18.0.7""#) && table[1].contains("198.19.209.0/24")
        });
        // And what comes then is followed.
        etcd.put("subnets/198.19.210.0-24", &lease("198.18.0.10", "5a:65:bd:bd:44:10"));
        until("a new one comes", || one.table().len() == 3);
        assert!(one.state().revision < revision && one.state().state.name() == "connected");
    });
}

#[test]
fn values_that_no_answer_can_hold_cost_no_peer() {
    // In the answer of etcd's gateway 14 of these have 26 MB.
    const LEN: usize = 1_400_000;
    with_etcd("values_that_no_answer_can_hold_cost_no_peer", |etcd| {
        etcd.put("config", CONFIG);
        etcd.put("subnets/198.19.9.0-24", &lease("198.18.0.9", "5a:65:bd:bd:44:09"));
        (10..24).for_each(|n| etcd.put_long(&format!("subnets/198.19.{n}.0-24"), LEN));
        let relay = Relay::start(common::PORT);
        let one = Agent::start(&relay.url(), 1);
        let has = |peers: usize, refused: usize| {
            one.table().len() == peers && one.state().refused.get("value_too_long") == Some(&refused)
        };
        until("the peer is there", || has(1, 14));
        // Also where they come in one message of a watch.
        relay.cut(true);
        until("it says since when", || one.state().state.name() == "stale");
        (210..224).for_each(|n| etcd.put_long(&format!("subnets/198.19.{n}.0-24"), LEN));
        etcd.put("subnets/198.19.206.0-24", &lease("198.18.0.6", "5a:65:bd:bd:44:06"));
        relay.cut(false);
        until("both peers are there", || has(2, 28));
    });
}

#[test]
fn a_tunnel_that_was_started_again_gets_its_table_back() {
    with_etcd("a_tunnel_that_was_started_again", |etcd| {
        etcd.put("config", CONFIG);
        etcd.put("subnets/198.19.9.0-24", &lease("198.18.0.9", "5a:65:bd:bd:44:09"));
        let one = Agent::start(&etcd.url(), 1);
        until("the peer is there", || one.table().len() == 1);
        one.restart_tunnel();
        until("the peer is there again", || one.table().len() == 1);
    });
}

#[test]
fn a_subnet_file_that_could_not_be_written_is_written_later() {
    with_etcd("a_subnet_file_that_could_not_be_written", |etcd| {
        etcd.put("config", CONFIG);
        let one = Agent::start(&etcd.url(), 1);
        let file = one.subnet_file();
        until("it is written", || file.is_file());
        // No file can take the place of a directory, but the agent may write one before that is there.
        until("a directory is there", || {
            let _ = fs::remove_file(&file);
            fs::create_dir(&file).is_ok()
        });
        until("the failure is published", || one.state().file_error.is_some_and(|error| error.contains("subnet.env")));
        fs::remove_dir(&file).unwrap();
        until("it is written again", || file.is_file() && one.state().file_error.is_none());
        let notes: Vec<String> = one.notes().into_iter().filter(|line| line.starts_with("cannot write")).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
    });
}

#[test]
fn an_agent_that_ends_with_an_error_leaves_it_in_its_state() {
    with_etcd("an_agent_that_ends_with_an_error", |etcd| {
        etcd.put("config", CONFIG);
        let mut one = Agent::start(&etcd.url(), 1);
        one.send(Event::Fatal(Error::new(Kind::Conflict, "another agent has the address", "end one of the two")));
        assert!(one.outcome().is_err());
        assert!(one.state().error.is_some_and(|error| error.contains("another agent has the address")));
    });
}

#[test]
fn a_renewal_that_fails_is_in_the_state_until_one_succeeds() {
    with_etcd("a_renewal_that_fails_is_in_the_state", |etcd| {
        etcd.put("config", CONFIG);
        let one = Agent::start(&etcd.url(), 1);
        until("it follows", || one.state().state.name() == "connected");
        // The first renewals come by themselves, after the lease has changed.
        until("the failure is there", || {
            one.send(Event::NotRenewed { why: "etcd: permission denied".to_owned(), is_gone: false });
            one.state().error.as_deref() == Some("the lease is not renewed: etcd: permission denied")
        });
        one.send(Event::Renewed { expires: true });
        until("it is over", || one.state().error.is_none());
    });
}

#[test]
fn the_user_ends_the_agent_and_the_lease_stays() {
    with_etcd("the_user_ends_the_agent", |etcd| {
        etcd.put("config", CONFIG);
        let mut one = Agent::start(&etcd.url(), 1);
        let key = format!("subnets/{}", one.subnet().replace('/', "-"));
        one.send(Event::Stop);
        one.outcome().unwrap();
        assert!(etcd.get(&key).contains("198.18.0.1"));
    });
}

#[test]
fn a_member_that_says_nothing_is_left_for_one_that_answers() {
    with_etcd("a_member_that_says_nothing", |etcd| {
        etcd.put("config", CONFIG);
        // It takes connections and never answers; the second refuses them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let one = Agent::start(&format!("http://{address},http://127.0.0.1:1,{}", etcd.url()), 1);
        until("it follows", || one.state().state.name() == "connected");
    });
}
