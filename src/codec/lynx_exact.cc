#include "codec/lynx_exact.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/bytes.h"

namespace lynx {
namespace {

constexpr int kBits = 15;  // of probabilities
constexpr std::uint32_t kTotal = 1u << kBits, kLeastState = 1u << 16;
constexpr int kInfinity = 0x7f80;  // the least magnitude that is not finite
// No bucket of a cell has an exponent field below this less 7, so the elements of all but bucket 0 are normal.
constexpr int kLeastTop = 16;
// Below this sine or cosine the bound that it would give says nothing, and rounding would spoil it.
constexpr float kLeastTurn = 0x1p-6f;

constexpr int kStrips = 5;
// The density of one coordinate of a rectangle that is turned: a trapezoid, its slopes in two strips each.
constexpr std::uint8_t kTrapezoid[kStrips] = {1, 3, 4, 3, 1};

// Elements as integers in the order of their values, -0 below +0: without gaps.
int OrdinalOf(std::uint16_t element) { return (element & 0x7fff) ^ -(element >> 15); }
// (These are written without branches: signs are anything.)
int MagnitudeOf(int ordinal) { return ordinal ^ (ordinal >> 31); }
// The least element that is not below.
int OrdinalFrom(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t sign = bits >> 31;
  return (((bits & 0x7fffffff) + (0xffff & ~sign)) >> 16) ^ sign;
}

// A bucket is as wide as the elements of exponent field `top` are apart; bucket 0 begins at +0, -1 goes down from -0.
int BucketOf(int ordinal, int top) {
  const int magnitude = MagnitudeOf(ordinal), down = top - (magnitude >> 7);
  const int bucket = (0x80 | (magnitude & 0x7f)) >> std::min(down, 8);
  return bucket ^ (ordinal >> 31);
}

// Buckets by strips; those of a strip are equally probable, in proportion to its weight.
template <int strips>
struct Choice {
  int top;
  int edges[strips + 1];
  static constexpr std::uint32_t Weight(int k) { return strips == 1 ? 1 : kTrapezoid[k]; }
  std::uint32_t Sum() const {
    std::uint32_t sum = 0;
    for (int k = 0; k < strips; ++k) sum += std::uint32_t(edges[k + 1] - edges[k]) * Weight(k);
    return sum;
  }
};

// Of the elements in [bounds[0], bounds[strips]); of the first one above where there is none.
template <int strips>
Choice<strips> ChoiceOf(const float (&bounds)[strips + 1]) {
  const int least = OrdinalFrom(bounds[0]), greatest = std::max(OrdinalFrom(bounds[strips]) - 1, least);
  Choice<strips> choice;
  choice.top = std::max({MagnitudeOf(least) >> 7, MagnitudeOf(greatest) >> 7, kLeastTop});
  choice.edges[0] = BucketOf(least, choice.top);
  choice.edges[strips] = BucketOf(greatest, choice.top) + 1;
  for (int k = 1; k < strips; ++k) {
    const int from = OrdinalFrom(bounds[k]);
    choice.edges[k] = from > greatest ? choice.edges[strips] : BucketOf(std::max(from, least), choice.top);
  }
  return choice;
}

Choice<1> CellOf(float value, float half) {
  const float bounds[] = {value - half, value + half};
  return ChoiceOf<1>(bounds);
}

// A pair's cell is a rectangle of halves `one` and `two`, turned.
struct PairCell {
  float one, two, cosine, sine;
  float Reach() const { return one * std::fabs(cosine) + two * std::fabs(sine); }

