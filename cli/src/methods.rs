//! `kept methods`: every method, what it keeps, when it acts, the positions of its rows, its parameters, and its
//! publication.
//!
//! All of the text comes from the source files of the methods. `--markdown` prints the table of docs/methods.md; a test
//! compares the two.

use kept_engine::MethodSpec;
use kept_engine::policies::{self, MethodInfo, Parameter};

use crate::arguments::MethodsArguments;
use crate::output;

pub fn run(arguments: &MethodsArguments) -> anyhow::Result<()> {
    let listed: Vec<&MethodInfo> = match &arguments.method {
        Some(named) => {
            let method: MethodSpec = named.parse()?;
            let info = policies::find(&method.name)?;
            method.build()?;
            vec![info]
        }
        None => policies::methods().iter().collect(),
    };
    if arguments.json {
        return output::print_json(&listed);
    }
    let text = if arguments.markdown {
        markdown(&listed)
    } else {
        plain(&listed) + WRITTEN
    };
    output::print_text(&text)
}

/// Explains how to set parameters.
const WRITTEN: &str = "\nParameters are set with the name, wherever a method is named: --method 'snapkv[w=8,sinks=0]'; or with --set w=8,sinks=0.\n";

/// The list for a terminal: one block per method.
fn plain(listed: &[&MethodInfo]) -> String {
    let mut text = String::new();
    for info in listed {
        let paper = match info.paper {
            "" => String::new(),
            paper => format!(" · {paper}"),
        };
        text += &format!("{}  {}{paper}\n", info.name, info.title);
        text += &format!("    keeps      {}\n", info.keeps);
        text += &format!("    acts       {}\n", info.acts);
        text += &format!("    positions  {}\n", info.positions);
        let longest = |field: fn(&Parameter) -> &str| {
            let lengths = info.parameters.iter().map(|p| field(p).chars().count());
            lengths.max().unwrap_or(0)
        };
        let width = longest(|p| p.name);
        for (i, parameter) in info.parameters.iter().enumerate() {
            let label = if i == 0 { "--set" } else { "" };
            text += &format!(
                "    {label:<9}  {:width$}  {}\n",
                parameter.name, parameter.meaning
            );
            let indent = " ".repeat(4 + 9 + 2 + width + 2);
            text += &format!(
                "{indent}{}; default {}\n",
                parameter.range, parameter.default
            );
        }
        text.push('\n');
    }
    text.pop();
    text
}

/// The list as a Markdown table: one row per method.
fn markdown(listed: &[&MethodInfo]) -> String {
    let mut text = String::from(
        "| method | keeps | acts | positions | `--set` (default; range) | paper |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for info in listed {
        let parameters: Vec<String> = info
            .parameters
            .iter()
            .map(|p| format!("`{}` ({}; {})", p.name, cell(p.default), cell(p.range)))
            .collect();
        text += &format!(
            "| `{}` | {} | {} | {} | {} | {} |\n",
            info.name,
            cell(info.keeps),
            cell(info.acts),
            cell(info.positions),
            parameters.join("<br>"),
            cell(info.paper),
        );
    }
    text
}

/// Escapes `|`, which would end the table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
