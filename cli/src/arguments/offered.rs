//! Values that shells offer to complete.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use kept_engine::kernels::CacheType;
use kept_engine::{AUTO, policies};

/// A text for which these values are offered; any other is checked where it is used.
#[derive(Clone)]
pub struct Offered(fn() -> Vec<&'static str>);

/// Methods by name.
pub const METHODS: Offered = Offered(|| policies::methods().iter().map(|m| m.name).collect());
/// The same, and the automatic choice.
pub const METHODS_OR_AUTO: Offered = Offered(|| [vec![AUTO], METHODS.0()].concat());
/// Types of kept rows.
pub const CACHES: Offered = Offered(|| CacheType::ALL.map(CacheType::name).to_vec());
/// Types of vault rows.
pub const VAULTS: Offered = Offered(|| vec!["q8_0", "f16", "off"]);
/// Devices that every computer has, and the first GPU.
pub const DEVICES: Offered = Offered(|| vec!["auto", "cpu", "cuda:0"]);

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}
