"""Section 3.5 of docs/codec.md, the exact stream of `lynx`."""

import math
import struct

import numpy as np

from codec_conventions import F32

BITS = 15  # of probabilities
LANES = 4


def ordinal(element):
    return -1 - (element & 0x7FFF) if element & 0x8000 else element


def magnitude(number):
    return -1 - number if number < 0 else number


def ordinal_from(value):
    """Of the least element that is not below the F32 value."""
    bits = int(np.asarray(value, F32).view(np.uint32))
    return -1 - ((bits & 0x7FFFFFFF) >> 16) if bits >> 31 else (bits + 0xFFFF) >> 16


def bucket_of(number, top):
    down = top - (magnitude(number) >> 7)
    bucket = 0 if down > 7 else (128 | magnitude(number) & 127) >> down
    return -1 - bucket if number < 0 else bucket


class Choice:
    def __init__(self, bounds, weights):
        least = ordinal_from(bounds[0])
        greatest = max(ordinal_from(bounds[-1]) - 1, least)
        self.top = max(magnitude(least) >> 7, magnitude(greatest) >> 7, 16)
        end = bucket_of(greatest, self.top) + 1
        edges = [bucket_of(least, self.top)]
        for bound in bounds[1:-1]:
            at = ordinal_from(bound)
            edges.append(end if at > greatest else bucket_of(max(at, least), self.top))
        edges.append(end)
        self.buckets = [(edges[k] + i, weights[k]) for k in range(len(weights)) for i in range(edges[k + 1] - edges[k])]
        self.unit = 32767 // sum(weight for _, weight in self.buckets)
        self.slots, at = {}, 0  # bucket -> first slot, slots
        for bucket, weight in self.buckets:
            self.slots[bucket] = (at, weight * self.unit)
            at += weight * self.unit
        self.escape = (at, 32768 - at)


def cell(value, half):
    return Choice([value - half, value + half], [1])


def first_of_pair(value, one, two, cos, sin):
    along, across = one * abs(cos), two * abs(sin)
    outer, middle, inner = along + across, max(along, across), abs(along - across)
    bounds = [value - outer, value - middle, value - inner, value + inner, value + middle, value + outer]
    return Choice(bounds, [1, 3, 4, 3, 1])


def second_of_pair(value, distance, one, two, cos, sin):
    reach, across = one * abs(cos) + two * abs(sin), one * abs(sin) + two * abs(cos)
    distance = min(max(distance, -reach), reach)
    least, greatest = -across, across
    if abs(sin) >= F32(1 / 64):
        per = F32(1) / sin
        centre, half = -(distance * cos) * per, one * abs(per)
        least, greatest = max(least, centre - half), min(greatest, centre + half)
    if abs(cos) >= F32(1 / 64):
        per = F32(1) / cos
        centre, half = distance * sin * per, two * abs(per)
        least, greatest = max(least, centre - half), min(greatest, centre + half)
    return Choice([value + least, value + greatest], [1])


def visit_row(values, halves, elements, rope, head_dim, token, code):
    """Calls element = code(choice, element) in the order of the stream; `elements` is read and written."""
    for head in range(0, len(values), head_dim):
        pairs = []
        if rope is not None:
            pairing, offset, radians = rope
            for i, each in enumerate(radians):
                c = head + offset + (2 * i if pairing == "norm" else i)
                angle = float(token) * float(each)
                pairs.append((c, c + (1 if pairing == "norm" else len(radians)), F32(math.cos(angle)),
                              F32(math.sin(angle))))
        rotated = {c for pair in pairs for c in pair[:2]}
        for c in range(head, head + head_dim):
            if c not in rotated:
                elements[c] = code(cell(values[c], halves[c]), elements[c])
        for c, d, cos, sin in pairs:
            elements[c] = code(first_of_pair(values[c], halves[c], halves[d], cos, sin), elements[c])
        for c, d, cos, sin in pairs:
            x = np.array(elements[c] << 16, np.uint32).view(F32)[()]
            elements[d] = code(second_of_pair(values[d], x - values[c], halves[c], halves[d], cos, sin), elements[d])


class RowDecoder:
    def __init__(self, state, take_word):
        self.state, self.take_word, self.next = state, take_word, 0

    def slot(self):
        return self.state[self.next % LANES] & 32767

    def take(self, first, count):
        lane = self.next % LANES
        self.state[lane] = count * (self.state[lane] >> BITS) + self.slot() - first
        if self.state[lane] < 1 << 16:
            self.state[lane] = self.state[lane] << 16 | self.take_word()
        self.next += 1

    def bits(self, count):
        value = self.slot() >> BITS - count
        self.take(value << BITS - count, 1 << BITS - count)
        return value

    def element(self, choice, _):
        slot = self.slot()
        found = [b for b, (first, count) in choice.slots.items() if first <= slot < first + count]
        if not found:
            self.take(*choice.escape)
            return self.bits(8) | self.bits(8) << 8
        bucket = found[0]
        self.take(*choice.slots[bucket])
        sign, above = 0x8000 if bucket < 0 else 0, magnitude(bucket)
        if above == 0:
            return sign | (self.bits(15) if self.bits(1) else 0)
        down = max(8 - above.bit_length(), 0)
        low = self.bits(down) if down else 0
        return sign | choice.top - down << 7 | (above << down | low) & 127


def decode(payload, values, halves, rope, head_dim, first_token):
    """Rows of BF16 bits from rows of values that all other streams give."""
    state = list(struct.unpack("<4I", payload[:16]))
    assert min(state) >= 1 << 16 and len(payload) % 2 == 0
    words = iter(struct.unpack(f"<{(len(payload) - 16) // 2}H", payload[16:]))
    rows = np.zeros(values.shape, np.uint16)
    for i, row in enumerate(values):
        elements = [0] * len(row)
        visit_row(row, halves, elements, rope, head_dim, first_token + i,
                  RowDecoder(state, lambda: next(words)).element)
        rows[i] = elements
    assert state == [1 << 16] * LANES and next(words, None) is None and np.all((rows & 0x7FFF) < 0x7F80)
    return rows


def steps_of(choice, element):
    """The coder's steps for an element: first slot, slots."""

    def bits(value, count):
        return value << BITS - count, 1 << BITS - count

    size = element & 0x7FFF
    bucket = bucket_of(ordinal(element), choice.top) if size >> 7 <= choice.top else None
    if bucket not in choice.slots:
        return [choice.escape, bits(element & 255, 8), bits(element >> 8, 8)]
    down, steps = choice.top - (size >> 7), [choice.slots[bucket]]
    if magnitude(bucket) == 0:
        return steps + ([bits(1, 1), bits(size, 15)] if size else [bits(0, 1)])
    return steps + ([bits(size & (1 << down) - 1, down)] if down else [])


def encode(elements, values, halves, rope, head_dim, first_token):
    state, words = [1 << 16] * LANES, []
    for i in reversed(range(len(values))):
        steps = []

        def plan(choice, element):
            steps.extend(steps_of(choice, element))
            return element

        visit_row(values[i], halves, [int(e) for e in elements[i]], rope, head_dim, first_token + i, plan)
        for k in reversed(range(len(steps))):
            first, count = steps[k]
            lane = k % LANES
            if state[lane] >= count << 17:
                words.append(state[lane] & 0xFFFF)
                state[lane] >>= 16
            state[lane] = (state[lane] // count << BITS) + state[lane] % count + first
    return struct.pack("<4I", *state) + struct.pack(f"<{len(words)}H", *reversed(words))
