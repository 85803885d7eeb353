// What each baseline promises about the values that come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "baselines/baselines.h"
#include "baselines/fp8_codec.h"
#include "baselines/max_quantizer.h"
#include "baselines/range_coder.h"
#include "baselines/turboquant_codec.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"
#include "codec/rope_table.h"

namespace lynx::testing {
namespace {

struct Decoded {
  std::vector<float> values;
  std::vector<std::vector<float>> prefixes;  // from 1, 2, … streams
  std::size_t bytes = 0;                     // of all streams
};

struct Setting {
  KvKind kind = KvKind::kKey;
  int tokens = 100;
  int heads = 2;
  int head_dim = 20;
  int first_token = 512;
  int tokens_after = -1;
  ElementType type = ElementType::kF32;
};

Decoded RoundTrip(const std::string& spec, const Setting& setting, const std::vector<float>& values) {
  const PageAddress address{0, setting.kind, 0, setting.heads, setting.first_token, setting.tokens};
  const CacheShape shape = ShapeFor(setting.heads, setting.head_dim, setting.type);
  const auto codec = IsBaseline(spec) ? MakeBaseline(spec, shape) : MakeCodec(spec, shape);
  LYNX_CHECK(codec.ok());
  PageMemory source(address, setting.head_dim, setting.type);
  source.Fill(values);
  PageView view = source.view();
  view.tokens_after = setting.tokens_after;
  const auto streams = EncodePage(**codec, view);
  LYNX_CHECK(streams.ok());
  Decoded result;
  result.values = values;
  for (std::size_t count = 1; count <= streams->size(); ++count) {
    PageMemory target(address, setting.head_dim, setting.type);
    LYNX_CHECK(DecodePage(**codec, *streams, count, target.span()).ok());
    result.prefixes.push_back(target.Values());
    result.bytes += (*streams)[count - 1].size();
  }
  return result;
}

Decoded RoundTrip(const std::string& spec, const Setting& setting, Input input, std::uint64_t seed = 3) {
  return RoundTrip(spec, setting,
                   PaintValues(input, setting.tokens, setting.heads * setting.head_dim, seed, setting.type));
}

std::vector<float> Gaussian(std::size_t count) {
  Random random(5);
  std::vector<float> values(count);
  for (float& value : values) value = Normal(random);
  return values;
}

// Calls visit(least, greatest, greatest error of each prefix) for groups of elements given by first, stride and count.
void CheckGroup(const Decoded& decoded, std::size_t first, std::size_t stride, int count,
                const std::function<void(double, double, const std::vector<double>&)>& visit) {
  double least = 1e30, greatest = -1e30;
  std::vector<double> errors(decoded.prefixes.size());
  for (int i = 0; i < count; ++i) {
    const std::size_t at = first + std::size_t(i) * stride;
    least = std::min(least, double(decoded.values[at]));
    greatest = std::max(greatest, double(decoded.values[at]));
    for (std::size_t k = 0; k < errors.size(); ++k) {
      errors[k] = std::max(errors[k], std::fabs(double(decoded.prefixes[k][at]) - double(decoded.values[at])));
    }
  }
  visit(least, greatest, errors);
}

// The step of a grid of `levels` between two values whose ends are rounded to FP16, outwards.
double GridStep(double least, double greatest, int levels) {
  const double spacing = std::max(std::fabs(least) * 0x1p-10, 0x1p-24);
  return (greatest - least + spacing) / (levels - 1) * (1 + 0x1p-10) + 0x1p-24;
}

TEST(Fp8, EveryCodeAndTheRoundingBetween) {
  std::vector<float> numbers;
  for (int code = 0; code < 0x7f; ++code) {
    const float value = E4m3ToFloat(std::uint8_t(code));
    const int exponent = code >> 3, mantissa = code & 7;
    EXPECT_EQ(value, exponent == 0 ? float(mantissa) * 0x1p-9f : std::ldexp(1.0f + float(mantissa) / 8, exponent - 7));
    EXPECT_EQ(FloatToE4m3(value), code);
    EXPECT_EQ(FloatToE4m3(-value), code | 0x80);
    EXPECT_EQ(E4m3ToFloat(std::uint8_t(code | 0x80)), -value);
    numbers.push_back(value);
  }
  EXPECT_EQ(numbers.back(), 448.0f);
  for (int code = 0; code + 1 < int(numbers.size()); ++code) {
    const float middle = (numbers[std::size_t(code)] + numbers[std::size_t(code) + 1]) / 2;
    EXPECT_EQ(FloatToE4m3(middle), code + code % 2) << "ties go to the even code";
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 1e9f)), code + 1);
  }
  EXPECT_EQ(FloatToE4m3(1e30f), 0x7e);
}

