// The page at /: page.html, as CMake put it into the program.
#pragma once

#include <string_view>

namespace lynx {

std::string_view Page();

}  // namespace lynx
