//! Preservation of peer tables over a reload: a restarted tunnel gets its previous table, and a continuing one reloads
//! its file.

use std::fs;

use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_control::peers::{Change, Table};

use super::spec::InstanceSpec;

/// Returns the current tables of those `specs` that are to be restarted and have one, with their names. `before` are
/// the running instances. A file that was not there before has the table of the start.
pub(super) fn present<'a>(
    specs: &[InstanceSpec],
    before: impl Iterator<Item = &'a InstanceSpec> + Clone,
) -> Vec<(String, Table)> {
    let stays = |spec: &&InstanceSpec| {
        let old = before.clone().find(|old| old.name == spec.name).and_then(InstanceSpec::table);
        spec.table().zip(old).is_some_and(|(new, old)| new.file == old.file)
    };
    let stay = specs.iter().filter(stays);
    stay.filter_map(|spec| Some((spec.name.clone(), client::peers(&spec.name).ok()?.table()))).collect()
}

/// Restores the tables of restarted tunnels, unless the file of the start has a later one. Returns the failures.
pub(super) fn restore(tables: &[(String, Table)]) -> Vec<Error> {
    let is_behind = |name: &str, table: &Table| {
        client::peers(name).is_ok_and(|now| table.generation.is_some_and(|before| before > now.generation))
    };
    let lost = tables.iter().filter(|(name, table)| is_behind(name, table));
    lost.filter_map(|(name, table)| client::peer_sync(name, table).err()).collect()
}

/// Reloads the peer table file of each continuing tunnel that has one. Returns the failures, of which each tunnel is
/// told too.
pub(super) fn load<'a>(specs: impl Iterator<Item = &'a InstanceSpec>) -> Vec<Error> {
    let load = |spec: &InstanceSpec| {
        let path = spec.table()?.file.as_ref()?;
        let name = path.display().to_string();
        let text = fs::read(path).map_err(|error| {
            Error::system(format!("cannot read the peers in {name}"), &error, "the table of before stays")
        });
        let table = text.and_then(|text| Table::read(&text, &name));
        let refused = match table.and_then(|table| client::peer_sync(&spec.name, &table)) {
            Ok(changes) => {
                // The state of the tunnel names them all; the others are in force.
                let first = changes.refused_peers.first()?;
                let message = format!("{name}: {} of the peers are refused", changes.refused);
                return Some(Error::new(Kind::BadValue, message, "segue stat -j").why(first.to_string()));
            }
            Err(error) => error,
        };
        // One that does not answer shows nothing in its state either.
        let _ = client::peer_change(&spec.name, Change::Keep(refused.sentence()));
        Some(refused)
    };
    specs.filter_map(load).collect()
}
