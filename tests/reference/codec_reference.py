#!/usr/bin/env python3
"""Page streams and codecs, written from docs/codec.md in its order: plain, slow, independent of the C++ code.

  codec_reference.py           write the golden files
  codec_reference.py --check   verify that the checked-in files are what this script writes, and that they decode
"""

import math
import pathlib
import struct
import sys

import numpy as np

F32 = np.float32
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

# --- 1. Conventions ---


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


def signed(codes, bits):
    return np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)


def chunks(tokens):
    return [(begin, min(begin + 32, tokens)) for begin in range(0, tokens, 32)]


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


HEADER = struct.Struct("<2sBBBBBBHHHHIHHII")
BF16, F16, FLOAT32 = 0, 1, 2


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
    payloads = None if exact else codec.encode_page(page) if codec.ident == 7 else codec.encode(page.values)
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
    if codec.ident == 7:
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

    def __init__(self, bits):
        self.bits, self.ident, self.spec = bits, 2 if bits == 8 else 3, f"int{bits}"

    def decode(self, payloads, tokens, channels):
        reader = Reader(payloads[0])
        steps = reader.halfs(tokens)
        if self.bits == 8:
            codes = signed(reader.bytes_(tokens * channels).astype(np.int64).reshape(tokens, channels), 8)
        else:
            codes = signed(unpack_nibbles(reader.take((tokens + 1) // 2 * channels), tokens, channels), 4)
        return codes.astype(F32) * steps[:, None]

    def encode(self, x):
        step = f16_up(np.max(np.abs(x), axis=1) / F32(127 if self.bits == 8 else 7))
        wide = step.astype(F32)
        inverse = np.where(wide > 0, F32(1) / np.where(wide > 0, wide, F32(1)), F32(0)).astype(F32)
        codes = np.rint(x * inverse[:, None]).astype(np.int64)
        packed = codes.astype(np.int8).tobytes() if self.bits == 8 else pack_nibbles(codes)
        return [step.astype("<f2").tobytes() + packed]


# --- 3.3 nested ---


class Nested:
    ident, spec, streams = 6, "nested:anchor=4,residual=4", 2

    @staticmethod
    def grid(base, unit, offset, width):
        low = base + offset.astype(F32) * unit
        return low, (width.astype(F32) + F32(1)) * unit / F32(256)

    def decode(self, payloads, tokens, channels):
        reader, finer = Reader(payloads[0]), Reader(payloads[1]) if len(payloads) > 1 else None
        base, unit = reader.halfs(channels), reader.halfs(channels)
        rows = []
        for begin, end in chunks(tokens):
            offset, width = reader.bytes_(channels), reader.bytes_(channels)
            low, cell = self.grid(base, unit, offset, width)
            size = (end - begin + 1) // 2 * channels
            a = unpack_nibbles(reader.take(size), end - begin, channels)
            if finer is None:
                rows.append(low + (16 * a + 8).astype(F32) * cell)
            else:
                n = 16 * a + unpack_nibbles(finer.take(size), end - begin, channels)
                rows.append(low + (n.astype(F32) + F32(0.5)) * cell)
        return np.vstack(rows)

    def encode(self, x):
        x = x + F32(0)  # -0 counts as +0
        base16 = f16_down(x.min(axis=0))
        base = base16.astype(F32)
        unit16 = f16_up((x.max(axis=0) - base) / F32(255))
        unit = unit16.astype(F32)
        anchor, residual = base16.tobytes() + unit16.tobytes(), b""
        divisor = np.where(unit > 0, unit, F32(1))
        for begin, end in chunks(x.shape[0]):
            part = x[begin:end]
            offset = np.minimum(np.floor((part.min(axis=0) - base) / divisor), F32(255))
            offset = np.where(unit > 0, offset, F32(0)).astype(np.uint8)
            low, _ = self.grid(base, unit, offset, offset)
            width = np.clip(np.ceil((part.max(axis=0) - low) / divisor), F32(1), F32(256)) - F32(1)
            width = np.where(unit > 0, width, F32(0)).astype(np.uint8)
            low, cell = self.grid(base, unit, offset, width)
            inverse = np.where(cell > 0, F32(1) / np.where(cell > 0, cell, F32(1)), F32(0)).astype(F32)
            n = np.clip((part - low) * inverse, F32(0), F32(255)).astype(np.int64)
            anchor += offset.tobytes() + width.tobytes() + pack_nibbles(n >> 4)
            residual += pack_nibbles(n & 15)
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


# --- 3.5 lynx ---


class BitReader:
    def __init__(self, data):
        self.bits, self.at = [byte >> i & 1 for byte in data for i in range(8)], 0

    def take(self, count):
        assert self.at + count <= len(self.bits)
        self.at += count
        return sum(bit << i for i, bit in enumerate(self.bits[self.at - count : self.at]))

    def golomb(self, order):
        ones = 0
        while self.take(1):
            ones += 1
            assert ones + order <= 30
        high = (1 << ones) + self.take(ones) - 1
        return (high << order) + self.take(order)

    def bytes_used(self):
        return (self.at + 7) // 8


def bits_of(value, count):
    return [value >> i & 1 for i in range(count)]


def golomb_bits(value, order):
    high = (value >> order) + 1
    ones = high.bit_length() - 1
    return [1] * ones + [0] + bits_of(high - (1 << ones), ones) + bits_of(value & (1 << order) - 1, order)


def bits_to_bytes(bits):
    bits = bits + [0] * (-len(bits) % 8)
    return bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def zigzag(value):
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(code):
    return code >> 1 if code % 2 == 0 else -(code >> 1) - 1


def pack_rows(codes, width):
    """codes: [token][channel] of `width` bits; byte [i][channel] holds 8 / width tokens."""
    per_byte = 8 // width
    codes = np.vstack([codes, np.zeros((-codes.shape[0] % per_byte, codes.shape[1]), np.int64)])
    return sum(codes[i::per_byte] << i * width for i in range(per_byte)).astype(np.uint8).tobytes()


def unpack_rows(data, tokens, channels, width):
    rows = np.frombuffer(data, np.uint8).reshape(-1, channels).astype(np.int64)
    per_byte = 8 // width
    assert rows.shape[0] == (tokens + per_byte - 1) // per_byte
    codes = np.empty((per_byte * rows.shape[0], channels), np.int64)
    for i in range(per_byte):
        codes[i::per_byte] = rows >> i * width & (1 << width) - 1
    return codes[:tokens]


def tail(x):
    """Of magnitudes with mean 1: nine tenths normal, one tenth Laplace; one side."""
    return 0.9 * 0.5 * math.erfc(x / math.sqrt(math.pi)) + 0.1 * 0.5 * math.exp(-x)


def level_probabilities(magnitude, count):
    tails = [tail((i + 0.5) / magnitude) for i in range(count)]
    return [1 - 2 * tails[0]] + [tails[i - 1] - tails[i] for i in range(1, count - 1)] + [tails[count - 2]]


def make_table(magnitude):
    p = level_probabilities(magnitude, 9)
    half = [1 + int(each * 4079) for each in p]
    half[0] += 4096 - half[0] - 2 * sum(half[1:])
    return half[:0:-1] + half


def rotate(rows, rope, heads, head_dim, first, back):
    """[token][channel] in place; the first row is token `first` of its page."""
    if rope is None:
        return
    pairing, offset, radians = rope
    count = len(radians)
    for token in range(rows.shape[0]):
        angle = [float(first + token) * float(each) for each in radians]
        cos = np.array([math.cos(a) for a in angle]).astype(F32)
        sin = np.array([math.sin(a) for a in angle]).astype(F32)
        for head in range(heads):
            at = head * head_dim + offset
            one = at + (2 * np.arange(count) if pairing == "norm" else np.arange(count))
            two = one + (1 if pairing == "norm" else count)
            x, y = rows[token, one].copy(), rows[token, two].copy()
            rows[token, one] = x * cos + y * sin if back else x * cos - y * sin
            rows[token, two] = y * cos - x * sin if back else x * sin + y * cos


def eighths_of(value):
    return max(-800, math.floor(8 * math.log2(value) + 0.5)) if value >= 2.0**-100 else -800


class Lynx:
    ident, recent = 7, 64
    tables = [make_table(2.0 ** ((table - 16) / 4)) for table in range(20)]
    entropy = {}

    def __init__(self, anchor_bits=2.25, streams=2):
        self.anchor_bits, self.streams = anchor_bits, streams
        self.spec = f"lynx:anchor_bits={anchor_bits:g},recent=64,streams={streams},unrope=1"

    @staticmethod
    def shift(k):
        return max(k - 16, 0) // 4

    def table(self, k):
        return self.tables[k - 4 * self.shift(k)]

    def decode_page(self, payloads, tokens, heads, head_dim, first_token, element_type, rope):
        channels = heads * head_dim
        sinks = min(max(4 - first_token, 0), tokens)
        coded, width = tokens - sinks, 4 // (self.streams - 1)
        reader = Reader(payloads[0])
        recent, least, orders, offset_order = reader.take(4)
        steps = np.repeat(np.frombuffer(reader.take(2 * heads), "<i2").astype(np.int64), head_dim)
        kind = {BF16: "<u2", F16: "<f2", FLOAT32: "<f4"}[element_type]
        bits = np.frombuffer(reader.take(sinks * channels * np.dtype(kind).itemsize), kind).reshape(sinks, channels)
        exact = bf16_value(bits) if element_type == BF16 else bits.astype(F32)
        late = unpack_nibbles(reader.take((recent + 1) // 2 * channels), recent, channels)
        class_bits = BitReader(reader.data[reader.at :])
        classes = [least + class_bits.golomb(orders & 15) for _ in range(channels)]
        if offset_order > 0:
            for c in range(channels):
                change = 2 * unzigzag(class_bits.golomb(offset_order - 1))
                steps[c] = (steps[c] if c % head_dim == 0 else steps[c - 1]) + change
        reader.take(class_bits.bytes_used())
        lanes = min(channels, 32)
        state = list(struct.unpack(f"<{lanes}I", reader.take(4 * lanes)))
        symbols = np.zeros((coded, channels), np.int64)
        for first in range(0, channels, 32):
            for token in range(coded):
                for lane in range(min(32, channels - first)):
                    frequencies = self.table(classes[first + lane])
                    slot, symbol, begin = state[lane] & 4095, 0, 0
                    while slot >= begin + frequencies[symbol]:
                        begin += frequencies[symbol]
                        symbol += 1
                    symbols[token, first + lane] = symbol
                    state[lane] = frequencies[symbol] * (state[lane] >> 12) + slot - begin
                    if state[lane] < 1 << 16:
                        state[lane] = state[lane] << 16 | struct.unpack("<H", reader.take(2))[0]
        assert all(each >> 16 == 1 for each in state)
        carried = struct.pack(f"<{lanes}H", *(each & 0xFFFF for each in state))
        open_bits = BitReader(carried + reader.data[reader.at :])
        plain, known = coded - recent, width * (len(payloads) - 1)
        u, means = np.zeros((coded, channels), np.int64), np.zeros(channels, np.int64)
        for c in range(channels):
            means[c] = unzigzag(open_bits.golomb(orders >> 4))
            for token in range(coded):
                h = int(symbols[token, c]) - 8
                if abs(h) == 8:
                    h += open_bits.golomb(1) * (1 if h > 0 else -1)
                u[token, c] = h
        open_bits.take(-open_bits.at % 8)
        for c in range(channels):
            s = self.shift(classes[c])
            for token in range(coded):
                u[token, c] = (u[token, c] << s) + open_bits.take(s) - ((1 << s) >> 1)
        assert max(open_bits.bytes_used(), 2 * lanes) == len(carried) + len(reader.data) - reader.at
        for payload in payloads[1:]:
            u[:plain] = (u[:plain] << width) + unpack_rows(payload, plain, channels, width)
        u[plain:] = (u[plain:] << 4) + late
        left = np.where(np.arange(coded) < plain, 4 - known, 0)[:, None]
        u = ((2 * u + 1) << left) - 16 + 8 * means
        unit = np.array([2.0 ** (int(i) / 8) for i in steps]).astype(F32) / F32(32)
        values = u.astype(F32) * unit
        rotate(values, rope, heads, head_dim, sinks, back=False)
        return np.vstack([exact, values])

    def entropy_of(self, eighths):
        eighths, above = min(max(eighths, -48), 40), max(eighths - 40, 0)
        if eighths not in self.entropy:
            p = level_probabilities(2.0 ** (eighths / 8), 512)
            terms = [-each * math.log2(each) for each in p if each > 1e-30]
            self.entropy[eighths] = terms[0] + 2 * sum(terms[1:]) if p[0] > 1e-30 else 2 * sum(terms)
        return self.entropy[eighths] + above / 8

    def step_of(self, x, bits):
        total = np.zeros(x.shape[1], F32)
        for row in x:
            total = total + row
        mean, spread = total / F32(x.shape[0]), np.zeros(x.shape[1], F32)
        for row in x:
            spread = spread + np.abs(row - mean)
        d = [eighths_of(float(each)) for each in spread / F32(x.shape[0])]
        greatest = float(np.abs(x).max())
        lowest = max(-800, 8 * (math.floor(math.log2(greatest)) - 15)) if greatest >= 2.0**-126 else -800

        def rate(step):
            return sum(self.entropy_of(each - step) for each in d) / len(d)

        step = lowest
        while step < 255 and rate(step) > bits:
            step += 1
        return step - 1 if step > lowest and rate(step - 1) - bits < bits - rate(step) else step

    def encode_page(self, page):
        x, channels = page.values, page.heads * page.head_dim
        tokens = x.shape[0]
        sinks = min(max(4 - page.first_token, 0), tokens)
        coded, width, lanes = tokens - sinks, 4 // (self.streams - 1), min(channels, 32)
        if coded == 0:
            return None
        recent = min(max(self.recent - page.tokens_after, 0), coded) if page.tokens_after >= 0 else 0
        rows = x[sinks:].copy()
        rotate(rows, page.rope if page.kind == 0 else None, page.heads, page.head_dim, sinks, back=True)
        overhead = (8.0 * (36 + 4 + 2) + 8.0 * lanes) / (float(coded) * channels) + 12.0 / coded
        bits = max(self.anchor_bits - overhead, self.anchor_bits / 2)
        heads = [rows[:, head * page.head_dim : (head + 1) * page.head_dim] for head in range(page.heads)]
        steps = [self.step_of(head, bits) for head in heads]
        per_cell = np.repeat(np.array([2.0 ** ((32 - step) / 8) for step in steps]).astype(F32), page.head_dim)
        cells = np.floor(rows * per_cell).astype(np.int64)
        mean = (2 * cells.sum(axis=0) + 5 * coded) // (8 * coded)
        magnitude = np.abs(2 * cells + 1 - 8 * mean).sum(axis=0)
        classes = [min(max(16 + (eighths_of(float(F32(each) / F32(32 * coded))) + 1) // 2, 0), 95)
                   for each in magnitude]
        n = cells + 8 - 4 * mean
        level = n >> 4

        def best_order(codes):
            return min(range(16), key=lambda order: sum(len(golomb_bits(code, order)) for code in codes))

        class_codes = [k - min(classes) for k in classes]
        mean_codes = [zigzag(int(each)) for each in mean]
        class_order, mean_order = best_order(class_codes), best_order(mean_codes)
        open_bits, low_bits, symbols = [], [], np.zeros((coded, channels), np.int64)
        for c in range(channels):
            s = self.shift(classes[c])
            open_bits += golomb_bits(mean_codes[c], mean_order)
            for token in range(coded):
                moved = int(level[token, c]) + ((1 << s) >> 1)
                h = moved >> s
                symbols[token, c] = min(max(h, -8), 8) + 8
                if abs(h) >= 8:
                    open_bits += golomb_bits(abs(h) - 8, 1)
                low_bits += bits_of(moved & (1 << s) - 1, s)
        open_bytes = bits_to_bytes(open_bits) + bits_to_bytes(low_bits)
        carried = open_bytes[: 2 * lanes].ljust(2 * lanes, b"\0")
        state = [1 << 16 | each for each in struct.unpack(f"<{lanes}H", carried)]
        words = []
        for first in reversed(range(0, channels, 32)):
            for token in reversed(range(coded)):
                for lane in reversed(range(min(32, channels - first))):
                    frequencies, symbol = self.table(classes[first + lane]), symbols[token, first + lane]
                    f, begin = frequencies[symbol], sum(frequencies[:symbol])
                    if state[lane] >= f << 20:
                        words.append(state[lane] & 0xFFFF)
                        state[lane] >>= 16
                    state[lane] = (state[lane] // f << 12) + state[lane] % f + begin
        anchor = bytes([recent, min(classes), class_order | mean_order << 4, 0]) + struct.pack(f"<{page.heads}h", *steps)
        anchor += page.element_bits()[: len(page.element_bits()) // tokens * sinks]
        plain, residual = coded - recent, n & 15
        anchor += pack_nibbles(residual[plain:]) if recent else b""
        anchor += bits_to_bytes([bit for code in class_codes for bit in golomb_bits(code, class_order)])
        anchor += struct.pack(f"<{lanes}I", *state) + struct.pack(f"<{len(words)}H", *reversed(words))
        anchor += open_bytes[2 * lanes :]
        later = [pack_rows(residual[:plain] >> (4 - width * k) & (1 << width) - 1, width) for k in range(1, self.streams)]
        payloads = [anchor] + later
        return payloads if sum(map(len, payloads)) < 2 * tokens * channels else None


# --- golden files ---

CODECS = {
    "raw": Raw(), "int8": Integer(8), "int4": Integer(4), "paper": Paper(120), "paper_alpha4": Paper(120, 4),
    "paper127": Paper(127), "nested": Nested(), "lynx": Lynx(), "lynx3": Lynx(3.5, 3),
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
            bad = number == 2
            values = paint(tokens, heads * head_dim, element_type, bad)
            # lynx: pages with sinks and recent tokens, K rotated.
            lynx = codec.ident == 7
            rope = ("norm" if number % 4 == 0 else "neox", head_dim % 2,
                    [F32(1) / F32(1 + 3 * pair) for pair in range(head_dim // 2)]) if lynx else None
            page = Page(values, element_type, number, number % 2, number % 3, heads, head_dim,
                        number if lynx else 256 * number, 9 * number, rope)
            streams = encode(page, codec)
            for count in range(1, len(streams) + 1):
                back = decode(streams[:count], codec, rope)
                assert back.shape == values.shape
                if not bad:
                    assert np.all(np.abs(back - values) <= np.abs(values).max()), (name, number)
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
