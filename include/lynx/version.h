#pragma once

namespace lynx {

// The release, "0.1.0".
const char* Version();
// The commit that was built, or "unknown".
const char* BuildCommit();

}  // namespace lynx
