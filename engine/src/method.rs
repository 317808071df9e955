//! A method with its parameters, and how both are written as one: `snapkv[w=8,sinks=0]`, in lists with commas between.
//!
//! Everywhere that methods are named they are read here, and shown by the same name, so that one method can stand in a list as
//! often as wanted. Not here: which methods and parameters there are (kept-policies).

use std::fmt;
use std::str::FromStr;

use kept_policies::Policy;

use crate::EngineError;

/// A method by name, with the parameters that were set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Method {
    /// Name, as in `--method`.
    pub name: String,
    /// What is set, as name-value pairs.
    pub parameters: Vec<(String, String)>,
}

/// Why a text names no method, or no list of them. What is wrong with a parameter's value its method says ([`Method::build`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MethodTextError {
    /// Nothing between two commas, or none at all.
    #[error("'{0}' has an empty place where a method should be; write for example snapkv,h2o")]
    Empty(String),
    /// `[w=8]`
    #[error("'{0}' names no method before its bracket; write for example snapkv[w=8]")]
    NoName(String),
    /// `snapkv[w=8`
    #[error("'{0}' has no ] after its parameters; write for example snapkv[w=8]")]
    NotClosed(String),
    /// `snapkv w=8]`
    #[error("'{0}' has a ] without a [ before it; write for example snapkv[w=8]")]
    NotOpened(String),
    /// `adakv[base=h2o[recent=8]]`
    #[error(
        "'{0}' opens a second [ before the first is closed; close it with ], and write parameters of a base beside it: adakv[base=h2o,recent=8]"
    )]
    Nested(String),
    /// `snapkv[w=8]x`
    #[error(
        "'{after}' stands after the bracket of '{entry}', where nothing but a comma and the next of a list may; take it away"
    )]
    After {
        /// The method up to its bracket.
        entry: String,
        /// What follows.
        after: String,
    },
    /// `snapkv[]`
    #[error(
        "'{entry}' sets nothing in its brackets; write {name} alone, or for example snapkv[w=8]"
    )]
    Nothing {
        /// As written.
        entry: String,
        /// The method's name.
        name: String,
    },
    /// `snapkv[w]`
    #[error("'{part}' in '{entry}' is not name=value; write for example snapkv[w=8,kernel=7]")]
    Assignment {
        /// As written.
        entry: String,
        /// What stands where a parameter should.
        part: String,
    },
    /// `snapkv[w=8,w=9]`
    #[error("'{entry}' sets {parameter} twice; set it once")]
    Twice {
        /// As written.
        entry: String,
        /// The parameter.
        parameter: String,
    },
}

impl Method {
    /// The method called `name` with nothing set.
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parameters: Vec::new(),
        }
    }

    /// The methods of a list. Commas in brackets part parameters, others methods.
    ///
    /// # Errors
    /// What is not written as a list of methods. Names and values are not looked at ([`Method::build`]).
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
                "" => Err(MethodTextError::Empty(text.trim().to_owned())),
                entry => entry.parse(),
            })
            .collect()
    }

    /// Sets what is not set yet. Of a parameter that `values` has twice the last counts.
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

    /// The policy itself. [`crate::AUTO`] is no method before it is chosen.
    pub fn build(&self) -> Result<Box<dyn Policy>, EngineError> {
        Ok(kept_policies::build(&self.name, &self.parameters)?)
    }
}

impl FromStr for Method {
    type Err = MethodTextError;

    /// `name` or `name[parameter=value,...]`.
    fn from_str(text: &str) -> Result<Self, MethodTextError> {
        use MethodTextError as Error;
        let entry = text.trim();
        let written = || entry.to_owned();
        if entry.is_empty() {
            return Err(Error::Empty(written()));
        }
        let Some((name, inside)) = entry.split_once('[') else {
            return match entry.contains(']') {
                true => Err(Error::NotOpened(written())),
                false => Ok(Self::plain(entry)),
            };
        };
        let name = name.trim();
        if name.contains(']') {
            return Err(Error::NotOpened(written()));
        }
        if name.is_empty() {
            return Err(Error::NoName(written()));
        }
        let (inside, after) = match inside.find(['[', ']']) {
            None => return Err(Error::NotClosed(written())),
            Some(at) if inside[at..].starts_with('[') => return Err(Error::Nested(written())),
            Some(at) => (&inside[..at], inside[at + 1..].trim()),
        };
        if !after.is_empty() {
            return Err(Error::After {
                entry: format!("{name}[{inside}]"),
                after: after.to_owned(),
            });
        }
        if inside.trim().is_empty() {
            return Err(Error::Nothing {
                entry: written(),
                name: name.to_owned(),
            });
        }
        let mut method = Self::plain(name);
        for part in inside.split(',').map(str::trim) {
            let assignment = part.split_once('=');
            let assignment = assignment.map(|(name, value)| (name.trim(), value.trim()));
            let Some((parameter, value)) =
                assignment.filter(|(n, v)| !n.is_empty() && !v.is_empty())
            else {
                return Err(Error::Assignment {
                    entry: written(),
                    part: part.to_owned(),
                });
            };
            if method
                .parameters
                .iter()
                .any(|(known, _)| known == parameter)
            {
                return Err(Error::Twice {
                    entry: written(),
                    parameter: parameter.to_owned(),
                });
            }
            (method.parameters).push((parameter.to_owned(), value.to_owned()));
        }
        Ok(method)
    }
}

