use crate::datapath::LocalEndpoint;

use super::*;

/// A tunnel that takes everything.
pub(super) struct Willing;

impl Datapath for Willing {
    fn state(&mut self) -> Result<TunnelState, Error> {
        Ok(TunnelState::default())
    }

    fn sync(&mut self, _: &Table) -> Result<(u64, Vec<RefusedPeer>), Error> {
        Ok((0, Vec::new()))
    }

    fn change(&mut self, _: peers::Change) -> Result<u64, Error> {
        Ok(0)
    }
}

/// The times that the published states of an agent have.
#[derive(Default)]
pub(super) struct Published(Vec<u64>);

impl Announce for Published {
    fn note(&mut self, _: &str) {}

    fn state(&mut self, state: &FleetState) {
        self.0.push(state.seen);
    }

    fn mtu(&self, _: &str) -> u32 {
        1400
    }
}

pub(super) fn settings() -> Settings {
    let terms = Terms {
        prefix: "/coreos.com/network".to_owned(),
        address: [198, 18, 0, 1].into(),
        name: "sg0".to_owned(),
        end: LocalEndpoint::default(),
        offer: None,
        ttl: Duration::from_secs(60),
        before: None,
    };
    Settings { terms, subnet_file: PathBuf::from("/nowhere/subnet.env"), limit: 10 }
}

#[test]
fn an_agent_shows_that_it_goes_on_where_nothing_changes() {
    let (mut tunnel, mut published) = (Willing, Published::default());
    let (check, _checks) = std::sync::mpsc::sync_channel(1);
    let mut agent = Agent::new(settings(), "http://127.0.0.1:1", &mut tunnel, &mut published, check);
    agent.publish();
    agent.tick().unwrap();
    agent.state.seen -= fleet::ALIVE;
    let before = agent.state.seen;
    agent.tick().unwrap();
    agent.tick().unwrap();
    drop(agent);
    assert!(published.0.len() == 2 && published.0[1] > before, "{:?} after {before}", published.0);
}

#[test]
fn an_agent_shows_that_it_goes_on_before_each_table_that_it_sends() {
    let (mut tunnel, mut published) = (Willing, Published::default());
    let (check, _checks) = std::sync::mpsc::sync_channel(1);
    let mut agent = Agent::new(settings(), "http://127.0.0.1:1", &mut tunnel, &mut published, check);
    // Calls for single entries took that long.
    agent.state.seen = 1;
    agent.sync();
    agent.sync();
    drop(agent);
    assert!(published.0.len() == 1 && published.0[0] > 1, "{:?}", published.0);
}

#[test]
fn a_step_of_the_clock_changes_no_age() {
    let at = |time: u64| FleetState { since: time - 90, renewed: Some(time - 7), ..FleetState::default() };
    for (expected, clock) in [(100, 1_800_000_000), (1_800_000_000, 1_700_000_000)] {
        let mut state = at(expected);
        assert!(date_anew(&mut state, expected, clock));
        assert_eq!((state.since, state.renewed, state.table_failed), (clock - 90, Some(clock - 7), None));
    }
    let mut state = at(100);
    assert!(!date_anew(&mut state, 100, 102), "seconds are rounded");
    assert_eq!(state.since, 10);
}

#[test]
fn a_panic_of_a_thread_ends_the_agent() {
    let (events, inbox) = std::sync::mpsc::sync_channel(1);
    start(events, |_| panic!("a test asked for it"));
    let event = inbox.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(event, Event::Fatal(error) if error.kind == Kind::Internal));
}
