// SPDX-License-Identifier: BSD-3-Clause
//! The declarations are those of the C headers. The layout of structures and the values of constants are in the C tests, as
//! tests/abi/layout.c, which the C compiler compares with the headers; functions are looked up in the headers themselves.
use std::collections::{BTreeMap, BTreeSet};

const LAYOUT: &str = include_str!("../../../../tests/abi/layout.c");
const HEADERS: [&str; 5] = [
    include_str!("../../../../include/strobe/strobe.h"),
    include_str!("../../../../include/strobe/strobe_append.h"),
    include_str!("../../../../include/strobe/strobe_mask_lists.h"),
    include_str!("../../../../include/strobe/strobe_quantise.h"),
    include_str!("../../../../include/strobe/strobe_score.h"),
];

/// Whether the headers of libstrobe declare it: layout.c has the structures of libstrobe_dist too.
fn is_ours(name: &str) -> bool {
    HEADERS.iter().any(|h| h.contains(&format!("struct {name} {{")) || h.contains(&format!(" {name} = ")))
}

/// The arguments of each line `NAME(a, b, ...);` about something of ours.
fn lines(name: &str) -> Vec<Vec<&'static str>> {
    let opening = format!("{name}(");
    LAYOUT
        .lines()
        .filter_map(|line| line.strip_prefix(opening.as_str())?.strip_suffix(");"))
        .map(|arguments| arguments.split(", ").collect::<Vec<_>>())
        .filter(|arguments| is_ours(arguments[0]))
        .collect()
}

fn number(text: &str) -> usize {
    text.parse().unwrap()
}

#[test]
fn structures_are_laid_out_as_in_c() {
    let mut in_c: BTreeMap<&str, BTreeSet<(&str, usize, usize)>> = BTreeMap::new();
    for field in lines("FIELD") {
        in_c.entry(field[0]).or_default().insert((field[1], number(field[2]), number(field[3])));
    }
    let mut here = BTreeMap::new();
    for (name, grows, bytes, fields) in strobe_sys::layouts() {
        let mut set: BTreeSet<_> =
            fields.into_iter().map(|(name, offset, size)| (name.trim_end_matches('_'), offset, size)).collect();
        if grows {
            set.insert(("struct_size", 0, 8));
        }
        let end = set.iter().map(|(_, offset, size)| offset + size).max().unwrap();
        assert_eq!(bytes, (end + 7) / 8 * 8, "{name} ends where its last field does");
        here.insert(name, set);
    }
    assert!(in_c.len() > 20, "tests/abi/layout.c is not read");
    assert_eq!(in_c, here);
}

#[test]
fn sizes_are_those_of_c() {
    let here: BTreeMap<_, _> =
        strobe_sys::layouts().into_iter().map(|(name, grows, bytes, _)| (name, (grows, bytes))).collect();
    for fixed in lines("FIXED") {
        assert_eq!(here[fixed[0]], (false, number(fixed[1])), "{}", fixed[0]);
    }
    for growing in lines("GROWS") {
        let (grows, bytes) = here[growing[0]];
        assert!(grows && bytes == number(growing[1]), "{}", growing[0]);
    }
}

#[test]
fn constants_have_their_values() {
    let in_c: BTreeMap<_, i32> = lines("VALUE").into_iter().map(|line| (line[0], line[1].parse().unwrap())).collect();
    assert!(in_c.len() > 20, "tests/abi/layout.c is not read");
    assert_eq!(in_c, strobe_sys::constants().into_iter().collect());
}

#[test]
fn every_function_of_the_headers_is_declared() {
    let name = |text: &'static str| text.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap();
    let in_c: BTreeSet<_> =
        HEADERS.iter().flat_map(|h| h.lines()).filter(|l| l.starts_with("STROBE_API ")).map(name).collect();
    let source = include_str!("../src/lib.rs");
    let here: BTreeSet<_> = source.lines().filter_map(|l| l.trim().strip_prefix("pub fn strobe_")).collect();
    let here: BTreeSet<_> = here.into_iter().map(|l| format!("strobe_{}", l.split('(').next().unwrap())).collect();
    assert_eq!(in_c, here.iter().map(String::as_str).collect());
    // SAFETY: the string lives as long as the library.
    let version = unsafe { std::ffi::CStr::from_ptr(strobe_sys::strobe_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}
