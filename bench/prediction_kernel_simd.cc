#include "prediction_kernel.h"

#include "codec/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "prediction_kernel_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace lynx::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Sums = hn::ScalableTag<std::int32_t>;
using Pairs = hn::ScalableTag<std::int16_t>;
constexpr int kLanes = int(hn::MaxLanes(Sums()));
constexpr int kTileTokens = 4;

// Lane = output channel; two vectors of them times four tokens in registers, over all pairs of inputs. `inputs` holds
// the tokens' levels as pairs of 16 bits, [token][pair].
void PredictTile(const Predictor& predictor, const std::int32_t* inputs, int output, std::int16_t* quarters) {
  const Sums d;
  const Pairs p;
  const hn::Rebind<std::int8_t, Pairs> bytes;
  const int pairs = predictor.inputs / 2;
  // Sums in two parts, as some instruction sets have them; the second stays 0 on others.
  hn::Vec<Sums> low[kTileTokens], high[kTileTokens], more_low[kTileTokens], more_high[kTileTokens];
  for (int t = 0; t < kTileTokens; ++t) low[t] = high[t] = more_low[t] = more_high[t] = hn::Zero(d);
  const std::int8_t* weights = predictor.weights.data() + 2 * output;
  for (int pair = 0; pair < pairs; ++pair, weights += 2 * predictor.width) {
    const auto first = hn::PromoteTo(p, hn::LoadU(bytes, weights));
    const auto second = hn::PromoteTo(p, hn::LoadU(bytes, weights + 2 * kLanes));
    for (int t = 0; t < kTileTokens; ++t) {
      const auto levels = hn::BitCast(p, hn::Set(d, inputs[t * pairs + pair]));
      low[t] = hn::ReorderWidenMulAccumulate(d, first, levels, low[t], more_low[t]);
      high[t] = hn::ReorderWidenMulAccumulate(d, second, levels, high[t], more_high[t]);
    }
  }
  const hn::ScalableTag<float> f;
  const hn::Rebind<std::int16_t, Sums> words;
  const auto scale_low = hn::LoadU(f, predictor.scales.data() + output);
  const auto scale_high = hn::LoadU(f, predictor.scales.data() + output + kLanes);
  const auto rounded = [&](hn::Vec<Sums> sum, hn::Vec<Sums> more, hn::Vec<hn::ScalableTag<float>> scale) {
    const auto whole = hn::ConvertTo(f, hn::RearrangeToOddPlusEven(sum, more));
    return hn::DemoteTo(words, hn::NearestInt(hn::Mul(whole, scale)));
  };
  for (int t = 0; t < kTileTokens; ++t, quarters += predictor.width) {
    hn::StoreU(rounded(low[t], more_low[t], scale_low), words, quarters + output);
    hn::StoreU(rounded(high[t], more_high[t], scale_high), words, quarters + output + kLanes);
  }
}

void PredictTokens(const Predictor& predictor, const std::int8_t* levels, int tokens, std::int16_t* quarters) {
  static_assert(2 * kLanes <= kPredictorBlock);
  const std::size_t inputs = std::size_t(predictor.inputs), width = std::size_t(predictor.width);
  std::vector<std::int32_t> pairs(kTileTokens * inputs / 2);
  std::vector<std::int16_t> tile(kTileTokens * width);
  for (int token = 0; token < tokens; token += kTileTokens) {
    const std::size_t count = std::size_t(std::min(kTileTokens, tokens - token));
    for (std::size_t i = 0; i < count * inputs / 2; ++i) {
      const std::int8_t* pair = levels + std::size_t(token) * inputs + 2 * i;
      pairs[i] = std::int32_t(std::uint16_t(pair[0]) | std::uint32_t(std::uint16_t(pair[1])) << 16);
    }
    for (int output = 0; output < predictor.width; output += 2 * kLanes) {
      PredictTile(predictor, pairs.data(), output, tile.data());
    }
    std::copy_n(tile.begin(), count * width, quarters + std::size_t(token) * width);
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace lynx::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx {

HWY_EXPORT(PredictTokens);
HWY_EXPORT(Target);

Predictor::Predictor(const std::vector<double>& exact, int input_count, int output_count)
    : inputs(input_count),
      outputs(output_count),
      width((output_count + kPredictorBlock - 1) / kPredictorBlock * kPredictorBlock),
      weights(std::size_t(inputs) * std::size_t(width)),
      scales(std::size_t(width)) {
  const auto at = [&](int input, int output) {
    return exact[std::size_t(input) * std::size_t(outputs) + std::size_t(output)];
  };
  for (int output = 0; output < outputs; ++output) {
    double greatest = 1e-12;
    for (int input = 0; input < inputs; ++input) greatest = std::max(greatest, std::fabs(at(input, output)));
    for (int input = 0; input < inputs; ++input) {
      const std::size_t place =
          2 * (std::size_t(input / 2) * std::size_t(width) + std::size_t(output)) + std::size_t(input % 2);
      weights[place] = std::int8_t(std::lrint(at(input, output) * 127 / greatest));
    }
    scales[std::size_t(output)] = float(4 * greatest / 127);
  }
}

void Predict(const Predictor& predictor, const std::int8_t* levels, int tokens, std::int16_t* quarters) {
  HWY_DYNAMIC_DISPATCH(PredictTokens)(predictor, levels, tokens, quarters);
}

const char* PredictorTarget() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace lynx
#endif
