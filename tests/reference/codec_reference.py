#!/usr/bin/env python3
"""Page streams and codecs, written from docs/codec.md in its order: plain, slow, independent of the C++ code.

  codec_reference.py           write the golden files
  codec_reference.py --check   verify that the checked-in files are what this script writes, and that they decode
"""

import pathlib
import struct
import sys

import numpy as np

from codec_conventions import (BF16, F16, F32, FLOAT32, Reader, bf16_bits, bf16_value, chunks, element_values, f16_down,
                               f16_rn, f16_up, pack_codes, pack_nibbles, signed, unpack_codes, unpack_nibbles)
from lynx_codec import Lynx, rotate

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

# --- 2. Page stream ---


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


WHOLE_PAGES = (6, 7)  # codecs that look at more of a page than its values
HEADER = struct.Struct("<2sBBBBBBHHHHIHHII")


class Page:
    """values: [token][channel] binary32, already numbers of the element type; bits: as in memory."""

    def __init__(self, values, element_type, layer, kind, first_head, heads, head_dim, first_token, tokens_after=-1,
                 rope=None):
        self.values, self.element_type, self.layer, self.kind = values, element_type, layer, kind
        self.first_head, self.heads, self.head_dim, self.first_token = first_head, heads, head_dim, first_token
        self.tokens_after, self.rope = tokens_after, rope

    def element_bits(self):
        if self.element_type == BF16:
            return bf16_bits(self.values).astype("<u2").tobytes()
        return self.values.astype("<f2" if self.element_type == F16 else "<f4").tobytes()


def seal(page, codec, stream, exact, payload, anchor_checksum):
    head = HEADER.pack(
        b"LP", 1, codec.ident, stream, codec.streams, int(exact), page.element_type | page.kind << 4, page.layer,
        page.first_head, page.heads, page.head_dim, page.first_token, page.values.shape[0],
        crc32c(codec.spec.encode()) & 0xFFFF, len(payload), anchor_checksum)
    checksum = crc32c(head + payload)
    return head + struct.pack("<I", checksum) + payload, checksum


def encode(page, codec):
    small = np.all(np.isfinite(page.values)) and np.all(np.abs(page.values) <= 16384)
    exact = not small or (codec.ident == 1 and page.element_type == BF16)
    payloads = None if exact else codec.encode_page(page) if codec.ident in WHOLE_PAGES else codec.encode(page.values)
    exact = payloads is None
    if exact:
        payloads = [page.element_bits()] + [b""] * (codec.streams - 1)
    streams, anchor = [], 0
    for number, payload in enumerate(payloads):
        data, checksum = seal(page, codec, number, exact, payload, anchor)
        anchor = anchor or checksum
        streams.append(data)
    return streams


def decode(streams, codec, rope=None):
    """Values of the page that these streams (a prefix) describe; rope: of its layer."""
    payloads, anchor = [], 0
    for number, data in enumerate(streams):
        (magic, version, ident, stream, count, flags, types, _layer, _first, heads, head_dim, first_token, tokens,
         fingerprint, size, anchor_checksum) = HEADER.unpack(data[:32])
        (checksum,) = struct.unpack("<I", data[32:36])
        payload = data[36:]
        assert (magic, version, ident, stream, count) == (b"LP", 1, codec.ident, number, codec.streams)
        assert fingerprint == crc32c(codec.spec.encode()) & 0xFFFF and size == len(payload) and flags < 16
        assert anchor_checksum == anchor and checksum == crc32c(data[:32] + payload)
        anchor = anchor or checksum
        payloads.append(payload)
    channels = heads * head_dim
    if flags & 1:
        if types & 15 == BF16:
            return bf16_value(np.frombuffer(payloads[0], "<u2")).reshape(tokens, channels)
        kind = "<f2" if types & 15 == F16 else "<f4"
        return np.frombuffer(payloads[0], kind).astype(F32).reshape(tokens, channels)
    if codec.ident in WHOLE_PAGES:
        return codec.decode_page(payloads, tokens, heads, head_dim, first_token, types & 15,
                                 rope if types >> 4 == 0 else None)
    return codec.decode(payloads, tokens, channels)


# --- 3.1 raw ---


class Raw:
    ident, spec, streams = 1, "raw", 1

    def decode(self, payloads, tokens, channels):
        return bf16_value(np.frombuffer(payloads[0], "<u2")).reshape(tokens, channels)

    def encode(self, x):
        return [bf16_bits(x).astype("<u2").tobytes()]


# --- 3.2 int8, int4 ---