  Choice<kStrips> First(float value) const {
    const float along = one * std::fabs(cosine), across = two * std::fabs(sine);
    const float outer = along + across, middle = std::max(along, across), inner = std::fabs(along - across);
    const float bounds[] = {value - outer, value - middle, value - inner, value + inner, value + middle, value + outer};
    return ChoiceOf<kStrips>(bounds);
  }
  // The chord at the first coordinate's distance from its value.
  Choice<1> Second(float value, float distance) const {
    const float reach = Reach(), across = one * std::fabs(sine) + two * std::fabs(cosine);
    distance = std::min(std::max(distance, -reach), reach);
    float least = -across, greatest = across;
    if (std::fabs(sine) >= kLeastTurn) {
      const float per = 1.0f / sine, centre = -(distance * cosine) * per, half = one * std::fabs(per);
      least = std::max(least, centre - half);
      greatest = std::min(greatest, centre + half);
    }
    if (std::fabs(cosine) >= kLeastTurn) {
      const float per = 1.0f / cosine, centre = (distance * sine) * per, half = two * std::fabs(per);
      least = std::max(least, centre - half);
      greatest = std::min(greatest, centre + half);
    }
    const float bounds[] = {value + least, value + greatest};
    return ChoiceOf<1>(bounds);
  }
};

float ValueOf(std::uint16_t element) { return std::bit_cast<float>(std::uint32_t(element) << 16); }

// All elements of a row in the order of the stream: per head those that are not rotated, the first ones of its pairs,
// the second ones. `code(choice, element)` reads or writes the element.
template <typename Code>
void ForRow(const LynxExactPage& page, int token, const float* values, std::uint16_t* elements, Code code) {
  for (int head = 0; head < page.channels; head += page.head_dim) {
    const float *value = values + head, *half = page.half_cells + head;
    std::uint16_t* element = elements + head;
    const RopeTable* rope = page.rope;
    const int pairs = rope != nullptr ? rope->pairs() : 0, begin = rope != nullptr ? rope->offset() : 0;
    for (int c = 0; c < begin; ++c) code(CellOf(value[c], half[c]), &element[c]);
    for (int c = begin + 2 * pairs; c < page.head_dim; ++c) code(CellOf(value[c], half[c]), &element[c]);
    if (pairs == 0) continue;
    const int apart = rope->adjacent() ? 1 : pairs, stride = rope->adjacent() ? 2 : 1;
    const float *cosines = rope->cosines(token), *sines = rope->sines(token);
    for (int pair = 0; pair < pairs; ++pair) {
      const int c = begin + pair * stride;
      code(PairCell{half[c], half[c + apart], cosines[pair], sines[pair]}.First(value[c]), &element[c]);
    }
    for (int pair = 0; pair < pairs; ++pair) {
      const int c = begin + pair * stride, d = c + apart;
      const PairCell cell{half[c], half[d], cosines[pair], sines[pair]};
      code(cell.Second(value[d], ValueOf(element[c]) - value[c]), &element[d]);
    }
  }
}

// The coder's steps of a row, in order: first slot << 16 | slots.
class Planner {
 public:
  explicit Planner(std::uint32_t* steps) : steps_(steps) {}
  std::size_t count() const { return count_; }
  void Put(std::uint32_t start, std::uint32_t slots) { steps_[count_++] = start << 16 | slots; }
  void PutBits(int value, int bits) { Put(std::uint32_t(value) << (kBits - bits), 1u << (kBits - bits)); }

  template <int strips>
  void PutElement(const Choice<strips>& choice, std::uint16_t element) {
    const std::uint32_t sum = choice.Sum(), unit = (kTotal - 1) / sum;
    const int magnitude = element & 0x7fff, down = choice.top - (magnitude >> 7);
    const int bucket = down < 0 ? choice.edges[strips] : BucketOf(OrdinalOf(element), choice.top);
    if (bucket < choice.edges[0] || bucket >= choice.edges[strips]) {
      Put(sum * unit, kTotal - sum * unit);
      PutBits(element & 0xff, 8);
      return PutBits(element >> 8, 8);
    }
    std::uint32_t before = 0;
    int k = 0;
    for (; bucket >= choice.edges[k + 1]; ++k) {
      before += std::uint32_t(choice.edges[k + 1] - choice.edges[k]) * choice.Weight(k);
    }
    before += std::uint32_t(bucket - choice.edges[k]) * choice.Weight(k);
    Put(before * unit, choice.Weight(k) * unit);
    if (down > 7) {
      PutBits(magnitude != 0, 1);
      if (magnitude != 0) PutBits(magnitude, kBits);
    } else if (down > 0) {
      PutBits(magnitude & ((1 << down) - 1), down);
    }
  }

 private:
  std::uint32_t* steps_;
  std::size_t count_ = 0;
};

}  // namespace

LynxExactEncoder::LynxExactEncoder(const LynxExactPage& page, std::span<std::uint16_t> words, std::uint32_t* steps)
    : page_(page), words_(words), word_(words.size()), steps_(steps) {
  states_.fill(kLeastState);
}

bool LynxExactEncoder::AddRow(int token, const float* values, std::uint16_t* elements) {
  Planner plan(steps_);
  ForRow(page_, token, values, elements,
         [&plan](const auto& choice, const std::uint16_t* element) { plan.PutElement(choice, *element); });
  for (std::size_t i = plan.count(); i-- > 0;) {
    const std::uint32_t start = steps_[i] >> 16, slots = steps_[i] & 0xffffu;
    std::uint32_t& state = states_[i % kLynxExactLanes];
    if (state >= slots << (32 - kBits)) {
      if (word_ == 0) return false;
      words_[--word_] = std::uint16_t(state);
      state >>= 16;
    }
    state = (state / slots << kBits) + state % slots + start;
  }
  return true;
}

namespace {

// One row's steps backwards. A copy of the decoder's place, which the compiler can keep in registers.
class Reader {
 public:
  explicit Reader(const LynxExactPlace& place) : place_(place) {}
  const LynxExactPlace& place() const { return place_; }