TEST(Fp8, Bound) {
  const Setting setting;
  for (Input input : kInputs) {
    for (const auto& [spec, tokens] : {std::pair{"fp8", setting.tokens}, std::pair{"fp8:scale=2", 1}}) {
      const Decoded decoded = RoundTrip(spec, setting, input);
      for (int first = 0; first < setting.tokens; first += tokens) {
        for (int head = 0; head < setting.heads; ++head) {
          double greatest = 0;
          const auto visit = [&](auto each) {
            for (int i = 0; i < tokens * setting.head_dim; ++i) {
              each(std::size_t((first + i / setting.head_dim) * setting.heads + head) * std::size_t(setting.head_dim) +
                   std::size_t(i % setting.head_dim));
            }
          };
          visit([&](std::size_t at) { greatest = std::max(greatest, std::fabs(double(decoded.values[at]))); });
          const double scale = greatest / 448 * (1 + 0x1p-10) + 0x1p-24;
          visit([&](std::size_t at) {
            const double value = decoded.values[at];
            EXPECT_LE(std::fabs(decoded.prefixes[0][at] - value),
                      std::max(std::fabs(value) * (0x1p-4 + 1e-6), scale * 0x1p-10 * (1 + 1e-6)))
                << spec << " input " << int(input);
          });
        }
      }
    }
  }
}

TEST(Grouped, Bounds) {
  for (Input input : kInputs) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      for (const auto& [spec, group, levels, finer] :
           {std::tuple{"kivi:bits=4,group=16", 16, 16, 1}, std::tuple{"kivi:bits=2", 32, 4, 1},
            std::tuple{"quantspec:group=32", 32, 16, 16}}) {
        Setting setting;
        setting.kind = kind;
        const Decoded decoded = RoundTrip(spec, setting, input);
        const int channels = setting.heads * setting.head_dim;
        const auto visit = [&](double least, double greatest, const std::vector<double>& errors) {
          const double step = GridStep(least, greatest, levels);
          const double slack = 1e-6 * (std::fabs(least) + std::fabs(greatest) + step);
          EXPECT_LE(errors[0], step / 2 + slack) << spec << " input " << int(input);
          // The residual ends at 7/16: at the upper edge of a level it is one sixteenth short.
          EXPECT_LE(errors.back(), finer == 1 ? step / 2 + slack : step / 16 + slack)
              << spec << " input " << int(input);
        };
        if (kind == KvKind::kKey) {
          for (int first = 0; first < setting.tokens; first += group) {
            for (int c = 0; c < channels; ++c) {
              CheckGroup(decoded, std::size_t(first * channels + c), std::size_t(channels),
                         std::min(group, setting.tokens - first), visit);
            }
          }
        } else {
          for (int head = 0; head < setting.tokens * setting.heads; ++head) {
            for (int first = 0; first < setting.head_dim; first += group) {
              CheckGroup(decoded, std::size_t(head * setting.head_dim + first), 1,
                         std::min(group, setting.head_dim - first), visit);
            }
          }
        }
      }
    }
  }
}

