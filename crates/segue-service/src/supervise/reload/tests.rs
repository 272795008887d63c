use std::collections::BTreeSet;
use std::sync::Arc;

use segue_control::knobs::Knob;
use segue_host::netlink::Netlink;
use serde_json::Value;

use super::*;
use crate::forward::Forwarded;
use crate::report::Report;
use crate::supervise::service::Configuration;
use crate::supervise::spec::Kind as InstanceKind;

/// A configuration without instances; `fails` is the step in which a reload refuses it.
struct Empty {
    fails: Option<&'static str>,
}

impl Empty {
    fn step(&self, name: &str) -> Result<(), Error> {
        let fails = self.fails == Some(name);
        if fails { Err(Error::new(Kind::Config, name, "none")) } else { Ok(()) }
    }
}

impl Configuration for Empty {
    fn name(&self) -> String {
        "none".to_owned()
    }

    fn load(&mut self) -> Result<(), Error> {
        self.step("load")
    }

    fn hosts(&self) -> Vec<String> {
        Vec::new()
    }

    fn specs(&self, _: &Names) -> Result<Vec<InstanceSpec>, Error> {
        self.step("specs").map(|()| Vec::new())
    }

    fn check(&self, _: &[&InstanceSpec], _: &[InstanceSpec], _: &mut Netlink) -> Result<(), Error> {
        self.step("check")
    }

    fn spec(
        &self,
        _: InstanceKind,
        _: &str,
        _: &[String],
        _: &[(String, String)],
        _: &Names,
    ) -> Result<InstanceSpec, Error> {
        Err(Error::new(Kind::Internal, "spec", "none"))
    }

    fn check_knobs(&self, _: &InstanceSpec, _: Vec<Knob>) -> Result<(), Error> {
        Ok(())
    }
}

struct Silent;

impl Report for Silent {
    fn is_json(&self) -> bool {
        true
    }
    fn value(&self, _: &Value) {}
    fn forward(&self, _: &Forwarded<'_>) {}
    fn event(&self, _: &LogEntry<'_>) {}
    fn change(&self, _: &str, _: &str) {}
    fn error(&self, _: &Error) {}
}

#[test]
fn answers_of_the_resolver_are_still_awaited_after_a_refused_reload_and_no_longer_after_another_one() {
    for fails in [Some("load"), Some("specs"), Some("check"), None] {
        let netlink = Netlink::open().unwrap();
        let mut service = Service::new(Box::new(Empty { fails }), netlink, Arc::new(Silent), Vec::new()).unwrap();
        let hosts = BTreeSet::from(["late.invalid".to_owned()]);
        service.late = LateAnswers::begin(hosts.clone());
        let followed = service.follow();
        assert_eq!(followed.err().map(|error| error.message), fails.map(str::to_owned));
        let awaited = service.late.map(|late| late.unanswered().clone());
        assert_eq!(awaited, fails.map(|_| hosts), "{fails:?}");
    }
}
