// What comes before a peer has proved who it is: whatever arrives, in whatever pieces, nothing is read that the other
// end of a good handshake has not written, in its order.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "net/certificates.h"
#include "net/tls.h"

namespace lynx {
namespace {

using Bytes = std::vector<std::byte>;

// Made once; gone when the process ends.
std::unique_ptr<TlsContext> MakeContext() {
  const auto folder = std::filesystem::temp_directory_path() / ("lynx-tls-fuzz-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const KeyAndCertificate authority = MakeAuthority(ValidForDays(1000));
  const KeyAndCertificate node = MakeCertificate(authority, "localhost", ValidForDays(1000)).value();
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  };
  auto context = TlsContext::Load(
      {write("node.pem", node.certificate), write("node.key", node.key), write("ca.pem", authority.certificate)});
  std::filesystem::remove_all(folder);
  return std::move(context).value();
}

struct End {
  std::unique_ptr<TlsStream> stream;
  std::byte says;  // what it sends, over and over
  Bytes on_the_way{}, plain{};
  std::size_t sent = 0;
  bool failed = false;

  void Receive(std::span<const std::byte> bytes) {
    if (failed) return;
    const std::size_t before = plain.size();
    const Status status = stream->Receive(bytes, &plain, &on_the_way);
    LYNX_CHECK(status.ok() || !status.message().empty());
    LYNX_CHECK(stream->established() || plain.size() == before);
    failed = !status.ok();
  }
  void Send(std::size_t size) {
    if (failed || !stream->established()) return;
    LYNX_CHECK(stream->Send(Bytes(size, says), &on_the_way).ok());
    sent += size;
  }
};

void CheckHeard(const End& from, const End& to) {
  LYNX_CHECK(to.plain.size() <= from.sent);
  LYNX_CHECK(std::ranges::all_of(to.plain, [&](std::byte b) { return b == from.says; }));
}

// Bytes as they are, in pieces of a size, to a node that accepts and to one that connects.
void FeedRaw(const TlsContext& context, std::size_t piece, std::span<const std::byte> bytes) {
  for (const bool accepts : {true, false}) {
    End end{accepts ? context.Accept() : context.Connect("localhost"), std::byte{1}};
    end.Receive({});
    for (auto rest = bytes; !rest.empty(); rest = rest.subspan(std::min(piece, rest.size()))) {
      end.Receive(rest.first(std::min(piece, rest.size())));
    }
    LYNX_CHECK(!end.stream->established() && end.plain.empty());
  }
}

// A real handshake and data behind it, with what is on the way carried in pieces, damaged, left out or added to.
void FeedDamaged(const TlsContext& context, ByteReader input) {
  End ends[] = {{context.Connect("localhost"), std::byte{1}}, {context.Accept(), std::byte{2}}};
  ends[0].Receive({});
  while (input.left() >= 3) {
    const auto what = input.Get<std::uint8_t>();
    const auto size = input.Get<std::uint16_t>();
    End& from = ends[what & 1];
    End& to = ends[1 - (what & 1)];
    Bytes& way = from.on_the_way;
    const std::size_t at = way.empty() ? 0 : size % way.size();
    switch (what >> 1 & 7) {
      case 0:
        if (!way.empty()) way[at] ^= std::byte(1 + (what >> 4));
        break;
      case 1:
        way.erase(way.begin(), way.begin() + std::ptrdiff_t(at));
        break;
      case 2:
        way.insert(way.begin() + std::ptrdiff_t(at), 1 + (what >> 4), std::byte(size));
        break;
      case 3:
        from.Send(size);
        break;
      default: {
        const Bytes carried(way.begin(), way.begin() + std::ptrdiff_t(std::min<std::size_t>(size, way.size())));
        way.erase(way.begin(), way.begin() + std::ptrdiff_t(carried.size()));
        to.Receive(carried);
      }
    }
    CheckHeard(ends[0], ends[1]);
    CheckHeard(ends[1], ends[0]);
  }
}

}  // namespace
}  // namespace lynx

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lynx;
  static const std::unique_ptr<TlsContext> context = MakeContext();
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] < 128) {
    FeedRaw(*context, std::size_t(data[0]) + 1, bytes);
  } else {
    FeedDamaged(*context, ByteReader(bytes));
  }
  return 0;
}
