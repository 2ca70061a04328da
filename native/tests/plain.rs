//! The reader of plain requests without Python: what it takes, and that no input makes it panic.
//!
//! That it takes exactly what the reader in Python takes is tested from there (`make plain-sends`).

use std::collections::HashSet;

use evenq_native::plain::{Limits, Texts, read_block, read_send};

struct Rules;

impl Texts for Rules {
    fn tag_hash(&mut self, tag: &str) -> Option<i64> {
        (tag != "a|b").then_some(7)
    }

    fn is_printable(&mut self, text: &str) -> bool {
        !text.contains('\u{2003}')
    }
}

fn limits() -> Limits {
    Limits {
        body_bytes_max: 1_000,
        properties_max: 2,
        properties_bytes_max: 200,
        keys_max: 2,
        reserved: HashSet::from([b"KEYS".to_vec()]),
    }
}

fn field(tag: &[u8], content: &[u8]) -> Vec<u8> {
    let mut size = content.len();
    let mut encoded = tag.to_vec();
    while size > 0x7F {
        encoded.push((size & 0x7F) as u8 | 0x80);
        size >>= 7;
    }
    encoded.push(size as u8);
    encoded.extend_from_slice(content);
    encoded
}

const TIME: &[u8] = b"\x3a\x0b\x08\x80\xe2\xcf\xaa\x06\x10\x80\x89\x7a\x00";

fn system(id: &[u8]) -> Vec<u8> {
    let mut bytes = field(b"\x0a", b"TagA");
    bytes.extend(field(b"\x12", "schlüssel".as_bytes()));
    bytes.extend(field(b"\x1a", id));
    bytes.extend_from_slice(b"\x28\x01\x30\x01");
    bytes.extend(field(b"\x3a", &TIME[2..TIME.len() - 1]));
    bytes.extend(field(b"\x42", b"localhost"));
    bytes.extend_from_slice(b"\x68\x03");
    bytes.extend(field(b"\x92\x01", b"00-4bf9-01"));
    bytes
}

fn message(topic: &[u8], id: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = if topic.is_empty() { Vec::new() } else { field(b"\x0a", &field(b"\x12", topic)) };
    let mut property = field(b"\x0a", b"k");
    property.extend(field(b"\x12", b"v"));
    bytes.extend(field(b"\x12", &property));
    bytes.extend(field(b"\x1a", &system(id)));
    bytes.extend(field(b"\x22", body));
    bytes
}

fn send(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| field(b"\x0a", &message(b"t", format!("id{number}").as_bytes(), &[7; 200]))).collect()
}

fn block(count: usize) -> Vec<u8> {
    let mut queue = field(b"\x0a", b"t");
    queue.extend(field(b"\x12", b"a"));
    queue.extend_from_slice(b"\x18\x05");
    let mut bytes = field(b"\x0a", &queue);
    bytes.extend((0..count).flat_map(|_| field(b"\x12", &message(b"", b"id", b"body"))));
    bytes
}

#[test]
fn a_plain_request_is_cut_into_its_parts() {
    let request = send(2);
    let read = read_send(&request, &limits(), &mut Rules).expect("it is plain");
    assert_eq!((read.topic, read.messages.len()), ("t", 2));
    let second = &read.messages[1];
    assert_eq!((second.id, second.tag_hash, second.queue_id), (&b"id1"[..], 7, 3));
    assert_eq!((second.body, second.system), (&[7; 200][..], &system(b"id1")[..]));
    assert_eq!(second.born_ms, 1_700_000_000_002); // 2,000,000 ns
    assert!(second.head.starts_with(b"\x0a\x03\x12\x01t\x12") && second.body_field.starts_with(b"\x22\xc8\x01"));
}

#[test]
fn a_block_leaves_out_its_topic_and_names_a_queue_of_this_broker() {
    let request = block(3);
    let read = read_block(&request, "a", &limits(), &mut Rules).expect("it is plain");
    assert_eq!((read.topic, read.queue_id, read.messages.len()), ("t", 5, 3));
    assert_eq!(read.left_out, b"\x0a\x03\x12\x01t");
    assert!(read_block(&request, "b", &limits(), &mut Rules).is_none());
    assert!(read_block(&block(0), "a", &limits(), &mut Rules).is_none());
}

#[test]
fn limits_and_rules_are_those_of_the_caller() {
    let request = send(1);
    for narrow in [
        Limits { body_bytes_max: 199, ..limits() },
        Limits { properties_max: 0, ..limits() },
        Limits { properties_bytes_max: 20, ..limits() },
        Limits { keys_max: 0, ..limits() },
        Limits { reserved: HashSet::from([b"k".to_vec()]), ..limits() },
    ] {
        assert!(read_send(&request, &narrow, &mut Rules).is_none());
    }
    let tag = request.windows(4).position(|window| window == b"TagA").expect("it has a tag");
    let mut other = request.clone();
    other[tag - 1] = 3;
    other.splice(tag..tag + 4, *b"a|b");
    assert!(read_send(&other, &limits(), &mut Rules).is_none());
}

#[test]
fn any_cut_is_not_plain() {
    for request in [send(1), block(1)] {
        for end in 0..request.len() {
            assert!(read_send(&request[..end], &limits(), &mut Rules).is_none());
            assert!(read_block(&request[..end], "a", &limits(), &mut Rules).is_none());
        }
    }
}

/// Numbers that look random and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn no_input_makes_it_panic_and_what_it_takes_lies_within_the_request() {
    let pieces: [&[u8]; 7] = [
        b"\xff\xff\xff\x7f",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x80\x00",
        b"\xff",
        b"\x00",
        b"\x0a",
        b"\xe2",
    ];
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let mut taken = 0;
    for _ in 0..40_000 {
        let mut request = if numbers.below(2) == 0 { send(2) } else { block(2) };
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(request.len());
            match numbers.below(4) {
                0 => request[at] = numbers.below(256) as u8,
                1 => request.truncate(at + 1),
                2 => drop(request.splice(at..at, pieces[numbers.below(pieces.len())].iter().copied())),
                _ => drop(request.drain(at..(at + 1 + numbers.below(4)).min(request.len()))),
            }
            if request.is_empty() {
                break;
            }
        }
        let sent = read_send(&request, &limits(), &mut Rules).map(|read| read.messages);
        let published = read_block(&request, "a", &limits(), &mut Rules).map(|read| read.messages);
        for messages in [sent, published].into_iter().flatten() {
            taken += 1;
            assert!(!messages.is_empty());
            for message in &messages {
                let parts = message.head.len() + message.system.len() + message.body_field.len();
                assert!(parts < request.len() && message.body_field.ends_with(message.body));
                assert!(!message.id.is_empty() && !message.body.is_empty() && message.born_ms > 0);
            }
        }
    }
    assert!(taken > 100, "some are still plain: {taken}");
}
