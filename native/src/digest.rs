//! Digests of bodies, as the store keeps them.

use md5::{Digest as _, Md5};

/// Longest digest in hexadecimal digits.
pub const DIGITS_MAX: usize = 32;

/// A digest that a broker stores with each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyDigest {
    /// MD5: 32 digits.
    Md5,
}

impl BodyDigest {
    /// Returns the digest of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "MD5" => Some(Self::Md5),
            _ => None,
        }
    }

    /// Returns the number of its digits, `DIGITS_MAX` at most.
    pub fn digits(self) -> usize {
        match self {
            Self::Md5 => 32,
        }
    }

    /// Returns the digest of `body` in upper-case hexadecimal digits; those behind `digits` are zeros.
    pub fn of(self, body: &[u8]) -> [u8; DIGITS_MAX] {
        match self {
            Self::Md5 => hexadecimal(&Md5::digest(body)),
        }
    }
}

fn hexadecimal(raw: &[u8]) -> [u8; DIGITS_MAX] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut digits = [b'0'; DIGITS_MAX];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(raw) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_published_test_vectors() {
        let md5 = BodyDigest::named("MD5").unwrap();
        assert_eq!(&md5.of(b""), b"D41D8CD98F00B204E9800998ECF8427E"); // RFC 1321, A.5
        assert_eq!(&md5.of(b"message digest"), b"F96B697D7CB7938D525A2F31AAF161D0");
        assert_eq!(md5.digits(), 32);
        assert_eq!(BodyDigest::named("md5"), None);
    }
}
