#include "terminal_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lynx {
namespace {

constexpr const char* kPlain = "";
constexpr const char* kDim = "\033[2m";
constexpr const char* kStruck = "\033[2;9;31m";

// Rows the cursor goes down when `text` is written from `*column`; *column becomes the new column.
int Advance(const std::string& text, int width, int* column) {
  int rows = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++rows;
      *column = 0;
      continue;
    }
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;  // inside a UTF-8 character
    if (*column == width) {
      ++rows;
      *column = 0;
    }
    ++*column;
  }
  return rows;
}

}  // namespace

TerminalView::TerminalView(const Engine* engine, bool live) : engine_(engine), live_(live) {
  winsize size{};
  if (live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width_ = size.ws_col;
}

std::string TerminalView::TextOf(const std::vector<Token>& tokens, std::size_t from, std::size_t to) const {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += engine_->TokenText(tokens[i]);
  std::erase_if(text, [](char c) { return c == '\r' || c == '\033' || c == '\t'; });  // nothing that moves the cursor
  return text;
}

void TerminalView::EraseDrafts() {
  if (draft_rows_ > 0) std::printf("\033[%dA", draft_rows_);
  std::printf("\r");
  if (column_ == width_) {
    std::printf("\033[%dC ", width_ - 1);  // past the last column: the next character wraps
    std::printf("\b");
  } else if (column_ > 0) {
    std::printf("\033[%dC", column_);
  }
  if (column_ < width_) std::printf("\033[J");
  draft_rows_ = 0;
}

void TerminalView::Write(const std::string& text, const char* style) {
  if (!text.empty()) std::printf("%s%s%s", style, text.c_str(), *style ? "\033[0m" : "");
}

void TerminalView::Show(const std::vector<Token>& tokens, int committed) {
  const auto drafts_begin = std::size_t(committed);
  const std::string fresh = TextOf(tokens, std::size_t(committed_), drafts_begin);
  if (!live_) {
    std::fputs(fresh.c_str(), stdout);
  } else {
    // What stood and no longer does: drafts behind the first difference.
    const auto same =
        std::size_t(std::mismatch(shown_.begin(), shown_.end(), tokens.begin(), tokens.end()).first - shown_.begin());
    const std::string lost = same < shown_.size() ? TextOf(shown_, std::max(same, drafts_begin), shown_.size()) : "";
    const std::string drafts = TextOf(tokens, drafts_begin, tokens.size());
    EraseDrafts();
    Write(fresh, kPlain);
    Advance(fresh, width_, &column_);
    Write(drafts, kDim);
    Write(lost, kStruck);
    int column = column_;
    draft_rows_ = Advance(drafts + lost, width_, &column);
  }
  std::fflush(stdout);
  shown_ = tokens;
  committed_ = committed;
}

void TerminalView::End() {
  if (live_) EraseDrafts();
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace lynx
