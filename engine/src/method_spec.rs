//! A method with its parameters, and their text form: `snapkv[w=8,sinks=0]`, separated by commas in lists.
//!
//! All interfaces parse and print methods with this module, so a list may contain one method several times with
//! different parameters. The available methods and parameters are defined in kept-policies.

use std::fmt;
use std::str::FromStr;

use std::sync::Arc;

use kept_policies::{FULL, Method};

use crate::EngineError;

/// A method by name, with the parameters that were set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MethodSpec {
    /// Name, as in `--method`.
    pub name: String,
    /// The parameters that are set, as name-value pairs.
    pub parameters: Vec<(String, String)>,
}

/// Why a text is not a method or a list of methods, as a sentence. Invalid parameter values are errors of
/// [`MethodSpec::build`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MethodTextError(String);

impl MethodTextError {
    /// An empty list, or an empty entry between two commas.
    fn empty(text: &str) -> Self {
        let text = text.trim();
        Self(format!(
            "'{text}' has an empty place where a method should be; write for example snapkv,h2o"
        ))
    }
}

impl MethodSpec {
    /// The method named `name` without parameters.
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parameters: Vec::new(),
        }
    }

    /// Whether it keeps everything, whatever the budget.
    pub fn is_full(&self) -> bool {
        self.name == FULL
    }

    /// Parses a list of methods. Commas inside brackets separate parameters, all others separate methods.
    ///
    /// # Errors
    /// Syntax errors. Names and values are checked by [`MethodSpec::build`].
    pub fn list(text: &str) -> Result<Vec<Self>, MethodTextError> {
        let mut depth = 0usize;
        let entries = text.split(|c| {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        });
        (entries.map(str::trim))
            .map(|entry| match entry {
                "" => Err(MethodTextError::empty(text)),
                entry => entry.parse(),
            })
            .collect()
    }

    /// Sets the parameters in `values` that are not set yet. If `values` contains a parameter twice, the last value
    /// wins.
    pub fn set_further(&mut self, values: &[(String, String)]) {
        let written = self.parameters.len();
        for (name, value) in values {
            let known = self.parameters.iter().position(|(known, _)| known == name);
            match known {
                Some(known) if known < written => {}
                Some(known) => self.parameters[known].1.clone_from(value),
                None => self.parameters.push((name.clone(), value.clone())),
            }
        }
    }

    /// Builds the method. [`crate::AUTO`] is an error: it must be resolved to a method first.
    pub fn build(&self) -> Result<Arc<dyn Method>, EngineError> {
        Ok(kept_policies::build(&self.name, &self.parameters)?)
    }
}

impl FromStr for MethodSpec {
    type Err = MethodTextError;

    /// Parses `name` or `name[parameter=value,...]`. A name may be written as in the papers: `SnapKV`, `HBW-KV`.
    fn from_str(text: &str) -> Result<Self, MethodTextError> {
        let entry = text.trim();
        if entry.is_empty() {
            return Err(MethodTextError::empty(text));
        }
        let malformed = || {
            MethodTextError(format!(
                "'{entry}' cannot be read as a method; write for example snapkv or snapkv[w=8,kernel=7]"
            ))
        };
        let (name, inside) = match entry.split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']').ok_or_else(malformed)?)),
            None => (entry, None),
        };
        let name = name.trim();
        if name.is_empty() || [name, inside.unwrap_or("")].concat().contains(['[', ']']) {
            return Err(malformed());
        }
        let mut method = Self::plain(&canonical(name));
        for part in inside.into_iter().flat_map(|inside| inside.split(',')) {
            let (parameter, value) = part.split_once('=').ok_or_else(malformed)?;
            let (parameter, value) = (parameter.trim(), value.trim());
            if parameter.is_empty() || value.is_empty() {
                return Err(malformed());
            }
            if method
                .parameters
                .iter()
                .any(|(known, _)| known == parameter)
            {
                let why = format!("'{entry}' sets {parameter} twice; set it once");
                return Err(MethodTextError(why));
            }
            (method.parameters).push((parameter.to_owned(), value.to_owned()));
        }
        Ok(method)
    }
}

