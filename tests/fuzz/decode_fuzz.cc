// Every codec on streams that nobody encoded: no crash, no read past the end, an error leaves the page as it was, and
// what is accepted is finite and depends on nothing but the streams.
#include <cmath>

#include "fuzz_page_test.h"

namespace lynx::testing {
namespace {

void CheckError(const Status& status) {
  LYNX_CHECK(status.code() == ErrorCode::kCorrupt || status.code() == ErrorCode::kUnsupported ||
             status.code() == ErrorCode::kInvalid);
  LYNX_CHECK(!status.message().empty() && status.message().find('\n') == std::string::npos);
}

void Decode(FuzzInput input) {
  const std::string& spec = FuzzSpecs()[std::size_t(input.Below(int(FuzzSpecs().size())))];
  const FuzzPlace place = TakePlace(spec, &input);
  const Codec& codec = CodecFor(spec, place);
  const auto target_type = ElementType(input.Below(3));
  const Layout layout = kLayouts[input.Below(int(std::size(kLayouts)))];
  const Streams streams = TakeStreams(&input, codec, place);

  const PageMemory first(place.address, place.head_dim, target_type, layout);
  const PageMemory second(place.address, place.head_dim, target_type, layout);
  const auto before = first.bytes();
  const Status status = DecodeInto(codec, streams, std::byte{0x55}, &first);
  const Status again = DecodeInto(codec, streams, std::byte{0xee}, &second);
  LYNX_CHECK(status.ToString() == again.ToString());
  LYNX_CHECK(first.bytes() == second.bytes());
  if (!status.ok()) {
    CheckError(status);
    LYNX_CHECK(first.bytes() == before);
    return;
  }
  // Nothing outside the page's elements was written.
  PageMemory inside(place.address, place.head_dim, target_type, layout);
  for (int token = 0; token < place.address.token_count; ++token) {
    for (int head = 0; head < place.address.head_count; ++head) {
      for (int channel = 0; channel < place.head_dim; ++channel) {
        std::memcpy(inside.span().At(token, head, channel), first.span().At(token, head, channel),
                    std::size_t(ElementBytes(target_type)));
      }
    }
  }
  LYNX_CHECK(inside.bytes() == first.bytes());
  const bool exact = IsExact(streams);
  const bool bits = exact || spec == "raw" || place.address.first_token < 4;  // sinks of lynx are bits too
  if (bits || target_type == ElementType::kF16) return;                       // 2^16 and above is infinite in F16
  for (const float value : first.Values()) LYNX_CHECK(std::isfinite(value));
}

}  // namespace
}  // namespace lynx::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lynx::testing::Decode(lynx::testing::FuzzInput(data, size));
  return 0;
}
