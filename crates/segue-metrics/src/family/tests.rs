use segue_control::fleet::Engine;
use segue_control::model::Complaint;

use super::*;

#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut seen = BTreeSet::new();
    for family in FAMILIES {
        assert!(seen.insert(family.name), "{} is there twice", family.name);
        assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter, "{}", family.name);
        assert_eq!(family.name.ends_with("_info"), family.kind == Kind::Info, "{}", family.name);
        assert!(family.name.starts_with("segue_") && family.help.ends_with('.'), "{}", family.name);
    }
}

/// Returns the paths of all numbers below `schema`, in the form of [`Family::json`].
fn numbers(root: &serde_json::Value, schema: &serde_json::Value, path: &str, into: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).expect("a definition");
        return numbers(root, target, path, into);
    }
    let is = |kind: &str| schema["type"] == kind || schema["type"].as_array().is_some_and(|k| k.contains(&kind.into()));
    if is("integer") || is("number") || is("boolean") {
        into.insert(path.to_owned());
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        numbers(root, below, &path, into);
    }
    for (key, step) in [("additionalProperties", "{}"), ("items", "[]")] {
        if schema[key].is_object() {
            numbers(root, &schema[key], &format!("{path}{step}"), into);
        }
    }
    for below in schema["anyOf"].as_array().into_iter().flatten() {
        numbers(root, below, path, into);
    }
}

/// Returns the paths of all numbers of an instance in the document of `segue stat -j`.
fn paths() -> BTreeSet<String> {
    let schema = serde_json::to_value(schemars::schema_for!(Instance)).unwrap();
    let mut paths = BTreeSet::new();
    numbers(&schema, &schema, "", &mut paths);
    assert!(paths.len() > 30, "{paths:?}");
    paths
}

/// Returns the paths of a family in the document of `segue stat -j`, one for each direction.
fn places(family: &Family) -> Vec<String> {
    let both = family.json.contains("receive|transmit");
    let split = |part: &str| family.json.replace("receive|transmit", part);
    if both { vec![split("receive"), split("transmit")] } else { vec![family.json.to_owned()] }
}

#[test]
fn every_metric_has_its_number_in_stat() {
    let paths = paths();
    // Six are of no instance, two of them of a fleet agent; a list of problems is counted, and names are labels.
    let is_known = |place: &str| paths.contains(place) || ["", "health", "name|kind"].contains(&place);
    for family in FAMILIES {
        let missing: Vec<String> = places(family).into_iter().filter(|place| !is_known(place)).collect();
        assert!(missing.is_empty(), "{} has no number at {missing:?}", family.name);
    }
    assert_eq!(FAMILIES.iter().filter(|family| family.json.is_empty()).count(), 6);
}

#[test]
fn every_number_of_stat_is_a_metric_or_is_left_out_for_a_reason() {
    let paths = paths();
    // Rates and sums are computed by Prometheus; an id is a label; a process id says nothing over time; how an
    // instance is confined and what its tunnel accepts does not change while it runs; the ports of an instance are
    // those of all its workers; the number of a refused peer is its place in a file.
    let left_out = |path: &str| {
        path.starts_with("recent")
            || path.starts_with("sandbox.")
            || path.starts_with("workers[].ports{}.")
            || path.starts_with("peers.refused_named[].")
            || ["peers.ethernet", "peers.remcsum"].contains(&path)
            || ["pid", "workers[].id", "drops", "is_managed", "health[].notice"].contains(&path)
    };
    let shown: BTreeSet<String> = FAMILIES.iter().flat_map(places).collect();
    let missing: Vec<&String> = paths.iter().filter(|path| !left_out(path) && !shown.contains(*path)).collect();
    assert!(missing.is_empty(), "in the document, but no metric: {missing:?}");
}

#[test]
fn numbers_of_a_port_that_can_fall_are_states_and_one_of_0_is_shown() {
    let mut port = Port::default();
    let numbers = [("fdb_entries", 3), ("guest_connected", 0), ("flooded", 2), ("pauses", 0)];
    for (name, value) in numbers.into_iter().chain(NO_METRIC.iter().map(|name| (*name, 4))) {
        port.numbers.insert(name.to_owned(), value);
    }
    let ports = BTreeMap::from([("a".to_owned(), port)]);
    let scrape = Scrape { instances: vec![Instance { ports, ..Instance::default() }], ..Scrape::default() };
    let shown = |family: &str| -> Vec<(String, f64)> {
        let samples = find(family).unwrap().samples(&scrape, |_, _| None).samples;
        samples.iter().map(|sample| (sample.labels.last().unwrap().1.to_string(), sample.value)).collect()
    };
    assert_eq!(shown("segue_port_state"), [("fdb_entries".to_owned(), 3.0), ("guest_connected".to_owned(), 0.0)]);
    assert_eq!(shown("segue_port_events_total"), [("flooded".to_owned(), 2.0)]);
}

#[test]
fn an_instance_that_is_down_answers_and_is_not_up() {
    let instance = |name: &str, code: &str| {
        let health = vec![Complaint { code: code.to_owned(), ..Complaint::default() }];
        Instance { name: name.to_owned(), health, ..Instance::default() }
    };
    let instances = vec![instance("sg0", "down"), instance("sg1", "drops")];
    let scrape = Scrape { instances, ..Scrape::default() };
    let values = |family: &str| -> Vec<f64> {
        find(family).unwrap().samples(&scrape, |_, _| None).samples.iter().map(|sample| sample.value).collect()
    };
    assert_eq!((values("segue_instances"), values("segue_instance_up")), (vec![2.0], vec![0.0, 1.0]));
}

#[test]
fn a_fleet_agent_has_one_state_and_the_age_of_its_lease_where_it_has_one() {
    let agent = |state, pid| FleetState { state, pid, ..FleetState::default() };
    let renewed = Some(segue_control::fleet::now() - 7);
    let fleet = BTreeMap::from([
        ("sg0".to_owned(), FleetState { renewed, ..agent(Engine::Stale, std::process::id()) }),
        // No process has this number.
        ("sg1".to_owned(), agent(Engine::Connected, u32::MAX)),
        // It has written nothing for long.
        ("sg2".to_owned(), FleetState { seen: 1, ..agent(Engine::Connected, std::process::id()) }),
    ]);
    let scrape = Scrape { fleet, ..Scrape::default() };
    let shown = |family: &str| -> Vec<(String, f64)> {
        let samples = find(family).unwrap().samples(&scrape, |_, _| None).samples;
        let name = |sample: &Sample<'_>| sample.labels.iter().map(|(_, value)| value.to_string()).collect::<Vec<_>>();
        samples.iter().map(|sample| (name(sample).join(" "), sample.value)).collect()
    };
    let states = shown("segue_fleet_state");
    let are: Vec<&str> = states.iter().filter(|(_, value)| *value == 1.0).map(|(name, _)| name.as_str()).collect();
    assert_eq!((states.len(), are), (12, vec!["sg0 stale", "sg1 ended", "sg2 stale"]));
    let ages = shown("segue_fleet_renewed_age_seconds");
    assert!(ages.len() == 1 && ages[0].0 == "sg0" && (7.0..60.0).contains(&ages[0].1), "{ages:?}");
}
