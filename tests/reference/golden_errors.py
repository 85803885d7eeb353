#!/usr/bin/env python3
"""Page streams that must be refused, each with the error that it must give: golden_errors.txt, which
src/codec/golden_errors_test.cc reads. Streams come from the independent encoder; every other checksum is right, so that
what is wrong is seen.

  golden_errors.py           write the table
  golden_errors.py --check   verify that the checked-in table is what this script writes
"""

import copy
import pathlib
import struct
import sys

import numpy as np
from codec_conventions import BF16
from codec_reference import CODECS, Page, crc32c, decode, encode, paint
from lynx_codec import BitReader, Lynx

TABLE = pathlib.Path(__file__).resolve().parent / "golden_errors.txt"
TOKENS, CHANNELS, SINKS = 20, 8, 2  # page() of the test
HEADER_BYTES = 36

SHORT = "corrupt: page stream is shorter than its header"
LENGTH = "corrupt: page stream length differs from its header"
CHECKSUM = "corrupt: page stream checksum differs"
SHAPE = "corrupt: page stream payload does not fit the page's shape"
SCALE = "corrupt: page stream has a scale that is not finite"
EXACT = "corrupt: page stream has impossible exact elements"
STEP = "corrupt: page stream has a step that is not finite"
INFINITE, NOT_A_NUMBER, MINUS_INFINITE = b"\x00\x7c", b"\x01\x7e", b"\x00\xfc"


def reseal(streams):
    """Lengths and checksums made right, and later streams those of this stream 0."""
    sealed, anchor = [], 0
    for data in streams:
        head = data[:24] + struct.pack("<II", len(data) - HEADER_BYTES, anchor)
        checksum = crc32c(head + data[HEADER_BYTES:])
        sealed.append(head + struct.pack("<I", checksum) + data[HEADER_BYTES:])
        anchor = anchor or checksum
    return sealed


def put(data, at, new):
    return data[:at] + new + data[at + len(new):]


class Cases:
    def __init__(self):
        self.lines = []
        self.page = Page(paint(TOKENS, CHANNELS, BF16, False), BF16, 1, 1, 1, 1, CHANNELS, SINKS)
        self.streams = {name: encode(self.page, codec) for name, codec in CODECS.items()}
        for name, streams in self.streams.items():
            assert streams[0][6] & 1 == (name == "raw"), name
            decode(streams, CODECS[name])
            self.add(name, "undamaged", "ok", streams)

    def add(self, codec, name, error, streams):
        self.lines += [f"case {codec} {name}", f"spec {CODECS[codec].spec}", f"error {error}"]
        self.lines += ["stream " + data.hex() for data in streams] + [""]

    def field(self, codec, name, error, stream, at, new, seal=True):
        """One field of a header replaced."""
        streams = list(self.streams[codec])
        streams[stream] = put(streams[stream], at, new)
        if seal:
            head = streams[stream][:32]
            streams[stream] = put(streams[stream], 32, struct.pack("<I", crc32c(head + streams[stream][HEADER_BYTES:])))
        self.add(codec, name, error, streams)

    def payload(self, codec, name, error, stream, change):
        """A payload replaced by change(payload), everything around it right."""
        streams = list(self.streams[codec])
        streams[stream] = streams[stream][:HEADER_BYTES] + change(streams[stream][HEADER_BYTES:])
        self.add(codec, name, error, reseal(streams))


