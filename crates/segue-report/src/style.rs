//! The style sheet of the page.

/// Colours by name, for light and for dark pages. Text has a contrast of at least 4.5 against its ground.
pub(crate) const COLOURS: &[(&str, &str, &str)] = &[
    ("ground", "#ffffff", "#14161a"),
    ("raised", "#f3f4f6", "#20242b"),
    ("text", "#16181d", "#eceff4"),
    ("faint", "#4b5563", "#b4bcc8"),
    ("line", "#c3c8d0", "#464d59"),
    ("bar", "#0067a3", "#4aa8e0"),
    ("seed", "#a34700", "#f0a35e"),
];

const RULES: &str = "
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.25rem;margin:2rem 0 .3rem}
p,li,dd{overflow-wrap:anywhere}.faint{color:var(--faint)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.6rem;padding:0;list-style:none}
.cards li{background:var(--raised);border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem}
.cards b{display:block;font-size:1.2rem}
.pair>*{min-width:0}.pair{display:grid;grid-template-columns:1fr;gap:1rem;align-items:start}
@media(min-width:60rem){.pair{grid-template-columns:minmax(0,34rem) minmax(0,1fr)}}
figure{margin:0}svg{display:block;width:100%;height:auto;max-width:34rem}
svg text{fill:var(--text);font:12px system-ui,sans-serif}svg .faint{fill:var(--faint)}
.bar{fill:var(--bar)}.range,.axis{stroke:var(--text);fill:none}.grid{stroke:var(--line)}
.dot{fill:var(--ground);stroke:var(--text)}.seed{stroke:var(--seed);stroke-width:2;stroke-dasharray:4 3}
svg .seedtext{fill:var(--seed)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--faint)}
th,td{overflow-wrap:break-word;text-align:left;padding:.25rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;white-space:nowrap}
dl{display:grid;grid-template-columns:minmax(6rem,auto) 1fr;gap:.15rem .8rem}dt{color:var(--faint)}dd{margin:0}
@media(max-width:40rem){
 table,caption,tbody,tr,td,th[scope=row]{display:block}thead{display:none}
 tr{border:1px solid var(--line);border-radius:.4rem;margin:.4rem 0;padding:.3rem}
 td,td.n{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem .3rem;text-align:right}
 td::before{content:attr(data-head);color:var(--faint);text-align:left;white-space:normal}th[scope=row]{border:0}
}
@media print{main{max-width:none}figure,tr,.cards li{break-inside:avoid}h2{break-after:avoid}}
";

/// Returns the style sheet of the page.
pub(crate) fn sheet() -> String {
    let list = |of: fn(&(&str, &'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().map(|colour| format!("--{}:{};", colour.0, of(colour))).collect()
    };
    let (light, dark) = (list(|colour| colour.1), list(|colour| colour.2));
    // Paper is light whatever the screen is.
    format!(
        ":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{RULES}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour (WCAG 2.1).
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_has_a_contrast_of_4_5_on_every_ground_and_bars_of_3() {
        for column in [1, 2] {
            let of = |name: &str| {
                let colour = COLOURS.iter().find(|colour| colour.0 == name).unwrap();
                if column == 1 { colour.1 } else { colour.2 }
            };
            for ground in ["ground", "raised"] {
                for text in ["text", "faint", "seed"] {
                    assert!(contrast(of(text), of(ground)) >= 4.5, "{text} on {ground} of column {column}");
                }
                assert!(contrast(of("bar"), of(ground)) >= 3.0, "{ground} of column {column}");
            }
        }
        assert!((contrast("#ffffff", "#000000") - 21.0).abs() < 1e-9);
    }
}
