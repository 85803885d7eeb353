"""Section 3.5 of docs/codec.md: `lynx`."""

import math
import struct

import numpy as np

import lynx_exact
from codec_conventions import BF16, F16, F32, FLOAT32, Reader, bf16_bits, bf16_value, pack_nibbles, unpack_nibbles


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

    def __init__(self, anchor_bits=2.25, streams=2, exact=False):
        self.anchor_bits, self.cell_streams, self.streams, self.exact = anchor_bits, streams, streams + exact, exact
        self.spec = f"lynx:anchor_bits={anchor_bits:g},recent=64,streams={streams},unrope=1" + ",exact=1" * exact

    @staticmethod
    def shift(k):
        return max(k - 16, 0) // 4

    def table(self, k):
        return self.tables[k - 4 * self.shift(k)]

    def decode_page(self, payloads, tokens, heads, head_dim, first_token, element_type, rope):
        channels = heads * head_dim
        sinks = min(max(4 - first_token, 0), tokens)
        coded, width = tokens - sinks, 4 // (self.cell_streams - 1)
        payloads, exact_payload = payloads[: self.cell_streams], payloads[self.cell_streams :]
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
        if exact_payload:
            values = bf16_value(lynx_exact.decode(exact_payload[0], values, unit, rope, head_dim, sinks))
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
        coded, width, lanes = tokens - sinks, 4 // (self.cell_streams - 1), min(channels, 32)
        if coded == 0:
            return None
        recent = min(max(self.recent - page.tokens_after, 0), coded) if page.tokens_after >= 0 else 0
        rows = x[sinks:].copy()
        rotate(rows, page.rope if page.kind == 0 else None, page.heads, page.head_dim, sinks, back=True)
        overhead = (8.0 * (36 + 4 + 2) + 8.0 * lanes) / (float(coded) * channels) + 12.0 / coded
        bits = float(self.anchor_bits)
        if page.tokens_after >= 0:
            prompt = float(page.first_token + tokens + page.tokens_after)
            element_bits = 8.0 * len(page.element_bits()) / x.size
            bits -= (element_bits * min(4.0, prompt) + 4 * min(float(self.recent), prompt)) / prompt
        bits = max(bits - overhead, 0.75 * self.anchor_bits)
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
        later = [pack_rows(residual[:plain] >> (4 - width * k) & (1 << width) - 1, width) for k in range(1, self.cell_streams)]
        payloads = [anchor] + later
        if self.exact:
            payloads.append(self.exact_payload(page, n, mean, steps, sinks))
        return payloads if sum(map(len, payloads)) < 2 * tokens * channels else None

    @staticmethod
    def exact_payload(page, n, mean, steps, sinks):
        rope = page.rope if page.kind == 0 else None
        halves = np.repeat(np.array([2.0 ** (step / 8) for step in steps]).astype(F32) / F32(32), page.head_dim)
        values = (2 * n + 1 - 16 + 8 * mean).astype(F32) * halves
        rotate(values, rope, page.heads, page.head_dim, sinks, back=False)
        return lynx_exact.encode(bf16_bits(page.values[sinks:]), values, halves, rope, page.head_dim, sinks)
