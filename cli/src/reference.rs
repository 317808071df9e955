//! `kept completions` and `kept manual`: the arguments as scripts for shells and as manual pages.

use anyhow::Context;
use clap::CommandFactory;

use crate::arguments::{Arguments, CompletionsArguments, ManualArguments};
use crate::output;

pub fn completions(arguments: &CompletionsArguments) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Arguments::command(),
        "kept",
        &mut script,
    );
    output::print_text(&String::from_utf8(script)?)
}

pub fn manual(arguments: &ManualArguments) -> anyhow::Result<()> {
    let folder = &arguments.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), folder));
    written.with_context(|| format!("the manual cannot be written to {}", folder.display()))
}