/// The one name of a method with its parameters: however they were written, those of one method in the order of its table, behind
/// them those of its base, and numbers without needless digits.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.parameters.is_empty() {
            return Ok(());
        }
        let mut parameters: Vec<_> = self.parameters.iter().collect();
        parameters.sort_by(|(a, _), (b, _)| (self.place(a), a).cmp(&(self.place(b), b)));
        let parameters: Vec<String> = (parameters.into_iter())
            .map(|(parameter, value)| format!("{parameter}={}", shortest(value)))
            .collect();
        write!(f, "[{}]", parameters.join(","))
    }
}

impl Method {
    /// Where a parameter stands in its method's table or behind it in that of the base.
    fn place(&self, parameter: &str) -> usize {
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

/// A number as it is written shortest (`08` is `8`, `0.20` is `0.2`); anything else as it is.
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

    fn method(text: &str) -> Method {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn a_list_parts_methods_and_brackets_part_parameters() {
        let list =
            Method::list(" snapkv, snapkv[w=8,sinks=0] ,chunkkv [ chunk = 20 ]").expect("a list");
        let labels: Vec<String> = list.iter().map(Method::to_string).collect();
        assert_eq!(
            labels,
            ["snapkv", "snapkv[w=8,sinks=0]", "chunkkv[chunk=20]"]
        );
        assert_eq!(list[1].name, "snapkv");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(list[1].parameters, [pair("w", "8"), pair("sinks", "0")]);
    }

    #[test]
    fn one_method_has_one_label() {
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
    fn what_is_set_beside_fills_what_the_brackets_leave() {
        let mut told = method("snapkv[w=8]");
        let set = [("w", "9"), ("kernel", "5"), ("kernel", "7")].map(|(n, v)| (n.into(), v.into()));
        told.set_further(&set);
        assert_eq!(told.to_string(), "snapkv[w=8,kernel=7]");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, said) in [
            ("", "''"),
            ("snapkv,,h2o", "'snapkv,,h2o' has an empty place"),
            ("snapkv,", "'snapkv,' has an empty place"),
            ("[w=8]", "'[w=8]' names no method"),
            ("snapkv[w=8", "'snapkv[w=8' has no ]"),
            ("snapkv[w=8,h2o", "'snapkv[w=8,h2o' has no ]"),
            ("snapkv w=8],h2o", "'snapkv w=8]' has a ] without"),
            ("snapkv][w=8]", "'snapkv][w=8]' has a ] without"),
            ("adakv[base=h2o[recent=8]]", "second ["),
            (
                "snapkv[w=8]x",
                "'x' stands after the bracket of 'snapkv[w=8]'",
            ),
            ("snapkv[w=8]]", "']' stands after"),
            ("snapkv[ ]", "write snapkv alone"),
            ("snapkv[w]", "'w' in 'snapkv[w]' is not name=value"),
            ("snapkv[w=8,]", "'' in 'snapkv[w=8,]' is not name=value"),
            ("snapkv[w=]", "'w=' in"),
            ("snapkv[w=8,w=9]", "sets w twice"),
        ] {
            let error = Method::list(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
            assert!(!error.contains('\n') && !error.contains(". "), "{error}");
        }
    }

    proptest! {
        /// Whatever is set, the label names it and is read back as itself.
        #[test]
        fn a_label_is_read_back(which in 0usize..100, values in prop::collection::vec("[a-z0-9.+]{1,6}", 0..6)) {
            let infos = kept_policies::methods();
            let told = |which: usize| {
                let info = &infos[which % infos.len()];
                let names = info.parameters.iter().map(|p| p.name.to_owned()).rev();
                Method { name: info.name.to_owned(), parameters: names.zip(values.clone()).collect() }
            };
            let (one, other) = (told(which), told(which + 1));
            let label = one.to_string();
            let back = method(&label);
            prop_assert_eq!(back.to_string(), label.clone());
            prop_assert_eq!(back.parameters.len(), one.parameters.len());
            let list = Method::list(&format!("{label},{other}")).expect("a list");
            prop_assert_eq!(list, [back, method(&other.to_string())]);
        }

        /// No text ends the program, and what is taken holds together.
        #[test]
        fn any_text_is_read_or_refused(text in "[a-c\\[\\]=, é]{0,24}") {
            if let Ok(list) = Method::list(&text) {
                let labels: Vec<String> = list.iter().map(Method::to_string).collect();
                let again = Method::list(&labels.join(",")).expect("labels");
                let again: Vec<String> = again.iter().map(Method::to_string).collect();
                prop_assert_eq!(again, labels);
            }
        }
    }
}
