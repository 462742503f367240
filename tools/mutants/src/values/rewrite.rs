// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rewrites a file's text, with a switch at each of its nodes.
//!
//! Invariant: if no mutant is selected, the new text has the meaning of the old one. Each operand is evaluated once, in
//! the order of the text. Each line keeps its number.

use std::ops::Range;

use super::node::{Node, Shape};

/// A rewritten file.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// The new text.
    pub text: String,
    /// For each node in the new text: its index and its bytes there.
    pub nodes: Vec<(usize, Range<usize>)>,
}

/// Rewrites `text` with those of `nodes` that `is_in` selects by index. A node must come before the nodes inside it.
pub fn rewrite(text: &str, nodes: &[Node], is_in: impl Fn(usize) -> bool) -> Rewritten {
    let mut edits: Vec<Edit> = Vec::new();
    for (index, node) in nodes.iter().enumerate().filter(|(index, _)| is_in(*index)) {
        let (open, middle, close) = pieces(node, text);
        let Range { start, end } = node.bytes;
        // At one position, ends come before beginnings. Of two beginnings the outer node comes first; of two ends the
        // inner node. The text that replaces a `!` goes around its operand.
        let begin = start..start + usize::from(matches!(node.shape, Shape::Not(_)));
        edits.push(Edit { at: begin, order: (2, index as isize), text: open, node: Some((index, true)) });
        edits.extend(middle.map(|(at, text)| Edit { at, order: (1, 0), text, node: None }));
        let close = Edit { at: end..end, order: (0, -(index as isize)), text: close, node: Some((index, false)) };
        edits.push(close);
    }
    edits.sort_by_key(|edit| (edit.at.start, edit.order));

    let mut new = Rewritten::default();
    let (mut read, mut open) = (0, Vec::new());
    for edit in edits {
        new.text += text.get(read..edit.at.start).unwrap_or_default();
        read = edit.at.end;
        let start = new.text.len();
        new.text += &edit.text;
        match edit.node {
            Some((index, true)) => open.push((index, start)),
            Some((index, false)) => {
                let start = open.pop().map_or(start, |(_, start)| start);
                new.nodes.push((index, start..new.text.len()));
            }
            None => {}
        }
    }
    new.text += text.get(read..).unwrap_or_default();
    new
}

struct Edit {
    at: Range<usize>,
    order: (u8, isize),
    text: String,
    /// The node that begins (true) or ends here.
    node: Option<(usize, bool)>,
}

/// Returns the text before a node, the replacement of its middle, and the text after it.
fn pieces(node: &Node, text: &str) -> (String, Option<(Range<usize>, String)>, String) {
    match &node.shape {
        Shape::Binary { operator, by_reference, others } => {
            let own = text.get(operator.clone()).unwrap_or_default();
            let chosen = others.iter().map(|(index, other)| format!("if {} {{ a {other} b }} else ", on(*index)));
            let chosen: String = chosen.collect();
            let reference = if *by_reference { "&" } else { "" };
            let middle = format!("), {reference}(");
            let close = format!(")) {{ (a, b) => {chosen}{{ a {own} b }} }})");
            (format!("(match ({reference}("), Some((operator.clone(), middle)), close)
        }
        Shape::Method { middle, name, other: (index, other) } => {
            // The call's own closing parenthesis ends the tuple.
            let close = format!(" {{ (a, b) => if {} {{ a.{other}(b) }} else {{ a.{name}(b) }} }})", on(*index));
            ("(match (".to_owned(), Some((middle.clone(), ", ".to_owned())), close)
        }
        Shape::Condition { yes, no } => {
            let yes = yes.map_or_else(String::new, |index| format!("{} || ", on(index)));
            let no = no.map_or_else(String::new, |index| format!("!{} && ", on(index)));
            (format!("({yes}({no}("), None, ")))".to_owned())
        }
        Shape::Not(index) => {
            ("(match (".to_owned(), None, format!(") {{ a => if {} {{ a }} else {{ !a }} }})", on(*index)))
        }
        Shape::Dropped(index) => (format!("(if !{} {{ ", on(*index)), None, " })".to_owned()),
        Shape::Instead(others) => {
            let chosen = others.iter().map(|(index, other)| format!("if {} {{ {other} }} else ", on(*index)));
            (format!("({}{{ ", chosen.collect::<String>()), None, " })".to_owned())
        }
    }
}

/// Returns the condition that the value with this index is selected. The switch counts from 1; 0 selects no mutant.
fn on(index: usize) -> String {
    format!("::twofold_mutant::on({})", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;
    use crate::values::sites::Sites;

    fn new(text: &str) -> (Sites, Rewritten) {
        let mut sites = Sites::default();
        sites.read(&[("a.rs".to_owned(), text.to_owned())]).unwrap();
        let rewritten = rewrite(text, &sites.nodes["a.rs"], |_| true);
        syn::parse_file(&rewritten.text).unwrap_or_else(|error| panic!("{error}: {}", rewritten.text));
        (sites, rewritten)
    }

    fn short(text: &str) -> String {
        new(text).1.text.replace("::twofold_mutant::", "")
    }

    #[test]
    fn each_shape_keeps_its_operands() {
        let text = short("fn f() { a.x < b; }");
        assert_eq!(text, "fn f() { (match (&(a.x ), &( b)) { (a, b) => if on(1) { a <= b } else { a < b } }); }");
        let text = short("fn f() { a.min(b) }");
        assert_eq!(text, "fn f() { (match (a, b) { (a, b) => if on(1) { a.max(b) } else { a.min(b) } }) }");
        assert_eq!(short("fn f() { !a }"), "fn f() { (match (a) { a => if on(1) { a } else { !a } }) }");
        assert_eq!(short("fn f() { if a() {} }"), "fn f() { if (on(1) || (!on(2) && (a()))) {} }");
        assert_eq!(short("fn f() { a |= b; }"), "fn f() { (if !on(1) { a |= b }); }");
        assert_eq!(short("fn f() { g(7) }"), "fn f() { g((if on(1) { 8 } else { 7 })) }");
    }

    #[test]
    fn nodes_inside_nodes_are_in_order() {
        let (sites, new) = new("fn f() { while !(a + 1 < b) && c == d.x {} }");
        let first = sites.nodes["a.rs"].iter().position(|node| matches!(node.shape, Shape::Not(_))).unwrap();
        let bytes = |index| new.nodes.iter().find(|(found, _)| *found == index).unwrap().1.clone();
        assert!(new.nodes.len() == sites.nodes["a.rs"].len());
        let inner = &new.text[bytes(first + 1)];
        assert!(new.text[bytes(first)].contains(inner) && inner.starts_with("(match (&("), "{}", new.text);
    }

    #[test]
    fn a_constant_is_one_value_wherever_it_is_used() {
        let (sites, new) =
            new("const A: u64 = 6; fn f(x: u64) -> u64 { x & A } fn g(x: u64) -> u64 { A } fn h(A: u64) {}");
        let labels: Vec<_> = sites.values.iter().map(Mutation::label).collect();
        assert_eq!(labels, ["a::f: x & A => x | A", "a::A: 6 => its lowest bit clear", "a::A: 6 => a bit more"]);
        assert_eq!(new.text.matches("on(2)").count(), 2, "{}", new.text);
    }

    #[test]
    fn lines_keep_their_numbers() {
        let text = "fn f() {\n    a\n        < b // why\n        && c;\n    !d;\n}\n";
        assert_eq!(new(text).1.text.lines().count(), text.lines().count());
    }
}
