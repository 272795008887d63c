//! Comparison of a document's transcript with a program's output: words exactly, figures by their position only.

/// Returns a line in the form used for comparison: each number becomes `#`, and white space between words becomes one
/// blank. A figure is a word that begins with a digit, after signs and brackets, and is no address: `6.03-6.68` and
/// `61.8k` are, `198.18.0.1` is not, but its port is. Lines with a caret stay as they are.
fn masked(line: &str) -> String {
    if line.contains("^^") {
        return line.trim_end().into();
    }
    let words = line.split_whitespace().map(|word| {
        let is_sign = |c: char| "([{+-~<>=x".contains(c);
        let core = word.trim_start_matches(is_sign).trim_end_matches(|c: char| ")]},;:.%".contains(c));
        let is_address = core.matches('.').count() == 3;
        match word.rsplit_once(':') {
            Some((address, port)) if is_address && port.starts_with(|c: char| c.is_ascii_digit()) => {
                return format!("{address}:#{}", port.trim_start_matches(|c: char| c.is_ascii_digit()));
            }
            _ if is_address || core.contains("::") => return word.into(),
            _ if !core.starts_with(|c: char| c.is_ascii_digit()) => return word.into(),
            _ => {}
        }
        let (front, back) = word.split_once(core).expect("a part of the word");
        format!("{}#{}", front.trim_end_matches(|c: char| "+-~x".contains(c)), back.trim_end_matches('%'))
    });
    // The size of a figure decides its unit's prefix: `717` and `4.4 k`, `898 kB` and `3.1 GB`.
    let mut kept: Vec<String> = Vec::new();
    for word in words {
        let is_scaled = kept.last().is_some_and(|last| last.ends_with('#'));
        match word.as_str() {
            "k" | "M" | "G" if is_scaled => {}
            "kB" | "MB" | "GB" if is_scaled => kept.push("B".into()),
            "kB," | "MB," | "GB," if is_scaled => kept.push("B,".into()),
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

/// Returns whether a line of the document matches this line of the program's output.
fn stands_for(expected: &str, actual: &str) -> bool {
    match expected.strip_suffix("...") {
        Some(start) => masked(actual).starts_with(&masked(start)),
        None => masked(expected) == masked(actual),
    }
}

/// Splits the wrapped lines that describe the machine into one item per line and masks machine-dependent parts: they
/// begin with the processor's name.
fn unwrapped(lines: &[String]) -> Vec<String> {
    let begin = lines.iter().position(|line| line.contains(" cpus, Linux ")).unwrap_or(lines.len());
    let (front, machine) = lines.split_at(begin);
    let end = machine.iter().position(|line| line.is_empty() || line == "...").unwrap_or(machine.len());
    let (machine, rest) = machine.split_at(end);
    let varies =
        |item: &str| ["Linux", "CPU time:", "simd", "tcp_congestion"].into_iter().find(|name| item.starts_with(name));
    let items = machine.iter().flat_map(|line| line.split(", ")).skip(1);
    let items = items.map(|item| varies(item).map_or(item.to_owned(), |name| format!("{name} 0")));
    front.iter().cloned().chain(items).chain(rest.iter().cloned()).collect()
}

/// Returns whether the output matches that in the document.
pub(crate) fn agrees(expected: &[String], actual: &[String]) -> bool {
    follows(&unwrapped(expected), &unwrapped(actual))
}

fn follows(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((line, rest)) if line.trim() == "..." => {
            (0..=actual.len()).any(|skipped| follows(rest, &actual[skipped..]))
        }
        Some((line, rest)) => {
            actual.split_first().is_some_and(|(found, more)| stands_for(line, found) && follows(rest, more))
        }
    }
}

/// Share of a table that the test has printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Printed {
    /// All rows were printed: those of the document and no others.
    Whole,
    /// Some rows were printed, all of them from the document.
    Part,
}

/// Returns the number of rows in a bench's first table, 0 without one.
pub(crate) fn row_count(lines: &[String]) -> usize {
    let table = lines.iter().skip_while(|line| !line.starts_with("ROW ")).take_while(|line| !line.trim().is_empty());
    table.filter(|line| line.starts_with("  ")).count()
}

/// Returns headings and rows of a table of measurements, until the first empty line. Of a row only its label stays,
/// what stands before its first column of figures, but where figures are compared exactly. A heading stays as it is,
/// figures included.
fn table(lines: &[String], is_exact: bool) -> Vec<String> {
    let is_head = |line: &String| ["ROW ", "CASE ", "NAPI TO STANDARD"].iter().any(|head| line.starts_with(head));
    let (mut is_lab, mut found) = (false, Vec::new());
    let begin = lines.iter().position(is_head).unwrap_or(lines.len());
    for line in lines[begin..].iter().take_while(|line| !line.trim().is_empty()) {
        is_lab |= line.starts_with("CASE ");
        let columns: Vec<_> = line.trim().split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        let label = match is_head(line) {
            false if is_exact => columns.join("  "),
            false if is_lab => line.split_whitespace().take(2).collect::<Vec<_>>().join(" "),
            false if line.starts_with(' ') => columns[0].into(),
            _ => columns.join("  "),
        };
        found.push(label);
    }
    // The document leaves out what stands below the table.
    while found.last().is_some_and(|line| line == "...") {
        found.pop();
    }
    found
}

/// Returns whether a table has headings and rows of the document's table, in the same order; all of them, if it was
/// printed whole. With `is_exact` the figures are the same too.
pub(crate) fn has_table(expected: &[String], actual: &[String], printed: Printed, is_exact: bool) -> bool {
    let all = table(expected, is_exact);
    // A document may show only the second of two tables.
    let second = actual.iter().position(|line| Some(line) == expected.iter().find(|line| line.contains("TO STANDARD")));
    let is_second = second.is_some() && !expected.iter().any(|line| line.starts_with("ROW "));
    let shown = table(if is_second { &actual[second.unwrap_or(0)..] } else { actual }, is_exact);
    let mut rest = all.iter();
    match printed {
        Printed::Whole => shown.len() > 1 && shown == all,
        Printed::Part => shown.len() > 1 && shown.iter().all(|line| rest.any(|other| other == line)),
    }
}

fn owned(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn figures_may_differ_and_words_may_not() {
    let document =
        "segue  tcp4   6.08   6.03-6.68   61.8k  0\nmtu 1456 = 1500 (eth0) - 44 (IPv4 20)\n-> 198.18.0.2:6080,";
    let agree = |other: &str| agrees(&owned(document), &owned(other));
    assert!(agree("segue tcp4 5.1 5.00-6.68 9 120\nmtu   1376 = 1420 (eth0) - 44 (IPv4 20)\n-> 198.18.0.2:53,"));
    assert_eq!(masked("29.3 k units, 898 kB in"), masked("717 units, 3.1 GB in"));
    for (old, new) in [("segue", "segua"), ("tcp4", "tcp6"), ("eth0", "eth1"), ("0.2:", "0.3:"), ("61.8k", "-")] {
        assert!(!agree(&document.replace(old, new)), "{old} -> {new}");
    }
    assert!(!agree(&format!("{document}\nand more")));
    assert!(!agree("segue tcp4 5.1 5.00-6.68 9 120"));
}

#[test]
fn a_caret_stands_below_its_word() {
    let document = owned("  | dev sg0 remot 198.18.0.2\n  |         ^^^^^ did you mean `remote`?");
    assert!(agrees(&document, &document));
    let moved = owned("  | dev sg0 remot 198.18.0.2\n  |        ^^^^^ did you mean `remote`?");
    assert!(!agrees(&document, &moved));
}

#[test]
fn three_dots_stand_for_lines_or_for_the_rest_of_one() {
    let output = owned("first\nsecond line\nthird\nlast");
    for document in ["...", "first\n...\nlast", "...\nthird\n...", "first\nsecond ...\nthird\nlast\n..."] {
        assert!(agrees(&owned(document), &output), "{document}");
    }
    for document in ["...\nfourth\n...", "first\n...\nthird", "first\nfirst ...\n..."] {
        assert!(!agrees(&owned(document), &output), "{document}");
    }
}

#[test]
fn a_part_of_a_table_has_rows_and_headings_of_the_document() {
    let document =
        owned("ROW    Gbit/s  +-\nmtu 1500/1500, 1 flow\n  lro 4k   8.03  17%\n  no-lro 4k  2.69  1%\n...\nXeon");
    let is_part = |document: &[String], shown: &str| has_table(document, &owned(shown), Printed::Part, false);
    assert!(is_part(&document, "ROW    Gbit/s  +-\nmtu 1500/1500, 1 flow\n  no-lro 4k  2  -\n\nEPYC"));
    for (old, new) in [("no-lro 4k", "no-lro 8k"), ("1500/1500", "1500/9000"), ("Gbit/s", "Mbit/s")] {
        let other = "ROW    Gbit/s  +-\nmtu 1500/1500, 1 flow\n  no-lro 4k  2  -".replace(old, new);
        assert!(!is_part(&document, &other), "{old} -> {new}");
    }
    assert!(!is_part(&document, "error: no table"));
    assert_eq!((row_count(&document), row_count(&owned("NAPI TO STANDARD\n  TCP"))), (2, 0));
}

#[test]
fn a_whole_table_has_every_row_of_the_document_and_no_other() {
    let lab = owned("...\nCASE    NET  Gbit/s\nsegue   tcp4   6.08\nvxlan   tcp4   1.0\n...");
    let is_whole = |shown: &str| has_table(&lab, &owned(shown), Printed::Whole, false);
    assert!(is_whole("CASE    NET  Gbit/s\nsegue   tcp4   1.08\nvxlan   tcp4   -\n\nEPYC"));
    for shown in ["segue   udp4   1.08\nvxlan   tcp4   -", "segue   tcp4   1.08", "vxlan   tcp4   1\nsegue   tcp4   1"]
    {
        assert!(!is_whole(&format!("CASE    NET  Gbit/s\n{shown}\n\nEPYC")), "{shown}");
    }
    assert!(!is_whole("CASE    NET  Gbit/s\nsegue   tcp4   1\nvxlan   tcp4   1\nlink   tcp4   1"));
    assert!(!is_whole("error: no table"));
}

#[test]
fn a_table_of_the_model_has_the_figures_of_the_document() {
    let document = owned("ROW   Mbit/s idle%\nTCP sent, rpi4\n  standard   683  73.7\n  + gro      941  92.3\n...");
    let rows = "ROW   Mbit/s idle%\nTCP sent, rpi4\n  standard   683  73.7\n  + gro      941  92.3\n\nidle%: mean";
    assert!(has_table(&document, &owned(rows), Printed::Whole, true));
    for (old, new) in [("73.7", "73.8"), ("941", "942")] {
        let other = owned(&rows.replace(old, new));
        assert!(!has_table(&document, &other, Printed::Whole, true), "{old} -> {new}");
        assert!(has_table(&document, &other, Printed::Whole, false), "{old} -> {new}");
    }
    // The second table alone, of which a part was printed.
    let document =
        owned("...\nNAPI TO STANDARD   here\n  TCP sent, rpi4   x1.378 +18.6\n  TCP sent, dell   x1.000 +2.9\n...");
    let second = |figure: &str| owned(&format!("{rows}\n\nNAPI TO STANDARD   here\n  TCP sent, rpi4   {figure} +18.6"));
    assert!(has_table(&document, &second("x1.378"), Printed::Part, true));
    assert!(!has_table(&document, &second("x1.379"), Printed::Part, true));
    assert!(!has_table(&document, &second("x1.378"), Printed::Whole, true));
    assert!(!has_table(&document, &owned(rows), Printed::Part, true));
}

#[test]
fn another_machine_wraps_its_description_elsewhere() {
    let here = owned(
        "CASE\n\nAMD EPYC, 2 cpus, Linux 6.18.44-fc, CPU time: cgroup v1\n2026-11-21T10:57:14Z, simd avx2, runs 5",
    );
    let there =
        owned("CASE\n\nIntel(R) Xeon(R), 64 cpus, Linux 6.1\nCPU time: all, 2027-01-01T00:00:00Z\nsimd neon, runs 1");
    assert!(agrees(&here, &there));
    assert!(!agrees(
        &here,
        &owned("CASE\n\nAMD EPYC, 2 cpus, Linux 6.1, CPU time: all\n2026-11-21T10:57:14Z, simd avx2, turns 5")
    ));
}
