//! Digests of bodies, as the store keeps them, and what the window of duplicates distinguishes bodies by.

use md5::{Digest as _, Md5};

/// Digits of a CRC32.
pub const CRC32_DIGITS: usize = 8;
/// Digits of an MD5.
pub const MD5_DIGITS: usize = 32;

/// The digest of a body.
#[derive(Debug, PartialEq, Eq)]
pub struct BodyDigest {
    /// CRC32 in upper-case hexadecimal digits: part of the key in the window of duplicates.
    pub mark: [u8; CRC32_DIGITS],
    /// MD5 likewise, if that is what the store keeps; otherwise it keeps `mark`.
    pub md5: Option<[u8; MD5_DIGITS]>,
}

impl BodyDigest {
    /// Returns the digest of `body`. The store keeps MD5 for a CRC32 below `crc_min`, whose text is not the same for all
    /// clients, or which is not wanted at all.
    pub fn of(body: &[u8], crc_min: u64) -> Self {
        let crc = crc32fast::hash(body);
        let md5 = (u64::from(crc) < crc_min).then(|| hexadecimal(&Md5::digest(body)));
        Self { mark: hexadecimal(&crc.to_be_bytes()), md5 }
    }
}

fn hexadecimal<const DIGITS: usize>(raw: &[u8]) -> [u8; DIGITS] {
    const OF: &[u8; 16] = b"0123456789ABCDEF";
    let mut digits = [b'0'; DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(raw) {
        pair[0] = OF[usize::from(byte >> 4)];
        pair[1] = OF[usize::from(byte & 15)];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_published_test_vectors() {
        assert_eq!(BodyDigest::of(b"123456789", 0), BodyDigest { mark: *b"CBF43926", md5: None }); // the catalogue's check value
        let md5 = |body: &[u8]| BodyDigest::of(body, u64::MAX).md5.unwrap();
        assert_eq!(&md5(b""), b"D41D8CD98F00B204E9800998ECF8427E"); // RFC 1321, A.5
        assert_eq!(&md5(b"message digest"), b"F96B697D7CB7938D525A2F31AAF161D0");
    }

    #[test]
    fn a_crc32_below_the_minimum_is_padded_and_kept_beside_md5() {
        let crc = u64::from(crc32fast::hash(b"message digest"));
        assert_eq!(crc, 0x2015_9D7F);
        assert!(BodyDigest::of(b"message digest", crc).md5.is_none());
        assert!(BodyDigest::of(b"message digest", crc + 1).md5.is_some());
        let low = BodyDigest::of(b"", 1 << 28);
        assert_eq!(&low.mark, b"00000000");
        assert!(low.md5.is_some());
    }
}
