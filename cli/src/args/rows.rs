//! Arguments of the data commands for a running cluster: `lotus tables`, `get`, `put`, `del` and
//! `scan`.

use clap::{Args, ValueEnum};
use lotus_node::command_line::ClusterPlace;

/// Description of keys and values, shown by `--help` of each command.
const FORMATS: &str = "\
Keys and values, on the command line and in what is shown:
  auto   0x… is bytes in hex. A key of digits is a number of eight big-endian bytes, as most tables
         have. Anything else is text, and digits in a value are text as well.
  text   the text itself
  hex    bytes in hex, with or without 0x
  u64    a number, as eight big-endian bytes
  u64le  a number, as eight little-endian bytes
What does not have the form asked for, or would not be plain text on a terminal, is shown as 0x…,
which all forms but text take back.

The exit code is 0 if it was done, 1 if there is no such row or it failed, 2 if the command line
makes no sense.";

#[derive(Debug, Args)]
pub struct TablesArgs {
    #[command(flatten)]
    pub place: ClusterPlace,
    /// Drops this table with all of its rows. The cluster file must allow it: drop_tables in
    /// [clients].
    #[arg(long, value_name = "TABLE", conflicts_with = "json")]
    pub drop: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub struct GetArgs {
    /// The table.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// The row's primary key.
    #[arg(value_name = "KEY", allow_negative_numbers = true)]
    pub key: String,
    #[command(flatten)]
    pub place: ClusterPlace,
    #[command(flatten)]
    pub formats: FormatArgs,
    /// Prints key and value as JSON, also in hex.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub struct PutArgs {
    /// The table.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// The row's primary key.
    #[arg(value_name = "KEY", allow_negative_numbers = true)]
    pub key: String,
    /// The row's new value.
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: String,
    #[command(flatten)]
    pub place: ClusterPlace,
    #[command(flatten)]
    pub formats: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub struct DelArgs {
    /// The table.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// The row's primary key.
    #[arg(value_name = "KEY", allow_negative_numbers = true)]
    pub key: String,
    #[command(flatten)]
    pub place: ClusterPlace,
    #[command(flatten)]
    pub formats: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = FORMATS)]
pub struct ScanArgs {
    /// The table.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// Maximum number of rows to show: the first rows of an ordered table, arbitrary rows of other
    /// tables.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub range: RangeArgs,
    #[command(flatten)]
    pub place: ClusterPlace,
    #[command(flatten)]
    pub formats: FormatArgs,
    /// Prints each row as a line of JSON, also in hex.
    #[arg(long)]
    pub json: bool,
}

/// Rows of an ordered table.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// Shows rows from this key on. For ordered tables, like all bounds.
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub from: Option<String>,
    /// Shows rows up to this key, and not the row of the key itself.
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub until: Option<String>,
    /// Shows rows whose keys begin with this prefix.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "until"])]
    #[arg(allow_negative_numbers = true)]
    pub prefix: Option<String>,
    /// Shows the rows from the greatest key down.
    #[arg(long)]
    pub reverse: bool,
}

/// Forms of keys and values.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatArgs {
    /// Form of keys.
    #[arg(long = "key", value_name = "FORM", value_enum, default_value_t = Format::Auto)]
    key_form: Format,
    /// Form of values.
    #[arg(long = "value", value_name = "FORM", value_enum, default_value_t = Format::Auto)]
    value_form: Format,
    /// Keys and values in hex.
    #[arg(long, conflicts_with_all = ["key_form", "value_form"])]
    hex: bool,
}

impl FormatArgs {
    /// Form of keys.
    pub const fn keys(self) -> Format {
        if self.hex { Format::Hex } else { self.key_form }
    }

    /// Form of values.
    pub const fn values(self) -> Format {
        if self.hex { Format::Hex } else { self.value_form }
    }
}

/// Form of keys or values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Chosen by the look of the text.
    Auto,
    /// Text.
    Text,
    /// Hex.
    Hex,
    /// A big-endian number.
    U64,
    /// A little-endian number.
    #[value(name = "u64le")]
    U64Le,
}