// The tokens at the end of the prompt that come back exactly: those of KIVI and QuantSpec.
int ExactTail(const std::string& spec, const Setting& setting) {
  const Decoded decoded = RoundTrip(spec, setting, Input::kNormal);
  const int channels = setting.heads * setting.head_dim;
  int tail = 0;
  while (tail < setting.tokens) {
    const auto from = std::size_t(setting.tokens - tail - 1) * std::size_t(channels);
    if (!std::equal(decoded.values.begin() + std::ptrdiff_t(from),
                    decoded.values.begin() + std::ptrdiff_t(from) + channels,
                    decoded.prefixes[0].begin() + std::ptrdiff_t(from))) {
      break;
    }
    ++tail;
  }
  return tail;
}

TEST(Grouped, RecentTokensStayBf16) {
  Setting setting;
  setting.type = ElementType::kBf16;
  setting.first_token = 256;
  setting.tokens = 200;  // of a prompt of 456 + tokens_after
  for (const auto& [after, kivi_key, kivi_value, quantspec] :
       {std::tuple{0, 456 % 128, 128, 128 + 456 % 128}, std::tuple{56, 0, 72, 72}, std::tuple{100, 0, 28, 72},
        std::tuple{-1, 0, 0, 0}, std::tuple{400, 0, 0, 0}}) {
    setting.tokens_after = after;
    setting.kind = KvKind::kKey;
    EXPECT_EQ(ExactTail("kivi", setting), kivi_key) << after;
    EXPECT_EQ(ExactTail("quantspec", setting), quantspec) << after;
    EXPECT_EQ(ExactTail("quantspec:buffer=0", setting), 0);
    setting.kind = KvKind::kValue;
    EXPECT_EQ(ExactTail("kivi", setting), kivi_value) << after;
    EXPECT_EQ(ExactTail("kivi:window=0", setting), 0);
  }
}

TEST(KvQuant, OutliersAndTheFirstTokenAreExact) {
  Setting setting;
  setting.type = ElementType::kBf16;
  for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    setting.kind = kind;
    setting.first_token = 0;
    auto values = PaintValues(Input::kNormal, 100, 40, 9, ElementType::kBf16);
    // One value far out in every channel and token that has room for one.
    std::vector<std::size_t> loud;
    for (std::size_t i = 0; i < 40; ++i) loud.push_back((2 * i + 1) * 40 + i);
    for (std::size_t at : loud) values[at] = at % 2 == 0 ? 4992.0f : -4992.0f;
    const Decoded decoded = RoundTrip("kvquant:bits=4,outliers=0.05", setting, values);
    for (std::size_t at : loud) EXPECT_EQ(decoded.prefixes[0][at], values[at]);
    for (std::size_t at = 0; at < 40; ++at) EXPECT_EQ(decoded.prefixes[0][at], values[at]);
    // All others lie inside ranges that the loud ones do not stretch.
    for (std::size_t at = 40; at < values.size(); ++at) {
      EXPECT_LT(std::fabs(decoded.prefixes[0][at] - values[at]), 800.0f);
    }
  }
}

// Below the uniform quantizer of the same range, whose error is (range / 7)^2 / 12 = 0.045 of the variance here.
TEST(KvQuant, LevelsFollowTheDistribution) {
  Setting setting;
  setting.tokens = 256;
  const Decoded decoded = RoundTrip("kvquant:bits=3", setting, Gaussian(256 * 40));
  EXPECT_LT(Nmse(decoded.values, decoded.prefixes[0]), 0.038);
  for (Input input : kInputs) {  // never beyond the page's range
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      setting.kind = kind;
      const Decoded any = RoundTrip("kvquant", setting, input);
      const auto [least, greatest] = std::minmax_element(any.values.begin(), any.values.end());
      const float slack = (std::fabs(*least) + std::fabs(*greatest)) * 0x1p-9f + 0x1p-23f;
      for (float value : any.prefixes[0]) {
        EXPECT_GE(value, *least - slack);
        EXPECT_LE(value, *greatest + slack);
      }
    }
  }
}

