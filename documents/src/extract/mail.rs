//! E-mails: who, when and about what, the text, and the names of the attachments.

use mail_parser::{
    Address, HeaderName, Message, MessageParser, MessagePart, MimeHeaders, PartType,
};

use super::builder::Builder;
use super::writer::{Block, Writer, one_line};
use super::{ExtractResult, Failure, html};

/// Extracts the text of an e-mail. Plain text is preferred; attachments are named, not opened.
pub(super) fn read(bytes: &[u8]) -> ExtractResult<Writer> {
    let message = MessageParser::default()
        .parse(bytes)
        .ok_or(Failure::Damaged("it has no header lines"))?;
    let mut builder = Builder::new();
    let head = head(&message);
    builder.block(Block::Paragraph(head))?;
    let is_blank = |part: &MessagePart| part.text_contents().is_none_or(|t| t.trim().is_empty());
    // Some programs send an empty plain text with the page.
    if message.text_bodies().all(is_blank) {
        message
            .html_bodies()
            .try_for_each(|part| body(part, &mut builder))?;
    } else {
        message
            .text_bodies()
            .try_for_each(|part| body(part, &mut builder))?;
    }
    let attached: Vec<String> = message.attachments().map(named).collect();
    if !attached.is_empty() {
        builder.block(Block::Paragraph(attached.join("\n")))?;
    }
    builder.finish()
}

fn body(part: &MessagePart, builder: &mut Builder) -> ExtractResult<()> {
    match &part.body {
        PartType::Html(text) => html::read_into(builder, text, false).map(drop),
        PartType::Text(text) => {
            // `lines` also ends lines at CR LF.
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            builder.block(Block::Paragraph(lines.join("\n")))
        }
        _ => Ok(()),
    }
}

/// The header lines that a reader wants, one per line.
fn head(message: &Message) -> String {
    let date = message.header_raw(HeaderName::Date).map(one_line);
    let lines = [
        ("From", message.from().map(addresses)),
        ("To", message.to().map(addresses)),
        ("Cc", message.cc().map(addresses)),
        ("Date", date),
        ("Subject", message.subject().map(one_line)),
    ];
    let lines: Vec<String> = (lines.into_iter())
        .filter_map(|(name, value)| Some(format!("{name}: {}", value?)))
        .collect();
    lines.join("\n")
}

fn addresses(address: &Address) -> String {
    let all: Vec<String> = address
        .iter()
        .map(|one| match (one.name(), one.address()) {
            (Some(name), Some(address)) => format!("{} <{address}>", one_line(name)),
            (name, address) => name.or(address).map_or_else(String::new, one_line),
        })
        .collect();
    all.join(", ")
}

fn named(part: &MessagePart) -> String {
    let of_message = part.message().and_then(|message| message.subject());
    let name = part.attachment_name().or(of_message).map(one_line);
    match name {
        Some(name) => format!("Attachment: {name}"),
        None => "Attachment without a name".to_owned(),
    }
}
