//! The page segue-reasons(7): every reason with its sentence, and every problem of HEALTH.

use segue_control::health::CODES;
use segue_service::reasons::{Entry, all};

use super::roff::Page;

/// Groups of reasons with their headings and the counted event.
const GROUPS: &[(&str, &str, &str)] = &[
    ("drops", "DROPS", "Why packets were dropped."),
    ("flushes", "FLUSHES", "Why trains ended."),
    ("refusals", "REFUSALS", "Why packets were passed on alone."),
    ("mismatches", "MISMATCHES", "In what a packet differed from the train of its flow."),
    ("fallbacks", "FALLBACKS", "Why segue repeated an operation in a smaller or more expensive form."),
    ("numbers", "STOPS", "Why the connection of a guest's front end was closed; it may connect again."),
    ("left", "LEFT", "Why the in-kernel path left a packet to the process."),
];

/// Returns the manual page that explains the drop reasons.
pub(super) fn page() -> String {
    let mut page = Page::new("segue-reasons", 7, "the reasons that segue counts, and the problems that HEALTH names");
    page.section("DESCRIPTION");
    page.text(
        "Each packet that is dropped, each train that ends and each packet that stays alone is counted under a reason. The names \
         are the same in segue stat --why, as keys of segue stat -j, and as labels of segue metrics.",
    );
    for (group, heading, what) in GROUPS {
        page.section(heading);
        page.text(what);
        let mut stage = "";
        for entry in all().filter(|entry| entry.group == *group) {
            if entry.stage != stage {
                stage = entry.stage;
                page.subsection(stage);
            }
            let Entry { name, sentence, .. } = entry;
            page.entry(name, sentence);
        }
    }
    page.section("HEALTH");
    page.text(
        "What segue stat --health names, by the code of its JSON (health[].code): what it is, the likely cause, and \
         what to do. The line itself has the addresses and names.",
    );
    for code in CODES {
        page.entry(code.name, &format!("{} Likely: {} To do: {}", code.sentence, code.cause, code.cure));
    }
    page.references(&["segue(1)", "segue-stat(1)", "segue-metrics(1)"].map(str::to_owned));
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_on_health_has_the_same_codes_with_the_same_sentences() {
        let document = include_str!("../../../../docs/health.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let documented: Vec<(&str, &str)> =
            rows.map(|(name, rest)| (name, rest.split(" | ").next().unwrap_or_default())).collect();
        let known: Vec<(&str, &str)> = CODES.iter().map(|code| (code.name, code.sentence)).collect();
        assert_eq!(documented, known);
    }

    #[test]
    fn every_code_that_is_reported_is_explained() {
        let sources = [
            include_str!("../../../segue-control/src/model.rs"),
            include_str!("../../../segue-service/src/adapter/health.rs"),
            include_str!("../../../segue-service/src/daemon/kernel.rs"),
            include_str!("../../../segue-service/src/daemon/mod.rs"),
            include_str!("../../../segue-service/src/daemon/running.rs"),
            include_str!("../../../segue-service/src/health/judge.rs"),
            include_str!("../../../segue-service/src/peers/mod.rs"),
            include_str!("../../../segue-service/src/router_faults.rs"),
            include_str!("../../../segue-service/src/sandbox/helper.rs"),
            include_str!("../../../segue-service/src/supervise/placeholder.rs"),
        ];
        let mut count = 0;
        for source in sources {
            let source = source.split("\nmod tests {").next().unwrap_or_default();
            for begin in ["code: \"", "complaint(\"", "complaint(\n", "report(\"", "complaints.push((\""] {
                for rest in source.split(begin).skip(1) {
                    let rest = rest.trim_start().trim_start_matches('"');
                    let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                    if rest[name.len()..].starts_with('"') {
                        assert!(CODES.iter().any(|code| code.name == name), "no sentence for `{name}`");
                        count += 1;
                    }
                }
            }
        }
        assert!(count >= 25, "only {count} were found");
    }
}