// K of a model with RoPE is quantized as it was before: slow channels of the same vector at all positions.
TEST(KvQuant, RotationIsUndone) {
  const int tokens = 256, head_dim = 16;
  CacheShape shape = ShapeFor(1, head_dim, ElementType::kF32);
  RopeShape rope{RopePairing::kNorm, 0, head_dim, {}};
  for (int pair = 0; pair < head_dim / 2; ++pair) rope.radians_per_token.push_back(1.0f / float(1 + pair));
  CacheShape rotated = shape;
  for (LayerShape& layer : rotated.layers) layer.rope = rope;
  const PageAddress address{0, KvKind::kKey, 0, 1, 256, tokens};
  PageMemory source(address, head_dim, ElementType::kF32);
  std::vector<float> values;
  const RopeTable table(rope, tokens);
  Random random(8);
  for (int token = 0; token < tokens; ++token) {
    float head[head_dim];
    for (int c = 0; c < head_dim; ++c) head[c] = float(c % 3) * 10.0f + Normal(random);
    table.Rotate(head, token);
    values.insert(values.end(), head, head + head_dim);
  }
  source.Fill(values);
  double nmse[2];
  for (int i = 0; i < 2; ++i) {
    const auto codec = MakeBaseline("kvquant", i == 0 ? shape : rotated).value();
    const auto streams = EncodePage(*codec, source.view()).value();
    PageMemory target(address, head_dim, ElementType::kF32);
    ASSERT_TRUE(DecodePage(*codec, streams, 1, target.span()).ok());
    nmse[i] = Nmse(values, target.Values());
  }
  EXPECT_LT(nmse[1], nmse[0] / 5);
}

TEST(RangeCoder, CodesComeBackAtTheirEntropy) {
  const int contexts = 7, symbols = 31, count = 256 * contexts;
  std::vector<std::byte> scratch_bytes(AdaptiveModel::WorkBytes(contexts, symbols)), out(count);
  std::vector<int> sent;
  Random random(12);
  for (int i = 0; i < count; ++i) {
    sent.push_back(std::clamp(15 + int(std::lrint(Normal(random) * (0.2f + float(i % contexts)))), 0, symbols - 1));
  }
  BitWriter writer(out);
  writer.Put(5, 3);  // need not begin at a byte
  {
    Scratch scratch(scratch_bytes);
    AdaptiveModel model(contexts, symbols, &scratch);
    RangeEncoder encoder(&writer);
    for (int i = 0; i < count; ++i) model.Put(i % contexts, sent[std::size_t(i)], &encoder);
    encoder.Finish();
  }
  writer.Finish();
  ASSERT_TRUE(writer.ok());
  // Normal sources of deviation 0.2 … 6.2 have 2.9 bits on average; learning 31 frequencies costs some more.
  EXPECT_LT(double(writer.bytes()) * 8 / count, 3.6);
  BitReader reader{std::span(out).first(writer.bytes())};
  EXPECT_EQ(reader.Get(3), 5u);
  Scratch scratch(scratch_bytes);
  AdaptiveModel model(contexts, symbols, &scratch);
  RangeDecoder decoder(&reader);
  for (int i = 0; i < count; ++i) ASSERT_EQ(model.Get(i % contexts, &decoder), sent[std::size_t(i)]) << i;
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.bytes(), writer.bytes());
}

// Carries run through many bytes: a long stretch of symbols at the upper edge.
TEST(RangeCoder, Carries) {
  for (std::uint32_t last : {0u, 1u, 254u, 255u}) {
    std::vector<std::byte> out(4096);
    BitWriter writer(out);
    RangeEncoder encoder(&writer);
    for (int i = 0; i < 2000; ++i) encoder.Put(255, 1, 256);
    encoder.Put(last, 1, 256);
    for (int i = 0; i < 1000; ++i) encoder.Put(i % 256, 1, 256);
    encoder.Finish();
    ASSERT_TRUE(writer.ok());
    BitReader reader{std::span(out).first(writer.bytes())};
    RangeDecoder decoder(&reader);
    for (int i = 0; i < 3001; ++i) {
      const std::uint32_t expected = i < 2000 ? 255u : i == 2000 ? last : std::uint32_t(i - 2001) % 256;
      ASSERT_EQ(decoder.Peek(256), expected) << i;
      decoder.Take(expected, 1);
    }
    EXPECT_EQ(reader.bytes(), writer.bytes());
  }
}

