//! Compares `docs/cli.md` and the pages in `docs/cli`, help, completions and manual pages with the program's
//! argument definitions.

use std::collections::BTreeSet;

use clap::CommandFactory;
use lockkeeper_cli::args::Cli;
use lockkeeper_cli::exit;

use crate::support::TestDir;

/// One after the other.
const PAGES: &str = concat!(
    include_str!("../../../../docs/cli.md"),
    include_str!("../../../../docs/cli/locks.md"),
    include_str!("../../../../docs/cli/service.md"),
    include_str!("../../../../docs/cli/tools.md"),
);

/// The text of the section with this heading.
fn section(heading: &str) -> &'static str {
    let begin = PAGES
        .find(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("the pages of docs/cli have no `{heading}`"));
    let body = &PAGES[begin + heading.len() + 2..];
    let level = heading.split(' ').next().unwrap();
    let end = body.match_indices('\n').map(|(at, _)| at).find(|&at| {
        let line = &body[at + 1..];
        line.starts_with("# ") || line.starts_with("## ") || line.starts_with(&format!("{level} "))
    });
    &body[..end.unwrap_or(body.len())]
}

/// The first word of each code span in the first column of a section's tables.
fn first_column(section: &str) -> BTreeSet<String> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
        .map(|cell| cell.split([' ', '[']).next().unwrap().to_owned())
        .collect()
}

/// The long flags and positional arguments of a command, without those common to all commands.
fn arguments(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter(|argument| !argument.is_hide_set());
    own.map(|argument| match argument.get_long() {
        Some(long) => format!("--{long}"),
        None => argument.get_value_names().unwrap()[0].to_string(),
    })
    .filter(|name| !["--help", "--version", "--locks", "--local", "--json"].contains(&name.as_str()))
    .collect()
}

#[test]
fn cli_page_lists_exactly_the_commands_flags_and_arguments() {
    let cli = Cli::command();
    let mut documented = BTreeSet::new();
    for command in cli.get_subcommands() {
        let inner: Vec<&clap::Command> = command.get_subcommands().collect();
        let has = if inner.is_empty() {
            arguments(command)
        } else {
            inner.iter().flat_map(|inner| arguments(inner)).collect()
        };
        let heading = format!("### `{}`", command.get_name());
        assert_eq!(first_column(section(&heading)), has, "{heading}");
        documented.insert(heading);
    }
    let headings: BTreeSet<String> =
        PAGES.lines().filter(|line| line.starts_with("### `")).map(str::to_owned).collect();
    assert_eq!(headings, documented);
}

#[test]
fn cli_page_lists_exactly_the_exit_codes() {
    let documented: BTreeSet<String> = first_column(section("## Exit codes"));
    let ours: BTreeSet<String> = exit::ALL.iter().map(u8::to_string).collect();
    assert_eq!(documented, ours);
}

#[test]
fn cli_page_lists_every_default() {
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments() {
            let (Some(long), [default]) = (argument.get_long(), argument.get_default_values()) else {
                continue;
            };
            let heading = format!("### `{}`", command.get_name());
            let row = section(&heading).lines().find(|line| line.starts_with(&format!("| `--{long}")));
            let default = format!("`{}`", default.to_string_lossy());
            if argument.get_action().takes_values() {
                assert!(row.unwrap().contains(&default), "{heading} --{long}: {default}");
            }
        }
    }
}

#[test]
fn every_command_has_help_with_an_example_or_a_page() {
    let test = TestDir::new();
    for command in Cli::command().get_subcommands() {
        let help = test.ran(&format!("{} --help", command.get_name()));
        assert_eq!((help.code, help.err.as_str()), (0, ""), "{}", command.get_name());
        assert!(help.out.contains("Usage: lockkeeper "), "{help:?}");
        assert!(help.out.contains("Example"), "no example: {}", help.out);
    }
    assert_eq!(test.ran("--version").out, format!("lockkeeper {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(test.ran("").code, i32::from(exit::USAGE));
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let test = TestDir::new();
    assert_eq!(test.ran("man pages").code, 0);
    std::fs::write(test.path("file"), "").unwrap();
    test.ran("man file/pages").is_one_line(exit::CANNOT_CREATE, &["file/pages"]);
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(test.path(&format!("pages/lockkeeper-{name}.1")).exists(), "{name}");
        for shell in ["bash", "zsh", "fish"] {
            assert!(test.ran(&format!("completions {shell}")).out.contains(name), "{shell} {name}");
        }
    }
}
