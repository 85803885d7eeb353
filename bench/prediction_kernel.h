// The inner loop of prediction across layers, written as a codec would have it: integers only until the last step, so
// that both ends get the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lynx {

// The outputs of all predictors are padded to this.
inline constexpr int kPredictorBlock = 32;

// Linear: what each output channel is expected to be, from the levels of input channels of the same token.
struct Predictor {
  // Weights [input][output] in levels per level, rounded to int8 with a scale per output. Inputs are even in number.
  Predictor(const std::vector<double>& weights, int inputs, int outputs);

  // As they would travel: a byte per weight, a float per output.
  std::size_t Bytes() const { return std::size_t(inputs) * std::size_t(outputs) + 4 * std::size_t(outputs); }

  int inputs;
  int outputs;
  int width;                         // outputs, padded
  std::vector<std::int8_t> weights;  // [pair of inputs][width][2]
  std::vector<float> scales;         // [width]: quarters of a level per unit of the sum
};

// Levels [token][inputs] -> predictions in quarters of a level, rounded to nearest, [token][width].
void Predict(const Predictor& predictor, const std::int8_t* levels, int tokens, std::int16_t* quarters);

// The instruction set that Predict runs on here.
const char* PredictorTarget();

}  // namespace lynx
