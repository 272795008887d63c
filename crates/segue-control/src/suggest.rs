//! Helpers of parsers and messages: the nearest valid word, integers, and lists in words.

/// Returns the candidate nearest to `token`, if one is similar enough to be meant.
pub fn nearest<'a>(token: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let token = token.to_ascii_lowercase();
    let allowed = (token.chars().count() / 3).max(1);
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&token, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Parses a decimal or hexadecimal number without a sign.
pub fn integer(token: &str) -> Option<u64> {
    let (digits, radix) = match token.strip_prefix("0x").or_else(|| token.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (token, 10),
    };
    // from_str_radix would accept a sign.
    digits.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| u64::from_str_radix(digits, radix).ok())?
}

/// Joins names as `a, b or c`.
pub fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
