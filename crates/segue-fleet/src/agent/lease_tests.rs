//! Tests of when the agent looks at its own lease, and of what its state says of it.

use super::tests::{Published, Willing, settings};
use super::*;
use crate::config::Config;
use crate::network::Network;

/// Runs `work` with an agent that follows its registry, and with the requests for a look at its lease.
fn with_agent(work: impl FnOnce(&mut Agent<'_>, &Receiver<()>)) {
    let (check, checks) = std::sync::mpsc::sync_channel(1);
    let (mut tunnel, mut output) = (Willing, Published::default());
    let mut agent = Agent::new(settings(), "http://127.0.0.1:1", &mut tunnel, &mut output, check);
    agent.state.state = Engine::Connected;
    work(&mut agent, &checks);
}

fn roster() -> Roster {
    Roster::new(Policy {
        config: Config::parse(br#"{"Network":"198.19.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap(),
        directory: "/coreos.com/network/subnets".to_owned(),
        address: [198, 18, 0, 1].into(),
        local: None,
        subnet: Network::parse("198.19.1.0/24").unwrap(),
        mac: None,
        limit: 10,
    })
}

#[test]
fn the_lease_is_looked_at_after_each_list_and_each_step_of_the_clock() {
    with_agent(|agent, checks| {
        // As after a compaction, while the agent is connected.
        for _ in 0..2 {
            agent.handle(Event::Listed(Box::new(roster()), 7)).unwrap();
            assert!(checks.try_recv().is_ok(), "a list");
        }
        agent.follow_clock(now());
        assert!(checks.try_recv().is_err(), "no step");
        // As after a suspension of the machine.
        agent.follow_clock(now() + 3600);
        assert!(checks.try_recv().is_ok(), "a step");
    });
}

#[test]
fn a_lease_that_is_gone_is_in_the_state_since_then_until_it_is_made_again() {
    with_agent(|agent, _| {
        let failed = |is_gone| Event::NotRenewed { why: "etcd: no room".to_owned(), is_gone };
        agent.handle(failed(false)).unwrap();
        assert_eq!(agent.state.lease_gone, None);
        agent.handle(failed(true)).unwrap();
        let since = agent.state.lease_gone.unwrap();
        assert!(now().abs_diff(since) < 60, "{since}");
        agent.state.lease_gone = Some(since - 90);
        agent.handle(failed(true)).unwrap();
        assert_eq!(agent.state.lease_gone, Some(since - 90));
        // A step of the clock changes no age.
        assert!(date_anew(&mut agent.state, 1000, 2000));
        assert_eq!(agent.state.lease_gone, Some(since - 90 + 1000));
        agent.handle(Event::Renewed { expires: true }).unwrap();
        assert_eq!(agent.state.lease_gone, None);
    });
}

#[test]
fn a_lease_that_follows_a_reservation_has_a_time_to_live_again() {
    with_agent(|agent, _| {
        for (expires, ttl) in [(false, 0), (true, 60), (false, 0)] {
            agent.handle(Event::Renewed { expires }).unwrap();
            assert_eq!(agent.state.ttl, ttl);
        }
    });
}
