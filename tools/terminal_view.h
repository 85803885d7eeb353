// An answer as it grows: committed text plain, drafts dim, drafts that were taken back struck through until the next
// change replaces them.
#pragma once

#include <string>
#include <vector>

#include "lynx/engine.h"

namespace lynx {

class TerminalView {
 public:
  // Without `live` (no terminal) only committed text is written.
  TerminalView(const Engine* engine, bool live);

  void Show(const std::vector<Token>& tokens, int committed);
  // Leaves the cursor on a new line; drafts that still stand are erased.
  void End();

 private:
  std::string TextOf(const std::vector<Token>& tokens, std::size_t from, std::size_t to) const;
  // Erases everything behind the committed text.
  void EraseDrafts();
  void Write(const std::string& text, const char* style);

  const Engine* engine_;
  const bool live_;
  int width_ = 80;
  int column_ = 0;      // where the committed text ends
  int draft_rows_ = 0;  // rows below that line which drafts reach
  std::vector<Token> shown_;
  int committed_ = 0;
};

}  // namespace lynx
