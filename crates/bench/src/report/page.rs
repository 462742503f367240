// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame of a page: a single file that is readable without a script, and holds its own data.
//!
//! Invariant: a page refers to nothing outside of itself, and its JSON has exactly the values that it was made from.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use super::plot::colour;

/// Makes a page with this title, and with `data` inside.
///
/// # Errors
///
/// An error is returned if the data cannot be written as JSON.
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
                h2 id="raw" { "Raw results" }
                p #buttons hidden {
                    button type="button" #download { "Save as results.json" }
                    button type="button" #copy { "Copy" }
                }
                p.faint {
                    "This page holds its results as JSON, in the element " code { "results" } ". If it is saved to a file, "
                    code { "twofold bench compare" } " can read it."
                }
                script #results type="application/json" { (PreEscaped(json)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(page.into_string())
}

/// Returns JSON that cannot end its HTML element. A `<` occurs only inside a string, where JSON can escape it.
fn embedded(data: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(data)?.replace('<', r"\u003c"))
}

const STYLE: &str = include_str!("style.css");

/// Saving and copying. Without the script, the page lacks two buttons.
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
// The clipboard may be missing if the page is opened as a file.
if (navigator.clipboard) {
  copy.onclick = () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; });
} else {
  copy.remove();
}
document.getElementById("buttons").hidden = false;
"#;

/// Returns the JSON inside of a page; for tests.
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
