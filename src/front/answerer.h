// What the front asks for an answer: a decode node with the prefill nodes that it knows.
#pragma once

#include <atomic>

#include "lynx/engine.h"
#include "lynx/result.h"
#include "serve/decode_node.h"

namespace lynx {

class Answerer {
 public:
  virtual ~Answerer() = default;
  // Only info() and what concerns text is used, by many threads.
  virtual const Engine& engine() const = 0;
  // As DecodeNode::Generate; many threads at once.
  virtual Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                          const std::atomic<bool>* cancel) = 0;
  // A prefill node is there, as far as is known.
  virtual bool ready() const = 0;
  virtual EngineLoopStats stats() const = 0;
};

}  // namespace lynx
