//! The client of services: it finds those of this user, and asks one to load its file again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{ANSWER_TIME, talk};
use crate::error::{Error, Kind, printable};
use crate::place::{self, SERVICE};
use crate::protocol::{Refused, Reloaded, ServiceRequest, ServiceResponse, ServiceState, ServiceTopic};
use crate::suggest::nearest;

/// A service that runs.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name: that of its file without the ending.
    pub name: String,
    /// State that the service reports.
    pub state: ServiceState,
    path: PathBuf,
}

/// Reason why a service has not reloaded.
#[derive(Debug)]
pub enum NotReloaded {
    /// The service has answered: the file is wrong, or an instance did not start.
    Refused(Box<Refused>),
    /// The service was not found, or did not answer.
    Failed(Box<Error>),
}

/// Returns the services of this user that answer, by name.
pub fn all() -> Vec<Service> {
    let found =
        sockets().into_iter().filter_map(|(name, path)| Some(Service { state: query(&path).ok()?, name, path }));
    found.collect()
}

/// Asks a service to load its file again, and waits for the outcome, at most `longest`. It is `wanted` by its name or
/// its file; `None` is the only one that runs.
pub fn reload(wanted: Option<&str>, longest: Duration) -> Result<Reloaded, NotReloaded> {
    let failed = |error: Error| NotReloaded::Failed(Box::new(error));
    let service = find(wanted).map_err(failed)?;
    let name = printable(&service.name);
    let unclear = |text: String| {
        failed(
            Error::new(Kind::System, format!("cannot reload {name}: {text}"), "segue --version on both sides")
                .why("its answer is not one that this version understands"),
        )
    };
    let answer = talk(&service.path, &ServiceRequest::Reload {}.line(), longest).map_err(|error| {
        let made = Error::system(format!("cannot reload {name}"), &error, "segue stat");
        failed(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                made.why(format!("it has not finished after {} s, and goes on with it", longest.as_secs()))
            }
            io::ErrorKind::PermissionDenied => made
                .kind(Kind::NoPermission)
                .why("only its owner and root may")
                .hint(format!("sudo segue reload {name}")),
            _ => made.why("it ended before it answered"),
        })
    })?;
    match serde_json::from_value(answer) {
        Ok(ServiceResponse::Reloaded(done)) => Ok(*done),
        Ok(ServiceResponse::Refused(refused)) => Err(NotReloaded::Refused(refused)),
        Ok(ServiceResponse::Error(error)) if error.kind == Kind::NoPermission.name() => Err(failed(
            Error::new(
                Kind::NoPermission,
                format!("cannot reload {name}: {}", error.message),
                format!("sudo segue reload {name}"),
            )
            .why(error.why.unwrap_or_default()),
        )),
        Ok(ServiceResponse::Error(error)) => Err(unclear(error.message)),
        Ok(ServiceResponse::Service(_)) => Err(unclear("the answer is to another question".to_owned())),
        Err(error) => Err(unclear(error.to_string())),
    }
}

/// Finds the service that `wanted` names.
fn find(wanted: Option<&str>) -> Result<Service, Error> {
    let mut services = all();
    let list = |services: &[Service]| {
        services
            .iter()
            .map(|service| format!("segue reload {}", printable(&service.name)))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let Some(wanted) = wanted else {
        return match services.len() {
            1 => Ok(services.remove(0)),
            0 => Err(Error::new(Kind::NotFound, "no service runs", "segue run -c FILE")
                .why("no socket of a `segue run` of this user answers; root sees all of /run")),
            _ => {
                Err(Error::new(Kind::Conflict, format!("{} services run: say which", services.len()), list(&services))
                    .why("each has a file of its own"))
            }
        };
    };
    let whole = fs::canonicalize(wanted).ok().map(|path| path.display().to_string());
    // The file says more than a name that another file may have as well.
    let at = services.iter().position(|service| whole.as_ref() == Some(&service.state.file));
    if let Some(at) = at.or_else(|| services.iter().position(|service| service.name == wanted)) {
        return Ok(services.remove(at));
    }
    let near = nearest(wanted, services.iter().map(|service| service.name.as_str()));
    let hint = match near {
        Some(near) => format!("segue reload {}", printable(near)),
        None if services.is_empty() => "segue run -c FILE".to_owned(),
        None => list(&services),
    };
    Err(Error::new(Kind::NotFound, format!("no service is called `{}` or follows this file", printable(wanted)), hint)
        .why("a service has the name of its file, without .toml"))
}

fn query(path: &Path) -> io::Result<ServiceState> {
    match serde_json::from_value(talk(path, &ServiceRequest::Get(ServiceTopic::Service).line(), ANSWER_TIME)?)? {
        ServiceResponse::Service(state) => Ok(*state),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the name and the path of every socket of a service in the directories of this user.
fn sockets() -> Vec<(String, PathBuf)> {
    let directories = place::to_search();
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            Some((path.file_name()?.to_str()?.strip_suffix(SERVICE)?.to_owned(), path))
        })
        .collect();
    found.sort();
    found
}
