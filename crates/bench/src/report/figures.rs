// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plots of a section: bars for each phase, faults by kind, cost against memory size, rates over time.
//!
//! Invariant: a plot compares figures of one quantity and one phase. Figures that are all 0 appear in the tables only.

use maud::{Markup, PreEscaped, html};

use super::explained;
use super::plot::Error;
use super::plot::bars::{Bar, Row, bars};
use super::plot::colour::{self, variant};
use super::plot::sizes::{Line, sizes};
use super::plot::time::{over_time, steady};
use super::section::{Group, Member, Section, TOO_FEW, in_order};
use crate::readable::{self, Unit};
use crate::results::Quantity;

/// Draws all plots.
///
/// # Errors
///
/// An error is returned if a plot cannot be drawn.
pub fn figures(section: &Section<'_>) -> Result<Markup, Error> {
    let quantities = in_order(section.groups.iter().map(|group| group.quantity));
    let is_first = |quantity: &Quantity| match quantity {
        Quantity::Time | Quantity::Instructions | Quantity::Rate | Quantity::Work | Quantity::PagesBrought => true,
        Quantity::RequestRate | Quantity::PagesSent | Quantity::PagesWritten => true,
        Quantity::CpuTime => !quantities.contains(&Quantity::Time),
        _ => false,
    };
    let (first, others): (Vec<_>, Vec<_>) =
        quantities.iter().copied().filter(|quantity| !KINDS.contains(quantity)).partition(is_first);
    let first = phases(section, &first)?;
    let others = phases(section, &others)?;
    let kinds = faults_by_kind(section)?;
    let against_size = against_size(section)?;
    let over_time = rates(section)?;
    Ok(html! {
        @if section.has_variants() && !(first.is_empty() && others.is_empty()) { (legend(section)) }
        @if !first.is_empty() {
            .plots { @for figure in first { (figure) } }
            p.faint {
                "Bars are medians; the thin lines span the middle half of the runs."
                @if section.has_variants() {
                    " A change is the median of the run-by-run changes. It is in brackets if the runs show no change; fewer \
                     than 4 runs show none."
                }
                @if section.variant_keys.len() > 1 {
                    " It is relative to the first variant above that differs in one technique; the table names that \
                     variant."
                }
            }
        }
        @if !over_time.is_empty() {
            h3 { "Over time" }
            .plots { @for figure in over_time { (figure) } }
            p.faint {
                "The dashed line is the steady rate before the first event; the shaded area between it and the \
                 measured rate is the cost. Ticks at the bottom are events that repeat."
            }
        }
        @if !kinds.is_empty() {
            h3 { "Faults by kind" }
            .legend { @for (at, kind) in KINDS.iter().enumerate() { (sign(at + 1, kind.name())) } }
            .plots { @for figure in kinds { (figure) } }
        }
        @if !against_size.is_empty() {
            h3 { "Cost against memory size" }
            .plots { @for figure in against_size { (figure) } }
            p.faint {
                "Both axes are logarithmic: a cost in proportion to the memory is a rising straight line, a constant cost is \
                 level."
            }
        }
        @if !others.is_empty() {
            details {
                summary { "More plots: " (names(&others_of(&quantities, is_first))) }
                .plots { @for figure in others { (figure) } }
            }
        }
    })
}

/// The kinds of faults.
const KINDS: [Quantity; 3] = [Quantity::TranslationFaults, Quantity::PermissionFaults, Quantity::AccessFlagFaults];

fn others_of(quantities: &[Quantity], is_first: impl Fn(&Quantity) -> bool) -> Vec<Quantity> {
    quantities.iter().copied().filter(|quantity| !is_first(quantity) && !KINDS.contains(quantity)).collect()
}

fn names(quantities: &[Quantity]) -> String {
    quantities.iter().map(|quantity| quantity.name()).collect::<Vec<_>>().join(", ")
}

/// The legend of the variants.
fn legend(section: &Section<'_>) -> Markup {
    let sentence = |name: &str| match &section.variant_keys[..] {
        [key] => explained::value(key, name),
        _ => None,
    };
    html! {
        p.faint { (section.variable()) ":" }
        ul.variants {
            @for (at, name) in section.variants.iter().enumerate() {
                li {
                    (sign(colour::place(at, true), name))
                    @if let Some(sentence) = sentence(name) { span.faint { ": " (sentence) } }
                }
            }
        }
    }
}

