#include "base/bytes.h"
#include "base/status_macros.h"
#include "codec/rans.h"

namespace lynx {
namespace {

int LanesOfBlock(const RansPage& page, int first) {
  return page.channels - first < kRansLanes ? page.channels - first : kRansLanes;
}

}  // namespace

void RansBegin(std::span<const std::uint16_t> carried, RansStates* states) {
  states->fill(kRansLeastState);
  for (std::size_t lane = 0; lane < carried.size(); ++lane) (*states)[lane] |= carried[lane];
}

// Last in, first out: everything runs backwards.
void RansEncodeBlock(const RansPage& page, int first, const std::uint8_t* symbols, RansStates* states,
                     std::uint16_t** word) {
  for (int token = page.tokens - 1; token >= 0; --token) {
    const std::uint8_t* row = symbols + std::size_t(token) * std::size_t(page.channels) + first;
    for (int lane = LanesOfBlock(page, first) - 1; lane >= 0; --lane) {
      const LynxTable& table = *page.tables[first + lane];
      std::uint32_t& state = (*states)[std::size_t(lane)];
      if (RansSpills(table, row[lane], state)) {
        *--*word = std::uint16_t(state);
        state >>= 16;
      }
      RansPut(table, row[lane], &state);
    }
  }
}

std::uint16_t* RansEncode(const RansPage& page, const std::uint8_t* symbols, std::span<const std::uint16_t> carried,
                          std::uint16_t* words_end, RansStates* states) {
  RansBegin(carried, states);
  std::uint16_t* word = words_end;
  for (int first = (page.channels - 1) / kRansLanes * kRansLanes; first >= 0; first -= kRansLanes) {
    RansEncodeBlock(page, first, symbols, states, &word);
  }
  return word;
}

Status RansCheckStates(const RansPage& page, const RansStates& states) {
  for (int lane = 0; lane < RansLanesOf(page.channels); ++lane) {
    if (states[std::size_t(lane)] < kRansLeastState) return Corrupt("page stream has an impossible coder state");
  }
  return Ok();
}

Status RansDecodeBlock(const RansPage& page, int first, std::uint8_t* symbols, RansStates* states,
                       const std::byte** word, const std::byte* end) {
  for (int token = 0; token < page.tokens; ++token) {
    std::uint8_t* row = symbols + std::size_t(token) * std::size_t(page.channels) + first;
    for (int lane = 0; lane < LanesOfBlock(page, first); ++lane) {
      std::uint32_t& state = (*states)[std::size_t(lane)];
      row[lane] = RansTake(*page.tables[first + lane], &state);
      if (state < kRansLeastState) {
        if (end - *word < 2) return Corrupt("page stream ends within its symbols");
        state = RansRefill(state, LoadLittle<std::uint16_t>(*word));
        *word += 2;
      }
    }
  }
  return Ok();
}

Status RansFinish(const RansPage& page, const RansStates& states, std::span<std::uint16_t> carried) {
  for (std::size_t lane = 0; lane < std::size_t(RansLanesOf(page.channels)); ++lane) {
    if (states[lane] >> 16 != 1) return Corrupt("page stream does not end where its coder began");
    carried[lane] = std::uint16_t(states[lane]);
  }
  return Ok();
}

Status RansDecode(const RansPage& page, RansStates states, std::span<const std::byte> words, std::uint8_t* symbols,
                  std::span<std::uint16_t> carried, std::size_t* used) {
  LYNX_RETURN_IF_ERROR(RansCheckStates(page, states));
  const std::byte* word = words.data();
  for (int first = 0; first < page.channels; first += kRansLanes) {
    LYNX_RETURN_IF_ERROR(RansDecodeBlock(page, first, symbols, &states, &word, words.data() + words.size()));
  }
  *used = std::size_t(word - words.data()) / 2;
  return RansFinish(page, states, carried);
}

}  // namespace lynx