/// The name of the method that `written` names but for case and punctuation; `written` if there is none.
fn canonical(written: &str) -> String {
    let letters = |name: &str| -> String {
        let all = name.chars().filter(|c| c.is_alphanumeric());
        all.flat_map(char::to_lowercase).collect()
    };
    let names = kept_policies::methods().iter().map(|info| info.name);
    let mut names = names.chain([crate::AUTO]);
    let found = names.find(|name| letters(name) == letters(written));
    found.unwrap_or(written).to_owned()
}

/// The canonical text form: parameters in the order of the method's table, then those of its base, and numbers in
/// their shortest form.
impl fmt::Display for MethodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.parameters.is_empty() {
            return Ok(());
        }
        let mut parameters: Vec<_> = self.parameters.iter().collect();
        parameters.sort_by(|(a, _), (b, _)| {
            (self.parameter_index(a), a).cmp(&(self.parameter_index(b), b))
        });
        let parameters: Vec<String> = (parameters.into_iter())
            .map(|(parameter, value)| format!("{parameter}={}", shortest(value)))
            .collect();
        write!(f, "[{}]", parameters.join(","))
    }
}

impl MethodSpec {
    /// Whether the method or its base has the parameter.
    pub fn has(&self, parameter: &str) -> bool {
        self.parameter_index(parameter) != usize::MAX
    }

    /// Index of a parameter in the method's table, followed by the base's.
    fn parameter_index(&self, parameter: &str) -> usize {
        let table = |name: &str| kept_policies::find(name).map_or(&[][..], |info| info.parameters);
        let own = table(&self.name);
        let base = own.iter().find(|p| p.name == "base").map(|p| p.default);
        let given = self.parameters.iter().find(|(name, _)| name == "base");
        let base = base.map(|default| given.map_or(default, |(_, given)| given.as_str()));
        let all = own.iter().chain(base.map_or(&[][..], table));
        let place = all.clone().position(|known| known.name == parameter);
        place.unwrap_or(usize::MAX)
    }
}