fn sign(place: usize, name: &str) -> Markup {
    html! { span { i class=(format!("v{}", place % 8)) {} (name) } }
}

fn figure(name: &str, of: &str, svg: &str) -> Markup {
    html! {
        figure {
            figcaption {
                b { (name) } span.faint { (of) }
                @if let Some(sentence) = explained::phase(name) { small { (sentence) } }
            }
            .scroll { (PreEscaped(svg)) }
        }
    }
}

/// Draws a plot for each phase of each of the quantities.
fn phases(section: &Section<'_>, quantities: &[Quantity]) -> Result<Vec<Markup>, Error> {
    let mut figures = Vec::new();
    for quantity in quantities {
        let of: Vec<_> = section.groups.iter().filter(|group| group.quantity == *quantity).collect();
        for phase in in_order(of.iter().map(|group| group.phase)) {
            let groups: Vec<_> = of.iter().copied().filter(|group| group.phase == phase).collect();
            let unit = unit(&groups);
            let rows = rows(section, &groups, unit);
            if rows.iter().flat_map(|row| &row.bars).all(|bar| bar.parts.iter().all(|(size, _)| *size == 0.0)) {
                continue;
            }
            let title = format!("{}, {phase}: {}", section.title(), quantity.name());
            figures.push(figure(phase, quantity.name(), &bars(&title, &rows, unit.name)?));
        }
    }
    Ok(figures)
}

/// Returns the unit of a whole plot.
fn unit(groups: &[&Group<'_>]) -> Unit {
    let medians = groups.iter().flat_map(|group| &group.members).map(|member| member.quartiles.median);
    Unit::of(groups[0].quantity, medians.fold(0.0, f64::max))
}

fn rows(section: &Section<'_>, groups: &[&Group<'_>], unit: Unit) -> Vec<Row> {
    // With only one scene there is room for the variants' names.
    let is_one_scene = in_order(groups.iter().map(|group| &group.scene)).len() == 1 && groups.len() == 1;
    let bar = |group: &Group<'_>, member: &Member<'_>| {
        let of = member.quartiles;
        let ratio = member.ratio;
        Bar {
            parts: vec![(unit.scale(of.median), variant(colour::place(member.variant, section.has_variants())))],
            spread: group.has_spread(member).then(|| (unit.scale(of.lower), unit.scale(of.upper))),
            value: format!("{} {}", unit.shown(of.median), unit.name).trim_end().to_owned(),
            remark: match ratio {
                _ if member.is_too_few => TOO_FEW.to_owned(),
                None => String::new(),
                Some(_) if group.is_open(member) => format!("({})", group.brief_change(member)),
                Some(_) => group.brief_change(member),
            },
        }
    };
    let rows = groups.iter().flat_map(|group| {
        let all = group.members.iter().map(move |member| (member, bar(group, member)));
        if is_one_scene {
            all.map(|(member, bar)| Row { label: section.variants[member.variant].clone(), bars: vec![bar] }).collect()
        } else {
            vec![Row { label: section.scene(&group.scene), bars: all.map(|(_, bar)| bar).collect() }]
        }
    });
    rows.collect()
}