def header_cases(cases):
    def other(what):
        return f"stream 0 of the page has another {what}"

    spec = CODECS["nested"].spec
    for name, error, at, new in [
        ("magic", 'corrupt: page stream does not begin with "LP"', 0, b"PL"),
        ("version", "unsupported: page stream has format version 2, this build reads version 1", 2, b"\2"),
        ("codec", "unsupported: " + other("codec than nested"), 3, b"\x63"),
        ("stream", "invalid: " + other("stream number"), 4, b"\1"),
        ("stream_count", "unsupported: " + other("stream count than " + spec), 5, b"\3"),
        ("skippable_flags", "ok", 6, b"\x0e"),
        ("fatal_flag_4", "unsupported: page stream uses a feature that this build does not know", 6, b"\x10"),
        ("fatal_flag_7", "unsupported: page stream uses a feature that this build does not know", 6, b"\x80"),
        ("exact_of_another_length", SHAPE, 6, b"\1"),
        ("element_type", "unsupported: page stream has an unknown element type", 7, b"\x13"),
        ("kind", "unsupported: page stream has an unknown kind", 7, b"\x20"),
        ("layer", "invalid: " + other("address than the destination"), 8, b"\0\0"),
        ("first_head", "invalid: " + other("address than the destination"), 10, b"\0\0"),
        ("head_count", "invalid: " + other("address than the destination"), 12, b"\2\0"),
        ("head_dim", "invalid: " + other("head_dim than the destination"), 14, b"\7\0"),
        ("first_token", "invalid: " + other("address than the destination"), 16, b"\3\0\0\0"),
        ("first_token_negative", "invalid: " + other("address than the destination"), 16, b"\2\0\0\x80"),
        ("token_count", "invalid: " + other("address than the destination"), 20, b"\x13\0"),
        ("fingerprint", "unsupported: " + other("set of parameters than " + spec), 22, b"\0\0"),
        ("payload_bytes", LENGTH, 24, b"\xff\xff\xff\xff"),
        ("checksum_of_stream_0",
         "invalid: stream 0 belongs to another encoding of the page than its stream 0", 28, b"\1\0\0\0"),
    ]:
        # What a change of stream 0 does to stream 1 is not at issue.
        error = error if name != "skippable_flags" else \
            "invalid: stream 1 belongs to another encoding of the page than its stream 0"
        cases.field("nested", name, error, 0, at, new)
    one = cases.streams["nested"][1]
    cases.field("nested", "residual_of_another_page",
                "invalid: stream 1 belongs to another encoding of the page than its stream 0", 1, 28, b"\0\0\0\0")
    cases.field("nested", "residual_number", "invalid: stream 1 of the page has another stream number", 1, 4, b"\0")
    cases.field("nested", "residual_exact",
                "invalid: stream 1 belongs to another encoding of the page than its stream 0", 1, 6, b"\1")
    cases.field("nested", "residual_checksum", CHECKSUM, 1, 32, struct.pack("<I", 1), seal=False)
    cases.add("nested", "too_many_streams", "invalid: decoding takes 1 to 2 streams",
              cases.streams["nested"] + [one])


def length_cases(cases, codec):
    streams = cases.streams[codec]
    cases.add(codec, "empty", SHORT, [b""] + streams[1:])
    cases.add(codec, "header_cut", SHORT, [streams[0][:HEADER_BYTES - 1]] + streams[1:])
    cases.add(codec, "cut", LENGTH, [streams[0][:-1]] + streams[1:])
    cases.add(codec, "too_long", LENGTH, [streams[0] + b"\0"] + streams[1:])
    cases.field(codec, "checksum", CHECKSUM, 0, 32, struct.pack("<I", 1), seal=False)
    cases.payload(codec, "no_payload", SHAPE, 0, lambda payload: b"")
    for stream in range(1, len(streams)):
        error = EXACT if codec.endswith("exact") and stream == len(streams) - 1 else SHAPE
        cases.payload(codec, f"residual_{stream}_cut", error, stream, lambda payload: payload[:-1])
        cases.payload(codec, f"residual_{stream}_longer", error, stream, lambda payload: payload + b"\0")
    if not codec.startswith("lynx"):
        cases.payload(codec, "payload_cut", SHAPE, 0, lambda payload: payload[:-1])
        cases.payload(codec, "payload_longer", SHAPE, 0, lambda payload: payload + b"\0")


def scale_cases(cases):
    for codec in ("int8", "int4"):
        cases.payload(codec, "infinite_step", STEP, 0, lambda payload: put(payload, 0, INFINITE))
        cases.payload(codec, "last_step_not_a_number", STEP, 0, lambda p: put(p, 2 * (TOKENS - 1), NOT_A_NUMBER))
    base = 2 + 2 * SINKS * CHANNELS
    for codec in ("nested", "nested3"):
        for name, at, new in [("base", 0, MINUS_INFINITE), ("unit", 2 * CHANNELS, INFINITE),
                              ("last_unit", 4 * CHANNELS - 2, NOT_A_NUMBER)]:
            cases.payload(codec, f"{name}_not_finite", SCALE, 0, lambda payload: put(payload, base + at, new))
        cases.payload(codec, "recent_more_than_tokens", SHAPE, 0, lambda p: put(p, 0, bytes([TOKENS - SINKS + 1])))
        cases.payload(codec, "recent_of_another_length", SHAPE, 0, lambda payload: put(payload, 0, b"\2"))
    for codec in ("paper", "paper127"):
        for place, name in enumerate(("gamma_min", "gamma_scale", "mu", "sigma")):
            cases.payload(codec, f"{name}_not_finite", SCALE, 0,
                          lambda payload: put(payload, 2 * CHANNELS * (place + 1) - 2, INFINITE))


