//! `segue nat`: the mappings of gateways that translate addresses.

use schemars::JsonSchema;
use segue_control::client;
use segue_control::error::{Error, Kind, printable};
use segue_control::mapping::Mapping;
use serde::Serialize;
use serde_json::json;

use crate::args;
use crate::out::Out;

/// The schema id of the JSON that `segue nat -j` prints.
const SCHEMA: &str = "segue.nat/1";

/// The document that `segue nat -j` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// Schema id of the document, always `segue.nat/1`.
    schema: &'static str,
    /// Gateways that translate addresses, sorted by name.
    instances: Vec<Translating>,
}

/// One gateway that translates addresses.
#[derive(Debug, Serialize, JsonSchema)]
struct Translating {
    /// Name of the translating instance.
    name: String,
    /// Mappings of the gateway, sorted by inside address, protocol and port.
    mappings: Vec<Mapping>,
}

/// Runs `segue nat`.
pub(crate) fn run(args: &args::Nat, out: &Out) -> Result<(), Error> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => client::all().instances.into_iter().filter(|one| one.kind == "gateway").map(|one| one.name).collect(),
    };
    let mut all = Vec::new();
    for name in names {
        match client::mappings(&name)? {
            Some(mappings) => all.push(Translating { name, mappings }),
            None if args.name.is_none() => {}
            None => {
                let text = format!("{} translates nothing", printable(&name));
                return Err(Error::new(Kind::Conflict, text, "segue gateway IN OUT --route --nat ADDRESS")
                    .why("it was started without --nat"));
            }
        }
    }
    if out.json {
        out.value(&json!(Document { schema: SCHEMA, instances: all }));
        return Ok(());
    }
    if all.is_empty() {
        out.note("no NAT runs here; to start one: segue gateway IN OUT --route --nat ADDRESS");
    }
    all.iter().for_each(|one| out.data(&one.text()));
    Ok(())
}

impl Translating {
    /// Returns the text form: a line for each mapping below the name of its gateway.
    fn text(&self) -> String {
        let (count, plural) = (self.mappings.len(), if self.mappings.len() == 1 { "" } else { "s" });
        let mut text = format!("{}: {count} mapping{plural}\n", printable(&self.name));
        if count > 0 {
            text.push_str("  proto inside                outside state     idle s        out         in\n");
        }
        for m in &self.mappings {
            let (inside, state) = (m.inside.to_string(), m.state.as_deref().unwrap_or("-"));
            let idle = m.idle_s.map_or("-".to_owned(), |idle| idle.to_string());
            let numbers = format!("{idle:>6} {:>10} {:>10}", m.out, m.into);
            text.push_str(&format!("  {:<5} {inside:<21} {:>7} {state:<9} {numbers}\n", m.protocol, m.outside));
        }
        text
    }
}
