//! Arguments of the server, of completions and of the manual pages.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::Args;
use kept_engine::Engine;

use super::ReadingArguments;

#[derive(Debug, Args)]
#[command(after_help = "\
Example, with the client that OpenAI publishes for Python:
  client = openai.OpenAI(base_url=\"http://127.0.0.1:8990/v1\", api_key=TOKEN)
  file = client.files.create(file=open(\"lease.pdf\", \"rb\"), purpose=\"user_data\")
  answer = client.chat.completions.create(
      model=\"kept\", messages=[{\"role\": \"user\", \"content\": \"How much is the deposit?\"}],
      extra_body={\"documents\": [file.id], \"method\": \"snapkv\", \"budget\": \"25%\"})
  print(answer.choices[0].message.content, answer.kept[\"sources\"])
docs/serve.md has all fields.")]
pub struct ServeArguments {
    /// Port; 0 takes a free one.
    #[arg(long, default_value_t = 8990, value_name = "PORT")]
    pub port: u16,
    /// Address to listen on. Any other than the default lets other computers ask: they need the token, and nothing is
    /// encrypted on the way.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS", value_parser = host)]
    pub host: IpAddr,
    /// The token that every request must send as its API key [default: a new one at every start].
    #[arg(long, env = "KEPT_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// A web page elsewhere that may ask, such as https://chat.example; pages of this computer always may.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub allow_origin: Vec<String>,
    #[command(flatten)]
    pub reading: ReadingArguments,
    /// Longest answer of a request that names no limit, in tokens.
    #[arg(long, default_value_t = Engine::DEFAULT_MAX_TOKENS, value_name = "N")]
    pub max_tokens: usize,
}

/// An address, or the name of this computer's own.
fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => text.parse().map_err(|_| {
            "it takes an address of this computer, such as 127.0.0.1 or 0.0.0.0".to_owned()
        }),
    }
}

/// A web origin: `scheme://host`, perhaps with a port, or the `null` of a page that is a file.
fn origin(text: &str) -> Result<String, String> {
    let host = text.trim_end_matches('/').split_once("://");
    let is_origin = host.is_some_and(|(scheme, host)| {
        !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '*', ' '])
    });
    if is_origin || text == "null" {
        Ok(text.to_owned())
    } else {
        Err("it takes an address without a path, such as https://chat.example".to_owned())
    }
}

#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManualArguments {
    /// The folder, which is created.
    pub folder: PathBuf,
}
