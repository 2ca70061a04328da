//! Reader of plain SendMessage and Publish requests.
//!
//! The rules are those of the broker's `core/sending/plain_sends.py`, case by case: a request is taken here exactly if it
//! is taken there. A message is taken if it is encoded as every protobuf library does it, with fields in ascending order,
//! numbers as short as they can be, and nothing but what a NORMAL message has. Everything else is `None`, "not plain":
//! hostile input, what a check refuses, and what is merely unusual. No error is made here.
//!
//! A message has four fields. Those of `system_properties` that may be there, in this order:
//!
//! | field | bytes | rule |
//! | --- | --- | --- |
//! | `tag` | `0A` length text | up to 127 bytes; the caller knows which tags are allowed, and their hashes |
//! | `keys` | `12` length text | up to 127 bytes each, printable, not blank |
//! | `message_id` | `1A` length text | 1 to 127 letters and digits |
//! | `body_encoding`, `message_type` | `28 01`, `30 01` | IDENTITY, NORMAL |
//! | `born_timestamp` | `3A` length `08` seconds `10` nanos | seconds of five bytes; nanos may be absent |
//! | `born_host` | `42` length text | 1 to 127 bytes |
//! | `queue_id` | `68` number | not 0 |
//! | `trace_context` | `92 01` length text | |
//!
//! Every position is checked before it is read: a length that leads out of a message makes the request "not plain".

use std::collections::HashSet;

const MESSAGES: u8 = 0x0A; // field of a SendMessageRequest
const BLOCK_QUEUE: u8 = 0x0A; // fields of a PublishRequest
const BLOCK_MESSAGES: u8 = 0x12;
const TOPIC: u8 = 0x0A; // fields of a message
const PROPERTY: u8 = 0x12;
const SYSTEM: u8 = 0x1A;
const BODY: u8 = 0x22;
const NAME: u8 = 0x12; // field of a topic
const KEY: u8 = 0x0A; // fields of a user property
const VALUE: u8 = 0x12;
const QUEUE_BROKER: u8 = 0x12; // fields of the queue of a block
const QUEUE_ID: u8 = 0x18;
const MINUS_ONE: &[u8] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";

const SHORT_MAX: usize = 0x7F;
const SYSTEM_BYTES_MAX: usize = 8 << 10;
const QUEUE_BYTES_MAX: usize = 1_024;
const SECONDS_BYTES: usize = 6;
const NANOS_MAX: u64 = 999_999_999;

/// Limits of a message, which the broker's settings and protocol set.
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes_max: usize,
    /// User properties.
    pub properties_max: usize,
    /// Bytes of tag, keys and user properties.
    pub properties_bytes_max: usize,
    /// Keys.
    pub keys_max: usize,
    /// Names that no user property may have.
    pub reserved: HashSet<Vec<u8>>,
}

/// What the reader does not decide itself about texts.
pub trait Texts {
    /// Returns the hash of a tag, which is valid UTF-8; `None`: no message may have this tag.
    fn tag_hash(&mut self, tag: &str) -> Option<i64>;
    /// Returns whether a text that is not ASCII has only printable characters.
    fn is_printable(&mut self, text: &str) -> bool;
}

/// A plain message: slices of its request.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'r> {
    /// Topic and user properties, as they are encoded.
    pub head: &'r [u8],
    /// The field `body`, with its tag and length.
    pub body_field: &'r [u8],
    /// The body itself, at the end of `body_field`.
    pub body: &'r [u8],
    /// Content of `system_properties`.
    pub system: &'r [u8],
    /// Text of `message_id`.
    pub id: &'r [u8],
    /// Hash of the tag; 0: it has none.
    pub tag_hash: i64,
    /// Born time, ms since the epoch.
    pub born_ms: i64,
    /// Requested queue; 0: none.
    pub queue_id: usize,
}

/// A plain SendMessageRequest.
#[derive(Debug, PartialEq, Eq)]
pub struct Send<'r> {
    /// Name of the topic of all messages.
    pub topic: &'r str,
    /// At least one.
    pub messages: Vec<Message<'r>>,
}