def lynx_cases(cases):
    """Fields of stream 0 in their order; `states` is where the coder's states begin."""
    classes_at = 4 + 2 + SINKS * CHANNELS * 2
    payload = cases.streams["lynx"][0][HEADER_BYTES:]
    assert payload[0] == 0 and payload[3] == 0
    bits = BitReader(payload[classes_at:])
    for _ in range(CHANNELS):
        bits.golomb(payload[2] & 15)
    states = classes_at + bits.bytes_used()
    began = "corrupt: page stream does not end where its coder began"
    step = "corrupt: page stream has an impossible step"
    ends = "corrupt: page stream ends within its symbols"
    for name, error, change in [
        ("recent_more_than_tokens", SHAPE, lambda p: put(p, 0, bytes([TOKENS - SINKS + 1]))),
        ("class_beyond_the_last", SHAPE, lambda p: put(p, 1, bytes([96]))),
        ("class_code_without_end", SHAPE, lambda p: put(p, classes_at, b"\xff" * 8)),
        ("offset_order", SHAPE, lambda p: put(p, 3, bytes([17]))),
        ("step_too_large", step, lambda p: put(p, 4, struct.pack("<h", 256))),
        ("step_too_small", step, lambda p: put(p, 4, struct.pack("<h", -801))),
        ("fields_cut", SHAPE, lambda p: p[:5]),
        ("sink_not_finite", "corrupt: page stream has a sink that is not finite or too large",
         lambda p: put(p, classes_at - 2, NOT_A_NUMBER)),
        ("sinks_cut", SHAPE, lambda p: p[:classes_at - 1]),
        ("classes_cut", SHAPE, lambda p: p[:classes_at]),
        ("states_cut", SHAPE, lambda p: p[:states + 3]),
        ("state_too_small", "corrupt: page stream has an impossible coder state",
         lambda p: put(p, states, struct.pack("<I", 0xffff))),
        ("last_state_zero", "corrupt: page stream has an impossible coder state",
         lambda p: put(p, states + 4 * (CHANNELS - 1), bytes(4))),
        ("state_of_other_symbols", began, lambda p: put(p, states + 2, bytes([p[states + 2] ^ 0x40])) + bytes(64)),
        ("no_words", ends, lambda p: p[:states + 4 * CHANNELS]),
        ("words_cut", ends, lambda p: p[:states + 4 * CHANNELS + 3]),
        ("bytes_behind_the_last", SHAPE, lambda p: p + b"\0"),
    ]:
        cases.payload("lynx", name, error, 0, change)
    cases.payload("lynx3", "open_bits_cut", SHAPE, 0, lambda payload: payload[:-1])


class NotFinite(Lynx):
    """Its exact stream has an element that no page may have."""

    def __init__(self, element):
        super().__init__(exact=True)
        self.element = element

    def exact_payload(self, page, *cells):
        page = copy.copy(page)
        page.values = page.values.copy()
        page.values[9, 4] = self.element
        return Lynx.exact_payload(page, *cells)


def exact_cases(cases):
    count = len(cases.streams["lynx_exact"][2]) - HEADER_BYTES
    assert count > 40
    for name, change in [
        ("exact_empty", lambda p: b""),
        ("exact_states_cut", lambda p: p[:15]),
        ("exact_state_too_small", lambda p: put(p, 4, struct.pack("<I", 0xffff))),
        ("exact_last_state_zero", lambda p: put(p, 12, bytes(4))),
        ("exact_no_words", lambda p: p[:16]),
        ("exact_word_missing", lambda p: p[:-2]),
        ("exact_word_left", lambda p: p + bytes(2)),
        ("exact_last_word", lambda p: put(p, count - 1, bytes([p[-1] ^ 0x80]))),
    ]:
        cases.payload("lynx_exact", name, EXACT, 2, change)
    for name, element in [("infinite", -np.inf), ("not_a_number", np.nan)]:
        cases.add("lynx_exact", f"exact_element_{name}", EXACT, encode(cases.page, NotFinite(element)))


def table():
    cases = Cases()
    header_cases(cases)
    for codec in CODECS:
        if codec not in ("paper_alpha4", "nested5", "nested6", "lynx3_exact"):  # nothing but other numbers
            length_cases(cases, codec)
    scale_cases(cases)
    lynx_cases(cases)
    exact_cases(cases)
    return "# Written by golden_errors.py.\n\n" + "\n".join(cases.lines)


def main():
    text = table()
    if sys.argv[1:] == ["--check"]:
        if TABLE.read_text() != text:
            sys.exit("golden_errors.txt differs from what golden_errors.py writes")
        print("golden_errors.txt is what this script writes")
        return
    TABLE.write_text(text)
    print(f"wrote {text.count('case ')} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
