"""Section 1 of docs/codec.md: numbers, rounding, packed rows."""

import numpy as np

F32 = np.float32
BF16, F16, FLOAT32 = 0, 1, 2  # element types


def f16_rn(x):
    return np.asarray(x, F32).astype(np.float16)


def f16_down(x):
    half = f16_rn(x)
    return np.where(half.astype(F32) > x, np.nextafter(half, np.float16(-np.inf)), half).astype(np.float16)


def f16_up(x):
    half = f16_rn(x)
    return np.where(half.astype(F32) < x, np.nextafter(half, np.float16(np.inf)), half).astype(np.float16)


def bf16_bits(x):
    bits = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def bf16_value(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


def pack_nibbles(codes):
    """codes: [token][channel] integers -> bytes."""
    codes = np.asarray(codes).astype(np.int64) & 15
    if codes.shape[0] % 2:
        codes = np.vstack([codes, np.zeros((1, codes.shape[1]), np.int64)])
    return (codes[0::2] | codes[1::2] << 4).astype(np.uint8).tobytes()


def unpack_nibbles(data, tokens, channels):
    rows = np.frombuffer(data, np.uint8).reshape(-1, channels)
    codes = np.empty((2 * rows.shape[0], channels), np.int64)
    codes[0::2], codes[1::2] = rows & 15, rows >> 4
    return codes[:tokens]


def pieces(width):
    """Pieces of a code, its high bits first: (bits of the piece, bits below it)."""
    result, left = [], width
    for piece in (4, 2, 1):
        if width & piece:
            left -= piece
            result.append((piece, left))
    return result


def pack_codes(codes, width):
    """Code rows: codes [token][channel] of `width` bits."""
    codes, data = np.asarray(codes).astype(np.int64), b""
    for piece, below in pieces(width):
        rows = np.zeros(((codes.shape[0] * piece + 7) // 8, codes.shape[1]), np.int64)
        for token in range(codes.shape[0]):
            rows[token * piece // 8] |= (codes[token] >> below & (1 << piece) - 1) << token * piece % 8
        data += rows.astype(np.uint8).tobytes()
    return data


def unpack_codes(reader, tokens, channels, width):
    codes = np.zeros((tokens, channels), np.int64)
    for piece, below in pieces(width):
        rows = reader.bytes_((tokens * piece + 7) // 8 * channels).astype(np.int64).reshape(-1, channels)
        for token in range(tokens):
            codes[token] |= (rows[token * piece // 8] >> token * piece % 8 & (1 << piece) - 1) << below
    return codes


def signed(codes, bits):
    return np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)


def chunks(tokens):
    return [(begin, min(begin + 32, tokens)) for begin in range(0, tokens, 32)]


def element_values(data, element_type, channels):
    """Elements in memory -> values [token][channel]."""
    kind = {BF16: "<u2", F16: "<f2", FLOAT32: "<f4"}[element_type]
    bits = np.frombuffer(data, kind).reshape(-1, channels)
    return bf16_value(bits) if element_type == BF16 else bits.astype(F32)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count : self.at]

    def halfs(self, count):
        return np.frombuffer(self.take(2 * count), "<f2").astype(F32)

    def bytes_(self, count):
        return np.frombuffer(self.take(count), np.uint8)