/// A plain PublishRequest.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'r> {
    /// Topic of the block and of all messages.
    pub topic: &'r str,
    /// Queue that the block names; -1: the broker chooses.
    pub queue_id: i64,
    /// The field `topic` if the messages leave it out, otherwise empty; it is stored in front of each head.
    pub left_out: Vec<u8>,
    /// At least one.
    pub messages: Vec<Message<'r>>,
}

/// Reads a SendMessageRequest; `None`: it is not plain.
pub fn read_send<'r>(request: &'r [u8], limits: &Limits, texts: &mut impl Texts) -> Option<Send<'r>> {
    let (_, start) = length(request, 1)?;
    let size = usize::from(*request.get(start + 1)?);
    let topic = request.get(start..start + 2 + size)?;
    if topic[0] != TOPIC || !(3..=SHORT_MAX).contains(&size) || topic[2] != NAME || usize::from(topic[3]) != size - 2 {
        return None;
    }
    let name = text(&topic[4..])?;
    let messages = read_messages(request, 0, MESSAGES, topic, limits, texts)?;
    Some(Send { topic: name, messages })
}

/// Reads a PublishRequest to a queue of the broker `broker_name`; `None`: it is not plain.
pub fn read_block<'r>(
    request: &'r [u8],
    broker_name: &str,
    limits: &Limits,
    texts: &mut impl Texts,
) -> Option<Block<'r>> {
    if *request.first()? != BLOCK_QUEUE {
        return None;
    }
    let (size, start) = length(request, 1)?;
    if size > QUEUE_BYTES_MAX {
        return None;
    }
    let at = start + size;
    let queue = read_queue(request.get(start..at)?)?;
    if !queue.broker_name.is_empty() && queue.broker_name != broker_name {
        return None;
    }
    let name = queue.topic.as_bytes();
    let name_bytes = u8::try_from(name.len()).ok()?; // at most 125
    let mut topic_field = vec![TOPIC, name_bytes + 2, NAME, name_bytes];
    topic_field.extend_from_slice(name);
    let (_, first) = length(request, at + 1)?;
    let leaves_out = *request.get(first)? != TOPIC; // all of them leave it out, or none
    let prefix: &[u8] = if leaves_out { &[] } else { &topic_field };
    let messages = read_messages(request, at, BLOCK_MESSAGES, prefix, limits, texts)?;
    let left_out = if leaves_out { topic_field } else { Vec::new() };
    Some(Block { topic: queue.topic, queue_id: queue.queue_id, left_out, messages })
}

/// Reads a length of up to four bytes; returns it and the position behind it.
fn length(data: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut size = 0;
    for index in 0..4 {
        let byte = usize::from(*data.get(at + index)?);
        size |= (byte & 0x7F) << (7 * index);
        if byte <= SHORT_MAX {
            // Protobuf writes a number as short as it can be.
            return (index == 0 || byte != 0).then_some((size, at + index + 1));
        }
    }
    None
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

struct Queue<'r> {
    topic: &'r str,
    broker_name: &'r str,
    queue_id: i64,
}

fn read_queue(field: &[u8]) -> Option<Queue<'_>> {
    let size = usize::from(*field.get(1)?);
    if field[0] != TOPIC || size == 0 || size > SHORT_MAX - 2 {
        return None;
    }
    let mut at = 2 + size;
    let topic = text(field.get(2..at)?)?;
    let (mut broker_name, mut queue_id) = ("", 0);
    if field.get(at) == Some(&QUEUE_BROKER) {
        let (size, start) = length(field, at + 1)?;
        at = start + size;
        broker_name = text(field.get(start..at)?)?;
    }
    if field.get(at) == Some(&QUEUE_ID) {
        if field.get(at + 1..) == Some(MINUS_ONE) {
            (queue_id, at) = (-1, field.len());
        } else {
            let (number, end) = length(field, at + 1)?;
            (queue_id, at) = (i64::try_from(number).ok()?, end);
        }
    }
    (at == field.len()).then_some(Queue { topic, broker_name, queue_id })
}

