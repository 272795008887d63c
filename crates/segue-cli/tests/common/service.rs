//! Two hosts with a service on each, for tests of `segue run`.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm, Peer, Process};
use serde_json::Value;

use crate::common::{Place, SEGUE};
use crate::numbered::Numbered;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts with a service each, whose tunnel `sg1` carries the load; the first has more tunnels.
pub(crate) struct Pair {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) place: Place,
    pub(crate) service: Process,
    pub(crate) other: Process,
}

impl Pair {
    /// Starts both services with these files; the load goes through the interfaces `sg1` of both.
    #[track_caller]
    pub(crate) fn with(file: &str, other: &str, env: &[(&str, &str)]) -> Option<Pair> {
        if let Some(reason) = segue_lab::unavailable() {
            segue_lab::skip_this_test(&reason);
            return None;
        }
        let [near, far] = ["near", "far"].map(|name| Host::new(name).unwrap());
        segue_lab::connect(&near, &far, LinkForm::Veth).unwrap();
        let place = Place::new();
        let start = |host: &Host, name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            let mut command = host.command(SEGUE);
            command.args(["run", "-j", "-c"]).arg(&path).envs(env.iter().copied());
            let mut service = Process::spawn(command, b"").unwrap();
            service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap();
            service
        };
        let service = start(&near, "near.toml", file);
        let other = start(&far, "far.toml", other);
        Some(Pair { near, far, place, service, other })
    }

    /// Starts a stream from the first host to the other.
    pub(crate) fn numbered(&self) -> Numbered {
        let at = |end: Peer| SocketAddr::new(end.address(1, Family::V4), 5002);
        Numbered::start((&self.near, at(Peer::A)), (&self.far, at(Peer::B)), 600)
    }

    pub(crate) fn hangup(&self) {
        assert!(Command::new("kill").args(["-HUP", &self.service.id().to_string()]).status().unwrap().success());
    }

    /// Rewrites the file and requests a reload; returns the event that ends it.
    #[track_caller]
    pub(crate) fn reload(&self, file: &str) -> Value {
        std::fs::write(self.place.path().join("near.toml"), file).unwrap();
        let before = self.events().len();
        self.hangup();
        let begin = Instant::now();
        loop {
            let events = self.events();
            let done = |event: &&Value| event["event"] == "reloaded" || event["event"] == "reload_refused";
            if let Some(event) = events[before..].iter().find(done) {
                return event.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "no answer: {events:?} {}", self.service.stderr());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.service.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns name and process id of each instance of the first host that runs.
    pub(crate) fn stat(&self) -> Vec<(String, u64)> {
        let text = self.near.run(SEGUE, &["stat", "-j"]).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let instances = document["instances"].as_array().unwrap();
        let all = instances.iter().map(|i| (i["name"].as_str().unwrap().to_owned(), i["pid"].as_u64().unwrap()));
        // One without a process is listed with its reason.
        all.filter(|(_, pid)| *pid != 0).collect()
    }

    pub(crate) fn knob(&self, name: &str, knob: &str) -> String {
        self.near.run(SEGUE, &["set", name, knob, "-q"]).unwrap().trim().to_owned()
    }
}
