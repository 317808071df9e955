//! `kept serve`: opens the model, the port and the vaults, and says how to reach the server.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use kept_engine::documents::Document;
use kept_serve::Settings;
use rand::RngCore;

use crate::arguments::ServeArguments;
use crate::output;
use crate::progress::stop_on_ctrl_c;

/// Shortest token that a user may choose.
const SHORTEST_TOKEN: usize = 8;

pub fn run(arguments: &ServeArguments) -> anyhow::Result<()> {
    let token = token(arguments)?;
    anyhow::ensure!(
        arguments.max_tokens > 0,
        "--max-tokens 0 leaves no answer: it takes 1 or more"
    );
    let reading = arguments.reading.check()?;
    // The port first: opening a large model takes seconds.
    let listener = listen(SocketAddr::new(arguments.host, arguments.port))?;
    let address = listener.local_addr()?;
    let engine = reading.open()?;
    let settings = Settings {
        model: engine.model().name().to_owned(),
        token,
        origins: arguments.allow_origin.clone(),
        method: reading.method,
        budget: reading.budget,
        max_tokens: arguments.max_tokens,
        limits: reading.limits,
        vault: reading.vault,
    };
    let mut said = reading.model.notes(&Document::empty());
    if let Some(trouble) = reading.trouble {
        said += &format!("note: {trouble}\n");
    }
    said += &format!(
        "{} answers at http://{address}/v1; Ctrl-C ends the server\n",
        settings.model
    );
    if arguments.token.is_none() {
        said += &format!("token: {}\n", settings.token);
    }
    output::say(&output::printable(&said));
    kept_serve::serve(engine, listener, settings, &stop_on_ctrl_c())?;
    Ok(())
}

/// The token of the arguments, or a new one.
fn token(arguments: &ServeArguments) -> anyhow::Result<String> {
    let Some(token) = &arguments.token else {
        let mut bytes = [0; 16];
        rand::rng().fill_bytes(&mut bytes);
        return Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    };
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(
        token.len() >= SHORTEST_TOKEN && is_plain,
        "--token needs at least {SHORTEST_TOKEN} characters, letters, digits and signs without spaces; leave it out to get a new one"
    );
    Ok(token.clone())
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!(
            "port {} is in use: end the program that uses it, or name another one with --port (0 takes a free one)",
            address.port()
        ),
        ErrorKind::AddrNotAvailable => anyhow::anyhow!(
            "{} is no address of this computer: name one that is with --host",
            address.ip()
        ),
        ErrorKind::PermissionDenied => anyhow::anyhow!(
            "port {} needs more rights: name one above 1023 with --port",
            address.port()
        ),
        _ => anyhow::Error::new(error),
    })
    .context(format!("the server cannot listen at {address}"))
}