/// Reads the fields `tag` from `at` to the end, and nothing else: messages that begin with `prefix`.
fn read_messages<'r>(
    request: &'r [u8],
    mut at: usize,
    tag: u8,
    prefix: &[u8],
    limits: &Limits,
    texts: &mut impl Texts,
) -> Option<Vec<Message<'r>>> {
    let mut messages = Vec::new();
    while at < request.len() {
        if request[at] != tag {
            return None;
        }
        let (size, start) = length(request, at + 1)?;
        at = start + size;
        let message = request.get(start..at)?;
        if !message.starts_with(prefix) {
            return None;
        }
        messages.push(read_message(message, prefix.len(), limits, texts)?);
    }
    (!messages.is_empty()).then_some(messages)
}

/// Reads a message whose user properties begin at `properties`.
fn read_message<'r>(data: &'r [u8], properties: usize, limits: &Limits, texts: &mut impl Texts) -> Option<Message<'r>> {
    let head_end = behind_properties(data, properties, limits, texts)?;
    if *data.get(head_end)? != SYSTEM {
        return None;
    }
    let (size, system_at) = length(data, head_end + 1)?;
    let body_at = system_at + size;
    if size > SYSTEM_BYTES_MAX || *data.get(body_at)? != BODY {
        return None;
    }
    let (body_bytes, body) = length(data, body_at + 1)?;
    if body + body_bytes != data.len() || body_bytes == 0 || body_bytes > limits.body_bytes_max {
        return None;
    }
    let system = &data[system_at..body_at];
    let (tag_hash, at) = read_tag(system, texts)?;
    let at = behind_keys(system, at, limits, texts)?;
    // This is more than the texts: the full path counts only those.
    if head_end - properties + at > limits.properties_bytes_max {
        return None;
    }
    let (id, born_ms, at) = read_id_and_time(system, at)?;
    let queue_id = read_end(&system[at..])?;
    Some(Message {
        head: &data[..head_end],
        body_field: &data[body_at..],
        body: &data[body..],
        system,
        id,
        tag_hash,
        born_ms,
        queue_id,
    })
}

/// Returns the position behind the user properties from `at` on, if the full path stores them unchanged.
fn behind_properties(data: &[u8], mut at: usize, limits: &Limits, texts: &mut impl Texts) -> Option<usize> {
    if data.get(at) != Some(&PROPERTY) {
        return Some(at); // as most messages
    }
    let mut names: Vec<&[u8]> = Vec::new();
    let mut total = 0;
    while data.get(at) == Some(&PROPERTY) {
        let (size, start) = length(data, at + 1)?;
        at = start + size;
        let entry = data.get(start..at)?;
        if *entry.first()? != KEY {
            return None;
        }
        let (name_bytes, begin) = length(entry, 1)?;
        let value = begin + name_bytes;
        let raw = entry.get(begin..value)?;
        let name = text(raw)?;
        if name.is_empty() || !is_printable(name, texts) || limits.reserved.contains(raw) {
            return None;
        }
        if *entry.get(value)? != VALUE {
            return None;
        }
        let (value_bytes, begin) = length(entry, value + 1)?;
        if begin + value_bytes != entry.len() {
            return None;
        }
        text(&entry[begin..])?;
        names.push(raw);
        total += name_bytes + value_bytes;
        if names.len() > limits.properties_max || total > limits.properties_bytes_max {
            return None;
        }
    }
    names.sort_unstable();
    names.windows(2).all(|pair| pair[0] != pair[1]).then_some(at)
}

fn is_printable(text: &str, texts: &mut impl Texts) -> bool {
    if text.is_ascii() { text.bytes().all(|byte| (0x20..0x7F).contains(&byte)) } else { texts.is_printable(text) }
}

fn read_tag(system: &[u8], texts: &mut impl Texts) -> Option<(i64, usize)> {
    if system.first() != Some(&TAG) {
        return Some((0, 0));
    }
    let size = usize::from(*system.get(1)?);
    let tag = text(system.get(2..2 + size)?)?;
    if size > SHORT_MAX {
        return None;
    }
    Some((texts.tag_hash(tag)?, 2 + size))
}

