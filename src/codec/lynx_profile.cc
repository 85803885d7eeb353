#include "codec/lynx_profile.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "codec/lynx_reference.h"
#include "codec/lynx_tables.h"

namespace lynx {
namespace {

// offset  bytes  field
//      0      4  magic "LXPR"
//      4      4  version, 1
//      8      4  layers
//     12         per layer: u32 KV heads, u32 key_dim, u32 value_dim; per channel of K, then of V: i16 spread, i16
//     weight
//                u32 CRC-32C of all before
constexpr std::uint32_t kMagic = 0x5250584c;
constexpr std::uint32_t kVersion = 1;

std::size_t Channels(const LayerShape& layer, int kind) {
  return std::size_t(layer.kv_heads) * std::size_t(layer.HeadDim(KvKind(kind)));
}

// The nearest step that exists and has a whole number of kLynxOffsetUnit to this one: only such differences can be
// told.
int WithinSteps(int step) {
  static_assert(kLynxOffsetUnit == 2);
  if (step < kLynxLeastStep) return kLynxLeastStep + ((step - kLynxLeastStep) & 1);
  if (step > kLynxGreatestStep) return kLynxGreatestStep - ((step - kLynxGreatestStep) & 1);
  return step;
}

}  // namespace

Profile WriteLynxProfile(const LynxProfile& profile, const CacheShape& shape) {
  Profile written;
  ByteWriter writer(&written.bytes);
  writer.Put(kMagic);
  writer.Put(kVersion);
  writer.Put(std::uint32_t(shape.layers.size()));
  LYNX_CHECK(profile.size() == 2 * shape.layers.size());
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const LayerShape& dims = shape.layers[layer];
    writer.Put(std::uint32_t(dims.kv_heads));
    writer.Put(std::uint32_t(dims.key_dim));
    writer.Put(std::uint32_t(dims.value_dim));
    for (int kind = 0; kind < 2; ++kind) {
      LYNX_CHECK(profile[2 * layer + std::size_t(kind)].size() == Channels(dims, kind));
      for (const LynxChannelProfile& channel : profile[2 * layer + std::size_t(kind)]) {
        writer.Put(channel.spread);
        writer.Put(channel.weight);
      }
    }
  }
  writer.Put(Crc32c(written.bytes));
  return written;
}

Status CheckLynxProfile(const Profile& profile) {
  const std::span<const std::byte> bytes(profile.bytes);
  if (bytes.size() < 16 || LoadLittle<std::uint32_t>(bytes.data()) != kMagic ||
      Crc32c(bytes.first(bytes.size() - 4)) != LoadLittle<std::uint32_t>(bytes.data() + bytes.size() - 4)) {
    return Corrupt("the profile is damaged or no profile; calibrate again");
  }
  if (LoadLittle<std::uint32_t>(bytes.data() + 4) != kVersion) {
    return Unsupported("the profile is of another version; calibrate again");
  }
  return Ok();
}

Result<LynxProfile> ReadLynxProfile(const Profile& profile, const CacheShape& shape) {
  LYNX_RETURN_IF_ERROR(CheckLynxProfile(profile));
  const std::span<const std::byte> bytes(profile.bytes);
  ByteReader reader(bytes.subspan(8, bytes.size() - 12));
  const Status other = Invalid("the profile is of another model; calibrate this one");
  if (reader.Get<std::uint32_t>() != shape.layers.size()) return other;
  LynxProfile rows(2 * shape.layers.size());
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const LayerShape& dims = shape.layers[layer];
    for (int expected : {dims.kv_heads, dims.key_dim, dims.value_dim}) {
      if (reader.Get<std::uint32_t>() != std::uint32_t(expected)) return other;
    }
    for (int kind = 0; kind < 2; ++kind) {
      auto& row = rows[2 * layer + std::size_t(kind)];
      row.resize(Channels(dims, kind));
      for (LynxChannelProfile& channel : row) {
        channel.spread = reader.Get<std::int16_t>();
        channel.weight = reader.Get<std::int16_t>();
      }
    }
  }
  if (!reader.ok() || reader.left() != 0) return other;
  return rows;
}

int LynxDeltaOf(const LynxProfile& profile, double bits) {
  const LynxTables& tables = LynxTables::Get();
  const auto rate = [&](int delta) {
    double sum = 0.0, count = 0.0;
    for (const auto& row : profile) {
      for (const LynxChannelProfile& channel : row) {
        const int at = channel.spread + channel.weight - delta;  // between two entries of the table
        const double part = (at & 7) / 8.0;
        sum += (1.0 - part) * tables.Bits(at >> 3) + part * tables.Bits((at >> 3) + 1);
      }
      count += double(row.size());
    }
    return sum / count;
  };
  return LynxLeastWithin(rate, bits, -(1 << 17), 1 << 17);  // the rate falls as delta grows
}

std::vector<std::int16_t> LynxProfileSteps(std::span<const LynxChannelProfile> head, int delta) {
  constexpr int kPerOffset = 8 * kLynxOffsetUnit;  // 16: divided by as a shift, which is a floor
  static_assert(kPerOffset == 16);
  std::vector<int> offsets;
  std::int64_t sum = 0;  // of delta / w less offsets
  for (const LynxChannelProfile& channel : head) {
    offsets.push_back((head[0].weight - channel.weight + kPerOffset / 2) >> 4);
    sum += delta - channel.weight - kPerOffset * offsets.back();
  }
  const double first = double(sum) / (8.0 * double(head.size()));
  std::vector<std::int16_t> steps;
  for (const int offset : offsets) {
    const int rounded = int(first + 65536.5) - 65536 + kLynxOffsetUnit * offset;
    steps.push_back(std::int16_t(WithinSteps(rounded)));
  }
  return steps;
}

}  // namespace lynx
