//! `segue fleet`: starts the program `segue-fleet`, in which the client of a fleet's registry is. It is a program of
//! its own so that no library for HTTP or TLS is in the process that moves packets.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue_control::error::{Error, Kind};

use crate::args::Fleet;

/// Name of the program that is started.
const PROGRAM: &str = "segue-fleet";

/// Runs `segue fleet`. Returns only where the program cannot be started.
pub(crate) fn run(args: &Fleet) -> Result<(), Error> {
    let here = env::current_exe().map_err(|error| {
        Error::system("cannot tell where segue is", &error, format!("{PROGRAM} {}", args.words.join(" ")))
            .why("/proc is needed for that")
    })?;
    let places = places(&here);
    let Some(program) = places.iter().find(|path| path.is_file()) else {
        let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        return Err(Error::new(
            Kind::NotFound,
            format!("the program {PROGRAM} is not installed"),
            "make install                                    installs it with segue",
        )
        .why(format!("it is neither {}", looked.join(" nor "))));
    };
    let error = Command::new(program).args(&args.words).exec();
    let why = "it is installed, and the system does not start it";
    Err(Error::system(format!("cannot start {}", program.display()), &error, "make install").why(why))
}

/// Returns the paths at which the program may be: in segue's own directory, and in the libexec directory of the same
/// prefix.
fn places(segue: &Path) -> Vec<PathBuf> {
    let beside = segue.with_file_name(PROGRAM);
    let prefix = segue.parent().and_then(Path::parent);
    std::iter::once(beside).chain(prefix.map(|prefix| prefix.join("libexec/segue").join(PROGRAM))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_beside_segue_or_in_libexec() {
        let places = places(Path::new("/usr/bin/segue"));
        assert_eq!(places, ["/usr/bin/segue-fleet", "/usr/libexec/segue/segue-fleet"].map(PathBuf::from));
    }
}