/// The shortest form of a number (`08` becomes `8`, `0.20` becomes `0.2`); other values unchanged.
fn shortest(value: &str) -> String {
    if let Ok(whole) = value.parse::<u64>() {
        return whole.to_string();
    }
    let plain = value.len() < 18 && value.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match value.parse::<f64>() {
        Ok(number) if plain => number.to_string(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn method(text: &str) -> MethodSpec {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn names_may_be_written_as_in_the_papers() {
        let written = [
            "SnapKV",
            "HBW-KV",
            "Streaming LLM",
            "Auto",
            "Ada-KV[base=h2o]",
            "x-Y",
        ];
        let names = written.map(|text| method(text).name);
        assert_eq!(
            names,
            ["snapkv", "hbw_kv", "streaming_llm", "auto", "adakv", "x-Y"]
        );
    }

    #[test]
    fn method_lists_split_outside_brackets() {
        let list = MethodSpec::list(" snapkv, snapkv[w=8,sinks=0] ,chunkkv [ chunk = 20 ]")
            .expect("a list");
        let labels: Vec<String> = list.iter().map(MethodSpec::to_string).collect();
        assert_eq!(
            labels,
            ["snapkv", "snapkv[w=8,sinks=0]", "chunkkv[chunk=20]"]
        );
        assert_eq!(list[1].name, "snapkv");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(list[1].parameters, [pair("w", "8"), pair("sinks", "0")]);
    }

    #[test]
    fn equal_methods_have_equal_labels() {
        for (written, label) in [
            ("snapkv[sinks=0,w=8]", "snapkv[w=8,sinks=0]"),
            ("snapkv[w=+08]", "snapkv[w=8]"),
            (
                "adakv[recent=8,floor=0.20,base=h2o]",
                "adakv[base=h2o,floor=0.2,recent=8]",
            ),
            (
                "adakv[kernel=7,w=8,floor=1.0]",
                "adakv[floor=1,w=8,kernel=7]",
            ),
            ("pyramidkv[beta=2e1]", "pyramidkv[beta=2e1]"),
            ("nobody[z=1,a=2]", "nobody[a=2,z=1]"),
        ] {
            assert_eq!(method(written).to_string(), label);
            assert_eq!(method(label).to_string(), label);
        }
    }

    #[test]
    fn set_further_fills_only_unset_parameters() {
        let mut told = method("snapkv[w=8]");
        let set = [("w", "9"), ("kernel", "5"), ("kernel", "7")].map(|(n, v)| (n.into(), v.into()));
        told.set_further(&set);
        assert_eq!(told.to_string(), "snapkv[w=8,kernel=7]");
    }

    #[test]
    fn syntax_errors_name_the_entry() {
        for (text, said) in [
            ("", "''"),
            ("snapkv,,h2o", "'snapkv,,h2o' has an empty place"),
            ("snapkv,", "'snapkv,' has an empty place"),
            ("[w=8]", "'[w=8]' cannot be read as a method"),
            ("snapkv[w=8", "'snapkv[w=8' cannot be read as a method"),
            (
                "snapkv[w=8,h2o",
                "'snapkv[w=8,h2o' cannot be read as a method",
            ),
            (
                "snapkv w=8],h2o",
                "'snapkv w=8]' cannot be read as a method",
            ),
            ("snapkv][w=8]", "'snapkv][w=8]' cannot be read as a method"),
            (
                "adakv[base=h2o[recent=8]]",
                "'adakv[base=h2o[recent=8]]' cannot be read as a method",
            ),
            ("snapkv[w=8]x", "'snapkv[w=8]x' cannot be read as a method"),
            ("snapkv[w=8]]", "'snapkv[w=8]]' cannot be read as a method"),
            ("snapkv[ ]", "'snapkv[ ]' cannot be read as a method"),
            ("snapkv[w]", "'snapkv[w]' cannot be read as a method"),
            ("snapkv[w=8,]", "'snapkv[w=8,]' cannot be read as a method"),
            ("snapkv[w=]", "'snapkv[w=]' cannot be read as a method"),
            ("snapkv[w=8,w=9]", "sets w twice"),
        ] {
            let error = MethodSpec::list(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
            assert!(!error.contains('\n') && !error.contains(". "), "{error}");
        }
    }

    proptest! {
        /// Every label parses back to the same label.
        #[test]
        fn label_round_trips(which in 0usize..100, values in prop::collection::vec("[a-z0-9.+]{1,6}", 0..6)) {
            let infos = kept_policies::methods();
            let told = |which: usize| {
                let info = &infos[which % infos.len()];
                let names = info.parameters.iter().map(|p| p.name.to_owned()).rev();
                MethodSpec { name: info.name.to_owned(), parameters: names.zip(values.clone()).collect() }
            };
            let (one, other) = (told(which), told(which + 1));
            let label = one.to_string();
            let back = method(&label);
            prop_assert_eq!(back.to_string(), label.clone());
            prop_assert_eq!(back.parameters.len(), one.parameters.len());
            let list = MethodSpec::list(&format!("{label},{other}")).expect("a list");
            prop_assert_eq!(list, [back, method(&other.to_string())]);
        }

        /// Parsing never panics, and every parsed list can be printed and parsed again.
        #[test]
        fn any_text_parses_or_is_refused(text in "[a-c\\[\\]=, é]{0,24}") {
            if let Ok(list) = MethodSpec::list(&text) {
                let labels: Vec<String> = list.iter().map(MethodSpec::to_string).collect();
                let again = MethodSpec::list(&labels.join(",")).expect("labels");
                let again: Vec<String> = again.iter().map(MethodSpec::to_string).collect();
                prop_assert_eq!(again, labels);
            }
        }
    }
}
