//! Tests that `segue.h` declares each function of the library with the types that it has in Rust, and that none lets a
//! panic out.

use std::collections::BTreeSet;
use std::fs;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns a type of the interface in C.
fn in_c(kind: &str) -> String {
    if let Some(pointee) = kind.strip_prefix("*mut ") {
        return format!("{} *", in_c(pointee));
    }
    match kind.strip_prefix("*const ").ok_or(kind) {
        Ok(pointee) => format!("const {} *", in_c(pointee)),
        Err("") => "void".into(),
        Err("usize") => "size_t".into(),
        Err("isize") => "ptrdiff_t".into(),
        Err("c_char") => "char".into(),
        Err(name) => match name.strip_prefix('u') {
            Some(bits) => format!("uint{bits}_t"),
            // segue_out for SegueOut.
            None => {
                let split = |c: char| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.to_string() };
                format!("struct {}", name.chars().map(split).collect::<String>().trim_start_matches('_'))
            }
        },
    }
}

#[test]
fn the_header_declares_the_functions_with_the_types_of_the_library() {
    let header = fs::read_to_string(format!("{HERE}/include/segue.h")).unwrap();
    // As rustdoc shows them; `make check` compares the list.
    let listing = fs::read_to_string(format!("{HERE}/../../tools/api.d/segue-capi.txt")).unwrap();
    let spaced = |text: &str| text.replace('*', " * ").split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = BTreeSet::new();
    for (_, function) in listing.lines().filter_map(|line| line.split_once("extern \"C\" fn ")) {
        let (name, rest) = function.split_once('(').unwrap();
        let (parameters, result) = rest.split_once(')').unwrap();
        let parameters = parameters.split(',').filter_map(|parameter| parameter.split_once(": "));
        let wanted: Vec<String> = parameters.map(|(_, kind)| spaced(&in_c(kind.trim()))).collect();
        let (before, behind) = header.split_once(&format!("{name}(")).expect(name);
        let given = behind.split(')').next().unwrap().split(',').map(spaced);
        // Without the names; `void` has none.
        let given: Vec<String> = given.filter_map(|one| Some(one.rsplit_once(' ')?.0.to_owned())).collect();
        assert_eq!(given, wanted, "{name}");
        let given = spaced(before.rsplit(['\n', ';']).next().unwrap());
        assert_eq!(given, spaced(&in_c(result.trim().trim_start_matches("-> "))), "{name}");
        found.insert(name.to_owned());
    }
    let names = header.split('(').filter_map(|before| before.rsplit([' ', '*', '\n']).next());
    assert_eq!(found, names.filter(|name| name.starts_with("segue_")).map(str::to_owned).collect::<BTreeSet<_>>());
}

#[test]
fn every_function_ends_a_panic_inside_of_the_library() {
    let listed = fs::read_to_string(format!("{HERE}/segue.map")).unwrap();
    let listed = listed.lines().filter(|line| line.trim_start().starts_with("segue_")).count();
    let mut count = 0;
    for file in ["abi.rs", "chain/abi.rs"] {
        let source = fs::read_to_string(format!("{HERE}/src/{file}")).unwrap();
        for function in source.split("#[unsafe(no_mangle)]").skip(1) {
            let (head, rest) = function.split_once(" {\n").unwrap();
            let body = rest.split("\n}\n").next().unwrap();
            let ends = ["guarded(", "catch_unwind(", "created(", "free("];
            assert!(ends.iter().any(|end| body.contains(end)), "{head}");
            count += 1;
        }
    }
    assert_eq!(count, listed);
    // What they call does.
    let source = fs::read_to_string(format!("{HERE}/src/abi.rs")).unwrap();
    for name in ["fn guarded(", "fn created<T>(", "fn free<T>("] {
        let body = source.split(name).nth(1).unwrap().split("\n}\n").next().unwrap();
        assert!(body.contains("catch_unwind("), "{name}");
    }
}
