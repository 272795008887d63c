//! The page segue-reasons(7): every reason with its sentence.

use segue_service::reasons::{Entry, all};

use super::roff::Page;

/// The groups of reasons, their headings and what is counted.
const GROUPS: &[(&str, &str, &str)] = &[
    ("drops", "DROPS", "Why packets were dropped."),
    ("flushes", "FLUSHES", "Why trains ended."),
    ("refusals", "REFUSALS", "Why packets were passed on alone."),
    ("mismatches", "MISMATCHES", "In what a packet differed from the train of its flow."),
    ("fallbacks", "FALLBACKS", "Why segue repeated an operation in a smaller or more expensive form."),
    ("numbers", "STOPS", "Why the connection of a guest's front end was closed; it may connect again."),
    ("left", "LEFT", "Why the path through the kernel left a packet to the process."),
];

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = Page::new("segue-reasons", 7, "the reasons that segue counts");
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
    page.references(&["segue(1)", "segue-stat(1)", "segue-metrics(1)"].map(str::to_owned));
    page.finish()
}