  template <int strips>
  std::uint16_t GetElement(const Choice<strips>& choice) {
    const std::uint32_t sum = choice.Sum(), unit = (kTotal - 1) / sum;
    const std::uint32_t at = Slot() / unit;
    if (at >= sum) {
      Take(sum * unit, kTotal - sum * unit);
      const int low = GetBits(8);
      return Finite(low | GetBits(8) << 8);
    }
    std::uint32_t before = 0, strip = 0;
    int k = 0;
    for (; k + 1 < strips; ++k, before += strip) {
      strip = std::uint32_t(choice.edges[k + 1] - choice.edges[k]) * choice.Weight(k);
      if (at < before + strip) break;
    }
    const std::uint32_t weight = choice.Weight(k), bucket_of_strip = (at - before) / weight;
    Take((before + bucket_of_strip * weight) * unit, weight * unit);
    const int bucket = choice.edges[k] + int(bucket_of_strip), sign = (bucket >> 31) & 0x8000;
    const int above = MagnitudeOf(bucket);
    if (above == 0) return Finite(sign | (GetBits(1) != 0 ? GetBits(kBits) : 0));
    const int down = std::max(8 - int(std::bit_width(unsigned(above))), 0);
    const int mantissa = above << down | (down > 0 ? GetBits(down) : 0);
    return std::uint16_t(sign | (choice.top - down) << 7 | (mantissa & 0x7f));
  }

 private:
  std::uint32_t& State() { return place_.states[next_ % kLynxExactLanes]; }
  std::uint32_t Slot() { return State() & (kTotal - 1); }
  void Take(std::uint32_t start, std::uint32_t slots) {
    std::uint32_t& state = State();
    state = slots * (state >> kBits) + (state & (kTotal - 1)) - start;
    if (state < kLeastState) {
      std::uint32_t word = 0;
      if (place_.words.size() >= 2) {
        word = LoadLittle<std::uint16_t>(place_.words.data());
        place_.words = place_.words.subspan(2);
      } else {
        place_.ok = false;
      }
      state = state << 16 | word;
    }
    ++next_;
  }
  int GetBits(int bits) {
    const std::uint32_t value = Slot() >> (kBits - bits);
    Take(value << (kBits - bits), 1u << (kBits - bits));
    return int(value);
  }
  std::uint16_t Finite(int element) {
    if ((element & 0x7fff) < kInfinity) return std::uint16_t(element);
    place_.ok = false;
    return 0;
  }

  LynxExactPlace place_;
  unsigned next_ = 0;
};

}  // namespace

LynxExactDecoder::LynxExactDecoder(const LynxExactPage& page, std::span<const std::byte> payload) : page_(page) {
  place_.states.fill(kLeastState);
  place_.ok = payload.size() >= kLynxExactStateBytes;
  if (!place_.ok) return;
  for (std::size_t lane = 0; lane < kLynxExactLanes; ++lane) {
    place_.states[lane] = LoadLittle<std::uint32_t>(payload.data() + 4 * lane);
    place_.ok = place_.ok && place_.states[lane] >= kLeastState;
  }
  place_.words = payload.subspan(kLynxExactStateBytes);
}

void LynxExactDecoder::GetRow(int token, const float* values, std::uint16_t* elements) {
  Reader reader(place_);
  ForRow(page_, token, values, elements,
         [&reader](const auto& choice, std::uint16_t* element) { *element = reader.GetElement(choice); });
  place_ = reader.place();
}

Status LynxExactDecoder::Finish() const {
  const auto begun = [](std::uint32_t state) { return state == kLeastState; };
  const bool ended = std::all_of(place_.states.begin(), place_.states.end(), begun) && place_.words.empty();
  return place_.ok && ended ? Ok() : Corrupt("page stream has impossible exact elements");
}

}  // namespace lynx
