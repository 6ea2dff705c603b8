//! Bytes as text.

/// The bytes in hexadecimal digits, lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of `2 * N` hexadecimal digits; `None`: the text is something else.
pub(crate) fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_other_texts_are_none() {
        let bytes: [u8; 256] = std::array::from_fn(|at| at as u8);
        let text = hex(&bytes);
        assert_eq!(unhex(text.as_bytes()), Some(bytes));
        assert_eq!(unhex(text.to_uppercase().as_bytes()), Some(bytes));
        for other in ["", "0", "000", "0000", "+f", "g0", " 0", "\u{e9}"] {
            assert_eq!(unhex::<1>(other.as_bytes()), None, "{other:?}");
        }
    }
}
