// Every kernel table against the definition: the same streams from any page, the same page or the same error from any
// streams.
#include "fuzz_page_test.h"

namespace lynx::testing {
namespace {

using Codecs = std::vector<std::unique_ptr<Codec>>;

// One for every table of kernels but the reference.
const Codecs& OtherCodecs(const std::string& spec, const FuzzPlace& place) {
  static std::map<std::tuple<std::string, int, ElementType, RopePairing>, Codecs> made;
  Codecs& codecs = made[{spec, place.head_dim, place.type, place.pairing}];
  if (!codecs.empty()) return codecs;
  const CacheShape shape = ShapeOf(place);
  for (const CodecKernels* table : AllSimdKernels()) codecs.push_back(MakeCodecWith(*table, spec, shape).value());
  return codecs;
}

void CheckDecode(const std::string& spec, const FuzzPlace& place, ElementType type, const Streams& streams) {
  const PageMemory expected(place.address, place.head_dim, type);
  const Status status = DecodeInto(CodecFor(spec, place, &ReferenceKernels()), streams, std::byte{0x55}, &expected);
  for (const auto& codec : OtherCodecs(spec, place)) {
    const PageMemory page(place.address, place.head_dim, type);
    LYNX_CHECK(DecodeInto(*codec, streams, std::byte{0xee}, &page).ToString() == status.ToString());
    LYNX_CHECK(page.bytes() == expected.bytes());
  }
}

void Compare(FuzzInput input) {
  const std::string& spec = FuzzSpecs()[std::size_t(input.Below(int(FuzzSpecs().size())))];
  const FuzzPlace place = TakePlace(spec, &input);
  const Codec& reference = CodecFor(spec, place, &ReferenceKernels());
  const auto target_type = ElementType(input.Below(3));
  if (input.Below(2) != 0) {
    CheckDecode(spec, place, target_type, TakeStreams(&input, reference, place));
    return;
  }
  const PageMemory page = TakePage(&input, place);
  Streams streams = EncodePage(reference, ViewOf(page, place)).value();
  for (const auto& codec : OtherCodecs(spec, place)) {
    LYNX_CHECK(EncodePage(*codec, ViewOf(page, place)).value() == streams);
  }
  for (; !streams.empty(); streams.pop_back()) CheckDecode(spec, place, target_type, streams);
}

}  // namespace
}  // namespace lynx::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lynx::testing::Compare(lynx::testing::FuzzInput(data, size));
  return 0;
}
