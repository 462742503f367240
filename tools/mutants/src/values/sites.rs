// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of all mutants of values, from the source.
//!
//! A [`Node`] is a place in a file, and a [`Value`] is one change of it. A constant is one value with a node for each
//! use. Invariant: each node is inside a function's body and is evaluated at run time. [`Sites::skipped`] counts the
//! other places.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Context;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, Lit, Pat, Signature, Type, UnOp};

use super::constants::{Constants, Scope};
use super::names::{is_elsewhere, module, name_of, squeezed};
use super::node::{Node, Shape};
use super::value::{Kind, Value};

/// The mutants that were found.
#[derive(Debug, Default)]
pub struct Sites {
    /// The changes. Nodes refer to them by index.
    pub values: Vec<Value>,
    /// The nodes of each file. A node comes before the nodes inside it.
    pub nodes: BTreeMap<String, Vec<Node>>,
    /// Sites that cannot be switched at run time: in constants, patterns, and lengths of arrays.
    pub skipped: usize,
}

impl Sites {
    /// Reads the files of one crate, each with its text.
    pub fn read(&mut self, files: &[(String, String)]) -> anyhow::Result<()> {
        let mut parsed = Vec::new();
        let mut constants = Constants::default();
        for (file, text) in files {
            let syntax = syn::parse_file(text).with_context(|| format!("cannot parse {file}"))?;
            constants.read(file, &syntax);
            parsed.push((file, text, syntax));
        }
        for (file, text, syntax) in &parsed {
            let mut reader = Reader { sites: self, constants: &mut constants, file, text, scope: Scope::default() };
            reader.visit_file(syntax);
        }
        self.number();
        Ok(())
    }

    /// Numbers equal changes of the same function.
    fn number(&mut self) {
        let mut seen = BTreeMap::<_, usize>::new();
        for value in &mut self.values {
            let number = seen.entry((value.file.clone(), value.function.clone(), value.change.clone())).or_default();
            *number += 1;
            value.number = *number;
        }
    }
}

struct Reader<'a> {
    sites: &'a mut Sites,
    constants: &'a mut Constants,
    file: &'a str,
    text: &'a str,
    scope: Scope,
}