/// Draws a plot for each phase that has faults of a known kind.
fn faults_by_kind(section: &Section<'_>) -> Result<Vec<Markup>, Error> {
    let of: Vec<_> = section.groups.iter().filter(|group| KINDS.contains(&group.quantity)).collect();
    let mut figures = Vec::new();
    for phase in in_order(of.iter().map(|group| group.phase)) {
        let groups: Vec<_> = of.iter().copied().filter(|group| group.phase == phase).collect();
        let mut rows = Vec::new();
        for scene in in_order(groups.iter().map(|group| group.scene.clone())) {
            for (place, name) in section.variants.iter().enumerate() {
                let median = |kind: Quantity| {
                    let group = groups.iter().find(|group| group.scene == scene && group.quantity == kind)?;
                    Some(group.members.iter().find(|member| member.variant == place)?.quartiles.median)
                };
                let found: Vec<_> = KINDS.into_iter().enumerate().map(|(at, kind)| (at, median(kind))).collect();
                if found.iter().all(|(_, median)| median.is_none()) {
                    continue;
                }
                let parts: Vec<_> = found.iter().map(|(at, median)| (median.unwrap_or(0.0), variant(at + 1))).collect();
                let sum: f64 = parts.iter().map(|(size, _)| size).sum();
                let label = [section.scene(&scene), name.clone()];
                let label = label.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(", ");
                let bar = Bar { parts, spread: None, value: readable::count(sum), remark: String::new() };
                rows.push(Row { label, bars: vec![bar] });
            }
        }
        let sum = |row: &Row| row.bars.iter().flat_map(|bar| &bar.parts).map(|(size, _)| size).sum::<f64>();
        if rows.iter().any(|row| sum(row) > 0.0) {
            let title = format!("{}, {phase}: faults by kind", section.title());
            figures.push(figure(phase, "faults", &bars(&title, &rows, "")?));
        }
    }
    Ok(figures)
}

/// Draws a plot for each phase that was measured with several memory sizes and otherwise equal settings.
fn against_size(section: &Section<'_>) -> Result<Vec<Markup>, Error> {
    let Some(at) = section.scene_keys.iter().position(|key| *key == "bytes") else { return Ok(Vec::new()) };
    let costs = [Quantity::Time, Quantity::CpuTime, Quantity::Instructions];
    let of: Vec<_> = section.groups.iter().filter(|group| costs.contains(&group.quantity)).collect();
    let mut figures = Vec::new();
    for (phase, quantity, scene) in in_order(of.iter().map(|group| but_for(group, at))) {
        let same = |group: &&&Group<'_>| but_for(group, at) == (phase, quantity, scene.clone());
        let groups: Vec<_> = of.iter().filter(same).collect();
        let line = |place: usize| {
            let of_size = |group: &&&Group<'_>| {
                let member = group.members.iter().find(|member| member.variant == place)?;
                Some((group.scene[at].parse().ok()?, member.quartiles))
            };
            let mut points: Vec<_> = groups.iter().filter_map(of_size).collect();
            points.sort_by_key(|(size, _)| *size);
            Line { colour: variant(colour::place(place, section.has_variants())), points }
        };
        let lines: Vec<_> = (0..section.variants.len()).map(line).filter(|line| !line.points.is_empty()).collect();
        let title = format!("{}, {phase}: {} against memory size", section.title(), quantity.name());
        if let Some(svg) = sizes(&title, &lines, quantity)? {
            let scene = section.scene(&scene);
            let of = [quantity.name(), &scene];
            let of = of.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
            figures.push(figure(phase, &of, &svg));
        }
    }
    Ok(figures)
}

/// Returns what identifies a group, without one of its settings.
fn but_for<'a>(group: &Group<'a>, setting: usize) -> (&'a str, Quantity, Vec<&'a str>) {
    let mut scene = group.scene.clone();
    scene[setting] = "";
    (group.phase, group.quantity, scene)
}

/// Draws a plot for each series. Series of one name share a scale.
fn rates(section: &Section<'_>) -> Result<Vec<Markup>, Error> {
    let mut figures = Vec::new();
    for over in &section.series {
        let alike = section.series.iter().filter(|other| other.series.name == over.series.name);
        let top = alike.flat_map(|other| &other.series.points).map(|(_, value)| *value).fold(0.0, f64::max);
        let colour = variant(colour::place(over.variant, section.has_variants()));
        let names = [section.variants[over.variant].clone(), section.scene(&over.scene)];
        let names = names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>().join(", ");
        let unit = Unit::of(Quantity::Rate, top);
        let steady = steady(over.series).map(|steady| format!(", steady at {} {}", unit.shown(steady), unit.name));
        let of = format!("{}{}", over.series.name, steady.unwrap_or_default());
        let title = format!("{}, {names}: {}", section.title(), over.series.name);
        let svg = over_time(&title, over.series, colour, top)?;
        figures.push(if names.is_empty() { figure(&of, "", &svg) } else { figure(&names, &of, &svg) });
    }
    Ok(figures)
}
