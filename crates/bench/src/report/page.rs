// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame of a page: one file that needs nothing else, is readable without a script, and holds what it was made of.
//!
//! Invariant: a page refers to nothing outside of itself; its JSON is, byte for byte of each value, what it was made of.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use super::plot::colour;

/// A page of this title, with `data` inside.
///
/// # Errors
///
/// The data cannot be written as JSON.
pub fn page(title: &str, body: Markup, data: &impl Serialize) -> anyhow::Result<String> {
    let json = embedded(data)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(colour::style())) }
            }
            body {
                (body)
                h2 id="raw" { "The results themselves" }
                p #buttons hidden {
                    button type="button" #download { "Save as results.json" }
                    button type="button" #copy { "Copy" }
                }
                p.faint {
                    "This page holds its results as JSON, in the element " code { "results" } ", in the form that "
                    code { "twofold bench compare" } " reads once they are saved to a file."
                }
                script #results type="application/json" { (PreEscaped(json)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(page.into_string())
}

/// JSON that no page takes for anything else: a `<` can only be inside a string, where JSON has another way to write it.
fn embedded(data: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(data)?.replace('<', r"\u003c"))
}

const STYLE: &str = include_str!("style.css");

/// Saving and copying; without it the page lacks two buttons.
const SCRIPT: &str = r#"
const text = document.getElementById("results").textContent;
document.getElementById("download").onclick = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "results.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const copy = document.getElementById("copy");
// A page from a file may lack the clipboard.
if (navigator.clipboard) {
  copy.onclick = () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; });
} else {
  copy.remove();
}
document.getElementById("buttons").hidden = false;
"#;

/// The JSON inside of a page; for tests.
#[cfg(test)]
pub fn data<T: serde::de::DeserializeOwned>(page: &str) -> T {
    let start = r#"<script id="results" type="application/json">"#;
    let text = page.split_once(start).unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(text).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_element() {
        let nasty =
            vec!["</script><script>alert(1)</script>".to_owned(), "<!--".to_owned(), "& \"'\u{2028}".to_owned()];
        let page = page("<title>", html! { p { "a < b" } }, &nasty).unwrap();
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("<title>&lt;title&gt;</title>") && page.contains("a &lt; b"));
        assert_eq!(data::<Vec<String>>(&page), nasty);
    }
}