class Integer:
    streams = 1

    def __init__(self, bits, group=0):
        self.bits, self.ident, self.group = bits, 2 if bits == 8 else 3, group
        self.spec = f"int{bits}" + (f":group={group}" if group else "")

    def decode(self, payloads, tokens, channels):
        reader = Reader(payloads[0])
        width = self.group or channels
        steps = reader.halfs(tokens * -(-channels // width)).reshape(tokens, -1)
        steps = np.repeat(steps, width, axis=1)[:, :channels]
        if self.bits == 8:
            codes = signed(reader.bytes_(tokens * channels).astype(np.int64).reshape(tokens, channels), 8)
        else:
            codes = signed(unpack_nibbles(reader.take((tokens + 1) // 2 * channels), tokens, channels), 4)
        return codes.astype(F32) * steps

    def encode(self, x):
        width = self.group or x.shape[1]
        largest = np.maximum.reduceat(np.abs(x), np.arange(0, x.shape[1], width), axis=1)
        step = f16_up(largest / F32(127 if self.bits == 8 else 7))
        wide = step.astype(F32)
        inverse = np.where(wide > 0, F32(1) / np.where(wide > 0, wide, F32(1)), F32(0)).astype(F32)
        inverse = np.repeat(inverse, width, axis=1)[:, :x.shape[1]]
        codes = np.rint(x * inverse).astype(np.int64)
        packed = codes.astype(np.int8).tobytes() if self.bits == 8 else pack_nibbles(codes)
        return [step.astype("<f2").tobytes() + packed]


# --- 3.3 nested ---


class Nested:
    ident, streams = 6, 2

    def __init__(self, anchor=4, recent=64, unrope=0):
        self.anchor, self.rest, self.recent, self.unrope = anchor, 8 - anchor, recent, unrope
        self.spec = f"nested:anchor={anchor},recent={recent},unrope={unrope}"

    @staticmethod
    def grid(base, unit, offset, width):
        low = base + offset.astype(F32) * unit
        return low, (width.astype(F32) + F32(1)) * unit / F32(256)

    @staticmethod
    def pieces(tokens, sinks, recent):
        """Per chunk: first token, first recent token, end."""
        for begin, end in chunks(tokens):
            first = max(begin, sinks)
            yield first, min(max(tokens - recent, first), end), end

    def decode_page(self, payloads, tokens, heads, head_dim, first_token, element_type, rope):
        channels, sinks = heads * head_dim, min(max(4 - first_token, 0), tokens)
        reader, finer = Reader(payloads[0]), Reader(payloads[1]) if len(payloads) > 1 else None
        (recent,) = struct.unpack("<H", reader.take(2))
        assert recent <= tokens - sinks
        rows = [element_values(reader.take(sinks * channels * (4 if element_type == FLOAT32 else 2)), element_type,
                               channels)]
        base, unit = reader.halfs(channels), reader.halfs(channels)
        for first, cut, end in self.pieces(tokens, sinks, recent):
            offset, width = reader.bytes_(channels), reader.bytes_(channels)
            low, cell = self.grid(base, unit, offset, width)
            n = unpack_codes(reader, cut - first, channels, self.anchor) << self.rest
            start = low + F32(2.0 ** (self.rest - 1)) * cell
            if finer is not None:
                n |= unpack_codes(finer, cut - first, channels, self.rest)
                start = low + F32(0.5) * cell
            rows.append(start + n.astype(F32) * cell)
            n = unpack_codes(reader, end - cut, channels, self.anchor) << self.rest
            n |= unpack_codes(reader, end - cut, channels, self.rest)
            rows.append((low + F32(0.5) * cell) + n.astype(F32) * cell)
        assert reader.at == len(reader.data) and (finer is None or finer.at == len(finer.data))
        values = np.vstack(rows)
        rotate(values[sinks:], rope if self.unrope else None, heads, head_dim, sinks, back=False)
        return values

    def encode_page(self, page):
        x, tokens = page.values + F32(0), page.values.shape[0]  # -0 counts as +0
        sinks = min(max(4 - page.first_token, 0), tokens)
        if sinks == tokens:
            return None
        recent = min(max(self.recent - page.tokens_after, 0), tokens - sinks) if page.tokens_after >= 0 else 0
        rotate(x[sinks:], page.rope if self.unrope and page.kind == 0 else None, page.heads, page.head_dim, sinks,
               back=True)
        base16 = f16_down(x[sinks:].min(axis=0))
        base = base16.astype(F32)
        unit16 = f16_up((x[sinks:].max(axis=0) - base) / F32(255))
        unit = unit16.astype(F32)
        elements = page.element_bits()
        anchor, residual = struct.pack("<H", recent) + elements[: len(elements) // tokens * sinks], b""
        anchor += base16.tobytes() + unit16.tobytes()
        divisor = np.where(unit > 0, unit, F32(1))
        for first, cut, end in self.pieces(tokens, sinks, recent):
            part = x[first:end]
            offset = np.minimum(np.floor((part.min(axis=0) - base) / divisor), F32(255))
            offset = np.where(unit > 0, offset, F32(0)).astype(np.uint8)
            low, _ = self.grid(base, unit, offset, offset)
            width = np.clip(np.ceil((part.max(axis=0) - low) / divisor), F32(1), F32(256)) - F32(1)
            width = np.where(unit > 0, width, F32(0)).astype(np.uint8)
            low, cell = self.grid(base, unit, offset, width)
            inverse = np.where(cell > 0, F32(1) / np.where(cell > 0, cell, F32(1)), F32(0)).astype(F32)
            start = low + F32(0.5) * cell
            n = np.rint(np.clip((part - start) * inverse, F32(0), F32(255))).astype(np.int64)
            a, b, plain = n >> self.rest, n & (1 << self.rest) - 1, cut - first
            anchor += offset.tobytes() + width.tobytes() + pack_codes(a[:plain], self.anchor)
            anchor += pack_codes(a[plain:], self.anchor) + pack_codes(b[plain:], self.rest)
            residual += pack_codes(b[:plain], self.rest)
        return [anchor, residual]


# --- 3.4 paper, paper127 ---


class Paper:
    streams = 2

    def __init__(self, full_scale, alpha=100):
        self.five_bits, self.full_scale = full_scale == 127, full_scale
        self.ident = 5 if self.five_bits else 4
        self.spec = f"paper{'127' if self.five_bits else ''}:alpha={alpha:g}"
        power_of, base = 2 * full_scale, 1.0 + float(alpha)
        q = 1.0 + float(alpha) / power_of
        while True:
            power = 1.0
            for _ in range(power_of - 1):
                power *= q
            closer = q - (q - base / power) / power_of
            if not closer < q:
                break
            q = closer
        p = [1.0]
        for _ in range(511):
            p.append(p[-1] * q)
        self.value = np.array([F32((p[2 * i] - 1.0) / alpha) for i in range(256)], F32)
        self.threshold = np.array([F32((p[2 * i + 1] - 1.0) / alpha) for i in range(full_scale)], F32)

    def decode(self, payloads, tokens, channels):
        reader, finer = Reader(payloads[0]), Reader(payloads[1]) if len(payloads) > 1 else None
        gamma_min, gamma_scale = reader.halfs(channels), reader.halfs(channels)
        rows = []
        for begin, end in chunks(tokens):
            mu, sigma = reader.halfs(channels), reader.halfs(channels)
            count = end - begin
            code = unpack_nibbles(reader.take((count + 1) // 2 * channels), count, channels)
            if self.five_bits:
                bits = reader.bytes_((count + 7) // 8 * channels).astype(np.int64).reshape(-1, channels)
                fifth = np.array([bits[token // 8] >> token % 8 & 1 for token in range(count)])
                code = signed(code + 16 * fifth, 5)
            else:
                code = signed(code, 4)
            coarse = np.where(code >= 0, code, -code - 1)
            level = 16 * coarse
            if finer is not None:
                r = signed(unpack_nibbles(finer.take((count + 1) // 2 * channels), count, channels), 4)
                level = np.maximum(level - r, 0)
            x = np.where(code < 0, -self.value[level], self.value[level])
            rows.append(gamma_min + (mu + x * sigma) * gamma_scale)
        return np.vstack(rows)

    def encode(self, x):
        gamma_min16 = f16_down(x.min(axis=0) + F32(0))
        gamma_min = gamma_min16.astype(F32)
        gamma_scale16 = f16_up((x.max(axis=0) + F32(0)) - gamma_min)
        gamma_scale = gamma_scale16.astype(F32)
        y = (x - gamma_min) / np.where(gamma_scale > 0, gamma_scale, F32(1))
        anchor, residual = gamma_min16.tobytes() + gamma_scale16.tobytes(), b""
        for begin, end in chunks(x.shape[0]):
            part = y[begin:end]
            total = np.zeros(x.shape[1], F32)
            for row in part:
                total = total + row
            mu16 = f16_rn(total / F32(end - begin))
            mu = mu16.astype(F32)
            sigma16 = f16_up(np.max(np.abs(part - mu), axis=0))
            sigma = sigma16.astype(F32)
            z = (part - mu) / np.where(sigma > 0, sigma, F32(1))
            level = np.searchsorted(self.threshold, np.abs(z), side="right")
            coarse = level + 7 >> 4
            code = np.where(z < 0, -coarse - 1, coarse)
            anchor += mu16.tobytes() + sigma16.tobytes() + pack_nibbles(code)
            if self.five_bits:
                fifth = np.zeros(((end - begin + 7) // 8, x.shape[1]), np.int64)
                for token in range(end - begin):
                    fifth[token // 8] |= (code[token] >> 4 & 1) << token % 8
                anchor += fifth.astype(np.uint8).tobytes()
            residual += pack_nibbles(16 * coarse - level)
        return [anchor, residual]


# --- golden files ---

CODECS = {
    "raw": Raw(), "int8": Integer(8), "int4": Integer(4), "int8_group4": Integer(8, 4), "int4_group32": Integer(4, 32),
    "paper": Paper(120), "paper_alpha4": Paper(120, 4),
    "paper127": Paper(127), "nested": Nested(), "nested3": Nested(3, unrope=1), "nested5": Nested(5, recent=0), "nested6": Nested(6, recent=30),
    "lynx": Lynx(), "lynx3": Lynx(3.5, 3), "lynx_exact": Lynx(exact=True), "lynx3_exact": Lynx(3.5, 3, exact=True),
}
# heads, head_dim, tokens, element type; sizes straddle chunks and pages.
SHAPES = [
    (1, 1, 1, BF16), (2, 3, 31, BF16), (1, 8, 32, F16), (3, 5, 33, FLOAT32), (1, 7, 255, BF16), (2, 4, 256, BF16),
    (1, 64, 40, FLOAT32),
]


def mix(x):
    """splitmix64's finalizer on uint64 arrays."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def paint(tokens, channels, element_type, bad):
    """The inputs of the golden files (golden_test.cc paints the same): small integers over powers of two."""
    index = np.arange(tokens * channels, dtype=np.uint64).reshape(tokens, channels)
    bits = mix(index)
    sum4 = sum((bits >> np.uint64(16 * k) & np.uint64(0xFFFF)).astype(np.int64) for k in range(4)) - 131070
    x = sum4.astype(F32) / F32(32768)
    channel = np.arange(channels)
    x[:, channel % 5 == 1] *= F32(64)
    x[:, channel % 5 == 2] += F32(300)
    x[:, channel % 5 == 3] = F32(-2.71875)
    x[:, channel % 7 == 6] *= F32(2.0**-22)
    if tokens > 34:
        x[34] *= F32(32)
    if bad:
        x[tokens // 2, channels // 2] = F32(np.inf)
    if element_type == BF16:
        return bf16_value(bf16_bits(x))
    return x.astype(np.float16).astype(F32) if element_type == F16 else x


def golden():
    files = {}
    for name, codec in CODECS.items():
        for number, (heads, head_dim, tokens, element_type) in enumerate(SHAPES):
            bad, restores = number == 2, getattr(codec, "exact", False)
            element_type = BF16 if restores else element_type
            values = paint(tokens, heads * head_dim, element_type, bad)
            # Pages with sinks and recent tokens, K rotated.
            whole = codec.ident in WHOLE_PAGES
            rope = ("norm" if number % 4 == 0 and codec.streams < 4 else "neox", head_dim % 2,
                    [F32(1) / F32(1 + 3 * pair) for pair in range(head_dim // 2)]) if whole else None
            page = Page(values, element_type, number, number % 2, number % 3, heads, head_dim,
                        number if whole else 256 * number, 9 * number, rope)
            streams = encode(page, codec)
            for count in range(1, len(streams) + 1):
                back = decode(streams[:count], codec, rope)
                assert back.shape == values.shape
                if not bad:
                    assert np.all(np.abs(back - values) <= np.abs(values).max()), (name, number)
            assert not restores or np.array_equal(bf16_bits(back), bf16_bits(values))
            files[f"{name}_{number}.bin"] = b"".join(streams)
            decoded = decode(streams, codec, rope).astype("<f4").tobytes()
            first = decode(streams[:1], codec, rope).astype("<f4").tobytes()
            files[f"{name}_{number}.bin"] += struct.pack("<II", crc32c(first), crc32c(decoded))
    return files


def main():
    assert crc32c(b"123456789") == 0xE3069283
    files = golden()
    if sys.argv[1:] == ["--check"]:
        present = {path.name: path.read_bytes() for path in GOLDEN.glob("*.bin")}
        wrong = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
        if wrong:
            sys.exit("differ from what codec_reference.py writes: " + ", ".join(wrong))
        print(f"{len(files)} golden files are what this script writes")
        return
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.bin"):
        path.unlink()
    for name, data in files.items():
        (GOLDEN / name).write_bytes(data)
    print(f"wrote {len(files)} files, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