impl Reader<'_> {
    fn within(&mut self, scope: Scope, work: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.scope, scope);
        work(self);
        self.scope = outer;
    }

    fn function(&mut self, signature: &Signature, attributes: &[Attribute], work: impl FnOnce(&mut Self)) {
        if !is_elsewhere(attributes) && !formats(signature) {
            let function = Some(signature.ident.to_string());
            let is_const = signature.constness.is_some();
            let scope = Scope { function, is_const, is_constant: false, owner: self.scope.owner.clone() };
            self.within(scope, work);
        }
    }

    fn constant(&mut self, work: impl FnOnce(&mut Self)) {
        self.within(Scope { is_constant: true, ..self.scope.clone() }, work);
    }

    /// Returns whether a site here can be switched at run time; counts a site that cannot.
    fn is_open(&mut self) -> bool {
        let is_open = self.scope.function.is_some() && !self.scope.is_constant;
        self.sites.skipped += usize::from(!is_open);
        is_open
    }

    fn value(&mut self, kind: Kind, at: proc_macro2::Span, was: &str, becomes: &str) -> usize {
        let place = at.start();
        let (owner, function) = (&self.scope.owner, self.scope.function.as_deref().unwrap_or_default());
        let owner = owner.clone().unwrap_or_else(|| module(self.file));
        self.sites.values.push(Value {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column + 1,
            function: format!("{owner}::{function}"),
            kind,
            change: format!("{} => {}", squeezed(was), squeezed(becomes)),
            number: 1,
        });
        self.sites.values.len() - 1
    }

    fn node(&mut self, bytes: Range<usize>, shape: Shape) {
        self.sites.nodes.entry(self.file.to_owned()).or_default().push(Node { bytes, shape });
    }

    fn text_of(&self, bytes: &Range<usize>) -> String {
        self.text.get(bytes.clone()).unwrap_or_default().to_owned()
    }

    /// Adds the mutants of a whole condition. The operands of a chain are handled one by one.
    fn condition(&mut self, expression: &Expr, may_be_true: bool) {
        let is_chain = matches!(expression, Expr::Binary(binary) if matches!(binary.op, BinOp::And(_) | BinOp::Or(_)));
        if is_chain || matches!(expression, Expr::Let(_) | Expr::Lit(_)) || !self.is_open() {
            return;
        }
        self.taken_for(expression, may_be_true, true);
    }

    fn taken_for(&mut self, expression: &Expr, yes: bool, no: bool) {
        let span = expression.span();
        let (bytes, was) = (span.byte_range(), self.text_of(&span.byte_range()));
        let yes = yes.then(|| self.value(Kind::Condition, span, &was, "true"));
        let no = no.then(|| self.value(Kind::Condition, span, &was, "false"));
        self.node(bytes, Shape::Condition { yes, no });
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        use BinOp::{Add, BitAnd, BitOr, BitXor, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Rem, Shl, Shr, Sub};
        let (kind, other) = match binary.op {
            Lt(_) => (Kind::Bound, "<="),
            Le(_) => (Kind::Bound, "<"),
            Gt(_) => (Kind::Bound, ">="),
            Ge(_) => (Kind::Bound, ">"),
            Eq(_) => (Kind::Bound, "!="),
            Ne(_) => (Kind::Bound, "=="),
            Add(_) => (Kind::Operator, "-"),
            Sub(_) => (Kind::Operator, "+"),
            Mul(_) | Rem(_) => (Kind::Operator, "/"),
            Div(_) => (Kind::Operator, "*"),
            BitAnd(_) => (Kind::Operator, "|"),
            BitOr(_) => (Kind::Operator, "&"),
            BitXor(_) => (Kind::Operator, "|"),
            Shl(_) => (Kind::Operator, ">>"),
            Shr(_) => (Kind::Operator, "<<"),
            BinOp::And(_) | BinOp::Or(_) => return self.operands(binary),
            // The other operators are compound assignments.
            _ => return self.dropped(binary),
        };
        if !self.is_open() {
            return;
        }
        let operator = binary.op.span().byte_range();
        let (left, right) = (binary.left.span().byte_range(), binary.right.span().byte_range());
        let (was, bytes) = (self.text_of(&(left.start..right.end)), left.start..right.end);
        let becomes = format!("{} {other} {}", self.text_of(&left), self.text_of(&right));
        let index = self.value(kind, binary.span(), &was, &becomes);
        // In a const function the operands of a comparison are integers. References to them would be compared by a
        // trait, which the compiler cannot evaluate.
        let by_reference = kind == Kind::Bound && !self.scope.is_const;
        self.node(bytes, Shape::Binary { operator, by_reference, others: vec![(index, other)] });
    }

    /// Adds the mutants that leave out one operand of `&&` or `||`.
    fn operands(&mut self, binary: &syn::ExprBinary) {
        let is_and = matches!(binary.op, BinOp::And(_));
        for operand in [&binary.left, &binary.right] {
            let is_chain =
                matches!(&**operand, Expr::Binary(inner) if matches!(inner.op, BinOp::And(_) | BinOp::Or(_)));
            if !is_chain && !matches!(&**operand, Expr::Let(_)) && self.is_open() {
                self.taken_for(operand, is_and, !is_and);
            }
        }
    }

    fn dropped(&mut self, binary: &syn::ExprBinary) {
        if self.is_open() {
            let bytes = binary.span().byte_range();
            let index = self.value(Kind::Operator, binary.span(), &self.text_of(&bytes), "()");
            self.node(bytes, Shape::Dropped(index));
        }
    }

    fn literal(&mut self, literal: &syn::ExprLit) {
        if !matches!(literal.lit, Lit::Int(_) | Lit::Bool(_)) || !self.is_open() {
            return;
        }
        let bytes = literal.span().byte_range();
        let was = self.text_of(&bytes);
        let others = match &literal.lit {
            Lit::Bool(value) => vec![(!value.value).to_string()],
            Lit::Int(number) => numbers(number),
            _ => Vec::new(),
        };
        let others: Vec<_> =
            others.into_iter().map(|other| (self.value(Kind::Literal, literal.span(), &was, &other), other)).collect();
        self.node(bytes, Shape::Instead(others));
    }

    fn path(&mut self, path: &syn::ExprPath) {
        let name = path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if path.qself.is_some() || !name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
            return;
        }
        let Some(constant) = self.constants.find(self.file, &self.scope, &path.path) else { return };
        if self.scope.function.is_none() || self.scope.is_constant {
            // The constant that uses this one has mutants of its own.
            return;
        }
        if constant.values.is_empty() {
            let owner = constant.owner.clone().unwrap_or_else(|| module(&constant.file));
            let changes = [("{} & ({} - 1)", "its lowest bit clear"), ("{} | {} << 1", "a bit more")];
            let is_zero =
                syn::parse_str::<syn::LitInt>(&constant.text).is_ok_and(|number| number.base10_digits() == "0");
            let changes = if is_zero { &[("{} + 1", "1")][..] } else { &changes[..] };
            for (change, words) in changes {
                constant.values.push((self.sites.values.len(), (*change).to_owned()));
                self.sites.values.push(Value {
                    file: constant.file.clone(),
                    line: constant.line,
                    column: constant.column,
                    function: format!("{owner}::{}", constant.name),
                    kind: Kind::Constant,
                    change: format!("{} => {words}", constant.text),
                    number: 1,
                });
            }
        }
        let bytes = path.span().byte_range();
        let text = self.text.get(bytes.clone()).unwrap_or_default();
        let others = constant.values.iter().map(|(index, change)| (*index, change.replace("{}", text))).collect();
        self.node(bytes, Shape::Instead(others));
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let name = call.method.to_string();
        let other = match name.as_str() {
            "min" => "max",
            "max" => "min",
            _ => return,
        };
        if call.args.len() != 1 || !self.is_open() {
            return;
        }
        let (left, right) = (call.receiver.span().byte_range(), call.args[0].span().byte_range());
        let (bytes, was) = (call.span().byte_range(), self.text_of(&call.span().byte_range()));
        let becomes = format!("{}.{other}({})", self.text_of(&left), self.text_of(&right));
        let index = self.value(Kind::Bound, call.span(), &was, &becomes);
        let middle = left.end..call.paren_token.span.open().byte_range().end;
        self.node(bytes, Shape::Method { middle, name, other: (index, other) });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_elsewhere(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_elsewhere(&item.attrs) {
            let scope = Scope { owner: name_of(&item.self_ty), ..Scope::default() };
            self.within(scope, |reader| item.items.iter().for_each(|item| reader.visit_impl_item(item)));
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let scope = Scope { owner: Some(item.ident.to_string()), ..Scope::default() };
        self.within(scope, |reader| item.items.iter().for_each(|item| reader.visit_trait_item(item)));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.attrs, |reader| reader.visit_block(&item.block));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.attrs, |reader| reader.visit_block(&item.block));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, &item.attrs, |reader| reader.visit_block(body));
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|reader| reader.visit_expr(&item.expr));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|reader| reader.visit_expr(&item.expr));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|reader| reader.visit_expr(&item.expr));
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.constant(|reader| reader.visit_block(&block.block));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.constant(|reader| reader.visit_expr(&repeat.len));
    }

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        match pattern {
            Pat::Guard(guarded) => {
                self.visit_pat(&guarded.pat);
                self.condition(&guarded.guard, true);
                self.visit_expr(&guarded.guard);
            }
            Pat::Lit(_) | Pat::Range(_) => self.sites.skipped += 1,
            _ => self.constant(|reader| visit::visit_pat(reader, pattern)),
        }
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let attributes = match statement {
            syn::Stmt::Local(local) => &local.attrs[..],
            syn::Stmt::Expr(Expr::If(condition), _) => &condition.attrs,
            syn::Stmt::Expr(Expr::Block(block), _) => &block.attrs,
            syn::Stmt::Expr(Expr::MethodCall(call), _) => &call.attrs,
            syn::Stmt::Expr(Expr::Call(call), _) => &call.attrs,
            _ => &[],
        };
        if !is_elsewhere(attributes) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        // The compiler decides a `cfg!`. The branch for the model checker is left out.
        if matches!(&*expression.cond, Expr::Macro(asked) if asked.mac.path.is_ident("cfg")) {
            if let Some((_, otherwise)) = &expression.else_branch {
                self.visit_expr(otherwise);
            }
            return;
        }
        self.condition(&expression.cond, true);
        visit::visit_expr_if(self, expression);
    }

    fn visit_expr_while(&mut self, expression: &'ast syn::ExprWhile) {
        // A condition that is always true would loop for ever, which shows nothing.
        self.condition(&expression.cond, false);
        visit::visit_expr_while(self, expression);
    }

    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        self.binary(expression);
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        if matches!(expression.op, UnOp::Not(_)) && self.is_open() {
            let (bytes, operand) = (expression.span().byte_range(), expression.expr.span().byte_range());
            let (was, becomes) = (self.text_of(&bytes), self.text_of(&operand));
            let index = self.value(Kind::Operator, expression.span(), &was, &becomes);
            self.node(bytes, Shape::Not(index));
        }
        visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        self.literal(literal);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.path(path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.method(call);
        visit::visit_expr_method_call(self, call);
    }
}

