use segue_control::error::{Error, Kind, is_hidden};
use segue_service::supervise::spec::{InstancePlan, InstanceSpec};

use crate::resources::bounded;

/// Number of bytes that parsing may hold for the shortest configuration: each table is a command line, whose options
/// are described separately.
const FREE: usize = 4 << 20;

/// Reads arbitrary bytes as a configuration of `segue run`: each error has a position in the file and a text without
/// terminal control characters, and an accepted configuration equals its command line.
pub fn configuration(data: &[u8]) {
    bounded(data.len(), FREE, || match segue_cli::parse_configuration("segue.toml", data.to_vec()) {
        Ok(specs) => specs.iter().for_each(check),
        Err(error) => {
            let text = String::from_utf8_lossy(data);
            check_error(&error, &text);
            let more = error.source.iter().flat_map(|source| &source.more);
            more.for_each(|error| check_error(error, &text));
        }
    });
}

/// Checks that an error points into `text` and can be shown.
fn check_error(error: &Error, text: &str) {
    assert_eq!(error.kind, Kind::Config, "{error:?}");
    assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
    let shown = [Some(&error.message), error.why.as_ref(), Some(&error.hint)];
    let source = error.source.as_ref().expect("a place in the file");
    for text in shown.into_iter().flatten().chain([&source.note]) {
        assert!(!text.chars().any(|c| c != '\n' && is_hidden(c)), "{text:?} acts on the terminal");
    }
    // A file that ends with a line feed has an empty line after it, where an error can be.
    let line = text.split('\n').nth(source.line - 1).expect("the line is in the file");
    assert!((1..=line.chars().count() + 1).contains(&source.column), "{source:?}");
    assert!(source.width >= 1, "{source:?}");
}

/// Checks that the parts of an accepted instance agree.
fn check(spec: &InstanceSpec) {
    let words = spec.words();
    assert!(!spec.name.is_empty());
    assert!(words.iter().all(|word| !word.contains('\0')), "{words:?} cannot be a command line");
    let InstancePlan::Tunnels(plans) = &spec.plan else { return };
    assert_eq!(spec.members(), plans.len(), "{words:?}");
    let devs: Vec<String> = plans.iter().map(|plan| plan.dev.clone()).collect();
    let whole = spec.only(&devs).expect("an instance of all its tunnels");
    assert_eq!((whole.words(), whole.knobs()), (words, spec.knobs()));
}
