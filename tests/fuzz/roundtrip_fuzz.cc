// Any page through every codec: exact where docs/codec.md says so and within its bounds elsewhere, independent of
// memory layout, and with one bit flipped an error.
#include <cmath>

#include "fuzz_page_test.h"

namespace lynx::testing {
namespace {

// Rows [token][channel].
struct Rows {
  std::vector<float> values;
  int tokens = 0, channels = 0;
  float At(int token, int channel) const {
    return values[std::size_t(token) * std::size_t(channels) + std::size_t(channel)];
  }
};

struct Range {
  double least = INFINITY, greatest = -INFINITY;
  void Add(double value) { least = std::min(least, value), greatest = std::max(greatest, value); }
  double width() const { return greatest - least; }
  double magnitude() const { return std::max(std::fabs(least), std::fabs(greatest)); }
};

Range RangeOf(const Rows& rows, int channel, int begin, int end) {
  Range range;
  for (int token = begin; token < end; ++token) range.Add(rows.At(token, channel));
  return range;
}

void CheckError(const Rows& rows, const Rows& decoded, int token, int channel, double bound) {
  LYNX_CHECK(std::fabs(double(decoded.At(token, channel)) - rows.At(token, channel)) <= bound);
}

// Half a step of the token.
void CheckInteger(const Rows& rows, const Rows& decoded, double greatest_code) {
  for (int token = 0; token < rows.tokens; ++token) {
    double magnitude = 0;
    for (int c = 0; c < rows.channels; ++c) magnitude = std::max(magnitude, std::fabs(double(rows.At(token, c))));
    const double step = magnitude / greatest_code * (1 + 0x1p-10) + 0x1p-24;
    for (int c = 0; c < rows.channels; ++c) CheckError(rows, decoded, token, c, step / 2 + 0x1p-22 * magnitude);
  }
}

// `nested` with so many bits known: half a cell of the chunk's range, to which rounding of metadata adds two units.
void CheckNested(const Rows& rows, const Rows& decoded, int bits) {
  for (int c = 0; c < rows.channels; ++c) {
    const Range page = RangeOf(rows, c, 0, rows.tokens);
    const double unit = (page.width() + std::max(page.magnitude() * 0x1p-10, 0x1p-24)) / 255 * (1 + 0x1p-10) + 0x1p-24;
    for (int begin = 0; begin < rows.tokens; begin += 32) {
      const int end = std::min(begin + 32, rows.tokens);
      const double covered = RangeOf(rows, c, begin, end).width() + 2 * unit;
      const double bound = covered / std::exp2(bits + 1) + 0x1p-20 * (page.magnitude() + covered);
      for (int token = begin; token < end; ++token) CheckError(rows, decoded, token, c, bound);
    }
  }
}

// The same where K was turned back first: the range of a pair is known by its magnitude, its error is that of both.
void CheckNestedUnrotated(const Rows& rows, const Rows& decoded, int bits) {
  double magnitude = 0;
  for (const float value : rows.values) magnitude = std::max(magnitude, std::fabs(double(value)));
  const double covered = 2 * 1.4143 * magnitude * (1 + 3.0 / 255) + 0x1p-20;
  for (int token = 0; token < rows.tokens; ++token) {
    for (int c = 0; c < rows.channels; ++c) {
      CheckError(rows, decoded, token, c, 1.4143 * (covered / std::exp2(bits + 1) + 0x1p-19 * magnitude));
    }
  }
}

// Half a cell, which RoPE spreads over two channels; nothing from the exact stream.
void CheckLynx(const CodecInfo& info, const Rows& rows, const Rows& decoded, const Streams& all, std::size_t count,
               const FuzzPlace& place) {
  const std::size_t cell_streams = all.size() - (info.spec.ends_with("exact=1") ? 1 : 0);
  if (count > cell_streams) {
    LYNX_CHECK(std::memcmp(rows.values.data(), decoded.values.data(), 4 * rows.values.size()) == 0);
    return;
  }
  const int residual_bits = 4 * int(count - 1) / int(cell_streams - 1);
  for (int head = 0; head < place.address.head_count; ++head) {
    const auto index = LoadLittle<std::int16_t>(all[0].data() + kPageStreamHeaderBytes + 4 + 2 * head);
    const double step = std::exp2(index / 8.0) * (1 + 0x1p-20);
    for (int token = 0; token < rows.tokens; ++token) {
      double magnitude = 0;  // of the head: pairs of channels are rotated together
      for (int c = 0; c < place.head_dim; ++c) {
        magnitude = std::max(magnitude, std::fabs(double(rows.At(token, head * place.head_dim + c))));
      }
      const double bound = 1.4143 * (step / std::exp2(residual_bits + 1) + 0x1p-21 * magnitude);
      for (int c = 0; c < place.head_dim; ++c) CheckError(rows, decoded, token, head * place.head_dim + c, bound);
    }
  }
}

int NumberIn(const std::string& spec, const std::string& parameter) {
  return std::stoi(spec.substr(spec.find(parameter) + parameter.size()));
}

void CheckBounds(const CodecInfo& info, const Rows& rows, const Rows& decoded, const Streams& all, std::size_t count,
                 const FuzzPlace& place) {
  const std::string& name = info.name;
  if (name == "raw") {
    for (int token = 0; token < rows.tokens; ++token) {
      for (int c = 0; c < rows.channels; ++c) {
        CheckError(rows, decoded, token, c, std::fabs(rows.At(token, c)) * 0x1p-8 + 0x1p-133);
      }
    }
  }
  if (name == "int8") CheckInteger(rows, decoded, 127);
  if (name == "int4") CheckInteger(rows, decoded, 7);
  if (name == "nested") {
    const bool unrotated = info.spec.ends_with("unrope=1") && place.address.kind == KvKind::kKey;
    const int bits = count == 1 ? NumberIn(info.spec, "anchor=") : 8;
    (unrotated ? CheckNestedUnrotated : CheckNested)(rows, decoded, bits);
  }
  if (name == "lynx") CheckLynx(info, rows, decoded, all, count, place);
}

Rows DecodeRows(const Codec& codec, const FuzzPlace& place, const Streams& streams) {
  const PageMemory page(place.address, place.head_dim, ElementType::kF32);
  LYNX_CHECK(DecodeInto(codec, streams, std::byte{0x55}, &page).ok());
  return {page.Values(), place.address.token_count, place.address.head_count * place.head_dim};
}

// What all streams give is the same, however they are cut, and in `nested` whatever travels early (in `lynx` the steps
// make room for that).
void CheckStreamsDoNotMatter(const std::string& name, const FuzzPlace& place, const PageMemory& source,
                             FuzzInput* input) {
  const std::string recent = ",recent=" + std::to_string(input->Below(8) * 36);
  const int choice = input->Below(6);
  std::string one = "nested:anchor=4", other = "nested:anchor=" + std::to_string(3 + choice % 4) + recent;
  FuzzPlace elsewhere = place;
  const int tokens_after = input->Below(256) - 1;
  if (name == "lynx") {
    const std::string bits = ",anchor_bits=" + std::to_string(1.2 + 0.5 * choice) + recent;
    one = "lynx:streams=2" + bits;
    other = "lynx:streams=3" + bits;
  } else {
    elsewhere.tokens_after = tokens_after;
  }
  const Codec& codec = CodecFor(one, place);
  const Codec& other_codec = CodecFor(other, place);
  const Streams streams = EncodePage(codec, ViewOf(source, place)).value();
  const Streams other_streams = EncodePage(other_codec, ViewOf(source, elsewhere)).value();
  if (IsExact(streams) != IsExact(other_streams)) return;  // at the edge of what coding shortens
  const auto values = DecodeRows(codec, place, streams).values;
  const auto other_values = DecodeRows(other_codec, place, other_streams).values;
  LYNX_CHECK(std::memcmp(values.data(), other_values.data(), 4 * values.size()) == 0);
}

void CheckFlip(const Codec& codec, const FuzzPlace& place, Streams streams, FuzzInput* input) {
  std::vector<std::byte>& stream = streams[std::size_t(input->Below(int(streams.size())))];
  const std::size_t bit = input->Take<std::uint16_t>() % (8 * stream.size());
  stream[bit / 8] ^= std::byte(1 << bit % 8);
  const PageMemory page(place.address, place.head_dim, place.type);
  const auto before = page.bytes();
  LYNX_CHECK(!DecodeInto(codec, streams, std::byte{0x55}, &page).ok());
  LYNX_CHECK(page.bytes() == before);
}

void RoundTrip(FuzzInput input) {
  const std::string& spec = FuzzSpecs()[std::size_t(input.Below(int(FuzzSpecs().size())))];
  const FuzzPlace place = TakePlace(spec, &input);
  const Codec& codec = CodecFor(spec, place);
  const Layout layout = kLayouts[input.Below(int(std::size(kLayouts)))];
  FuzzInput choices = input;  // the page's bytes are these too
  const PageMemory source = TakePage(&input, place, layout);
  PageMemory dense(place.address, place.head_dim, place.type);
  dense.Fill(source.Values());
  const Streams streams = EncodePage(codec, ViewOf(source, place)).value();
  LYNX_CHECK(EncodePage(codec, ViewOf(dense, place)).value() == streams);
  CheckFlip(codec, place, streams, &choices);
  const std::string& name = codec.info().name;
  if (name == "lynx" || name == "nested") CheckStreamsDoNotMatter(name, place, source, &choices);

  const Rows rows{source.Values(), place.address.token_count, place.address.head_count * place.head_dim};
  const bool exact = IsExact(streams);
  for (std::size_t count = 1; count <= streams.size(); ++count) {
    const Streams prefix(streams.begin(), streams.begin() + std::ptrdiff_t(count));
    if (exact) {
      const PageMemory page(place.address, place.head_dim, place.type);
      LYNX_CHECK(DecodeInto(codec, prefix, std::byte{0x55}, &page).ok());
      LYNX_CHECK(page.Bits() == dense.Bits());
    } else {
      CheckBounds(codec.info(), rows, DecodeRows(codec, place, prefix), streams, count, place);
    }
  }
}

}  // namespace
}  // namespace lynx::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lynx::testing::RoundTrip(lynx::testing::FuzzInput(data, size));
  return 0;
}