TEST(CacheGen, Bounds) {
  Setting setting;
  const int channels = setting.heads * setting.head_dim;
  for (Input input : kInputs) {
    for (const auto& [spec, delta] : {std::pair{"cachegen", true}, std::pair{"cachegen:delta=0", false}}) {
      const Decoded decoded = RoundTrip(spec, setting, input);
      const auto greatest = [&](int token) {
        double magnitude = 0;
        for (int c = 0; c < channels; ++c) {
          magnitude = std::max(magnitude, std::fabs(double(decoded.values[std::size_t(token * channels + c)])));
        }
        return magnitude;
      };
      for (int token = 0; token < setting.tokens; ++token) {
        const bool is_anchor = delta && token % 10 == 0;
        const double reach = greatest(token) + (delta && !is_anchor ? 1.01 * greatest(token / 10 * 10) : 0.0);
        // Layer 0 has the finer levels.
        const double step = reach / (is_anchor ? 127 : 15) * (1 + 0x1p-10) + 0x1p-24;
        CheckGroup(decoded, std::size_t(token * channels), 1, channels,
                   [&](double, double, const std::vector<double>& errors) {
                     EXPECT_LE(errors[0], step / 2 + 1e-6 * reach) << spec << " input " << int(input) << " " << token;
                   });
      }
    }
  }
}

TEST(CacheGen, TablesCostWhatTheyTake) {
  Setting setting;
  setting.tokens = 256;
  setting.head_dim = 64;
  const std::vector<float> values = PaintValues(Input::kNormal, 256, 128, 4);
  const Decoded adaptive = RoundTrip("cachegen", setting, values);
  const Decoded tables = RoundTrip("cachegen:cdf=1", setting, values);
  EXPECT_EQ(adaptive.prefixes, tables.prefixes);
  // 33 numbers of 16 bits for 128 channels, less what the adaptive model pays for learning.
  EXPECT_GT(tables.bytes, adaptive.bytes + 128 * 33 * 2 / 2);
  EXPECT_LT(tables.bytes, adaptive.bytes + 128 * 33 * 2);
}

TEST(MaxQuantizer, LevelsAreCentroidsOfTheirCells) {
  for (int bits = 1; bits <= 4; ++bits) {
    const int levels = 1 << bits;
    std::vector<double> sums(std::size_t(levels), 0.0), weights(std::size_t(levels), 0.0);
    for (double x = -8; x < 8; x += 1e-4) {
      const auto level = std::size_t(MaxLevelOf(float(x), bits));
      sums[level] += x * std::exp(-x * x / 2);
      weights[level] += std::exp(-x * x / 2);
    }
    for (int level = 0; level < levels; ++level) {
      EXPECT_NEAR(MaxValueOf(level, bits), sums[std::size_t(level)] / weights[std::size_t(level)], 2e-3);
      EXPECT_EQ(MaxLevelOf(MaxValueOf(level, bits), bits), level);
    }
  }
}

TEST(TurboQuant, RotationIsOrthogonal) {
  for (int length : {1, 2, 3, 64, 80, 96, 576}) {
    const RandomRotation rotation(length);
    std::vector<std::vector<float>> columns;
    for (int i = 0; i < length; ++i) {
      std::vector<float> column(std::size_t(length), 0.0f);
      column[std::size_t(i)] = 1.0f;
      rotation.Apply(column.data());
      columns.push_back(column);
      rotation.Undo(column.data());
      for (int c = 0; c < length; ++c) EXPECT_NEAR(column[std::size_t(c)], c == i ? 1.0 : 0.0, 1e-5);
    }
    for (const auto& a : columns) {
      double product = 0, norm = 0;
      for (std::size_t c = 0; c < a.size(); ++c) {
        product += double(a[c]) * double(columns[0][c]);
        norm += double(a[c]) * double(a[c]);
      }
      EXPECT_NEAR(product, &a == &columns[0] ? 1.0 : 0.0, 1e-5);
      EXPECT_NEAR(norm, 1.0, 1e-5);
      // No coordinate keeps its energy.
      if (length >= 64) {
        EXPECT_LT(*std::max_element(a.begin(), a.end()), 0.6f);
      }
    }
  }
}

