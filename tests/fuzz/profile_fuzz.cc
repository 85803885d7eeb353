// Profiles that nobody calibrated: refused, or canonical, and then every page encodes within its bounds and decodes
// without the profile.
#include <cmath>

#include "codec/lynx_profile.h"
#include "fuzz_page_test.h"

namespace lynx::testing {
namespace {

// The header of the shape's profile in front of the input's bytes, cut or filled to the right length; or the bytes
// alone.
Profile TakeProfile(FuzzInput* input, const CacheShape& shape) {
  const int mode = input->Below(8);
  LynxProfile rows;
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      auto& row = rows.emplace_back(std::size_t(layer.kv_heads * layer.HeadDim(kind)));
      for (LynxChannelProfile& channel : row) {
        if (mode > 1) channel = {input->Take<std::int16_t>(), input->Take<std::int16_t>()};
      }
    }
  }
  Profile profile = WriteLynxProfile(rows, shape);
  if (mode == 0) profile.bytes.clear();
  if (mode > 1) return profile;
  const auto bytes = input->TakeUpTo(input->left());
  profile.bytes.resize(std::max(profile.bytes.size(), bytes.size()));
  std::copy(bytes.begin(), bytes.end(), profile.bytes.begin());
  profile.bytes.shrink_to_fit();
  const std::size_t size = profile.bytes.size();
  if (size >= 4) StoreLittle(Crc32c(std::span(profile.bytes).first(size - 4)), profile.bytes.data() + size - 4);
  return profile;
}

void Read(FuzzInput input) {
  FuzzPlace place = TakePlace("lynx", &input);
  place.head_dim = std::min(place.head_dim, 8);
  const CacheShape shape = ShapeOf(place);
  const double anchor_bits = 1.2 + 3.3 * input.Below(256) / 255.0;
  const Input paint = kInputs[input.Below(int(std::size(kInputs)))];
  const Profile profile = TakeProfile(&input, shape);
  const auto rows = ReadLynxProfile(profile, shape);
  const std::string spec = "lynx:anchor_bits=" + std::to_string(anchor_bits);
  const auto codec = MakeCodec(spec, shape, &profile);
  LYNX_CHECK(codec.ok() == rows.ok());
  if (!rows.ok()) {
    LYNX_CHECK(codec.status().ToString() == rows.status().ToString());
    return;
  }
  LYNX_CHECK(WriteLynxProfile(*rows, shape).bytes == profile.bytes);
  const int channels = place.address.head_count * place.head_dim;
  PageMemory source(place.address, place.head_dim, place.type);
  source.Fill(PaintValues(paint, place.address.token_count, channels, 1, place.type));
  Streams streams = EncodePage(**codec, ViewOf(source, place)).value();
  const auto decoder = MustMake(spec, shape);
  for (; !streams.empty(); streams.pop_back()) {
    const PageMemory page(place.address, place.head_dim, ElementType::kF32);
    LYNX_CHECK(DecodeInto(*decoder, streams, std::byte{0x55}, &page).ok());
    for (const float value : page.Values()) LYNX_CHECK(std::isfinite(value));
  }
}

}  // namespace
}  // namespace lynx::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lynx::testing::Read(lynx::testing::FuzzInput(data, size));
  return 0;
}
