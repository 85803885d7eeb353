// Page streams that must be refused, and how: the table that tests/reference/golden_errors.py wrote.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "codec/page_memory_test.h"

namespace lynx::testing {
namespace {

// page() of the script.
const PageAddress kAddress{1, KvKind::kValue, 1, 1, 2, 20};
constexpr int kHeadDim = 8;

struct ErrorCase {
  std::string name, spec, error;  // error: "ok" or what Status::ToString gives
  Streams streams;
};

std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  bytes.shrink_to_fit();  // so that sanitizers see a read past the end
  return bytes;
}

std::vector<ErrorCase> ReadTable() {
  std::ifstream file(std::string(LYNX_SOURCE_DIR) + "/tests/reference/golden_errors.txt");
  std::vector<ErrorCase> cases;
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' ');
    const std::string key = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (key == "case") cases.emplace_back().name = rest;
    if (key == "spec") cases.back().spec = rest;
    if (key == "error") cases.back().error = rest;
    if (key == "stream") cases.back().streams.push_back(FromHex(rest));
  }
  return cases;
}

TEST(GoldenErrors, EveryCase) {
  const auto cases = ReadTable();
  EXPECT_GT(cases.size(), 100u);
  std::set<std::string> codecs;
  for (const ErrorCase& each : cases) {
    SCOPED_TRACE(each.name);
    const auto codec = MakeCodec(each.spec, ShapeFor(2, kHeadDim));
    ASSERT_TRUE(codec.ok()) << each.spec;
    codecs.insert((*codec)->info().name);
    PageMemory page(kAddress, kHeadDim, ElementType::kBf16);
    const auto before = page.bytes();
    const Status status = DecodePage(**codec, each.streams, each.streams.size(), page.span());
    EXPECT_EQ(status.ToString(), each.error);
    EXPECT_EQ(page.bytes() == before, !status.ok());
  }
  const auto names = CodecNames();
  EXPECT_EQ(codecs, std::set<std::string>(names.begin(), names.end()));
}

}  // namespace
}  // namespace lynx::testing
