#include "lynx/version.h"

#ifndef LYNX_COMMIT
#define LYNX_COMMIT "unknown"
#endif

namespace lynx {

const char* Version() { return LYNX_VERSION; }
const char* BuildCommit() { return LYNX_COMMIT; }

}  // namespace lynx
