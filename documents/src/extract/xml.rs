//! XML with limits: no entities of a DTD, a limit on the depth, names without their prefix.
//!
//! Readers descend with the markup: a reader is called after the start of an element and returns after its end.

use std::borrow::Cow;

use quick_xml::XmlVersion;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::{ExtractResult, Failure};

/// The deepest nesting of elements. Real documents have fewer than a hundred levels.
const MAX_ELEMENT_DEPTH: usize = 400;

/// A reader of XML.
pub(super) struct Xml<'a> {
    reader: Reader<&'a [u8]>,
    depth: usize,
}

/// A piece of XML. `End` is the end of the element that the caller reads.
pub(super) enum Node<'a> {
    Start(Tag<'a>),
    Text(Cow<'a, str>),
    End,
}

/// The start of an element.
pub(super) struct Tag<'a>(BytesStart<'a>);

impl<'a> Xml<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        config.allow_dangling_amp = true;
        Self { reader, depth: 0 }
    }

    /// The next piece; [`Node::End`] also at the end of the text outside all elements.
    ///
    /// # Errors
    /// [`Failure::Damaged`] if the markup is malformed, ends early or is nested too deep.
    pub(super) fn next(&mut self) -> ExtractResult<Node<'a>> {
        loop {
            let event = self.reader.read_event();
            match event.map_err(|_| Failure::Damaged("its markup is malformed"))? {
                Event::Start(tag) => {
                    self.depth += 1;
                    if self.depth > MAX_ELEMENT_DEPTH {
                        return Err(Failure::Damaged("its markup is nested too deep"));
                    }
                    return Ok(Node::Start(Tag(tag)));
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Node::End);
                }
                Event::Text(text) => return Ok(Node::Text(text.xml10_content())),
                Event::CData(text) => return Ok(Node::Text(text.xml10_content())),
                Event::GeneralRef(name) => {
                    let character = name.resolve_char_ref().ok().flatten();
                    return Ok(Node::Text(match character {
                        Some(character) => Cow::Owned(character.to_string()),
                        None => match resolve_predefined_entity(&name) {
                            Some(text) => Cow::Borrowed(text),
                            None => Cow::Owned(format!("&{};", &*name)),
                        },
                    }));
                }
                Event::Eof if self.depth > 0 => {
                    return Err(Failure::Damaged("a part of it ends early"));
                }
                Event::Eof => return Ok(Node::End),
                _ => {}
            }
        }
    }

    /// The next element in the element that is read; `None` at its end.
    pub(super) fn child(&mut self) -> ExtractResult<Option<Tag<'a>>> {
        loop {
            match self.next()? {
                Node::Start(tag) => return Ok(Some(tag)),
                Node::Text(_) => {}
                Node::End => return Ok(None),
            }
        }
    }

    /// Reads to the end of the element.
    pub(super) fn skip(&mut self) -> ExtractResult<()> {
        let outside = self.depth.saturating_sub(1);
        while self.depth > outside {
            self.next()?;
        }
        Ok(())
    }

    /// All text in the element, to its end.
    pub(super) fn text(&mut self) -> ExtractResult<String> {
        let outside = self.depth.saturating_sub(1);
        let mut text = String::new();
        while self.depth > outside {
            if let Node::Text(more) = self.next()? {
                text.push_str(&more);
            }
        }
        Ok(text)
    }

    /// Enters the first element of this name, at any depth; `None` if the text ends before.
    pub(super) fn find(&mut self, name: &str) -> ExtractResult<Option<Tag<'a>>> {
        loop {
            match self.next()? {
                Node::Start(tag) if tag.name() == name => return Ok(Some(tag)),
                Node::End if self.depth == 0 => return Ok(None),
                _ => {}
            }
        }
    }

    /// Calls `found` for every element of this name, at any depth, to the end of the text.
    pub(super) fn for_each(
        &mut self,
        name: &str,
        mut found: impl FnMut(&Tag<'a>),
    ) -> ExtractResult<()> {
        while let Some(tag) = self.find(name)? {
            found(&tag);
        }
        Ok(())
    }
}

impl Tag<'_> {
    /// The name without its prefix.
    pub(super) fn name(&self) -> &str {
        self.0.local_name().into_inner()
    }

    /// The value of the attribute with this name, its prefix ignored.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.attribute(|key| key.rsplit(':').next() == Some(name))
    }

    /// The value of the attribute with this name and any prefix: `r:id` besides `id`.
    pub(super) fn get_prefixed(&self, name: &str) -> Option<String> {
        self.attribute(|key| key.split_once(':').is_some_and(|(_, local)| local == name))
    }

    fn attribute(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        let mut attributes = self.0.attributes();
        let found = attributes
            .with_checks(false)
            .flatten()
            .find(|attribute| is(attribute.key.into_inner()))?;
        let value = found.normalized_value(XmlVersion::Implicit1_0);
        Some(value.map_or_else(|_| found.value.to_string(), Cow::into_owned))
    }

    /// The value of an attribute as a number.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.get(name)?.trim().parse().ok()
    }

    /// Whether the attribute `val` of an Office property switches it on.
    pub(super) fn is_on(&self) -> bool {
        !matches!(self.get("val").as_deref(), Some("0" | "false" | "off"))
    }
}