/// Returns other values of a literal: for a decimal number, one more; for a mask, its lowest bit cleared, and one bit
/// more.
fn numbers(literal: &syn::LitInt) -> Vec<String> {
    let Ok(value) = literal.base10_parse::<u128>() else { return Vec::new() };
    let suffix = literal.suffix();
    let is_mask = ["0x", "0b"].iter().any(|prefix| literal.to_string().starts_with(prefix));
    match value {
        0 => vec![format!("1{suffix}")],
        _ if !is_mask => vec![format!("{}{suffix}", value + 1)],
        _ => {
            let more = value | value << 1;
            let fits =
                if value > u128::from(u32::MAX) { more <= u128::from(u64::MAX) } else { more <= u128::from(u32::MAX) };
            let others = [Some(value & (value - 1)), Some(more).filter(|_| fits)];
            others.into_iter().flatten().map(|other| format!("{other:#x}{suffix}")).collect()
        }
    }
}

/// Returns whether a function only formats output.
fn formats(signature: &Signature) -> bool {
    quote::ToTokens::to_token_stream(&signature.inputs).to_string().contains("Formatter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;

    fn labels(text: &str) -> (Vec<String>, usize) {
        let mut sites = Sites::default();
        sites.read(&[("crates/x/src/thing.rs".to_owned(), text.to_owned())]).unwrap();
        (sites.values.iter().map(Mutation::label).collect(), sites.skipped)
    }

    #[test]
    fn each_kind_is_found() {
        let (found, skipped) = labels("impl A { fn f(&mut self) { if a < b && !c { self.x |= d.min(e) } } }");
        let expected = [
            "A::f: a < b => true",
            "A::f: !c => true",
            "A::f: a < b => a <= b",
            "A::f: !c => c",
            "A::f: self.x |= d.min(e) => ()",
            "A::f: d.min(e) => d.max(e)",
        ];
        assert_eq!((found, skipped), (expected.map(str::to_owned).to_vec(), 0));
        let (found, _) = labels("fn f() { if a() {} while b() {} match c { d if e() => {} _ => {} } }");
        let expected = ["a() => true", "a() => false", "b() => false", "e() => true", "e() => false"];
        assert_eq!(found, expected.map(|change| format!("thing::f: {change}")));
    }

    #[test]
    fn literals_and_constants_change_by_a_bit() {
        let (found, _) = labels("const A: u64 = 0x00; const B: Pa = Pa(1); fn f() { (0x6, 12u8, true, A, B) }");
        let expected = ["f: 0x6 => 0x4", "f: 0x6 => 0xe", "f: 12u8 => 13u8", "f: true => false", "A: 0x00 => 1"];
        assert_eq!(found, expected.map(|change| format!("thing::{change}")));
    }

    #[test]
    fn equal_changes_are_numbered() {
        let (found, _) = labels("fn f() { g(1); g(1); } fn h() { g(1) }");
        assert_eq!(found, ["thing::f: 1 => 2", "thing::f: 1 => 2 #2", "thing::h: 1 => 2"]);
    }

    #[test]
    fn what_the_compiler_evaluates_is_counted() {
        let (found, skipped) =
            labels("const A: u64 = 1 << 3; fn f() { let [_] = [0; 4]; match a { 1..=3 => {} _ => {} } }");
        assert_eq!((found, skipped), (vec!["thing::f: 0 => 1".to_owned()], 5));
    }

    #[test]
    fn tests_printing_and_benches_are_left_out() {
        let text = "#[cfg(test)] mod t { fn a() { b(1) } } #[cfg(feature = \"baselines\")] fn c() { d(1) }
            impl fmt::Debug for E { fn fmt(&self, f: &mut fmt::Formatter<'_>) { g(1) } }
            fn h() { if cfg!(loom) { i(1) } else { j } }";
        assert_eq!(labels(text), (Vec::new(), 0));
    }
}
