// The bundled prompt of `lynx demo`.
#pragma once

#include <string_view>

namespace lynx {

// A plain ASCII article of 2,150 to 2,400 tokens (SmolLM2's tokenizer), so that a prompt of 2,048 tokens can be cut
// from it. It was written for Lynx; people and places are made up.
std::string_view DemoDocument();

// The instruction that follows the document. Its answer is normally longer than 100 tokens.
std::string_view DemoQuestion();

}  // namespace lynx
