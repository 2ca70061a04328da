//! Frames of messages in the commit log, and entries of consume queues.
//!
//! The byte tables are those of `src/evenq/store/log/record.py` and `consume_queue.py`, all numbers big-endian. The part
//! of a header that is the same for all messages of one queue, the stem, is made in Python.

/// Bytes of a frame in front of head and system properties.
pub const HEADER_BYTES: usize = 88;
/// Bytes of a stem: version, kind, flags, epoch, topic id, queue id.
pub const STEM_BYTES: usize = 20;
/// Bytes of an entry of a consume queue.
pub const ENTRY_BYTES: usize = 20;

const MAGIC: u32 = 0x4576_4C31;
const CRC_AT: usize = 8;
const COVERED_AT: usize = 12; // the checksum covers everything behind itself

/// A message with its place.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'m> {
    /// Place in its queue.
    pub queue_offset: u64,
    /// Place in the log.
    pub log_offset: u64,
    /// Up to here the log is on disk.
    pub synced_end: u64,
    /// Time of storing, ms since the epoch.
    pub store_ms: i64,
    /// Time of sending, likewise.
    pub born_ms: i64,
    /// Hash of the tag; 0: it has none.
    pub tag_hash: i64,
    /// Topic, user properties and body.
    pub head: &'m [u8],
    /// System properties.
    pub system: &'m [u8],
}

/// Returns the bytes of a frame; `None`: they do not fit its field.
pub fn frame_bytes(head: &[u8], system: &[u8]) -> Option<u32> {
    let size = HEADER_BYTES.checked_add(head.len())?.checked_add(system.len())?;
    u32::try_from(size).ok()
}

impl Placed<'_> {
    /// Writes the frame to `target`, which has `size` bytes: those that `frame_bytes` returned.
    pub fn write(&self, target: &mut [u8], stem: &[u8; STEM_BYTES], size: u32) {
        let mut fields = Fields { target, at: 0 };
        fields.put(&size.to_be_bytes());
        fields.put(&MAGIC.to_be_bytes());
        fields.put(&[0; COVERED_AT - CRC_AT]);
        fields.put(stem);
        fields.put(&self.queue_offset.to_be_bytes());
        fields.put(&self.log_offset.to_be_bytes());
        fields.put(&self.synced_end.to_be_bytes());
        fields.put(&self.store_ms.to_be_bytes());
        fields.put(&self.born_ms.to_be_bytes());
        fields.put(&self.tag_hash.to_be_bytes());
        // Both are parts of `size`, which has 32 bits.
        fields.put(&(self.head.len() as u32).to_be_bytes());
        fields.put(&(self.system.len() as u32).to_be_bytes());
        fields.put(self.head);
        fields.put(self.system);
        let target = fields.target;
        let crc = crc32c::crc32c(&target[COVERED_AT..]);
        target[CRC_AT..COVERED_AT].copy_from_slice(&crc.to_be_bytes());
    }

    /// Returns its entry of the consume queue.
    pub fn entry(&self, size: u32) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        let mut fields = Fields { target: &mut entry, at: 0 };
        fields.put(&self.log_offset.to_be_bytes());
        fields.put(&size.to_be_bytes());
        fields.put(&self.tag_hash.to_be_bytes());
        entry
    }
}

struct Fields<'t> {
    target: &'t mut [u8],
    at: usize,
}

impl Fields<'_> {
    fn put(&mut self, field: &[u8]) {
        let end = self.at + field.len();
        self.target[self.at..end].copy_from_slice(field);
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_and_its_entry_have_the_bytes_of_the_table() {
        let message = Placed {
            queue_offset: 0x0102_0304_0506_0708,
            log_offset: 0x1112_1314_1516_1718,
            synced_end: 0x2122_2324_2526_2728,
            store_ms: 0x3132_3334_3536_3738,
            born_ms: -1,
            tag_hash: -2,
            head: b"head",
            system: b"sys",
        };
        let size = frame_bytes(message.head, message.system).unwrap();
        assert_eq!(size, 95);
        let mut frame = vec![0xAA; 95];
        message.write(&mut frame, &[7; STEM_BYTES], size);
        let covered = [
            [7; STEM_BYTES].as_slice(),
            &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38],
            &[0xFF; 15],
            &[0xFE, 0, 0, 0, 4, 0, 0, 0, 3],
            b"headsys",
        ]
        .concat();
        let crc = crc32c::crc32c(&covered).to_be_bytes();
        assert_eq!(frame, [b"\0\0\0\x5fEvL1".as_slice(), &crc, &covered].concat());
        let entry = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 0, 0, 95];
        assert_eq!(message.entry(size), *[entry.as_slice(), &[0xFF; 7], &[0xFE]].concat());
    }

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283); // the catalogue's check value
    }
}