// Max's table I: distortions of a normal source; whatever the input, rotation makes it one.
TEST(TurboQuant, ErrorIsThatOfANormalSource) {
  Setting setting;
  setting.tokens = 256;
  setting.head_dim = 128;
  for (const auto& [bits, distortion] :
       {std::pair{1, 0.3634}, std::pair{2, 0.1175}, std::pair{3, 0.03454}, std::pair{4, 0.009497}}) {
    const std::string spec = "turboquant:bits=" + std::to_string(bits);
    for (Input input : {Input::kNormal, Input::kLoudToken}) {
      const Decoded decoded = RoundTrip(spec, setting, input);
      EXPECT_NEAR(Nmse(decoded.values, decoded.prefixes[0]), distortion, 0.12 * distortion) << spec << int(input);
    }
  }
}

// Every finite BF16 number, −0 and denormals too.
TEST(SplitZip, IsLossless) {
  for (const char* spec : {"splitzip", "splitzip:entropy=0"}) {
    Setting setting;
    setting.type = ElementType::kBf16;
    setting.tokens = 256;
    setting.heads = 1;
    setting.head_dim = 256;
    std::vector<float> all;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = Bf16ToFloat(std::uint16_t(bits));
      all.push_back(std::fabs(value) <= 16384.0f ? value : 0.0f);
    }
    std::vector<float> few = Gaussian(all.size());
    for (float& value : few) value = Bf16ToFloat(FloatToBf16(value));
    for (std::size_t i = 0; i < 2000; ++i) few[i * 13] = all[i * 11];
    for (const auto& values : {all, few}) {
      const Decoded decoded = RoundTrip(spec, setting, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded.prefixes[0][i]), std::bit_cast<std::uint32_t>(values[i])) << i;
      }
    }
    EXPECT_LT(double(RoundTrip(spec, setting, few).bytes) * 8 / 65536, 13.6);
  }
}

TEST(PaperAblation, WithAllStagesItIsThePaper) {
  Setting setting;
  for (const auto& [ablation, paper] :
       {std::pair{"paper-ablation", "paper"}, std::pair{"paper-ablation:alpha=4", "paper:alpha=4"},
        std::pair{"paper-ablation:scale=127", "paper127"}, std::pair{"paper-ablation:scale=127,coded=1", "paper127"}}) {
    for (Input input : kInputs) {
      EXPECT_EQ(RoundTrip(ablation, setting, input).prefixes, RoundTrip(paper, setting, input).prefixes)
          << ablation << " input " << int(input);
    }
  }
  const auto values = Gaussian(100 * 40);
  EXPECT_EQ(RoundTrip("paper-ablation:split=0", setting, values).prefixes[0],
            RoundTrip("paper", setting, values).prefixes[1]);
}

// Uniform levels over a range: half of 1/120 of it. One page scale, one chunk scale, both, none.
TEST(PaperAblation, StagesThatAreLeft) {
  Setting setting;
  const auto values = Gaussian(100 * 40);
  double greatest = 0;
  for (float value : values) greatest = std::max(greatest, std::fabs(double(value)));
  for (const char* stages : {"page=1,chunk=32", "page=1,chunk=0", "page=0,chunk=7", "page=0,chunk=0"}) {
    const Decoded decoded = RoundTrip(std::string("paper-ablation:alpha=0,") + stages, setting, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::fabs(decoded.prefixes[1][i] - values[i]), greatest / 120 / 2 * 2.1) << stages;
      ASSERT_LE(std::fabs(decoded.prefixes[0][i] - values[i]), greatest * 8 / 120 * 2.1) << stages;
    }
  }
}

}  // namespace
}  // namespace lynx::testing