const TAG: u8 = 0x0A; // fields of system properties
const KEYS: u8 = 0x12;
const MESSAGE_ID: u8 = 0x1A;
const ENCODING_IDENTITY: &[u8] = b"\x28\x01";
const TYPE_NORMAL: &[u8] = b"\x30\x01";
const BORN: u8 = 0x3A;
const SECONDS: u8 = 0x08;
const NANOS: u8 = 0x10;
const HOST: u8 = 0x42;
const QUEUE: u8 = 0x68;
const TRACE: &[u8] = b"\x92\x01";

fn behind_keys(system: &[u8], mut at: usize, limits: &Limits, texts: &mut impl Texts) -> Option<usize> {
    let mut count = 0;
    while system.get(at) == Some(&KEYS) {
        let size = usize::from(*system.get(at + 1)?);
        let key = text(system.get(at + 2..at + 2 + size)?)?;
        // The one blank character that is printable is the space.
        if size == 0 || size > SHORT_MAX || key.bytes().all(|byte| byte == b' ') || !is_printable(key, texts) {
            return None;
        }
        at += 2 + size;
        count += 1;
    }
    (count <= limits.keys_max).then_some(at)
}

/// Reads `message_id` to `born_timestamp`; returns the id, ms since the epoch and the position behind.
fn read_id_and_time(system: &[u8], at: usize) -> Option<(&[u8], i64, usize)> {
    if *system.get(at)? != MESSAGE_ID {
        return None;
    }
    let size = usize::from(*system.get(at + 1)?);
    let mut end = at + 2 + size;
    let id = system.get(at + 2..end)?;
    if size == 0 || size > SHORT_MAX || !id.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    if system[end..].starts_with(ENCODING_IDENTITY) {
        end += ENCODING_IDENTITY.len();
    }
    if system[end..].starts_with(TYPE_NORMAL) {
        end += TYPE_NORMAL.len();
    }
    if *system.get(end)? != BORN {
        return None;
    }
    let time_bytes = usize::from(*system.get(end + 1)?);
    let time = system.get(end + 2..end + 2 + time_bytes)?;
    let seconds = time.get(..SECONDS_BYTES)?;
    if seconds[0] != SECONDS {
        return None;
    }
    let seconds = number(&seconds[1..])?;
    let nanos = match time.get(SECONDS_BYTES..)? {
        [] => 0,
        [NANOS, rest @ ..] => number(rest).filter(|nanos| *nanos <= NANOS_MAX)?,
        _ => return None,
    };
    let born_ms = i64::try_from(seconds * 1_000 + nanos / 1_000_000).ok()?;
    Some((id, born_ms, end + 2 + time_bytes))
}

/// Reads a number of one to five bytes that fills `encoded` and is as short as it can be.
fn number(encoded: &[u8]) -> Option<u64> {
    let (last, more) = encoded.split_last()?;
    if more.len() > 4 || !(1..=0x7F).contains(last) || more.iter().any(|byte| *byte <= 0x7F) {
        return None;
    }
    Some(encoded.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7F)))
}

/// Reads the fields behind `born_timestamp`; returns the queue that they request, 0 = none.
fn read_end(tail: &[u8]) -> Option<usize> {
    let (mut at, mut queue_id) = (0, 0);
    if tail.first() == Some(&HOST) {
        let size = usize::from(*tail.get(1)?);
        at = 2 + size;
        text(tail.get(2..at)?)?;
        if size == 0 || size > SHORT_MAX {
            return None;
        }
    }
    if tail.get(at) == Some(&QUEUE) {
        (queue_id, at) = length(tail, at + 1)?;
        if queue_id == 0 {
            return None;
        }
    }
    if tail[at..].starts_with(TRACE) {
        let (size, start) = length(tail, at + 2)?;
        at = start + size;
        text(tail.get(start..at)?)?;
    }
    (at == tail.len()).then_some(queue_id)
}
