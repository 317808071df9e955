//! Settings of the hub from the environment: its address, its cache folder, the user's token.
//!
//! Names and precedence are those of the hub's own tools, so that Kept and these tools find each other's downloads:
//! <https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Address of the hub, unless `HF_ENDPOINT` sets another.
pub const ENDPOINT: &str = "https://huggingface.co";

/// Settings for requests to the hub.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the hub, without a trailing slash.
    pub endpoint: String,
    /// The hub's cache folder, shared with its other tools.
    pub cache: PathBuf,
    /// The user's token, required for private and gated repositories.
    pub token: Option<Token>,
    /// Whether downloads are disabled (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Maximum number of consecutive retries without progress.
    pub retries: u32,
    /// Timeout for a silent server.
    pub timeout: Duration,
}

impl Settings {
    /// Default of [`Settings::retries`].
    pub const RETRIES: u32 = 5;
    /// Default of [`Settings::timeout`].
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// The file to which the hub's tools write the user's token at login.
    pub fn token_file() -> PathBuf {
        Settings::token_file_of(&|name| env::var_os(name), env::home_dir().as_deref())
    }

    /// [`Settings::token_file`], from these variables and this home folder.
    fn token_file_of(variable: &dyn Fn(&str) -> Option<OsString>, home: Option<&Path>) -> PathBuf {
        let path = |name: &str| path_in(variable, home, name);
        path("HF_TOKEN_PATH").unwrap_or_else(|| hub_home(variable, home).join("token"))
    }

    /// Settings from this process's environment.
    pub fn from_env() -> Settings {
        Settings::from_variables(&|name| env::var_os(name), env::home_dir().as_deref())
    }

    /// Settings from the given variables; an empty variable counts as unset.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Settings {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| path_in(&variable, home, name);
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let is_true = |name: &str| {
            text(name).is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
            })
        };
        let hub_home = hub_home(&variable, home);
        let token_file = Settings::token_file_of(&variable, home);
        let token = (!is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
            .then(|| {
                ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
                    .into_iter()
                    .find_map(|name| Token::new(&text(name)?, name))
                    .or_else(|| {
                        let text = std::fs::read_to_string(&token_file).ok()?;
                        Token::new(&text, &token_file.display().to_string())
                    })
            })
            .flatten();
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Settings {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            cache: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .unwrap_or_else(|| hub_home.join("hub")),
            token,
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            retries: Settings::RETRIES,
            timeout: Settings::TIMEOUT,
        }
    }
}

/// A path from a variable; an empty variable counts as unset.
fn path_in(
    variable: &dyn Fn(&str) -> Option<OsString>,
    home: Option<&Path>,
    name: &str,
) -> Option<PathBuf> {
    let value = variable(name).filter(|value| !value.is_empty())?;
    Some(below_home(value.into(), home))
}

/// The folder of the hub's tools.
fn hub_home(variable: &dyn Fn(&str) -> Option<OsString>, home: Option<&Path>) -> PathBuf {
    let path = |name: &str| path_in(variable, home, name);
    path("HF_HOME").unwrap_or_else(|| {
        path("XDG_CACHE_HOME")
            .unwrap_or_else(|| {
                home.map_or_else(env::temp_dir, Path::to_owned)
                    .join(".cache")
            })
            .join("huggingface")
    })
}

/// Expands `~` and `~/...`, which shells do not expand inside variables.
pub(crate) fn below_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// A token for the hub. Its `Debug` output shows only where the token came from.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    place: String,
}

impl Token {
    /// A token from `place`; `None` if the text is blank.
    pub fn new(secret: &str, place: &str) -> Option<Token> {
        let secret = secret.trim();
        (!secret.is_empty()).then(|| Token {
            secret: secret.to_owned(),
            place: place.to_owned(),
        })
    }

    /// The token itself, for the authorization header only.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The variable or file it came from.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.place)
    }
}

/// Kept's configuration folder, from these variables and this home folder: `KEPT_CONFIG`, else the system's default.
pub(crate) fn config_folder(
    variable: &dyn Fn(&str) -> Option<OsString>,
    home: Option<&Path>,
) -> PathBuf {
    let path = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let home = || home.map_or_else(env::temp_dir, Path::to_owned);
    path("KEPT_CONFIG").unwrap_or_else(|| {
        let own = |base: PathBuf| base.join("kept");
        if cfg!(windows) {
            own(path("APPDATA").unwrap_or_else(|| home().join("AppData/Roaming")))
        } else if cfg!(target_os = "macos") {
            own(home().join("Library/Application Support"))
        } else {
            own(path("XDG_CONFIG_HOME").unwrap_or_else(|| home().join(".config")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], home: &Path) -> Settings {
        let variables: Vec<(String, OsString)> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
            .collect();
        let get = move |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        Settings::from_variables(&get, Some(home))
    }

    #[test]
    fn cache_folder_variables_have_the_hubs_precedence() {
        let home = Path::new("/home/ann");
        for (variables, cache) in [
            (&[][..], "/home/ann/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "~/h")], "/home/ann/h/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/o")], "/o"),
            (
                &[("HUGGINGFACE_HUB_CACHE", "/o"), ("HF_HUB_CACHE", "/n")],
                "/n",
            ),
            (&[("HF_HUB_CACHE", "")], "/home/ann/.cache/huggingface/hub"),
        ] {
            assert_eq!(with(variables, home).cache, Path::new(cache));
        }
    }

    #[test]
    fn endpoint_and_offline_are_read_from_variables() {
        let home = Path::new("/home/ann");
        assert_eq!(with(&[], home).endpoint, "https://huggingface.co");
        let mirror = [("HF_ENDPOINT", "https://mirror.example/ ")];
        assert_eq!(with(&mirror, home).endpoint, "https://mirror.example");
        assert!(!with(&[("HF_HUB_OFFLINE", "0")], home).offline);
        assert!(with(&[("HF_HUB_OFFLINE", "1")], home).offline);
        assert!(with(&[("HF_HUB_OFFLINE", "Yes")], home).offline);
    }

    #[test]
    fn tokens_have_the_hubs_precedence_and_are_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        let of = |variables: &[(&str, &str)]| with(variables, home).token;
        assert_eq!(of(&[]), None);
        let hub_home = home.join(".cache/huggingface");
        std::fs::create_dir_all(&hub_home).unwrap();
        std::fs::write(hub_home.join("token"), "hf_file\n").unwrap();
        assert_eq!(of(&[]).unwrap().secret(), "hf_file");
        let other = home.join("other");
        std::fs::write(&other, " hf_other ").unwrap();
        let path = [("HF_TOKEN_PATH", other.to_str().unwrap())];
        assert_eq!(of(&path).unwrap().secret(), "hf_other");
        let old = [("HUGGING_FACE_HUB_TOKEN", "hf_old")];
        assert_eq!(of(&old).unwrap().secret(), "hf_old");
        let both = [("HF_TOKEN", "hf_new"), old[0]];
        let token = of(&both).unwrap();
        assert_eq!(token.secret(), "hf_new");
        assert_eq!(token.place(), "HF_TOKEN");
        let shown = format!("{:?}", with(&both, home));
        assert!(shown.contains("Token(from HF_TOKEN)"), "{shown}");
        assert!(!shown.contains("hf_"), "{shown}");
        assert_eq!(of(&[both[0], ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }
}
